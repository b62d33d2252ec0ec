"""Lost writes: of two writes of one value that did not know each other, one is lost.

Rules of this module
    1. Everything here compares what pages have *shown* of a row with what this client wrote on top
       of it: its base, or, once own writes are accepted, what `Unread` noted of it.
    2. This client *lost* if its write was not shown yet, and the page brings a later one of another
       client that reached the gateway first, or arrives while the own write still waits.
    3. This client *won* if its write stands, and the page brings a value that it replaced at the
       gateway: one of another client that was never shown here before. Its author, who had read
       the log by then, cannot know.
    4. Which of two came first is decided by the order of a page's deltas, which is that of their
       commits. Whole rows have no such order: a first sync or a re-read is not compared.

An edit costs nothing here. Law K27: ``docs/spec/client.md``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from lakesync.client.download.unread import Unread
from lakesync.client.storage.conflicts import Clash
from lakesync.core.delta import Op
from lakesync.core.merge import RowState, apply, state_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from lakesync.client.storage.app_table import AppTable
    from lakesync.client.storage.conflicts import LostWrite
    from lakesync.client.storage.file import ClientFile
    from lakesync.client.storage.rows import StoredRow
    from lakesync.core.clock import Stamp
    from lakesync.core.delta import Delta
    from lakesync.core.merge import Register


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
        self.unread = Unread(file)
        self._clashes: list[Clash] = []

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
        note = self.unread.note(row_id)
        if (seen.base is None and note is None) or not deltas:
            return
        shown = seen.known if note is None or note.known is None else note.known
        if note is not None:
            self.unread.advance(table, row_id, deltas, until)
        if all(delta.client_id == self._me for delta in deltas):
            return
        row = _Row(table, row_id, seen.state, shown, after, deltas)
        at = {(delta.hlc, delta.client_id): place for place, delta in enumerate(deltas)}
        self._clashes += self._lost(row, at)
        if note is None or note.known is not None:
            self._clashes += self._won(row)

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

    def _won(self, row: _Row) -> Iterator[Clash]:
        """Yield the values of others that this client's writes replaced unseen.

        A write in the page replaced what the deltas before it had made of the row; one that is yet
        to come replaces what all of them make.
        """
        pulled = row.shown
        echoes: set[Stamp] = set()
        for delta in row.deltas:
            if delta.client_id == self._me and delta.op is not Op.REMOVE:
                echoes.add(delta.hlc)
                write = state_of(delta)
                yield from self._replaced(row, pulled, write.columns, write.deleted)
            pulled = apply(pulled, delta)
        yet = {
            name: own
            for name in row.before.columns
            if (own := row.unshown(name, self._me)) and own[0] not in echoes
        }
        deleted = row.before.deleted
        is_yet = deleted != row.shown.deleted and deleted not in echoes
        yield from self._replaced(row, pulled, yet, deleted if is_yet else 0)

    def _replaced(
        self, row: _Row, pulled: RowState, columns: Mapping[str, Register], deleted: Stamp
    ) -> Iterator[Clash]:
        """Yield what own writes of a row replaced of what was pulled, if it was not shown before.

        ``columns``: what they write; ``deleted``: when they delete the row, else 0.
        """
        for name, other in pulled.columns.items():
            base = row.shown.columns.get(name)
            if other[1] == self._me or other == base or (base and base[2] == other[2]):
                continue
            own: tuple[Stamp, str, bytes | None] | None = columns.get(name)
            if deleted and (row.table.delete_wins or other[0] <= deleted):
                own = deleted, self._me, None
            if own and own[2] != other[2] and (own[2] is None or own[:2] > other[:2]):
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
