"""Rows that a client knows by its own writes alone: no page has brought them.

Where rules decide, such a row may be out of sight, and then nobody tells what becomes of it: not
that it was deleted, nor that the deletion was forgotten. When it comes into sight it is sent whole;
so what was written into it goes first, as far as the gateway has judged it by then. A row that was
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
    "INSERT INTO _lakesync_alone (table_id, row_id, accepted, hlc) VALUES (?, ?, ?, ?) "
    "ON CONFLICT (table_id, row_id, accepted) DO UPDATE SET hlc = max(hlc, excluded.hlc)"
)
_IS_NOTED: Final = "SELECT 1 FROM _lakesync_alone WHERE table_id = ? AND row_id = ? LIMIT 1"
# Every page to come tells what was accepted up to the cursor: the last note of that says it all.
_SHORTEN: Final = (
    "DELETE FROM _lakesync_alone AS old WHERE table_id = ? AND row_id = ? AND EXISTS ("
    "SELECT 1 FROM _lakesync_alone WHERE table_id = old.table_id AND row_id = old.row_id "
    "AND accepted > old.accepted AND accepted <= (SELECT cursor FROM _lakesync_sync))"
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
        newest: dict[tuple[int, str], Stamp] = {}
        for delta in deltas:
            key = self._catalogue.table(delta.table, ()).id, delta.row_id
            newest[key] = max(delta.hlc, newest.get(key, 0))
        for (table_id, row_id), hlc in newest.items():
            if table_id not in ruled:
                continue
            held = self._connection.execute(SELECT_ROW, (table_id, row_id)).fetchone()
            base = base_state(Held(*(held or NOT_HELD)))
            is_held = base.alive or base.columns
            if is_held and not self._connection.execute(_IS_NOTED, (table_id, row_id)).fetchone():
                continue
            self._connection.execute(_NOTE, (table_id, row_id, accepted, hlc))
            self._connection.execute(_SHORTEN, (table_id, row_id))

    def met(self, table_id: int, row_ids: Sequence[str], until: Stamp) -> dict[str, Stamp]:
        """Note that a page brings rows; they are no longer alone.

        Args:
            table_id: the table.
            row_ids: the rows.
            until: the commit up to which the page tells everything; 0 if it tells of rows only.

        Returns:
            For each the stamp up to which all that is held is told by the page, or is no more.
        """
        found: dict[str, Stamp] = {}
        if not self._connection.execute("SELECT 1 FROM _lakesync_alone LIMIT 1").fetchone():
            return found
        for part, marks in in_parts(row_ids):
            found.update(
                self._connection.execute(
                    "SELECT row_id, max(hlc) FROM _lakesync_alone "  # noqa: S608 - marks
                    f"WHERE table_id = ? AND accepted <= ? AND row_id IN ({marks}) GROUP BY row_id",
                    (table_id, until, *part),
                )
            )
            self._connection.execute(
                "DELETE FROM _lakesync_alone "  # noqa: S608 - marks
                f"WHERE table_id = ? AND row_id IN ({marks})",
                (table_id, *part),
            )
        return found


def ruled_tables(connection: sqlite3.Connection) -> list[int]:
    """Give the tables of which rules may hide rows, even such as a client wrote itself."""
    (text,) = connection.execute("SELECT scope FROM _lakesync_sync").fetchone()
    scope = scope_of(text or EVERYTHING)
    tables = connection.execute("SELECT id, name FROM _lakesync_tables").fetchall()
    return [table_id for table_id, name in tables if scope.of(name) != EVERYTHING]
