"""PostgreSQL as a source: values, catalogue, and the columns of queries.

Values become JSON from the text that the server prints. A query's result and the log of changes
have the same text for a value, with the same settings of the session: `POSTGRES_SETTINGS`. So one
converter for each type serves every way of reading, and no value is beyond it: where Python has no
such day, as ``infinity`` or ``0044-03-15 BC``, that text is the value.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from pydantic import Field

from lakesync.actions.engine import HandlerType
from lakesync.connectors.port import SourceColumn
from lakesync.core.column_types import DECIMAL_DIGITS_MAX
from lakesync.systems.sql.database_values import (
    Bound,
    base64_text,
    bytes_from,
    exact,
    finite,
    same,
    whole_number,
)
from lakesync.systems.sql.sql_actions import (
    STATEMENT_S_MAX,
    WAIT_S_MAX,
    SqlActionSettings,
    SqlStatements,
)
from lakesync.systems.sql.sql_settings import bare_table
from lakesync.systems.sql.sql_source import SqlConnector
from lakesync.systems.sql.table_plan import (
    ANSWER_S_MAX,
    READ_S_MAX,
    check_names,
    query_fault,
    read_query,
    refused_query,
    tables_in_rows,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from lakesync.adapters.sql.standard import Connection, Dialect
    from lakesync.connectors.port import Outside, SourceTable, Storage
    from lakesync.systems.postgres.postgres_settings import PostgresSettings
    from lakesync.systems.sql.database_values import Values

# --- values ---------------------------------------------------------------------------------------


POSTGRES_SETTINGS: Final = {
    "DateStyle": "ISO, YMD",
    "IntervalStyle": "postgres",
    "bytea_output": "hex",
    "extra_float_digits": "1",
}
"""Settings of a session by which values are printed; the time zone is UTC for all sessions."""
_RESOLVED: Final = """(
    WITH RECURSIVE whole AS (
        SELECT t.*, {modifier} AS modifier FROM pg_catalog.pg_type t WHERE t.oid = {type_id}
        UNION ALL
        SELECT t.*, w.typtypmod FROM whole w JOIN pg_catalog.pg_type t ON t.oid = w.typbasetype
        WHERE w.typtype = 'd')
    SELECT CASE WHEN w.typoutput <> 'array_out'::regproc THEN format_type(w.oid, w.modifier)
        ELSE (
            WITH RECURSIVE element AS (
                SELECT t.*, w.modifier AS modifier FROM pg_catalog.pg_type t
                WHERE t.oid = w.typelem
                UNION ALL
                SELECT t.*, e.typtypmod FROM element e
                JOIN pg_catalog.pg_type t ON t.oid = e.typbasetype WHERE e.typtype = 'd')
            SELECT format_type(e.oid, e.modifier) FROM element e WHERE e.typtype <> 'd') || '[]'
        END
    FROM whole w WHERE w.typtype <> 'd')"""
_NUMERIC: Final = re.compile(r"numeric\((\d+),(-?\d+)\)")
_MODIFIERS: Final = re.compile(r"\([\d,-]+\)")


def resolved(type_id: str, modifier: str) -> str:
    """Return the SQL for the name of a type, from the SQL of its number and its modifier.

    A domain is the type that it is of, and an array the type of its elements, followed by ``[]``:
    so a value's text can be read by that name alone.
    """
    return _RESOLVED.format(type_id=type_id, modifier=modifier)


class PostgresValues:
    """`lakesync.systems.sql.database_values.Values` of PostgreSQL."""

    def column_type(self, source_type: str) -> str:
        if source_type.endswith("[]"):
            return "json"
        numeric = _NUMERIC.fullmatch(source_type)
        if numeric:
            precision, scale = int(numeric[1]), int(numeric[2])
            fits = precision <= DECIMAL_DIGITS_MAX and 0 <= scale <= precision
            return f"decimal({precision},{scale})" if fits else "string"
        return _known(source_type)[0]

    def alters(self, column: SourceColumn) -> str:
        """Return the source's type: every other one may print other text."""
        return column.source_type

    def rows(self, cursor: Any) -> Sequence[Sequence[Any]]:
        """Return the rows as the bytes of the server's text; None for NULL."""
        result = cursor.pgresult
        columns = range(result.nfields)
        value = result.get_value
        return [[value(row, column) for column in columns] for row in range(result.ntuples)]

    def converter(self, column: SourceColumn) -> Callable[[bytes], Any]:
        return _converter(column.source_type)

    def instant(self, value: bytes | None) -> datetime | None:
        if value is None:
            return None
        try:
            return datetime.fromisoformat(value.decode())
        except ValueError:
            raise ValueError(f"{value.decode()[:60]} is no time that can be compared") from None

    def bound(self, column: SourceColumn) -> Bound | None:
        """Return the text itself: as a parameter it is of the column's type."""
        return None if column.type == "json" else Bound(bytes.decode, same)

    def key_parameter(self, column: SourceColumn) -> Callable[[str], Any]:
        return _hexadecimal if column.type == "bytes" else same


