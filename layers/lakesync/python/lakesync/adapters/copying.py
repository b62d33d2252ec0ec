"""Databases that follow each other, and several as one: copied, routed, fanned out, split by age.

A copy applies the other's history to each table behind its own mark. Migrations, second
destinations and archiving all work this way. The target's mark says where to continue, so an
interrupted copy is resumed, and no commit is applied twice.

Archiving moves the old part of a database's history into an archive, in batches.

    1. put into the archive     one object for each batch, named by its content
    2. forget in the database   up to the archive's mark, and no further

If a process dies between the steps, the next run starts with step 2. No commit is missing from
both, and a reader of both as one (`Lifecycle`) gets each once. Of a batch that was read before an
erasure ended, the erased part does not come into the archive.

A composition is a `DatabaseAdapter` made of `DatabaseAdapter`s, so they nest. None has state of its
own: the databases' marks show what remains to be done, so nothing is lost when a process dies.
Law P15: ``docs/spec/databases.md``.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from lakesync.adapters.database import ORDINAL_END, DeltaPage, PlacedDelta, Position, TableBatch
from lakesync.adapters.history_archive import HistoryArchive
from lakesync.core.clock import STAMP_MAX
from lakesync.core.merge import deltas_of
from lakesync.errors import CursorExpired, LakeSyncError
from lakesync.result import Err, Ok
from lakesync.wire.records import encode_row_state

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from lakesync.adapters.database import DatabaseAdapter, Inserted, RowPage
    from lakesync.core.clock import Stamp
    from lakesync.core.merge import RowState
    from lakesync.core.schema import TableSchema
    from lakesync.result import Result

DELTAS_READ: Final = 10_000
"""Deltas that are read at a time; a commit with more is read to its end."""
ROWS_READ: Final = 5_000
"""Rows that are compared at a time."""


@dataclass(frozen=True, slots=True)
class Copied:
    """The progress of a table."""

    table: str
    deltas: int
    """Deltas that were new to the target."""
    until: Stamp
    """The target's mark."""


@dataclass(frozen=True, slots=True)
class Compared:
    """The comparison of one table in two databases."""

    table: str
    rows: int
    """Rows of the source, deleted ones included."""
    checksum: str
    """SHA-256 over the source's row ids and states, in the order of the ids' bytes."""
    is_equal: bool
    """Whether the target has exactly the same rows."""
    difference: str = ""
    """The first row id that differs."""


def copy_table(
    source: DatabaseAdapter,
    target: DatabaseAdapter,
    table: str,
    *,
    until: Stamp = STAMP_MAX,
    on_progress: Callable[[Copied], None] = lambda _: None,
) -> Result[Copied, LakeSyncError]:
    """Bring a table of the target up to the source. Safe to repeat, and to kill.

    Args:
        source: the database whose history is read; its rows, if its history does not reach back
            far enough.
        target: the database that receives it.
        until: commits above this one are not copied.
        on_progress: called after each batch.

    Errors: those of either database.
    """
    try:
        schema = source.tables().unwrap().get(table)
        # Read before the history, which is complete up to this mark.
        last = min(source.mark(table).unwrap(), until)
        mark = target.mark(table).unwrap()
        copied = Copied(table, 0, mark)
        if schema:
            target.ensure_schema(schema).unwrap()
        for deltas, upto in _history_or_rows(source, table, mark, last):
            batch = TableBatch(table, mark, upto, deltas, schema)
            inserted = target.insert_deltas(batch).unwrap()
            copied = Copied(table, copied.deltas + inserted.deltas, upto)
            mark = upto
            on_progress(copied)
        return Ok(copied)
    except LakeSyncError as error:
        return Err(error)


def compare_table(
    source: DatabaseAdapter, target: DatabaseAdapter, table: str
) -> Result[Compared, LakeSyncError]:
    """Compare a table's rows by count and checksum; needs both databases without writers."""
    try:
        digest, count, difference = hashlib.sha256(), 0, ""
        theirs = _rows(target, table)
        for row_id, state in _rows(source, table):
            encoded = encode_row_state(state)
            digest.update(b"%d:%b%d:%b" % (len(row_id), row_id, len(encoded), encoded))
            count += 1
            if not difference:
                other = next(theirs, None)
                if other is None or other != (row_id, state):
                    difference = min(row_id, other[0] if other else row_id).decode()
        if not difference and (more := next(theirs, None)):
            difference = more[0].decode()
        return Ok(Compared(table, count, digest.hexdigest(), not difference, difference))
    except LakeSyncError as error:
        return Err(error)


