"""What can go wrong with a file, translated once, and turned into results.

``CORRUPT`` is distinguished from a bug by a check: after an unexpected exception the file is read
through, and only if it is sound is the exception raised again.
"""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING, Final, Literal, TypeVar

from lakesync import errors
from lakesync.errors import FileCorrupt, LakeSyncError, ValidationFailed
from lakesync.result import Err, Ok, Result

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

_BUSY: Final = "another process holds the database; try again when it is done"
_UNAVAILABLE: Final = {
    sqlite3.SQLITE_BUSY: _BUSY,
    sqlite3.SQLITE_LOCKED: _BUSY,
    sqlite3.SQLITE_FULL: "the disk is full; free some space and try again",
    sqlite3.SQLITE_IOERR: "the disk failed to read or write; check it and try again",
    sqlite3.SQLITE_CANTOPEN: "the database cannot be opened; check that its folder exists and may "
    "be written to",
    sqlite3.SQLITE_READONLY: "the database may not be written to; check its permissions",
    sqlite3.SQLITE_NOMEM: "there is no memory left; try again when there is",
}
_DAMAGED: Final = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_CLOSED: Final = "closed database"  # the module's own words: it has no code for this
SALVAGE: Final = (
    "the client's file is damaged: close the client, call lakesync.client.salvage with the path, "
    "which saves the edits that wait and begins a new file, and open it again"
)
_ENCRYPTED: Final = "this is not a database: if it is encrypted, open it with its key; if not,"
_ONLY: Final = {
    "query": "a query only reads; write by insert, update, delete, execute and transaction()",
    "statement": "execute takes INSERT, UPDATE and DELETE, and makes and drops local tables and "
    "views; synced tables are declared, and query reads",
}
_HINTS: Final = {
    "no such table": "a table is there once it is declared, edited or pulled: declare it first",
    "no such column": "a column is there once it is declared, edited or pulled: declare it first",
    "has no column named": "a column is there once it is declared, edited or pulled: declare it",
    "UNIQUE constraint failed": "the row is there: use UPDATE, or INSERT … ON CONFLICT",
    "._row_id": "each row has a _row_id, chosen by the app: name it",
}
"""What to do, by SQLite's message."""
_QUERY_FAULTS: Final = (sqlite3.Error, sqlite3.Warning, TypeError, ValueError, OverflowError)


def attempt(
    operation: Callable[[], T], is_sound: Callable[[], bool] = lambda: True
) -> Result[T, LakeSyncError]:
    """Return an operation's result, or the error that prevented it; a bug still raises.

    Without ``is_sound``, which reads the file through, damage that SQLite does not notice raises
    too.
    """
    try:
        return Ok(operation())
    except Exception as exc:  # noqa: BLE001 - a bug is raised again
        return Err(caught(exc, is_sound))


def caught(exc: Exception, is_sound: Callable[[], bool]) -> LakeSyncError:
    """Return the error that prevented an operation, for its exception; a bug is raised again."""
    if isinstance(exc, LakeSyncError):
        return exc
    if isinstance(exc, sqlite3.Error):
        return translated(exc)
    if is_sound():
        raise exc
    return _caused(FileCorrupt(f"{SALVAGE} ({exc!r})"), exc)


def translated(exc: sqlite3.Error) -> LakeSyncError:
    """Return our error for an error of SQLite."""
    code = _code(exc)
    error: LakeSyncError
    if code in _UNAVAILABLE:
        error = errors.Unavailable(f"{_UNAVAILABLE[code]}; nothing was written ({exc})")
    elif code == sqlite3.SQLITE_NOTADB:
        error = FileCorrupt(f"{_ENCRYPTED} {SALVAGE} ({exc})")
    elif code in _DAMAGED or "decode to UTF-8" in str(exc):
        error = FileCorrupt(f"{SALVAGE} ({exc})")
    elif code == sqlite3.SQLITE_CONSTRAINT:
        error = ValidationFailed(
            f"a constraint or a trigger of the app's own refuses the row, and nothing was written: "
            f"{exc}; change the row, or drop what refuses it"
        )
    elif _CLOSED in str(exc):
        error = ValidationFailed("the client is closed; open its file again")
    else:
        error = errors.InternalError(
            f"SQLite refuses what the client does, and nothing was written: {exc}; look for a "
            "trigger, an index or a view of the app's own that is broken, or else report it"
        )
    return _caused(error, exc)


def query_result(
    operation: Callable[[], T], what: Literal["query", "statement"] = "query"
) -> Result[T, LakeSyncError]:
    """Return the result of a query or a statement of the app, or why SQLite refuses it."""
    try:
        return Ok(operation())
    except LakeSyncError as error:
        return Err(error)
    except _QUERY_FAULTS as exc:
        code = _code(exc)
        disk = code in _UNAVAILABLE or code in _DAMAGED or _CLOSED in str(exc)
        if disk and isinstance(exc, sqlite3.Error):
            return Err(translated(exc))
        sentence = f"SQLite refuses the {what}: {exc}"
        sentence += next((f"; {hint}" for sign, hint in _HINTS.items() if sign in sentence), "")
        if code == sqlite3.SQLITE_AUTH or "not authorized" in sentence:  # mostly without a code
            sentence = _ONLY[what]
        return Err(_caused(ValidationFailed(sentence, field="sql"), exc))


def _code(exc: BaseException) -> int:
    # The low byte is the primary code, the rest gives details. Errors of the Python module itself
    # carry no code.
    return getattr(exc, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF


def _caused(error: LakeSyncError, exc: BaseException) -> LakeSyncError:
    error.__cause__ = exc
    return error
