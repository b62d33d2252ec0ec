"""Compositions of databases: routed by table, fanned out to followers, split by age.

Each is a `DatabaseAdapter` made of `DatabaseAdapter`s, so they nest. None has state of its own: the
databases' marks show what remains to be done, so nothing is lost when a process dies.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lakesync.adapters.copying import archive_table, copy_table
from lakesync.adapters.database import ORDINAL_END, DeltaPage, Position
from lakesync.adapters.history_archive import HistoryArchive
from lakesync.errors import CursorExpired, LakeSyncError
from lakesync.result import Err, Ok

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from lakesync.adapters.copying import Copied
    from lakesync.adapters.database import DatabaseAdapter, Inserted, RowPage, TableBatch
    from lakesync.core.clock import Stamp
    from lakesync.core.merge import RowState
    from lakesync.core.schema import TableSchema
    from lakesync.result import Result


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
        """Return the database of a table."""
        return self.routes.get(table, self.default)

    def tables(self) -> Result[Mapping[str, TableSchema | None], LakeSyncError]:
        """Return the tables of all databases, each from where it is routed to."""
        tables: dict[str, TableSchema | None] = {}
        for database in {id(each): each for each in (self.default, *self.routes.values())}.values():
            match database.tables():
                case Ok(there):
                    tables |= {name: there[name] for name in there if self.of(name) is database}
                case Err(error):
                    return Err(error)
        return Ok(dict(sorted(tables.items())))

    def close(self) -> None:
        """Close every database."""
        for database in (self.default, *self.routes.values()):
            database.close()


@dataclass(frozen=True)
class _Primary(_Routed):
    """Asks one database for all that is not done otherwise."""

    primary: DatabaseAdapter

    def of(self, table: str) -> DatabaseAdapter:
        """Return the one database."""
        del table
        return self.primary

    def tables(self) -> Result[Mapping[str, TableSchema | None], LakeSyncError]:
        """Return the tables."""
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
        """Forget what every secondary has taken, and no more."""
        try:
            marks = [each.mark(table).unwrap() for each in self.secondaries.values()]
        except LakeSyncError as error:
            return Err(error)
        return self.primary.forget_history(table, min([until, *marks]))

    def close(self) -> None:
        """Close every database."""
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
        """Forget the table's history in both."""
        forgotten = self.archive.forget_history(table, until)
        return forgotten.and_then(lambda _: self.primary.forget_history(table, until))

    def close(self) -> None:
        """Close both databases."""
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
