"""`ClientFile`: one client's file, its position, and an object for each kind of data.

`Position` is the gateway that a file belongs to, and where it reads on.

A table of the app whose declared types change, or that an earlier layout wrote, is made again and
filled from the row states: these have every value as it was written, whatever a column was declared
as.
"""

from __future__ import annotations

import json
import sqlite3
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

from lakesync.client.storage.action_queue import ActionQueue
from lakesync.client.storage.app_catalogue import Catalogue, checked_name
from lakesync.client.storage.app_table import quote, sql_type_of, table_sql
from lakesync.client.storage.attachment_store import AttachmentTable
from lakesync.client.storage.conflicts import Conflicts
from lakesync.client.storage.file_layout import claim
from lakesync.client.storage.misuse import checked_clock, checked_path, checked_text
from lakesync.client.storage.outbox import DeviceClock, Outbox, Status, system_clock
from lakesync.client.storage.private_files import given_key
from lakesync.client.storage.sqlite_file import SALVAGE, Database, translated
from lakesync.client.storage.statement_capture import Capture
from lakesync.client.storage.stored_rows import Rows, Unfolded
from lakesync.core.delta import check_own_client_id
from lakesync.core.gateway_identity import check_identity
from lakesync.core.messages import Pull, begin_words
from lakesync.core.schema import schemas_from_json
from lakesync.core.visibility import EVERYTHING
from lakesync.errors import AnotherGateway, FileCorrupt, InternalError, NotFound, ValidationFailed

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from lakesync.client.storage.action_queue import ActionEntry
    from lakesync.client.storage.app_table import AppTable
    from lakesync.client.storage.conflicts import LostWrite
    from lakesync.client.storage.outbox import Entry, OutboxEntry
    from lakesync.client.storage.private_files import GivenKey, Key
    from lakesync.client.storage.sqlite_file import Durability
    from lakesync.client.storage.stored_rows import LocalKey
    from lakesync.core.clock import Stamp
    from lakesync.core.delta import Delta
    from lakesync.core.messages import PullPage
    from lakesync.core.schema import TableSchema
    from lakesync.errors import LakeSyncError
    from lakesync.ports import WallClock

# --- the position ---------------------------------------------------------------------------------


class Position(NamedTuple):
    """Where a client reads on."""

    cursor: Stamp
    epoch: str
    """The gateway that the file belongs to, and its last restore that was noticed; empty until a
    gateway has told it."""
    snapshot: str
    """Where a snapshot of the rows continues; empty if none is in progress."""
    scope: str = ""
    """What decided which rows were sent; empty if that is not known."""

    @property
    def is_new(self) -> bool:
        return (self.cursor, self.snapshot, self.scope) == (0, "", "")

    @property
    def from_the_start(self) -> Position:
        """Where everything of the same gateway is read again."""
        return Position(0, self.epoch, "")

    def pull(self, client_id: str, deltas_max: int, first: tuple[str, ...] = ()) -> Pull:
        """Return the request for the next page; a client that begins asks for some tables first."""
        cursor, epoch, snapshot, scope = self
        if self.is_new:
            snapshot = begin_words(first)
        return Pull(client_id, cursor, deltas_max, epoch, snapshot, removes=True, scope=scope)

    def is_followed_by(self, page: PullPage) -> bool:
        """Return whether the rows stay true with a page that answers `pull`."""
        compares = bool(self.scope) or self.shows_as(page)
        return self.is_new or (compares and not self.is_before(page))

    def is_before(self, page: PullPage) -> bool:
        """Return whether the gateway was restored since the file was told its epoch."""
        return bool(self.epoch) and page.epoch != self.epoch

    def checked(self, page: PullPage) -> PullPage:
        """Return a page; raise if it is another gateway's, or leads backwards or nowhere."""
        check_identity(self.epoch, page.epoch)
        before = (self.snapshot, self.scope) if page.snapshot else (self.cursor, self.scope)
        stays = before == (page.snapshot or page.cursor, page.scope)
        backwards = page.cursor < self.cursor and not page.snapshot
        if backwards or (page.has_more and stays):
            raise InternalError(
                f"the gateway answered the cursor {self.cursor} with the cursor {page.cursor}; "
                "nothing was applied: report it with the time of the request"
            )
        return page

    def may_apply(self, broadcast: PullPage) -> bool:
        """Return whether a broadcast brings what a pull from here would."""
        same = (broadcast.epoch, broadcast.scope) == (self.epoch, self.scope)
        return same and not self.snapshot and not self.is_new and broadcast.follows(self.cursor)

    def reads_again(self, broadcast: PullPage) -> bool:
        """Return whether a pull from here will read tables again, as other rules decide now."""
        begins = not self.is_new and not self.snapshot
        return begins and bool(broadcast.scope) and not self.shows_as(broadcast)

    def shows_as(self, page: PullPage) -> bool:
        """Return whether a page was decided by the same rules and claims as all rows so far."""
        return page.scope == self.scope or (not self.scope and page.scope == EVERYTHING)


