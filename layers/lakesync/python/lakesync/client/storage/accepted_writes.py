"""Own writes that the gateway has accepted and that no page has shown: not yet, or hidden by rules.

With sync rules a row may be hidden from this client, and then no page reports it: not even its
deletion. When it becomes visible it is sent whole. A write that was accepted before then and is
missing from that row was deleted meanwhile, so it is dropped here too; a write that was accepted
later is still to arrive. So each accepted write is noted (`PendingEcho`) until the first page that
shows its row, or the first page of the log that passes its commit: if that one does not show it,
rules hide the row.

Then the write leaves the rows of the file, and every query with it, and goes into the `Journal`,
which no app reads. It may still be lost by a restored buffer, and perhaps this is the only device
that has it. So it stays there for as long as a backup may reach back. After a restore it returns to
the outbox like any other own write. Laws K13 and K15: ``docs/spec/client.md``.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from lakesync.client.storage.lost_writes import Unread
from lakesync.client.storage.outbox import Status
from lakesync.client.storage.stored_rows import NOT_STORED, TOMBSTONE_KEPT_DAYS
from lakesync.core.clock import DRIFT_MS_MAX, stamp
from lakesync.core.delta import known_delta
from lakesync.core.merge import EMPTY, RowState, deltas_of, fold
from lakesync.core.visibility import EVERYTHING, delta_without, scope_of
from lakesync.wire.records import decode_records, encode_records

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from lakesync.client.storage.app_table import AppTable
    from lakesync.client.storage.file import ClientFile
    from lakesync.client.storage.stored_rows import LocalKey, StoredRow
    from lakesync.core.clock import Stamp
    from lakesync.core.delta import Delta
    from lakesync.core.visibility import Omitted

# --- writes that wait for their page --------------------------------------------------------------


_PASSED: Final = "FROM _lakesync_pending_echo WHERE accepted <= ?"
_NOTE: Final = "INSERT OR IGNORE INTO _lakesync_pending_echo VALUES (?, ?, ?, ?)"
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
        many(_NOTE, new)
        many(_DROP, gone)

    def note_unread(self, table: AppTable) -> None:
        """Note the own writes that no page has shown yet of a table that rules begin to filter."""
        new: list[tuple[int, str, Stamp, Stamp]] = []
        for row_id, note in list(Unread(self.file).of_table(table)):
            own = self._own(self.file.rows.one((table.id, row_id)).known)
            own -= self._own(note.known or EMPTY) | {0}
            new += [(table.id, row_id, hlc, note.accepted) for hlc in sorted(own)]
        self.file.connection.executemany(_NOTE, new)

    def note_kept(self, table_id: int, kept: Mapping[str, RowState]) -> None:
        """Note own writes that are kept in rows as the log, which rules filter, has yet to pass.

        Of their commits it is known only that none is further behind its write than clocks may be.
        """
        drift = stamp(DRIFT_MS_MAX)
        new = [
            (table_id, row_id, hlc, hlc - drift)
            for row_id, state in kept.items()
            for hlc in sorted(self._own(state) - {0})
        ]
        self.file.connection.executemany(_NOTE, new)

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
        """Hide the writes that were accepted by the commit ``until``: all pages up to it are there.

        A row of which nothing else is known is then no longer in the app's table.
        """
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
        """Return whether no write's echo is pending."""
        noted = self.file.connection.execute("SELECT 1 FROM _lakesync_pending_echo LIMIT 1")
        return noted.fetchone() is None

    def without(self, state: RowState, writes: Collection[Stamp]) -> RowState:
        """Return a row without some of this client's writes."""
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
        """Keep this client's own writes of some stamps, out of a row that has them.

        ``at``: the commit up to which the page is complete that shows them to be hidden.
        """
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
        """Remove the contents of columns of a table."""
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
