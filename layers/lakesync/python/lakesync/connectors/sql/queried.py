"""Asks the database what a query is that is read in a table's place: its columns, or its fault.

The database itself says whether the text is one statement, by preparing it without anything around
it, and whether it can be read as a table. Nothing is run but that, in a session that cannot write.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from lakesync.connectors.port import SourceColumn
from lakesync.connectors.sql.names import derived_table
from lakesync.connectors.sql.postgres_values import resolved
from lakesync.errors import AdapterRefused, AdapterTimedOut, AdapterUnreachable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lakesync.adapters.sql.dialect import Dialect
    from lakesync.connectors.sql.values import Values

_TYPE_NAMES: Final = f"""
    SELECT {resolved("x.type_id", "x.modifier")}
    FROM unnest(%s::oid[], %s::int[]) WITH ORDINALITY AS x(type_id, modifier, place)
    ORDER BY x.place"""  # noqa: S608 - our own SQL
_BINARY: Final = 63
"""MySQL's number of the character set of bytes."""
_UNSIGNED: Final = 32
_ENUM: Final = 256
_SET: Final = 2048
_MYSQL_NUMBERS: Final = {1: "tinyint", 2: "smallint", 3: "int", 8: "bigint", 9: "mediumint"}
_MYSQL_TYPES: Final = {
    4: "float", 5: "double", 7: "timestamp", 10: "date", 11: "time", 12: "datetime", 13: "year",
    14: "date", 245: "json", 255: "geometry",
}  # fmt: skip
"""Types of MySQL's protocol, as its catalogue spells them."""


def refused_query(name: str, message: str) -> AdapterRefused:
    """Return the error of a query that cannot be read."""
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


def postgres_columns(
    cursor: Any, dialect: Dialect, values: Values, name: str, query: str
) -> tuple[SourceColumn, ...]:
    """Return the columns of a query of PostgreSQL.

    Raises:
        AdapterRefused: it is not one SELECT, or has two columns of one name.
    """
    from psycopg.errors import error_from_result  # noqa: PLC0415 - the driver
    from psycopg.pq import ExecStatus  # noqa: PLC0415

    connection = cursor.connection
    prepared = connection.pgconn.prepare(b"", query.encode(connection.info.encoding))
    if prepared.status != ExecStatus.COMMAND_OK:
        raise _translated(dialect, error_from_result(prepared), name)
    described = connection.pgconn.describe_prepared(b"")
    if described.nparams:
        raise refused_query(name, "it has parameters, which have no values")
    _read(cursor, dialect, name, query, 0)
    result = cursor.pgresult
    places = range(result.nfields)
    names = [result.fname(place).decode() for place in places]
    check_names(name, names)
    kinds = [[result.ftype(place) for place in places], [result.fmod(place) for place in places]]
    cursor.execute(_TYPE_NAMES, kinds)
    types = [row[0] for row in cursor.fetchall()]
    return tuple(
        SourceColumn(column, values.column_type(kind), source_type=kind)
        for column, kind in zip(names, types, strict=True)
    )


def mysql_columns(
    cursor: Any, dialect: Dialect, values: Values, name: str, query: str
) -> tuple[SourceColumn, ...]:
    """Return the columns of a query of MySQL or MariaDB.

    Raises:
        AdapterRefused: it is not one SELECT, or has two columns of one name.
    """
    try:
        cursor.execute("PREPARE lakesync_query FROM %s", (query,))
        cursor.execute("DEALLOCATE PREPARE lakesync_query")
    except Exception as exc:
        raise _translated(dialect, exc, name) from exc
    _read(cursor, dialect, name, query, 0)
    fields = cursor._result.fields  # noqa: SLF001 - the driver shows flags nowhere else
    check_names(name, [field.name for field in fields])
    kinds = [mysql_type(field) for field in fields]
    return tuple(
        SourceColumn(field.name, values.column_type(kind), source_type=kind)
        for field, kind in zip(fields, kinds, strict=True)
    )


def check_reads(cursor: Any, dialect: Dialect, name: str, query: str) -> None:
    """Read one row of a query: a function that writes is refused as the session is read-only.

    Raises:
        AdapterRefused: it cannot be read.
    """
    _read(cursor, dialect, name, query, 1)
    cursor.fetchall()


def mysql_type(field: Any) -> str:
    """Return the type of a column of a result, as MySQL's catalogue spells it.

    Members of ENUM and SET are not told, so rows are not read in their order.
    """
    number, flags = field.type_code, field.flags
    unsigned = " unsigned" if flags & _UNSIGNED else ""
    if flags & (_ENUM | _SET):
        return "enum" if flags & _ENUM else "set"
    if number in _MYSQL_NUMBERS:
        length = "(1)" if number == 1 and field.length == 1 else ""
        return f"{_MYSQL_NUMBERS[number]}{length}{unsigned}"
    if number in {0, 246}:
        signs = (1 if field.scale else 0) + (0 if unsigned else 1)
        return f"decimal({field.length - signs},{field.scale}){unsigned}"
    if number == 16:  # noqa: PLR2004 - of the protocol
        return f"bit({field.length})"
    if number in _MYSQL_TYPES:
        return _MYSQL_TYPES[number]
    return "varbinary" if field.charsetnr == _BINARY else "varchar"


def _read(cursor: Any, dialect: Dialect, name: str, query: str, rows_max: int) -> None:
    """Read the query as a table, as the polls' statements do."""
    try:
        cursor.execute(f"SELECT * FROM {derived_table(query)} LIMIT {rows_max:d}", ())  # noqa: S608 - checked
    except Exception as exc:
        raise _translated(dialect, exc, name) from exc


def _translated(dialect: Dialect, error: Exception, name: str) -> Exception:
    """Return the refusal of a query; other errors, as of a lost connection, as they are."""
    translated = dialect.translate(error)
    if translated is None or type(translated) in {AdapterUnreachable, AdapterTimedOut}:
        return translated or error
    return refused_query(name, str(error.args[-1] if error.args else error))
