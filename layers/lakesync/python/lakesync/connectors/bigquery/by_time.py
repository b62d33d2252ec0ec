"""Reads a table of BigQuery by a column with the time of each row's last change.

As `lakesync.connectors.sql.by_time`, but a poll asks once, and its pages are those of one query.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from lakesync.connectors.bigquery.polling import StillRunning
from lakesync.connectors.bigquery.statements import changed_rows, origin_of
from lakesync.connectors.port import SourcePage
from lakesync.connectors.sql.by_time import dated_changes, is_cursor, without_time
from lakesync.connectors.sql.keyless import keyless
from lakesync.connectors.sql.time_cursor import reach_of
from lakesync.errors import CursorExpired

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lakesync.connectors.bigquery.polling import Begun, Polling
    from lakesync.connectors.bigquery.statements import Statement
    from lakesync.connectors.port import Unreadable
    from lakesync.connectors.sql.configuration import PolledSettings
    from lakesync.connectors.sql.plan import Plan
    from lakesync.connectors.sql.time_cursor import Reach


class Place(NamedTuple):
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
        """Return it as a cursor."""
        return json.dumps(self._asdict())


def place_from(cursor: str) -> Place:
    """Return the place of a cursor: between polls, or in one."""
    if cursor.startswith('{"before"'):
        return Place(**json.loads(cursor))
    return Place(cursor if is_cursor(cursor) else "")


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
        """Whether its times have no zone."""
        plan = self.plan
        at = plan.place(plan.settings.cursor_column or "")
        return plan.described[at].source_type == "DATETIME"

    def reach(self, cursor: str, now: datetime, poll_ms: int) -> Reach:
        """Return what a poll reads."""
        margins = self.settings.overlap_s, self.settings.settle_s
        return reach_of(cursor, now, poll_ms, *margins, is_zoneless=self.is_zoneless)

    def statement(self, reach: Reach) -> Statement:
        """Return the statement of a poll."""
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
        """Return the rows behind a cursor."""
        place = place_from(cursor)
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

    def _page(self, begun: Begun, place: Place, rows_max: int, poll_ms: int) -> SourcePage:
        if place.job != begun.job:  # of an earlier query, whose rows were not all read
            place = Place(place.before, 0, begun.job)
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
            going_on = Place(place.before, at, begun.job, text)
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
