"""How a table of a SQL database is read: its columns, their types, its key, its statements.

Its statements read pages in the order of some columns, and find rows that the table no longer has
(deletions that no log reports), or whose key is NULL: no page has those.

`Database` covers all differences between PostgreSQL and MySQL as sources.

A database is asked what a query is that is read in a table's place: its columns, or its fault. It
says itself whether the text is one statement, by preparing it without anything around it, and
whether it can be read as a table. Nothing is run but that, in a session that cannot write.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeAlias

from lakesync.connectors.pages import identifier
from lakesync.connectors.port import SourceColumn, SourceTable, Unreadable
from lakesync.errors import AdapterRefused, AdapterTimedOut, AdapterUnreachable
from lakesync.systems.sql.sql_settings import derived_table, quoted_name, quoted_table, written

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime

    from lakesync.adapters.sql.standard import Connection, Dialect
    from lakesync.connectors.port import Storage
    from lakesync.systems.sql import database_values as source_values
    from lakesync.systems.sql.database_values import Values
    from lakesync.systems.sql.sql_settings import PolledTable

    Condition: TypeAlias = tuple[str, Sequence[Any]]
    """A condition, and its parameters."""
    RowsThere: TypeAlias = Callable[[Sequence[str]], set[str]]
    """Returns which of the given rows a table has."""

# --- the plan -------------------------------------------------------------------------------------


class Altered(Exception):
    """A table's column types differ from those that the same plan read before."""


