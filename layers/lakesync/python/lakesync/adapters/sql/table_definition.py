"""A table to query: its name, columns and keys, how they may change, and row states as its rows."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final, NamedTuple

from lakesync.adapters.database import DeadLetter
from lakesync.core.clock import stamp_ms
from lakesync.core.column_types import Unfit, converter, precision_scale, widens
from lakesync.core.delta import NULL
from lakesync.core.merge import as_read, view
from lakesync.core.names import folded
from lakesync.core.schema import ROW_ID, schema_from_stored, schema_to_json
from lakesync.errors import SchemaMismatch

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from lakesync.adapters.sql.standard import Dialect
    from lakesync.core.merge import RowState
    from lakesync.core.schema import TableSchema

PREFIX: Final = "lakesync_"
"""The prefix of our own tables' names, which no other table may have."""
PROPS: Final = "props"
SYNCED_AT: Final = "synced_at"
DELETED_AT: Final = "deleted_at"
UNTYPED: Final = "json"
"""The type of columns that no schema declares."""
NAME_BYTES_MAX: Final = 63
"""Bytes of an identifier: PostgreSQL truncates longer ones, MySQL allows 64."""
_OWN: Final = frozenset({PROPS, SYNCED_AT, DELETED_AT})


@dataclass(frozen=True)
class Definition:
    """The definition of the table to query of one synced table."""

    table: str
    columns: Mapping[str, str] = field(default_factory=dict)
    """The type of each column, by its written name."""
    schema: TableSchema | None = None
    """The newest schema of the table that was received."""

    @property
    def destination(self) -> str:
        """The name of the table to query: the schema's ``sourceTable``, or the table's own."""
        name = (self.schema.source_table if self.schema else None) or self.table
        parts = name.split(".")
        is_own = folded(parts[-1]).startswith(PREFIX)
        return digested(name) if is_own or any(map(_is_unusable, parts)) else name

    @property
    def keys(self) -> tuple[str, ...]:
        """The columns of its primary key."""
        return (self.schema.primary_key if self.schema else ()) or (ROW_ID,)

    @property
    def external_id(self) -> str | None:
        """The column that is unique because it names the row in another system."""
        return self.schema.external_id_column if self.schema else None

    @property
    def keeps_deleted(self) -> bool:
        """Whether deleted rows stay, with the time of their deletion."""
        return bool(self.schema and self.schema.soft_delete)

    def as_read(self, state: RowState) -> RowState:
        """Return a row as its table reads it; see `lakesync.core.merge.as_read`."""
        return as_read(state, delete_wins=bool(self.schema and self.schema.delete_wins))

    def stored_columns(self) -> dict[str, str]:
        """Return the existing columns: those whose type is known."""
        return {name: kind for name, kind in self.columns.items() if kind != "null"}

    def reads_as(self, other: Definition) -> bool:
        """Return whether another definition reads rows in the same way."""
        return bool(self.schema and self.schema.delete_wins) is bool(
            other.schema and other.schema.delete_wins
        )

    def covers(self, schema: TableSchema | None, written: Iterable[str]) -> bool:
        """Return whether the definition fits deltas with these columns and this schema."""
        is_known = schema is None or bool(
            self.schema and (schema == self.schema or schema.version < self.schema.version)
        )
        return is_known and self.columns.keys() >= set(written)

    def evolved(self, schema: TableSchema | None, written: Iterable[str]) -> Definition:
        """Return the definition for a schema and the columns of new deltas.

        Raises:
            SchemaMismatch: a type would change in a way that is not allowed.
        """
        newest = schema
        if self.schema and (schema is None or schema.version < self.schema.version):
            newest = self.schema
        columns = dict(self.columns)
        for column in newest.columns if newest else ():
            current = columns.get(column.name)
            columns[column.name] = _evolved(column.name, current, column.type)
        columns |= {name: UNTYPED for name in sorted(written) if name not in columns}
        return replace(self, columns=columns, schema=newest)

    def to_json(self) -> str:
        """Write the definition as JSON, for `from_json`."""
        schema = schema_to_json(self.schema) if self.schema else None
        return json.dumps({"columns": dict(self.columns), "schema": schema})


