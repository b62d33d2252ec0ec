"""What an app's tables are on this device alone: local tables, and declared columns and indexes.

Local tables never leave the device: the app's own, and those that pulls of sources fill. An app
creates and writes its own by `execute`, in one transaction with its edits, and its views. Every
table that is neither synced nor one of LakeSync's is local. A later synced table of the same name
gets another SQLite name, as it does beside any other object of the app.

Rules of the tables of sources, which only pulls write
    1. A table of a source is named ``source.table`` in the app's file, as no synced table can be.
    2. A page, what it makes of the rows, and where the next page begins are one transaction.
    3. Rows that are read again stay readable as *stale* rows until a page brings them, or until
       everything was read and none did.

Typed columns and indexes of synced tables are declared by name or by a class of rows. They are not
needed to sync: an undeclared column stores each value unchanged. A declared type determines what
the cells say (`lakesync.client.storage.cell_values`); the exact value stays in the row state in
both cases, so a table whose declaration changes is filled again from the states.

Law K40: ``docs/spec/client.md``; D13: ``docs/spec/delivery.md``.
"""

from __future__ import annotations

import dataclasses
import hashlib
import sqlite3
import types
import typing
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Decimal
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Final,
    Literal,
    TypeAlias,
    TypeGuard,
    Union,
    get_args,
    get_origin,
)

from lakesync.client.storage.app_catalogue import APP_COLUMNS_MAX, delete_wins_in
from lakesync.client.storage.app_table import ROW_ID, WRITING, is_reading, quote, sql_type_of
from lakesync.client.storage.cell_values import cell, kind_of
from lakesync.client.storage.file import fill_again
from lakesync.client.storage.file_layout import PREFIX
from lakesync.client.storage.misuse import checked_text
from lakesync.core.column_types import precision_scale
from lakesync.core.delta import Op
from lakesync.core.merge import EMPTY, as_read, fold, view
from lakesync.core.names import check_table_name, folded
from lakesync.core.schema import TableSchema
from lakesync.errors import InternalError, NameTaken, ValidationFailed
from lakesync.wire.records import decode_records, decode_row_state, encode_row_state

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lakesync.client.storage.app_catalogue import Catalogue
    from lakesync.client.storage.app_table import AppTable, ColumnKey
    from lakesync.client.storage.file import ClientFile
    from lakesync.core.delta import CanonicalJson, Delta
    from lakesync.core.merge import RowState
    from lakesync.core.messages import PullPage

# --- the app's own --------------------------------------------------------------------------------


_DEFINING: Final = {
    sqlite3.SQLITE_CREATE_TABLE: 0,
    sqlite3.SQLITE_DROP_TABLE: 0,
    sqlite3.SQLITE_CREATE_INDEX: 1,
    sqlite3.SQLITE_DROP_INDEX: 1,
    sqlite3.SQLITE_ALTER_TABLE: 1,
    sqlite3.SQLITE_CREATE_VIEW: 0,
    sqlite3.SQLITE_DROP_VIEW: 0,
}
"""Statements that create or drop tables, indexes and views, and which of SQLite's arguments names
the table or the view.
"""
_SCHEMA: Final = {"sqlite_master", "sqlite_temp_master"}
"""SQLite's own writes to these tables; statements that write to them are refused."""
NO_RETURNING: Final = "RETURNING is not for execute: query what was written afterwards"
_INTERNAL: Final = (PREFIX, "sqlite_")


@dataclass(slots=True)
class Targets:
    """The table that a statement writes to, as SQLite reports while it prepares it."""

    written: set[str] = field(default_factory=set)
    """Tables whose rows it writes itself."""
    by_triggers: set[str] = field(default_factory=set)
    """Tables whose rows triggers write then."""
    defined: set[str] = field(default_factory=set)
    """Tables that it makes, changes or drops."""
    read: set[ColumnKey] = field(default_factory=set)
    """Columns that it reads itself."""

    def check(self, action: int, *details: Any) -> int:
        """Note one thing that the statement does; the authorizer of SQLite."""
        subject, detail = details[0], details[1]
        if action in _DEFINING:
            self.defined.add(details[_DEFINING[action]])
        elif action in WRITING and subject and subject not in _SCHEMA:
            (self.written if details[-1] is None else self.by_triggers).add(subject)
        elif action not in WRITING | {sqlite3.SQLITE_REINDEX}:
            if action == sqlite3.SQLITE_READ and details[-1] is None:
                self.read.add((subject.lower(), detail.lower()))
            return sqlite3.SQLITE_OK if is_reading(action, subject, detail) else sqlite3.SQLITE_DENY
        return sqlite3.SQLITE_OK


