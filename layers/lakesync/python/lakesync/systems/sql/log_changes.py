"""A feed of any source's log: the net changes of rows in its transactions, page by page.

Rules of the parts of transactions
    1. A part has at most one change of a row: its final state. Two changes of a row are in two
       parts, whose times differ.
    2. A part's time is its transaction's commit time, but always later than the previous part's: by
       a microsecond if the source's clock does not advance. The order of commits decides, not a
       clock.

Reads from the table what the source's log does not have. A value that is stored outside its row
(TOAST) and did not change is not in the log. With an unchanged key the gateway has it already, but
a row under a new key would lack it. And a key that a row left may be another row's by then. The
current values are read; if they changed since, that change follows in the log.

Law N12: ``docs/spec/connectors.md``.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar

from lakesync.connectors.port import Change, SourcePage, Unreadable
from lakesync.systems.sql.captured_tables import UNCHANGED
from lakesync.systems.sql.sql_settings import quoted_name, quoted_table
from lakesync.systems.sql.table_plan import rows_with

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from lakesync.adapters.sql.standard import Dialect
    from lakesync.systems.sql.captured_tables import Captured, CapturedTable

# --- parts of transactions ------------------------------------------------------------------------


PART_BYTES_MAX: Final = 4_000_000
"""Bytes of the log in one part, unless one row alone has more."""

_NO_ID: Final = "(a row whose key cannot be read)"


class Omitted(NamedTuple):
    """A row whose log entry omits columns that the gateway may lack."""

    table: CapturedTable
    row_id: str
    columns: tuple[str, ...]


class VacatedKey(NamedTuple):
    """A key that a row left for another one.

    Where a key is checked at the end of a transaction (DEFERRABLE), another row may have come to it
    before this one left: then the log's last change of the key is not its last state.
    """

    table: CapturedTable
    row_id: str


class Part(NamedTuple):
    """A transaction, or a part of one."""

    changes: tuple[Change, ...]
    unreadable: tuple[Unreadable, ...]
    rows: int
    """Changes of rows in the log."""
    size: int
    """The size of the logged rows in bytes."""
    end: Any
    """The position behind it."""
    omitted: tuple[Omitted, ...] = ()
    vacated: tuple[VacatedKey, ...] = ()


class _NetChange(NamedTuple):
    """The net change of a row within a part."""

    is_new: bool
    """Whether the row did not exist before the part."""
    columns: dict[str, Any] | None
    reason: str = ""


class NetChanges:
    """Collects the net changes of rows, part by part.

    Args:
        start: where the first part begins.
        rows_max: about how many changes a part may have.
        until_us: the latest time of a change, unless it must be later than the one before.
        emptied: called with the name of a table that must be read again, and the time.
    """

    def __init__(
        self, start: Any, rows_max: int, until_us: int, emptied: Callable[[str, int], None]
    ) -> None:
        self.position = start
        self._rows_max = rows_max
        self._until_us = until_us
        self._emptied = emptied
        self._changes: dict[tuple[str, str], _NetChange] = {}
        self._omitted: dict[tuple[str, str], Omitted] = {}
        self._vacated: dict[tuple[str, str], VacatedKey] = {}
        self.rows = self.size = 0
        self.us = 0

    def time(self, commit_us: int) -> None:
        self.us = max(min(commit_us, self._until_us), self.position.us + 1)

    @property
    def is_full(self) -> bool:
        return self.rows >= self._rows_max or self.size >= PART_BYTES_MAX

    def part(self, end: Any) -> Part:
        """End a part at a position; an empty part uses no time."""
        self.position = end._replace(us=self.us if self.rows else self.position.us)
        part = Part(
            tuple(
                Change(row_id, change.columns, self.us, table)
                for (table, row_id), change in self._changes.items()
                if not change.reason
            ),
            tuple(
                Unreadable(row_id, change.reason, table)
                for (table, row_id), change in self._changes.items()
                if change.reason
            ),
            self.rows,
            self.size,
            self.position,
            tuple(self._omitted.values()),
            tuple(self._vacated.values()),
        )
        self._changes, self._omitted, self._vacated = {}, {}, {}
        self.rows = self.size = 0
        return part

    def insert(self, table: CapturedTable, new: Any) -> None:
        self._of(table, lambda: self._put(table, table.row_id(new), new, is_new=True))

    def delete(self, table: CapturedTable, old: Any) -> None:
        """Note that a row was deleted."""
        self._of(table, lambda: self._remove(table, table.row_id(old)))

    def update(self, table: CapturedTable, new: Any, old: Any, *, old_is_whole: bool) -> None:
        """Note that a row was updated; `old` is None if its key is unchanged."""
        self._of(table, lambda: self._update(table, new, old, old_is_whole=old_is_whole))

    def empty(self, name: str) -> None:
        """Note that a table must be read again."""
        for place in [place for place in self._changes if place[0] == name]:
            del self._changes[place]
            self._omitted.pop(place, None)
            self._vacated.pop(place, None)
        self._emptied(name, self.us)

    def _of(self, table: CapturedTable, take: Callable[[], None]) -> None:
        try:
            take()
        except ValueError as exc:
            self._changes[table.name, _NO_ID] = _NetChange(
                is_new=False, columns=None, reason=str(exc)
            )

    def _update(self, table: CapturedTable, new: Any, old: Any, *, old_is_whole: bool) -> None:
        if old is not None:
            keys = {table.places[at] for at in table.key_places}
            new = tuple(
                old[place] if value is UNCHANGED and place in keys else value
                for place, value in enumerate(new)
            )
        row_id = table.row_id(new)
        before = table.row_id(old) if old is not None else row_id
        if before == row_id:
            self._put(table, row_id, new, is_new=False)
            return
        # A deletion under the old key, an insert under the new one.
        if old_is_whole:
            pairs = zip(new, old, strict=True)
            new = tuple(was if value is UNCHANGED else value for value, was in pairs)
        self._remove(table, before)
        place = (table.name, before)
        self._changes[place] = _NetChange(is_new=False, columns=None)
        self._vacated[place] = VacatedKey(table, before)
        self._put(table, row_id, new, is_new=True)

    def _put(self, table: CapturedTable, row_id: str, row: Any, *, is_new: bool) -> None:
        place = (table.name, row_id)
        change = self._changes.pop(place, None)
        omitted = table.omitted(row) if is_new and UNCHANGED in row else ()
        if omitted:
            self._omitted[place] = Omitted(table, row_id, omitted)
        if change is not None:
            is_new = change.is_new
        try:
            columns = table.values(row)
        except ValueError as exc:
            self._changes[place] = _NetChange(is_new, None, str(exc) or "it cannot be read")
            return
        if change is not None and change.columns is not None:
            columns = change.columns | columns
        self._changes[place] = _NetChange(is_new, columns)

    def _remove(self, table: CapturedTable, row_id: str) -> None:
        place = (table.name, row_id)
        change = self._changes.pop(place, None)
        self._omitted.pop(place, None)
        if change is None or not change.is_new:
            self._changes[place] = _NetChange(is_new=False, columns=None)


# --- pages ----------------------------------------------------------------------------------------


class Gathered(NamedTuple):
    """The parts of one page."""

    parts: list[Part]
    """The parts with changes of rows."""
    last: Part | None
    """The last part that was read, with or without rows; None if there was none."""
    is_end: bool
    """Whether the reading is at its end."""


class Gathering:
    """Gathers the parts of one reading, page by page.

    Args:
        parts: in the order of commits.
        goes_on: asked before each part of a page; on False the page ends.
    """

    def __init__(self, parts: Iterator[Part], goes_on: Callable[[], bool] = lambda: True) -> None:
        self._parts = parts
        self._goes_on = goes_on
        self._carried: Part | None = None
        """A part that was read already, for the next page."""

    def page(self, rows_max: int) -> Gathered:
        """Return the next parts that fit a page: at least one, if any is left."""
        parts: list[Part] = []
        last: Part | None = None
        rows = size = 0
        while rows < rows_max and self._goes_on():
            part = self._carried or next(self._parts, None)
            self._carried = None
            if part is None:
                return Gathered(parts, last, is_end=True)
            if parts and (rows + part.rows > rows_max or size + part.size > PART_BYTES_MAX):
                self._carried = part
                break
            last = part
            if part.rows:
                parts.append(part)
            rows, size = rows + part.rows, size + part.size
        return Gathered(parts, last, is_end=False)


# --- what the log omits ---------------------------------------------------------------------------


_KEYS_MAX: Final = 500
"""Keys of one query."""


def with_omitted(cursor: Any, dialect: Dialect, parts: Sequence[Part]) -> tuple[Change, ...]:
    """Return the changes of parts, with what the log does not have."""
    changes: list[Change] = []
    taken = _taken(cursor, dialect, [each for part in parts for each in part.vacated])
    for part in parts:
        omitted = {(each.table.name, each.row_id): each for each in part.omitted}
        left = {(each.table.name, each.row_id) for each in part.vacated}
        for change in part.changes:
            place = (change.table, change.row_id)
            each = omitted.get(place)
            if change.columns is None:
                columns = taken.get(place) if place in left else None
                changes.append(change._replace(columns=columns))
            elif each is None:
                changes.append(change)
            else:
                columns = {**_read(cursor, dialect, each), **change.columns}
                changes.append(change._replace(columns=columns))
    return tuple(changes)


def _taken(
    cursor: Any, dialect: Dialect, left: Sequence[VacatedKey]
) -> Mapping[tuple[str, str], dict[str, Any]]:
    """Return the rows that have come to keys which others left."""
    taken: dict[tuple[str, str], dict[str, Any]] = {}
    tables = {each.table.name: each.table.plan for each in left}
    for name, plan in tables.items():
        row_ids = list(dict.fromkeys(each.row_id for each in left if each.table.name == name))
        for start in range(0, len(row_ids), _KEYS_MAX):
            some = row_ids[start : start + _KEYS_MAX]
            for row in rows_with(cursor, dialect, plan, some, plan.columns):
                taken[name, plan.row_id(row)] = plan.some_values(plan.columns, row)
    return taken


def _read(cursor: Any, dialect: Dialect, omitted: Omitted) -> dict[str, Any]:
    """Return those columns; none if the row's key changed again, or the row was deleted."""
    plan = omitted.table.plan
    names = ", ".join(quoted_name(dialect, name) for name in omitted.columns)
    condition = " AND ".join(f"{quoted_name(dialect, name)} = %s" for name in plan.key)
    table = quoted_table(dialect, plan.settings.name)
    cursor.execute("SAVEPOINT omitted")
    try:
        cursor.execute(
            f"SELECT {names} FROM {table} WHERE {condition}",  # noqa: S608 - quoted
            plan.key_parameters(omitted.row_id),
        )
        rows = plan.source.rows(cursor)
    except Exception as exc:
        if dialect.translate(exc) is None:
            raise
        cursor.execute("ROLLBACK TO SAVEPOINT omitted")
        return {}
    if len(rows) != 1:
        return {}
    return plan.some_values(omitted.columns, rows[0])


