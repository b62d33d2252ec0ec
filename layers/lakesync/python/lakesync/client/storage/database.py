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
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, get_args

from lakesync.client.storage.app_table import COLLATION, compare
from lakesync.client.storage.failures import translated
from lakesync.errors import TransactionOpen, ValidationFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Durability: TypeAlias = Literal["FULL", "NORMAL"]
BUSY_TIMEOUT_S: Final = 10.0
"""How long to wait for another process that is writing to the same file."""
_STATEMENTS_CACHED: Final = 512
_CHECKPOINT_PAGES: Final = 4_000
"""16 MB of log before SQLite folds it into the file: four times rarer than its default, since each
edit of a few hundred bytes writes three or four pages."""
Answer: TypeAlias = "tuple[list[str], list[tuple[object, ...]]]"
"""The column names and the rows of a query."""

_READING: Final = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_RECURSIVE}
_PRAGMAS: Final = {
    *("table_info", "table_xinfo", "table_list", "index_list", "index_info", "index_xinfo"),
    *("foreign_key_list", "database_list", "collation_list", "compile_options", "function_list"),
    *("integrity_check", "quick_check"),
}
"""Those that tell of a table or an index, which they may be given by name."""
_PRAGMAS_BARE: Final = {
    *("user_version", "application_id", "schema_version", "data_version", "page_count"),
    *("page_size", "freelist_count", "journal_mode", "synchronous", "encoding"),
}
"""Those that only tell as long as they are given nothing."""


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

        Another task of the thread would wait for ever; and what is not committed must not leave.
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
            self._check_unused()
            try:
                self._begin()
                self._in_use = True
                yield self.writer
                self._in_use = False
                self.writer.execute("COMMIT")
            except BaseException as failure:
                was_in_block, self._in_use = self._in_use, False
                self._undo(failure)
                if isinstance(failure, sqlite3.Error) and not was_in_block:
                    raise translated(failure) from failure
                raise

    def _undo(self, failure: BaseException) -> None:
        code = getattr(failure.__cause__ or failure, "sqlite_errorcode", 0) & 0xFF
        self._was_full |= code == sqlite3.SQLITE_FULL
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
        """Give the `boolean_names` that are committed, read again only when something was."""
        with self._reading:
            version: int = self._reader.execute("PRAGMA data_version").fetchone()[0]
            if version != self._names_version:
                self._boolean_names = boolean_names(self._reader)
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


def boolean_names(connection: sqlite3.Connection) -> frozenset[str]:
    """Give the columns, in small letters, that hold only booleans in every table that has them."""
    rows = connection.execute(
        "SELECT lower(sql_name) FROM _lakesync_columns WHERE sql_name IS NOT NULL "
        "GROUP BY sql_name HAVING min(is_boolean) = 1"
    ).fetchall()
    return frozenset(name for (name,) in rows)


def answer_of(connection: sqlite3.Connection, sql: str, parameters: object = ()) -> Answer:
    """Run one query."""
    cursor = connection.execute(sql, parameters)  # type: ignore[arg-type]  # sequence or mapping
    try:
        return [column[0] for column in cursor.description or ()], cursor.fetchall()
    finally:
        cursor.close()


def only_reads(action: int, subject: str | None, detail: str | None, *_: object) -> int:
    """Let SQLite prepare what reads, and nothing else."""
    allowed = action in _READING or (
        (action == sqlite3.SQLITE_FUNCTION and detail != "load_extension")
        or (action == sqlite3.SQLITE_PRAGMA and subject in _PRAGMAS)
        or (action == sqlite3.SQLITE_PRAGMA and subject in _PRAGMAS_BARE and detail is None)
        # SQLite says this of table-valued functions; it refuses to write to that table by itself.
        or (action == sqlite3.SQLITE_UPDATE and subject == "sqlite_master")
    )
    return sqlite3.SQLITE_OK if allowed else sqlite3.SQLITE_DENY
