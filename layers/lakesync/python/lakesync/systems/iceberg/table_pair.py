"""A table's state table and changes table in a catalogue: loading, making and committing them.

Tables that are written here have a keeper in their properties, which is their only writer. Tables
without a keeper belong to a stack's lake and are written by its jobs: they are read up to the mark
that both tables have reached.

The changes table is the table's history, as the head of its state names it. The head names a
snapshot. Files that a killed writer put behind it are not read, and are removed by the next write.
Files that others compacted behind it contain the same rows, and are read.

The commit of a new snapshot expires old ones, whose files are removed afterwards. The last
`SNAPSHOTS_KEPT` stay, and those of the last hour, so that readers of them can continue. The content
of the removed files is then gone from the store too, as deleted data should be.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.exceptions import (
    NamespaceAlreadyExistsError,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.io.pyarrow import ArrowScan
from pyiceberg.manifest import ManifestEntryStatus
from pyiceberg.table.update.snapshot import ExpireSnapshots, ManageSnapshots

from lakesync.adapters.file_database import Head
from lakesync.adapters.sql.ledger import Definition
from lakesync.core.delta import Op, known_delta
from lakesync.core.names import CHANGES_SUFFIX, folded, lake_tables
from lakesync.core.schema import Column, TableSchema
from lakesync.errors import AdapterRefused
from lakesync.materialise.iceberg_table import (
    IcebergTable,
    Part,
    commit_once,
    data_files,
    own_columns,
)
from lakesync.materialise.lake_rows import StagedDelta, carried, change_row
from lakesync.materialise.lake_schema import (
    CARRIED,
    CHANGES_TABLE,
    COMMIT,
    COMMIT_STAMP,
    EVENTS_TABLE,
    FOR_EVER_MS,
    GATEWAY,
    ID,
    KIND,
    KINDS,
    MARK_TAG,
    STATE_TABLE,
    WRITTEN,
    delete_wins,
)
from lakesync.systems.iceberg.state_table import between, first_schema, read_as
from lakesync.wire.records import encode_records

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from datetime import datetime

    from pyiceberg.manifest import DataFile
    from pyiceberg.table import FileScanTask, Table, Transaction
    from pyiceberg.table.metadata import TableMetadata

    from lakesync.adapters.database import PlacedDelta
    from lakesync.core.clock import Stamp
    from lakesync.materialise.lake_catalogue import LakePlace
    from lakesync.materialise.lake_schema import Kind, LakeColumn

KEEPER: Final = "lakesync.keeper"
"""The only writer of a table: a gateway, or one of its flows."""
DEFINITION: Final = "lakesync.definition"
FORGOTTEN: Final = "lakesync.forgotten"
REFUSED_ROWS: Final = "lakesync.refused"
CHANGES: Final = "lakesync.changes"
"""In a snapshot of a state table: the snapshot of the changes table that belongs to it."""
_PROPERTIES: Final = {
    "format-version": "2",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "10",
    "write.metadata.metrics.column._id": "full",  # files are kept apart by it
}


@dataclass(frozen=True)
class Pair:
    """The tables of one synced table."""

    state: Table
    changes: Table | None

    @property
    def keeper(self) -> str:
        """Their writer; empty for a lake's."""
        return self.state.properties.get(KEEPER, "")

    @property
    def named(self) -> int | None:
        """The snapshot of the changes that the head names; 0 for none yet, None for a lake's."""
        return int(self.said().get(CHANGES, 0)) if self.keeper else None

    @cached_property
    def history(self) -> History | None:
        """The history that the head names; None without a changes table."""
        return None if self.changes is None else History(self.changes, self.named)

    def said(self) -> dict[str, str]:
        """Return the properties of the state table's last write."""
        snapshot = self.state.current_snapshot()
        while snapshot is not None:
            said = snapshot.summary.additional_properties if snapshot.summary else {}
            if COMMIT in said:
                return dict(said)
            parent = snapshot.parent_snapshot_id
            snapshot = None if parent is None else self.state.snapshot_by_id(parent)
        return {}

    def head(self, table: str) -> Head:
        if not self.keeper:
            return Head(1, self._lake_mark(), definition=self._lake_definition(table).to_json())
        said = self.said()
        return Head(
            1,
            int(said.get(COMMIT, 0)),
            int(said.get(FORGOTTEN, 0)),
            self.state.properties.get(DEFINITION, ""),
            refused=json.loads(said.get(REFUSED_ROWS, "{}")),
        )

    def _lake_mark(self) -> int:
        both = [IcebergTable(one).batch_mark() for one in (self.state, self.changes) if one]
        marks = [0 if mark is None else mark.commit for mark in both]
        return min(marks) if self.changes is not None else 0

    def _lake_definition(self, table: str) -> Definition:
        columns = {one.written: one.type for one in own_columns(self.state.metadata)}
        if not columns:
            return Definition(table)
        schema = TableSchema(
            table,
            tuple(Column(name, kind) for name, kind in columns.items()),
            delete_wins=delete_wins(self.state.properties),
        )
        return Definition(table, columns, schema)


