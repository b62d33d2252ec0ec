"""Own writes after the outbox: accepted and not shown yet, hidden by rules, or lost to others'.

Accepted writes
    With sync rules a row may be hidden from this client, and then no page reports it: not even its
    deletion. When it becomes visible it is sent whole. A write that was accepted before then and is
    missing from that row was deleted meanwhile, so it is dropped here too; a write that was
    accepted later is still to arrive. So each accepted write is noted (`PendingEcho`) until the
    first page that shows its row, or the first page of the log that passes its commit: if that one
    does not show it, rules hide the row.

    Then the write leaves the rows of the file, and every query with it, and goes into the
    `Journal`, which no app reads. It may still be lost by a restored buffer, so it stays there for
    as long as a backup may reach back, and returns to the outbox after a restore. Laws K13 and K15.

Lost writes: of two that did not know each other one is lost; `Conflicts` keeps those that are found
    1. What pages have *shown* of a row is compared with what this client wrote on top of it: its
       base, or, once own writes are accepted, what `Unread` noted of it.
    2. Such a note is written with the receipt, advances with each page, and goes with the page that
       reaches the commit of the receipt: a crash in between loses none.
    3. This client *lost* if its write was not shown yet, and the page brings a later one of another
       client that reached the gateway first, or arrives while the own write still waits.
    4. This client *won* if its write stands, and the page brings a value that it replaced at the
       gateway: one of another client that was never shown here before. Its author, who had read
       the log by then, cannot know.
    5. Which of two came first is decided by the order of a page's deltas, which is that of their
       commits. Whole rows have no such order: a first sync or a re-read is not compared.

An edit costs nothing here. Law K27. All laws: ``docs/spec/client.md``.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias, get_args

from lakesync.client.storage.conflicts import Clash
from lakesync.client.storage.edits import Writer
from lakesync.client.storage.misuse import checked_whole
from lakesync.client.storage.outbox import Status
from lakesync.client.storage.stored_rows import NOT_STORED, TOMBSTONE_KEPT_DAYS
from lakesync.core.clock import DRIFT_MS_MAX, stamp
from lakesync.core.delta import Op, known_delta
from lakesync.core.merge import EMPTY, RowState, apply, deltas_of, fold, state_of, view
from lakesync.core.visibility import EVERYTHING, delta_without, scope_of
from lakesync.errors import Conflict, NotFound, ValidationFailed
from lakesync.wire.records import decode_records, encode_records

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from lakesync.client.storage.app_table import AppTable
    from lakesync.client.storage.conflicts import LostWrite
    from lakesync.client.storage.file import ClientFile
    from lakesync.client.storage.stored_rows import LocalKey, StoredRow
    from lakesync.core.clock import Stamp
    from lakesync.core.delta import Delta
    from lakesync.core.merge import Register
    from lakesync.core.visibility import Omitted

# --- writes that wait for their page --------------------------------------------------------------


_PASSED: Final = "FROM _lakesync_pending_echo WHERE accepted <= ?"
_NOTE_ECHO: Final = "INSERT OR IGNORE INTO _lakesync_pending_echo VALUES (?, ?, ?, ?)"
_DROP: Final = "DELETE FROM _lakesync_pending_echo WHERE table_id = ? AND row_id = ? AND hlc = ?"


@dataclass(frozen=True)
class PendingEcho:
    """The writes of one file whose echo is pending. Used within the caller's transaction."""

    file: ClientFile

    def note(
        self,
        table_id: int,
        written: Mapping[str, Sequence[Delta]],
        stored: Mapping[str, StoredRow],
        accepted: Stamp,
    ) -> None:
        """Note own writes that a receipt accepts, before `Rows.acknowledge`.

        They are in the gateway's commits up to ``accepted``. A row has at most one note for each
        column, and one more.
        """
        noted = self._noted(table_id, written)
        new: list[tuple[int, str, Stamp, Stamp]] = []
        gone: list[tuple[int, str, Stamp]] = []
        for row_id, deltas in written.items():
            base = stored.get(row_id, NOT_STORED).known
            before, after = self._own(base), self._own(fold(deltas, base))
            # A page has shown already what is in the base and has no note.
            own = ({delta.hlc for delta in deltas} & after) - before
            new += [(table_id, row_id, hlc, accepted) for hlc in sorted(own)]
            gone += [(table_id, row_id, hlc) for hlc in sorted(noted[row_id].keys() - after)]
        many = self.file.connection.executemany
        many(_NOTE_ECHO, new)
        many(_DROP, gone)

    def note_unread(self, table: AppTable) -> None:
        """Note the own writes that no page has shown yet of a table that rules begin to filter."""
        new: list[tuple[int, str, Stamp, Stamp]] = []
        for row_id, note in list(Unread(self.file).of_table(table)):
            own = self._own(self.file.rows.one((table.id, row_id)).known)
            own -= self._own(note.known or EMPTY) | {0}
            new += [(table.id, row_id, hlc, note.accepted) for hlc in sorted(own)]
        self.file.connection.executemany(_NOTE_ECHO, new)

    def note_kept(self, table_id: int, kept: Mapping[str, RowState]) -> None:
        """Note own writes of unknown commits, at most the drift of clocks behind the writes."""
        drift = stamp(DRIFT_MS_MAX)
        new = [
            (table_id, row_id, hlc, hlc - drift)
            for row_id, state in kept.items()
            for hlc in sorted(self._own(state) - {0})
        ]
        self.file.connection.executemany(_NOTE_ECHO, new)

    def _own(self, state: RowState) -> set[Stamp]:
        """Return the stamps in a row that may be this client's own."""
        me = self.file.client_id
        return {hlc for hlc, writer, _ in state.columns.values() if writer == me} | {state.alive}

    def _noted(self, table_id: int, row_ids: Collection[str]) -> dict[str, dict[Stamp, Stamp]]:
        """Return for rows the noted stamps, and the commit by which each was accepted."""
        noted: dict[str, dict[Stamp, Stamp]] = defaultdict(dict)
        what = "row_id, hlc, accepted FROM _lakesync_pending_echo"
        for row_id, hlc, accepted in self.file.rows.select(what, table_id, row_ids):
            noted[row_id][hlc] = accepted
        return noted

    def on_page(
        self, table_id: int, rows: Mapping[str, Sequence[Delta]], until: Stamp
    ) -> dict[str, set[Stamp]]:
        """Remove the notes of rows that a page shows; returns the writes to drop, by row.

        The rows include their deltas after the last removal. A write is dropped if the row lacks
        it, although it was accepted by the commit ``until``, up to which the page is complete.
        """
        drop: dict[str, set[Stamp]] = {}
        done: list[tuple[int, str, Stamp]] = []
        if self.is_empty:
            return drop
        for row_id, noted in self._noted(table_id, rows).items():
            deltas = rows[row_id]
            # Any client id matches: of an insert without columns only the stamp is known. And a
            # deletion under the same stamp has deleted the write as well.
            shown = noted.keys() & {delta.hlc for delta in deltas} if deltas else set(noted)
            if fold(deltas, EMPTY)._replace(deleted=0) != EMPTY:
                missing = {hlc for hlc, accepted in noted.items() if accepted <= until} - shown
                if missing:
                    drop[row_id] = missing
                    shown |= missing
            done += [(table_id, row_id, hlc) for hlc in sorted(shown)]
        self.file.connection.executemany(_DROP, done)
        return drop

    def has_passed(self, until: Stamp) -> bool:
        """Return whether a write was accepted by the commit ``until``, and no page has shown it."""
        row = self.file.connection.execute(f"SELECT 1 {_PASSED} LIMIT 1", (until,))
        return row.fetchone() is not None

    def hide(self, until: Stamp) -> None:
        """Hide the writes accepted by the commit ``until``, up to which all pages are there."""
        execute = self.file.connection.execute
        hidden: dict[LocalKey, set[Stamp]] = defaultdict(set)
        noted = f"SELECT table_id, row_id, hlc {_PASSED}"
        for table_id, row_id, hlc in execute(noted, (until,)).fetchall():
            hidden[table_id, row_id].add(hlc)
        if hidden:
            execute(f"DELETE {_PASSED}", (until,))
            known = {key: self.file.rows.one(key).known for key in hidden}
            for key, state in known.items():
                Journal(self.file).keep(key, state, hidden[key], until)
            bases = {key: self.without(state, hidden[key]) for key, state in known.items()}
            self.file.rows.refold(bases)

    def keep_removed(self, table_id: int, rows: Mapping[str, StoredRow], until: Stamp) -> None:
        """Keep the noted writes of rows that a removal takes away, as it came in place of them."""
        for row_id, noted in self._noted(table_id, rows).items():
            Journal(self.file).keep((table_id, row_id), rows[row_id].known, noted.keys(), until)

    @property
    def is_empty(self) -> bool:
        noted = self.file.connection.execute("SELECT 1 FROM _lakesync_pending_echo LIMIT 1")
        return noted.fetchone() is None

    def without(self, state: RowState, writes: Collection[Stamp]) -> RowState:
        columns = {
            name: register
            for name, register in state.columns.items()
            if register[1] != self.file.client_id or register[0] not in writes
        }
        return RowState(0 if state.alive in writes else state.alive, state.deleted, columns)


