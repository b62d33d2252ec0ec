"""The changes table of an Iceberg database: a table's history, as the head of its state names it.

The head names a snapshot. Files that a killed writer put behind it are not read, and are removed by
the next write. Files that others compacted behind it contain the same rows, and are read.
"""

from __future__ import annotations

from collections import Counter
from functools import cached_property
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.io.pyarrow import ArrowScan

from lakesync.core.delta import Op, known_delta
from lakesync.materialise.database.state_table import between, read_as
from lakesync.materialise.iceberg_table import Part, data_files, own_columns
from lakesync.materialise.lake_rows import StagedDelta, carried, change_row
from lakesync.materialise.lake_schema import CARRIED, CHANGES_TABLE, COMMIT, COMMIT_STAMP, ID
from lakesync.wire.records import encode_records

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from datetime import datetime

    from pyiceberg.manifest import DataFile
    from pyiceberg.table import FileScanTask, Table
    from pyiceberg.table.metadata import TableMetadata

    from lakesync.adapters.database import PlacedDelta
    from lakesync.core.clock import Stamp
    from lakesync.materialise.lake_schema import LakeColumn

WINDOW_DELTAS: Final = 5_000
"""Deltas that are read at once, unless one commit has more."""
FILE_DELTAS_MAX: Final = 20_000
"""Deltas of a file up to which it is rewritten with the next ones, so that files stay few."""
_HEAD: Final = (COMMIT_STAMP, "_ordinal", "_op", ID, "_client_id", "_hlc", "_columns", "_texts")