def _converter(source_type: str) -> Callable[[bytes], Any]:
    if source_type.endswith("[]"):
        element = source_type.removesuffix("[]")
        convert = _converter(element)
        tokens = _TOKENS_OF_BOXES if element == "box" else _TOKENS
        return lambda data: _array(data, convert, tokens)
    return _known(source_type)[1]


def _known(source_type: str) -> tuple[str, Callable[[bytes], Any]]:
    return _POSTGRES_TYPES.get(_MODIFIERS.sub("", source_type), ("string", bytes.decode))


def _boolean(data: bytes) -> bool:
    return data == b"t"


def _integer(data: bytes) -> int | str:
    return whole_number(int(data))


def _float(data: bytes) -> float:
    return finite(float(data))


def _time(data: bytes) -> str:
    """Return a time without a zone as in ISO 8601, with microseconds if it has a fraction."""
    text = data.decode()
    if text[10:11] != " " or text.endswith(" BC"):
        return text
    return f"{text[:10]}T{text[11:]}" if len(text) <= _TO_SECONDS else _padded(text)


def _instant(data: bytes) -> str:
    text = data.decode()
    if text[10:11] != " " or not text.endswith("+00"):
        return text
    text = text[:-3]
    return f"{text[:10]}T{text[11:]}Z" if len(text) <= _TO_SECONDS else f"{_padded(text)}Z"


def _padded(text: str) -> str:
    return f"{text[:10]}T{text[11:]:0<15}"


_TO_SECONDS: Final = len("2026-05-17 08:00:00")


def _bytes(data: bytes) -> str:
    return base64_text(bytes.fromhex(data[2:].decode()))


def _printed_json(data: bytes) -> Any:
    return exact(json.loads(data))


def _hexadecimal(text: str) -> str:
    return f"\\x{bytes_from(text).hex()}"


_POSTGRES_TYPES: Final[Mapping[str, tuple[str, Callable[[bytes], Any]]]] = {
    "boolean": ("boolean", _boolean),
    "smallint": ("integer", int),
    "integer": ("integer", int),
    "bigint": ("integer", _integer),
    "real": ("number", _float),
    "double precision": ("number", _float),
    "date": ("date", bytes.decode),
    "timestamp without time zone": ("timestamp", _time),
    "timestamp with time zone": ("timestamp", _instant),
    "bytea": ("bytes", _bytes),
    "json": ("json", _printed_json),
    "jsonb": ("json", _printed_json),
}
"""Types that are not text, by their names without modifiers."""
_TOKENS: Final = re.compile(r'([{}])|"((?:[^"\\]|\\.)*)"|([^{},"]+)', re.DOTALL)
_TOKENS_OF_BOXES: Final = re.compile(r'([{}])|"((?:[^"\\]|\\.)*)"|([^{};"]+)', re.DOTALL)
"""Braces, quoted elements, others; only boxes are separated by semicolons."""
_ESCAPED: Final = re.compile(r"\\(.)", re.DOTALL)


def _array(data: bytes, convert: Callable[[bytes], Any], tokens: re.Pattern[str]) -> list[Any]:
    """Return an array as nested lists.

    Its text: https://www.postgresql.org/docs/current/arrays.html#ARRAYS-IO. The first elements'
    numbers, if they are not 1, are no part of its values.
    """
    text = data.decode()
    whole: list[Any] = []
    inside = [whole]
    for brace, quoted, plain in tokens.findall(text[text.index("{") :]):
        if brace == "{":
            inside[-1].append([])
            inside.append(inside[-1][-1])
        elif brace:
            inside.pop()
        elif plain:
            inside[-1].append(None if plain == "NULL" else convert(plain.encode()))
        else:
            inside[-1].append(convert(_ESCAPED.sub(r"\1", quoted).encode()))
    array: list[Any] = whole[0]
    return array


# --- the source -----------------------------------------------------------------------------------


_POSTGRES_COLUMNS: Final = f"""
    SELECT c.relname, a.attname, {resolved("a.atttypid", "a.atttypmod")}, a.attnotnull,
           coalesce(array_position(i.indkey::int2[], a.attnum), -1)
    FROM pg_class c
    JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
    LEFT JOIN pg_index i ON i.indrelid = c.oid AND i.indisprimary
    WHERE {{}} ORDER BY c.relname, a.attnum"""  # noqa: S608 - our own SQL
