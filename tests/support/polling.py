"""Connectors of a gateway in one process: secrets, schedules and polls without AWS."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lakesync.buffer.memory import MemoryBuffer
from lakesync.buffer.memory_access import MemoryAccess
from lakesync.buffer.memory_actions import MemoryRuns
from lakesync.buffer.memory_connectors import MemoryConnectors
from lakesync.connectors.admin import ConnectorAdmin
from lakesync.connectors.outside import NOTHING_ALLOWED, Outside
from lakesync.connectors.polls import Polls
from lakesync.connectors.webhooks import Webhooks
from lakesync.errors import AdapterFailed, AdapterRefused
from lakesync.flows.admin import FlowAdmin
from lakesync.flows.routes import FlowRoutes
from lakesync.runtime.flow_counts import counted_by, with_counts
from tests.support.lake import Objects

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lakesync.core.flows import Flow
    from lakesync.core.messages import Push, PushReceipt
    from lakesync.gateway.destinations import DestinationAdmin
    from lakesync.ports import Buffer, Rows


class MemorySecrets:
    """`lakesync.ports.SecretStore` in a dictionary."""

    def __init__(self) -> None:
        self.stored: dict[str, str] = {}
        self.fails = False

    def get(self, name: str) -> Mapping[str, str]:
        """Give a secret's fields."""
        fields: dict[str, str] = json.loads(self.stored.get(name, "{}"))
        return fields

    def put(self, name: str, fields: Mapping[str, str]) -> None:
        """Store a secret."""
        if self.fails:
            raise AdapterFailed("secrets are away")
        self.stored[name] = json.dumps(dict(fields))

    def remove(self, name: str) -> None:
        """Remove a secret."""
        self.stored.pop(name, None)

    def forget(self, name: str) -> None:
        """Remember nothing, as always."""


@dataclass
class PollingByHand:
    """`lakesync.ports.PollSchedules`, and what is polled when somebody asks for it."""

    push: Callable[[str, Push], PushReceipt]
    wall_clock: Callable[[], int]
    store: Any = field(default_factory=MemoryConnectors)
    secrets: MemorySecrets = field(default_factory=MemorySecrets)
    objects: Any = field(default_factory=Objects)
    access: MemoryAccess = field(default_factory=MemoryAccess)
    rows: Rows = field(default_factory=MemoryBuffer)
    deliveries: MemoryRuns = field(default_factory=MemoryRuns)
    outside: Outside = NOTHING_ALLOWED
    schedules: dict[tuple[str, str], tuple[int, bool]] = field(default_factory=dict)
    databases: dict[tuple[str, str], Any] = field(default_factory=dict)
    """What flows move between, by the name of the secret and whose tables they are."""

    def __post_init__(self) -> None:
        self.polls = self.polls_at("")
        self.webhooks = Webhooks(
            self.store, self.secrets, self.objects, self.push, self.rows, self.deliveries,
            wall_clock=self.wall_clock, outside=self.outside,
        )  # fmt: skip
        self.admin = ConnectorAdmin(
            self.store, self.secrets, self, self.objects, self.access,
            wall_clock=self.wall_clock, outside=self.outside,
        )  # fmt: skip

    def polls_at(self, place: str) -> Polls:
        """Give what polls in one of the functions, or, without a place, all there is."""
        flows = FlowRoutes(
            self.secrets, self.push, self.rows, self._opened,
            wall_clock=self.wall_clock, outside=self.outside, place=place,
        )  # fmt: skip
        return Polls(
            self.store, self.secrets, self.objects, self.push, self.rows,
            wall_clock=self.wall_clock, outside=self.outside, flows=flows,
        )  # fmt: skip

    def flow_admin(self, buffer: Buffer, destinations: DestinationAdmin) -> FlowAdmin:
        """Give what declares flows."""
        return FlowAdmin(
            buffer, destinations, self.admin, self.store, self._counts, wall_clock=self.wall_clock
        )

    def _counts(self, gateway: str, flow: Flow) -> Mapping[str, Any]:
        """Count as ``functions/flow`` does, when the administration asks it."""
        handler = with_counts(lambda *_: None, self._opened, time.monotonic)

        def invoke(request: str) -> tuple[bool, bytes]:
            return True, json.dumps(handler(json.loads(request), None)).encode()

        return counted_by(invoke)(gateway, flow)

    def _opened(self, gateway: str, secret: str, kind: str, keeper: str) -> Any:
        del gateway, kind
        if (secret, keeper) not in self.databases:
            raise AdapterRefused(f"the secret {secret} cannot be read")
        return self.databases[secret, keeper]

    def put(self, gateway: str, name: str, every_minutes: int, *, paused: bool) -> None:
        """Note when a connector is polled."""
        self.schedules[gateway, name] = (every_minutes, paused)

    def remove(self, gateway: str, name: str) -> None:
        """Forget it."""
        self.schedules.pop((gateway, name), None)

    def poll_now(self, gateway: str, name: str) -> None:
        """Poll it, here and now, to the end."""
        self.polls.poll(gateway, name, 0, lambda: True)