def targets_of(connection: sqlite3.Connection, sql: str, parameters: Any) -> Targets:
    """Return what a statement would write to, without running it."""
    targets = Targets()
    connection.set_authorizer(targets.check)
    try:
        connection.execute(f"EXPLAIN {sql}", parameters).close()
    finally:
        connection.set_authorizer(None)
    return targets


def check_local(catalogue: Catalogue, targets: Targets) -> None:
    for name in sorted(targets.written | targets.by_triggers | targets.defined):
        if name.lower().startswith(_INTERNAL):
            raise refused(f"{name} is LakeSync's or SQLite's own, and no table of the app")
        if catalogue.is_pulled(name):
            raise refused(
                f"{name} is pulled from a source: only pulls write it, and forget_source drops it"
            )
        if catalogue.by_sql_name(name) is None:
            continue
        if name in targets.by_triggers:
            raise refused(
                f"a trigger of the app writes to the synced table {name}, which would be no edit: "
                "drop the trigger, and write there by execute"
            )
        raise refused(
            f"{name} is a synced table: its columns and indexes are declared, and it is never "
            "dropped"
        )


def run_local(
    connection: sqlite3.Connection, catalogue: Catalogue, targets: Targets, sql: str, given: Any
) -> int:
    """Run a statement on local tables; returns how many rows it wrote."""
    ours = _ours(connection) if targets.defined else []
    cursor = connection.execute(sql, given)
    gives_rows, rows = cursor.description is not None, cursor.rowcount
    cursor.close()
    if gives_rows:  # whatever it wrote is undone with the transaction, which no error survives
        raise refused(NO_RETURNING)
    if targets.defined:
        if _ours(connection) != ours:  # renamed
            raise refused(f"names that begin with {PREFIX} are LakeSync's own")
        catalogue.objects.check()
    for name in targets.written | targets.by_triggers | targets.defined:
        catalogue.note_local_change(name)
    return max(rows, 0)


def _ours(connection: sqlite3.Connection) -> list[Any]:
    sql = "SELECT name FROM main.sqlite_master WHERE substr(name, 1, ?) = ? COLLATE NOCASE"
    return connection.execute(sql, (len(PREFIX), PREFIX)).fetchall()


def refused(sentence: str) -> ValidationFailed:
    return ValidationFailed(sentence, field="sql")


# --- rows of sources ------------------------------------------------------------------------------


_STALE: Final = "UPDATE _lakesync_source_rows SET stale = 1 WHERE source = ?"
_STORE: Final = (
    "INSERT OR REPLACE INTO _lakesync_source_rows (source, name, row_id, state, stale) "
    "VALUES (?, ?, ?, ?, 0)"
)
_REMOVE: Final = "DELETE FROM _lakesync_source_rows WHERE source = ? AND name = ? AND row_id = ?"
_GOES_ON: Final = (
    "INSERT INTO _lakesync_sources (source, snapshot) VALUES (?, ?) "
    "ON CONFLICT (source) DO UPDATE SET snapshot = excluded.snapshot"
)


