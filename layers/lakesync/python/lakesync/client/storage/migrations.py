"""The sync tables, as numbered migrations: each runs once, in one transaction with its own record.

All names of LakeSync's own tables begin with ``_lakesync_``; the app's tables never do. A released
migration is never edited: the next change of layout is the next number.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lakesync.errors import Conflict

if TYPE_CHECKING:
    import sqlite3

PREFIX: Final = "_lakesync_"

_RECORD: Final = (
    "CREATE TABLE IF NOT EXISTS _lakesync_migrations ("
    "version INTEGER PRIMARY KEY, applied_at_ms INTEGER NOT NULL)"
)

MIGRATIONS: Final[tuple[tuple[str, ...], ...]] = (
    (
        # One row: who this file is, how far it has read, and what it knows of time.
        """CREATE TABLE _lakesync_sync (
            id INTEGER PRIMARY KEY CHECK (id = 1),
            client_id TEXT NOT NULL,
            cursor INTEGER NOT NULL DEFAULT 0,
            epoch TEXT NOT NULL DEFAULT '',
            floor INTEGER NOT NULL DEFAULT 0,
            offset_ms INTEGER NOT NULL DEFAULT 0,
            rebuilding INTEGER NOT NULL DEFAULT 0)""",
        # Wire names to SQLite names: SQLite folds case and reserves some names, the wire does not.
        """CREATE TABLE _lakesync_tables (
            id INTEGER PRIMARY KEY,
            name TEXT NOT NULL UNIQUE,
            sql_name TEXT NOT NULL UNIQUE COLLATE NOCASE)""",
        # A column without sql_name found no room in the app's table; it is kept in the row state.
        """CREATE TABLE _lakesync_columns (
            table_id INTEGER NOT NULL,
            place INTEGER NOT NULL,
            name TEXT NOT NULL,
            sql_name TEXT COLLATE NOCASE,
            PRIMARY KEY (table_id, place),
            UNIQUE (table_id, name)) WITHOUT ROWID""",
        # state: everything merged, unsent edits too. base: the same without what waits in the
        # outbox; null where nothing of the row waits, empty where the row is not known without it.
        """CREATE TABLE _lakesync_rows (
            table_id INTEGER NOT NULL,
            row_id TEXT NOT NULL,
            state BLOB NOT NULL,
            base BLOB,
            waiting INTEGER NOT NULL,
            PRIMARY KEY (table_id, row_id)) WITHOUT ROWID""",
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
        # Rows that a rebuild has not met yet.
        """CREATE TABLE _lakesync_stale (
            table_id INTEGER NOT NULL,
            row_id TEXT NOT NULL,
            PRIMARY KEY (table_id, row_id)) WITHOUT ROWID""",
    ),
    (
        # Where a snapshot of the rows goes on, between two of its pages.
        "ALTER TABLE _lakesync_sync ADD COLUMN snapshot TEXT NOT NULL DEFAULT ''",
    ),
    (
        # By which rules and claims the gateway decided what this file holds.
        "ALTER TABLE _lakesync_sync ADD COLUMN scope TEXT NOT NULL DEFAULT ''",
    ),
    (
        # The tables' schemas as the gateway told them, and what the page said that led to asking.
        "ALTER TABLE _lakesync_sync ADD COLUMN schemas TEXT NOT NULL DEFAULT ''",
        "ALTER TABLE _lakesync_sync ADD COLUMN schemas_of TEXT NOT NULL DEFAULT ''",
    ),
    (
        # The horizons of tombstones by table, as JSON, while a snapshot is read.
        "ALTER TABLE _lakesync_sync ADD COLUMN tombstone_horizons TEXT NOT NULL DEFAULT '{}'",
    ),
    (
        # Rows that the gateway has accepted edits of, by when, and that no page has brought.
        """CREATE TABLE _lakesync_alone (
            table_id INTEGER NOT NULL,
            row_id TEXT NOT NULL,
            accepted INTEGER NOT NULL,
            PRIMARY KEY (table_id, row_id)) WITHOUT ROWID""",
    ),
    (
        # And which: one note for each receipt. What is noted already are edits of any stamp.
        "ALTER TABLE _lakesync_alone RENAME TO _lakesync_alone_before",
        """CREATE TABLE _lakesync_alone (
            table_id INTEGER NOT NULL,
            row_id TEXT NOT NULL,
            accepted INTEGER NOT NULL,
            hlc INTEGER NOT NULL,
            PRIMARY KEY (table_id, row_id, accepted)) WITHOUT ROWID""",
        """INSERT INTO _lakesync_alone
            SELECT table_id, row_id, accepted, ~(1 << 63) FROM _lakesync_alone_before""",
        "DROP TABLE _lakesync_alone_before",
    ),
    (
        # Edits that the gateway has accepted, by when, and that no page has told yet.
        """CREATE TABLE _lakesync_untold (
            table_id INTEGER NOT NULL,
            row_id TEXT NOT NULL,
            hlc INTEGER NOT NULL,
            accepted INTEGER NOT NULL,
            PRIMARY KEY (table_id, row_id, hlc)) WITHOUT ROWID""",
        # What was noted before does not tell which: such rows are read again.
        """UPDATE _lakesync_sync SET scope = '_'
            WHERE scope NOT IN ('', '*') AND EXISTS (SELECT 1 FROM _lakesync_alone)""",
        "DROP TABLE _lakesync_alone",
    ),
)


def migrate(connection: sqlite3.Connection, now_ms: int) -> None:
    """Bring the sync tables up to date; safe to repeat, and after a crash at any point.

    Raises:
        Conflict: a newer release wrote this file.
    """
    connection.execute(_RECORD)
    while True:
        connection.execute("BEGIN IMMEDIATE")
        try:
            done = _apply_next(connection, now_ms)
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
        if done:
            return


def _apply_next(connection: sqlite3.Connection, now_ms: int) -> bool:
    """Apply the first migration that is not recorded; True if there is none left."""
    row = connection.execute("SELECT max(version) FROM _lakesync_migrations").fetchone()
    version: int = row[0] or 0
    if version > len(MIGRATIONS):
        raise Conflict(
            f"this database was written by a newer release (layout {version}, this one knows "
            f"{len(MIGRATIONS)}); upgrade lakesync to open it"
        )
    if version == len(MIGRATIONS):
        return True
    for statement in MIGRATIONS[version]:
        connection.execute(statement)
    connection.execute(
        "INSERT INTO _lakesync_migrations (version, applied_at_ms) VALUES (?, ?)",
        (version + 1, now_ms),
    )
    return False


def claim(connection: sqlite3.Connection, client_id: str) -> None:
    """Make the file this client's, or prove that it is; safe to repeat.

    Raises:
        Conflict: the file belongs to another client.
    """
    connection.execute(
        "INSERT OR IGNORE INTO _lakesync_sync (id, client_id) VALUES (1, ?)", (client_id,)
    )
    held = connection.execute("SELECT client_id FROM _lakesync_sync").fetchone()[0]
    if held != client_id:
        raise Conflict(
            f"this database belongs to the client {held!r}, and its unsent edits carry that name; "
            "open it as that client, or give each client a file of its own"
        )
