"""`Client`: the app's rows in one SQLite file, edited at once and synced when there is a network.

::

    with Client("app.db", client_id="phone-1", transport=transport) as client:
        client.insert("todos", "t1", {"title": "Buy milk", "done": False}).unwrap()
        client.query("SELECT _row_id, title FROM todos WHERE done = 0").unwrap()
        client.sync()

Public operations return a ``Result``: what can happen in operation is an ``Err`` with a code, a
sentence and a retry class. Laws: ``docs/spec/client.md``.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from functools import partial
from typing import TYPE_CHECKING, Self, TypeVar

from lakesync.client.actions.api import Actions
from lakesync.client.arguments import checked_names, checked_transport, checked_whole
from lakesync.client.attachments.api import Attachments
from lakesync.client.connecting import Connecting
from lakesync.client.live.changes import GATHER_MS, GATHER_MS_MAX
from lakesync.client.page_size import PAGE_DELTAS, check_page_deltas
from lakesync.client.recovery.salvage import is_sound
from lakesync.client.recovery.wipe import wipe
from lakesync.client.storage.declare import declare
from lakesync.client.storage.device_clock import system_clock
from lakesync.client.storage.edits import local_transaction, record
from lakesync.client.storage.failures import attempt, caught
from lakesync.client.storage.file import open_file
from lakesync.client.storage.writing import Writer
from lakesync.client.sync import Syncer, never
from lakesync.client.upload.keeper import OutboxKeeper
from lakesync.core.snapshot_order import checked_first
from lakesync.result import Err, Ok, Result, heard

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from lakesync.client.storage.database import Durability
    from lakesync.client.storage.declare import DeclaredColumns
    from lakesync.client.storage.edits import Transaction
    from lakesync.client.storage.encryption import GivenKey
    from lakesync.client.storage.kinds import Kinds
    from lakesync.client.storage.reading import Answer
    from lakesync.client.summaries import PullSummary, SyncSummary
    from lakesync.client.upload.push import PushSummary
    from lakesync.core.delta import Delta, Op
    from lakesync.core.schema import TableSchema
    from lakesync.errors import LakeSyncError
    from lakesync.ports import Transport, WallClock

T = TypeVar("T")


class Client(Connecting, OutboxKeeper):
    """One client and its file. Safe to use from several threads, and to open in several processes.

    Args:
        path: the SQLite file; made if there is none.
        client_id: who makes the edits; 1 to 128 bytes, not to be guessed: it is the first user's
            who uses it. The file stays this client's.
        transport: how to reach the gateway.
        wall_clock: the device's clock, in milliseconds since 1970. It may be wrong.
        durability: ``FULL`` has an edit on the disk before it returns. ``NORMAL`` is several times
            faster, and may lose the last edits when the power fails, though not when the app does.
        page_deltas: deltas of one pulled page, 1 to 10,000.
        first_tables: at most 32 that a first sync brings first; see `ClientStatus.synced_tables`.
        gather_ms: changes within so many milliseconds are told together; see `watch`.
        key: encrypts the file by SQLCipher: a passphrase, 32 random bytes (which open it faster),
            or what gives one of them. It is kept nowhere: who loses it loses the file.
        connection_class: another connection for writing; for tests.

    Raises:
        ValidationFailed: an argument is none of what may be given.
        WrongKey, ImportError: the key is not the file's; SQLCipher is not installed.
        FileCorrupt: the file is damaged, or no database; see `lakesync.client.salvage`.
        Conflict: the file belongs to another client, or to another release.
        Unavailable: the file cannot be opened.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        client_id: str,
        transport: Transport,
        wall_clock: WallClock = system_clock,
        durability: Durability = "FULL",
        page_deltas: int = PAGE_DELTAS,
        first_tables: Iterable[str] = (),
        gather_ms: int = GATHER_MS,
        key: GivenKey | None = None,
        connection_class: type[sqlite3.Connection] = sqlite3.Connection,
    ) -> None:
        check_page_deltas(page_deltas)
        checked_whole(gather_ms, "gather_ms", 0, GATHER_MS_MAX)
        checked_transport(transport)
        first = checked_first(checked_names(first_tables, "first_tables"))
        self._file = open_file(path, client_id, wall_clock, durability, connection_class, key)
        self._is_sound = partial(is_sound, self._file)
        self._observe(self._file, gather_ms)
        self._transport, self._path, self.client_id = transport, path, client_id
        self._may_connect()
        self._syncer = Syncer(self._file, transport, page_deltas, self._activity, first)
        self.edited = threading.Event()
        """Set by each edit and each action; `SyncLoop` waits for it."""
        sender, wake = self._syncer.actions, self.edited.set
        self.actions = Actions(self._file, self._feed, sender, self._attempt, wake)
        parts = self._file, path, transport, self._activity, self._attempt, wake
        self.attachments = Attachments(*parts, is_encrypted=key is not None)

    def _edit(
        self, op: Op, table: str, row_id: str, columns: Mapping[str, object]
    ) -> Result[Delta, LakeSyncError]:
        try:
            result = Ok(record(self._file, op, table, row_id, columns))
        except Exception as exc:  # noqa: BLE001 - a bug is raised again
            # At once: what has a name here stays with the error, and would go unheard.
            return heard(Err(caught(exc, self._is_sound)), f"{op.name} of {table!r}, {row_id!r}")
        if not self.edited.is_set():
            self.edited.set()
        return result

    def _edits(
        self, what: str, operation: Callable[[Writer], T], *, is_group: bool
    ) -> Result[T, LakeSyncError]:
        def commit() -> T:
            with self._file.database.transaction():
                return operation(Writer(self._file, is_group=is_group))

        result = self._attempt(commit)
        self.edited.set()
        return heard(result, what)

    def _read(self, sql: str, parameters: object) -> Answer:
        return self._file.database.read(sql, parameters)

    def _kinds(self, names: list[str], sql: str, parameters: object) -> Kinds:
        return self._file.database.kinds(names, sql, parameters)

    def _attempt(self, operation: Callable[[], T]) -> Result[T, LakeSyncError]:
        return attempt(operation, self._is_sound)

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """Make edits one transaction: here, and where it fits one commit, everywhere.

        ::

            with client.transaction() as tx:
                tx.insert("orders", "o1", {"total": 3})
                tx.update("stock", "s1", {"left": 7})

        Only edits made through ``tx`` belong to it. They are committed when the block ends and
        undone if it raises. An edit whose ``Err`` nobody looked at undoes the block too, which then
        raises that error. The gateway commits the edits together or not at all; see
        ``docs/spec/client.md`` for a transaction that is too large, or of which an edit is refused.

        Meanwhile whatever else writes or syncs waits on other threads, and is refused with
        ``TRANSACTION_OPEN`` on this one, where waiting would be for ever: another task, a callback,
        a second transaction inside the first. Nothing of theirs is written or undone with it.

        Raises:
            LakeSyncError: an edit failed, or the commit did; or ``TRANSACTION_OPEN``.
        """
        with local_transaction(self._file) as transaction:
            yield transaction
        self.edited.set()

    def declare(
        self, table: str, columns: DeclaredColumns, *, indexes: Sequence[Sequence[str]] = ()
    ) -> Result[None, LakeSyncError]:
        """Give a table typed columns and indexes before, or after, rows arrive. Safe to repeat.

        The types are ``string number boolean json integer decimal(p,s) timestamp date bytes``, or
        those of a dataclass, pydantic model or `schema`; ``indexes`` are the columns of each index.
        ``VALIDATION_ERROR`` or ``SCHEMA_ERROR`` if a name or a type is none.
        """
        return self._attempt(lambda: declare(self._file, table, columns, indexes))

    def schema(self, table: str) -> Result[TableSchema | None, LakeSyncError]:
        """Give a table's schema, as the last pull to the end told it; None without one."""
        return self._attempt(lambda: self._file.schema(table))

    def sql_name(self, table: str, column: str | None = None) -> Result[str | None, LakeSyncError]:
        """Give SQLite's name of a table or a column that was seen; None if it has none.

        It is the name itself, unless SQLite reserves that or the app has taken it.
        """
        return self._attempt(lambda: self._file.sql_name(table, column))

    def push(self) -> Result[PushSummary, LakeSyncError]:
        """Push all that waits; refused edits are quarantined, their neighbours flow.

        An ``Err`` says why the rest waits, and what was done in its error's ``done``.
        """
        return self._attempt(self._syncer.push)

    def pull(self) -> Result[PullSummary, LakeSyncError]:
        """Pull all pages; each is applied with its cursor in one transaction. An ``Err`` as `push`.

        ``CURSOR_EXPIRED``: the gateway no longer has what this client lacks.
        """
        return self._attempt(self._syncer.pull)

    def sync(self, *, stopped: Callable[[], bool] = never) -> Result[SyncSummary, LakeSyncError]:
        """Push, pull and send actions until nothing waits or is new, or ``stopped()`` is true.

        Each may fail alone: the ``done`` of an error is a `SyncSummary`.
        """
        return self._attempt(lambda: self._syncer.sync(stopped))

    def wipe(self, *, lose_edits: bool = False) -> Result[None, LakeSyncError]:
        """Sign out: close the client, and remove its file with all that it holds from the disk.

        That is rows, outbox, actions, attachments, and tables of the app's own. ``CONFLICT``, and
        nothing is wiped, while any of it waits for the gateway or the app, unless it may be lost.
        """
        result = self._attempt(self._file.database.must_be_idle)
        if isinstance(result, Ok):
            stopped = self._stop_loops()
            result = self._attempt(lambda: wipe(self._file, self._path, lose_edits=lose_edits))
            if isinstance(result, Ok):
                self.close()
            else:
                for loop in stopped:
                    loop.start()
        return heard(result, "wipe")

    def close(self) -> None:
        """Close the file, and end what syncs and watches it; safe to repeat. All is on the disk."""
        self._is_closed = True
        self._stop_loops()
        self._feed.close()
        self._file.database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