def from_json(table: str, text: str) -> Definition:
    """Parse a definition that `Definition.to_json` wrote."""
    body = json.loads(text)
    schema = schema_from_stored(body["schema"]) if body["schema"] else None
    return Definition(table, body["columns"], schema)


def sql_name(column: str) -> str:
    """Return the name of a synced column: its own, unless that is reserved or too long."""
    is_own = folded(column) in _OWN or folded(column).startswith(PREFIX)
    is_taken = folded(column) == ROW_ID != column
    return digested(column) if is_own or is_taken or _is_long(column) else column


def digested(name: str) -> str:
    """Return a unique name."""
    digest = hashlib.sha256(name.encode()).hexdigest()[:10]
    plain = "".join(character if character.isalnum() else "_" for character in name[:40])
    return f"c_{plain}_{digest}" if plain.isascii() else f"c_{digest}"


def _is_long(name: str) -> bool:
    return len(name.encode()) > NAME_BYTES_MAX


def _is_unusable(name: str) -> bool:
    """Return whether some database takes no table of this name."""
    # MySQL takes no character beyond U+FFFF, and no space at the end; no database takes U+0000.
    is_odd = not name or name.endswith(" ") or not "\0" < min(name) <= max(name) <= "\uffff"
    return is_odd or _is_long(name)


def _evolved(name: str, current: str | None, wanted: str) -> str:
    """Return a column's type when another is declared; an older schema changes nothing."""
    if current in {None, "null", UNTYPED}:
        return UNTYPED if current == UNTYPED and wanted == "null" else wanted
    if current == wanted or widens(wanted, current or ""):
        return current or wanted
    if precision_scale(wanted) and widens(current or "", wanted):
        return wanted
    raise SchemaMismatch(
        f"column {name} is {current} in the destination and cannot become {wanted}; add a new "
        "column",
        field=name,
    )


# --- row states as rows ---------------------------------------------------------------------------


EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def deleted_at(state: RowState) -> datetime:
    """Return when a row was deleted, from a state that has only a deletion."""
    return EPOCH + timedelta(milliseconds=stamp_ms(state.deleted))


class Row(NamedTuple):
    """A row in the form of the destination."""

    row_id: str
    deleted_at: datetime | None
    """When it was deleted; None if it exists."""
    values: Sequence[object]


class Converted(NamedTuple):
    """Rows in the types of their columns."""

    rows: Sequence[Row]
    refused: Sequence[DeadLetter]
    """Rows with a value that does not fit its column, each with the reason."""


NO_ROWS: Final = Converted((), ())


class RowConverter:
    """Converts the rows of one table; does not use the connection, so any thread may use it."""

    def __init__(self, dialect: Dialect, definition: Definition) -> None:
        self._table = definition.table
        self._as_read = definition.as_read
        self._driver_value = dialect.value
        columns = definition.stored_columns()
        self._converters = [(name, converter(kind)) for name, kind in columns.items()]

    def converted(self, states: Mapping[str, RowState]) -> Converted:
        """Return rows in the form of the destination."""
        rows: list[Row] = []
        refused: list[DeadLetter] = []
        for row_id, state in states.items():
            try:
                rows.append(self._row(row_id, state))
            except Unfit as exc:
                refused.append(DeadLetter(self._table, row_id, str(exc)))
        return Converted(rows, refused)

    def _row(self, row_id: str, state: RowState) -> Row:
        driver_value = self._driver_value
        driver_value(row_id)
        values = view(self._as_read(state))
        if values is None:
            return Row(row_id, deleted_at(state), [None] * len(self._converters))
        converted: list[object] = []
        for name, convert in self._converters:
            value = values.get(name, NULL)
            if value == NULL:
                converted.append(None)
                continue
            try:
                converted.append(driver_value(convert(value)))
            except Unfit as exc:
                raise Unfit(f"column {name}: {exc}") from exc
        return Row(row_id, None, converted)
