"""Rows with own writes that the gateway has accepted and no page has shown yet.

Of each it is noted what pages had shown of it, so that the next one can be compared with that. A
note is written with the receipt, advances with each page, and goes with the page that reaches the
commit of the receipt: a crash in between loses none. Law K27: ``docs/spec/client.md``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from lakesync.client.storage.rows import NOT_STORED
from lakesync.core.merge import fold

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from lakesync.client.storage.app_table import AppTable
    from lakesync.client.storage.file import ClientFile
    from lakesync.client.storage.rows import StoredRow
    from lakesync.core.clock import Stamp
    from lakesync.core.delta import Delta
    from lakesync.core.merge import RowState

_NEVER: Final = 1 << 62
"""A commit that no page reaches."""
_NOTE: Final = (
    "INSERT INTO _lakesync_unread (table_id, row_id, accepted, known) VALUES (?, ?, ?, ?) "
    "ON CONFLICT (table_id, row_id) DO UPDATE SET accepted = excluded.accepted, "
    "known = CASE WHEN accepted > (SELECT cursor FROM _lakesync_sync) THEN known "
    "ELSE excluded.known END"
)
_UNREAD: Final = (
    "row_id, accepted, known, accepted > (SELECT cursor FROM _lakesync_sync) FROM _lakesync_unread"
)
_ADVANCE: Final = "UPDATE _lakesync_unread SET known = ? WHERE table_id = ? AND row_id = ?"
_FORGET: Final = "DELETE FROM _lakesync_unread WHERE table_id = ? AND row_id = ?"


class Note(NamedTuple):
    """What pages have shown of a row with own writes that they have not."""

    accepted: Stamp
    known: RowState | None
    """None if what was shown is no longer known."""


class Unread:
    """The notes of one file, for one page or one receipt. Used within the caller's transaction."""

    def __init__(self, file: ClientFile) -> None:
        self._file = file
        self._notes: dict[str, Note] = {}

    def accepted(
        self,
        table: AppTable,
        written: Mapping[str, Sequence[Delta]],
        stored: Mapping[str, StoredRow],
        by: Stamp,
    ) -> None:
        """Note own writes that a receipt accepts, in commits up to ``by``.

        Called before `Rows.acknowledge`, which takes them into what is known of their rows.
        """
        encode = self._file.rows.states.encode
        notes = [
            (table.id, row_id, by, encode(table.places, stored.get(row_id, NOT_STORED).known))
            for row_id in written
        ]
        self._file.connection.executemany(_NOTE, notes)

    def begin(
        self, table: AppTable, row_ids: Collection[str], not_compared: Collection[str]
    ) -> None:
        """Read the notes of rows that a page brings; forget those of rows that are read anew."""
        self._notes.clear()
        any_note = "SELECT 1 FROM _lakesync_unread LIMIT 1"
        if self._file.connection.execute(any_note).fetchone() is None:
            return
        self._forget(table, not_compared)
        decode = self._file.rows.states.decode
        for row_id, accepted, known, waits in self._file.rows.select(_UNREAD, table.id, row_ids):
            if waits:  # a receipt may have come after the page that has its commit
                state = None if known is None else decode(table.places, known)
                self._notes[row_id] = Note(accepted, state)

    def hide(self, table: AppTable, rows: Mapping[str, StoredRow]) -> None:
        """Note that rules hide rows: nothing that was shown of them is kept."""
        self._forget(table, rows)
        self._file.conflicts.hide_rows(table.id, rows)
        waiting = [row_id for row_id, row in rows.items() if row.waiting]
        self._file.connection.executemany(
            _NOTE, [(table.id, row_id, _NEVER, None) for row_id in waiting]
        )

    def _forget(self, table: AppTable, row_ids: Iterable[str]) -> None:
        self._file.connection.executemany(_FORGET, [(table.id, row_id) for row_id in row_ids])

    def end(self, cursor: Stamp) -> None:
        """Forget the notes that a page of the log, which ends at a commit, has made superfluous."""
        self._file.connection.execute("DELETE FROM _lakesync_unread WHERE accepted <= ?", (cursor,))

    def of_table(self, table: AppTable) -> Iterator[tuple[str, Note]]:
        """Yield the rows of a table that have a note, and their notes."""
        decode = self._file.rows.states.decode
        of_table = f"SELECT {_UNREAD} WHERE table_id = ?"
        for row_id, accepted, known, waits in self._file.connection.execute(of_table, (table.id,)):
            if waits:
                yield row_id, Note(accepted, known and decode(table.places, known))

    def note(self, row_id: str) -> Note | None:
        """Return the note of a row that the page brings."""
        return self._notes.get(row_id)

    def advance(self, table: AppTable, row_id: str, deltas: Sequence[Delta], until: Stamp) -> None:
        """Take what a page up to a commit shows into a row's note, if the next one needs it."""
        note = self._notes[row_id]
        if note.known is None:
            self._forget(table, (row_id,))
        elif note.accepted > until:
            known = self._file.rows.states.encode(table.places, fold(deltas, note.known))
            self._file.connection.execute(_ADVANCE, (known, table.id, row_id))
