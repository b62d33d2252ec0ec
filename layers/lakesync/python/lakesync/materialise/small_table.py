"""One table's small batches, brought into its lake tables by a function.

    1. the deltas are in the changes table, with its mark
    2. the rows are in the state table, with its mark
    3. the claims are deleted

The steps, the marks and the lease are those of Spark's run (`lakesync_spark.iceberg.apply`): each
step takes effect once, and either may repeat the other's. Work that a function cannot or should not
do is left unchanged, with a reason: a table that does not exist yet, changed columns, a changed
layout, a gap, a large table. Laws L1, L4-L8 and L19: ``docs/spec/lake.md``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from lakesync.core.merge import join
from lakesync.core.names import CHANGES_SUFFIX, lake_database, lake_tables
from lakesync.core.names import folded as folded_name
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
from lakesync.materialise.work_queue import LeftToSpark, MergeLeft, next_chain

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow as pa
    from pyiceberg.catalog import Catalog
    from pyiceberg.manifest import DataFile

    from lakesync.core.deliveries import Batch
    from lakesync.core.merge import RowState
    from lakesync.materialise.lake_rows import StagedDelta
    from lakesync.materialise.lake_schema import BatchMark, LakeColumn
    from lakesync.materialise.work_queue import Chain, LakeStore, Lease

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
