"""A table's state table and changes table in a catalogue: loading, making and committing them.

Tables that are written here have a keeper in their properties, which is their only writer. Tables
without a keeper belong to a stack's lake and are written by its jobs: they are read up to the mark
that both tables have reached.

The commit of a new snapshot expires old ones, whose files are removed afterwards. The last
`SNAPSHOTS_KEPT` stay, and those of the last hour, so that readers of them can continue. The content
of the removed files is then gone from the store too, as deleted data should be.
"""

from __future__ import annotations

import json
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pyiceberg.exceptions import (
    NamespaceAlreadyExistsError,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.manifest import ManifestEntryStatus
from pyiceberg.table.update.snapshot import ExpireSnapshots, ManageSnapshots

from lakesync.adapters.headed_database import Head
from lakesync.adapters.sql.table_definition import Definition
from lakesync.core.names import CHANGES_SUFFIX, folded, lake_tables
from lakesync.core.schema import Column, TableSchema
from lakesync.errors import AdapterRefused
from lakesync.materialise.database.changes_table import History
from lakesync.materialise.database.state_table import first_schema
from lakesync.materialise.iceberg_table import IcebergTable, commit_once, own_columns
from lakesync.materialise.lake_schema import (
    CHANGES_TABLE,
    COMMIT,
    EVENTS_TABLE,
    FOR_EVER_MS,
    GATEWAY,
    KIND,
    KINDS,
    MARK_TAG,
    STATE_TABLE,
    WRITTEN,
    delete_wins,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table, Transaction

    from lakesync.materialise.database.place import LakePlace
    from lakesync.materialise.lake_schema import Kind

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
        """Return what the table consists of."""
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
        """Return the commit that both tables have reached."""
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
    """Return the tables of a keeper, by their names on the wire."""
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
        """Have a transaction expire the snapshots."""
        if self.snapshots:
            ExpireSnapshots(transaction).by_ids(list(self.snapshots)).commit()


def expired(table: Table, now_ms: int | None = None) -> Expired:
    """Return what of a table may expire with its next commit."""
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
