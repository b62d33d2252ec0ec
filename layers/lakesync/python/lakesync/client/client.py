"""`Client`: the app's rows in one SQLite file, edited at once and synced when there is a network.

::

    with Client("app.db", client_id="phone-1", transport=transport) as client:
        client.insert("todos", "t1", {"title": "Buy milk", "done": False}).unwrap()
        client.query("SELECT _row_id, title FROM todos WHERE done = 0").unwrap()
        client.sync()

Public operations return a ``Result``: what can happen in operation is an ``Err`` with a code, a
sentence and a retry class. Laws K1-K12: ``docs/spec/client.md``.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from typing import TYPE_CHECKING, Any, Final, Self

from lakesync.client.assembly import Parts, assemble
from lakesync.client.storage.device_clock import system_clock
from lakesync.client.storage.failures import attempt, of_query
from lakesync.client.sync import PAGE_DELTAS, never
from lakesync.core.delta import Op
from lakesync.result import Err, Ok, Result

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from lakesync.client.storage.database import Durability
    from lakesync.client.summaries import PullSummary, PushSummary, SyncSummary
    from lakesync.client.upload.entries import OutboxEntry
    from lakesync.core.delta import Delta
    from lakesync.core.schema import TableSchema
    from lakesync.errors import LakeSyncError
    from lakesync.ports import Transport, WallClock

_NOTHING: Final[Mapping[str, object]] = {}


class Client:
    """One client and its file. Safe to use from several threads, and to open in several processes.

    Args:
        path: the SQLite file; made if there is none.
        client_id: who makes the edits; 1 to 128 bytes, the ``sub`` of the token. The file stays
            this client's.
        transport: how to reach the gateway.
        wall_clock: the device's clock, in milliseconds since 1970. It may be wrong.
        durability: ``FULL`` has an edit on the disk before it returns. ``NORMAL`` is several times
            faster, and may lose the last edits when the power fails, though not when the app does.
        page_deltas: deltas of one pulled page, 1 to 10,000.
        connection_class: another connection for writing; for tests.

    Raises:
        ValidationFailed: the client id is malformed, or the file is no database.
        Conflict: the file belongs to another client, or to a newer release.
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
        connection_class: type[sqlite3.Connection] = sqlite3.Connection,
    ) -> None:
        self._parts: Parts = assemble(
            path,
            client_id=client_id,
            transport=transport,
            wall_clock=wall_clock,
            durability=durability,
            page_deltas=page_deltas,
            connection_class=connection_class,
        )
        self.client_id = client_id
        self.edited = threading.Event()
        """Set by each edit; `SyncLoop` waits for it."""

    # --- edits ------------------------------------------------------------------------------------

    def insert(
        self, table: str, row_id: str, columns: Mapping[str, object] = _NOTHING
    ) -> Result[Delta, LakeSyncError]:
        """Make a row exist, with these columns; one that exists keeps its other columns.

        Returns:
            The delta, committed to disk; or ``VALIDATION_ERROR``, ``DELTA_TOO_LARGE``, and nothing
            was written.
        """
        return self._edit(Op.INSERT, table, row_id, columns)

    def update(
        self, table: str, row_id: str, columns: Mapping[str, object]
    ) -> Result[Delta, LakeSyncError]:
        """Write columns of a row, whether or not this client has seen it.

        The row may exist where this client has not pulled from yet, so its absence here proves
        nothing: the columns are written, and if the row exists nowhere, they make it exist.

        Returns:
            As `insert`. An update without columns is a ``VALIDATION_ERROR``.
        """
        return self._edit(Op.UPDATE, table, row_id, columns)

    def delete(self, table: str, row_id: str) -> Result[Delta, LakeSyncError]:
        """Delete a row, whether or not this client has seen it; as `update`."""
        return self._edit(Op.DELETE, table, row_id, _NOTHING)

    def _edit(
        self, op: Op, table: str, row_id: str, columns: Mapping[str, object]
    ) -> Result[Delta, LakeSyncError]:
        result = attempt(lambda: self._parts.edits.record(op, table, row_id, columns))
        if not self.edited.is_set():
            self.edited.set()
        return result

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Client]:
        """Make the block's edits one transaction: here, and where it fits one commit, everywhere.

        The edits are committed when the block ends and undone if it raises. An edit whose ``Err``
        nobody looked at undoes the block too, which then raises that error. The gateway commits the
        edits together or not at all; see ``docs/spec/client.md`` for a transaction that is too
        large, or of which an edit is refused. Other threads' edits wait until the block ends.

        Raises:
            LakeSyncError: an edit failed, or the commit did.
            RuntimeError: the thread is in a transaction already.
        """
        with self._parts.edits.transaction():
            yield self
        self.edited.set()

    # --- reading ----------------------------------------------------------------------------------

    def get(self, table: str, row_id: str) -> Result[dict[str, Any] | None, LakeSyncError]:
        """Give a row's columns as they were written (true is true, a list a list), or None."""
        return attempt(lambda: self._parts.row(table, row_id))

    def query(
        self, sql: str, parameters: Sequence[object] | Mapping[str, object] = ()
    ) -> Result[list[dict[str, Any]], LakeSyncError]:
        """Run a query that cannot write; each row is a dictionary.

        Every table has its row ids in ``_row_id``; booleans read as 1 and 0, objects and lists as
        JSON text. Inside the thread's own transaction it sees what that wrote.

        Returns:
            The rows; or ``VALIDATION_ERROR`` if SQLite refuses the query.
        """
        try:
            names, rows = self._parts.database.read(sql, parameters)
        except sqlite3.Error as exc:
            return Err(of_query(exc))
        return Ok([dict(zip(names, row, strict=True)) for row in rows])

    def declare(
        self, table: str, columns: Mapping[str, str], *, indexes: Sequence[Sequence[str]] = ()
    ) -> Result[None, LakeSyncError]:
        """Give a table typed columns and indexes before, or after, rows arrive. Safe to repeat.

        Args:
            table: the table.
            columns: types by column: ``string number boolean json integer decimal(p,s) timestamp
                date bytes``.
            indexes: the columns of each index.

        Returns:
            ``VALIDATION_ERROR`` or ``SCHEMA_ERROR`` if a name or a type is none.
        """
        return attempt(lambda: self._parts.declare(table, columns, indexes))

    def schema(self, table: str) -> Result[TableSchema | None, LakeSyncError]:
        """Give a table's schema, as the gateway told of it with the last pull; None without one."""
        return attempt(lambda: self._parts.schemas.table(table))

    def sql_name(self, table: str, column: str | None = None) -> str | None:
        """Give SQLite's name of a table or a column that was seen; None if it has none.

        It is the name itself, unless that is reserved or differs from another only in case.
        """
        return self._parts.sql_name(table, column)

    # --- the outbox -------------------------------------------------------------------------------

    def pending(self) -> Result[list[OutboxEntry], LakeSyncError]:
        """Give the edits that the gateway is not known to hold, oldest first."""
        return attempt(lambda: self._parts.entries(quarantined=False))

    def quarantined(self) -> Result[list[OutboxEntry], LakeSyncError]:
        """Give the edits that were refused, with code and reason; their values stay in the rows."""
        return attempt(lambda: self._parts.entries(quarantined=True))

    def retry(self, delta_id: str) -> Result[Delta, LakeSyncError]:
        """Let a quarantined edit go with the next push; ``NOT_FOUND`` if there is none."""
        result = attempt(lambda: self._parts.release(delta_id))
        self.edited.set()
        return result

    def discard(self, delta_id: str) -> Result[Delta, LakeSyncError]:
        """Drop an edit that is pending or quarantined; its row becomes what the others make of it.

        A pending one whose push is under way, or was not answered, may have arrived: then the next
        pull brings it back. ``NOT_FOUND`` if the outbox does not hold it.
        """
        return attempt(lambda: self._parts.discard(delta_id))

    # --- sync -------------------------------------------------------------------------------------

    def push(self) -> Result[PushSummary, LakeSyncError]:
        """Push all that waits; refused edits are quarantined, their neighbours flow.

        Returns:
            What was done; or why the rest waits, with what was done in the error's ``done``.
        """
        return attempt(self._parts.syncer.push)

    def pull(self) -> Result[PullSummary, LakeSyncError]:
        """Pull all pages; each is applied with its cursor in one transaction.

        Returns:
            As `push`. ``CURSOR_EXPIRED``: the gateway no longer has what this client lacks.
        """
        return attempt(self._parts.syncer.pull)

    def sync(self, *, stopped: Callable[[], bool] = never) -> Result[SyncSummary, LakeSyncError]:
        """Push and pull until nothing waits and nothing is new, or ``stopped()`` is true.

        Returns:
            As `push`. One half may fail alone: the ``done`` of an error is a `SyncSummary`.
        """
        return attempt(lambda: self._parts.syncer.sync(stopped))

    def close(self) -> None:
        """Close the file; safe to repeat. Nothing is lost: everything is on the disk already."""
        self._parts.database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