def _history_or_rows(
    source: DatabaseAdapter, table: str, mark: Stamp, last: Stamp
) -> Iterator[tuple[list[PlacedDelta], Stamp]]:
    """Yield batches of history; if it was forgotten, of the current rows."""
    if mark >= last:
        return
    if is_forgotten(source, table, mark):
        yield from _filling(source, table, mark, last)
    else:
        yield from whole_commits(source, table, mark, last)


def is_forgotten(source: DatabaseAdapter, table: str, commit: Stamp) -> bool:
    """Return whether the source's history begins behind a commit."""
    answer = source.query_deltas_since(table, Position(commit, ORDINAL_END), 1)
    if isinstance(answer, Err) and isinstance(answer.error, CursorExpired):
        return True
    answer.unwrap()
    return False


def _filling(
    source: DatabaseAdapter, table: str, mark: Stamp, last: Stamp
) -> Iterator[tuple[list[PlacedDelta], Stamp]]:
    """Yield all rows as deltas, in invented commits whose stamps are far below real ones.

    An interrupted copy starts again with the first row, behind its mark: merging rows twice changes
    nothing. A row that is read late may be newer than ``last``; the history that follows repeats
    its changes.
    """
    after, has_more = "", True
    while has_more:
        mark += 1
        page = source.rows_after(table, after, ROWS_READ).unwrap()
        deltas = [
            delta for row_id in page.rows for delta in deltas_of(table, row_id, page.rows[row_id])
        ]
        after, has_more = max(page.rows, key=str.encode, default=after), page.has_more
        upto = mark if has_more else last
        yield (
            [PlacedDelta(Position(mark, place), delta) for place, delta in enumerate(deltas)],
            upto,
        )


def whole_commits(
    source: DatabaseAdapter, table: str, mark: Stamp, last: Stamp
) -> Iterator[tuple[list[PlacedDelta], Stamp]]:
    """Yield the commits in ``(mark, last]`` in batches of whole commits, each with its end."""
    position, waiting = Position(mark, ORDINAL_END), list[PlacedDelta]()
    while True:
        page = source.query_deltas_since(table, position, DELTAS_READ).unwrap()
        position = page.position
        waiting += [placed for placed in page.deltas if placed.position.commit <= last]
        if not page.has_more or position.commit > last:
            yield waiting, last
            return
        upto = position.commit
        whole = [placed for placed in waiting if placed.position.commit < upto]
        if whole:  # the last commit may continue in the next page
            yield whole, whole[-1].position.commit
            waiting = waiting[len(whole) :]


def _rows(adapter: DatabaseAdapter, table: str) -> Iterator[tuple[bytes, RowState]]:
    after = ""
    while True:
        page = adapter.rows_after(table, after, ROWS_READ).unwrap()
        for row_id, state in page.rows.items():
            yield row_id.encode(), state
            after = row_id
        if not page.has_more:
            return


# --- archiving ------------------------------------------------------------------------------------


MOVED_MAX: Final = 200_000
"""Deltas of a table that are moved at a time; the next run continues."""


def archive_table(
    source: DatabaseAdapter,
    archive: HistoryArchive,
    table: str,
    *,
    until: Stamp,
    deltas_max: int = MOVED_MAX,
) -> Result[Copied, LakeSyncError]:
    """Move a table's history up to a commit. Safe to repeat, and to kill.

    If the source has forgotten the next commits, as after it was filled anew, the archive continues
    where the source's history begins, and readers across the gap get an error.

    Args:
        source: the database whose history is moved.
        until: commits above this one are not moved.
        deltas_max: about how many deltas to move; a batch is moved whole.

    Errors: those of either side; batches that were moved stay moved.
    """
    try:
        archive.sweep(table).unwrap()
        at = archive.mark(table).unwrap()
        last = min(source.mark(table).unwrap(), until)
        if at < last and is_forgotten(source, table, at):
            if is_forgotten(source, table, last):
                return Ok(Copied(table, 0, at))  # none of it is there any more
            at = _beginning(source, table, at, last)
            archive.begin_anew(table, at).unwrap()
        moved = 0
        for deltas, _ in whole_commits(source, table, at, last) if at < last else ():
            if not deltas:
                break
            upto = deltas[-1].position.commit
            moved += archive.insert_deltas(TableBatch(table, at, upto, deltas)).unwrap().deltas
            at = upto
            if moved >= deltas_max:
                break
        if old := min(at, last):
            source.forget_history(table, old).unwrap()
        return Ok(Copied(table, moved, at))
    except LakeSyncError as error:
        return Err(error)