# --- the feed -------------------------------------------------------------------------------------


class GapError(Exception):
    """The log cannot be read beyond this point: all tables must be read again."""


@dataclass(kw_only=True)
class Reading:
    """One reading of the log, page by page."""

    position: Any
    until: Any
    poll_ms: int
    gathering: Gathering = field(default_factory=lambda: Gathering(iter(())))
    expected: str = ""
    """The cursor with which its next page will be requested."""


R = TypeVar("R", bound=Reading)


class LogFeed(ABC, Generic[R]):
    """The changes of all captured tables of one connector, page by page.

    A feed without a cursor, or with that of a gap, has all tables read whole as of now. Behind a
    cursor it reads the log to its end at that time; then tables that were altered are to be read
    again. A gap in the log is reported with a cursor of its own: the recovery waits until that is
    durable.

    Args:
        report: what each report says of the source.
    """

    def __init__(
        self, dialect: Dialect, captured: Captured, report: Mapping[str, str | int]
    ) -> None:
        self.captured = captured
        self._dialect = dialect
        self._source_report = report
        self._report: Mapping[str, str | int] = {}
        self._reading: R | None = None

    @abstractmethod
    def _begun(
        self, cursor: Any, at: dict[str, Any], rows_max: int, poll_ms: int
    ) -> R | SourcePage:
        """Begin to read behind a position; return a page if something must be done first.

        Raises:
            GapError: the log does not reach back to it.
        """

    @abstractmethod
    def _cursor_of(self, reading: R) -> dict[str, Any]:
        """Return what the cursor of a reading's next page has."""

    def forget(self) -> None:
        """End the current reading."""
        self._reading = None

    def look(self, cursor: Any) -> None:
        """Query the state of all tables."""
        self.captured.tables.look(cursor)

    def page(self, cursor: Any, after: str, rows_max: int, poll_ms: int) -> SourcePage:
        """Return the changes that were committed after a cursor."""
        at = json.loads(after or "{}")
        try:
            reading = self._reading
            if reading is None or reading.expected != after or reading.poll_ms != poll_ms:
                self.forget()
                begun = self._begun(cursor, at, rows_max, poll_ms)
                if isinstance(begun, SourcePage):
                    return begun
                reading = self._reading = begun
            return self._next(cursor, reading, rows_max)
        except GapError as exc:
            return self._lost(str(exc), at["us"])

    def _next(self, cursor: Any, reading: R, rows_max: int) -> SourcePage:
        gathered = reading.gathering.page(rows_max)
        if gathered.last is not None:
            reading.position = gathered.last.end
        if gathered.is_end:
            return self._last(cursor, reading, gathered.parts)
        return self._page(cursor, reading, gathered.parts, has_more=True)

    def _last(self, cursor: Any, reading: R, parts: list[Part]) -> SourcePage:
        """Return the last page of a reading."""
        # What was read must be durable first: its times must not change if it is read again.
        has_more = bool(parts and self.captured.altered())
        if not has_more:
            us = self.captured.read_altered_again(cursor, reading.position.us)
            reading.position = reading.position._replace(us=us)
        page = self._page(cursor, reading, parts, has_more=has_more)
        self.forget()
        return page

    def _page(self, cursor: Any, reading: R, parts: list[Part], *, has_more: bool) -> SourcePage:
        changes = with_omitted(cursor, self._dialect, parts)
        reading.expected = json.dumps(self._cursor_of(reading))
        return SourcePage(
            changes,
            reading.expected,
            has_more,
            tuple(each for part in parts for each in part.unreadable),
            is_dated=True,
            report=self._report,
        )

    def _lost(self, reason: str, us: int) -> SourcePage:
        """Report that changes are missing."""
        self.forget()
        return self._step({"lost": reason, "us": us}, {"readAgain": reason})

    def _step(self, after: dict[str, Any], report: Mapping[str, str | int]) -> SourcePage:
        """Return a page without changes, behind which there is more."""
        report = {**self._source_report, **report}
        return SourcePage((), json.dumps(after), has_more=True, report=report)

    def _reported(self, **report: str | int) -> dict[str, str | int]:
        again = self.captured.kept.again
        return {**self._source_report, **report} | ({"readAgain": again} if again else {})