class SourceRows:
    """What one file holds of one source. Used within the caller's transaction."""

    def __init__(self, file: ClientFile, source: str) -> None:
        self._file = file
        self._source = source
        self._execute = file.connection.execute

    def position(self) -> str:
        """Return the ``snapshot`` that the next page is asked for with; empty at the beginning."""
        row = self._execute(
            "SELECT snapshot FROM _lakesync_sources WHERE source = ?", (self._source,)
        ).fetchone()
        return str(row[0]) if row else ""

    def take(self, page: PullPage, *, is_anew: bool) -> None:
        """Apply the page behind `position`; ``is_anew``: of another source, read from the start."""
        if is_anew:
            self._execute(_STALE, (self._source,))
        if page.resync is not None:
            for name in self._names():
                if page.resync.concerns(name):
                    self._execute(f"{_STALE} AND name = ?", (self._source, name))
        for name, by_row in _by_table(page).items():
            self._apply(name, by_row)
        if not page.has_more:
            self._drop_stale()
        self._execute(_GOES_ON, (self._source, page.snapshot))

    def forget(self) -> None:
        for name in self._names():
            self._execute(f"DROP TABLE IF EXISTS main.{quote(self._sql_name(name))}")
            self._file.catalogue.note_local_change(self._sql_name(name))
        for table in ("sources", "source_tables", "source_rows"):
            self._execute(f"DELETE FROM _lakesync_{table} WHERE source = ?", (self._source,))  # noqa: S608 - ours

    def _names(self) -> list[str]:
        rows = self._execute(
            "SELECT name FROM _lakesync_source_tables WHERE source = ?", (self._source,)
        )
        return [str(name) for (name,) in rows.fetchall()]

    def _sql_name(self, name: str) -> str:
        return f"{self._source}.{name}"

    def _apply(self, name: str, by_row: Mapping[str, list[Delta]]) -> None:
        self._make(name)
        (schemas,) = self._execute("SELECT schemas FROM _lakesync_sync").fetchone()
        delete_wins = folded(name) in delete_wins_in(schemas)
        known_columns = self._columns(name)
        for row_id, deltas in by_row.items():
            known, seen = self._known(name, row_id), deltas
            removals = [at for at, delta in enumerate(deltas) if delta.op is Op.REMOVE]
            if removals:
                known, seen = EMPTY, deltas[removals[-1] + 1 :]
            state = fold(seen, known)
            if state == EMPTY:
                self._execute(_REMOVE, (self._source, name, row_id))
            else:
                self._execute(_STORE, (self._source, name, row_id, encode_row_state(state)))
            self._hide(name, row_id)
            row = view(as_read(state, delete_wins=delete_wins))
            if row is not None:
                self._show(name, row_id, row, known_columns)
        self._file.catalogue.note_local_change(self._sql_name(name))

    def _known(self, name: str, row_id: str) -> RowState:
        row = self._execute(
            "SELECT state FROM _lakesync_source_rows "
            "WHERE source = ? AND name = ? AND row_id = ? AND NOT stale",
            (self._source, name, row_id),
        ).fetchone()
        return decode_row_state(row[0]) if row else EMPTY

    def _make(self, name: str) -> None:
        sql_name = self._sql_name(name)
        if name in self._names():
            return
        if self._execute(
            "SELECT 1 FROM main.sqlite_master WHERE name = ? COLLATE NOCASE", (sql_name,)
        ).fetchone():
            raise NameTaken(
                f"the app has a table, a view or an index named {sql_name} of its own: rename it, "
                "and pull again",
                field="source",
            )
        self._execute(f"CREATE TABLE main.{quote(sql_name)} ({ROW_ID} TEXT NOT NULL PRIMARY KEY)")
        self._execute(
            "INSERT INTO _lakesync_source_tables (source, name) VALUES (?, ?)",
            (self._source, name),
        )

    def _hide(self, name: str, row_id: str) -> None:
        table = f"main.{quote(self._sql_name(name))}"
        self._execute(f"DELETE FROM {table} WHERE {ROW_ID} = ?", (row_id,))  # noqa: S608 - quoted

    def _show(
        self, name: str, row_id: str, row: Mapping[str, CanonicalJson], known: set[str]
    ) -> None:
        """Write a row of the app's table, of which these columns are known, in small letters."""
        table = f"main.{quote(self._sql_name(name))}"
        there = []
        for column in row:
            small = folded(column)
            if small == ROW_ID or (small not in known and len(known) > APP_COLUMNS_MAX):
                continue
            if small not in known:
                self._execute(f"ALTER TABLE {table} ADD COLUMN {quote(column)}")
                known.add(small)
            there.append(column)
        names = ", ".join([ROW_ID, *map(quote, there)])
        marks = ", ".join("?" * (len(there) + 1))
        values = [cell(row[column]) for column in there]
        self._execute(f"INSERT INTO {table} ({names}) VALUES ({marks})", (row_id, *values))  # noqa: S608 - quoted

    def _columns(self, name: str) -> set[str]:
        """Return the columns of an app's table, in small letters."""
        rows = self._execute("SELECT name FROM pragma_table_info(?)", (self._sql_name(name),))
        return {folded(str(column)) for (column,) in rows.fetchall()}

    def _drop_stale(self) -> None:
        stale = self._execute(
            "SELECT name, row_id FROM _lakesync_source_rows WHERE source = ? AND stale",
            (self._source,),
        ).fetchall()
        for name, row_id in stale:
            self._execute(_REMOVE, (self._source, name, row_id))
            self._hide(name, row_id)
            self._file.catalogue.note_local_change(self._sql_name(name))


