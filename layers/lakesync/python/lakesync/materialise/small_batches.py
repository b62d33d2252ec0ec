"""Small batches without Spark: pushes of a quiet gateway reach the lake for a fraction of a cent.

What is small is decided only here, table by table: what waits for one is no reason to leave others.
The work is shared by the leases of gateway groups, with Spark's runs and with other functions;
everything that is left is the runs'. Laws L1, L4-L9 and L19: ``docs/spec/lake.md``.

One table's batches take three steps, as in Spark's run (`lakesync_spark.iceberg.apply`), with its
marks and lease. Each step takes effect once, and either may repeat the other's:

    1. the deltas are in the changes table, with its mark
    2. the rows are in the state table, with its mark
    3. the claims are deleted

Work that a function cannot or should not do is left unchanged, with a reason: a table that does not
exist yet, changed columns, a changed layout, a gap, a large table.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from lakesync.core.deliveries import parse_claim
from lakesync.core.merge import join
from lakesync.core.names import CHANGES_SUFFIX, lake_database, lake_tables
from lakesync.core.names import folded as folded_name
from lakesync.core.wording import plural
from lakesync.errors import Conflict, LakeSyncError
from lakesync.materialise.iceberg_table import IcebergTable
from lakesync.materialise.lake_rows import change_row, folded, read_deltas, row_of, state_in
from lakesync.materialise.lake_schema import (
    BATCH,
    COMMIT,
    EPOCH,
    EVENTS_TABLE,
    ID,
    STATE_TABLE,
    evolve,
    is_own_comment,
    wanted_columns,
    wanted_layout,
)
from lakesync.materialise.work_queue import (
    Lease,
    LeftToSpark,
    MergeLeft,
    group_of_table,
    next_chain,
    table_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    import pyarrow as pa
    from pyiceberg.catalog import Catalog
    from pyiceberg.manifest import DataFile

    from lakesync.core.deliveries import Batch
    from lakesync.core.merge import RowState
    from lakesync.materialise.lake_rows import StagedDelta
    from lakesync.materialise.lake_schema import BatchMark, LakeColumn
    from lakesync.materialise.work_queue import Chain, ClaimEntry, LakeStore

CLAIMS_MAX: Final = 50
"""Claims of one table that are examined, or of all if no table is named: more are no small work,
whatever they contain."""
BYTES_MAX: Final = 16 << 20
"""Total size of the objects of a table's batches on S3."""
SECONDS_LEFT_MIN: Final = 12.0
"""A table is begun only if the function has this much time left."""
BUSY_S_MAX: Final = 5.0
"""How long a function waits for groups that others work on; another function has one for seconds,
a run for minutes."""
_LOOK_S: Final = 1.0
"""How often it looks."""


@dataclass(slots=True)
class Taken:
    """The result for the waiting claims."""

    deltas: int = 0
    """Brought into the lake."""
    left: dict[str, str] = field(default_factory=dict)
    """By table, why Spark has to do it."""
    merges: dict[str, str] = field(default_factory=dict)
    """By table, why Spark has to merge its changes table; that may wait for more deltas."""
    faults: int = 0
    """Tables with a failure, as opposed to a decision to leave them to Spark."""
    later: set[str] = field(default_factory=set)
    """Tables that others work on, or for which no time was left: their claims may wait still."""


@dataclass(slots=True)
class _Waiting:
    batches: list[Batch] = field(default_factory=list)
    size: int = 0
    """Of the batches' objects."""
    oldest_s: float = 0.0
    """The age of the oldest claim."""

    @property
    def deltas(self) -> int:
        return sum(batch.deltas for batch in self.batches)


