"""One SQLite file: the connection that writes, the one that only reads, and whose turn it is.

Rules of this module
    1. Everything is written inside `Database.transaction`, by one thread at a time; nothing waits
       for the network while it holds the lock. Transactions never join one another.
    2. What is remembered in memory (`Database.on_reload`) is read again whenever it may be wrong:
       after a rollback, and when another process wrote to the file.
    3. The app's SQL is prepared under `only_reads`, whichever connection runs it.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, NoReturn, TypeAlias, get_args

from lakesync.client.storage.cells import COLLATION, compare
from lakesync.client.storage.failures import translated
from lakesync.client.storage.queries import BOOLEANS, answer_of, boolean_names, only_reads
from lakesync.errors import TransactionOpen, ValidationFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lakesync.client.storage.queries import Answer

Durability: TypeAlias = Literal["FULL", "NORMAL"]
BUSY_TIMEOUT_S: Final = 10.0
"""How long to wait for another process that is writing to the same file."""
_STATEMENTS_CACHED: Final = 512
_CHECKPOINT_PAGES: Final = 4_000
"""16 MB of log before SQLite folds it into the file: four times rarer than its default, since each
edit of a few hundred bytes writes three or four pages."""


class Database:
    """A file, open for one client. Safe to use from several threads."""

    def __init__(
        self,
        path: str | Path,
        durability: Durability = "FULL",
        connection_class: type[sqlite3.Connection] = sqlite3.Connection,
    ) -> None:
        if durability not in get_args(Durability):
            names = " or ".join(get_args(Durability))
            raise ValidationFailed(f"durability is {names}, not {durability!r}", field="durability")
        self.lock = threading.RLock()
        self._reading = threading.Lock()
        self._reloads: list[Callable[[], None]] = []
        self._version: int | None = None
        self._names_version: int | None = None
        self._boolean_names: frozenset[str] = frozenset()
        self._was_full = False
        self._in_use = False
        self.writer = self._connect(str(path), connection_class)
        try:
            self.writer.execute("PRAGMA journal_mode = WAL").close()
            self.writer.execute(f"PRAGMA synchronous = {durability}")
            self.writer.execute(f"PRAGMA wal_autocheckpoint = {_CHECKPOINT_PAGES}").close()
            uri = f"{Path(path).absolute().as_uri()}?mode=ro"
            self._reader = self._connect(uri, sqlite3.Connection)
            self._reader.set_authorizer(only_reads)
        except BaseException:
            self.writer.close()
            raise

    @staticmethod
    def _connect(target: str, connection_class: type[sqlite3.Connection]) -> sqlite3.Connection:
        connection = sqlite3.connect(
            target,
            timeout=BUSY_TIMEOUT_S,
            isolation_level=None,
            check_same_thread=False,
            factory=connection_class,
            cached_statements=_STATEMENTS_CACHED,
            uri=target.startswith("file:"),
        )
        connection.create_collation(COLLATION, compare)
        return connection

    def must_be_idle(self) -> None:
        """Raise `TransactionOpen` if this thread has a transaction open.

        Whoever asks may be another task of the thread, so waiting would be for ever; and what is
        not committed yet must not leave.
        """
        if self.lock.acquire(blocking=False):
            try:
                self._check_unused()
            finally:
                self.lock.release()

    def on_reload(self, reload: Callable[[], None]) -> None:
        """Have something read again when what is in memory may differ from the file."""
        self._reloads.append(reload)

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
            self.begin()
            try:
                yield self.writer
            except BaseException as failure:
                self.undo(failure)
                raise
            self.commit()

    def begin(self) -> None:
        """Begin what `transaction` does; the caller holds the lock, and will `commit` or `undo`."""
        self._check_unused()
        try:
            self._begin()
        except BaseException as failure:  # noqa: BLE001 - raised again
            self._fail(failure)
        self._in_use = True

    def commit(self) -> None:
        """Make the transaction durable; it is undone if that fails."""
        try:
            self.writer.execute("COMMIT")
        except BaseException as failure:  # noqa: BLE001 - raised again
            self._fail(failure)
        self._in_use = False

    def _fail(self, failure: BaseException) -> NoReturn:
        self.undo(failure)
        if isinstance(failure, sqlite3.Error):
            raise translated(failure) from failure
        raise failure

    def undo(self, failure: BaseException) -> None:
        """Undo the transaction, because of a failure."""
        code = getattr(failure.__cause__ or failure, "sqlite_errorcode", 0) & 0xFF
        self._was_full |= code == sqlite3.SQLITE_FULL
        self._in_use = False
        self._rollback()

    def _begin(self) -> None:
        if self.writer.in_transaction:
            self._rollback()  # that could not be undone when it failed
        if self._was_full:
            # The log holds many versions of a page; it would soon take again all that was freed.
            with contextlib.suppress(sqlite3.OperationalError):
                self.writer.execute("PRAGMA wal_checkpoint").close()
                self._was_full = False
        self.writer.execute("BEGIN IMMEDIATE")
        # Changes when, and only when, another connection wrote to the file.
        version: int = self.writer.execute("PRAGMA data_version").fetchone()[0]
        if version != self._version:
            for reload in self._reloads:
                reload()
            self._version = version

    def _rollback(self) -> None:
        self._version = None
        with contextlib.suppress(sqlite3.ProgrammingError):  # closed, which undoes it
            if self.writer.in_transaction:
                self.writer.execute("ROLLBACK")

    @contextlib.contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Give the connection that reads what is committed, and cannot write."""
        with self._reading:
            yield self._reader

    def read(self, sql: str, parameters: object = ()) -> Answer:
        """Run one query of what is committed."""
        with self._reading:  # not `reading`, which costs half of a small query
            return answer_of(self._reader, sql, parameters)

    def boolean_names(self) -> frozenset[str]:
        """Give the columns that have held nothing but booleans, as far as it is committed.

        Their names are in small letters. They are read again only when something was written.
        """
        with self._reading:
            version: int = self._reader.execute("PRAGMA data_version").fetchone()[0]
            if version != self._names_version:
                self._boolean_names = boolean_names(answer_of(self._reader, BOOLEANS))
                self._names_version = version
            return self._boolean_names

    def read_own(self, sql: str, parameters: object) -> Answer:
        """Run one query inside the caller's transaction, which sees what that wrote."""
        self.writer.set_authorizer(only_reads)
        try:
            return answer_of(self.writer, sql, parameters)
        finally:
            self.writer.set_authorizer(None)

    def close(self) -> None:
        """Close the file; safe to repeat."""
        with self.lock, self._reading:
            self._reader.close()
            self.writer.close()


def open_database(
    path: str | Path, durability: Durability, connection_class: type[sqlite3.Connection]
) -> Database:
    """Open a file; raises our errors if it cannot be opened, or is no database."""
    try:
        return Database(path, durability, connection_class)
    except sqlite3.Error as exc:
        raise translated(exc) from exc
    except ValueError as exc:  # a null character, half of a surrogate pair
        raise ValidationFailed(f"{str(path)!r} is no path: {exc}") from exc