def _beginning(source: DatabaseAdapter, table: str, low: Stamp, high: Stamp) -> Stamp:
    """Return where the source's history begins, between what it has forgotten and what it has."""
    while high - low > 1:
        middle = (low + high) // 2
        if is_forgotten(source, table, middle):
            low = middle
        else:
            high = middle
    return high


# --- compositions ---------------------------------------------------------------------------------


class _Routed(ABC):
    """Asks, for each table, the database that has it."""

    @abstractmethod
    def of(self, table: str) -> DatabaseAdapter:
        """Return the database of a table."""

    def ensure_schema(self, schema: TableSchema) -> Result[None, LakeSyncError]:
        """Make the table ready where it is."""
        return self.of(schema.table).ensure_schema(schema)

    def insert_deltas(self, batch: TableBatch) -> Result[Inserted, LakeSyncError]:
        """Take a batch where its table is."""
        return self.of(batch.table).insert_deltas(batch)

    def mark(self, table: str) -> Result[Stamp, LakeSyncError]:
        """Return the table's mark."""
        return self.of(table).mark(table)

    def query_deltas_since(
        self, table: str, since: Position, deltas_max: int
    ) -> Result[DeltaPage, LakeSyncError]:
        """Return the table's history."""
        return self.of(table).query_deltas_since(table, since, deltas_max)

    def latest_state(
        self, table: str, row_id: str
    ) -> Result[Mapping[str, Any] | None, LakeSyncError]:
        """Return one row."""
        return self.of(table).latest_state(table, row_id)

    def rows_after(self, table: str, row_id: str, rows_max: int) -> Result[RowPage, LakeSyncError]:
        """Return the table's rows."""
        return self.of(table).rows_after(table, row_id, rows_max)

    def rows_of(
        self, table: str, row_ids: Sequence[str]
    ) -> Result[Mapping[str, RowState], LakeSyncError]:
        """Return some of the table's rows."""
        return self.of(table).rows_of(table, row_ids)

    def forget_history(self, table: str, until: Stamp) -> Result[None, LakeSyncError]:
        """Forget the table's history."""
        return self.of(table).forget_history(table, until)


@dataclass(frozen=True)
class Composite(_Routed):
    """Each table is in the database that is configured for it, all others in the default one."""

    default: DatabaseAdapter
    routes: Mapping[str, DatabaseAdapter] = field(default_factory=dict)

    def of(self, table: str) -> DatabaseAdapter:
        return self.routes.get(table, self.default)

    def tables(self) -> Result[Mapping[str, TableSchema | None], LakeSyncError]:
        tables: dict[str, TableSchema | None] = {}
        for database in {id(each): each for each in (self.default, *self.routes.values())}.values():
            match database.tables():
                case Ok(there):
                    tables |= {name: there[name] for name in there if self.of(name) is database}
                case Err(error):
                    return Err(error)
        return Ok(dict(sorted(tables.items())))

    def close(self) -> None:
        for database in (self.default, *self.routes.values()):
            database.close()


@dataclass(frozen=True)
class _Primary(_Routed):
    """Asks one database for all that is not done otherwise."""

    primary: DatabaseAdapter

    def of(self, table: str) -> DatabaseAdapter:
        del table
        return self.primary

    def tables(self) -> Result[Mapping[str, TableSchema | None], LakeSyncError]:
        return self.primary.tables()


