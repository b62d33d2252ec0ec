"""SQLAlchemy on a client's file: what a session commits is a transaction of edits.

::

    engine = lakesync.client.orm.engine(client)
    declare_tables(client, Base.metadata).unwrap()
    with Session(engine) as session:
        session.add(Todo(id="t1", title="Buy milk"))
        session.commit()

It needs SQLAlchemy. It is built on `lakesync.client.dbapi`: PEP 249, for any other tool.

Types are stored as a synced table's values are, so that others read them. What SQLite itself stores
differently is here: instants in ISO 8601 with a ``T``, decimals as exact text, bytes in base64,
JSON as `lakesync.client.storage.cell_values` has it.
"""

from __future__ import annotations

import base64
from datetime import datetime
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal

import sqlalchemy
from sqlalchemy import cast, func, type_coerce, types
from sqlalchemy.dialects import registry
from sqlalchemy.dialects.sqlite import base
from sqlalchemy.dialects.sqlite.base import SQLiteCompiler, SQLiteDialect
from sqlalchemy.pool import NullPool
from sqlalchemy.sql.operators import json_getitem_op, json_path_getitem_op

from lakesync.client import dbapi
from lakesync.client.storage.app_table import ROW_ID
from lakesync.client.storage.cell_values import reader
from lakesync.client.storage.statement_capture import AsJson
from lakesync.errors import ValidationFailed
from lakesync.result import Err, Ok, Result

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sqlalchemy import MetaData, Table
    from sqlalchemy.types import TypeEngine

    from lakesync.client.client import Client
    from lakesync.errors import LakeSyncError

__all__ = ["declare_tables", "engine"]


# --- types ----------------------------------------------------------------------------------------


_PARTS: Final = (json_getitem_op, json_path_getitem_op)