# --- tables filled again --------------------------------------------------------------------------


_ROWS_AT_ONCE: Final = 1_000
_OLD_CELLS: Final = "SELECT DISTINCT table_id FROM _lakesync_columns WHERE forms IS NULL"


def fill_again(connection: sqlite3.Connection, rows: Rows, table: AppTable) -> None:
    """Create a table of the app again, by its columns' types, with the rows of its states."""
    dependants = connection.execute(
        "SELECT sql FROM sqlite_master "
        "WHERE tbl_name = ? COLLATE NOCASE AND type IN ('index', 'trigger') AND sql IS NOT NULL",
        (table.sql_name,),
    ).fetchall()
    connection.execute(f"DROP TABLE main.{quote(table.sql_name)}")
    columns = table.columns.items()
    shown = [(sql_name, sql_type_of(table.kind(name))) for name, sql_name in columns if sql_name]
    connection.execute(table_sql(table.sql_name, shown))
    connection.execute("UPDATE _lakesync_columns SET forms = 0 WHERE table_id = ?", (table.id,))
    table.forms = dict.fromkeys(table.columns, 0)
    table.prepare()
    barred, table.barred_triggers = table.barred_triggers, ()  # no trigger is there now
    stored = rows.of_table(table.id)
    while part := list(islice(stored, _ROWS_AT_ONCE)):
        rows.show_states((table, row_id, row.state) for row_id, row in part)
    table.barred_triggers = barred
    for (sql,) in dependants:
        connection.execute(sql)


def bring_up(database: Database, catalogue: Catalogue, rows: Rows) -> None:
    """Fill tables again whose cells an earlier layout wrote, unless the file is damaged."""
    if not database.read(_OLD_CELLS)[1]:
        return
    if database.read("PRAGMA quick_check(1)")[1] != [("ok",)]:
        raise FileCorrupt(SALVAGE)
    with database.transaction() as connection:
        for (table_id,) in connection.execute(_OLD_CELLS).fetchall():
            fill_again(connection, rows, catalogue.by_id(table_id))


# --- the file -------------------------------------------------------------------------------------


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
        row = self.connection.execute("SELECT cursor, epoch, snapshot, scope FROM _lakesync_sync")
        return Position(*row.fetchone())

    def learn_epoch(self, named: str, epoch: str) -> None:
        """Bind the file to the gateway that answered first; `AnotherGateway` if it has another."""
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
        checked_name(table, "table")
        if column is not None:
            checked_name(column, "column")
        _, rows = self.database.read(_SQL_NAMES, (column, table))
        return rows[0][column is not None] if rows else None  # type: ignore[return-value]

    def listed_actions(self, *, dead: bool) -> list[ActionEntry]:
        with self.database.reading() as connection:
            return ActionQueue(connection, self.client_id, self.clock).listed(dead=dead)

    def entries(self, *, quarantined: bool) -> list[OutboxEntry]:
        with self.database.reading() as connection:
            return Outbox(connection).entries(quarantined=quarantined)

    def listed_conflicts(self) -> list[LostWrite]:
        with self.database.reading() as connection:
            return Conflicts(connection, self.catalogue).listed()

    def quarantine(self, refused: Sequence[tuple[Entry, LakeSyncError]]) -> None:
        """Set refused edits aside, with the actions that wait for them."""
        self.outbox.quarantine(refused)
        codes = ", ".join(sorted({error.code for _, error in refused}))
        self.actions.edits_refused([entry.hlc for entry, _ in refused], codes)

    def retry(self, delta_id: str) -> Delta:
        with self.database.transaction():
            entry = self.quarantined(delta_id)
            self.outbox.release(entry)
        return entry.delta

    def quarantined(self, delta_id: str) -> Entry:
        entry = self.outbox.find(checked_text(delta_id, "delta_id"))
        if entry is None or entry.status != Status.QUARANTINED:
            raise NotFound(_NO_ENTRY.format("quarantined edit"), field="delta_id")
        return entry

    def discard(self, delta_id: str) -> Delta:
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
