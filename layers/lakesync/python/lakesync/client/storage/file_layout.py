"""LakeSync's own tables in the app's file, made, and brought up to date, in one transaction.

Their names begin with ``_lakesync_``; those of the app's tables never do. Files of the layouts
before this one are brought to it when they are opened. Layout 2 stored row states as they are sent,
each with the names of columns and clients. Layout 3 had a state for every row, so it did not store
up to which stamp. In layout 4 the columns of app tables had types, by which SQLite converted their
cells.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lakesync.client.storage.stored_state import States, places_in
from lakesync.errors import Conflict
from lakesync.wire.records import decode_row_state

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterator

# --- earlier layouts ------------------------------------------------------------------------------


WITH_NAMES: Final = 2
"""The layout whose row states name columns and clients."""
_WITHOUT_FORMS: Final = 4
"""The layout in whose app tables SQLite converted values; they are filled again from the states."""
FROM_LAYOUTS: Final = (WITH_NAMES, 3, _WITHOUT_FORMS)
_FORGET_CELLS: Final = (
    "ALTER TABLE _lakesync_columns RENAME COLUMN is_boolean TO forms",
    "UPDATE _lakesync_columns SET forms = NULL",
)
_ROWS_AT_ONCE: Final = 1_000
_ROWS: Final = (
    "SELECT table_id, row_id, state, base FROM _lakesync_rows "
    "WHERE (table_id, row_id) > (?, ?) ORDER BY table_id, row_id LIMIT ?"
)


def upgrade(connection: sqlite3.Connection, layout: int, clients: str, folded: str) -> None:
    """Bring a file of an earlier layout to this one, but for its app tables; see `bring_up`."""
    if layout == WITH_NAMES:
        connection.execute(clients)
        number_names(connection)
    if layout < _WITHOUT_FORMS:
        connection.execute(f"ALTER TABLE _lakesync_sync ADD COLUMN {folded}")
    for statement in _FORGET_CELLS:
        connection.execute(statement)


def number_names(connection: sqlite3.Connection) -> None:
    """Write each row state of layout 2 anew, within the caller's transaction."""
    places = places_in(connection)
    states = States(connection)

    def again(table_id: int, stored: bytes | None) -> bytes | None:
        if stored is None:
            return None
        state = decode_row_state(stored or None)
        return states.encode(places[table_id], state)

    for rows in _parts(connection):
        connection.executemany(
            "UPDATE _lakesync_rows SET state = ?, base = ? WHERE table_id = ? AND row_id = ?",
            [
                (again(table_id, state), again(table_id, base), table_id, row_id)
                for table_id, row_id, state, base in rows
            ],
        )


def _parts(
    connection: sqlite3.Connection,
) -> Iterator[list[tuple[int, str, bytes, bytes | None]]]:
    last: tuple[int, str] = (0, "")
    while rows := connection.execute(_ROWS, (*last, _ROWS_AT_ONCE)).fetchall():
        yield rows
        last = rows[-1][:2]


# --- the tables -----------------------------------------------------------------------------------


PREFIX: Final = "_lakesync_"
LAYOUT: Final = 5
"""The layout of these tables. Files of the three before are upgraded, others are refused."""

# Clients by the numbers that row states name them by.
JOURNAL: Final = "_lakesync_journal"
"""What rules hide from the app: no query reads it."""
CLIENTS: Final = """CREATE TABLE _lakesync_clients (
    number INTEGER PRIMARY KEY,
    client_id TEXT NOT NULL UNIQUE)"""

