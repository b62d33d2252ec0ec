"""What flows move between, as one process meets it: databases, a bucket, and what is kept of polls.

Behind stand the real `MemoryDatabase`, which is written to row by row as an SQL database is, and
the real adapter of tables that have heads, on a bucket in memory: what it has in common with that
of Iceberg is how a write comes about, as files, and then one commit that is all of it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from lakesync.adapters.database import DeadLetter
from lakesync.adapters.lake.memory import MemoryAdapter
from lakesync.adapters.ledger_database import values_of
from lakesync.buffer.memory_buffer import MemoryBuffer
from lakesync.errors import AdapterUnreachable, LakeSyncError
from lakesync.result import Err, Ok
from lakesync.systems.objects import ObjectsDatabase
from tests.delivery.world import KeptDatabase
from tests.simulation.ports import Gate, SimulatedObjects
from tests.support.gateways import pusher
from tests.support.polling import MemorySecrets, PollingByHand

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from lakesync.adapters.database import Inserted, TableBatch
    from lakesync.core.messages import Push, PushReceipt
    from lakesync.ports import WallClock
    from lakesync.result import Result
    from tests.simulation.flows import Flows
    from tests.simulation.scheduler import Process
    from tests.simulation.world import World

GATEWAY: Final = "acme"
"""The gateway for which flows are declared."""
NO_NUMBER: Final = "no number"
"""What stands in a column of numbers at the source, and fits nowhere else."""
NUMBERS: Final = "n"
LAKES: Final = ("lake", "lake-of-first", "lake-of-second")
"""Names of secrets, each of tables that have heads."""
_WRITES: Final = frozenset(
    {
        "insert_deltas", "insert_apart", "put_object", "put_new_object", "delete_objects",
        "lease", "save", "change", "add", "remove",
    }
)  # fmt: skip


class NumbersOnly(KeptDatabase):
    """A database in memory that refuses rows without a number, as a typed table does."""

    def __init__(self) -> None:
        super().__init__()
        self.is_unreachable = False
        """To flows; whoever keeps a source goes on writing to it."""

    def insert_deltas(self, batch: TableBatch) -> Result[Inserted, LakeSyncError]:
        """Take a batch; what a refused row holds is kept, and said."""
        inserted = super().insert_deltas(batch)
        return inserted.map(
            lambda done: replace(done, dead_letters=self.dead_letters(batch.table).unwrap())
        )

    def dead_letters(self, table: str) -> Result[tuple[DeadLetter, ...], LakeSyncError]:
        rows = self._peek(table).rows
        refused = [
            row_id for row_id in sorted(rows)
            if (values_of(rows[row_id]) or {}).get(NUMBERS) == NO_NUMBER
        ]  # fmt: skip
        return Ok(tuple(DeadLetter(table, row_id, f"{NUMBERS} is none") for row_id in refused))


class Bucket(MemoryAdapter):
    """A bucket that can be away."""

    def __init__(self) -> None:
        super().__init__()
        self.is_unreachable = False


class GatedPort:
    """A port as one process meets it."""

    def __init__(self, world: World, process: Process, port: Any) -> None:
        self._gate = Gate(world, process)
        self._port = port

    def __getattr__(self, name: str) -> Any:
        act, writes = getattr(self._port, name), name in _WRITES

        def call(*arguments: Any, **named: Any) -> Any:
            return self._called(name, lambda: self._reached(act, arguments, named), writes)

        self.__dict__[name] = call
        return call

    def _called(self, name: str, act: Any, writes: bool) -> Any:  # noqa: FBT001 - one of ours
        return self._gate.call(name, act, writes=writes)

    def _reached(self, act: Any, arguments: Any, named: Any) -> Any:
        if getattr(self._port, "is_unreachable", False):
            raise AdapterUnreachable("it is away")
        return act(*arguments, **named)


class GatedDatabase(GatedPort):
    """A database as one process meets it: what goes wrong is an `Err`."""

    def _called(self, name: str, act: Any, writes: bool) -> Any:  # noqa: FBT001 - one of ours
        try:
            return super()._called(name, act, writes)
        except LakeSyncError as error:
            return Err(error)

    def close(self) -> None:
        """Let go of nothing."""


class GatedBucket(GatedPort):
    """A bucket as one process meets it."""

    def delete_objects(self, keys: Iterable[str]) -> None:
        """Remove objects one by one: a process that dies leaves some."""
        for key in list(keys):
            self.delete_object(key)


class Ends:
    """All databases, by the names of their secrets and by whose tables they are."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.databases: dict[str, NumbersOnly] = {}
        """By secret and keeper; of kinds that are written to row by row."""
        self.bucket = Bucket()
        """What is kept under the secrets that are `LAKES`."""
        self.gateway = MemoryBuffer()
        """That of the gateway for which flows are declared; nobody else writes to it."""
        self._service = pusher(self.gateway, time_=_Time(world))  # type: ignore[arg-type]

    def raw(self, secret: str, keeper: str) -> Any:
        """Return a database as it is, to whoever always reaches it."""
        if secret in LAKES:
            return ObjectsDatabase(self.bucket, f"{secret}/", keeper)
        return self.databases.setdefault(f"{secret} {keeper}", NumbersOnly())

    def opened(self, process: Process, secret: str, keeper: str) -> Any:
        """Return a database as a process meets it."""
        if secret in LAKES:
            bucket: Any = GatedBucket(self._world, process, self.bucket)
            return ObjectsDatabase(bucket, f"{secret}/", keeper)
        return GatedDatabase(self._world, process, self.raw(secret, keeper))

    def push(self, gateway: str, push: Push) -> PushReceipt:
        return self._service.push(gateway, push)

    def set_away(self, chance: float) -> None:
        """Have some of them away for a while, and the others back."""
        random = self._world.stream("ends")
        ends: list[Bucket | NumbersOnly] = [self.bucket, *self.databases.values()]
        for one in ends:
            one.is_unreachable = random.random() < chance


