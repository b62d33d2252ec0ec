"""Reads tables of BigQuery, by difference or by change times: one query for all pages of a poll.

The statements that read a table of BigQuery. Pure; tests parse all of them. A poll reads a table by
one statement, whose rows BigQuery keeps for its pages: so a page costs nothing, and all pages see
the table at one time.

Rules of the queries of polls
    1. Which query a poll reads is stored before it is started, with its beginning. So a page that
       is read twice is a page of the same query, with the same rows.
    2. A query that failed, or whose rows BigQuery no longer keeps, is forgotten, and the page is
       read of a new one.

Reads a table of BigQuery by difference: all rows at each poll, by one query. As
`lakesync.systems.sql.by_difference`, but rows are in the order of a digest of their keys, which
is the same for BigQuery and here.

Reads a table of BigQuery by a column with the time of each row's last change. As
`lakesync.systems.sql.by_time`, but a poll asks once, and its pages are those of one query.
"""

from __future__ import annotations

import json
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from uuid import uuid4

from lakesync.connectors.port import SourcePage, digest
from lakesync.errors import AdapterTimedOut, AdapterUnreachable, CursorExpired, LakeSyncError
from lakesync.systems.bigquery.bigquery_statements import is_missing
from lakesync.systems.sql.by_difference import gone, looks_for_gone, read_range
from lakesync.systems.sql.by_time import dated_changes, is_cursor, reach_of, without_time
from lakesync.systems.sql.table_plan import READ_S_MAX, keyless

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lakesync.connectors.port import Storage, Unreadable
    from lakesync.systems.bigquery.bigquery_jobs import Jobs, ReadRows
    from lakesync.systems.sql.by_time import Reach
    from lakesync.systems.sql.sql_settings import PolledSettings
    from lakesync.systems.sql.table_plan import Plan, RowsThere

# --- statements -----------------------------------------------------------------------------------


PLACE: Final = "lakesync_place"
"""The column of a row's place in the order by which rows are compared: a digest of its key."""


class Statement(NamedTuple):
    """A statement, and the values of ``@p0``, ``@p1`` and so on."""

    text: str
    parameters: tuple[Any, ...] = ()


def quoted(name: str) -> str:
    escaped = name.replace("\\", "\\\\").replace("`", "\\`")
    return f"`{escaped}`"


def origin_of(name: str, query: str | None) -> str:
    """Return a table, or the query in its place; a comment at its end ends with its line."""
    if query is None:
        return quoted(name)
    return f"(\n{query}\n) AS lakesync_rows"


def changed_rows(
    origin: str,
    columns: Sequence[str],
    key: Sequence[str],
    time: str,
    bounds: tuple[Any, Any],
    partition: tuple[str, Any] | None,
) -> Statement:
    """Return the statement that reads rows by their times, and one row without a time.

    Args:
        origin: the table, or the query in its place.
        time: the column of times.
        bounds: rows after the first time are read, up to the second; all before, if it is None.
        partition: the column of partitions, and the first value of it that is read.
    """
    column = quoted(time)
    since, until = bounds
    parameters = [until] if since is None else [until, since]
    behind = "" if since is None else f" AND {column} > @p1"
    condition = f"(({column} <= @p0{behind}) OR {column} IS NULL)"
    if partition is not None:
        named = quoted(partition[0])
        # Rows that were streamed just now have no partition yet.
        condition += f" AND ({named} >= @p{len(parameters)} OR {named} IS NULL)"
        parameters.append(partition[1])
    order = ", ".join(map(quoted, key))
    first = f"ROW_NUMBER() OVER (PARTITION BY {column} ORDER BY {order}) = 1"
    text = (
        f"SELECT {_names(columns)} FROM {origin} WHERE {condition} "  # noqa: S608 - quoted
        f"QUALIFY {column} IS NOT NULL OR {first}"
    )
    return Statement(text, tuple(parameters))


def all_rows(
    origin: str, columns: Sequence[str], key: Sequence[str], after: str | None
) -> Statement:
    """Return the statement that reads all rows in the order of their places, or those behind one.

    Args:
        origin: the table, or the query in its place.
    """
    place = f"TO_HEX(MD5(TO_JSON_STRING(STRUCT({_names(key)}))))"
    where = "" if after is None else f"WHERE {place} > @p0 "
    text = (
        f"SELECT {_names(columns)}, {place} AS {quoted(PLACE)} FROM {origin} {where}"  # noqa: S608
        f"ORDER BY {quoted(PLACE)}"
    )
    return Statement(text, () if after is None else (after,))