_FOLDED: Final = "folded INTEGER NOT NULL DEFAULT 0"
TABLES: Final = (
    # One row: who this file is, how far it has read, and what it knows of time.
    #   resync_mode what becomes of stale rows that a page brings; 0 while no re-sync goes on
    #   snapshot    where a snapshot of the rows goes on, between two of its pages
    #   scope       by which rules and claims the gateway decided what this file holds
    #   schemas     of the app's tables, as the gateway told them
    #   schemas_of  what the page said that led to asking for them
    #   synced_ms   when a pull that brought something last reached the end, by the gateway's clock
    #   tombstone_horizons  by table, as JSON, while a snapshot is read
    #   folded      up to which stamp the outbox holds no row that has no state
    f"""CREATE TABLE _lakesync_sync (
        id INTEGER PRIMARY KEY CHECK (id = 1),
        layout INTEGER NOT NULL,
        client_id TEXT NOT NULL,
        cursor INTEGER NOT NULL DEFAULT 0,
        epoch TEXT NOT NULL DEFAULT '',
        floor INTEGER NOT NULL DEFAULT 0,
        offset_ms INTEGER NOT NULL DEFAULT 0,
        resync_mode INTEGER NOT NULL DEFAULT 0,
        snapshot TEXT NOT NULL DEFAULT '',
        scope TEXT NOT NULL DEFAULT '',
        schemas TEXT NOT NULL DEFAULT '',
        schemas_of TEXT NOT NULL DEFAULT '',
        synced_ms INTEGER NOT NULL DEFAULT 0,
        tombstone_horizons TEXT NOT NULL DEFAULT '{{}}',
        {_FOLDED})""",
    # Wire names to SQLite names. Both fold case; SQLite reserves some names, the wire does not.
    """CREATE TABLE _lakesync_tables (
        id INTEGER PRIMARY KEY,
        name TEXT NOT NULL UNIQUE COLLATE NOCASE,
        sql_name TEXT NOT NULL UNIQUE COLLATE NOCASE)""",
    # A column without sql_name had no room in the app's table; it is kept in the row state.
    # forms: which of the values that look alike it has held; see
    # `lakesync.client.storage.cell_values`.
    # Null where its cells are those of an earlier layout.
    # declared: the type that the app declared, if any.
    """CREATE TABLE _lakesync_columns (
        table_id INTEGER NOT NULL,
        place INTEGER NOT NULL,
        name TEXT NOT NULL COLLATE NOCASE,
        sql_name TEXT COLLATE NOCASE,
        forms INTEGER,
        declared TEXT,
        PRIMARY KEY (table_id, place),
        UNIQUE (table_id, name)) WITHOUT ROWID""",
    CLIENTS,
    # state: everything merged, unsent edits too; as `lakesync.client.storage.stored_state` has it.
    # base: the same without what waits in the outbox; null where nothing of the row waits, empty
    # where the row is not known without it.
    # tombstone: null but for one; the cursor of the first pull that ended with it, 0 until then.
    """CREATE TABLE _lakesync_rows (
        table_id INTEGER NOT NULL,
        row_id TEXT NOT NULL,
        state BLOB NOT NULL,
        base BLOB,
        waiting INTEGER NOT NULL,
        tombstone INTEGER,
        PRIMARY KEY (table_id, row_id)) WITHOUT ROWID""",
    """CREATE INDEX _lakesync_rows_tombstones ON _lakesync_rows (tombstone)
        WHERE tombstone IS NOT NULL""",
    # Stamps are unique in one client, so the outbox is in push order by its key.
    """CREATE TABLE _lakesync_outbox (
        hlc INTEGER PRIMARY KEY,
        txn INTEGER,
        status TEXT NOT NULL,
        table_id INTEGER NOT NULL,
        row_id TEXT NOT NULL,
        run BLOB NOT NULL,
        code TEXT,
        message TEXT,
        field TEXT)""",
    # Partial, so that adding an edit does not touch them.
    """CREATE INDEX _lakesync_outbox_in_doubt ON _lakesync_outbox (hlc)
        WHERE status IN ('sent', 'late')""",
    """CREATE INDEX _lakesync_outbox_returning ON _lakesync_outbox (hlc)
        WHERE status IN ('offered', 'lost')""",
    # Rows that a re-sync has not read yet.
    """CREATE TABLE _lakesync_stale (
        table_id INTEGER NOT NULL,
        row_id TEXT NOT NULL,
        PRIMARY KEY (table_id, row_id)) WITHOUT ROWID""",
    # Edits that the gateway has accepted, by when, and that no page has returned yet.
    """CREATE TABLE _lakesync_pending_echo (
        table_id INTEGER NOT NULL,
        row_id TEXT NOT NULL,
        hlc INTEGER NOT NULL,
        accepted INTEGER NOT NULL,
        PRIMARY KEY (table_id, row_id, hlc)) WITHOUT ROWID""",
)

