"""Connectors of a gateway in one process: secrets, schedules and polls without AWS."""

from __future__ import annotations

import json
import pickle
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from lakesync.buffer.admin_stores import ItemConnectors, ItemRuns
from lakesync.buffer.admission import ItemAccess
from lakesync.buffer.memory_buffer import MemoryBuffer
from lakesync.buffer.memory_items import MemoryItemStore
from lakesync.connectors.connector_admin import ConnectorAdmin
from lakesync.connectors.incoming_webhooks import Webhooks
from lakesync.connectors.large_polls import LargePolls, read_stretch
from lakesync.connectors.polls import Polls
from lakesync.connectors.port import Outside, Storage
from lakesync.connectors.registry import definition_from
from lakesync.errors import AdapterFailed, AdapterRefused
from lakesync.flows.flow_admin import FlowAdmin
from lakesync.flows.routes import FlowRoutes
from lakesync.runtime.invocations import counted_by, with_counts
from tests.support.hosts import LOOPBACK
from tests.support.lake import Objects

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from lakesync.connectors.large_polls import JobResult, StretchRead, Work
    from lakesync.connectors.port import Stretch
    from lakesync.core.flows import Flow
    from lakesync.core.messages import Push, PushReceipt
    from lakesync.gateway.destination_admin import AsksDatabase, DestinationAdmin
    from lakesync.ports import Buffer, Rows

P = TypeVar("P", bound=Polls)


class MemorySecrets:
    """`lakesync.ports.SecretStore` in a dictionary."""

    def __init__(self) -> None:
        self.stored: dict[str, str] = {}
        self.fails = False

    def get(self, name: str) -> Mapping[str, str]:
        fields: dict[str, str] = json.loads(self.stored.get(name, "{}"))
        return fields

    def put(self, name: str, fields: Mapping[str, str]) -> None:
        if self.fails:
            raise AdapterFailed("secrets are away")
        self.stored[name] = json.dumps(dict(fields))

    def remove(self, name: str) -> None:
        self.stored.pop(name, None)

    def get_anew(self, name: str) -> Mapping[str, str]:
        return self.get(name)


@dataclass
class PollingByHand:
    """`lakesync.ports.PollSchedules`, and what is polled when somebody asks for it."""

    push: Callable[[str, Push], PushReceipt]
    wall_clock: Callable[[], int]
    store: Any = field(default_factory=lambda: ItemConnectors(MemoryItemStore()))
    secrets: MemorySecrets = field(default_factory=MemorySecrets)
    objects: Any = field(default_factory=Objects)
    access: ItemAccess = field(default_factory=lambda: ItemAccess(MemoryItemStore()))
    rows: Rows = field(default_factory=MemoryBuffer)
    deliveries: ItemRuns = field(default_factory=lambda: ItemRuns(MemoryItemStore()))
    outside: Outside = field(default_factory=lambda: Outside(databases=LOOPBACK))
    schedules: dict[tuple[str, str], tuple[int, bool]] = field(default_factory=dict)
    databases: dict[tuple[str, str], Any] = field(default_factory=dict)
    """What flows move between, by the name of the secret and whose tables they are."""
    rows_min: int = 0
    """From how many rows ahead on a table of a flow is a job's; 0 for never."""
    asks: AsksDatabase | None = None
    """Asks the databases of flows; None asks none."""

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
        return self._made(Polls, self.flow_routes(place))

    def flow_routes(self, place: str, *, side_by_side: bool = False) -> FlowRoutes:
        """Return how flows are carried out in one of the functions, or in a job."""
        return FlowRoutes(
            self.secrets, self.push, self.rows, self._opened, wall_clock=self.wall_clock,
            outside=self.outside, place=place, rows_min=self.rows_min, side_by_side=side_by_side,
        )  # fmt: skip

    def _made(self, kind: type[P], flows: FlowRoutes) -> P:
        return kind(
            self.store, self.secrets, self.objects, self.push, self.rows,
            wall_clock=self.wall_clock, outside=self.outside, flows=flows,
        )  # fmt: skip

    def job(self, gateway: str, name: str, lease: int, at_once: int = 4) -> JobResult:
        """Do what a job does that was started with a lease: its tasks one after another."""
        flows = self.flow_routes("databases", side_by_side=True)

        def reads(
            work: Work, stretches: Sequence[Stretch], keep: Callable[[], None]
        ) -> list[StretchRead]:
            done = []
            work, stretches = pickle.loads(pickle.dumps((work, stretches)))  # noqa: S301 - ours
            for stretch in stretches:
                keep()
                storage = Storage(self.objects, work.gateway, work.name)
                definition = definition_from(work.definition)
                route = flows.route(work.gateway, work.name, definition, storage)
                done.append(read_stretch(route, work, stretch, self.wall_clock, lambda _: None))
            return pickle.loads(pickle.dumps(done))  # type: ignore[no-any-return]  # noqa: S301 - ours

        polls = self._made(LargePolls, flows)
        return polls.take_over(gateway, name, lease, reads, at_once, lambda: True)

    def flow_admin(self, buffer: Buffer, destinations: DestinationAdmin) -> FlowAdmin:
        return FlowAdmin(
            buffer, destinations, self.admin, self.store, self._counts,
            wall_clock=self.wall_clock, asks=self.asks,
        )  # fmt: skip

    def _counts(self, gateway: str, flow: Flow) -> Mapping[str, Any]:
        """Count as ``functions/flow`` does, when the administration asks it."""
        handler = with_counts(lambda *_: None, self._opened, time.monotonic)

        def invoke(request: str) -> tuple[bool, bytes]:
            return True, json.dumps(handler(json.loads(request), None)).encode()

        return counted_by(invoke, invoke)(gateway, flow)

    def _opened(self, gateway: str, secret: str, kind: str, keeper: str) -> Any:
        del gateway, kind
        if (secret, keeper) not in self.databases:
            raise AdapterRefused(f"the secret {secret} cannot be read")
        return self.databases[secret, keeper]

    def put(self, gateway: str, name: str, every_minutes: int, *, paused: bool) -> None:
        self.schedules[gateway, name] = (every_minutes, paused)

    def remove(self, gateway: str, name: str) -> None:
        self.schedules.pop((gateway, name), None)

    def poll_now(self, gateway: str, name: str) -> None:
        self.polls.poll(gateway, name, 0, lambda: True)