def ruled_tables(file: ClientFile) -> set[int]:
    """Return the tables whose rows may be hidden by rules: before the first page, any table."""
    at = file.position()
    scope = scope_of(at.scope or EVERYTHING)
    tables = file.connection.execute("SELECT id, name FROM _lakesync_tables").fetchall()
    return {table_id for table_id, name in tables if at.is_new or scope.of(name) != EVERYTHING}


# --- writes that rules hide -----------------------------------------------------------------------


@dataclass(frozen=True)
class Journal:
    """The journal of one file. Used within the caller's transaction."""

    file: ClientFile

    def keep(self, key: LocalKey, state: RowState, writes: Collection[Stamp], at: Stamp) -> None:
        """Keep own writes of some stamps out of a row that pages up to the commit ``at`` hide."""
        me, (table_id, row_id) = self.file.client_id, key
        table = self.file.catalogue.by_id(table_id).name
        self.file.connection.executemany(
            "INSERT OR IGNORE INTO _lakesync_journal VALUES (?, ?, ?, ?, ?)",
            [
                (delta.hlc, table_id, row_id, at, encode_records((delta,)))
                for delta in deltas_of(table, row_id, state, nobody=me)
                if delta.client_id == me and delta.hlc in writes
            ],
        )

    def give_back(self) -> None:
        """Hold all of it back in the outbox: the buffer was restored, and may have lost it."""
        execute = self.file.connection.execute
        rows = execute("SELECT hlc, table_id, row_id, run FROM _lakesync_journal").fetchall()
        execute("DELETE FROM _lakesync_journal")
        for hlc, table_id, row_id, run in rows:
            table = self.file.catalogue.by_id(table_id)  # its spelling may be another by now
            (old,) = decode_records(run)
            delta = known_delta(old.op, table.name, row_id, old.client_id, hlc, old.columns)
            self.file.outbox.add(delta, table_id, Status.HELD_BACK)
        self.file.rows.refold(
            dict.fromkeys([(table_id, row_id) for _, table_id, row_id, _ in rows])
        )

    def leave_out(self, table_id: int, omitted: Omitted) -> None:
        select = "SELECT hlc, row_id, run FROM _lakesync_journal WHERE table_id = ?"
        for hlc, row_id, run in self.file.connection.execute(select, (table_id,)).fetchall():
            (old,) = decode_records(run)
            left = delta_without(old, omitted)
            if left is not old:
                self.file.connection.execute(
                    "UPDATE _lakesync_journal SET run = ? WHERE (hlc, table_id, row_id) = (?, ?, ?)"
                    if left
                    else "DELETE FROM _lakesync_journal "
                    "WHERE ? IS NULL AND (hlc, table_id, row_id) = (?, ?, ?)",
                    (left and encode_records((left,)), hlc, table_id, row_id),
                )

    def clear(self) -> None:
        """Forget all of it: the file goes to another gateway, which this is no business of."""
        self.file.connection.execute("DELETE FROM _lakesync_journal")

    def expire(self, cursor: Stamp) -> None:
        """Forget what no backup can have lost by now."""
        until = cursor - stamp(TOMBSTONE_KEPT_DAYS * 86_400_000)
        self.file.connection.execute("DELETE FROM _lakesync_journal WHERE hidden_at <= ?", (until,))