@dataclass(frozen=True)
class Plan:
    """How a table is read."""

    settings: PolledTable
    described: tuple[SourceColumn, ...]
    """The columns that are read, in their order."""
    names: tuple[str, ...]
    """The columns' names in the gateway."""
    key: tuple[str, ...]
    source: source_values.Values
    """How the source's values are read."""
    _kinds: list[tuple[object, ...]] = field(default_factory=list, repr=False, compare=False)
    """The driver's types of the columns, as in the first rows that were read."""

    @cached_property
    def columns(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.described)

    @cached_property
    def types(self) -> tuple[str, ...]:
        return tuple(column.type for column in self.described)

    @cached_property
    def altered_by(self) -> dict[str, str]:
        """What of each column changes if the table must be read again."""
        return {column.name: self.source.alters(column) for column in self.described}

    def origin(self, dialect: Dialect) -> str:
        """Return the table, or the query in its place, as part of a statement with parameters."""
        if self.settings.query:
            return derived_table(self.settings.query)
        return quoted_table(dialect, self.settings.name)

    @cached_property
    def nullable_key(self) -> tuple[str, ...]:
        """The columns of the key that may be NULL: such rows are never read, but reported."""
        return tuple(
            self.described[at].name for at in self.key_places if self.described[at].nullable
        )

    def rows(self, cursor: Any, statement: tuple[str, Sequence[Any]]) -> Sequence[Sequence[Any]]:
        """Return the rows of a statement that reads these columns.

        Raises:
            Altered: the table was altered meanwhile; nothing was read.
        """
        cursor.execute(*statement)
        kinds = tuple(column[1] for column in cursor.description)
        if not self._kinds:
            self._kinds.append(kinds)
        if self._kinds[0] != kinds:
            raise Altered
        return self.source.rows(cursor)

    def place(self, column: str) -> int:
        return self.columns.index(column)

    @cached_property
    def key_places(self) -> tuple[int, ...]:
        """The positions of the key's columns in a row."""
        return tuple(map(self.place, self.key))

    @cached_property
    def converts(self) -> tuple[Callable[[Any], Any], ...]:
        """The functions from the columns' values, without NULL, to JSON."""
        return tuple(map(self.source.converter, self.described))

    @cached_property
    def _read(self) -> tuple[tuple[str, Callable[[Any], Any]], ...]:
        return tuple(zip(self.names, self.converts, strict=True))

    @cached_property
    def _bounds(self) -> dict[str, source_values.Bound]:
        bounds = {}
        for column in self.described:
            bound = self.source.bound(column)
            if bound is not None:
                bounds[column.name] = bound
        return bounds

    def row_id(self, row: Sequence[Any]) -> str:
        """Return the id of a row: its key's value, or several as a JSON array."""
        return self.key_row_id([row[at] for at in self.key_places])

    def values(self, row: Sequence[Any]) -> dict[str, Any]:
        """Return a row as JSON values.

        Raises:
            ValueError: JSON cannot represent a value; the message names the column.
        """
        values = {}
        for (name, convert), value in zip(self._read, row, strict=True):
            try:
                values[name] = None if value is None else convert(value)
            except ValueError as exc:
                raise ValueError(f"the column {name}: {exc}") from exc
        return values

    def some_values(self, columns: Sequence[str], row: Sequence[Any]) -> dict[str, Any]:
        """Return some columns of a row as JSON values; without those that JSON cannot represent."""
        values = {}
        for column, value in zip(columns, row, strict=True):
            at = self.place(column)
            with suppress(ValueError):
                values[self.names[at]] = None if value is None else self.converts[at](value)
        return values

    def key_row_id(self, row: Sequence[Any]) -> str:
        """Return the id of a row of which only the key's columns were read."""
        pairs = zip(row, self.key_places, strict=True)
        return row_id_of(
            [None if value is None else self.converts[at](value) for value, at in pairs]
        )

    def ends_at(self, columns: Sequence[str], row: Sequence[Any]) -> list[Any]:
        """Return some columns' values of a row as JSON, as `behind` takes them.

        Args:
            columns: of the order in which rows are read.
            row: these columns' values.
        """
        pairs = zip(columns, row, strict=True)
        return [self._bounds[name].to_json(value) for name, value in pairs]

    def bound(self, columns: Sequence[str], values: Sequence[Any]) -> Bound:
        """Return the bound of `ends_at` as the database compares it."""
        pairs = zip(columns, values, strict=True)
        return Bound(columns, [self._bounds[name].to_parameter(value) for name, value in pairs])

    def key_parameters(self, row_id: str) -> list[Any]:
        """Return the values of the key of a row's id, as the database compares them.

        Raises:
            ValueError: it is not the id of a row with such a key.
        """
        pairs = zip(self.key_places, key_of(row_id, self.key), strict=True)
        return [self.source.key_parameter(self.described[at])(value) for at, value in pairs]

    def instant(self, value: Any) -> datetime | None:
        """Return an instant that was read.

        Raises:
            ValueError: Python does not have it.
        """
        return self.source.instant(value)


def row_id_of(values: Sequence[Any]) -> str:
    """Return a row's id from its key's values: a single one as its text, several as an array."""
    alone = values[0] if len(values) == 1 else None
    if isinstance(alone, str):
        return alone
    if alone.__class__ is int:
        return str(alone)
    return json.dumps(alone if alone is not None else values)


def key_of(row_id: str, key: Sequence[str]) -> Sequence[Any]:
    """Return a key's values from a row's id, as the database reads them.

    Raises:
        ValueError: it is not the id of a row with such a key.
    """
    if len(key) == 1:
        return [row_id]
    values = json.loads(row_id)
    if not isinstance(values, list) or len(values) != len(key):
        raise ValueError(f"{row_id[:60]} is no key of {len(key)} columns")
    return [value if isinstance(value, str) else json.dumps(value) for value in values]