class SmallBatches:
    """The part of the work of Spark's runs that a function does."""

    def __init__(
        self,
        store: LakeStore,
        open_tables: Callable[[], SmallTable],
        deltas_max: int,
        run_id: str,
        merge_after_s: float = 0.0,
    ) -> None:
        """Prepare the work.

        Args:
            open_tables: gives what applies batches; called only if there is work, and again after
                a fault: what the catalogue was opened with may have been rotated.
            deltas_max: waiting deltas of a table up to which they are small.
            merge_after_s: how long deltas may wait in a changes table for a merge that only Spark
                can do, so that one run merges many batches.
        """
        self._store = store
        self._open_tables = open_tables
        self._tables: SmallTable | None = None
        self._deltas_max = deltas_max
        self._run_id = run_id
        self._merge_after_s = merge_after_s

    def take(
        self,
        seconds_left: Callable[[], float],
        announced: Iterable[str] = (),
        tried: Collection[str] = (),
    ) -> Taken:
        """Bring waiting batches into the lake, if they are small. Idempotent, and safe to kill.

        Args:
            seconds_left: how long the function may continue.
            announced: whose batches, each as ``gateway/table``; none for all that wait.
            tried: tables that are left to Spark whatever waits.
        """
        taken = Taken()
        by_table = self._waiting(taken, announced, tried)
        by_group: dict[int, list[str]] = {}
        for table in by_table:
            by_group.setdefault(group_of_table(table), []).append(table)
        waited_s = 0.0
        while by_group:
            busy = {}
            for group, names in by_group.items():
                lease = Lease.acquire_if_free(self._store, group, self._run_id)
                if lease is None:
                    busy[group] = names
                    continue
                with lease:
                    self._take_all(names, by_table, lease, taken, seconds_left)
            by_group = busy
            if busy and (waited_s >= BUSY_S_MAX or seconds_left() < SECONDS_LEFT_MIN):
                taken.later.update(name for names in busy.values() for name in names)
                break
            if busy:
                self._store.pause(_LOOK_S)
                waited_s += _LOOK_S
        return taken

    def _waiting(
        self, taken: Taken, announced: Iterable[str], tried: Collection[str]
    ) -> dict[str, _Waiting]:
        waiting: dict[str, _Waiting] = {}
        for table, entries in self._claims(taken, announced).items():
            if table in tried:
                taken.left[table] = "its announcement came back again and again"
            elif len(entries) > CLAIMS_MAX:
                taken.left[table] = f"more than {CLAIMS_MAX} claims wait"
            elif (some := self._read(table, entries, taken)) is not None:
                waiting[table] = some
        return waiting

    def _claims(self, taken: Taken, announced: Iterable[str]) -> dict[str, list[ClaimEntry]]:
        """List the claims of some tables, or of all; one call for each gateway."""
        wanted = set(announced)
        entries: Iterator[ClaimEntry]
        if wanted:
            gateways = sorted({table.partition("/")[0] for table in wanted})
            entries = chain.from_iterable(self._store.claims(gateway) for gateway in gateways)
        else:
            some = list(islice(self._store.claims(), CLAIMS_MAX + 1))
            if len(some) > CLAIMS_MAX:
                taken.left[""] = f"more than {CLAIMS_MAX} claims wait"
                return {}
            entries = iter(some)
        by_table: dict[str, list[ClaimEntry]] = {}
        for entry in entries:
            table = table_of(entry.key)
            if not wanted or table in wanted:
                by_table.setdefault(table, []).append(entry)
        return by_table

    def _read(self, table: str, entries: Sequence[ClaimEntry], taken: Taken) -> _Waiting | None:
        """Return a table's batches; None if there are none any more, or they are not small."""
        waits = _Waiting()
        for key, age_s in entries:
            claim = self._store.read(key)
            if claim is None:
                continue  # another process was quicker
            try:
                batch = parse_claim(key, claim.body)
            except LakeSyncError as error:
                taken.left[table] = str(error)
                return None
            waits.batches.append(batch)
            waits.size += _bytes_of(claim.body)
            waits.oldest_s = max(waits.oldest_s, age_s)
        if waits.deltas > self._deltas_max or waits.size > BYTES_MAX:
            taken.left[table] = f"{plural(waits.deltas, 'delta')} waiting, {waits.size} bytes"
            return None
        return waits if waits.batches else None

    def _take_all(
        self, names: Sequence[str], by_table: Mapping[str, _Waiting], lease: Lease, taken: Taken,
        seconds_left: Callable[[], float],
    ) -> None:  # fmt: skip
        for name in names:
            if seconds_left() < SECONDS_LEFT_MIN:
                taken.later.add(name)
            else:
                self._take(name, by_table[name], lease, taken)

    def _take(self, name: str, waits: _Waiting, lease: Lease, taken: Taken) -> None:
        """Do one table. A fault in it does not stop the others; Spark's run reports it."""
        try:
            if any(f"{one.gateway}/{one.table}" != name for one in waits.batches):
                taken.left[name] = "a claim lies under another gateway or table"
                return
            self._tables = self._tables or self._open_tables()
            taken.deltas += self._tables.apply(waits.batches, lease)
        except Conflict:
            taken.later.add(name)
        except MergeLeft as reason:
            may_wait = waits.oldest_s < self._merge_after_s
            (taken.merges if may_wait else taken.left)[name] = str(reason)
        except Exception as error:  # noqa: BLE001 - whatever it is, the batch waits as it was
            taken.left[name] = f"{type(error).__name__}: {error}"[:300]
            if not isinstance(error, LeftToSpark):
                taken.faults += 1
                self._tables = None