# --- what pages had shown -------------------------------------------------------------------------


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
        """Note own writes accepted in commits up to ``by``, before `Rows.acknowledge`."""
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
        decode = self._file.rows.states.decode
        of_table = f"SELECT {_UNREAD} WHERE table_id = ?"
        for row_id, accepted, known, waits in self._file.connection.execute(of_table, (table.id,)):
            if waits:
                yield row_id, Note(accepted, known and decode(table.places, known))

    def note(self, row_id: str) -> Note | None:
        return self._notes.get(row_id)

    def advance(self, table: AppTable, row_id: str, deltas: Sequence[Delta], until: Stamp) -> None:
        """Take what a page up to a commit shows into a row's note, if the next one needs it."""
        note = self._notes[row_id]
        if note.known is None:
            self._forget(table, (row_id,))
        elif note.accepted > until:
            known = self._file.rows.states.encode(table.places, fold(deltas, note.known))
            self._file.connection.execute(_ADVANCE, (known, table.id, row_id))


# --- lost writes, found ---------------------------------------------------------------------------


class _Row(NamedTuple):
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
        """Find what a page took from a row, as it was seen; others than own cost nothing."""
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
        """Yield what own writes of a row replaced of what was pulled and never shown."""
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


# --- resolving ------------------------------------------------------------------------------------