def plan_of(settings: PolledTable, table: SourceTable, source: source_values.Values) -> Plan:
    """Return how a table is read.

    Raises:
        AdapterRefused: it lacks a configured column, or a key by which rows can be read.
    """
    columns = {column.name: column for column in table.columns}
    key = tuple(settings.key or table.key)
    if not key:
        raise AdapterRefused(
            f"{settings.name} has no primary key: name the columns that identify a row in key"
        )
    cursor = (settings.cursor_column,) if settings.cursor_column else ()
    wanted = dict.fromkeys((*(settings.columns or columns), *key, *cursor))
    missing = [name for name in wanted if name not in columns]
    if missing:
        raise AdapterRefused(f"{settings.name} has no column {', '.join(missing)}")
    names = tuple(map(identifier, wanted))
    if len({name.lower() for name in names}) < len(names):
        raise AdapterRefused(
            f"two columns of {settings.name} would have one name: say which are wanted in columns"
        )
    for name in key:
        if source.bound(columns[name]) is None:
            raise AdapterRefused(
                f"rows of {settings.name} cannot be read in the order of {name}, which is "
                f"{columns[name].source_type}: name another key"
            )
    return Plan(settings, tuple(columns[name] for name in wanted), names, key, source)


# --- rows without a key ---------------------------------------------------------------------------


def has_key(dialect: Dialect, plan: Plan) -> list[Condition]:
    """Return the conditions for rows with a key; none if no column of it may be NULL."""
    return [(f"{quoted_name(dialect, name)} IS NOT NULL", ()) for name in plan.nullable_key]


def without_key(
    dialect: Dialect, cursor: Any, plan: Plan, within: Sequence[Condition]
) -> tuple[Unreadable, ...]:
    """Return one row without a key, of those that fulfil some conditions, as unreadable."""
    if not plan.nullable_key:
        return ()
    lacking = " OR ".join(f"{quoted_name(dialect, name)} IS NULL" for name in plan.nullable_key)
    conditions = " AND ".join([*(text for text, _ in within), f"({lacking})"])
    names = ", ".join(quoted_name(dialect, name) for name in plan.key)
    cursor.execute(
        f"SELECT {names} FROM {plan.origin(dialect)} WHERE {conditions} LIMIT 1",  # noqa: S608 - quoted
        [value for _, values in within for value in values],
    )
    return tuple(keyless(plan, row) for row in plan.source.rows(cursor))


def keyless(plan: Plan, key: Sequence[Any]) -> Unreadable:
    reason = (
        f"a column of its key is NULL ({', '.join(plan.key)}), so that it is not read, nor other "
        "rows without: set it in all rows, or name another key"
    )
    pairs = zip(key, plan.key_places, strict=True)
    values = [None if value is None else plan.converts[at](value) for value, at in pairs]
    return Unreadable(row_id_of(values), reason)


# --- pages ----------------------------------------------------------------------------------------


class Bound(NamedTuple):
    """Where a range of rows begins or ends, in the order of some columns."""

    columns: Sequence[str]
    values: Sequence[Any]


def behind(dialect: Dialect, bound: Bound) -> tuple[str, list[Any]]:
    """Return the condition for rows behind a bound.

    It is spelled out, as not every database uses an index for a row comparison of several columns.
    """
    parts: list[str] = []
    values: list[Any] = []
    for number, column in enumerate(bound.columns):
        equal = [f"{quoted_name(dialect, name)} = %s" for name in bound.columns[:number]]
        parts.append(" AND ".join([*equal, f"{quoted_name(dialect, column)} > %s"]))
        values += bound.values[: number + 1]
    first = f"{quoted_name(dialect, bound.columns[0])} >= %s AND " if len(parts) > 1 else ""
    condition = f"{first}({' OR '.join(f'({part})' for part in parts)})"
    return condition, [*([bound.values[0]] if first else []), *values]


def up_to(dialect: Dialect, bound: Bound) -> tuple[str, list[Any]]:
    """Return the condition for rows at a bound or before it.

    It repeats the first column separately, which shows the database how far to read an index.
    """
    condition, values = behind(dialect, bound)
    first = f"{quoted_name(dialect, bound.columns[0])} <= %s AND "
    return f"{first}NOT ({condition})", [bound.values[0], *values]


