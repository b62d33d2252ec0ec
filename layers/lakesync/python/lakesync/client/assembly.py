"""How a client is put together: the one place that knows all of its parts."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from lakesync.client.download.apply import Pages
from lakesync.client.download.pending_echo import PendingEcho
from lakesync.client.download.position import position_of
from lakesync.client.recovery.resync import Resyncer
from lakesync.client.recovery.salvage import is_sound
from lakesync.client.recovery.server_restore import ServerRestore
from lakesync.client.storage.catalogue import Catalogue, checked_name
from lakesync.client.storage.database import open_database
from lakesync.client.storage.declare import declare
from lakesync.client.storage.device_clock import DeviceClock
from lakesync.client.storage.edits import Edits
from lakesync.client.storage.failures import translated
from lakesync.client.storage.rows import Rows
from lakesync.client.storage.schemas import KnownSchemas
from lakesync.client.storage.tables import claim
from lakesync.client.sync import Syncer
from lakesync.client.upload.entries import Status
from lakesync.client.upload.outbox import Outbox
from lakesync.client.upload.push import Pusher
from lakesync.client.upload.receipts import Receipts
from lakesync.core.delta import check_client_id
from lakesync.errors import NotFound, ValidationFailed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from lakesync.client.storage.database import Database, Durability
    from lakesync.client.upload.entries import OutboxEntry
    from lakesync.core.delta import Delta
    from lakesync.ports import Transport, WallClock

_TABLE_NAME: Final = "SELECT sql_name FROM _lakesync_tables WHERE name = ?"
_COLUMN_NAME: Final = (
    "SELECT columns.sql_name FROM _lakesync_columns AS columns JOIN _lakesync_tables AS tables "
    "ON id = table_id WHERE tables.name = ? AND columns.name = ?"
)


_NO_ENTRY: Final = (
    "no {} has this id; list them again, since an edit that is stamped again has another"
)


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of one client."""

    database: Database
    catalogue: Catalogue
    rows: Rows
    outbox: Outbox
    edits: Edits
    syncer: Syncer
    schemas: KnownSchemas
    clock: DeviceClock

    def declare(
        self, table: str, columns: Mapping[str, str], indexes: Sequence[Sequence[str]]
    ) -> None:
        """Type a table's columns and index them."""
        with self.database.transaction() as connection:
            declare(connection, self.catalogue, table, columns, indexes)

    def sql_name(self, table: str, column: str | None) -> str | None:
        """Give SQLite's name of a table or a column."""
        names = [checked_name(table, "table")]
        names += [] if column is None else [checked_name(column, "column")]
        _, rows = self.database.read(_TABLE_NAME if column is None else _COLUMN_NAME, names)
        return rows[0][0] if rows else None  # type: ignore[return-value]  # text or null

    def entries(self, *, quarantined: bool) -> list[OutboxEntry]:
        """List the outbox, as far as it is committed."""
        with self.database.reading() as connection:
            return Outbox(connection).entries(quarantined=quarantined)

    def is_sound(self) -> bool:
        """Tell whether the file is as it was written."""
        with self.database.reading() as connection:
            return is_sound(connection)

    def release(self, delta_id: str) -> Delta:
        """Let a quarantined edit be pushed again."""
        with self.database.transaction():
            entry = self.outbox.find(delta_id)
            if entry is None or entry.status != Status.QUARANTINED:
                raise NotFound(_NO_ENTRY.format("quarantined edit"), field="delta_id")
            self.outbox.release(entry)
        return entry.delta

    def discard(self, delta_id: str) -> Delta:
        """Take an edit back: its row is merged again without it."""
        with self.database.transaction() as connection:
            entry = self.outbox.find(delta_id)
            if entry is None:
                raise NotFound(_NO_ENTRY.format("edit in the outbox"), field="delta_id")
            delta = entry.delta
            self.clock.discarded(delta.hlc, position_of(connection).cursor)
            self.outbox.remove((entry.hlc,))
            key = self.catalogue.known(delta.table).id, delta.row_id
            self.rows.refold((key,), {}, taken=1)
        return delta


def assemble(
    path: str | Path,
    *,
    client_id: str,
    transport: Transport,
    wall_clock: WallClock,
    durability: Durability,
    page_deltas: int,
    connection_class: type[sqlite3.Connection],
) -> Parts:
    """Open a file and put a client together on it."""
    check_client_id(client_id)
    if str(path) in {"", ":memory:"}:
        raise ValidationFailed("a client needs a file: edits in memory are not durable")
    database = open_database(path, durability, connection_class)
    try:
        claim(database.writer, client_id)
        return _wired(database, client_id, transport, wall_clock, page_deltas)
    except BaseException as exc:
        database.close()
        if isinstance(exc, sqlite3.Error):
            raise translated(exc) from exc
        raise


def _wired(
    database: Database,
    client_id: str,
    transport: Transport,
    wall_clock: WallClock,
    page_deltas: int,
) -> Parts:
    connection = database.writer
    catalogue = Catalogue(connection)
    rows = Rows(connection, catalogue)
    outbox = Outbox(connection)
    clock = DeviceClock(connection, wall_clock)
    server_restore = ServerRestore(connection, client_id, catalogue, rows, outbox)
    resync = Resyncer(connection, client_id, rows, server_restore)
    for part in (catalogue, clock, resync):
        database.on_reload(part.reload)
    pending_echo = PendingEcho(connection, client_id, rows)
    pages = Pages(connection, client_id, catalogue, rows, outbox, clock, resync, pending_echo)
    schemas = KnownSchemas(database, transport)
    receipts = Receipts(outbox, rows, pending_echo, catalogue, clock)
    pusher = Pusher(client_id, transport, database, outbox, receipts, pages, resync, clock)
    syncer = Syncer(
        client_id, transport, database, outbox, pusher, pages, resync, schemas, page_deltas
    )
    edits = Edits(database, catalogue, clock, client_id)
    return Parts(database, catalogue, rows, outbox, edits, syncer, schemas, clock)
