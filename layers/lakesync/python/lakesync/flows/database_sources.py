"""Databases read as a connector's source: by LakeSync's history, or by snapshots of other writers.

A database that LakeSync writes: its rows, then its history. A row that a commit changed is returned
whole, in its current state, and stamped with that commit. So changes arrive in the order of
commits, whatever their writers' stamps, and a page that is read twice has the same or newer rows.
If the history was forgotten, rows are read again, and deletions are found from the rows that the
flow delivered. For a row that was deleted and inserted again, a deletion is returned first:
otherwise it would keep the former values of columns that the insert does not name.

Tables with snapshots, written by others: first all rows of the newest snapshot are read. Then, from
each snapshot to the next, the rows of the files that it added. If a snapshot removed files, the
differences between removed and added files are returned, from the last read snapshot to the newest.
All rows of a step are stamped with its commit.

Rules of reading snapshots
    1. The changes of a step always have the same order: a cursor is a step, and how many of its
       changes were returned. Deletions of delivered rows are the exception: the remaining ones are
       searched for each time.
    2. Two snapshots are compared by ranges of their keys, so memory is bounded.
    3. An expired snapshot is a gap: it is read as forgotten history is.

Laws Y5, Y12: ``docs/spec/flows.md``.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from zlib import crc32

from lakesync.adapters.database import (
    ALL,
    CHANGED,
    GONE,
    ORDINAL_END,
    HasSnapshots,
    Position,
    SideBySide,
    SnapshotStep,
    SnapshotTable,
)
from lakesync.adapters.ledger_database import values_of
from lakesync.connectors.port import (
    Change,
    SourceColumn,
    SourcePage,
    SourceTable,
    Stretch,
    Unreadable,
)
from lakesync.core.clock import stamp
from lakesync.core.delta import Op
from lakesync.core.wording import plural
from lakesync.errors import AdapterRefused, CursorExpired, LakeSyncError, ValidationFailed
from lakesync.result import Err, Ok
from lakesync.systems.sql.database_values import PythonValues
from lakesync.systems.sql.sql_settings import PolledTable
from lakesync.systems.sql.table_plan import plan_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from lakesync.adapters.database import DatabaseAdapter
    from lakesync.connectors.port import TellsBrought
    from lakesync.core.clock import Stamp
    from lakesync.core.flows import PlainTable
    from lakesync.core.merge import RowState
    from lakesync.result import Result
    from lakesync.systems.sql.table_plan import Plan


class LedgerSource:
    """Reads a database that LakeSync writes; a `lakesync.connectors.port.Connector`.

    Args:
        brought: lists the rows that the flow delivered.
    """

    def __init__(
        self, database: DatabaseAdapter, tables: Sequence[str], brought: TellsBrought
    ) -> None:
        self._database = database
        self._tables = tables
        self._brought = brought

    def check(self) -> Result[str, LakeSyncError]:
        def said(there: Any) -> Result[str, LakeSyncError]:
            missing = sorted({*self._tables} - there.keys())
            if missing:
                return Err(ValidationFailed(f"it has no table {', '.join(missing)}"))
            return Ok(f"It has what is asked for: {plural(len(self._tables), 'table')}.")

        return self._database.tables().and_then(said)

    def discover(self) -> Result[tuple[SourceTable, ...], LakeSyncError]:
        return self._database.tables().map(
            lambda there: tuple(
                SourceTable(
                    name,
                    tuple(SourceColumn(one.name, one.type, one.nullable)
                          for one in (schema.columns if schema else ())),
                    ("row_id",),
                )
                for name, schema in there.items()
            )
        )  # fmt: skip

    def read(
        self,
        table: str,
        cursor: str,
        *,
        rows_max: int,
        poll_ms: int,  # noqa: ARG002 - commits are dated
    ) -> Result[SourcePage, LakeSyncError]:
        try:
            place = place_from(cursor) if cursor else self._begin(table)
            if place is None:
                return Ok(SourcePage((), cursor, has_more=False))  # it is being filled
            if place.step == ROWS:
                return Ok(self._rows(table, place, rows_max))
            if place.step == RESTORED:
                return Ok(self._restored(table, place))
            if place.step == CHECK:
                return Ok(self._gone(table, place))
            return Ok(self._history(table, place, rows_max))
        except LakeSyncError as error:
            return Err(error)

    def ahead(
        self,
        table: str,
        cursor: str,
        rows: int,
        *,
        poll_ms: int,  # noqa: ARG002 - as `Divisible`
    ) -> Result[Stretch, LakeSyncError]:
        """Return a stretch of a table's rows; only the first reading of rows is divided."""
        place = place_from(cursor) if cursor else None
        if place is None or place.step != ROWS or not isinstance(self._database, SideBySide):
            return Ok(Stretch(cursor, ""))
        return self._database.row_ahead(table, place.at, rows).map(
            lambda row_id: Stretch(cursor, place._replace(at=row_id).text() if row_id else "")
        )

    def read_stretch(
        self,
        table: str,
        cursor: str,
        ends: str,
        *,
        rows_max: int,
        poll_ms: int,  # noqa: ARG002 - as `Divisible`
    ) -> Result[SourcePage, LakeSyncError]:
        place, last = place_from(cursor), place_from(ends).at.encode()
        try:
            page = self._database.rows_after(table, place.at, rows_max).unwrap()
            within = {row: state for row, state in page.rows.items() if row.encode() <= last}
            changes = self._changes(table, *_as_rows(within, place))
        except LakeSyncError as error:
            return Err(error)
        following = place._replace(at=max(within, key=str.encode, default="")).text()
        has_more = page.has_more and len(within) == len(page.rows) and following != ends
        return Ok(SourcePage(changes, following if has_more else ends, has_more, is_dated=True))

    def close(self) -> None:
        self._database.close()

    def _mark(self, table: str) -> Stamp:
        """Return a table's mark; 0 while it is being filled.

        Raises:
            AdapterRefused: there is no such table; it must not be treated as an empty one.
        """
        mark = self._database.mark(table).unwrap()
        if not mark and table not in self._database.tables().unwrap():
            raise AdapterRefused(f"it has no table {table}, or not yet")
        return mark

    def _begin(self, table: str) -> Place | None:
        mark = self._mark(table)
        first = self._brought(table, "")
        return Place(ROWS, mark, "", bool(first.row_ids or first.place)) if mark else None

    def _rows(self, table: str, place: Place, rows_max: int) -> SourcePage:
        page = self._database.rows_after(table, place.at, rows_max).unwrap()
        changes = self._changes(table, *_as_rows(page.rows, place))
        if page.has_more:
            following = place._replace(at=max(page.rows, key=str.encode))
        elif place.again:
            following = Place(CHECK, place.commit)
        else:
            following = Place(HISTORY, place.commit, ORDINAL_END)
        return SourcePage(changes, following.text(), has_more=True, is_dated=True)

    def _gone(self, table: str, place: Place) -> SourcePage:
        """Return deletions of delivered rows that no longer exist."""
        if not self._mark(table):
            return SourcePage((), place.text(), has_more=False)  # it is being filled again
        brought = self._brought(table, place.at)
        there = self._database.rows_of(table, brought.row_ids).unwrap() if brought.row_ids else {}
        changes = tuple(
            Change(row_id, None, hlc=place.commit)
            for row_id in brought.row_ids
            if row_id not in there
        )
        following = Place(CHECK, place.commit, brought.place)
        if not brought.place:
            following = Place(HISTORY, place.commit, ORDINAL_END)
        return SourcePage(changes, following.text(), has_more=True, is_dated=True)

    def _history(self, table: str, place: Place, rows_max: int) -> SourcePage:
        since = Position(place.commit, place.at)
        answer = self._database.query_deltas_since(table, since, rows_max)
        if isinstance(answer, Err) and isinstance(answer.error, CursorExpired):
            begins = self._begin(table)
            if begins is None:
                return SourcePage((), place.text(), has_more=False)
            return SourcePage((), begins._replace(again=True).text(), has_more=True)
        page = answer.unwrap()
        if not page.deltas and 0 < self._mark(table) < place.commit:
            # Later commits are lost at the source: reported until it can be repaired.
            return SourcePage((), place._replace(step=RESTORED, at="").text(), has_more=True)
        commits = {placed.delta.row_id: placed.position.commit for placed in page.deltas}
        states = self._database.rows_of(table, list(commits)).unwrap() if commits else {}
        deleted = {one.delta.row_id for one in page.deltas if one.delta.op is Op.DELETE}
        rows = {row_id: (states.get(row_id), commit) for row_id, commit in commits.items()}
        changes = self._changes(table, rows, deleted)
        following = Place(HISTORY, *page.position)
        return SourcePage(changes, following.text(), page.has_more, is_dated=True)

    def _restored(self, table: str, place: Place) -> SourcePage:
        """Read the rows again once the source is newer than everything that was delivered."""
        begins = self._begin(table)
        if begins is None or begins.commit <= place.commit:
            raise CursorExpired(
                f"{table} was read further than its database goes, which was restored from a "
                "backup; once something newer is committed there, all is read again and what is "
                "gone is deleted: deliver to that database again, or commit to the table"
            )
        return SourcePage((), begins._replace(again=ANEW).text(), has_more=True)

    def _changes(
        self,
        table: str,
        rows: Mapping[str, tuple[RowState | None, Stamp]],
        deleted: Collection[str],
    ) -> tuple[Change, ...]:
        schema = self._database.tables().unwrap().get(table) if rows else None
        changes: list[Change] = []
        for row_id, (state, commit) in rows.items():
            values = None if state is None else values_of(state, schema)
            if values is not None and row_id in deleted:
                changes.append(Change(row_id, None, hlc=commit - 1))
            changes.append(Change(row_id, values, hlc=commit))
        return tuple(changes)


