"""Files of the layouts before this one, brought to it when they are opened.

Layout 2 stored row states as they are sent, each with the names of columns and clients. Layout 3
had a state for every row, so it did not store up to which stamp. In layout 4 the columns of app
tables had types, by which SQLite converted their cells.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lakesync.client.storage.row_names import places_in
from lakesync.client.storage.stored_state import States
from lakesync.wire.row_state import decode_row_state

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterator

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
    """Bring a file of an earlier layout to this one, but for its app tables; see `bring_up`.

    Args:
        connection: the file's, in a transaction.
        layout: one of `FROM_LAYOUTS`.
        clients: makes the table of clients, which layout 2 lacks.
        folded: the column that layouts 2 and 3 lack.
    """
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
