"""A table's state table and changes table in a catalogue: loading, making and reading them.

Tables that are written here have a keeper in their properties, which is their only writer. Tables
without a keeper belong to a stack's lake and are written by its jobs: they are read up to the mark
that both tables have reached.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from pyiceberg.exceptions import (
    NamespaceAlreadyExistsError,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
)

from lakesync.adapters.objects.heads import Head
from lakesync.adapters.sql.definition import Definition
from lakesync.core.names import CHANGES_SUFFIX, folded, lake_tables
from lakesync.core.schema import Column, TableSchema
from lakesync.errors import AdapterRefused
from lakesync.materialise.database.history import History
from lakesync.materialise.database.schemas import first_schema
from lakesync.materialise.iceberg_table import IcebergTable, own_columns
from lakesync.materialise.shape import (
    CHANGES_TABLE,
    COMMIT,
    EVENTS_TABLE,
    GATEWAY,
    KIND,
    KINDS,
    STATE_TABLE,
    WRITTEN,
    delete_wins,
)

if TYPE_CHECKING:
    from pyiceberg.table import Table

    from lakesync.materialise.database.place import LakePlace
    from lakesync.materialise.shape import Kind

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