def _as_rows(
    states: Mapping[str, RowState], place: Place
) -> tuple[dict[str, tuple[RowState | None, Stamp]], set[str]]:
    """Return rows as of a place, and the ids of those that may have lost columns since delivery."""
    deleted = {
        row_id for row_id, state in states.items()
        if place.again == ANEW or (place.again and state.deleted)
    }  # fmt: skip
    return {row_id: (state, place.commit) for row_id, state in states.items()}, deleted


# --- the cursor -----------------------------------------------------------------------------------


ROWS: Final = "rows"
CHECK: Final = "check"
HISTORY: Final = "history"
RESTORED: Final = "restored"
ANEW: Final = 2
"""Value of `Place.again`: the delivered version of any row may have been newer than this one.
Earlier releases treat it as true."""


class Place(NamedTuple):
    """A position in a table; as JSON it is the cursor."""

    step: str
    """`ROWS`, then `CHECK` (delivered rows that no longer exist are deleted), then `HISTORY`.
    `RESTORED`: the source was restored to before its last read commit, and is waited for until it
    has a later one."""
    commit: Stamp
    """For rows, the commit as of which they are read; for the history, the last commit read."""
    at: Any = ""
    """For `ROWS` the last id, for `CHECK` a place among the delivered rows, else the ordinal."""
    again: int = False
    """Whether rows were delivered before these were read; or `ANEW`."""

    def text(self) -> str:
        return json.dumps(self, separators=(",", ":"))


