"""WebSockets without a network: what connections were sent, and faults to order."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lakesync.buffer.admission import ItemAccess
from lakesync.buffer.connections import ItemConnections
from lakesync.buffer.memory_items import MemoryItemStore
from lakesync.errors import BY_CODE
from lakesync.gateway.access import Access
from lakesync.gateway.broadcast import Broadcaster
from lakesync.gateway.connected import ConnectionSweep, rules_digest, scoped
from lakesync.gateway.frame_sending import FrameSender
from lakesync.ports import Connection, FrameResult
from lakesync.wire import json_frames, jsonish, proto
from lakesync.wire.proto import Refused, Tag
from tests.support.gateways import GATEWAY, GatewayWorld

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lakesync.core.messages import PullPage


def is_json(frame: str) -> bool:
    return frame.startswith("{")


def broadcast_of(frame: str) -> PullPage | None:
    """Read a frame of either encoding; None if it is no broadcast."""
    if is_json(frame):
        read = json_frames.decode_frame(frame)
        return jsonish.page_of(read.message) if read.tag is Tag.BROADCAST else None
    tag, body = proto.decode_frame(frame)
    return proto.decode_page(body) if tag is Tag.BROADCAST else None


def refusal_in(frame: str) -> Refused | None:
    """Read a frame of either encoding; None if it is no refusal."""
    if not is_json(frame):
        tag, body = proto.decode_frame(frame)
        return proto.decode_refusal(body) if tag is Tag.REFUSAL else None
    read = json_frames.decode_frame(frame)
    if read.tag is not Tag.REFUSAL:
        return None
    said = read.message
    error = BY_CODE[said["code"]](
        said["error"], field=said.get("field"), retry_after_s=said.get("retryAfterS")
    )
    return Refused(read.id, error, said["closes"])


class FakeSockets:
    """`lakesync.ports.Sockets` that keep what they were sent."""

    def __init__(self) -> None:
        self.sent: dict[str, list[str]] = defaultdict(list)
        self.closed: list[str] = []
        self.busy: set[str] = set()
        self.gone: set[str] = set()

    def send(self, connection_id: str, frame: str) -> FrameResult:
        if connection_id in self.gone or connection_id in self.closed:
            return FrameResult.GONE
        if connection_id in self.busy:
            return FrameResult.BUSY
        self.sent[connection_id].append(frame)
        return FrameResult.SENT

    def close(self, connection_id: str) -> None:
        self.closed.append(connection_id)

    def pages(self, connection_id: str) -> list[PullPage]:
        taken, self.sent[connection_id] = self.sent[connection_id], []
        return [page for frame in taken if (page := broadcast_of(frame))]

    def refusals(self, connection_id: str) -> list[Refused]:
        sent = self.sent[connection_id]
        return [refused for frame in sent if (refused := refusal_in(frame))]


@dataclass
class Hub(GatewayWorld):
    """A gateway's connections, and one process that notifies them."""

    access: ItemAccess = field(default_factory=lambda: ItemAccess(MemoryItemStore()))
    connections: ItemConnections = field(default_factory=lambda: ItemConnections(MemoryItemStore()))
    sockets: FakeSockets = field(default_factory=FakeSockets)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.broadcaster = self.process()
        access = Access(self.access, wall_clock=self.time.wall_clock)
        self.sweep = ConnectionSweep(self.connections, self.sender(), access, self.time.wall_clock)

    def sender(self) -> FrameSender:
        return FrameSender(
            self.sockets,
            self.connections,
            seconds=lambda: self.time.now_ms / 1000,
            sleep_s=lambda seconds: self.time.sleep_ms(seconds * 1000),
        )

    def process(self) -> Broadcaster:
        return Broadcaster(
            self.puller(),
            self.connections,
            self.sender(),
            access=Access(self.access, wall_clock=self.time.wall_clock),
            wall_clock=self.time.wall_clock,
        )

    def connect(
        self,
        client: str,
        *,
        claims: Mapping[str, Any] | None = None,
        expires_s: float = 4e9,
        name: str = "",
        is_json: bool = False,
    ) -> Connection:
        """Open a connection of a client, whose user has the same name."""
        connection = Connection(
            GATEWAY,
            name or f"to-{client}",
            client,
            client,
            expires_s,
            self.time.wall_clock(),
            claims or {},
            is_json=is_json,
        )
        config = self.buffer.config(GATEWAY)
        connection = scoped(connection, config, rules_digest(config))
        self.connections.add(connection)
        return connection

    def newest(self) -> int:
        heads = self.buffer.heads(GATEWAY)
        return max((head.last_logged for head in heads.values()), default=0)

    def notify(self, *, rules_changed: bool = False) -> None:
        commit = self.newest()
        self.broadcaster.notify(GATEWAY, commit, f"batch-{commit}", rules_changed=rules_changed)
