"""Reads a table of BigQuery by difference: all rows at each poll, by one query.

As `lakesync.connectors.sql.by_difference`, but rows are in the order of a digest of their keys,
which is the same for BigQuery and here.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

from lakesync.connectors.bigquery.polling import StillRunning
from lakesync.connectors.bigquery.statements import all_rows, origin_of
from lakesync.connectors.port import SourcePage
from lakesync.connectors.sql.by_difference import read_range
from lakesync.connectors.sql.keyless import keyless
from lakesync.connectors.sql.rekeying import gone, looks_for_gone
from lakesync.errors import CursorExpired

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lakesync.connectors.bigquery.polling import Begun, Polling
    from lakesync.connectors.bigquery.statements import Statement
    from lakesync.connectors.sql.gone import RowsThere
    from lakesync.connectors.sql.plan import Plan
    from lakesync.connectors.storage import Storage


class Place(NamedTuple):
    """Where a poll is."""

    after: str = ""
    """The cursor of the range that is read next, of `lakesync.connectors.sql.by_difference`."""
    at: int = 0
    """A row of the query, at or before the first behind it."""
    job: str = ""

    def text(self) -> str:
        """Return it as a cursor."""
        return json.dumps(self._asdict())


def place_from(cursor: str) -> Place:
    """Return the place of a cursor; the beginning, if it is of another way of reading."""
    return Place(**json.loads(cursor)) if cursor.startswith('{"after"') else Place()


def statement_of(plan: Plan, after: str = "") -> Statement:
    """Return the statement of a poll, from its beginning or behind a range."""
    settings = plan.settings
    place = json.loads(after)[0] if after else None
    return all_rows(origin_of(settings.name, settings.query), plan.columns, plan.key, place)


class _Rows:
    """`lakesync.connectors.sql.by_difference.Ordered` of a query's rows."""

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
        """Return the first rows behind a place, up to another."""
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
        """Return a row's place."""
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
        """Return the changes behind a cursor."""
        place = place_from(cursor)
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

    def _page(self, begun: Begun, place: Place, rows_max: int, poll_ms: int) -> SourcePage:
        if place.job != begun.job:
            place = Place(place.after, 0, begun.job)
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
        following = Place(page.cursor, at, begun.job)
        return SourcePage(page.changes, following.text(), has_more=True, unreadable=unreadable)
