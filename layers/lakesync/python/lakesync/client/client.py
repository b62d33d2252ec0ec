"""`Client`: an app's rows in one SQLite file, edited locally and synced when there is a network.

::

    with Client("app.db", client_id="phone-1", transport=transport) as client:
        client.insert("todos", "t1", {"title": "Buy milk", "done": False}).unwrap()
        client.query("SELECT _row_id, title FROM todos WHERE done = 0").unwrap()
        client.sync()

Public operations return a ``Result``: an operational failure is an ``Err`` with a code, a message
and a retry class. Laws: ``docs/spec/client.md``.

The file of ``Client(":memory:")`` goes when it is closed. It is a file like any other, so every law
holds until then: in the system's memory where there is such a folder (``/dev/shm``), else among its
temporary files. A program that is killed leaves it there.

Signing out (`wipe`) removes the contents before the file, and overwrites them in the process: a
crash in between leaves an empty file, and no copy of a page in the log. The bytes of attachments
are removed, but not overwritten. No program can control what the storage underneath keeps of
overwritten blocks.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import sqlite3
import tempfile
import threading
import weakref
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self, TypeVar

from lakesync.client.app_actions import Actions
from lakesync.client.app_attachments import Attachments
from lakesync.client.change_feed import GATHER_MS, GATHER_MS_MAX
from lakesync.client.damaged_file import is_sound
from lakesync.client.loop import Connecting
from lakesync.client.resync import rebind
from lakesync.client.storage.app_table import answer_of, quote
from lakesync.client.storage.attachment_store import Folder
from lakesync.client.storage.device_tables import declare
from lakesync.client.storage.editor import Editor, amend, local_transaction, record
from lakesync.client.storage.edits import Writer
from lakesync.client.storage.file import open_file
from lakesync.client.storage.misuse import (
    PAGE_DELTAS,
    check_page_deltas,
    checked_mode,
    checked_names,
    checked_transport,
    checked_whole,
)
from lakesync.client.storage.outbox import system_clock
from lakesync.client.storage.own_writes import resolve
from lakesync.client.storage.sqlite_file import attempt, caught
from lakesync.client.sync import Syncer, checked_source
from lakesync.client.waits import never
from lakesync.core.messages import checked_first
from lakesync.errors import Conflict, NotOffered, ValidationFailed
from lakesync.ports import TellsConnectorTypes
from lakesync.result import Err, Ok, Result, heard

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from lakesync.client.resync import KeepEdits
    from lakesync.client.storage.app_table import Answer
    from lakesync.client.storage.conflicts import LostWrite
    from lakesync.client.storage.device_tables import DeclaredColumns
    from lakesync.client.storage.editor import Transaction
    from lakesync.client.storage.file import ClientFile
    from lakesync.client.storage.misuse import Mode
    from lakesync.client.storage.outbox import OutboxEntry
    from lakesync.client.storage.own_writes import Keep
    from lakesync.client.storage.private_files import GivenKey
    from lakesync.client.storage.queries import TypedAnswer
    from lakesync.client.storage.sqlite_file import Durability
    from lakesync.client.sync import PullSummary, SyncSummary
    from lakesync.client.upload import PushSummary
    from lakesync.core.delta import Delta, Op
    from lakesync.core.schema import TableSchema
    from lakesync.errors import LakeSyncError
    from lakesync.ports import ConnectorDescription, Transport, WallClock

# --- what nobody else has -------------------------------------------------------------------------


_KINDS: Final = (
    ("edit", "waits for the gateway", "wait for the gateway"),
    ("edit", "was refused", "were refused"),
    ("action", "waits", "wait"),
    ("action", "is a dead letter", "are dead letters"),
    ("attachment", "is not uploaded", "are not uploaded"),
)
_COUNTS: Final = (
    "SELECT (SELECT count(*) FROM _lakesync_outbox WHERE status <> 'quarantined'), "
    "(SELECT count(*) FROM _lakesync_outbox WHERE status = 'quarantined'), "
    "(SELECT count(*) FROM _lakesync_actions WHERE status NOT IN ('dead', 'done')), "
    "(SELECT count(*) FROM _lakesync_actions WHERE status = 'dead'), "
    "(SELECT count(*) FROM _lakesync_attachments WHERE status <> 'kept')"
)


def what_waits(read: Callable[[str], Answer]) -> str:
    """Return how much waits, for people; empty if nothing does."""
    _, ((*counts,),) = read(_COUNTS)
    waiting = zip(counts, _KINDS, strict=True)
    return ", ".join(_counted(int(str(count)), *kind) for count, kind in waiting if count)


def _counted(number: int, noun: str, one: str, many: str) -> str:
    return f"1 {noun} {one}" if number == 1 else f"{number} {noun}s {many}"


# --- a client in memory ---------------------------------------------------------------------------


MEMORY: Final = ":memory:"
"""SQLite's own name for a database that is in no file."""
_SHARED_MEMORY: Final = Path("/dev/shm")  # noqa: S108 - the folder in it is this user's alone
_log = logging.getLogger("lakesync.client")


