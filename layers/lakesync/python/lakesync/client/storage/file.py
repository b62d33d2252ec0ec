"""`ClientFile`: one client's file, with an object for each kind of data."""

from __future__ import annotations

import json
import sqlite3
from typing import TYPE_CHECKING, Final

from lakesync.client.actions.queue import ActionQueue
from lakesync.client.arguments import checked_clock, checked_path, checked_text
from lakesync.client.attachments.entries import AttachmentTable
from lakesync.client.storage.capture import Capture
from lakesync.client.storage.catalogue import Catalogue, checked_name
from lakesync.client.storage.conflicts import Conflicts
from lakesync.client.storage.database import Database
from lakesync.client.storage.device_clock import DeviceClock, system_clock
from lakesync.client.storage.encryption import given_key
from lakesync.client.storage.failures import SALVAGE, translated
from lakesync.client.storage.filling import bring_up
from lakesync.client.storage.position import Position
from lakesync.client.storage.rows import Rows
from lakesync.client.storage.tables import claim
from lakesync.client.storage.unfolded import Unfolded
from lakesync.client.upload.entries import Status
from lakesync.client.upload.outbox import Outbox
from lakesync.core.client_ids import check_own_client_id
from lakesync.core.epoch import check_identity
from lakesync.core.schema_json import schemas_from_json
from lakesync.errors import AnotherGateway, FileCorrupt, NotFound, ValidationFailed

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from lakesync.client.actions.entries import ActionEntry
    from lakesync.client.storage.conflicts import LostWrite
    from lakesync.client.storage.database import Durability
    from lakesync.client.storage.encryption import GivenKey, Key
    from lakesync.client.storage.rows import LocalKey
    from lakesync.client.upload.entries import Entry, OutboxEntry
    from lakesync.core.delta import Delta
    from lakesync.core.schema import TableSchema
    from lakesync.errors import LakeSyncError
    from lakesync.ports import WallClock

_SQL_NAMES: Final = (
    "SELECT tables.sql_name, columns.sql_name FROM _lakesync_tables AS tables "
    "LEFT JOIN _lakesync_columns AS columns ON id = table_id AND columns.name = ? "
    "WHERE tables.name = ?"
)
_NO_ENTRY: Final = "no {} has this id; list them again: an edit that is stamped again has another"
_SCHEMA_DAMAGED: Final = ("no such column: ", "no such table: _lakesync_")
"""What SQLite says of the first statements on a file if the text of its own schema is damaged. Of
an object of the app that is broken it says ``error in view …``.
"""
_KEEP_SCHEMAS: Final = "UPDATE _lakesync_sync SET schemas = ?, schemas_of = ?"