def place_from(cursor: str) -> Place:
    return Place(*json.loads(cursor))


def begun_at(cursor: str, commit: Stamp) -> str:
    """Return the cursor behind a commit; the current one if it is earlier, or reads rows."""
    place = place_from(cursor)
    if place.step != HISTORY or place.commit <= commit:
        return cursor
    return Place(HISTORY, commit, ORDINAL_END).text()


# --- tables with snapshots ------------------------------------------------------------------------


class _At(NamedTuple):
    """A position in a table's snapshots."""

    snapshot: int = 0
    """The snapshot that was last read to its end; 0 for none."""
    hlc: Stamp = 0
    """The stamp of the current step, or else of the previous one."""
    given: int = 0
    """Changes of the current step that were returned."""
    step: SnapshotStep | None = None
    """The current step."""

    def text(self) -> str:
        return json.dumps(self)


@dataclass
class _Reading:
    """One step of a table, page by page."""

    table: str
    at: _At
    changes: Iterator[Change | Unreadable]
    expected: str
    """The cursor with which its next page will be requested."""


class PlainSource:
    """A `lakesync.connectors.port.Connector`.

    Args:
        brought: lists the rows that the flow delivered.
    """

    def __init__(
        self, database: DatabaseAdapter, tables: Mapping[str, PlainTable], brought: TellsBrought
    ) -> None:
        self._database = database
        self._tables = tables
        self._brought = brought
        self._reading: _Reading | None = None
        self._opened: dict[str, SnapshotTable] = {}

    def check(self) -> Result[str, LakeSyncError]:
        try:
            for name in self._tables:
                self._plan(name)
        except LakeSyncError as error:
            return Err(error)
        return Ok(f"It has what is asked for: {plural(len(self._tables), 'table')}.")

    def discover(self) -> Result[tuple[SourceTable, ...], LakeSyncError]:
        try:
            plans = {name: self._plan(name) for name in self._tables}
        except LakeSyncError as error:
            return Err(error)
        return Ok(
            tuple(
                SourceTable(
                    name,
                    tuple(SourceColumn(*one) for one in zip(plan.names, plan.types, strict=True)),
                    plan.key,
                )
                for name, plan in plans.items()
            )
        )

    def read(
        self,
        table: str,
        cursor: str,
        *,
        rows_max: int,
        poll_ms: int,
    ) -> Result[SourcePage, LakeSyncError]:
        at = _at(cursor)
        try:
            return Ok(self._page(table, cursor, at, rows_max, poll_ms))
        except CursorExpired as error:
            self._reading = None
            again = _At(hlc=at.hlc).text()
            if again == cursor:  # the newest one expired while it was read
                return Err(AdapterRefused(error.message))
            report: dict[str, str | int] = {"readAgain": error.message}
            return Ok(SourcePage((), again, has_more=True, report=report))
        except LakeSyncError as error:
            self._reading = None
            return Err(error)

    def close(self) -> None:
        self._reading = None
        self._database.close()

    def _page(self, table: str, cursor: str, at: _At, rows_max: int, poll_ms: int) -> SourcePage:
        reading = self._reading
        if reading is None or (reading.table, reading.expected) != (table, cursor):
            begun = self._next(table, at, poll_ms)
            if begun.step is None:
                return SourcePage((), cursor or at.text(), has_more=False)
            changes = self._changes(table, begun.step, begun)
            reading = self._reading = _Reading(table, begun, changes, cursor)
        read = list(islice(reading.changes, rows_max))
        at = reading.at = reading.at._replace(given=reading.at.given + len(read))
        if len(read) < rows_max:
            at, self._reading = self._behind(table, at), None
        reading.expected = at.text()
        return SourcePage(
            tuple(one for one in read if isinstance(one, Change)),
            reading.expected,
            has_more=True,
            unreadable=tuple(one for one in read if isinstance(one, Unreadable)),
            is_dated=True,
        )

    def _next(self, table: str, at: _At, poll_ms: int) -> _At:
        """Return the step in progress, or the next one, if there is one.

        It is stamped with its commit, or, if the writer's clock is ahead, with the poll's
        beginning.
        """
        if at.step is not None:
            return at
        steps = self._table(table).steps(at.snapshot)
        if not steps:
            return at
        hlc = max(stamp(min(steps[0].at_ms, poll_ms)), at.hlc + 1)
        return _At(at.snapshot, hlc, 0, steps[0])

    def _behind(self, table: str, at: _At) -> _At:
        """Return the position after a step: after all rows, deletions of delivered rows follow."""
        assert at.step is not None  # noqa: S101 - one was just read
        if at.step.kind == ALL:
            first = self._brought(table, "")
            if first.row_ids or first.place:
                return at._replace(given=0, step=at.step._replace(kind=GONE))
        return _At(at.step.after, at.hlc)

    def _changes(self, table: str, step: SnapshotStep, at: _At) -> Iterator[Change | Unreadable]:
        rows = Rows(self._table(table), self._plan(table), step, at.hlc)
        if step.kind == GONE:
            return self._gone(table, rows)
        if step.kind == CHANGED:
            return islice(rows.compared(), at.given, None)
        return rows.added(at.given)

    def _gone(self, table: str, rows: Rows) -> Iterator[Change]:
        for part, parts in parts_of(rows.table.count(rows.step)):
            there = {row_id for row_id in rows.row_ids() if part_of(row_id, parts) == part}
            place = ""
            while True:
                brought = self._brought(table, place)
                for row_id in brought.row_ids:
                    if part_of(row_id, parts) == part and row_id not in there:
                        yield Change(row_id, None, hlc=rows.hlc)
                place = brought.place
                if not place:
                    break

    def _table(self, table: str) -> SnapshotTable:
        if not isinstance(self._database, HasSnapshots):
            raise AdapterRefused("tables of other writers are not read of this database")
        if table not in self._opened:
            self._opened[table] = self._database.snapshots_of(self._tables[table].table)
        return self._opened[table]

    def _plan(self, table: str) -> Plan:
        wanted = self._tables[table]
        columns = tuple(SourceColumn(*one) for one in self._table(table).columns())
        settings = PolledTable.model_validate({
            "name": wanted.table, "as": table, "key": wanted.key, "columns": wanted.columns or None,
        })  # fmt: skip
        return plan_of(settings, SourceTable(wanted.table, columns, ()), PythonValues())


