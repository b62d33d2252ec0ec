"""This client's own writes that the gateway has accepted, and that no page has told yet.

Where rules decide, a row may be out of sight, and then nobody tells what becomes of it: not that it
was deleted, nor that the deletion was forgotten. When it comes into sight it is sent whole. So what
this client wrote into it, was accepted by then and is not told is no more, and goes; what was
accepted later is yet to be told. What a page has told once is noted no longer, and stays.
Law K15: ``docs/spec/client.md``.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final

from lakesync.client.download.position import position_of
from lakesync.client.storage.rows import NOT_HELD, base_state, in_parts
from lakesync.core.merge import EMPTY, RowState, fold
from lakesync.core.scope import EVERYTHING, scope_of

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from lakesync.client.storage.catalogue import Catalogue
    from lakesync.client.storage.rows import Rows
    from lakesync.core.clock import Stamp
    from lakesync.core.delta import Delta

_ANY: Final = "SELECT 1 FROM _lakesync_untold LIMIT 1"
_PUT: Final = (
    "INSERT OR IGNORE INTO _lakesync_untold (table_id, row_id, hlc, accepted) VALUES (?, ?, ?, ?)"
)
_DROP: Final = "DELETE FROM _lakesync_untold WHERE table_id = ? AND row_id = ? AND hlc = ?"


class Untold:
    """The untold writes of one file. Used within the caller's transaction."""

    def __init__(
        self, connection: sqlite3.Connection, *, client_id: str, catalogue: Catalogue, rows: Rows
    ) -> None:
        self._connection = connection
        self._client_id = client_id
        self._catalogue = catalogue
        self._rows = rows

    def note(self, deltas: Iterable[Delta], accepted: Stamp) -> None:
        """Note the writes that a receipt accepts, before the bases of their rows hold them.

        A row has at most as many notes as it has columns, and one. Costs two small reads where no
        rules decide.

        Args:
            deltas: this client's own.
            accepted: the gateway's latest commit by then.
        """
        ruled = set(ruled_tables(self._connection))
        if not ruled:
            return
        tables: dict[int, dict[str, list[Delta]]] = defaultdict(lambda: defaultdict(list))
        for delta in deltas:
            tables[self._catalogue.table(delta.table, ()).id][delta.row_id].append(delta)
        for table_id in tables.keys() & ruled:
            self._note_rows(table_id, tables[table_id], accepted)

    def _note_rows(
        self, table_id: int, written: Mapping[str, list[Delta]], accepted: Stamp
    ) -> None:
        stored = self._rows.load(table_id, list(written))
        noted = self._noted(table_id, list(written))
        new: list[tuple[int, str, Stamp, Stamp]] = []
        gone: list[tuple[int, str, Stamp]] = []
        for row_id, deltas in written.items():
            base = base_state(stored.get(row_id, NOT_HELD))
            before, after = self._own(base), self._own(fold(deltas, base))
            # What is in the base without a note was told.
            own = ({delta.hlc for delta in deltas} & after) - before
            new += [(table_id, row_id, hlc, accepted) for hlc in sorted(own)]
            gone += [(table_id, row_id, hlc) for hlc in sorted(noted[row_id].keys() - after)]
        self._connection.executemany(_PUT, new)
        self._connection.executemany(_DROP, gone)

    def _own(self, state: RowState) -> set[Stamp]:
        """Give the stamps in a row that may be this client's own."""
        own = {hlc for hlc, client_id, _ in state.columns.values() if client_id == self._client_id}
        return own | {state.alive}

    def _noted(self, table_id: int, row_ids: Sequence[str]) -> dict[str, dict[Stamp, Stamp]]:
        """Give for rows the stamps that are noted, and the commit by which each was accepted."""
        found: dict[str, dict[Stamp, Stamp]] = defaultdict(dict)
        for part, marks in in_parts(row_ids):
            for row_id, hlc, accepted in self._connection.execute(
                "SELECT row_id, hlc, accepted FROM _lakesync_untold "  # noqa: S608 - marks
                f"WHERE table_id = ? AND row_id IN ({marks})",
                (table_id, *part),
            ):
                found[row_id][hlc] = accepted
        return found

    def told(
        self, table_id: int, rows: Mapping[str, Sequence[Delta]], until: Stamp
    ) -> dict[str, set[Stamp]]:
        """Note that a page tells of rows.

        Args:
            table_id: the table.
            rows: what it tells of each after the row's last removal, if there is one.
            until: the commit up to which it tells everything that is in sight.

        Returns:
            The writes that are no more, by row: the row is in sight without them.
        """
        gone: dict[str, set[Stamp]] = {}
        if not self._connection.execute(_ANY).fetchone():
            return gone
        settled: list[tuple[int, str, Stamp]] = []
        for row_id, noted in self._noted(table_id, list(rows)).items():
            deltas = rows[row_id]
            # Whoever is named: of a bare insert only the stamp is known. And what has the stamp of
            # a write that a deletion took was taken by it too.
            over = noted.keys() & {delta.hlc for delta in deltas} if deltas else set(noted)
            if fold(deltas, EMPTY)._replace(deleted=0) != EMPTY:
                due = {hlc for hlc, accepted in noted.items() if accepted <= until} - over
                if due:
                    gone[row_id] = due
                    over |= due
            settled += [(table_id, row_id, hlc) for hlc in sorted(over)]
        self._connection.executemany(_DROP, settled)
        return gone

    def without(self, state: RowState, writes: Collection[Stamp]) -> RowState:
        """Give a row without some of this client's writes."""
        columns = {
            name: held
            for name, held in state.columns.items()
            if held[1] != self._client_id or held[0] not in writes
        }
        return RowState(0 if state.alive in writes else state.alive, state.deleted, columns)


def ruled_tables(connection: sqlite3.Connection) -> list[int]:
    """Give the tables of which rules may hide rows, even such as a client wrote itself.

    Before the first page that may be any.
    """
    at = position_of(connection)
    scope = scope_of(at.scope or EVERYTHING)
    tables = connection.execute("SELECT id, name FROM _lakesync_tables").fetchall()
    return [table_id for table_id, name in tables if at.is_new or scope.of(name) != EVERYTHING]