def _bytes_of(claim: bytes) -> int:
    body: dict[str, Any] = json.loads(claim)
    size = body.get("bytes", 0)
    return size if isinstance(size, int) else 0


# --- one table ------------------------------------------------------------------------------------


LOOKED_AT_BYTES_MAX: Final = 256 << 20
"""Size of the data files whose bounds may include a row of the batch: their ids are read."""
REWRITTEN_BYTES_MAX: Final = 32 << 20
"""Size of the data files that contain one: they are read whole, and rewritten."""
REWRITTEN_ROWS_MAX: Final = 400_000
"""Rows of the same files: well-compressed files still take memory."""
PARTITIONS_MAX: Final = 50
"""Partitions of one commit: each is a file of its own, written to S3."""


class Target(NamedTuple):
    """A lake table as it was read."""

    table: IcebergTable
    mark: BatchMark
    columns: tuple[LakeColumn, ...]


class SmallTable:
    """The work on one table, under the lease of its gateway's group."""

    def __init__(self, store: LakeStore, catalogue: Catalog, prefix: str, stack: str) -> None:
        self._store = store
        self._catalogue = catalogue
        self._prefix = prefix
        self._stack = stack

    def apply(self, batches: Sequence[Batch], lease: Lease) -> int:
        """Bring batches of a table into the lake, and forget their claims; returns how many deltas.

        Raises:
            LeftToSpark: a function cannot do it; nothing was done that is not to be done.
            MergeLeft: the same for the merge, and the deltas are in the changes table.
            Conflict: the lease is lost; nothing more is committed.
        """
        targets = self._targets(batches[0].gateway, batches[0].table)
        chain = next_chain(batches, min(target.mark.commit for target in targets))
        if chain.waiting:
            raise LeftToSpark("the batch before those that wait is missing")
        if chain.links:
            check_columns(targets, chain)
            lease.rise_above(max(target.mark.epoch for target in targets))
            columns = list(dict.fromkeys(c for target in targets for c in target.columns))
            deltas = read_deltas(self._store, chain.links, columns)
            for target in targets:
                self._write(target, chain, deltas, lease)
        self.forget([*(link.batch for link in chain.links), *chain.covered])
        return sum(link.batch.deltas for link in chain.links)

    def forget(self, batches: Sequence[Batch]) -> None:
        """Delete the claims of batches that are in the lake. Idempotent."""
        for batch in batches:
            self._store.delete(batch.claim_key)

    def _targets(self, gateway: str, table: str) -> list[Target]:
        """Return the lake tables of a table, in the order in which they are written."""
        database = lake_database(self._prefix, gateway)
        for name in lake_tables(table):
            rows = IcebergTable.load(self._catalogue, database, name)
            if rows is None or folded_name(rows.written) != folded_name(table):
                continue
            if rows.kind is EVENTS_TABLE:
                return [self._target(rows)]
            changes = IcebergTable.load(self._catalogue, database, name + CHANGES_SUFFIX)
            if rows.kind is STATE_TABLE and changes is not None:
                return [self._target(changes), self._target(rows)]
        raise LeftToSpark("its lake tables are not there yet")

    def _target(self, table: IcebergTable) -> Target:
        if table.stack != self._stack:
            raise LeftToSpark("the table is another stack's")
        mark = table.batch_mark()
        if mark is None:
            raise LeftToSpark("the table has no mark")
        return Target(table, mark, table.columns())

    def _write(
        self, target: Target, chain: Chain, deltas: Sequence[StagedDelta], lease: Lease
    ) -> None:
        """Write the deltas that a table lacks, in one commit with its mark."""
        if target.mark.commit >= chain.last:
            return
        new = [delta for delta in deltas if delta.commit > target.mark.commit]
        if target.table.kind is STATE_TABLE:
            rows, replaced = merged(target, folded(new), chain.last, self._now)
        else:
            rows, replaced = appended(target, new, self._now), []
        parts = target.table.parts(rows)
        if len(parts) > PARTITIONS_MAX:
            left = MergeLeft if target.table.kind is STATE_TABLE else LeftToSpark
            raise left("its rows are in too many partitions")
        lease.check()
        properties = {
            COMMIT: str(chain.last),
            BATCH: chain.links[-1].batch.name,
            EPOCH: str(lease.epoch),
        }
        target.table.commit(parts, replaced, properties)

    @property
    def _now(self) -> Any:
        return self._store.now.replace(microsecond=0)