ADDED: Final = (
    # Actions that the app asked for. after_hlc: the last edit that it waits for; 0 for none.
    # sent_ms: when it was first sent. due_ms: when it is sent again; 0 for at once.
    """CREATE TABLE IF NOT EXISTS _lakesync_actions (
        place INTEGER PRIMARY KEY,
        action_id TEXT NOT NULL UNIQUE,
        connector TEXT NOT NULL,
        action TEXT NOT NULL,
        params TEXT NOT NULL,
        idempotency_key TEXT NOT NULL,
        after_hlc INTEGER NOT NULL,
        status TEXT NOT NULL,
        data TEXT,
        code TEXT,
        message TEXT,
        attempts INTEGER NOT NULL DEFAULT 0,
        queued_ms INTEGER NOT NULL,
        sent_ms INTEGER,
        due_ms INTEGER NOT NULL DEFAULT 0,
        ended_ms INTEGER)""",
    """CREATE INDEX IF NOT EXISTS _lakesync_actions_status
        ON _lakesync_actions (status, place)""",
    # Attachments whose bytes are on the device. parts: their digests, as JSON, of those made here.
    # upload: what the gateway knows an upload by that is under way. used_ms: when last used.
    """CREATE TABLE IF NOT EXISTS _lakesync_attachments (
        file_name TEXT NOT NULL UNIQUE,
        reference TEXT NOT NULL,
        status TEXT NOT NULL,
        code TEXT NOT NULL DEFAULT '',
        message TEXT NOT NULL DEFAULT '',
        parts TEXT NOT NULL DEFAULT '[]',
        upload TEXT NOT NULL DEFAULT '',
        used_ms INTEGER NOT NULL)""",
    # Tables whose rows the latest snapshot of all tables reads, in small letters. The data of any
    # other table is in the log after it.
    """CREATE TABLE IF NOT EXISTS _lakesync_row_tables (
        name TEXT PRIMARY KEY) WITHOUT ROWID""",
    # Rows with own writes that the gateway has accepted and no page has shown: what pages have
    # shown of the row, and the commit by which the writes were accepted. known is null where
    # edits wait and rules have hidden the row: what was shown of it is no longer here.
    """CREATE TABLE IF NOT EXISTS _lakesync_unread (
        table_id INTEGER NOT NULL,
        row_id TEXT NOT NULL,
        accepted INTEGER NOT NULL,
        known BLOB,
        PRIMARY KEY (table_id, row_id)) WITHOUT ROWID""",
    """CREATE INDEX IF NOT EXISTS _lakesync_unread_accepted ON _lakesync_unread (accepted)""",
    # Own writes that were accepted and that rules hide: `lakesync.client.storage.own_writes`.
    # hidden_at: the commit of the page that showed it.
    f"""CREATE TABLE IF NOT EXISTS {JOURNAL} (
        hlc INTEGER NOT NULL,
        table_id INTEGER NOT NULL,
        row_id TEXT NOT NULL,
        hidden_at INTEGER NOT NULL,
        run BLOB NOT NULL,
        PRIMARY KEY (hlc, table_id, row_id)) WITHOUT ROWID""",
    # Two writes of a value that did not know each other: `lakesync.client.storage.conflicts`.
    # place: of the column. own, other, base: canonical values, null where there is none.
    """CREATE TABLE IF NOT EXISTS _lakesync_conflicts (
        id INTEGER PRIMARY KEY,
        table_id INTEGER NOT NULL,
        row_id TEXT NOT NULL,
        place INTEGER NOT NULL,
        own BLOB,
        own_hlc INTEGER NOT NULL,
        other BLOB,
        other_hlc INTEGER NOT NULL,
        other_client TEXT NOT NULL,
        base BLOB,
        won INTEGER NOT NULL,
        deleted INTEGER NOT NULL,
        hidden INTEGER NOT NULL,
        UNIQUE (table_id, row_id, place, own_hlc))""",
    # Sources, and the `snapshot` of the last page of each that was applied.
    """CREATE TABLE IF NOT EXISTS _lakesync_sources (
        source TEXT PRIMARY KEY,
        snapshot TEXT NOT NULL) WITHOUT ROWID""",
    # Their tables: each is one of the app's, named source.name.
    """CREATE TABLE IF NOT EXISTS _lakesync_source_tables (
        source TEXT NOT NULL,
        name TEXT NOT NULL,
        PRIMARY KEY (source, name)) WITHOUT ROWID""",
    # state: everything merged, in the form of the wire. stale: the row is being read again.
    """CREATE TABLE IF NOT EXISTS _lakesync_source_rows (
        source TEXT NOT NULL,
        name TEXT NOT NULL,
        row_id TEXT NOT NULL,
        state BLOB NOT NULL,
        stale INTEGER NOT NULL,
        PRIMARY KEY (source, name, row_id)) WITHOUT ROWID""",
    """CREATE INDEX IF NOT EXISTS _lakesync_source_rows_stale
        ON _lakesync_source_rows (source) WHERE stale""",
    # How many conflicts were dropped, as there were too many; the last id, which is not used again.
    """CREATE TABLE IF NOT EXISTS _lakesync_conflict_counts (
        id INTEGER PRIMARY KEY CHECK (id = 1),
        dropped INTEGER NOT NULL,
        last INTEGER NOT NULL)""",
)
"""Tables that files of the same layout may lack: they are made when one is opened."""


def claim(connection: sqlite3.Connection, client_id: str) -> None:
    """Make the tables, for a client, or prove that they are its own; safe to repeat."""
    with connection:  # all of it or, where anything raises, nothing
        connection.execute("BEGIN IMMEDIATE")
        made = "SELECT 1 FROM sqlite_master WHERE name = '_lakesync_sync'"
        if not connection.execute(made).fetchone():
            for statement in TABLES:
                connection.execute(statement)
            connection.execute(
                "INSERT INTO _lakesync_sync (id, layout, client_id) VALUES (1, ?, ?)",
                (LAYOUT, client_id),
            )
        layout, owner = connection.execute(
            "SELECT layout, client_id FROM _lakesync_sync"
        ).fetchone()
        if layout in FROM_LAYOUTS and owner == client_id:
            upgrade(connection, layout, CLIENTS, _FOLDED)
            connection.execute("UPDATE _lakesync_sync SET layout = ?", (LAYOUT,))
            layout = LAYOUT
        if (layout, owner) == (LAYOUT, client_id):
            for statement in ADDED:
                connection.execute(statement)
    if layout != LAYOUT:
        raise Conflict(
            f"this database was written by another release (layout {layout}, this one knows "
            f"{LAYOUT}); use the lakesync that wrote it"
        )
    if owner != client_id:
        raise Conflict(
            f"this database belongs to the client {owner!r}, and its unsent edits carry that name; "
            "open it as that client, or give each client a file of its own"
        )