class _Time:
    """The real time of a simulation, as a service of the gateway takes it."""

    def __init__(self, world: World) -> None:
        self._scheduler = world.scheduler

    def wall_clock(self) -> int:
        return self._scheduler.now_ms

    def sleep_ms(self, milliseconds: float) -> None:
        del milliseconds


class Polling(PollingByHand):
    """What a process that polls, or declares, has of a gateway."""

    def __init__(self, flows: Flows, process: Process, clock: WallClock) -> None:
        world = flows.world
        self._process, self._flows = process, flows
        gateway = GatedPort(world, process, flows.ends)

        def push(name: str, pushed: Push) -> PushReceipt:
            receipt: PushReceipt = gateway.push(name, pushed)
            return receipt

        super().__init__(
            push, clock, store=GatedPort(world, process, flows.store),
            secrets=flows.secrets, objects=SimulatedObjects(world, process),
            access=flows.access, rows=GatedPort(world, process, flows.ends.gateway),
            rows_min=world.scenario.flow_large_rows,
        )  # fmt: skip

    def put(self, gateway: str, name: str, every_minutes: int, *, paused: bool) -> None:
        del gateway, every_minutes

        def note() -> None:
            self._flows.schedules[name] = not paused

        Gate(self._flows.world, self._process).call("put schedule", note, writes=True)

    def _opened(self, gateway: str, secret: str, kind: str, keeper: str) -> Any:
        del gateway, kind
        return self._flows.ends.opened(self._process, secret, keeper)


def refusals(schemaless: Mapping[str, Mapping[str, Any]]) -> set[str]:
    """Return those rows that a typed table refuses."""
    return {row_id for row_id, row in schemaless.items() if row.get(NUMBERS) == NO_NUMBER}


__all__ = [
    "GATEWAY",
    "LAKES",
    "NO_NUMBER",
    "NUMBERS",
    "Ends",
    "GatedPort",
    "MemorySecrets",
    "Polling",
    "refusals",
]