class MemoryFile:
    """The file of one client in memory, which lives as long as this."""

    def __init__(self) -> None:
        is_there = os.access(_SHARED_MEMORY, os.W_OK)
        try:
            folder = tempfile.mkdtemp(prefix="lakesync-", dir=_SHARED_MEMORY if is_there else None)
        except OSError as exc:
            raise ValidationFailed(
                f"there is no room for a client in memory ({exc}): give the path of a file",
                field="path",
            ) from exc
        self.path = Path(folder) / "client.db"
        self._remove = weakref.finalize(self, _removed, folder, os.getpid())

    def close(self, file: ClientFile) -> None:
        """Say what is lost with the file, close it and remove it; safe to repeat."""
        if not self._remove.alive:
            return
        waiting = attempt(lambda: what_waits(file.database.read))
        if isinstance(waiting, Ok) and waiting.value:
            _log.warning("a client in memory is closed: %s; this is lost", waiting.value)
        file.database.close()
        self._remove()


def _removed(folder: str, process: int) -> None:
    if os.getpid() == process:
        shutil.rmtree(folder, ignore_errors=True)


# --- signing out ----------------------------------------------------------------------------------


_OTHER_FILES = ("-wal", "-shm", "-journal")


def wipe(file: ClientFile, path: str | Path, *, lose_edits: bool) -> None:
    writer = file.database.writer
    with file.database.lock:
        file.database.must_be_idle()
        writer.execute("PRAGMA secure_delete = ON").close()
        with file.database.transaction() as connection:
            if not lose_edits:
                _check_nothing_is_lost(connection)
            _drop_everything(connection)
        writer.execute("VACUUM")
        writer.execute("PRAGMA wal_checkpoint(TRUNCATE)").close()
    file.database.close()
    Folder(path).remove()
    for ending in (*_OTHER_FILES, ""):
        Path(f"{path}{ending}").unlink(missing_ok=True)


def _check_nothing_is_lost(connection: sqlite3.Connection) -> None:
    if waiting := what_waits(partial(answer_of, connection)):
        raise Conflict(
            f"{waiting}; this would be lost: sync first and see to it, or wipe with "
            "lose_edits=True; nothing was wiped"
        )


def _drop_everything(connection: sqlite3.Connection) -> None:
    # Views and triggers first: a table that they name could not be dropped before them.
    there = connection.execute(
        "SELECT type, name FROM sqlite_master WHERE type IN ('view', 'trigger', 'table') "
        "AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\' "
        "ORDER BY type = 'table', type = 'view', rootpage DESC"
    ).fetchall()
    for kind, name in there:
        connection.execute(f"DROP {kind} IF EXISTS {quote(name)}")


# --- refused and lost edits -----------------------------------------------------------------------


