"""One SQLite file: its connections, one that writes and one that only reads, and their locking.

Rules of this module
    1. Everything is written inside `Database.transaction`, by one thread at a time; nothing waits
       for the network while holding the lock. Transactions never join one another.
    2. Data remembered in memory (`Database.on_reload`) is read again whenever it may be stale:
       after a rollback, and when another process wrote to the file. An edit that is refused before
       anything was written leaves it valid.
    3. The app's SQL is prepared under `only_reads`, whichever connection runs it.
    4. What can go wrong with a file is translated once, here. ``CORRUPT`` is distinguished from a
       bug by a check: after an unexpected exception the file is read through, and only if it is
       sound is the exception raised again.

SQLite's write-ahead log is preallocated (`LogRoom`), so that commits overwrite blocks instead of
growing it. While that file grows, each sync to disk also makes the file system record the new
length, which doubles its cost. SQLite starts its log at the front again after each checkpoint, and
never shortens it while the file is open. So a process that edits often extends it once, by a
transaction that is too large for memory and is rolled back.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeAlias, TypeVar, get_args

from lakesync import errors
from lakesync.client.storage.app_table import COLLATION, answer_of, compare, only_reads, tables_in
from lakesync.client.storage.misuse import Refusing, keep, note_forks
from lakesync.client.storage.private_files import made_file
from lakesync.client.storage.queries import CommittedKinds
from lakesync.errors import (
    FileCorrupt,
    InvalidInput,
    LakeSyncError,
    TransactionOpen,
    ValidationFailed,
)
from lakesync.result import Err, Ok, Result

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lakesync.client.storage.app_table import Answer
    from lakesync.client.storage.private_files import Key
    from lakesync.client.storage.queries import TypedAnswer

# --- failures -------------------------------------------------------------------------------------


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


class Attempt(Protocol):
    """`attempt`, with what tells whether the file is sound."""

    def __call__(self, operation: Callable[[], T]) -> Result[T, LakeSyncError]: ...


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


# --- connections ----------------------------------------------------------------------------------


BUSY_TIMEOUT_S: Final = 10.0
"""How long to wait for another process that is writing to the same file."""
_STATEMENTS_CACHED: Final = 512


def opened(
    connect: Callable[..., sqlite3.Connection],
    target: str,
    connection_class: type[sqlite3.Connection] = sqlite3.Connection,
) -> sqlite3.Connection:
    """Return a connection to a path or a URI; ``connect`` is SQLite's own, or knows the key."""
    connection = connect(
        target, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False,
        factory=connection_class, cached_statements=_STATEMENTS_CACHED,
        uri=target.startswith("file:"),
    )  # fmt: skip
    connection.create_collation(COLLATION, compare)
    return connection


# --- room in the log ------------------------------------------------------------------------------


LOG_PAGES_MAX: Final = 1_000
"""The log's length before SQLite checkpoints it into the file: 4 MB, some hundreds of edits."""
COMMITS_BEFORE: Final = 32
"""Commits of one process before it makes room: one that edits rarely writes nothing for this."""
_CACHE_PAGES: Final = 16
"""A transaction with more pages than these goes to the log before it ends."""


class LogRoom:
    """The log of one writing connection. Used only while holding the database's lock."""

    def __init__(self, connection: sqlite3.Connection, path: str | Path) -> None:
        self._connection = connection
        self._log = Path(f"{path}-wal")
        self._commits = 0

    def on_begin(self) -> bool:
        """Count a transaction that is about to begin; makes room before the 32nd, then True."""
        self._commits += 1
        if self._commits < COMMITS_BEFORE:
            return False
        # Without room everything works as it does with it.
        with contextlib.suppress(sqlite3.Error, OSError):
            self._make()
        return True

    def _make(self) -> None:
        execute = self._connection.execute
        ((page_bytes,),) = execute("PRAGMA page_size").fetchall()
        room = LOG_PAGES_MAX * page_bytes - self._log.stat().st_size
        if room <= 0:
            return
        ((cache,),) = execute("PRAGMA cache_size").fetchall()
        execute("BEGIN IMMEDIATE")
        try:
            execute(f"PRAGMA cache_size = {_CACHE_PAGES}")
            execute("UPDATE _lakesync_sync SET snapshot = zeroblob(?)", (room,))
        finally:
            if self._connection.in_transaction:  # a full disk has ended it
                execute("ROLLBACK")
            execute(f"PRAGMA cache_size = {cache}")