Keep: TypeAlias = Literal["mine", "theirs", "new"]
"""Which value a resolved conflict leaves: this client's, the other's, or one that is given."""

_ID_MAX: Final = (1 << 63) - 1


def resolve(file: ClientFile, conflict_id: int, keep: Keep, value: object) -> Delta | None:
    """Resolve a conflict in one transaction; returns the edit that this took, if any."""
    checked_whole(conflict_id, "conflict_id", 0, _ID_MAX)
    if keep not in get_args(Keep):
        names = " or ".join(get_args(Keep))
        raise ValidationFailed(f"keep is {names}, not {keep!r:.80}", field="keep")
    with file.database.transaction():
        conflict = file.conflicts.one(conflict_id)
        if conflict is None:
            raise NotFound("no conflict has this id; list them again", field="conflict_id")
        edit = _resolved(file, conflict, keep, value)
        file.conflicts.remove(conflict_id)
    return edit


def _resolved(file: ClientFile, conflict: LostWrite, keep: Keep, value: object) -> Delta | None:
    own_stands = _own_stands(file, conflict)
    if keep == "new":
        return _edit(file, conflict, value)
    if keep == "mine":
        if own_stands:
            return None
        return _edit(file, conflict, conflict.own, deletes=conflict.won and conflict.deleted)
    if not own_stands:
        return None
    if conflict.hidden:
        raise Conflict("rules have hidden the other value: keep yours, or give a new one")
    return _edit(file, conflict, conflict.other, deletes=conflict.deleted and not conflict.won)


def _own_stands(file: ClientFile, conflict: LostWrite) -> bool:
    """Return whether the row still shows what this client wrote, by that write."""
    table = file.catalogue.known(conflict.table)
    state = file.rows.one((table.id, conflict.row_id)).state
    if conflict.won and conflict.deleted:
        return state.deleted == conflict.own_stamp and view(table.as_read(state)) is None
    register = table.as_read(state).columns.get(conflict.column)
    return register is not None and register[:2] == (conflict.own_stamp, file.client_id)


def _edit(file: ClientFile, conflict: LostWrite, value: object, *, deletes: bool = False) -> Delta:
    writer = Writer(file, is_group=False)
    if deletes:
        return writer.write(Op.DELETE, conflict.table, conflict.row_id, {})
    table = file.catalogue.known(conflict.table)
    state = file.rows.one((table.id, conflict.row_id)).state
    # An update does not bring a deleted row back everywhere.
    op = Op.UPDATE if view(table.as_read(state)) is not None else Op.INSERT
    return writer.write(op, conflict.table, conflict.row_id, {conflict.column: value})