@dataclass(frozen=True)
class FanOut(_Primary):
    """A primary database, and secondaries that follow it; an unavailable one delays no other.

    A secondary's queue is the primary's history behind the secondary's mark. So nothing can be lost
    between them, and a new secondary is filled by following. Call `follow` on a schedule.
    """

    secondaries: Mapping[str, DatabaseAdapter] = field(default_factory=dict)

    def follow(self, secondary: str) -> Result[Mapping[str, Copied], LakeSyncError]:
        """Bring a secondary up to the primary; returns each table's progress.

        Errors: those of either database; tables that were done stay done.
        """
        target = self.secondaries[secondary]
        return _each_table(self.primary, lambda table: copy_table(self.primary, target, table))

    def lag(self, secondary: str) -> Result[Mapping[str, tuple[Stamp, Stamp]], LakeSyncError]:
        """Return the secondary's and the primary's marks, for tables in which they differ."""
        follower, lags = self.secondaries[secondary], {}
        try:
            for table in self.primary.tables().unwrap():
                behind, ahead = follower.mark(table).unwrap(), self.primary.mark(table).unwrap()
                if behind != ahead:
                    lags[table] = (behind, ahead)
        except LakeSyncError as error:
            return Err(error)
        return Ok(lags)

    def forget_history(self, table: str, until: Stamp) -> Result[None, LakeSyncError]:
        try:
            marks = [each.mark(table).unwrap() for each in self.secondaries.values()]
        except LakeSyncError as error:
            return Err(error)
        return self.primary.forget_history(table, min([until, *marks]))

    def close(self) -> None:
        for database in (self.primary, *self.secondaries.values()):
            database.close()


@dataclass(frozen=True)
class Lifecycle(_Primary):
    """A database that keeps rows and recent history, with an archive of the older history.

    History is read through both as one. Call `archive_until` on a schedule.
    """

    archive: DatabaseAdapter | HistoryArchive

    def archive_until(self, until: Stamp) -> Result[Mapping[str, Copied], LakeSyncError]:
        """Move history up to a commit into the archive. Safe to repeat, and to kill.

        It is copied first, and then forgotten up to the archive's mark. A `HistoryArchive` takes at
        most `lakesync.adapters.copying.MOVED_MAX` of each table per call.
        """
        source, archive = self.primary, self.archive
        if isinstance(archive, HistoryArchive):
            return _each_table(
                source, lambda table: archive_table(source, archive, table, until=until)
            )
        moved = _each_table(source, lambda table: copy_table(source, archive, table, until=until))
        if isinstance(moved, Ok):
            for table, copied in moved.value.items():
                forgotten = self.primary.forget_history(table, min(until, copied.until))
                if isinstance(forgotten, Err):
                    return forgotten
        return moved

    def query_deltas_since(
        self, table: str, since: Position, deltas_max: int
    ) -> Result[DeltaPage, LakeSyncError]:
        """Return the table's history: from the archive as far as possible, then the primary."""
        seen = -1
        while True:
            marked = self.archive.mark(table)
            if isinstance(marked, Err):
                return marked
            mark = marked.value
            if since.commit <= mark:
                page = self._archived(table, since, deltas_max)
                if isinstance(page, Err) or page.value.deltas:
                    return page.map(lambda read: DeltaPage(read.deltas, read.position, True))
                since = max(since, Position(mark, ORDINAL_END))
            page = self.primary.query_deltas_since(table, since, deltas_max)
            is_forgotten = isinstance(page, Err) and isinstance(page.error, CursorExpired)
            if not is_forgotten or mark <= seen:
                return page
            seen = mark  # it may be moved between the two reads: then the archive is ahead

    def _archived(
        self, table: str, since: Position, deltas_max: int
    ) -> Result[DeltaPage, LakeSyncError]:
        """Return archived history; an error, if it lacks deletions as rows of it were erased."""
        archive = self.archive
        if isinstance(archive, HistoryArchive):
            return archive.query_deltas_to_follow(table, since, deltas_max)
        return archive.query_deltas_since(table, since, deltas_max)

    def forget_history(self, table: str, until: Stamp) -> Result[None, LakeSyncError]:
        forgotten = self.archive.forget_history(table, until)
        return forgotten.and_then(lambda _: self.primary.forget_history(table, until))

    def close(self) -> None:
        self.primary.close()
        self.archive.close()


def _each_table(
    source: DatabaseAdapter, move: Callable[[str], Result[Copied, LakeSyncError]]
) -> Result[Mapping[str, Copied], LakeSyncError]:
    """Move something of every table; an error has those that were done."""
    done: dict[str, Copied] = {}
    try:
        for table in source.tables().unwrap():
            done[table] = move(table).unwrap()
    except LakeSyncError as error:
        error.done = done
        return Err(error)
    return Ok(done)
