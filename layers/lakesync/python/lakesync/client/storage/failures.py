"""SQLite's exceptions, translated once, and exceptions turned into results."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING, Final, TypeVar

from lakesync.errors import LakeSyncError, Unavailable, ValidationFailed
from lakesync.result import Err, Ok, Result

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

_IN_OPERATION: Final = {
    sqlite3.SQLITE_BUSY: "another process holds the database; try again when it is done",
    sqlite3.SQLITE_LOCKED: "another process holds the database; try again when it is done",
    sqlite3.SQLITE_FULL: "the disk is full; free some space and try again",
    sqlite3.SQLITE_IOERR: "the disk failed to read or write; check it and try again",
    sqlite3.SQLITE_CANTOPEN: "the database cannot be opened; check that its folder exists and may "
    "be written to",
    sqlite3.SQLITE_READONLY: "the database may not be written to; check its permissions",
    sqlite3.SQLITE_NOMEM: "there is no memory left; try again when there is",
}
_NOT_SQL: Final = {sqlite3.SQLITE_ERROR, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_AUTH}


def attempt(operation: Callable[[], T]) -> Result[T, LakeSyncError]:
    """Give what an operation gives, or what kept it from happening; a bug still raises."""
    try:
        return Ok(operation())
    except LakeSyncError as error:
        return Err(error)
    except sqlite3.OperationalError as exc:
        return Err(translated(exc))


def translated(exc: sqlite3.OperationalError) -> LakeSyncError:
    """Give our error for what can happen to a database in operation.

    Raises:
        sqlite3.OperationalError: the same again, if it is a bug.
    """
    sentence = _IN_OPERATION.get(_code(exc))
    if sentence is None:
        raise exc
    error = Unavailable(f"{sentence}; nothing was written ({exc})")
    error.__cause__ = exc
    return error


def of_query(exc: sqlite3.Error) -> LakeSyncError:
    """Give our error for a query of the app that SQLite refuses.

    Raises:
        sqlite3.Error: the same again, if it is neither the query's fault nor the disk's.
    """
    if isinstance(exc, sqlite3.OperationalError) and _code(exc) not in _NOT_SQL:
        return translated(exc)
    if isinstance(exc, sqlite3.OperationalError | sqlite3.ProgrammingError | sqlite3.DataError):
        error = ValidationFailed(f"SQLite refuses the query: {exc}", field="sql")
        error.__cause__ = exc
        return error
    raise exc


def _code(exc: sqlite3.Error) -> int:
    # The low byte is the primary code, the rest says where exactly it went wrong. Errors of the
    # Python module itself carry none.
    return getattr(exc, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