def page_of(
    dialect: Dialect,
    origin: str,
    columns: Sequence[str],
    order: Sequence[str],
    conditions: Sequence[Condition],
    rows_max: int,
    *,
    skipped: int = 0,
) -> tuple[str, list[Any]]:
    """Return the statement that reads some columns of a table in an order, and its parameters.

    It limits the number of rows, after those that are skipped.

    Args:
        origin: the table, or the query that is read in its place: `Plan.origin`.
        order: the columns by which rows are sorted.
        conditions: those of the rows, with their parameters.
        skipped: how many before them.
    """
    names = ", ".join(quoted_name(dialect, name) for name in columns)
    where = " AND ".join(condition for condition, _ in conditions)
    sorting = ", ".join(quoted_name(dialect, name) for name in order)
    statement = (
        f"SELECT {names} FROM {origin}"  # noqa: S608 - quoted
        f"{f' WHERE {where}' if where else ''} ORDER BY {sorting} LIMIT {int(rows_max)}"
        f"{f' OFFSET {int(skipped)}' if skipped else ''}"
    )
    return statement, [value for _, values in conditions for value in values]


# --- rows that are gone ---------------------------------------------------------------------------


def rows_gone(
    plan: Plan, storage: Storage, place: str, rows_there: RowsThere
) -> tuple[list[str], str]:
    """Return some of the rows that came from a table and that it no longer has.

    Args:
        storage: the connector's, which lists the rows that the gateway has from it.
        place: where the previous call ended; empty to begin.
        rows_there: asks the source.

    Returns:
        Their ids, and the place to continue; empty after the last.
    """
    brought = storage.brought(plan.settings.table, place)
    there = rows_there(brought.row_ids)
    return [row_id for row_id in brought.row_ids if row_id not in there], brought.place


def asking(cursor: Any, dialect: Dialect, plan: Plan) -> RowsThere:
    """Return the function that asks a SQL database which rows a table has."""

    def rows_there(row_ids: Sequence[str]) -> set[str]:
        rows = rows_with(cursor, dialect, plan, row_ids, plan.key)
        return {plan.key_row_id(row) for row in rows}

    return rows_there


def rows_with(
    cursor: Any, dialect: Dialect, plan: Plan, row_ids: Sequence[str], columns: Sequence[str]
) -> Sequence[Sequence[Any]]:
    """Return some columns of the given rows, of those that the table has.

    An id that is not of the table's key, as of a former one, is no row of it.
    """
    keys = []
    for row_id in row_ids:
        try:
            keys.append(plan.key_parameters(row_id))
        except ValueError:
            continue
    if not keys:
        return []
    cursor.execute("SAVEPOINT there")
    try:
        return _with_keys(cursor, dialect, plan, keys, columns)
    except Exception as exc:
        if not dialect.is_row_fault(exc):
            raise
        cursor.execute("ROLLBACK TO SAVEPOINT there")
    rows: list[Sequence[Any]] = []
    for key in keys:
        cursor.execute("SAVEPOINT there")
        try:
            rows += _with_keys(cursor, dialect, plan, [key], columns)
        except Exception as exc:
            if not dialect.is_row_fault(exc):
                raise
            # Not a value of the key's type: such a row cannot exist.
            cursor.execute("ROLLBACK TO SAVEPOINT there")
    return rows


def _with_keys(
    cursor: Any,
    dialect: Dialect,
    plan: Plan,
    keys: Sequence[Sequence[Any]],
    columns: Sequence[str],
) -> Sequence[Sequence[Any]]:
    wanted, names = (
        ", ".join(quoted_name(dialect, one) for one in some) for some in (columns, plan.key)
    )
    one = f"({', '.join(['%s'] * len(plan.key))})"
    cursor.execute(
        f"SELECT {wanted} FROM {plan.origin(dialect)} "  # noqa: S608 - quoted
        f"WHERE ({names}) IN ({', '.join([one] * len(keys))})",
        [value for key in keys for value in key],
    )
    return plan.source.rows(cursor)


