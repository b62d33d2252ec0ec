"""Iceberg tables that others write, read from the files that their snapshots name.

A snapshot's rows are those of its data files, without the rows that its delete files remove. So
files that two snapshots have in common need not be read, whichever writer made them.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import ArrowScan
from pyiceberg.manifest import ManifestContent, ManifestEntryStatus
from pyiceberg.table import FileScanTask
from pyiceberg.table.snapshots import Operation
from pyiceberg.types import DecimalType

from lakesync.adapters.snapshots import ADDED, ALL, CHANGED, GONE, SAME, NamedColumn, Step
from lakesync.errors import AdapterRefused, CursorExpired
from lakesync.materialise.database.place import asking

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

    from lakesync.materialise.database.place import LakePlace

_TYPES: Final[Mapping[str, str]] = {
    "int": "integer", "long": "integer", "float": "number", "double": "number",
    "boolean": "boolean", "date": "date", "timestamp": "timestamp", "timestamptz": "timestamp",
    "binary": "bytes", "string": "string", "uuid": "string", "time": "string",
}  # fmt: skip


class PlainTable:
    """`lakesync.adapters.snapshots.SnapshotTable` of Iceberg.

    Args:
        place: which catalogue.
        name: the table's, with its namespace.
    """

    def __init__(self, place: LakePlace, name: str) -> None:
        self._place = place
        self._name = name
        self._loaded: Table | None = None

    def columns(self) -> list[NamedColumn]:
        """Return its columns, as they are now."""
        schema = self._table(anew=True).schema()
        return [
            NamedColumn(one.name, _type_of(one.field_type), not one.required)
            for one in schema.fields
        ]

    def steps(self, since: int) -> list[Step]:
        """Return the steps from a snapshot to the newest."""
        table = self._table(anew=True)
        newest = table.current_snapshot()
        if newest is None or newest.snapshot_id == since:
            return []
        if not since:
            return [Step(0, newest.snapshot_id, newest.timestamp_ms, ALL)]
        way: list[Snapshot] = []
        one: Snapshot | None = newest
        while one is not None and one.snapshot_id != since:
            way.append(one)
            parent = one.parent_snapshot_id
            one = None if parent is None else table.snapshot_by_id(parent)
        if one is None:
            if table.snapshot_by_id(since) is None:
                raise CursorExpired(f"{self._name}: the snapshot that was read last has expired")
            return [Step(since, newest.snapshot_id, newest.timestamp_ms, CHANGED)]
        steps = [
            Step(one.parent_snapshot_id or 0, one.snapshot_id, one.timestamp_ms, _kind(one))
            for one in reversed(way)
        ]
        if any(step.kind == CHANGED for step in steps):
            # In one step: a replaced row may be missing in a snapshot between, in the same commit.
            return [Step(since, newest.snapshot_id, newest.timestamp_ms, CHANGED)]
        return steps

    def rows(
        self, step: Step, names: Sequence[str], *, left: bool = False, skipped: int = 0
    ) -> Iterator[tuple[Any, ...]]:
        """Yield rows of the files that a step adds, or removes."""
        tasks = self._tasks(step, left=left)
        if not tasks:
            return
        table = self._table()
        wanted = table.schema().select(*names)
        scan = ArrowScan(table.metadata, table.io, wanted, AlwaysTrue())
        for task in tasks:
            if skipped >= task.file.record_count and not task.delete_files:
                skipped -= task.file.record_count
                continue
            for row in self._of(scan, task, names):
                if skipped:
                    skipped -= 1
                else:
                    yield row

    def count(self, step: Step, *, left: bool = False) -> int:
        """Count the rows of those files."""
        return sum(task.file.record_count for task in self._tasks(step, left=left))

    def _of(
        self, scan: ArrowScan, task: FileScanTask, names: Sequence[str]
    ) -> Iterator[tuple[Any, ...]]:
        with asking(), self._expiring():
            for batch in scan.to_record_batches([task]):
                yield from zip(*(batch.column(name).to_pylist() for name in names), strict=True)

    def _tasks(self, step: Step, *, left: bool) -> list[FileScanTask]:
        if step.kind == SAME or (left and step.kind != CHANGED):
            return []
        with asking(), self._expiring():
            if step.kind == ADDED:
                return self._added(step.after)
            if step.kind in {ALL, GONE}:
                return self._planned(step.after)
            one, other = (step.before, step.after) if left else (step.after, step.before)
            known = {_named(task) for task in self._planned(other)}
            return [task for task in self._planned(one) if _named(task) not in known]

    def _planned(self, snapshot: int) -> list[FileScanTask]:
        if self._table().snapshot_by_id(snapshot) is None:
            raise self._expired()
        try:
            planned = list(self._table().scan(snapshot_id=snapshot).plan_files())
        except ValueError as error:  # PyIceberg's error for equality deletes
            raise AdapterRefused(
                f"{self._name} cannot be read: {error}; have its delete files written away "
                "(rewrite_data_files)"
            ) from error
        return sorted(planned, key=lambda task: task.file.file_path)

    def _added(self, number: int) -> list[FileScanTask]:
        table, added = self._table(), list[FileScanTask]()
        snapshot = table.snapshot_by_id(number)
        if snapshot is None:
            raise self._expired()
        for manifest in snapshot.manifests(table.io):
            is_of = manifest.added_snapshot_id == number
            if not is_of or manifest.content != ManifestContent.DATA:
                continue
            added += [
                FileScanTask(entry.data_file)
                for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True)
                if entry.status == ManifestEntryStatus.ADDED
            ]
        return sorted(added, key=lambda task: task.file.file_path)

    def _table(self, *, anew: bool = False) -> Table:
        if anew or self._loaded is None:
            with asking():
                self._loaded = self._place.catalogue.load_table(self._name)
        return self._loaded

    @contextmanager
    def _expiring(self) -> Iterator[None]:
        """Report a missing file as a snapshot that has expired in the meantime."""
        try:
            yield
        except FileNotFoundError as error:
            raise self._expired() from error

    def _expired(self) -> CursorExpired:
        return CursorExpired(f"{self._name}: a snapshot expired while it was read")


def _kind(snapshot: Snapshot) -> str:
    operation = snapshot.summary.operation if snapshot.summary else Operation.OVERWRITE
    return {Operation.APPEND: ADDED, Operation.REPLACE: SAME}.get(operation, CHANGED)


def _named(task: FileScanTask) -> tuple[str, frozenset[str]]:
    """Return the identity of a file, with its deletions."""
    return task.file.file_path, frozenset(each.file_path for each in task.delete_files)


def _type_of(kind: Any) -> str:
    if isinstance(kind, DecimalType):
        return f"decimal({kind.precision},{kind.scale})"
    return _TYPES.get(str(kind), "bytes" if str(kind).startswith("fixed") else "json")
