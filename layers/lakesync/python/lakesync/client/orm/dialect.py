"""SQLAlchemy's dialect for a client's file: SQLite's, with statements that write as edits."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal

import sqlalchemy
from sqlalchemy.dialects import registry
from sqlalchemy.dialects.sqlite.base import SQLiteCompiler, SQLiteDialect
from sqlalchemy.pool import NullPool

from lakesync.client import dbapi
from lakesync.client.orm.types import STORED_AS

if TYPE_CHECKING:
    from lakesync.client.client import Client

NAME: Final = "lakesync"
_QUOTED: Final = "JSON_QUOTE("


class _Compiler(SQLiteCompiler):
    """SQLite's, with a part of a JSON value as a column of its own would have it."""

    def visit_json_getitem_op_binary(self, binary: Any, *given: Any, **options: Any) -> str:
        """Return the SQL of a part of a value."""
        sql = super().visit_json_getitem_op_binary(binary, *given, **options)  # type: ignore[no-untyped-call]
        return _unquoted(sql)

    def visit_json_path_getitem_op_binary(self, binary: Any, *given: Any, **options: Any) -> str:
        """Return the SQL of a part of a value."""
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
        """Return the interface's module."""
        return dbapi

    def get_isolation_level_values(self, _connection: object) -> list[Any]:
        """Return the one level that there is."""
        return ["SERIALIZABLE"]

    def get_isolation_level(self, _connection: object) -> Literal["SERIALIZABLE"]:
        """Return the one level that there is."""
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