class History:
    """A changes table as it is when it is loaded.

    Args:
        table: the table.
        named: the snapshot that the head names; None for a lake's, whose mark shows how far it
            reaches.
    """

    def __init__(self, table: Table, named: int | None) -> None:
        self._table = table
        self._snapshot = self._at(named)
        self.is_lost = self._snapshot is not None and table.snapshot_by_id(self._snapshot) is None
        """Whether the snapshot that the head names is gone, and no other leads there."""
        self.columns = own_columns(table.metadata)

    def commits(self, name: str, after: Stamp, until: Stamp) -> list[tuple[Stamp, bytes]]:
        """Return the next commits in a range with their records, none at the end.

        Args:
            name: the table's, on the wire.
            after: behind which commit.
            until: the last one that may be given.
        """
        tasks = [task for task in self.tasks if self._bound(task, 1) > after]
        cut = self._cut(tasks, after, until)
        if not cut:
            return []
        tasks = [task for task in tasks if self._bound(task, 0) <= cut]
        names = {column.name: (column.type, column.written) for column in self.columns}
        rows = self._scanned(tasks, after, cut, *_HEAD, *names).to_pylist()
        rows.sort(key=lambda row: (row[COMMIT_STAMP], row["_ordinal"]))
        return [
            (commit, encode_records(
                known_delta(Op[row["_op"]], name, row[ID], row["_client_id"], row["_hlc"],
                            carried(row, names)) for row in some))
            for commit, some in groupby(rows, key=lambda row: row[COMMIT_STAMP])
        ]  # fmt: skip

    @cached_property
    def tasks(self) -> list[FileScanTask]:
        """The data files of the named snapshot, in the order of their commits."""
        if self._snapshot is None:
            return []
        scan = self._table.scan(snapshot_id=self._snapshot)
        return sorted(scan.plan_files(), key=lambda task: self._bound(task, 0))

    def unnamed(self) -> tuple[list[DataFile], list[DataFile]]:
        """Return the files of a killed writer's snapshot that the head's lacks; and the reverse.

        The next write removes them, and restores these.
        """
        current = self._table.current_snapshot()
        if current is None or current.snapshot_id == self._snapshot:
            return [], []
        now = {task.file.file_path: task.file for task in self._table.scan().plan_files()}
        named = {task.file.file_path: task.file for task in self.tasks}
        return (
            [file for path, file in now.items() if path not in named],
            [file for path, file in named.items() if path not in now],
        )

    def last_until(self, until: Stamp) -> Stamp:
        """Return the last commit that is no later than another; 0 if there is none."""
        last = 0
        for task in self.tasks:
            if self._bound(task, 1) <= until:
                last = max(last, self._bound(task, 1))
            elif self._bound(task, 0) <= until:
                known = self._scanned([task], last, until, COMMIT_STAMP)[COMMIT_STAMP]
                last = max(last, pc.max(known).as_py() or 0)
        return last

    def followed(
        self, metadata: TableMetadata, rows: Sequence[dict[str, Any]], forgotten: Stamp
    ) -> tuple[list[DataFile], list[DataFile]]:
        """Put the files that rows belong to; returns new files and those that go.

        Args:
            metadata: the table's, with the columns that it is to have.
            rows: what is added.
            forgotten: up to which commit nothing is to be left.
        """
        made: list[DataFile] = []
        gone: list[DataFile] = []
        added = pa.Table.from_pylist(list(rows), schema=metadata.schema().as_arrow())
        for task in self.tasks:
            is_grown = task is self.tasks[-1] and bool(rows)
            is_grown = is_grown and task.file.record_count < FILE_DELTAS_MAX
            if self._bound(task, 0) > forgotten and not is_grown:
                continue
            gone.append(task.file)
            left = read_as(self._table, metadata, task)
            left = left.filter(pc.greater(left[COMMIT_STAMP], forgotten))
            if is_grown:
                added = pa.concat_tables([left, added])
            else:
                made += self._made(metadata, left)
        return [*made, *self._made(metadata, added)], gone

    def _made(self, metadata: TableMetadata, rows: pa.Table) -> list[DataFile]:
        parts = [Part(None, rows)] if rows.num_rows else []
        return list(data_files(metadata, parts, self._table.io))

    def _at(self, named: int | None) -> int | None:
        """Return the snapshot to read: the current one, unless it is a killed writer's."""
        snapshot = current = self._table.current_snapshot()
        if current is None:
            return None
        while named is not None and snapshot is not None and snapshot.snapshot_id != named:
            if snapshot.summary and COMMIT in snapshot.summary.additional_properties:
                return named or None
            parent = snapshot.parent_snapshot_id
            snapshot = None if parent is None else self._table.snapshot_by_id(parent)
        return current.snapshot_id

    def _cut(self, tasks: Sequence[FileScanTask], after: Stamp, until: Stamp) -> Stamp:
        """Return the commit with which enough are read; 0 if there is none."""
        counts: Counter[int] = Counter()
        for task in tasks:
            if sum(counts.values()) >= WINDOW_DELTAS and self._bound(task, 0) > _last(counts):
                break
            known = self._scanned([task], after, until, COMMIT_STAMP)[COMMIT_STAMP]
            for one in pc.value_counts(known.combine_chunks()).to_pylist():
                counts[one["values"]] += one["counts"]
        return _last(counts)

    def _scanned(
        self, tasks: Iterable[FileScanTask], after: Stamp, until: Stamp, *names: str
    ) -> pa.Table:
        rows = between(COMMIT_STAMP, after, until)
        schema = self._table.schema()
        return ArrowScan(
            self._table.metadata, self._table.io, schema.select(*names), rows
        ).to_table(tasks)

    def _bound(self, task: FileScanTask, which: int) -> Stamp:
        """Return the least or greatest commit of a file; the widest bound if it is not known."""
        field = self._table.schema().find_field(COMMIT_STAMP).field_id
        bounds = task.file.upper_bounds if which else task.file.lower_bounds
        said = (bounds or {}).get(field)
        unknown = (1 << 63) - 1 if which else 0
        return unknown if said is None else int.from_bytes(said, "little", signed=True)


def _last(counts: Counter[int]) -> Stamp:
    """Return the commit with which there are enough; the last of all if there are fewer."""
    total, commit = 0, 0
    for commit, some in sorted(counts.items()):
        total += some
        if total >= WINDOW_DELTAS:
            return commit
    return commit


def history_rows(
    deltas: Sequence[PlacedDelta], columns: Sequence[LakeColumn], at: datetime
) -> Iterator[dict[str, Any]]:
    """Yield the rows of a changes table that contain deltas."""
    names = {column.written: column.name for column in columns}
    for (commit, ordinal), delta in deltas:
        own = {
            COMMIT_STAMP: commit,
            "_ordinal": ordinal,
            "_op": delta.op.name,
            ID: delta.row_id,
            "_client_id": delta.client_id,
            "_hlc": delta.hlc,
            "_delta_id": delta.delta_id,
        }
        texts = {names[written]: text for written, text in delta.columns}
        row = change_row(StagedDelta(own, texts), CHANGES_TABLE, columns, at)
        yield {**row, CARRIED: list(texts)}  # in the delta's own order, as hashed in its id