# --- the database ---------------------------------------------------------------------------------


C = TypeVar("C")
Durability: TypeAlias = Literal["FULL", "NORMAL"]


class Database:
    """A file, open for one client. Safe to use from several threads."""

    def __init__(
        self,
        path: str | Path,
        durability: Durability = "FULL",
        connection_class: type[sqlite3.Connection] = sqlite3.Connection,
        key: Key | None = None,
    ) -> None:
        connect = key.connect if key else sqlite3.connect
        if durability not in get_args(Durability):
            names = " or ".join(get_args(Durability))
            raise ValidationFailed(f"durability is {names}, not {durability!r}", field="durability")
        self.lock: Any = threading.RLock()
        self._reading: Any = threading.Lock()
        self._reloads: list[Callable[[], None]] = []
        self._begins: list[Callable[[], None]] = []
        self._commits: list[Callable[[], None]] = []
        self._version: int | None = None
        self._version_seen: int | None = None
        self._was_full = self._in_use = False
        with made_file(path):
            self.writer = opened(connect, str(path), connection_class)
        self._versions = self.writer.cursor()
        self.execute = self.writer.cursor().execute
        """Runs a single edit's statement, all on one cursor: read its rows before the next one."""
        self._room = LogRoom(self.writer, path) if durability == "FULL" else None
        try:
            self.writer.execute("PRAGMA journal_mode = WAL").close()
            self.writer.execute(f"PRAGMA synchronous = {durability}")
            self.writer.execute(f"PRAGMA wal_autocheckpoint = {LOG_PAGES_MAX}").close()
            uri = f"{Path(path).absolute().as_uri()}?mode=ro"
            self._reader = opened(connect, uri)
            self._reader.set_authorizer(only_reads)
            self._kinds = CommittedKinds(self._reader)
        except BaseException:
            self.writer.close()
            raise
        note_forks(self)

    def forked(self) -> None:
        keep(self.writer, self._reader, self._versions, self.execute)
        self.lock = self._reading = Refusing()

    def must_be_idle(self) -> None:
        """Refuse while this thread has a transaction open: its data is uncommitted."""
        if self.lock.acquire(blocking=False):
            try:
                self._check_unused()
            finally:
                self.lock.release()

    def on_reload(self, reload: Callable[[], None]) -> None:
        """Register a function that is called when the state in memory may differ from the file."""
        self._reloads.append(reload)

    def on_begin(self, prepare: Callable[[], None]) -> None:
        """Have something called first in each transaction, but not in `write`."""
        self._begins.append(prepare)

    def on_commit(self, tell: Callable[[], None]) -> None:
        self._commits.append(tell)

    def changed_by_others(self) -> bool:
        """Return whether another connection wrote since this was last asked, or later."""
        if not self.lock.acquire(blocking=False):
            return False
        try:
            version = None if self._in_use else self._data_version()
            changed = version not in {None, self._version_seen}
            self._version_seen = version or self._version_seen
        except sqlite3.Error:  # closed, or the disk fails: the next read reports it
            return False
        else:
            return changed
        finally:
            self.lock.release()

    def _data_version(self) -> int:
        """Return a number that changes if, and only if, another connection wrote to the file."""
        version: int = self._versions.execute("PRAGMA data_version").fetchone()[0]
        return version

    def _check_unused(self) -> None:
        if self._in_use:
            raise TransactionOpen(
                "a transaction is open on this thread: edit through what `client.transaction()` "
                "gave, or once that has ended; nothing was written"
            )

    @contextlib.contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Write all of the block or nothing; other threads wait."""
        with self.lock:
            self._check_unused()
            try:
                self._begin()
                for prepare in self._begins:
                    prepare()
                yield self.writer
                self._commit()
            except BaseException as failure:
                self._fail(failure)
                raise

    def write(self, check: Callable[..., C], edit: Callable[[Any, C], T], *of: Any) -> T:
        """Run ``edit(of[0], check(*of))``, one edit; a generator would double its overhead."""
        with self.lock:
            if self._in_use:
                self._check_unused()
            changes = -1
            try:
                self._begin()
                changes = self.writer.total_changes
                checked = check(*of)
                changes = -1
                written = edit(of[0], checked)
                self._commit()
            except BaseException as failure:
                version, is_refused = self._version, isinstance(failure, InvalidInput)
                is_as_it_was = is_refused and self.writer.total_changes == changes
                self._fail(failure)
                self._version = version if is_as_it_was else None
                raise
            return written

    def _commit(self) -> None:
        self._in_use = False
        self.execute("COMMIT")
        for tell in self._commits:
            tell()

    def _fail(self, failure: BaseException) -> None:
        """Undo a transaction's writes; raises our error if SQLite cannot begin or end it."""
        was_in_block, self._in_use = self._in_use, False
        code = getattr(failure.__cause__ or failure, "sqlite_errorcode", 0) & 0xFF
        self._was_full |= code == sqlite3.SQLITE_FULL
        self._rollback()
        if isinstance(failure, sqlite3.Error) and not was_in_block:
            raise translated(failure) from failure

    def _begin(self) -> None:
        if self.writer.in_transaction:
            self._rollback()  # that could not be undone when it failed
        if self._was_full:
            # The log holds many versions of a page; it would soon take again all that was freed.
            with contextlib.suppress(sqlite3.OperationalError):
                self.writer.execute("PRAGMA wal_checkpoint").close()
                self._was_full = False
        if self._room is not None and self._room.on_begin():
            self._room = None
        self.execute("BEGIN IMMEDIATE")
        ((version,),) = self._versions.execute("PRAGMA data_version")
        if version != self._version:
            for reload in self._reloads:
                reload()
            self._version = version
        self._in_use = True

    def _rollback(self) -> None:
        self._version = None
        with contextlib.suppress(sqlite3.ProgrammingError):  # closed, which undoes it
            if self.writer.in_transaction:
                self.writer.execute("ROLLBACK")

    @contextlib.contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        with self._reading:
            yield self._reader

    def read(self, sql: str, parameters: object = ()) -> Answer:
        with self._reading:  # not `reading`, which costs half of a small query
            return answer_of(self._reader, sql, self._kinds.compared(sql, parameters))

    def tables_of(self, sql: str, parameters: object = ()) -> frozenset[str] | None:
        """Return the tables that a query reads, in small letters; None if not all are the app's."""
        with self._reading:
            return tables_in(self._kinds.reads_of(sql, parameters))

    def typed(self, sql: str, parameters: object = ()) -> TypedAnswer:
        """Run one query on committed data; returns also as which types its columns are read.

        Both are of one moment: a commit between them may change how a column's cells are read.
        """
        with self._reading:
            answer = self._kinds.answered(sql, parameters)
            if answer is None:
                with self._snapshot():
                    answer = self._kinds.answered(sql, parameters)
        assert answer is not None  # noqa: S101 - a snapshot has one version
        return answer

    @contextlib.contextmanager
    def _snapshot(self) -> Iterator[None]:
        """Let the reading connection see one moment; it may begin nothing for an app's query."""
        self._reader.set_authorizer(None)
        self._reader.execute("BEGIN")
        try:
            self._reader.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchall()
            self._reader.set_authorizer(only_reads)
            yield
        finally:
            self._reader.set_authorizer(None)
            self._reader.execute("ROLLBACK")
            self._reader.set_authorizer(only_reads)

    def close(self) -> None:
        """Close the file; safe to repeat."""
        if isinstance(self.lock, Refusing):
            return
        with self.lock, self._reading:
            self._reader.close()
            self.writer.close()