def loaded(place: LakePlace, keeper: str, table: str) -> Pair | None:
    """Return the tables of a synced table; None without them.

    Raises:
        AdapterRefused: it is a table of events, which are not rows.
    """
    for name in lake_tables(table):
        state = _table(place, keeper, name)
        if state is None or folded(state.properties.get(WRITTEN, "")) != folded(table):
            continue
        kind = KINDS.get(state.properties.get(KIND, ""))
        if kind is EVENTS_TABLE:
            raise AdapterRefused(
                f"{table} is a table of events, which never change: read them in the lake, by "
                "their _commit"
            )
        if kind is STATE_TABLE:
            return Pair(state, _table(place, keeper, name + CHANGES_SUFFIX))
    return None


def made(place: LakePlace, keeper: str, table: str) -> Pair:
    """Return the tables of a synced table, making them where they are missing. Idempotent."""
    database = place.database(keeper)
    with suppress(NamespaceAlreadyExistsError):
        place.catalogue.create_namespace(database)
    pair = loaded(place, keeper, table)
    name = _free_name(place, keeper, table) if pair is None else pair.state.name()[-1]
    if pair is None:
        _make(place, keeper, table, name, STATE_TABLE)
    if pair is None or pair.changes is None:
        _make(place, keeper, table, name + CHANGES_SUFFIX, CHANGES_TABLE)
        pair = loaded(place, keeper, table)
    if pair is None:
        raise AdapterRefused(f"{database}.{name} exists, and is not a table of LakeSync's")
    return pair


def table_names(place: LakePlace, keeper: str) -> list[str]:
    database = place.database(keeper)
    try:
        names = [str(one[-1]) for one in place.catalogue.list_tables(database)]
    except NoSuchNamespaceError:
        return []
    tables = [_table(place, keeper, one) for one in names if not one.endswith(CHANGES_SUFFIX)]
    return sorted(
        one.properties[WRITTEN]
        for one in tables
        if one is not None
        and KINDS.get(one.properties.get(KIND, "")) is STATE_TABLE
        and WRITTEN in one.properties
    )


def _table(place: LakePlace, keeper: str, name: str) -> Table | None:
    try:
        return place.catalogue.load_table((place.database(keeper), name))
    except (NoSuchTableError, NoSuchNamespaceError):
        return None


def _free_name(place: LakePlace, keeper: str, table: str) -> str:
    plain, digested = lake_tables(table)
    return plain if _table(place, keeper, plain) is None else digested


def _make(place: LakePlace, keeper: str, table: str, name: str, kind: Kind) -> None:
    database = place.database(keeper)
    said: dict[str, Any] = {KIND: kind.name, WRITTEN: table, GATEWAY: keeper, KEEPER: keeper}
    try:
        place.catalogue.create_table(
            (database, name),
            first_schema(kind),
            properties=_PROPERTIES | said,
            **place.made_at(database, name),
        )
    except TableAlreadyExistsError:
        return


