"""The rows of a client's file, as its rules have them: one in the outbox alone is its insert."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from lakesync.client.storage.stored_rows import unfolded
from lakesync.client.storage.stored_state import states_in
from lakesync.core.merge import EMPTY, RowState, fold

if TYPE_CHECKING:
    from lakesync.client import Client
    from lakesync.core.clock import Stamp

_STORED: Final = (
    "SELECT table_id, row_id, state, base, waiting, tombstone FROM _lakesync_rows "
    "JOIN _lakesync_tables ON id = table_id"
)


class ClientRow(NamedTuple):
    """One row of a client's file."""

    table_id: int
    table: str
    row_id: str
    state: RowState
    base: RowState | None
    waiting: int
    tombstone: Stamp | None

    @property
    def known(self) -> RowState:
        return self.state if self.base is None else self.base


def client_rows(client: Client, table: str = "", row_id: str = "") -> list[ClientRow]:
    """Return all rows that are committed, or one, in the order of tables and row ids."""
    connection = client._file.database._reader
    # First those without a state: it may be written meanwhile.
    inserts = list(unfolded(connection))
    names = dict(connection.execute("SELECT id, name FROM _lakesync_tables").fetchall())
    state_of = states_in(connection)
    rows = {
        (table_id, of_row): ClientRow(
            table_id, names[table_id], of_row, fold((delta,)), EMPTY, 1, None
        )
        for (table_id, of_row), delta in inserts
        if not table or (names[table_id], of_row) == (table, row_id)
    }
    for table_id, of_row, state, base, *rest in connection.execute(
        f"{_STORED} WHERE name = ? AND row_id = ?" if table else _STORED,
        (table, row_id) if table else (),
    ).fetchall():
        known = None if base is None else state_of(table_id, base)
        rows[table_id, of_row] = ClientRow(
            table_id, names[table_id], of_row, state_of(table_id, state), known, *rest
        )
    return [row for _, row in sorted(rows.items())]