def rows_with_keys(origin: str, key: Sequence[str], keys: Sequence[Sequence[Any]]) -> Statement:
    """Return the statement that reads the keys of the given rows, of those that are there."""
    count = len(key)
    places = [[f"@p{at * count + one}" for one in range(count)] for at in range(len(keys))]
    listed = ", ".join(f"({', '.join(place)})" for place in places)
    names = _names(key)
    text = f"SELECT {names} FROM {origin} WHERE ({names}) IN ({listed})"  # noqa: S608 - quoted
    return Statement(text, tuple(value for row in keys for value in row))


def untimed_row(origin: str, key: Sequence[str], time: str) -> Statement:
    text = f"SELECT {_names(key)} FROM {origin} WHERE {quoted(time)} IS NULL LIMIT 1"  # noqa: S608
    return Statement(text)


def _names(columns: Sequence[str]) -> str:
    return ", ".join(map(quoted, columns))


# --- a poll's query -------------------------------------------------------------------------------


_FOLDER: Final = "jobs"


class StillRunning(Exception):
    """The query has no rows yet; the page is asked for again."""


class Begun(NamedTuple):
    """The query that a poll reads."""

    job: str
    location: str
    poll_ms: int
    begins: str
    """The cursor at which it begins."""
    reads: str
    """A digest of what it reads: other settings read by a query of their own."""
    reach: str = ""
    """The times that it reads, as `Reach.begun`."""


class Polling:
    """One table's query, of one poll after another.

    Args:
        location: where its queries run; empty if BigQuery determines it.
    """

    def __init__(
        self, jobs: Jobs, storage: Storage, plan: Plan, location: str, bytes_billed_max: int
    ) -> None:
        self._jobs = jobs
        self._storage = storage
        settings = plan.settings
        self._path = (_FOLDER, digest(settings.name))
        columns = (settings.cursor_column or "", *plan.key, "", *plan.columns)
        self._reads = digest(settings.query or "", *columns)
        self._location = location
        self._bytes_billed_max = bytes_billed_max

    def begun(self, poll_ms: int) -> Begun | None:
        stored = self._storage.read(*self._path)
        begun = Begun(**stored) if stored else None
        ours = (poll_ms, self._reads)
        return begun if begun and (begun.poll_ms, begun.reads) == ours else None

    def begin(self, statement: Statement, poll_ms: int, begins: str, reach: str = "") -> Begun:
        job = f"lakesync_{uuid4().hex}"
        begun = Begun(job, self._location, poll_ms, begins, self._reads, reach)
        self._storage.write(begun._asdict(), *self._path)
        self._jobs.start(
            statement.text, statement.parameters, job_id=begun.job, location=begun.location,
            bytes_billed_max=self._bytes_billed_max,
        )  # fmt: skip
        return begun

    def rows(self, begun: Begun, start: int, rows_max: int) -> ReadRows:
        """Return rows of a query.

        Raises:
            StillRunning: it has none yet.
            CursorExpired: they are no longer kept, or it was never started.
        """
        try:
            read = self._jobs.rows(begun.job, begun.location, start, rows_max, READ_S_MAX)
        except LakeSyncError as error:
            if isinstance(error, AdapterUnreachable | AdapterTimedOut):
                raise
            with suppress(LakeSyncError):
                self._storage.remove(*self._path)
            if is_missing(error):
                raise CursorExpired(error.message) from error
            raise
        if read is None:
            raise StillRunning
        return read


# --- by difference --------------------------------------------------------------------------------


class DifferencePlace(NamedTuple):
    """Where a poll is."""

    after: str = ""
    """The cursor of the range that is read next, of `lakesync.systems.sql.by_difference`."""
    at: int = 0
    """A row of the query, at or before the first behind it."""
    job: str = ""

    def text(self) -> str:
        return json.dumps(self._asdict())


def difference_place_from(cursor: str) -> DifferencePlace:
    """Return the place of a cursor; the beginning, if it is of another way of reading."""
    return (
        DifferencePlace(**json.loads(cursor))
        if cursor.startswith('{"after"')
        else DifferencePlace()
    )


def statement_of(plan: Plan, after: str = "") -> Statement:
    """Return the statement of a poll, from its beginning or behind a range."""
    settings = plan.settings
    place = json.loads(after)[0] if after else None
    return all_rows(origin_of(settings.name, settings.query), plan.columns, plan.key, place)


