"""`Client`: an app's rows in one SQLite file, edited locally and synced when there is a network.

::

    with Client("app.db", client_id="phone-1", transport=transport) as client:
        client.insert("todos", "t1", {"title": "Buy milk", "done": False}).unwrap()
        client.query("SELECT _row_id, title FROM todos WHERE done = 0").unwrap()
        client.sync()

Public operations return a ``Result``: an operational failure is an ``Err`` with a code, a message
and a retry class. Laws: ``docs/spec/client.md``.
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
from lakesync.client.download.sources import checked_source
from lakesync.client.live.changes import GATHER_MS, GATHER_MS_MAX
from lakesync.client.modes import checked_mode
from lakesync.client.page_size import PAGE_DELTAS, check_page_deltas
from lakesync.client.recovery.salvage import is_sound
from lakesync.client.recovery.wipe import wipe
from lakesync.client.storage.declare import declare
from lakesync.client.storage.device_clock import system_clock
from lakesync.client.storage.edits import local_transaction, record
from lakesync.client.storage.failures import attempt, caught
from lakesync.client.storage.file import open_file
from lakesync.client.storage.in_memory import MEMORY, MemoryFile
from lakesync.client.storage.writing import Writer
from lakesync.client.sync import Syncer, never
from lakesync.client.upload.keeper import OutboxKeeper
from lakesync.core.snapshot_order import checked_first
from lakesync.errors import NotOffered
from lakesync.ports import TellsConnectorTypes
from lakesync.result import Err, Ok, Result, heard

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from lakesync.client.modes import Mode
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
    from lakesync.ports import ConnectorDescription, Transport, WallClock

T = TypeVar("T")


class Client(Connecting, OutboxKeeper):
    """One client and its file. Several threads may use it, and several processes may open the file.

    Args:
        path: the SQLite file; created if there is none. ``:memory:``: nothing is kept when the
            client is closed, for tests and short programs; what still waits then is logged.
        client_id: 1 to 128 bytes, impossible to guess: it belongs to the first user who uses it.
            The file is always this client's.
        transport: how to reach the gateway.
        wall_clock: the device's clock, in milliseconds since 1970. It may be wrong.
        durability: ``FULL``: an edit is on the disk before it returns. ``NORMAL``: several times
            faster, but a power failure, though not a crash of the app, may lose the last edits.
        page_deltas: deltas of one pulled page, 1 to 10,000.
        first_tables: at most 32, which a first sync reads first; see `ClientStatus.synced_tables`.
        gather_ms: changes within this many milliseconds are reported together; see `watch`.
        key: encrypts the file with SQLCipher: a passphrase, 32 random bytes (which open it faster),
            or a function that returns either. It is stored nowhere: without it the file is lost.
        connection_class: another connection for writing; for tests.

    Raises:
        ValidationFailed: an argument is not allowed.
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
        self._memory = MemoryFile() if str(path) == MEMORY else None
        if self._memory is not None:
            path, durability = self._memory.path, "NORMAL"
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
            # Nothing here may name it: the error's traceback would keep it, and it would go
            # unreported.
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
        """Make edits one transaction: locally, and at the gateway if they fit one commit.

        ::

            with client.transaction() as tx:
                tx.insert("orders", "o1", {"total": 3})
                tx.update("stock", "s1", {"left": 7})

        Only edits made through ``tx`` belong to it. They are committed when the block ends, and
        undone if it raises. An edit's ``Err`` that the app ignores also undoes the block, which
        then raises that error. The gateway commits the edits together or not at all; for a
        transaction that is too large, or has a refused edit, see ``docs/spec/client.md``.

        Meanwhile other writers and syncs wait on other threads. On this thread, where waiting would
        deadlock (another task, a callback, a nested transaction), they are refused with
        ``TRANSACTION_OPEN``. Nothing of theirs is committed or undone with it.

        Raises:
            LakeSyncError: an edit failed, or the commit did; or ``TRANSACTION_OPEN``.
        """
        with local_transaction(self._file) as transaction:
            yield transaction
        self.edited.set()

    def declare(
        self, table: str, columns: DeclaredColumns, *, indexes: Sequence[Sequence[str]] = ()
    ) -> Result[None, LakeSyncError]:
        """Return a table typed columns and indexes before, or after, rows arrive. Safe to repeat.

        The types are ``string number boolean json integer decimal(p,s) timestamp date bytes``, or
        those of a dataclass, pydantic model or `schema`; ``indexes`` lists the columns of each
        index. ``VALIDATION_ERROR`` or ``SCHEMA_ERROR`` if a name or a type is invalid.
        """
        return self._attempt(lambda: declare(self._file, table, columns, indexes))

    def schema(self, table: str) -> Result[TableSchema | None, LakeSyncError]:
        """Get a table's schema, as of the last pull that reached the end; None if it has none."""
        return self._attempt(lambda: self._file.schema(table))

    def sql_name(self, table: str, column: str | None = None) -> Result[str | None, LakeSyncError]:
        """Return SQLite's name of a known table or column; None if it has none.

        It is the name itself, unless SQLite reserves that name or the app already uses it.
        """
        return self._attempt(lambda: self._file.sql_name(table, column))

    def push(self) -> Result[PushSummary, LakeSyncError]:
        """Push all that waits; refused edits are quarantined, their neighbours flow.

        An ``Err`` states why the remaining edits wait; its error's ``done`` states what was done.
        """
        return self._attempt(self._syncer.push)

    def pull(
        self, *, source: str | None = None, stopped: Callable[[], bool] = never
    ) -> Result[PullSummary, LakeSyncError]:
        """Pull all pages; each is applied with its cursor in one transaction. An ``Err`` as `push`.

        ``CURSOR_EXPIRED``: the gateway no longer has what this client lacks.

        Args:
            source: a declared destination to read in place of the gateway, under the same rules,
                into local tables named ``"source.table"``. The next pull of it continues where this
                one ended, also after an error: ``NOT_FOUND`` without such a source,
                ``SOURCE_UNAVAILABLE`` while its database does not answer.
            stopped: asked before each page; true ends the pull.
        """
        if source is None:
            return self._attempt(lambda: self._syncer.pull(stopped))
        return self._attempt(lambda: self._syncer.pull_source(checked_source(source), stopped))

    def forget_source(self, source: str) -> Result[None, LakeSyncError]:
        """Remove what was pulled from a source, and its tables; another pull begins anew."""
        return self._attempt(lambda: self._syncer.forget_source(checked_source(source)))

    def sync(
        self, *, stopped: Callable[[], bool] = never, mode: Mode = "full"
    ) -> Result[SyncSummary, LakeSyncError]:
        """Push, pull and send actions until nothing waits or is new, or ``stopped()`` is true.

        Each may fail alone: the ``done`` of an error is a `SyncSummary`. With ``mode="push"``
        nothing is read, and an edit that needs a pull first waits with its error; with
        ``mode="pull"`` nothing is sent, and edits and actions wait.
        """
        return self._attempt(lambda: self._syncer.sync(stopped, checked_mode(mode)))

    def connector_types(self) -> Result[list[ConnectorDescription], LakeSyncError]:
        """Ask the gateway which types of connectors there are, with the settings of each."""

        def asked() -> list[ConnectorDescription]:
            if not isinstance(self._transport, TellsConnectorTypes):
                raise NotOffered("this transport tells no types of connectors: use HttpTransport")
            return self._transport.connector_types()

        return self._attempt(asked)

    def wipe(self, *, lose_edits: bool = False) -> Result[None, LakeSyncError]:
        """Sign out: close the client, and remove its file and everything in it from the disk.

        This includes rows, outbox, actions, attachments and the app's own tables. While any of it
        waits for the gateway or the app: ``CONFLICT``, and nothing is wiped, unless it may be lost.
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
        """Close the file, and end its syncing and watches; safe to repeat.

        All is on the disk; a client in memory is gone, and logs how much waited.
        """
        self._is_closed = True
        self._stop_loops()
        self._feed.close()
        if self._memory is not None:
            self._memory.close(self._file)
        self._file.database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
