"""Lost writes: of two writes of one value that did not know each other, one is lost.

Rules of this module
    1. Everything here compares what pages have *shown* of a row with what this client wrote on top
       of it. Both are the file's: a row's base, or, once its own writes are accepted, the note of
       the row as it was shown, kept until a page reaches the commit that accepted them.
    2. This client *lost* if its write was not shown yet, and the page brings a later one of another
       client that reached the gateway first, or arrives while the own write still waits.
    3. This client *won* if its write stands, and the page brings a value that it replaced at the
       gateway: one of another client that was never shown here before. Its author, who had read
       the log by then, cannot know.
    4. Which of two came first is decided by the order of a page's deltas, which is that of their
       commits. Whole rows have no such order: a first sync or a re-read is not compared.

Notes are written with a receipt and advance with each page, so a crash between the two loses none.
An edit costs nothing here. Law K27: ``docs/spec/client.md``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from lakesync.client.storage.conflicts import Clash
from lakesync.client.storage.rows import NOT_STORED
from lakesync.core.delta import Op
from lakesync.core.merge import RowState, fold

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from lakesync.client.storage.app_table import AppTable
    from lakesync.client.storage.conflicts import LostWrite
    from lakesync.client.storage.file import ClientFile
    from lakesync.client.storage.rows import StoredRow
    from lakesync.core.clock import Stamp
    from lakesync.core.delta import Delta
    from lakesync.core.merge import Register

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


class _Note(NamedTuple):
    """What pages have shown of a row with own writes that they have not."""

    accepted: Stamp
    known: RowState | None
    """None if what was shown is no longer known."""


class _Row(NamedTuple):
    """A row that a page brings."""

    table: AppTable
    row_id: str
    before: RowState
    shown: RowState
    """The row without own writes that no page had shown."""
    after: RowState
    deltas: Sequence[Delta]

    @property
    def is_gone(self) -> bool:
        """Return whether a delete decides about all of it, however new."""
        return self.table.delete_wins and not self.after.alive

    def unshown(self, name: str, me: str) -> Register | None:
        """Return this client's write of a column, if it stands and no page had shown it."""
        own = self.before.columns.get(name)
        return own if own and own[1] == me and own != self.shown.columns.get(name) else None


class LostWrites:
    """What one page, or one receipt, says of lost writes. Used within the caller's transaction."""

    def __init__(self, file: ClientFile) -> None:
        self._file = file
        self._me = file.client_id
        self._notes: dict[str, _Note] = {}
        self._clashes: list[Clash] = []

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
                self._notes[row_id] = _Note(accepted, state)

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

    def compare(
        self,
        table: AppTable,
        row_id: str,
        seen: StoredRow,
        after: RowState,
        deltas: Sequence[Delta],
        until: Stamp,
    ) -> None:
        """Find what was lost between a row as this client saw it and a page's deltas.

        ``until``: the page's last commit. Cost: nothing for a row without own writes.
        """
        note = self._notes.get(row_id)
        if (seen.base is None and note is None) or not deltas:
            return
        shown = seen.known
        if note is not None and note.known is not None:
            shown = note.known
        if note is not None:
            self._advance(table, row_id, note, deltas, until)
        if all(delta.client_id == self._me for delta in deltas):
            return
        row = _Row(table, row_id, seen.state, shown, after, deltas)
        at = {(delta.hlc, delta.client_id): place for place, delta in enumerate(deltas)}
        self._clashes += self._lost(row, at)
        if note is None or note.known is not None:
            self._clashes += self._won(row, at)

    def _advance(
        self, table: AppTable, row_id: str, note: _Note, deltas: Sequence[Delta], until: Stamp
    ) -> None:
        """Take what a page shows into a row's note, if it is needed for the next one."""
        if note.known is None:
            self._forget(table, (row_id,))
        elif note.accepted > until:
            known = self._file.rows.states.encode(table.places, fold(deltas, note.known))
            self._file.connection.execute(_ADVANCE, (known, table.id, row_id))

    def _lost(self, row: _Row, at: Mapping[tuple[Stamp, str], int]) -> Iterator[Clash]:
        """Yield this client's values that are gone."""
        after, end = row.after, len(row.deltas)
        deleters = {delta.hlc: delta for delta in row.deltas if delta.op is Op.DELETE}
        for name in row.before.columns:
            own = row.unshown(name, self._me)
            if own is None:
                continue
            is_deleted = row.is_gone or after.deleted >= own[0]
            deleter = deleters.get(after.deleted) if is_deleted else None
            hlc, winner, value = after.columns.get(name, own)
            if deleter is not None:
                hlc, winner = deleter.hlc, deleter.client_id
            was_first = at.get((own[0], self._me), end) < at.get((hlc, winner), -1)
            if winner == self._me or was_first or (deleter is None and value == own[2]):
                continue
            other = value if deleter is None else None
            yield self._clash(row, name, own, (hlc, winner, other), deleted=deleter is not None)

    def _won(self, row: _Row, at: Mapping[tuple[Stamp, str], int]) -> Iterator[Clash]:
        """Yield the values of others that this client's writes replaced unseen."""
        others = [delta for delta in row.deltas if delta.client_id != self._me]
        deleted = row.before.deleted if row.before.deleted != row.shown.deleted else 0
        is_deleted = bool(deleted) and deleted == row.after.deleted
        for name, other in fold(others, row.shown).columns.items():
            base = row.shown.columns.get(name)
            if other == base or (base is not None and base[2] == other[2]):
                continue
            own: tuple[Stamp, str, bytes | None] | None = row.unshown(name, self._me)
            if own is not None and row.after.columns.get(name) != own:
                continue
            if own is None and is_deleted and (row.is_gone or other[0] <= deleted):
                own = deleted, self._me, None
            # What came behind the own write is no loss that its author could not know of.
            if own is None or at.get(own[:2], len(row.deltas)) < at[other[:2]]:
                continue
            if own[2] != other[2]:
                yield self._clash(row, name, own, other, deleted=own[2] is None, won=True)

    def _clash(
        self,
        row: _Row,
        name: str,
        own: tuple[Stamp, str, bytes | None],
        other: tuple[Stamp, str, bytes | None],
        *,
        deleted: bool,
        won: bool = False,
    ) -> Clash:
        base = row.shown.columns.get(name)
        return Clash(
            *(row.table.id, row.row_id, name, own[2], own[0], other[2], other[0], other[1]),
            *(None if base is None else base[2], won, deleted),
        )

    def add(self, clash: Clash) -> None:
        """Add what something else than a comparison of writes has shown."""
        self._clashes.append(clash)

    def keep(self) -> tuple[LostWrite, ...]:
        """Write what was noted into the file; returns it as the app is told of it."""
        return self._file.conflicts.keep(self._clashes)
