"""Python's database interface (PEP 249) on a client: queries, and statements that make edits.

Rules of this module
    1. A connection begins a transaction with its first statement that writes. `Connection.commit`
       makes its edits one transaction, as `Client.transaction` does. Meanwhile other writers wait
       if they are on other threads, and are refused on this thread.
    2. Before its first write a connection reads committed data; after it, its own writes too.
    3. After a statement has failed in a transaction, only `Connection.rollback` ends it.

The exceptions are those of `sqlite3`; the client's own error is the ``__cause__``.
"""

from __future__ import annotations

import contextlib
import re
from itertools import islice
from sqlite3 import (
    DatabaseError,
    DataError,
    Error,
    IntegrityError,
    InterfaceError,
    InternalError,
    NotSupportedError,
    OperationalError,
    ProgrammingError,
    Warning,  # noqa: A004 - the name that PEP 249 asks for
    sqlite_version,
    sqlite_version_info,
)
from typing import TYPE_CHECKING, Any, Final, NoReturn, Self, TypeAlias, TypeVar

from lakesync.client.storage.queries import shape
from lakesync.client.storage.sqlite_file import query_result
from lakesync.client.storage.statement_capture import as_cells as cells_of
from lakesync.errors import LakeSyncError, Unavailable, ValidationFailed
from lakesync.result import Err

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from lakesync.client.client import Client
    from lakesync.client.storage.app_table import Answer
    from lakesync.client.storage.editor import Editor, Transaction
    from lakesync.result import Result

__all__ = [
    "Connection", "Cursor", "DataError", "DatabaseError", "Error", "IntegrityError",
    "InterfaceError", "InternalError", "NotSupportedError", "OperationalError", "ProgrammingError",
    "Warning", "apilevel", "connect", "paramstyle", "sqlite_version", "sqlite_version_info",
    "threadsafety",
]  # fmt: skip

T = TypeVar("T")

apilevel: Final = "2.0"
threadsafety: Final = 1  # threads share the module, and not connections
paramstyle: Final = "qmark"

Parameters: TypeAlias = "Sequence[object] | Mapping[str, object]"

_FIRST_WORD = re.compile(r"(?:\s|--[^\n]*(?:\n|$)|/\*.*?\*/)*([a-zA-Z]*)", re.DOTALL)
_WRITES: Final = {"INSERT", "UPDATE", "DELETE", "REPLACE"}
_REFUSED: Final = {
    **dict.fromkeys(
        ("CREATE", "ALTER", "DROP"),
        "tables are declared: use lakesync.client.orm.declare_tables, or Client.declare",
    ),
    **dict.fromkeys(
        ("SAVEPOINT", "RELEASE"),
        "a transaction of edits has no savepoints: commit, or roll all of it back",
    ),
    **dict.fromkeys(
        ("BEGIN", "COMMIT", "ROLLBACK", "END"),
        "a transaction begins by itself, and ends by the connection's commit() or rollback()",
    ),
}


class _RolledBack(Exception):
    pass


def connect(client: Client) -> Connection:
    """Return a connection to a client's file. The client stays the app's to close."""
    return Connection(client)


