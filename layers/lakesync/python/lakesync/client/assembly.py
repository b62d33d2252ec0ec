"""How a client is put together: the one place that knows all of its parts."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from lakesync.client.download.apply import Pages
from lakesync.client.download.pending_echo import Untold
from lakesync.client.recovery.resync import Rebuild
from lakesync.client.recovery.server_restore import Offers
from lakesync.client.storage.catalogue import Catalogue
from lakesync.client.storage.database import Database
from lakesync.client.storage.declare import declare
from lakesync.client.storage.device_clock import DeviceClock
from lakesync.client.storage.edits import Edits
from lakesync.client.storage.failures import translated
from lakesync.client.storage.migrations import claim, migrate
from lakesync.client.storage.rows import Rows
from lakesync.client.storage.schemas import KnownSchemas
from lakesync.client.sync import Syncer
from lakesync.client.upload.entries import Status
from lakesync.client.upload.outbox import Outbox
from lakesync.client.upload.push import Pusher
from lakesync.client.upload.receipts import Settler
from lakesync.core.delta import check_client_id
from lakesync.core.merge import view
from lakesync.core.values import parse
from lakesync.errors import NotFound, ValidationFailed
from lakesync.wire.row_state import decode_row_state

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from lakesync.client.storage.database import Durability
    from lakesync.client.upload.entries import OutboxEntry
    from lakesync.core.delta import Delta
    from lakesync.ports import Transport, WallClock

_STATE: Final = (
    "SELECT state FROM _lakesync_rows JOIN _lakesync_tables ON id = table_id "
    "WHERE name = ? AND row_id = ?"
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
        with self.database.transaction():  # sees what another process added
            found = self.catalogue.find(table)
            if found is None:
                return None
            return found.sql_name if column is None else found.columns.get(column)

    def row(self, table: str, row_id: str) -> dict[str, Any] | None:
        """Give a row's columns as they were written, or None."""
        _, rows = self.database.read(_STATE, (table, row_id))
        found = view(decode_row_state(rows[0][0])) if rows else None  # type: ignore[arg-type]
        return None if found is None else {name: parse(raw) for name, raw in found.items()}

    def entries(self, *, quarantined: bool) -> list[OutboxEntry]:
        """List the outbox."""
        with self.database.lock:
            return self.outbox.entries(quarantined=quarantined)

    def release(self, delta_id: str) -> Delta:
        """Let a quarantined edit be pushed again.

        Raises:
            NotFound: there is none with this id.
        """
        with self.database.transaction():
            entry = self.outbox.find(delta_id)
            if entry is None or entry.status != Status.QUARANTINED:
                raise NotFound(_NO_ENTRY.format("quarantined edit"), field="delta_id")
            self.outbox.release(entry)
        return entry.delta

    def discard(self, delta_id: str) -> Delta:
        """Take an edit back: its row is merged again without it.

        Raises:
            NotFound: there is none with this id in the outbox.
        """
        with self.database.transaction():
            entry = self.outbox.find(delta_id)
            if entry is None:
                raise NotFound(_NO_ENTRY.format("edit in the outbox"), field="delta_id")
            delta = entry.delta
            self.clock.discarded(delta.hlc)
            self.outbox.remove((entry.hlc,))
            key = self.catalogue.table(delta.table, ()).id, delta.row_id
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
    """Open a file and put a client together on it.

    Raises:
        LakeSyncError: as `lakesync.client.Client`.
    """
    check_client_id(client_id)
    if str(path) in {"", ":memory:"}:
        raise ValidationFailed("a client needs a file: edits in memory are not durable")
    database = _opened(path, durability, connection_class)
    try:
        migrate(database.writer, wall_clock())
        claim(database.writer, client_id)
        return _wired(database, client_id, transport, wall_clock, page_deltas)
    except sqlite3.OperationalError as exc:
        database.close()
        raise translated(exc) from exc
    except BaseException:
        database.close()
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
    offers = Offers(connection, client_id=client_id, catalogue=catalogue, rows=rows, outbox=outbox)
    rebuild = Rebuild(connection, client_id, rows, offers)
    untold = Untold(connection, client_id=client_id, catalogue=catalogue, rows=rows)
    pages = Pages(
        connection,
        client_id=client_id,
        catalogue=catalogue,
        rows=rows,
        outbox=outbox,
        clock=clock,
        rebuild=rebuild,
        untold=untold,
    )
    for part in (catalogue, clock, rebuild):
        database.on_reload(part.reload)
    schemas = KnownSchemas(database, transport)
    settler = Settler(outbox, rows, untold, catalogue, clock)
    pusher = Pusher(client_id, transport, database, outbox, settler, pages, rebuild, clock)
    syncer = Syncer(
        client_id=client_id,
        transport=transport,
        database=database,
        outbox=outbox,
        pusher=pusher,
        pages=pages,
        rebuild=rebuild,
        schemas=schemas,
        page_deltas=page_deltas,
    )
    edits = Edits(database, catalogue, clock, client_id)
    return Parts(database, catalogue, rows, outbox, edits, syncer, schemas, clock)


def _opened(
    path: str | Path, durability: Durability, connection_class: type[sqlite3.Connection]
) -> Database:
    try:
        return Database(path, durability, connection_class)
    except sqlite3.OperationalError as exc:
        raise translated(exc) from exc
    except sqlite3.DatabaseError as exc:
        raise ValidationFailed(f"{path} is not a SQLite database; give another path") from exc
