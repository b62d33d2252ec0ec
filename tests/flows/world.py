"""A gateway, a source in memory, databases, and polled flows that may be killed at any write."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lakesync.adapters.database import PlacedDelta, Position, TableBatch
from lakesync.adapters.ledger_database import values_of
from lakesync.buffer.admin_stores import ItemConnectors
from lakesync.buffer.memory_buffer import MemoryBuffer
from lakesync.buffer.memory_items import MemoryItemStore
from lakesync.connectors.polls import LEASE_MS
from lakesync.connectors.port import Outside
from lakesync.core.clock import stamp
from lakesync.flows.routes import keeper
from lakesync.gateway.destination_admin import DestinationAdmin
from lakesync.wire.records import decode_row_state
from tests.delivery.world import KeptDatabase
from tests.support.gateways import GivenTime, pusher
from tests.support.hosts import LOOPBACK
from tests.support.lake import Killed, Messages, Objects
from tests.support.polling import PollingByHand

if TYPE_CHECKING:
    from lakesync.adapters.database import Inserted
    from lakesync.core.delta import Delta
    from lakesync.core.messages import Push, PushReceipt
    from lakesync.errors import LakeSyncError
    from lakesync.flows.flow_admin import FlowAdmin
    from lakesync.result import Result

GATEWAY = "acme"
NOW_MS = 1_800_000_000_000
SOURCE_TABLE = "orders"


class Steps:
    """How many writes are left before the process dies, before or after the last."""

    def __init__(self) -> None:
        self.left = 1_000_000
        self.last_happens = False

    def dies(self) -> bool:
        """Count a write; tell whether the process dies right after it."""
        self.left -= 1
        if self.left == 0:
            if not self.last_happens:
                raise Killed
            return True
        return False


class MortalDatabase(KeptDatabase):
    """A database whose writer may die."""

    def __init__(self, steps: Steps) -> None:
        super().__init__()
        self.steps = steps

    def insert_deltas(self, batch: TableBatch) -> Result[Inserted, LakeSyncError]:
        dies = self.steps.dies()
        inserted = super().insert_deltas(batch)
        if dies:
            raise Killed
        return inserted


class MortalEnd:
    """Any database, whose writer may die."""

    def __init__(self, database: Any, steps: Steps) -> None:
        self._database = database
        self._steps = steps

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)

    def insert_deltas(self, batch: TableBatch) -> Result[Inserted, LakeSyncError]:
        dies = self._steps.dies()
        inserted: Result[Inserted, LakeSyncError] = self._database.insert_deltas(batch)
        if dies:
            raise Killed
        return inserted


class MortalStore(ItemConnectors):
    """Connectors whose poller may die."""

    steps: Steps

    def save(self, gateway: str, name: str, lease: int, state: bytes, until_ms: int) -> bool:
        dies = self.steps.dies()
        saved = super().save(gateway, name, lease, state, until_ms)
        if dies:
            raise Killed
        return saved


class World:
    """What flows move between."""

    def __init__(self, outside: Outside | None = None) -> None:
        self.steps = Steps()
        self.time = GivenTime(NOW_MS)
        self.buffer, objects, store = MemoryBuffer(), Objects(), MortalStore(MemoryItemStore())
        store.steps = self.steps
        self._service = pusher(self.buffer, time_=self.time)
        self.by_hand = PollingByHand(
            self._push, self.time.wall_clock, store=store, objects=objects, rows=self.buffer,
            outside=outside or Outside(databases=LOOPBACK),
        )  # fmt: skip
        destinations = DestinationAdmin(
            self.buffer, objects, Messages(), wall_clock=self.time.wall_clock
        )
        self.admin: FlowAdmin = self.by_hand.flow_admin(self.buffer, destinations)
        self.source: Any = KeptDatabase()
        self.by_hand.databases["shop", "other"] = self.source

    def database(self, secret: str = "warehouse", name: str = "flow") -> KeptDatabase:
        made = MortalDatabase(self.steps)
        database: KeptDatabase = self.by_hand.databases.setdefault(
            (secret, keeper(GATEWAY, name)), made
        )
        return database

    def declare(self, **body: Any) -> dict[str, Any]:
        """Declare a flow between two databases, or as it is said."""
        self.database()
        return self.admin.declare(GATEWAY, self.body(**body))

    def body(self, **body: Any) -> dict[str, Any]:
        """Return the declaration of a flow between two databases, or as it is said."""
        declared = {
            "name": "flow",
            "source": {"database": "postgres", "secret": "shop", "gateway": "other"},
            "tables": [SOURCE_TABLE],
            "destination": {"database": "mysql", "secret": "warehouse"},
        }
        if body.get("source", {}).get("connector"):
            del declared["tables"]
        return declared | body

    def commit(self, *deltas: Delta) -> None:
        for delta in deltas:
            self.time.now_ms += 3
            at = stamp(self.time.wall_clock())
            mark = self.source.mark(delta.table).unwrap()
            placed = [PlacedDelta(Position(at, 0), delta)]
            self.source.insert_deltas(TableBatch(delta.table, mark, at, placed)).unwrap()

    def poll(self, name: str = "flow") -> str:
        """Poll a flow to its end, as a new process does a while later."""
        self.time.now_ms += LEASE_MS + 1
        status, lease = "more", 0
        while status == "more":
            step = self.by_hand.polls.poll(GATEWAY, name, lease, lambda: True)
            status, lease = step.status, step.lease
        return status

    def status(self, name: str = "flow") -> dict[str, Any]:
        return next(one for one in self.admin.all(GATEWAY) if one["name"] == name)

    def rows(self, database: KeptDatabase | None = None, table: str = SOURCE_TABLE) -> Any:
        states = (database or self.database()).rows_after(table, "", 10_000).unwrap().rows
        return _shown(states)

    def in_gateway(self, table: str = SOURCE_TABLE) -> Any:
        stored = self.buffer.scan_rows(GATEWAY, table, "", 10_000).rows
        return _shown({row_id: decode_row_state(one.state) for row_id, one in stored})

    def _push(self, gateway: str, push: Push) -> PushReceipt:
        dies = self.steps.dies()
        receipt = self._service.push(gateway, push)
        if dies:
            raise Killed
        return receipt


def _shown(states: Any) -> dict[str, Any]:
    shown = {row_id: values_of(state) for row_id, state in states.items()}
    return {row_id: values for row_id, values in shown.items() if values is not None}