class OutboxKeeper(Editor):
    _file: ClientFile
    _syncer: Syncer
    edited: threading.Event

    def pending(self) -> Result[list[OutboxEntry], LakeSyncError]:
        """Return the edits that the gateway is not known to hold, oldest first."""
        return self._attempt(lambda: self._file.entries(quarantined=False))

    def quarantined(self) -> Result[list[OutboxEntry], LakeSyncError]:
        """Return the refused edits, with code and reason; their values stay in the rows."""
        return self._attempt(lambda: self._file.entries(quarantined=True))

    def retry(self, delta_id: str) -> Result[Delta, LakeSyncError]:
        """Let the next push send a quarantined edit again; ``NOT_FOUND`` if there is none."""
        result = self._attempt(lambda: self._file.retry(delta_id))
        self.edited.set()
        return heard(result, f"retry of {delta_id!r}")

    def amend(self, delta_id: str, columns: Mapping[str, object]) -> Result[Delta, LakeSyncError]:
        """Replace a quarantined edit by a new one, with other values for some of its columns.

        The new edit is made now, and the next push sends it. Columns that ``columns`` does not name
        keep the old edit's values, unless they were overwritten since. ``NOT_FOUND`` if there is no
        such edit; an ``Err`` changes nothing.
        """
        result = self._attempt(lambda: amend(self._file, delta_id, columns))
        self.edited.set()
        return heard(result, f"amending of {delta_id!r}")

    def discard(self, delta_id: str) -> Result[Delta, LakeSyncError]:
        """Drop a pending or quarantined edit; its row becomes what the other edits make of it.

        A pending edit whose push is in flight, or was not answered, may have arrived: then the next
        pull brings it back. ``NOT_FOUND`` if the outbox does not hold it.
        """
        result = self._attempt(lambda: self._file.discard(delta_id))
        return heard(result, f"discard of {delta_id!r}")

    def clear_outbox(self) -> Result[int, LakeSyncError]:
        """Drop all pending and quarantined edits: rows become what they are without them.

        What is in flight, or was not answered, may have arrived: as for `discard`. Actions stay;
        `Actions.clear` drops those.

        Returns:
            The number of edits that were dropped.
        """
        return heard(self._attempt(self._file.clear_outbox), "clear_outbox")

    def rebind(self, keep: KeepEdits) -> Result[int, LakeSyncError]:
        """Give the file to another gateway: the next one that this client's transport reaches.

        Without this, a file is bound to the gateway that answered first, and any other is refused
        with ``ANOTHER_GATEWAY``. Everything of the new gateway is read from the start, and rows
        that it lacks go. Actions that have not ended become dead letters; conflicts go.

        Args:
            keep: ``edits`` to push the edits that wait to the new gateway; refused ones stay
                refused. ``nothing`` to give all of them up.

        Returns:
            The number of edits that were kept, or given up.
        """

        def rebound() -> int:
            with self._syncer.alone(), self._file.database.transaction():
                return rebind(self._file, keep)

        result = self._attempt(rebound)
        self.edited.set()
        return heard(result, "rebind")

    def conflicts(self) -> Result[list[LostWrite], LakeSyncError]:
        """Return the conflicts that the app has not resolved, oldest first.

        They are what `on_conflict` reports, kept in the file; at most `CONFLICTS_MAX` of them.
        """
        return self._attempt(self._file.listed_conflicts)

    def resolve(
        self, conflict_id: int, keep: Keep, value: object = None
    ) -> Result[Delta | None, LakeSyncError]:
        """Resolve a conflict, by its ``id``: it is no longer listed.

        ``mine`` and ``theirs`` choose one of its values, ``new`` writes ``value``. If the row shows
        the chosen one, or a later one took the place of what lost, nothing is written; otherwise an
        edit is made now, and returned. A deletion that is chosen deletes the row, and a value of a
        row that is gone inserts it with that column. ``NOT_FOUND`` if there is no such conflict.
        """
        result = self._attempt(lambda: resolve(self._file, conflict_id, keep, value))
        self.edited.set()
        return heard(result, f"resolving of conflict {conflict_id!r}")


# --- the client -----------------------------------------------------------------------------------


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

    def _typed(self, sql: str, parameters: object) -> TypedAnswer:
        return self._file.database.typed(sql, parameters)

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