def _both(
    write: Callable[[Any], Any], read: Callable[[Any], Any]
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return the two processors of a type; None stays None."""

    def bind(_self: object, _dialect: object) -> Callable[[Any], Any]:
        return lambda value: None if value is None else write(value)

    def result(_self: object, _dialect: object, _type: object) -> Callable[[Any], Any]:
        return lambda value: None if value is None else read(value)

    return bind, result


def _read_json(cell: Any) -> Any:
    """Return a JSON value; of a part of one, SQLite gives its JSON text as bytes."""
    return reader("json")(cell)


class Instant(types.DateTime):
    """A ``timestamp`` column."""

    bind_processor, result_processor = _both(datetime.isoformat, datetime.fromisoformat)


class Exact(types.Numeric[Any]):
    """A ``decimal(p,s)`` column."""

    def bind_processor(self, _dialect: object) -> Callable[[Any], Any]:
        return lambda value: None if value is None else Decimal(str(value))

    def result_processor(self, _dialect: object, _type: object) -> Callable[[Any], Any]:
        made: Callable[[str], Any] = Decimal if self.asdecimal else float
        return lambda cell: None if cell is None else made(str(cell))


class Number(types.Float[Any]):
    """A ``number`` column."""

    bind_processor, result_processor = _both(float, float)


class Whole(types.Integer):
    """An ``integer`` column."""

    bind_processor, result_processor = _both(int, int)


class Base64(types.LargeBinary):
    """A ``bytes`` column."""

    bind_processor, result_processor = _both(
        lambda value: base64.b64encode(value).decode(), base64.b64decode
    )


class Json(types.JSON):
    """A ``json`` column."""

    bind_processor, result_processor = _both(AsJson, _read_json)

    def column_expression(self, colexpr: Any) -> Any:
        """Have a part of a value read as its JSON text, which says whether it is text itself."""
        is_part = getattr(colexpr, "operator", None) in _PARTS
        if not is_part:
            return colexpr
        return type_coerce(cast(func.json_quote(colexpr), types.BLOB), types.JSON())


STORED_AS: Final[dict[type[TypeEngine[Any]], type[TypeEngine[Any]]]] = {
    **base.colspecs,
    types.DateTime: Instant,
    types.Float: Number,
    types.Numeric: Exact,
    types.Integer: Whole,
    types.LargeBinary: Base64,
    types.JSON: Json,
}
"""By SQLAlchemy's type, the one that stores it here."""


def column_type(kind: TypeEngine[Any]) -> str:
    """Return the type of a synced table's column for one of SQLAlchemy's."""
    for sort, name in _NAMES:
        if isinstance(kind, sort):
            return str(name(kind) if callable(name) else name)
    return "string"


def _decimal(kind: Any) -> str:
    return f"decimal({kind.precision or 38},{kind.scale if kind.scale is not None else 10})"


_NAMES: Final[tuple[tuple[type[TypeEngine[Any]], Any], ...]] = (
    (types.Boolean, "boolean"),
    (types.Enum, "string"),
    (types.Float, "number"),
    (types.Numeric, _decimal),
    (types.Integer, "integer"),
    (types.DateTime, "timestamp"),
    (types.Date, "date"),
    (types.LargeBinary, "bytes"),
    (types.JSON, "json"),
)


# --- tables ---------------------------------------------------------------------------------------


_KEY: Final = f'mapped_column("{ROW_ID}", String, primary_key=True, default=…)'


def declare_tables(
    client: Client, metadata: MetaData, tables: Sequence[Table] | None = None
) -> Result[None, LakeSyncError]:
    """Declare each table of the metadata, or these, with its columns and indexes. Safe to repeat.

    It replaces the ``metadata.create_all`` of other databases. Each table has one column as its
    primary key: ``_row_id``, a text that the app chooses, the same on no two devices.
    ``VALIDATION_ERROR`` for a table without it, before any is declared. Foreign keys and unique
    constraints are not enforced: rows arrive from others in any order.
    """
    chosen = metadata.sorted_tables if tables is None else tables
    for table in chosen:
        refused = _refused(table)
        if refused:
            return Err(ValidationFailed(f"table {table.name}: {refused}", field="metadata"))
    for table in chosen:
        columns = {c.name: column_type(c.type) for c in table.columns if c.name != ROW_ID}
        indexes = [[column.name for column in index.columns] for index in table.indexes]
        declared = client.declare(table.name, columns, indexes=indexes)
        if isinstance(declared, Err):
            return declared
    return Ok(None)


def _refused(table: Table) -> str:
    if table.schema:
        return "a client's file has no schemas; leave `schema` out"
    keys = list(table.primary_key.columns)
    if [column.name for column in keys] != [ROW_ID]:
        return f"its primary key must be the one column {ROW_ID}: {_KEY}"
    if not isinstance(keys[0].type, types.String | types.Uuid):
        return f"{ROW_ID} is text, not {keys[0].type}: {_KEY}"
    return ""


# --- the dialect ----------------------------------------------------------------------------------


NAME: Final = "lakesync"
_QUOTED: Final = "JSON_QUOTE("


class _Compiler(SQLiteCompiler):
    """SQLite's, with a part of a JSON value as a column of its own would have it."""

    def visit_json_getitem_op_binary(self, binary: Any, *given: Any, **options: Any) -> str:
        sql = super().visit_json_getitem_op_binary(binary, *given, **options)  # type: ignore[no-untyped-call]
        return _unquoted(sql)

    def visit_json_path_getitem_op_binary(self, binary: Any, *given: Any, **options: Any) -> str:
        sql = super().visit_json_path_getitem_op_binary(binary, *given, **options)  # type: ignore[no-untyped-call]
        return _unquoted(sql)


def _unquoted(sql: str) -> str:
    return sql[len(_QUOTED) : -1] if sql.startswith(_QUOTED) else sql


class LakeSyncDialect(SQLiteDialect):
    """SQLite's dialect over `lakesync.client.dbapi`."""

    driver = "client"
    supports_statement_cache = True
    colspecs = STORED_AS
    statement_compiler = _Compiler
    # A writing statement makes edits, and returns no rows: ids are the app's own.
    insert_returning = False
    update_returning = False
    delete_returning = False
    use_insertmanyvalues = False

    @classmethod
    def import_dbapi(cls) -> Any:
        return dbapi

    def get_isolation_level_values(self, _connection: object) -> list[Any]:
        return ["SERIALIZABLE"]

    def get_isolation_level(self, _connection: object) -> Literal["SERIALIZABLE"]:
        return "SERIALIZABLE"

    def set_isolation_level(self, _connection: object, _level: object) -> None:
        """Do nothing: there is one level, and SQLAlchemy has checked that it is this one."""


registry.register(NAME, __name__, LakeSyncDialect.__name__)


def engine(client: Client, **options: Any) -> sqlalchemy.Engine:
    """Return an engine on a client's file; ``options`` are those of `sqlalchemy.create_engine`.

    A session belongs to one thread. From its first write until it commits or rolls back, other
    writers and syncs wait on other threads, and are refused on its own. Disposing of the engine is
    optional; the app closes the client.
    """
    options.setdefault("poolclass", NullPool)  # a connection costs nothing
    creator = partial(dbapi.Connection, client, as_cells=True)
    return sqlalchemy.create_engine(f"{NAME}://", creator=creator, **options)
