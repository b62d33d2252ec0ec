"""One SQLite file: the connection that writes, the one that only reads, and whose turn it is.

Rules of this module
    1. Everything is written inside `Database.transaction`, by one thread at a time; nothing waits
       for the network while it holds the lock.
    2. What is remembered in memory (`Database.on_reload`) is read again whenever it may be wrong:
       after a rollback, and when another process wrote to the file.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

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
        self.lock = threading.RLock()
        self._reading = threading.Lock()
        self._reloads: list[Callable[[], None]] = []
        self._seen: int | None = None
        self.writer = self._connect(str(path), connection_class)
        try:
            self.writer.execute("PRAGMA journal_mode = WAL").close()
            self.writer.execute(f"PRAGMA synchronous = {durability}")
            self.writer.execute(f"PRAGMA wal_autocheckpoint = {_CHECKPOINT_PAGES}").close()
            uri = f"{Path(path).absolute().as_uri()}?mode=ro"
            self._reader = self._connect(uri, sqlite3.Connection)
        except BaseException:
            self.writer.close()
            raise

    @staticmethod
    def _connect(target: str, connection_class: type[sqlite3.Connection]) -> sqlite3.Connection:
        return sqlite3.connect(
            target,
            timeout=BUSY_TIMEOUT_S,
            isolation_level=None,
            check_same_thread=False,
            factory=connection_class,
            cached_statements=_STATEMENTS_CACHED,
            uri=target.startswith("file:"),
        )

    def must_be_idle(self) -> None:
        """Refuse what may not happen inside the thread's own transaction.

        Raises:
            RuntimeError: the thread is in a transaction: others would wait for the network, and
                what is not committed yet could leave.
        """
        if self.lock.acquire(blocking=False):
            try:
                if self.writer.in_transaction:
                    raise RuntimeError("end the transaction before you sync")
            finally:
                self.lock.release()

    def on_reload(self, reload: Callable[[], None]) -> None:
        """Have something read again when what is in memory may differ from the file."""
        self._reloads.append(reload)

    @property
    def in_transaction(self) -> bool:
        """Tell whether the caller, who holds the lock, is inside a transaction already."""
        return self.writer.in_transaction

    def begin(self) -> None:
        """Start writing; the caller holds the lock and will `commit` or `rollback`."""
        self.writer.execute("BEGIN IMMEDIATE")
        try:
            # Changes when, and only when, another connection wrote to the file.
            version: int = self.writer.execute("PRAGMA data_version").fetchone()[0]
            if version != self._seen:
                self._seen = version
                for reload in self._reloads:
                    reload()
        except BaseException:
            self.rollback()
            raise

    def commit(self) -> None:
        """Make the transaction durable; it is rolled back if that fails."""
        try:
            self.writer.execute("COMMIT")
        except BaseException:
            self.rollback()
            raise

    def rollback(self) -> None:
        """Undo the transaction, if there is one; what is in memory is read again next time."""
        self._seen = None
        if self.writer.in_transaction:
            self.writer.execute("ROLLBACK")

    @contextlib.contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Write all of the block or nothing; inside another transaction, join it."""
        with self.lock:
            if self.writer.in_transaction:
                yield self.writer
                return
            self.begin()
            try:
                yield self.writer
            except BaseException:
                self.rollback()
                raise
            self.commit()

    def read(self, sql: str, parameters: object) -> tuple[list[str], list[tuple[object, ...]]]:
        """Run one query that cannot write; gives the column names and the rows.

        Inside the caller's own transaction it sees what the transaction wrote.
        """
        owned = self.lock.acquire(blocking=False)
        try:
            if owned and self.writer.in_transaction:
                self.writer.execute("PRAGMA query_only = ON")
                try:
                    return _rows(self.writer, sql, parameters)
                finally:
                    self.writer.execute("PRAGMA query_only = OFF")
        finally:
            if owned:
                self.lock.release()
        with self._reading:
            return _rows(self._reader, sql, parameters)

    def close(self) -> None:
        """Close the file; safe to repeat."""
        with self.lock, self._reading:
            self._reader.close()
            self.writer.close()


def _rows(
    connection: sqlite3.Connection, sql: str, parameters: object
) -> tuple[list[str], list[tuple[object, ...]]]:
    cursor = connection.execute(sql, parameters)  # type: ignore[arg-type]  # sequence or mapping
    try:
        return [column[0] for column in cursor.description or ()], cursor.fetchall()
    finally:
        cursor.close()