class ClientFile:
    """One client's file. All parts except `database` are used within a transaction of it."""

    def __init__(self, database: Database, client_id: str, wall_clock: WallClock) -> None:
        self.database = database
        self.client_id = client_id
        self.connection = database.writer
        self.catalogue = Catalogue(self.connection)
        self.rows = Rows(self.connection, self.catalogue)
        self.unfolded = Unfolded(self.connection, self.catalogue, self.rows.states)
        self.outbox = Outbox(self.connection)
        self.clock = DeviceClock(self.connection, wall_clock)
        self.actions = ActionQueue(self.connection, client_id, self.clock)
        self.attachments = AttachmentTable(self.connection, self.clock)
        self.capture = Capture(self.connection)
        self.conflicts = Conflicts(self.connection, self.catalogue)
        database.on_reload(self.catalogue.reload)
        database.on_reload(self.clock.reload)
        database.on_reload(self.rows.states.clients.forget)
        database.on_reload(self.unfolded.reload)
        database.on_begin(self.unfolded.fold)

    def position(self) -> Position:
        """Return where this client reads on."""
        row = self.connection.execute("SELECT cursor, epoch, snapshot, scope FROM _lakesync_sync")
        return Position(*row.fetchone())

    def learn_epoch(self, named: str, epoch: str) -> None:
        """Bind the file to the gateway that answered first, within the caller's transaction.

        Args:
            named: what the request named.
            epoch: what the gateway answered.

        Raises:
            AnotherGateway: the file belongs to another one.
        """
        known = self.position().epoch
        if named and not known:  # another process gave the file away while the request was open
            raise AnotherGateway(AnotherGateway.ANSWER)
        if epoch:
            check_identity(known, epoch)
            if not known:
                self.connection.execute("UPDATE _lakesync_sync SET epoch = ?", (epoch,))

    def schema(self, table: str) -> TableSchema | None:
        """Return a table's schema, as committed; None if the gateway has given none."""
        _, rows = self.database.read("SELECT schemas FROM _lakesync_sync")
        text = str(rows[0][0])
        tables = schemas_from_json(json.loads(text)).tables if text else ()
        return next((schema for schema in tables if schema.table == table), None)

    def keep_schemas(self, text: str, version: str) -> None:
        """Store schemas, and read the tables by them, within the caller's transaction."""
        self.connection.execute(_KEEP_SCHEMAS, (text, version))
        for table in self.catalogue.read_schemas():
            self.rows.read_anew(table)
        self.outbox.release_undeclared()

    def sql_name(self, table: str, column: str | None) -> str | None:
        """Return SQLite's name of a table or a column."""
        checked_name(table, "table")
        if column is not None:
            checked_name(column, "column")
        _, rows = self.database.read(_SQL_NAMES, (column, table))
        return rows[0][column is not None] if rows else None  # type: ignore[return-value]

    def listed_actions(self, *, dead: bool) -> list[ActionEntry]:
        """List the actions that have not ended, or the dead letters, as committed."""
        with self.database.reading() as connection:
            return ActionQueue(connection, self.client_id, self.clock).listed(dead=dead)

    def entries(self, *, quarantined: bool) -> list[OutboxEntry]:
        """List the outbox, as far as it is committed."""
        with self.database.reading() as connection:
            return Outbox(connection).entries(quarantined=quarantined)

    def listed_conflicts(self) -> list[LostWrite]:
        """List the conflicts that wait for the app, as committed."""
        with self.database.reading() as connection:
            return Conflicts(connection, self.catalogue).listed()

    def quarantine(self, refused: Sequence[tuple[Entry, LakeSyncError]]) -> None:
        """Set refused edits aside, with the actions that wait for them."""
        self.outbox.quarantine(refused)
        codes = ", ".join(sorted({error.code for _, error in refused}))
        self.actions.edits_refused([entry.hlc for entry, _ in refused], codes)

    def retry(self, delta_id: str) -> Delta:
        """Let a quarantined edit be pushed again."""
        with self.database.transaction():
            entry = self.quarantined(delta_id)
            self.outbox.release(entry)
        return entry.delta

    def quarantined(self, delta_id: str) -> Entry:
        """Return a quarantined edit."""
        entry = self.outbox.find(checked_text(delta_id, "delta_id"))
        if entry is None or entry.status != Status.QUARANTINED:
            raise NotFound(_NO_ENTRY.format("quarantined edit"), field="delta_id")
        return entry

    def discard(self, delta_id: str) -> Delta:
        """Take an edit back: its row is merged again without it."""
        with self.database.transaction():
            entry = self.outbox.find(checked_text(delta_id, "delta_id"))
            if entry is None:
                raise NotFound(_NO_ENTRY.format("edit in the outbox"), field="delta_id")
            self.take_back(entry.delta)
            self.conflicts.taken_back(self.key_of(entry.delta), entry.hlc)
        return entry.delta

    def clear_outbox(self) -> int:
        """Take all edits back: each row is merged again once, without them; returns how many."""
        with self.database.transaction():
            entries = self.outbox.everything()
            cursor = self.position().cursor
            for entry in entries:
                self.clock.discarded(entry.hlc, cursor)
                self.conflicts.taken_back(self.key_of(entry.delta), entry.hlc)
            self.outbox.remove(entry.hlc for entry in entries)
            self.rows.refold({self.key_of(entry.delta): None for entry in entries})
        return len(entries)

    def take_back(self, delta: Delta) -> None:
        """Remove a delta from the outbox and its row, within the caller's transaction."""
        self.clock.discarded(delta.hlc, self.position().cursor)
        self.outbox.remove((delta.hlc,))
        self.rows.refold({self.key_of(delta): None}, taken=1)

    def key_of(self, delta: Delta) -> LocalKey:
        """Return the key of a delta's row."""
        return self.catalogue.known(delta.table).id, delta.row_id


def open_file(
    path: str | Path,
    client_id: str,
    wall_clock: WallClock = system_clock,
    durability: Durability = "FULL",
    connection_class: type[sqlite3.Connection] = sqlite3.Connection,
    key: GivenKey | Key | None = None,
) -> ClientFile:
    """Open a client's file, creating it if there is none; raises as `Client` does."""
    check_own_client_id(checked_text(client_id, "client_id"))
    checked_path(path, "path")
    checked_clock(wall_clock)
    if str(path) in {"", ":memory:"}:
        raise ValidationFailed("a client needs the path of a file, or :memory:")
    try:
        database = Database(path, durability, connection_class, given_key(key))
        try:
            claim(database.writer, client_id)
            file = ClientFile(database, client_id, wall_clock)
            bring_up(database, file.catalogue, file.rows)
        except BaseException:
            database.close()
            raise
        else:
            return file
    except sqlite3.Error as exc:
        if str(exc).startswith(_SCHEMA_DAMAGED):
            raise FileCorrupt(f"{SALVAGE} ({exc})") from exc
        raise translated(exc) from exc
    except UnicodeDecodeError as exc:  # SQLite's message describes the damage
        raise FileCorrupt(f"{SALVAGE} ({exc})") from exc
    except ValueError as exc:  # a null character, half of a surrogate pair
        raise ValidationFailed(f"{str(path)!r} is not a path: {exc}") from exc
