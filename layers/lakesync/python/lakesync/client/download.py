"""Remote pages: merged into the local rows, with the cursor, in one transaction.

Pending edits survive because the merged state already contains them: a page can only add to it. The
code is optimised for pages of thousands of deltas: rows are read and written by the hundred, no
statement is executed for a single delta, and for the row of one insert no delta object is made.

Where rules filter, an edit of a row that a page deletes is sent whole again. Of an update alone the
gateway cannot tell who may see the row, so it refuses it (`ROW_DELETED`). So when a page brings the
delete of a row of which a newer update waits, the row as it was is put into the outbox as an
INSERT: just above the delete, so that it loses to any later write, and below the update, whose
cells keep their stamp. Law K37: ``docs/spec/client.md``.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Final, TypeAlias

from lakesync.client.resync import Resyncer
from lakesync.client.storage.conflicts import Clash
from lakesync.client.storage.outbox import Status
from lakesync.client.storage.own_writes import Journal, LostWrites, PendingEcho, ruled_tables
from lakesync.client.storage.stored_rows import NOT_STORED, Inserts, insert_new
from lakesync.core.clock import DRIFT_MS_MAX, stamp
from lakesync.core.delta import DELTA_BYTES_MAX, Op, known_delta
from lakesync.core.merge import EMPTY, fold
from lakesync.core.messages import log_behind, reads_all_tables
from lakesync.core.names import folded
from lakesync.core.visibility import EVERYTHING
from lakesync.errors import InternalError
from lakesync.wire.records import (
    columns_of,
    decode_records,
    delta_of,
    encode_records,
    raw_records,
    values_alike,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from lakesync.client.storage.app_table import AppTable
    from lakesync.client.storage.conflicts import LostWrite
    from lakesync.client.storage.file import ClientFile, Position
    from lakesync.client.storage.stored_rows import RowToStore, StoredRow
    from lakesync.core.clock import Stamp
    from lakesync.core.delta import CanonicalJson, Delta
    from lakesync.core.merge import RowState
    from lakesync.core.messages import PullPage
    from lakesync.wire import lakesync_pb2 as pb

# --- a page's contents, by table ------------------------------------------------------------------


_WRITES: Final = frozenset({Op.INSERT, Op.UPDATE})
_INSERT: Final = Op.INSERT.value


class ArrivedRows:
    """A page's deltas of one table, for the file of ``client_id``."""

    def __init__(self, client_id: str) -> None:
        self._client_id = client_id
        self._first: dict[str, pb.RawDelta] = {}
        self._all: dict[str, list[pb.RawDelta]] = {}
        """The records of rows with several."""
        self.inserts: list[Inserts] = []
        """Rows of one insert by another client, those with the same columns together."""
        self.several: dict[str, list[Delta]] = {}
        """Rows that begin with another client's insert and continue with writes: as for `inserts`,
        these deltas may be all that ever existed of them.
        """
        self.others: dict[str, list[Delta]] = {}

    def add(self, row_id: str, record: pb.RawDelta) -> None:
        first = self._first.setdefault(row_id, record)
        if first is not record:
            self._all.setdefault(row_id, [first]).append(record)

    def sort(self) -> None:
        """Tell rows that may be new from others, once all records are there."""
        by_count: dict[int, list[pb.RawDelta]] = defaultdict(list)
        me, several = self._client_id, self._all
        for row_id, first in self._first.items():
            may_be_new = first.op == _INSERT and first.client_id != me
            if may_be_new and row_id not in several and (count := len(first.columns)):
                by_count[count].append(first)
                continue
            deltas = list(map(delta_of, several.get(row_id, (first,))))
            is_new = may_be_new and all(delta.op in _WRITES for delta in deltas)
            (self.several if is_new else self.others)[row_id] = deltas
        for alike in by_count.values():
            self.inserts += _inserts(alike)

    @property
    def deltas(self) -> Iterator[Delta]:
        for rows in (self.several, self.others):
            for of_row in rows.values():
                yield from of_row

    @property
    def newest(self) -> Stamp:
        stamps = [max(inserts.stamps) for inserts in self.inserts]
        return max([*stamps, *[delta.hlc for delta in self.deltas]])

    @property
    def columns(self) -> set[str]:
        names = {name for delta in self.deltas for name, _ in delta.columns}
        return names.union(*(inserts.names for inserts in self.inserts))

    def by_row(self) -> dict[str, list[Delta]]:
        known = self.several | self.others
        return {
            row_id: known.get(row_id) or [delta_of(record)]
            for row_id, record in self._first.items()
        }