def _at(cursor: str) -> _At:
    at = _At(*json.loads(cursor)) if cursor else _At()
    return at._replace(step=SnapshotStep(*at.step)) if at.step is not None else at


# --- differences of snapshots ---------------------------------------------------------------------


COMPARED_ROWS_MAX: Final = 500_000
"""Rows whose former values are in memory at a time; larger steps are compared in parts."""


@dataclass(frozen=True)
class Rows:
    """The rows of one step from a snapshot to another."""

    table: SnapshotTable
    plan: Plan
    step: SnapshotStep
    hlc: Stamp

    def added(self, skipped: int = 0) -> Iterator[Change | Unreadable]:
        return map(self._change, self.table.rows(self.step, self.plan.columns, skipped=skipped))

    def compared(self) -> Iterator[Change | Unreadable]:
        """Yield the differences between the files that it removed and those that it added."""
        for part, parts in parts_of(self.table.count(self.step, left=True)):
            before: dict[str, int] = {}
            for row in self.table.rows(self.step, self.plan.columns, left=True):
                row_id = self.plan.row_id(row)
                if part_of(row_id, parts) == part:
                    before[row_id] = hash(repr(row))
            for row in self.table.rows(self.step, self.plan.columns):
                row_id = self.plan.row_id(row)
                if part_of(row_id, parts) == part and before.pop(row_id, None) != hash(repr(row)):
                    yield self._change(row)
            for row_id in sorted(before):
                yield Change(row_id, None, hlc=self.hlc)

    def row_ids(self) -> Iterator[str]:
        """Yield the ids of all rows of the added files, except rows with a NULL in the key.

        Rows with an unreadable value are included: they exist.
        """
        for row in self.table.rows(self.step, self.plan.columns):
            if not self._lacks_key(row):
                yield self.plan.row_id(row)

    def _lacks_key(self, row: tuple[Any, ...]) -> bool:
        return any(row[at] is None for at in self.plan.key_places)

    def _change(self, row: tuple[Any, ...]) -> Change | Unreadable:
        row_id = self.plan.row_id(row)
        if self._lacks_key(row):
            named = ", ".join(self.plan.key)
            return Unreadable(row_id, f"a column of its key is NULL: {named}")
        try:
            return Change(row_id, self.plan.values(row), hlc=self.hlc)
        except ValueError as exc:
            return Unreadable(row_id, str(exc))


def parts_of(rows: int) -> Iterator[tuple[int, int]]:
    parts = max(1, -(-rows // COMPARED_ROWS_MAX))
    return ((part, parts) for part in range(parts))


def part_of(row_id: str, parts: int) -> int:
    return crc32(row_id.encode()) % parts if parts > 1 else 0