def forget_all(file: ClientFile) -> None:
    for (source,) in file.connection.execute("SELECT source FROM _lakesync_sources").fetchall():
        SourceRows(file, str(source)).forget()


def _by_table(page: PullPage) -> dict[str, dict[str, list[Delta]]]:
    tables: dict[str, dict[str, list[Delta]]] = defaultdict(lambda: defaultdict(list))
    count = 0
    for delta in (delta for run in page.records for delta in decode_records(run)):
        tables[delta.table][delta.row_id].append(delta)
        count += 1
    if count != page.count:
        raise InternalError(f"the page counts {page.count} deltas and holds {count}; pull again")
    return tables


# --- the columns of a class -----------------------------------------------------------------------


_TYPES: Final[Mapping[Any, str]] = {
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    datetime: "timestamp",
    date: "date",
    bytes: "bytes",
    **dict.fromkeys((Any, object, list, dict), "json"),
}
_HOW: Final = 'say which by Annotated[…, "string"], with the name of a column type'
_DIGITS: Final = 'say how many digits it has: Annotated[Decimal, "decimal(9,2)"]'


def column_types(cls: type[Any]) -> dict[str, str]:
    """Return the types of the columns that a class's fields are, by their hints.

    A text in ``Annotated`` names a column's type itself; a ``Decimal`` needs one, or pydantic's
    ``max_digits`` and ``decimal_places``. ``_row_id`` is no column.

    Raises:
        ValidationFailed: it is no such class, or a field's type is not a column's.
    """
    try:
        hints = typing.get_type_hints(cls, include_extras=True)
    except Exception as exc:
        raise _refused(cls, f"its types are unknown: {exc}") from exc
    columns = {}
    for name, column, metadata in _fields(cls):
        if column == ROW_ID:
            continue
        kind, sentence = _type_of(hints[name], metadata)
        if not kind:
            raise _refused(cls, f"the field {name} is of no column's type: {sentence}")
        columns[column] = kind
    return columns


def _fields(cls: type[Any]) -> Iterable[tuple[str, str, Iterable[object]]]:
    """Return each field's name, its column's name, and its other declarations."""
    if dataclasses.is_dataclass(cls):
        return [(field.name, field.name, ()) for field in dataclasses.fields(cls) if field.init]
    if hasattr(cls, "model_validate") and hasattr(cls, "model_fields"):
        return [
            (name, str(field.validation_alias or field.alias or name), field.metadata)
            for name, field in cls.model_fields.items()
        ]
    raise _refused(cls, "it is neither")


