"""Rows that a client knows by its own writes alone: no page has brought them.

Where rules decide, such a row may be out of sight, and then nobody tells what becomes of it: not
that it was deleted, nor that the deletion was forgotten. When it comes into sight it is sent whole;
so what was written into it goes first, if the gateway has judged all of it by then. A row that was
in sight all along comes whole with its first page too, and nothing is lost by reading it anew.
Law K15: ``docs/spec/client.md``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lakesync.client.rows import NOT_HELD, SELECT_ROW, Held, base_state, in_parts
from lakesync.core.scope import EVERYTHING, scope_of

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterable, Sequence

    from lakesync.client.catalogue import Catalogue
    from lakesync.core.clock import Stamp
    from lakesync.core.delta import Delta

_NOTE: Final = (
    "INSERT INTO _lakesync_alone (table_id, row_id, accepted) VALUES (?, ?, ?) "
    "ON CONFLICT (table_id, row_id) DO UPDATE SET accepted = max(accepted, excluded.accepted)"
)
_RAISE: Final = (
    "UPDATE _lakesync_alone SET accepted = max(accepted, ?) WHERE table_id = ? AND row_id = ?"
)


class Alone:
    """The rows of one file that no page has brought. Used within the caller's transaction."""

    def __init__(self, connection: sqlite3.Connection, catalogue: Catalogue) -> None:
        self._connection = connection
        self._catalogue = catalogue

    def note(self, deltas: Iterable[Delta], accepted: Stamp) -> None:
        """Note the rows of deltas that a receipt accepts, before their bases hold them.

        Costs two small reads where no rules decide.

        Args:
            deltas: this client's own.
            accepted: the gateway's latest commit by then.
        """
        ruled = set(ruled_tables(self._connection))
        if not ruled:
            return
        keys = dict.fromkeys(
            (self._catalogue.table(delta.table, ()).id, delta.row_id) for delta in deltas
        )
        for table_id, row_id in keys:
            if table_id not in ruled:
                continue
            held = self._connection.execute(SELECT_ROW, (table_id, row_id)).fetchone()
            base = base_state(Held(*(held or NOT_HELD)))
            if base.alive or base.columns:
                self._connection.execute(_RAISE, (accepted, table_id, row_id))
            else:
                self._connection.execute(_NOTE, (table_id, row_id, accepted))

    def met(self, table_id: int, row_ids: Sequence[str], until: Stamp) -> list[str]:
        """Note that a page brings rows; they are no longer alone.

        Args:
            table_id: the table.
            row_ids: the rows.
            until: the commit up to which the page tells everything; 0 if it tells of rows only.

        Returns:
            Those that are no more than the page tells.
        """
        found: list[tuple[str, Stamp]] = []
        if self._connection.execute("SELECT 1 FROM _lakesync_alone LIMIT 1").fetchone():
            for part, marks in in_parts(row_ids):
                found += self._connection.execute(
                    "SELECT row_id, accepted FROM _lakesync_alone "  # noqa: S608 - marks
                    f"WHERE table_id = ? AND row_id IN ({marks})",
                    (table_id, *part),
                ).fetchall()
            self._connection.executemany(
                "DELETE FROM _lakesync_alone WHERE table_id = ? AND row_id = ?",
                [(table_id, row_id) for row_id, _ in found],
            )
        return [row_id for row_id, accepted in found if accepted <= until]


def ruled_tables(connection: sqlite3.Connection) -> list[int]:
    """Give the tables of which rules may hide rows, even such as a client wrote itself."""
    (text,) = connection.execute("SELECT scope FROM _lakesync_sync").fetchone()
    scope = scope_of(text or EVERYTHING)
    tables = connection.execute("SELECT id, name FROM _lakesync_tables").fetchall()
    return [table_id for table_id, name in tables if scope.of(name) != EVERYTHING]
