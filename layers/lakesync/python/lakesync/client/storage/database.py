"""One SQLite file: the connection that writes, the one that only reads, and their locking.

Rules of this module
    1. Everything is written inside `Database.transaction`, by one thread at a time; nothing waits
       for the network while holding the lock. Transactions never join one another.
    2. Data remembered in memory (`Database.on_reload`) is read again whenever it may be stale:
       after a rollback, and when another process wrote to the file. An edit that is refused before
       anything was written leaves it valid.
    3. The app's SQL is prepared under `only_reads`, whichever connection runs it.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar, get_args

from lakesync.client.forked import Refusing, keep, note_forks
from lakesync.client.private_files import made_file
from lakesync.client.storage.connections import opened
from lakesync.client.storage.failures import translated
from lakesync.client.storage.kinds import CommittedKinds
from lakesync.client.storage.log_room import LOG_PAGES_MAX, LogRoom
from lakesync.client.storage.reading import answer_of, only_reads, tables_in
from lakesync.errors import InvalidInput, TransactionOpen, ValidationFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lakesync.client.storage.encryption import Key
    from lakesync.client.storage.kinds import Kinds
    from lakesync.client.storage.reading import Answer

C = TypeVar("C")
T = TypeVar("T")
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
        """Refuse all later calls, and close nothing; see `lakesync.client.forked`."""
        keep(self.writer, self._reader, self._versions, self.execute)
        self.lock = self._reading = Refusing()

    def must_be_idle(self) -> None:
        """Raise `TransactionOpen` if this thread has a transaction open.

        Another task of the thread would deadlock, and uncommitted data must not be sent.
        """
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
        """Have something called behind each commit, while the lock is held."""
        self._commits.append(tell)

    def changed_by_others(self) -> bool:
        """Return whether another connection has written since this was asked last.

        While a thread of this process writes, this is unknown, and is reported the next time.
        """
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
        """Yield the read-only connection, which reads committed data."""
        with self._reading:
            yield self._reader

    def read(self, sql: str, parameters: object = ()) -> Answer:
        """Run one query on committed data."""
        with self._reading:  # not `reading`, which costs half of a small query
            return answer_of(self._reader, sql, self._kinds.compared(sql, parameters))

    def tables_of(self, sql: str, parameters: object = ()) -> frozenset[str] | None:
        """Return the tables that a query reads, in small letters; None if not all are the app's.

        SQLite reports them, including views, without running the query.
        """
        with self._reading:
            return tables_in(self._kinds.reads_of(sql, parameters))

    def kinds(self, names: list[str], sql: str, parameters: object) -> Kinds:
        """Return the types as which the columns of a query's answer are read, by committed data."""
        with self._reading:
            return self._kinds.of(names, sql, parameters)

    def close(self) -> None:
        """Close the file; safe to repeat."""
        if isinstance(self.lock, Refusing):
            return
        with self.lock, self._reading:
            self._reader.close()
            self.writer.close()