# --- commits --------------------------------------------------------------------------------------


def commit(
    table: Table,
    transaction: Transaction,
    added: Iterable[DataFile],
    replaced: Iterable[DataFile],
    said: Mapping[str, str],
) -> int:
    """Put files in the place of others, with what the snapshot says; returns the snapshot.

    Raises:
        Conflict: the table is another than it was; nothing was done.
    """
    replaced = list(replaced)
    old = expired(table)
    update = transaction.update_snapshot(snapshot_properties=dict(said))
    producer: Any = update.overwrite() if replaced else update.fast_append()
    for file in added:
        producer.append_data_file(file)
    for file in replaced:
        producer.delete_data_file(file)
    producer.commit()
    snapshot_id: int = producer.snapshot_id
    with ManageSnapshots(transaction) as refs:
        refs.create_tag(snapshot_id, MARK_TAG, FOR_EVER_MS)
    old.stage(transaction)
    commit_once(table, transaction)
    remove(table, old)
    return snapshot_id


# --- expiring old snapshots -----------------------------------------------------------------------


SNAPSHOTS_KEPT: Final = 16
"""Newest snapshots that stay; as many more may exist until they are removed together."""
KEPT_MS: Final = 3_600_000
"""The age up to which a snapshot stays, whatever their number."""


class Expired(NamedTuple):
    """Snapshots to expire, and the files that only they name."""

    snapshots: tuple[int, ...]
    files: tuple[str, ...]

    def stage(self, transaction: Transaction) -> None:
        if self.snapshots:
            ExpireSnapshots(transaction).by_ids(list(self.snapshots)).commit()


def expired(table: Table, now_ms: int | None = None) -> Expired:
    now_ms = int(time.time() * 1_000) if now_ms is None else now_ms
    snapshots = sorted(table.snapshots(), key=lambda one: one.sequence_number or 0)
    named = {ref.snapshot_id for ref in table.metadata.refs.values()}
    old = [one for one in snapshots[:-SNAPSHOTS_KEPT] if one.timestamp_ms < now_ms - KEPT_MS]
    gone = {one.snapshot_id for one in old} - named
    if len(gone) < SNAPSHOTS_KEPT:  # several at once: finding their files takes requests
        return Expired((), ())
    kept = [one for one in snapshots if one.snapshot_id not in gone]
    manifests = {one.manifest_path: one for each in kept for one in each.manifests(table.io)}
    files: set[str] = set()
    for snapshot in snapshots:
        lists: list[Any] = snapshot.manifests(table.io)
        if snapshot.parent_snapshot_id in gone:  # no remaining snapshot names what it removed
            files |= {
                entry.data_file.file_path
                for manifest in lists
                if manifest.added_snapshot_id == snapshot.snapshot_id
                for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=False)
                if entry.status == ManifestEntryStatus.DELETED
            }
        if snapshot.snapshot_id in gone:
            files |= {one.manifest_path for one in lists} - manifests.keys()
            files.add(snapshot.manifest_list)
    files -= {  # files that a killed writer removed were restored
        entry.data_file.file_path
        for one in manifests.values()
        for entry in one.fetch_manifest_entry(table.io, discard_deleted=True)
    }
    return Expired(tuple(gone), tuple(sorted(files)))


def remove(table: Table, old: Expired) -> None:
    """Remove the files of expired snapshots; missing files, and those that must stay, are skipped.

    A file that is not removed takes space, and nothing names it.
    """
    for path in old.files:
        with suppress(OSError, FileNotFoundError):
            table.io.delete(path)


# --- the changes table ----------------------------------------------------------------------------


WINDOW_DELTAS: Final = 5_000
"""Deltas that are read at once, unless one commit has more."""
FILE_DELTAS_MAX: Final = 20_000
"""Deltas of a file up to which it is rewritten with the next ones, so that files stay few."""
_HEAD: Final = (COMMIT_STAMP, "_ordinal", "_op", ID, "_client_id", "_hlc", "_columns", "_texts")


class History:
    """A changes table as it is when it is loaded.

    Args:
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