class _Rows:
    """`lakesync.systems.sql.by_difference.Ordered` of a query's rows."""

    def __init__(self, polling: Polling, plan: Plan, begun: Begun, at: int) -> None:
        self._polling = polling
        self._plan = plan
        self._begun = begun
        self._first = at
        self._places: list[str] = []
        """The places of the rows that were read, from ``_first`` on."""
        self._of_rows: dict[int, str] = {}
        self.keyless: tuple[Any, ...] | None = None
        """One row without a key, of those that were read."""

    def between(
        self, start: Sequence[Any] | None, end: Sequence[Any] | None, rows_max: int
    ) -> Sequence[Sequence[Any]]:
        rows: list[tuple[Any, ...]] = []
        while len(rows) < rows_max:
            at = self._first + len(self._places)
            read = self._polling.rows(self._begun, at, rows_max)
            for *values, place in read.rows:
                self._places.append(place)
                is_within = (not start or place > start[0]) and (not end or place <= end[0])
                if is_within and self._has_key(values) and len(rows) < rows_max:
                    rows.append(tuple(values))
                    self._of_rows[id(rows[-1])] = place
            is_beyond = end is not None and self._places and self._places[-1] > end[0]
            if is_beyond or not read.rows or at + len(read.rows) >= read.total:
                break
        return rows

    def position(self, row: Sequence[Any]) -> Sequence[Any]:
        return [self._of_rows[id(row)]]

    def at(self, after: str) -> int:
        """Return which row of the query to read on from, behind a range."""
        last: str = json.loads(after)[0]
        return self._first + sum(place <= last for place in self._places)

    def _has_key(self, row: Sequence[Any]) -> bool:
        key = tuple(row[at] for at in self._plan.key_places)
        if None in key:
            self.keyless = self.keyless or key
        return None not in key


class ByDifference(NamedTuple):
    """How a table is compared."""

    plan: Plan
    polling: Polling
    storage: Storage
    rows_there: RowsThere

    def read(self, cursor: str, rows_max: int, poll_ms: int) -> SourcePage:
        place = difference_place_from(cursor)
        if looks_for_gone(place.after):
            page = gone(self.plan, self.storage, place.after, self.rows_there)
            following = place._replace(after=page.cursor).text() if page.has_more else ""
            return SourcePage(page.changes, following, page.has_more)
        begun = self.polling.begun(poll_ms)
        if begun is None or (begun.job != place.job and begun.begins != place.after):
            begun = self._begin(place.after, poll_ms)
        try:
            return self._page(begun, place, rows_max, poll_ms)
        except CursorExpired:
            begun = self._begin(place.after, poll_ms)
            return self._page(begun, place, rows_max, poll_ms)

    def _begin(self, after: str, poll_ms: int) -> Begun:
        return self.polling.begin(statement_of(self.plan, after), poll_ms, after)

    def _page(
        self, begun: Begun, place: DifferencePlace, rows_max: int, poll_ms: int
    ) -> SourcePage:
        if place.job != begun.job:
            place = DifferencePlace(place.after, 0, begun.job)
        rows = _Rows(self.polling, self.plan, begun, place.at)
        try:
            page = read_range(rows, self.plan, self.storage, place.after, rows_max, poll_ms)
        except StillRunning:
            return SourcePage((), place.text(), has_more=True)
        unreadable = page.unreadable
        if rows.keyless is not None:
            unreadable = (*unreadable, keyless(self.plan, rows.keyless))
        if not page.has_more:
            return SourcePage(page.changes, "", has_more=False, unreadable=unreadable)
        at = place.at if looks_for_gone(page.cursor) else rows.at(page.cursor)
        following = DifferencePlace(page.cursor, at, begun.job)
        return SourcePage(page.changes, following.text(), has_more=True, unreadable=unreadable)


# --- by time --------------------------------------------------------------------------------------


class TimePlace(NamedTuple):
    """Where a poll is."""

    before: str
    """The cursor with which it began."""
    at: int = 0
    """Rows that were given."""
    job: str = ""
    """The query that they are of."""
    latest: str | None = None
    """The latest time among them."""

    def text(self) -> str:
        return json.dumps(self._asdict())


def time_place_from(cursor: str) -> TimePlace:
    """Return the place of a cursor: between polls, or in one."""
    if cursor.startswith('{"before"'):
        return TimePlace(**json.loads(cursor))
    return TimePlace(cursor if is_cursor(cursor) else "")


