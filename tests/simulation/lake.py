"""The lake and its materialiser, as naive as they can be: they stand for Iceberg and Spark.

What they keep to is the contract of ``docs/spec/lake.md``: a claim is a batch that waits; the
batches of a table form a chain; a table's commit carries the mark of the last batch in it, and
happens together with the data or not at all; a run holds a lease, whose epoch a commit carries, so
that a run which lost its lease cannot commit after its replacement.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from lakesync.core.delta import Op, checked_delta
from lakesync.errors import NotFound
from lakesync.wire.batch_json import decode_batch, is_envelope
from tests.simulation.ports import Gate, SimulatedObjects

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lakesync.core.delta import Delta
    from lakesync.ports import BatchRow
    from tests.simulation.model import Write
    from tests.simulation.scheduler import Process
    from tests.simulation.world import World

PREFIX: Final = "claims/g1/"


class JsonEncoder:
    """`lakesync.ports.BatchEncoder` as lines of JSON, which is quicker to write than Parquet."""

    def encode(self, rows: Sequence[BatchRow], columns: Mapping[str, str]) -> bytes:
        """Return the object; the same rows give the same bytes."""
        del columns
        return json.dumps(
            [
                [row.commit, row.ordinal, row.op, row.row_id, row.client_id, row.hlc, row.delta_id,
                 [[name, value.decode()] for name, value in row.columns]]
                for row in rows
            ]
        ).encode()  # fmt: skip


def rows_in(body: bytes) -> list[Any]:
    """Return the rows of an object as `JsonEncoder` lists them, also if it is JSON for people."""
    if not is_envelope(body):
        rows: list[Any] = json.loads(body)
        return rows
    return list(json.loads(JsonEncoder().encode(decode_batch(body), {})))


@dataclass
class LakeRow:
    """One row of a current table: a stamp for each column."""

    alive: int = 0
    deleted: int = 0
    columns: dict[str, Write] = field(default_factory=dict)


@dataclass
class LakeTable:
    """One Iceberg table: its data, and what its last snapshot's summary says."""

    mark: int = 0
    """The last commit of the last batch in it."""
    epoch: int = 0
    snapshot: int = 0
    changes: list[tuple[int, int, str]] = field(default_factory=list)
    """Of a changes table: commit, ordinal, delta id."""
    rows: dict[str, LakeRow] = field(default_factory=dict)
    """Of a current table."""

    def summary(self) -> tuple[int, int]:
        return self.mark, self.snapshot


@dataclass
class Lease:
    """Who may materialise."""

    epoch: int = 0
    until_ms: int = 0


class CommitRefused(Exception):
    """The table is not as it was when the run looked, or the run lost its lease."""


class Lake:
    """All tables, and the lease."""

    def __init__(self) -> None:
        self.tables: dict[str, LakeTable] = {}
        self.lease = Lease()

    def table(self, name: str) -> LakeTable:
        """Return a table, made if there is none."""
        return self.tables.setdefault(name, LakeTable())

    def take_lease(self, now_ms: int, seconds: int) -> int:
        """Return the epoch of a new lease; 0 if somebody holds one."""
        if now_ms < self.lease.until_ms:
            return 0
        self.lease = Lease(self.lease.epoch + 1, now_ms + seconds * 1000)
        return self.lease.epoch

    def commit(
        self, name: str, seen: int, epoch: int, batch: Sequence[tuple[int, int, Delta]], mark: int
    ) -> None:
        table = self.table(name)
        if table.snapshot != seen or table.epoch > epoch:
            raise CommitRefused(name)
        self.write(name, batch)
        table.snapshot, table.epoch, table.mark = seen + 1, epoch, mark

    def write(self, name: str, batch: Sequence[tuple[int, int, Delta]]) -> None:
        """Put a batch's data into a table."""
        table = self.table(name)
        if name.endswith("__changes"):
            table.changes += [(commit, place, delta.delta_id) for commit, place, delta in batch]
            return
        for _, _, delta in batch:
            merge_into(table.rows.setdefault(delta.row_id, LakeRow()), delta)


def merge_into(row: LakeRow, delta: Delta) -> None:
    """Do what a `MERGE` guarded by stamps does, column by column."""
    if delta.op is Op.DELETE:
        row.deleted = max(row.deleted, delta.hlc)
        return
    if delta.op is Op.INSERT:
        row.alive = max(row.alive, delta.hlc)
    for name, value in delta.columns:
        write = (delta.hlc, delta.client_id.encode(), value)
        if name not in row.columns or write > row.columns[name]:
            row.columns[name] = write


class Materialiser:
    """One run of the job."""

    def __init__(self, world: World, process: Process) -> None:
        self._world = world
        self._gate = Gate(world, process)
        self._objects = SimulatedObjects(world, process)
        self._clock = world.new_clock(world.scenario.function_skew_ms)
        self._random = world.stream("runs")

    def run(self) -> None:
        """Take up every batch that waits, table by table, in the order of the chain."""
        lake, seconds = self._world.lake, self._world.scenario.lease_s
        epoch = self._gate.call("lease", lambda: lake.take_lease(self._clock(), seconds))
        if not epoch:
            self._world.count("lease is held")
            return
        claims = [json.loads(self._objects.get_object(key)) | {"key": key}
                  for key in self._objects.list_objects(PREFIX)]  # fmt: skip
        for claim in sorted(claims, key=lambda claim: (claim["table"], int(claim["after"]))):
            self._take_up(claim, epoch)
        self._gate.call("lease", lambda: self._give_up(epoch))

    def _give_up(self, epoch: int) -> None:
        lease = self._world.lake.lease
        if lease.epoch == epoch:
            lease.until_ms = 0

    def _take_up(self, claim: dict[str, Any], epoch: int) -> None:
        table = claim["table"]
        targets = [f"{table}__changes"] if claim["append"] else [f"{table}__changes", table]
        batch: list[tuple[int, int, Delta]] | None = None
        for target in targets:
            stored = self._world.lake.table(target)
            mark, snapshot = self._gate.call("load", stored.summary)
            if mark >= int(claim["last"]):
                continue
            if mark < int(claim["after"]):
                self._world.count("gap in the chain")
                return  # an earlier batch's claim is not visible yet
            if batch is None:
                batch = self._read(claim)
            self._stand_still()
            # A batch may overlap what is there: a restored buffer flushes on from its own mark.
            fresh = [item for item in batch if item[0] > mark]
            self.add(target, snapshot, epoch, fresh, int(claim["last"]))
        self._objects.delete_object(claim["key"])

    def _stand_still(self) -> None:
        world = self._world
        if self._random.random() < world.faults.slow_run:
            world.count("run stood still")
            world.scheduler.sleep(self._random.random() * 4_000 * world.scenario.lease_s)

    def _read(self, claim: dict[str, Any]) -> list[tuple[int, int, Delta]]:
        rows = rows_in(self._objects.get_object(claim["object"]))
        return [
            (
                commit,
                place,
                checked_delta(
                    Op[op], claim["table"], row_id, client, hlc,
                    tuple((name, value.encode()) for name, value in columns),
                ),
            )
            for commit, place, op, row_id, client, hlc, _, columns in rows
        ]  # fmt: skip

    def add(
        self, target: str, seen: int, epoch: int, batch: list[tuple[int, int, Delta]], mark: int
    ) -> None:
        lake = self._world.lake
        self._gate.call(
            "commit to the lake", lambda: lake.commit(target, seen, epoch, batch, mark), writes=True
        )
        self._world.count("batch materialised")


RUN_ENDS = (CommitRefused, NotFound)
"""What ends a run, and is healed by the next one."""