_POSTGRES_ALL: Final = (
    "c.relkind IN ('r', 'p', 'v', 'm', 'f') AND NOT c.relispartition "
    "AND c.relnamespace = current_schema()::regnamespace"
)
_TYPE_NAMES: Final = f"""
    SELECT {resolved("x.type_id", "x.modifier")}
    FROM unnest(%s::oid[], %s::int[]) WITH ORDINALITY AS x(type_id, modifier, place)
    ORDER BY x.place"""  # noqa: S608 - our own SQL


@dataclass(frozen=True)
class PostgresSource:
    """PostgreSQL."""

    settings: PostgresSettings
    hosts: tuple[str, ...] = ()
    """Which hosts that are not public it may be at; see `lakesync.adapters.network`."""
    answer_s: float = ANSWER_S_MAX
    title: str = "PostgreSQL"
    values: Values = field(default_factory=PostgresValues, repr=False)
    zoneless: int = 1114  # timestamp

    @cached_property
    def dialect(self) -> Dialect:
        from psycopg.conninfo import make_conninfo  # noqa: PLC0415 - the driver

        from lakesync.systems.postgres.postgres_dialect import Postgres  # noqa: PLC0415

        settings = self.settings
        return Postgres(
            make_conninfo(
                host=settings.host, port=settings.port, dbname=settings.database,
                user=settings.user, password=settings.password.get_secret_value(),
            ),
            self.hosts, settings.tls, answer_s=self.answer_s,
        )  # fmt: skip

    def connect(self) -> Connection:
        connection = self.dialect.connect()
        cursor = connection.cursor()
        cursor.execute("SET default_transaction_read_only = on")
        cursor.execute(f"SET statement_timeout = {READ_S_MAX * 1000}")
        for name, value in POSTGRES_SETTINGS.items():
            cursor.execute("SELECT set_config(%s, %s, false)", (name, value))
        connection.commit()
        return connection

    def now(self, cursor: Any) -> Any:
        cursor.execute("SELECT clock_timestamp()")
        return cursor.fetchone()[0]

    def described(self, cursor: Any, table: str | None) -> Sequence[SourceTable]:
        if table is None:
            cursor.execute(_POSTGRES_COLUMNS.format(_POSTGRES_ALL))
        else:
            name = bare_table(self.dialect, table)
            cursor.execute(_POSTGRES_COLUMNS.format("c.oid = to_regclass(%s)"), (name,))
        return tables_in_rows(cursor.fetchall(), table, self.values)

    def queried(self, cursor: Any, name: str, query: str) -> tuple[SourceColumn, ...]:
        from psycopg.errors import error_from_result  # noqa: PLC0415 - the driver
        from psycopg.pq import ExecStatus  # noqa: PLC0415

        connection = cursor.connection
        prepared = connection.pgconn.prepare(b"", query.encode(connection.info.encoding))
        if prepared.status != ExecStatus.COMMAND_OK:
            raise query_fault(self.dialect, error_from_result(prepared), name)
        described = connection.pgconn.describe_prepared(b"")
        if described.nparams:
            raise refused_query(name, "it has parameters, which have no values")
        read_query(cursor, self.dialect, name, query, 0)
        result = cursor.pgresult
        places = range(result.nfields)
        names = [result.fname(place).decode() for place in places]
        check_names(name, names)
        kinds = [
            [result.ftype(place) for place in places],
            [result.fmod(place) for place in places],
        ]
        cursor.execute(_TYPE_NAMES, kinds)
        types = [row[0] for row in cursor.fetchall()]
        return tuple(
            SourceColumn(column, self.values.column_type(kind), source_type=kind)
            for column, kind in zip(names, types, strict=True)
        )


def made(settings: PostgresSettings, storage: Storage, hosts: tuple[str, ...]) -> SqlConnector:
    return SqlConnector(PostgresSource(settings, hosts), settings, storage)


# --- actions --------------------------------------------------------------------------------------


class PostgresActionSettings(SqlActionSettings):
    """A PostgreSQL database, 13 or newer."""

    port: int = Field(5432, ge=1, le=65535)


def _postgres(settings: Any, outside: Outside) -> SqlStatements:
    limits = f"SET LOCAL statement_timeout = {WAIT_S_MAX * 1000}"
    source = PostgresSource(settings, outside.databases, answer_s=STATEMENT_S_MAX)
    return SqlStatements(settings, source.dialect, "current_schema()", limits)


POSTGRES: Final = HandlerType(
    "postgres", "Statements in PostgreSQL", PostgresActionSettings, _postgres
)