# --- the catalogue --------------------------------------------------------------------------------


# --- tables ---------------------------------------------------------------------------------------


READ_S_MAX: Final = 15
"""How long the source may take for one page; a poll's function ends after 29 s."""
ANSWER_S_MAX: Final = 17
"""How long to wait for an answer of the source: a little longer than it may take for one."""


class Database(Protocol):
    """One database as a source."""

    @property
    def title(self) -> str:
        """Its name for people."""
        ...

    @property
    def dialect(self) -> Dialect:
        """Its dialect: connecting, quoting of names, translation of errors."""
        ...

    @property
    def values(self) -> Values:
        """How its values are read."""
        ...

    @property
    def zoneless(self) -> int:
        """The driver's type of a column of times without a zone."""
        ...

    def connect(self) -> Connection:
        """Connect read-only, with short time limits."""
        ...

    def now(self, cursor: Any) -> Any:
        """Return the time by the source's clock."""
        ...

    def described(self, cursor: Any, table: str | None) -> Sequence[SourceTable]:
        """Return all tables, or the one of a name; none if there is no such table."""
        ...

    def queried(self, cursor: Any, name: str, query: str) -> tuple[SourceColumn, ...]:
        """Return the columns of a query that is read in the place of a table.

        Raises:
            AdapterRefused: it is not one SELECT, or has two columns of one name.
        """
        ...


def tables_in_rows(
    rows: Sequence[Sequence[Any]], asked: str | None, values: Values
) -> list[SourceTable]:
    """Return tables from a catalogue's rows: table, column, type, is required, place in the key."""
    columns: dict[str, list[SourceColumn]] = {}
    keys: dict[str, dict[int, str]] = {}
    for table, name, sql_type, is_required, place in rows:
        column = SourceColumn(name, values.column_type(sql_type), not is_required, sql_type)
        columns.setdefault(asked or written(table), []).append(column)
        if place >= 0:
            keys.setdefault(asked or written(table), {})[place] = name
    return [
        SourceTable(name, tuple(part), tuple(key for _, key in sorted(keys.get(name, {}).items())))
        for name, part in columns.items()
    ]


# --- queries --------------------------------------------------------------------------------------


def refused_query(name: str, message: str) -> AdapterRefused:
    said = " ".join(message.split())[:300]
    return AdapterRefused(
        f"the query of {name} is not one SELECT that can be read as a table: {said}"
    )


def check_names(name: str, columns: Sequence[str]) -> None:
    """Refuse a query with two columns of one name.

    Raises:
        AdapterRefused: there are two.
    """
    folded = [column.lower() for column in columns]
    twice = sorted({column for column in folded if folded.count(column) > 1})
    if twice:
        raise AdapterRefused(
            f"the query of {name} has several columns called {', '.join(twice)}: give each a name "
            "of its own with AS"
        )


def check_reads(cursor: Any, dialect: Dialect, name: str, query: str) -> None:
    """Read one row of a query: a function that writes is refused as the session is read-only.

    Raises:
        AdapterRefused: it cannot be read.
    """
    read_query(cursor, dialect, name, query, 1)
    cursor.fetchall()


def read_query(cursor: Any, dialect: Dialect, name: str, query: str, rows_max: int) -> None:
    """Read the query as a table, as the polls' statements do."""
    try:
        cursor.execute(f"SELECT * FROM {derived_table(query)} LIMIT {rows_max:d}", ())  # noqa: S608 - checked
    except Exception as exc:
        raise query_fault(dialect, exc, name) from exc


def query_fault(dialect: Dialect, error: Exception, name: str) -> Exception:
    """Return the refusal of a query; other errors, as of a lost connection, as they are."""
    translated = dialect.translate(error)
    if translated is None or type(translated) in {AdapterUnreachable, AdapterTimedOut}:
        return translated or error
    return refused_query(name, str(error.args[-1] if error.args else error))