class Arrived:
    """A page's deltas by table, in the order in which it names them. Reading it needs no lock."""

    def __init__(self, page: PullPage, client_id: str) -> None:
        self.tables: dict[str, ArrivedRows] = {}
        count = 0
        for run in page.records:
            for record in raw_records(run):
                count += 1
                table = record.table
                rows = self.tables.get(table)
                if rows is None:
                    rows = self.tables[table] = ArrivedRows(client_id)
                rows.add(record.row_id, record)
        if count != page.count:
            raise InternalError(
                f"the page counts {page.count} deltas and holds {count}; pull again"
            )
        for rows in self.tables.values():
            rows.sort()
        self.newest: Stamp = max((rows.newest for rows in self.tables.values()), default=0)
        """The greatest stamp; 0 if there is none."""
        deltas = (delta for rows in self.tables.values() for delta in rows.deltas)
        self.own = [delta for delta in deltas if delta.client_id == client_id]
        """The file's client's own."""


def _inserts(records: Sequence[pb.RawDelta]) -> list[Inserts]:
    columns = list(zip(*[tuple(record.columns) for record in records], strict=True))
    alike = [named for named in map(values_alike, columns) if named is not None]
    if len(alike) == len(columns):
        names = tuple([name for name, _ in alike])
        return [_together(names, [values for _, values in alike], records)]
    by_names: dict[tuple[str, ...], list[pb.RawDelta]] = defaultdict(list)
    rows: dict[tuple[str, ...], list[tuple[CanonicalJson, ...]]] = defaultdict(list)
    for record in records:
        names, row = columns_of(record.columns)
        by_names[names].append(record)
        rows[names].append(row)
    return [
        _together(names, list(zip(*rows[names], strict=True)), of_names)
        for names, of_names in by_names.items()
    ]


def _together(
    names: tuple[str, ...],
    values: Sequence[Sequence[CanonicalJson]],
    records: Sequence[pb.RawDelta],
) -> Inserts:
    return Inserts(
        names,
        [record.row_id for record in records],
        [record.hlc for record in records],
        [record.client_id for record in records],
        values,
    )


# --- an edit of a row that a page deletes ---------------------------------------------------------


_STAMPS_TRIED_MAX: Final = 8
"""Stamps above a delete that are tried: the outbox has one place for each."""
_WAITS: Final = "SELECT status, run FROM _lakesync_outbox WHERE table_id = ? AND row_id = ?"


def insert_again(
    file: ClientFile,
    table: AppTable,
    by_row: Mapping[str, Sequence[Delta]],
    seen: Mapping[str, StoredRow],
) -> None:
    """Put rows that a page has deleted into the outbox, if updates of them wait.

    Used within the caller's transaction. Cost: nothing for a row of which no edit waits.

    Args:
        file: the client's.
        table: the rows' table.
        by_row: the page's deltas, which are merged by now.
        seen: the rows as they were before.
    """
    deleted = [
        row_id
        for row_id, deltas in by_row.items()
        if any(delta.op is Op.DELETE for delta in deltas)
        and row_id in seen
        and seen[row_id].base is not None
    ]
    if not deleted or table.delete_wins or table.id not in ruled_tables(file):
        return
    for row_id in deleted:
        made = _insert(file, table, row_id, fold(_writes(by_row[row_id]), seen[row_id].known))
        if made is not None:
            file.outbox.add(made, table.id)
            file.rows.refold({(table.id, row_id): None})