class ByTime(NamedTuple):
    """How a table is read by its times."""

    plan: Plan
    settings: PolledSettings
    partition: str
    """The column of partitions by which old ones are left out; empty for none."""
    partition_type: str
    partition_days: int
    polling: Polling
    now: Callable[[], datetime]
    """Returns the time by the source's clock."""

    @property
    def is_zoneless(self) -> bool:
        plan = self.plan
        at = plan.place(plan.settings.cursor_column or "")
        return plan.described[at].source_type == "DATETIME"

    def reach(self, cursor: str, now: datetime, poll_ms: int) -> Reach:
        margins = self.settings.overlap_s, self.settings.settle_s
        return reach_of(cursor, now, poll_ms, *margins, is_zoneless=self.is_zoneless)

    def statement(self, reach: Reach) -> Statement:
        settings = self.plan.settings
        until = reach.until.astimezone(UTC)
        if self.is_zoneless:
            until = until.replace(tzinfo=None)
        partition: tuple[str, Any] | None = None
        if self.partition_days:
            first: Any = datetime.fromtimestamp(
                reach.now.timestamp() - self.partition_days * 86_400, UTC
            )
            if self.partition_type == "DATE":
                first = first.date()
            elif self.partition_type == "DATETIME":
                first = first.replace(tzinfo=None)
            partition = (self.partition, first)
        return changed_rows(
            origin_of(settings.name, settings.query), self.plan.columns, self.plan.key,
            settings.cursor_column or "", (reach.since, until), partition,
        )  # fmt: skip

    def read(self, cursor: str, rows_max: int, poll_ms: int) -> SourcePage:
        place = time_place_from(cursor)
        begun = self.polling.begun(poll_ms)
        if begun is None or begun.begins != place.before:
            begun = self._begin(place.before, poll_ms)
        try:
            return self._page(begun, place, rows_max, poll_ms)
        except CursorExpired:
            begun = self._begin(place.before, poll_ms)
            return self._page(begun, place, rows_max, poll_ms)

    def _begin(self, before: str, poll_ms: int) -> Begun:
        reach = self.reach(before, self.now(), poll_ms)
        return self.polling.begin(self.statement(reach), poll_ms, before, reach.begun())

    def _page(self, begun: Begun, place: TimePlace, rows_max: int, poll_ms: int) -> SourcePage:
        if place.job != begun.job:  # of an earlier query, whose rows were not all read
            place = TimePlace(place.before, 0, begun.job)
        try:
            read = self.polling.rows(begun, place.at, rows_max)
        except StillRunning:
            return SourcePage((), place.text(), has_more=True)
        plan, settings = self.plan, self.plan.settings
        time = plan.place(settings.cursor_column or "")
        reach = self.reach(begun.reach, datetime.now(UTC), poll_ms)
        sorted_out = _sorted_out(plan, read.rows, time)
        changes, unreadable = dated_changes(plan, sorted_out.timed, time, reach.redating)
        said = (*unreadable, *sorted_out.unreadable)
        times = [row[time] for row in sorted_out.timed]
        if place.latest:
            times.append(datetime.fromisoformat(place.latest))
        latest = max(times, default=None)
        at = place.at + len(read.rows)
        if read.rows and at < read.total:
            text = latest.isoformat() if latest else None
            going_on = TimePlace(place.before, at, begun.job, text)
            return SourcePage(changes, going_on.text(), has_more=True, unreadable=said)
        margins = self.settings.overlap_s, self.settings.settle_s
        return SourcePage(changes, reach.ended(latest, poll_ms, *margins), False, said)


class _SortedOut(NamedTuple):
    """Rows of a page."""

    timed: list[Any]
    unreadable: list[Unreadable]
    """One of those without a key, and one of those without a time."""


def _sorted_out(plan: Plan, rows: Sequence[Any], time: int) -> _SortedOut:
    sorted_out = _SortedOut([], [])
    without_keys = 0
    for row in rows:
        key = [row[at] for at in plan.key_places]
        if None in key:
            without_keys += 1
            if without_keys == 1:
                sorted_out.unreadable.append(keyless(plan, key))
        elif row[time] is None:
            sorted_out.unreadable.extend(without_time(plan, plan.row_id(row)))
        else:
            sorted_out.timed.append(row)
    return sorted_out