def check_columns(targets: Sequence[Target], chain: Chain) -> None:
    """Check that the tables have the columns of the batches, and their types.

    Raises:
        LeftToSpark: a schema changes.
        SchemaMismatch: it can never change so; Spark's run says so too.
    """
    batches = [link.batch for link in chain.links]
    current = [column for target in targets for column in target.columns]
    wanted = wanted_columns(batches, current)
    for target in targets:
        plan = evolve(target.columns, wanted)
        if plan.added or plan.widened or plan.retyped:
            raise LeftToSpark("its columns change")
        comments = target.table.comments()
        if any(comments[c.name] != c.comment and is_own_comment(c.name, comments[c.name])
               for c in wanted):  # fmt: skip
            raise LeftToSpark("the comments of its columns change")
        layout = wanted_layout(batches, target.columns) if target.table.may_partition else None
        if layout is not None and layout != target.table.layout:
            raise LeftToSpark("its layout changes")


def appended(target: Target, deltas: Sequence[StagedDelta], at: Any) -> pa.Table:
    """Return the rows of a changes or events table."""
    kind = target.table.kind or EVENTS_TABLE
    return target.table.rows([change_row(one, kind, target.columns, at) for one in deltas])


def merged(
    target: Target, states: Mapping[str, RowState], commit: int, at: Any
) -> tuple[pa.Table, list[DataFile]]:
    """Return the rows that replace whole data files, and those files.

    A file whose bounds exclude all rows of the deltas is not read. Of the others the ids are read,
    and the whole file only if a row changes. PyIceberg writes no delete files.
    """
    import pyarrow as pa  # noqa: PLC0415 - only who merges needs it
    import pyarrow.compute as pc  # noqa: PLC0415

    table, left = target.table, dict(states)
    ids = pa.array(states, pa.large_string())
    written: list[tuple[str, RowState]] = []
    stays, replaced = [], []
    for task in touched(table, ids):
        rows = table.read(task)
        row_ids = rows[ID].cast(pa.large_string())
        is_given = pc.is_in(row_ids, value_set=ids)
        changed = {}
        for row in rows.filter(is_given).to_pylist():
            state = state_in(row, target.columns)
            joined = join(state, left.pop(row[ID]))
            if joined != state:
                changed[row[ID]] = joined
        if changed:
            gone = pa.array(changed, pa.large_string())
            stays.append(rows.filter(pc.invert(pc.is_in(row_ids, value_set=gone))))
            written += changed.items()
            replaced.append(task.file)
    written += left.items()
    delete_wins = table.delete_wins
    made = [
        row_of(row_id, state, target.columns, commit, at, delete_wins=delete_wins)
        for row_id, state in written
    ]
    return pa.concat_tables([*stays, table.rows(made)]), replaced


def touched(table: IcebergTable, ids: pa.Array) -> list[Any]:
    """Return the files that contain any of some rows.

    Raises:
        MergeLeft: it would take too long to determine this, or to rewrite them.
    """
    import pyarrow as pa  # noqa: PLC0415 - only who merges needs it
    import pyarrow.compute as pc  # noqa: PLC0415

    sorted_ids = sorted(row_id.encode() for row_id in ids.to_pylist())
    may_hold = [task for task in table.files() if table.may_hold(task.file, sorted_ids)]
    if sum(task.file.file_size_in_bytes for task in may_hold) > LOOKED_AT_BYTES_MAX:
        raise MergeLeft("its rows may be in too many files to look for them")
    tasks = []
    for task in may_hold:
        known = table.read(task, ID)[ID].cast(pa.large_string())
        if pc.any(pc.is_in(known, value_set=ids)).as_py():
            tasks.append(task)
    size = sum(task.file.file_size_in_bytes for task in tasks)
    if size > REWRITTEN_BYTES_MAX or sum(t.file.record_count for t in tasks) > REWRITTEN_ROWS_MAX:
        raise MergeLeft("its rows are in too many files to write them anew")
    return tasks