class Connection:
    """A connection as PEP 249 describes it, of what `Client.query` gives, or of SQLite's cells."""

    def __init__(self, client: Client, *, as_cells: bool = False) -> None:
        self._client, self._as_cells = client, as_cells
        self._block: AbstractContextManager[Transaction] | None = None
        self._transaction: Transaction | None = None
        self._is_closed = False

    def cursor(self) -> Cursor:
        """Return a cursor."""
        self._must_be_open()
        return Cursor(self)

    def commit(self) -> None:
        """Commit everything written since the last commit; without any writes, nothing happens."""
        self._end(None)

    def rollback(self) -> None:
        """Roll back everything since the last commit."""
        with contextlib.suppress(_RolledBack):
            self._end(_RolledBack())

    def close(self) -> None:
        """Close the connection, rolling back what was not committed; safe to repeat."""
        if not self._is_closed:
            self.rollback()
            self._is_closed = True

    def _end(self, failure: BaseException | None) -> None:
        self._must_be_open()
        block, self._block, self._transaction = self._block, None, None
        if block is not None:
            kind = None if failure is None else type(failure)
            _raised(lambda: block.__exit__(kind, failure, None))

    def _must_be_open(self) -> None:
        if self._is_closed:
            raise ProgrammingError("the connection is closed")

    def read(self, sql: str, parameters: Parameters) -> Answer:
        """Run a query; for cursors."""
        self._must_be_open()
        editor: Editor = self._transaction or self._client

        def answer() -> Answer:  # not `query`: the columns' names are needed even without rows
            given = cells_of(parameters)
            if self._as_cells:
                return editor._read(sql, given)  # noqa: SLF001
            names, rows, kinds = editor._typed(sql, given)  # noqa: SLF001
            return names, shape(tuple)(names, rows, kinds)

        return _value(query_result(answer))

    def write(self, sql: str, parameters: Parameters) -> int:
        """Run a statement that writes; for cursors."""
        self._must_be_open()
        if self._transaction is None:
            block = self._client.transaction()
            self._transaction = _raised(block.__enter__)
            self._block = block
        transaction = self._transaction
        return _value(_raised(lambda: transaction.execute(sql, parameters)))


class Cursor:
    """A cursor as PEP 249 describes it. All rows of a query are read when it runs."""

    arraysize = 1
    lastrowid = None  # ids of rows are the app's

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.description: list[tuple[Any, ...]] | None = None
        self.rowcount = -1
        self._rows: Iterator[tuple[object, ...]] = iter(())

    def execute(self, sql: str, parameters: Parameters = ()) -> Self:
        """Run one statement."""
        match = _FIRST_WORD.match(sql)
        word = match[1].upper() if match else ""
        if word in _REFUSED:
            raise NotSupportedError(_REFUSED[word])
        if word in _WRITES or (word == "WITH" and not self._is_query(sql, parameters)):
            self.rowcount = self.connection.write(sql, parameters)
            self.description, self._rows = None, iter(())
            return self
        names, rows = self.connection.read(sql, parameters)
        self.description = [(name, *[None] * 6) for name in names]
        self.rowcount, self._rows = -1, iter(rows)
        return self

    def _is_query(self, sql: str, parameters: Parameters) -> bool:
        try:
            self.connection.read(f"EXPLAIN {sql}", parameters)
        except ProgrammingError:
            return False
        return True

    def executemany(self, sql: str, parameters: Sequence[Parameters]) -> Self:
        """Run one statement that writes with each of these parameters."""
        count = 0
        for given in parameters:
            self.execute(sql, given)
            count += max(0, self.rowcount)
        self.rowcount = count
        return self

    def fetchone(self) -> tuple[object, ...] | None:
        """Return the next row."""
        return next(self._rows, None)

    def fetchmany(self, size: int | None = None) -> list[tuple[object, ...]]:
        """Return the next rows."""
        return list(islice(self._rows, self.arraysize if size is None else size))

    def fetchall(self) -> list[tuple[object, ...]]:
        """Return all rows that are left."""
        return list(self._rows)

    def __iter__(self) -> Iterator[tuple[object, ...]]:
        return self._rows

    def setinputsizes(self, *_: object) -> None:
        """Do nothing, as PEP 249 allows."""

    setoutputsize = setinputsizes

    def close(self) -> None:
        """Discard the remaining rows."""
        self._rows = iter(())


def _value(result: Result[T, LakeSyncError]) -> T:
    if isinstance(result, Err):
        _fail(result.error)
    return result.value


def _raised(operation: Callable[[], T]) -> T:
    try:
        return operation()
    except LakeSyncError as error:
        _fail(error)
    except RuntimeError as error:  # a transaction stays on its thread
        raise ProgrammingError(str(error)) from error


def _fail(error: LakeSyncError) -> NoReturn:
    kind: type[Error] = DatabaseError
    if isinstance(error, Unavailable):
        kind = OperationalError
    elif isinstance(error.__cause__, IntegrityError | DataError):
        kind = type(error.__cause__)
    elif isinstance(error, ValidationFailed):
        kind = ProgrammingError
    raise kind(str(error)) from error