def _writes(deltas: Sequence[Delta]) -> list[Delta]:
    return [delta for delta in deltas if delta.op is not Op.DELETE]


def _insert(file: ClientFile, table: AppTable, row_id: str, before: RowState) -> Delta | None:
    row = file.rows.one((table.id, row_id))
    deleted = row.known.deleted
    if row.known.alive or row.known.columns or row.state.alive or not row.state.columns:
        return None
    waiting = file.connection.execute(_WAITS, (table.id, row_id)).fetchall()
    first = min(
        (
            delta.hlc
            for status, run in waiting
            if status != Status.QUARANTINED
            for delta in decode_records(run)
            if delta.op is Op.UPDATE and delta.hlc > deleted
        ),
        default=0,
    )
    hlc = _free_stamp(file, deleted, first)
    columns = tuple((name, before.columns[name][2]) for name in sorted(before.columns))
    if not hlc or not columns:
        return None
    made = known_delta(Op.INSERT, table.name, row_id, file.client_id, hlc, columns)
    return made if len(encode_records((made,))) <= DELTA_BYTES_MAX else None


def _free_stamp(file: ClientFile, deleted: Stamp, before: Stamp) -> Stamp:
    """Return the first stamp behind a delete and before an update; 0 if there is none."""
    stamps = range(deleted + 1, min(before, deleted + 1 + _STAMPS_TRIED_MAX))
    return next((hlc for hlc in stamps if file.outbox.at(hlc) is None), 0)


# --- pages, applied -------------------------------------------------------------------------------


Echoed: TypeAlias = "Counter[tuple[str, str]]"
"""How many deltas of a row, by table and row id, left the outbox because the page shows them."""