def _type_of(hint: Any, metadata: Iterable[object] = ()) -> tuple[str, str]:
    """Return the column type of a hint; where it is none, nothing, and what to do."""
    if get_origin(hint) in (Union, types.UnionType):
        others = [part for part in get_args(hint) if part is not type(None)]
        return _type_of(others[0], metadata) if len(others) == 1 else ("", _HOW)
    if get_origin(hint) is Annotated:
        said = [*hint.__metadata__, *metadata]
        named = [part for part in said if isinstance(part, str)]
        return (named[0], "") if named else _type_of(get_args(hint)[0], said)
    if get_origin(hint) is Literal:
        return ("string", "") if all(isinstance(one, str) for one in get_args(hint)) else ("", _HOW)
    plain = get_origin(hint) or hint
    if plain is Decimal:
        return _decimal(metadata)
    is_known = isinstance(plain, type) or plain is Any
    return (_TYPES.get(plain, "") if is_known else "", _HOW)


def _decimal(metadata: Iterable[object]) -> tuple[str, str]:
    for part in metadata:
        for said in (part, *getattr(part, "metadata", ())):  # pydantic's Field has its own
            digits, places = (
                getattr(said, name, None) for name in ("max_digits", "decimal_places")
            )
            if isinstance(digits, int) and isinstance(places, int):
                return f"decimal({digits},{places})", ""
    return "", _DIGITS


def _refused(cls: type[Any], sentence: str) -> ValidationFailed:
    return ValidationFailed(
        f"a table is declared by names and types, by a dataclass or by a pydantic model; of "
        f"{cls.__name__}, {sentence}",
        field="columns",
    )


# --- declaring ------------------------------------------------------------------------------------


DeclaredColumns: TypeAlias = "Mapping[str, str] | type[Any] | TableSchema"
"""Types by names; or the class of the table's rows, a dataclass or a pydantic model; or a schema,
as a gateway has it.
"""


def declare(
    file: ClientFile,
    table: str,
    columns: DeclaredColumns,
    indexes: Sequence[Sequence[str]],
) -> None:
    """Give a table typed columns and indexes; safe to repeat."""
    if isinstance(columns, type):
        columns = column_types(columns)
    elif isinstance(columns, TableSchema):
        columns = {column.name: column.type for column in columns.columns}
    with file.database.transaction() as connection:
        _check_types(table, columns, indexes)
        types = {name: type_name.replace(" ", "") for name, type_name in columns.items()}
        kinds = {name: _kind(type_name) for name, type_name in types.items()}
        declared = file.catalogue.table(table, ())
        new = {
            name: sql_type_of(kind) for name, kind in kinds.items() if name not in declared.columns
        }
        changed = [name for name, kind in kinds.items() if declared.kind(name) != kind]
        file.catalogue.widen(declared, new)
        file.catalogue.keep_declared(declared, types)
        file.catalogue.note_change(declared)
        if set(changed) - new.keys():
            fill_again(file.connection, file.rows, declared)
        for index in indexes:
            _index(connection, declared, index)


def _check_types(table: object, columns: object, indexes: object) -> None:
    check_table_name(checked_text(table, "table"), "table")
    if not isinstance(columns, Mapping) or not all(
        isinstance(part, str) for pair in columns.items() for part in pair
    ):
        raise ValidationFailed("columns map names to types, both text", field="columns")
    if not _is_list(indexes) or not all(
        _is_list(index) and all(isinstance(name, str) for name in index) for index in indexes
    ):
        raise ValidationFailed("each index is a list of names, each of them text", field="indexes")


def _is_list(value: object) -> TypeGuard[Sequence[Any]]:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _kind(type_name: str) -> str:
    precision_scale(type_name)  # which raises for what is no type
    return kind_of(type_name)


def _index(connection: sqlite3.Connection, table: AppTable, columns: Sequence[str]) -> None:
    sql_names = [table.columns.get(name) for name in columns]
    if not sql_names or None in sql_names:
        raise ValidationFailed(
            f"an index of {table.name} names {', '.join(columns) or 'no column'}; declare its "
            "columns first",
            field="indexes",
        )
    digest = hashlib.sha256("\0".join(columns).encode()).hexdigest()[:10]
    name = quote(f"_lakesync_index_{table.id}_{digest}")
    members = ", ".join(quote(sql_name) for sql_name in sql_names if sql_name)
    connection.execute(f"CREATE INDEX IF NOT EXISTS {name} ON {quote(table.sql_name)} ({members})")