class Pages:
    def __init__(self, file: ClientFile) -> None:
        self.file = file
        self.resync = Resyncer(file)
        self.pending_echo = PendingEcho(file)
        self.journal = Journal(file)

    def is_news(self, page: PullPage, at: Position) -> bool:
        """Return whether a page changes anything in the file; most that are polled do not."""
        if page.count or page.has_more or page.resync is not None:
            return True
        if at != (page.cursor, page.epoch, page.snapshot, page.scope):
            return True
        row = self.file.connection.execute(
            "SELECT 1 FROM _lakesync_sync WHERE resync_mode OR NOT synced_ms OR EXISTS "
            "(SELECT 1 FROM _lakesync_outbox WHERE status IN ('sent', 'late'))"
        )
        return row.fetchone() is not None or self.pending_echo.has_passed(page.cursor)

    def apply(self, page: PullPage, arrived: Arrived) -> tuple[LostWrite, ...]:
        """Merge a page and move the cursor; returns the lost writes it shows. Safe to repeat."""
        if page.resync is not None:
            self.resync.read_again(page.resync)
            if reads_all_tables(page.snapshot):
                self._note_row_tables(page.resync.tables)
        echoed = self._acknowledge_echoes(arrived.own)
        log_start = None if page.snapshot else self._begin_log()
        until = log_behind(page.snapshot) if page.snapshot else page.cursor
        lost = LostWrites(self.file)
        ruled = page.scope not in {"", EVERYTHING}
        for name, rows in arrived.tables.items():
            table = self.file.catalogue.table(name, sorted(rows.columns), received=True)
            rest = self._insert_new(table, rows)
            if rest:
                self._bring(
                    table, rest, echoed, lost, log_start=log_start, until=until, ruled=ruled
                )
        if arrived.newest:
            newest = arrived.newest
            # With sync rules, a row that becomes visible is sent at once, ahead of the cursor.
            self.file.clock.follow(newest, max(page.cursor, newest) if ruled else page.cursor)
        if not page.snapshot:
            self.pending_echo.hide(page.cursor)
            lost.unread.end(page.cursor)
        if page.scope != self.file.position().scope:
            self.file.outbox.release_undeclared()  # other rules may name their tables
        self.file.connection.execute(
            # What was read up to the cursor stays true while a snapshot brings newer data.
            "UPDATE _lakesync_sync SET epoch = ?, snapshot = ?, scope = ?, "
            "cursor = CASE WHEN ? THEN cursor ELSE ? END",
            (page.epoch, page.snapshot, page.scope, page.snapshot != "", page.cursor),
        )
        if not page.has_more:
            self.file.connection.execute(
                "UPDATE _lakesync_sync SET synced_ms = ?", (max(1, self.file.clock.server_ms()),)
            )
            self.resync.finish()
            self.file.rows.drop_tombstones(page.cursor)
            self.journal.expire(page.cursor)
            self.file.outbox.settle_doubts(page.cursor + stamp(DRIFT_MS_MAX))
        return lost.keep()

    def _note_row_tables(self, names: Iterable[str]) -> None:
        """Note the tables whose rows a snapshot reads; all others are in the log after it."""
        self.file.connection.execute("DELETE FROM _lakesync_row_tables")
        self.file.connection.executemany(
            "INSERT OR IGNORE INTO _lakesync_row_tables VALUES (?)",
            [(folded(name),) for name in names],
        )

    def _begin_log(self) -> Stamp:
        at = self.file.position()
        since = at.cursor
        if at.snapshot:
            since = log_behind(at.snapshot)
            self.resync.on_snapshot_complete(since)
        return since + stamp(DRIFT_MS_MAX)

    def _insert_new(self, table: AppTable, arrived: ArrivedRows) -> dict[str, list[Delta]]:
        """Write the rows that may be new, if all of them are; returns those still to be merged."""
        # Of what is not stored, stale or pending there is nothing to merge with.
        may_be_new = self.pending_echo.is_empty and not self.resync.has_stale(table.id)
        if may_be_new and insert_new(self.file.rows, table, arrived.inserts, arrived.several):
            return arrived.others
        return arrived.by_row()

    def _bring(
        self,
        table: AppTable,
        by_row: dict[str, list[Delta]],
        echoed: Echoed,
        lost: LostWrites,
        *,
        log_start: Stamp | None,
        until: Stamp,
        ruled: bool,
    ) -> None:
        """Merge a page's deltas of one table, complete up to the commit ``until``.

        ``ruled``: rules may omit columns.
        """
        rows = self.file.rows
        stored = seen = rows.load(table.id, by_row)
        bases = self.resync.new_bases(table.id, by_row, stored, log_start)
        # Whole rows do not say which of two writes came first.
        not_compared = by_row.keys() if log_start is None else set(bases)
        lost.unread.begin(table, by_row, not_compared)
        self._hide(table, by_row, stored, bases, lost, until)
        for row_id, writes in self.pending_echo.on_page(table.id, by_row, until).items():
            if row_id in stored:
                base = bases.get(row_id, stored[row_id].known)
                bases[row_id] = self.pending_echo.without(base, writes)
        if ruled:
            self._leave_out_omitted(by_row, stored, bases)
        if bases:
            rows.refold({(table.id, row_id): base for row_id, base in bases.items()})
            stored = rows.load(table.id, by_row)
        for row_id in bases:
            echoed.pop((table.name, row_id), None)  # merged again without its echoes already

        def compare(row_id: str, after: RowState) -> None:
            if row_id not in not_compared:
                before = seen.get(row_id, NOT_STORED)
                lost.compare(table, row_id, before, after, by_row[row_id], until)

        rows.save(_merged(table, by_row, stored, echoed, compare))
        insert_again(self.file, table, by_row, seen)

    def _hide(
        self, table: AppTable, by_row: dict[str, list[Delta]], stored: dict[str, StoredRow],
        bases: dict[str, RowState], lost: LostWrites, until: Stamp,
    ) -> None:  # fmt: skip
        """Give rows that a page removes an empty base, and leave what the page brings after it."""
        hidden = {delta.row_id for row in by_row.values() for delta in row if delta.op is Op.REMOVE}
        if not hidden:
            return
        removed = {row_id: stored.get(row_id, NOT_STORED) for row_id in hidden}
        lost.unread.hide(table, removed)
        for row_id, row in removed.items():
            for clash in _deleted_late(table.id, row, by_row[row_id], self.file.client_id):
                lost.add(clash)
            by_row[row_id] = _after_removal(by_row[row_id])
            bases[row_id] = EMPTY
        self.pending_echo.keep_removed(table.id, removed, until)

    def _leave_out_omitted(
        self,
        by_row: Mapping[str, list[Delta]],
        stored: Mapping[str, StoredRow],
        bases: dict[str, RowState],
    ) -> None:
        """Give rows a base without what the page leaves out of this client's own writes."""
        me = self.file.client_id
        for row_id, deltas in by_row.items():
            if row_id not in stored or not any(delta.client_id == me for delta in deltas):
                continue
            base = bases.get(row_id, stored[row_id].known)
            left = _without_omitted(base, deltas, me)
            if left is not base:
                bases[row_id] = left

    def _acknowledge_echoes(self, own: list[Delta]) -> Echoed:
        """Remove from the outbox what the page proves to be at the gateway: a receipt was lost."""
        # A page may contain a delta twice: in the row that became visible, and separately.
        known = {delta.delta_id: delta for delta in self.file.outbox.known(own)}
        self.file.outbox.remove(delta.hlc for delta in known.values())
        return Counter((delta.table, delta.row_id) for delta in known.values())


def _deleted_late(table_id: int, row: StoredRow, deltas: list[Delta], me: str) -> Iterator[Clash]:
    """Yield the own writes that are gone with a row of which a late delete left too little."""
    for late in deltas:
        if late.op is Op.DELETE and late.client_id != me:
            for name, (hlc, client_id, value) in row.state.columns.items():
                if client_id == me and hlc > late.hlc:
                    other = (None, late.hlc, late.client_id)
                    row_id = late.row_id
                    yield Clash(table_id, row_id, name, value, hlc, *other, None, False, True)


def _without_omitted(state: RowState, deltas: Iterable[Delta], me: str) -> RowState:
    """Return a row without those columns of own writes that a page leaves out: rules omit them.

    What a page shows of an own write is all that rules show of it.
    """
    shown: dict[Stamp, set[str]] = defaultdict(set)
    for delta in deltas:
        if delta.client_id == me:
            shown[delta.hlc].update(name for name, _ in delta.columns)
    columns = {
        name: register
        for name, register in state.columns.items()
        if register[1] != me or register[0] not in shown or name in shown[register[0]]
    }
    return state if len(columns) == len(state.columns) else state._replace(columns=columns)


def _after_removal(deltas: list[Delta]) -> list[Delta]:
    """Return the deltas of a row after this client last lost sight of the row."""
    last = max(place for place, delta in enumerate(deltas) if delta.op is Op.REMOVE)
    return deltas[last + 1 :]


def _merged(
    table: AppTable,
    by_row: dict[str, list[Delta]],
    stored: dict[str, StoredRow],
    echoed: Echoed,
    compare: Callable[[str, RowState], None],
) -> Iterator[RowToStore]:
    """Yield the rows that a page changes; ``compare`` is told what each of them is after it."""
    for row_id, deltas in by_row.items():
        row = stored.get(row_id, NOT_STORED)
        before = row.state
        after = fold(deltas, before)
        compare(row_id, after)
        if row.base is None:
            if after is not before:
                yield table, row_id, after, None, 0
            continue
        waiting = max(row.waiting - echoed[table.name, row_id], 0)
        base = fold(deltas, row.known) if waiting else None
        yield table, row_id, after, base, waiting
