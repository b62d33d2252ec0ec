"""The cursor of a table that is read by change times, and where a poll begins. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

from lakesync.connectors.instants import microseconds

_BEHIND_UTC_MAX: Final = timedelta(hours=12)
"""The greatest distance of a time zone behind UTC."""


class Redating(NamedTuple):
    """How changes are dated after the source's clock stepped back.

    Their times are later than all earlier ones, in the same order, and reproducible: the distances
    are divided by a thousand, until a row's own time is later than that.
    """

    given_us: int
    """The latest stamp of earlier changes."""
    begin_us: int
    """The earliest time that the stepped clock can have shown."""

    def changed_us(self, time_us: int) -> int:
        """Return the change time that takes the place of the source's."""
        return max(time_us, self.given_us + 1 + max(0, time_us - self.begin_us) // 1000)


@dataclass(frozen=True)
class Reach:
    """The range that a page of a poll reads, and what was read before it."""

    now: datetime
    """When the poll began, by the source's clock."""
    since: datetime | None
    """Only rows with later times are read; None for all rows."""
    until: datetime
    """Where the poll ends, by the source's clock."""
    key: list[Any] = field(default_factory=list)
    """The key of the previous row, which has the time `since`; empty on a poll's first page."""
    is_begun: bool = False
    """Whether pages of the same poll were read before."""
    is_zoneless: bool = False
    """Whether the column has times without a zone, which may be of a zone behind UTC."""
    latest: datetime | None = None
    """The latest time that earlier polls read; only for a column without a zone."""
    latest_until: datetime | None = None
    """The end of the poll that first read that time."""
    redating: Redating | None = None
    """Set after the source's clock stepped back, until it has caught up."""

    def begun(self) -> str:
        """Return the cursor of this page, by which it can be read again."""
        return self.going_on(self.since, self.key)

    def going_on(self, since: datetime | None, key: list[Any]) -> str:
        """Return the cursor behind a page that is not the poll's last."""
        more = self._zoneless(self.latest, self.latest_until) if self.is_zoneless else {}
        going_on = {
            "since": _text(since),
            "until": _text(self.until),
            "key": key,
            "now": _text(self.now),
        }
        return json.dumps(going_on | more | _redated(self.redating))

    def ended(self, last: object, poll_ms: int, overlap_s: int, settle_s: int) -> str:
        """Return the cursor after a poll.

        Args:
            last: the time of the last row of the last page; None if there was none.
            poll_ms: when the poll began, by our clock.
            overlap_s: how late transactions commit.
            settle_s: how fine the column is.
        """
        since: datetime | None = self.until - timedelta(seconds=overlap_s)
        more: dict[str, Any] = {}
        if self.is_zoneless:
            since, more = self._ended_at(last, timedelta(seconds=overlap_s + settle_s))
        redating = self.redating
        if redating and since and redating.changed_us(microseconds(since)) == microseconds(since):
            redating = None  # the clock has caught up
        ended = {"since": _text(since), "now": _text(self.now), "pollMs": poll_ms}
        return json.dumps(ended | more | _redated(redating))

    def _ended_at(
        self, last: object, margin: timedelta
    ) -> tuple[datetime | None, dict[str, str | None]]:
        """Begin the next poll at the latest stored time, whatever clock wrote it.

        While a transaction may still commit late, the overlap is read again; after that it is not.
        """
        read = last if isinstance(last, datetime) else self.since if self.is_begun else None
        latest, latest_until = self.latest, self.latest_until
        if read is not None and (latest is None or read > latest):
            latest, latest_until = read, self.until
        since = self.since
        if latest is not None and latest_until is not None:
            is_over = self.until - latest_until > margin
            since = latest if is_over else latest - margin
        if since is not None:
            # The last row's time may be from before the clock stepped back.
            since = min(since, self.before_now(margin))
        return since, self._zoneless(latest, latest_until)

    def before_now(self, time: timedelta) -> datetime:
        """Return a time before the poll's beginning, in the form of the column."""
        moment = self.now - time
        return moment.replace(tzinfo=None) if self.is_zoneless else moment

    @staticmethod
    def _zoneless(latest: datetime | None, until: datetime | None) -> dict[str, str | None]:
        return {"latest": _text(latest), "latestUntil": _text(until)}


def reach_of(
    cursor: str, now: datetime, poll_ms: int, overlap_s: int, settle_s: int, *, is_zoneless: bool
) -> Reach:
    """Return the query of the next page.

    Args:
        cursor: the previous page's; empty for the very first.
        now: the time by the source's clock.
        poll_ms: when the poll began, by our clock.
        overlap_s: how late transactions commit.
        settle_s: how fine the column is.
        is_zoneless: whether the column has no zone now; within a poll the cursor decides.
    """
    stored: dict[str, Any] = json.loads(cursor) if cursor else {}
    since, was = _instant(stored.get("since")), _instant(stored.get("now"))
    if since and since.tzinfo and is_zoneless and "until" not in stored:
        since = since.replace(tzinfo=None)  # in UTC, as it was read
    until, is_begun = now - timedelta(seconds=settle_s), "until" in stored
    if is_begun:
        until, is_zoneless = datetime.fromisoformat(stored["until"]), "latest" in stored
    latest = _instant(stored.get("latest")) if is_zoneless else None
    latest_until = _instant(stored.get("latestUntil")) if is_zoneless else None
    redating = Redating(*stored["redating"]) if "redating" in stored else None
    began, key = (was or now, stored["key"]) if is_begun else (now, [])
    reach = Reach(began, since, until, key, is_begun, is_zoneless, latest, latest_until, redating)
    if was and began < was:
        margin = timedelta(seconds=overlap_s + settle_s)
        passed = timedelta(milliseconds=max(0, poll_ms - stored["pollMs"]))
        return _stepped_back(reach, latest or was, stored["pollMs"], passed + margin)
    return reach


def _stepped_back(reach: Reach, end: datetime, polled_ms: int, before: timedelta) -> Reach:
    """Return the query of a poll after the source's clock stepped.

    Args:
        reach: the query without the step.
        end: the latest time that may have been read.
        polled_ms: when the previous poll began, by our clock.
        before: how long ago the current clock, and transactions under it, may have begun.
    """
    given_us = microseconds(end)
    if reach.redating:
        given_us = reach.redating.changed_us(given_us)
    since = reach.before_now(before)
    if reach.since is not None:
        since = min(since, reach.since)
    # No stamp is later than the poll that brought it.
    given_us = min(given_us, polled_ms * 1000)
    return replace(reach, since=since, redating=Redating(given_us, microseconds(since)))


def begun_at(cursor: str, at_us: int, overlap_s: int) -> str:
    """Return the cursor from which changes since a time are read again, by the source's clock.

    That is the current cursor, if it is earlier, so unread rows are not skipped. Times without a
    zone may be behind UTC, so those of earlier hours are read, too.
    """
    stored: dict[str, Any] = json.loads(cursor) if cursor.startswith('{"since"') else {}
    since = _instant(stored.get("since"))
    if since is None:
        return cursor  # nothing was read yet
    # Rows with exactly that time are read, and rows just before it that were committed late.
    begins = datetime.fromtimestamp(0, UTC) + timedelta(microseconds=at_us - 1, seconds=-overlap_s)
    if since.tzinfo is None:
        begins = begins.replace(tzinfo=None) - _BEHIND_UTC_MAX
    if since <= begins:
        return cursor
    if "until" in stored:
        for name in ("until", "key", "now"):
            stored.pop(name, None)
    return json.dumps(stored | {"since": _text(begins)})


def is_midway(cursor: str) -> bool:
    """Return whether a cursor is of a poll that has more pages."""
    return bool(cursor) and "until" in json.loads(cursor)


def _redated(redating: Redating | None) -> dict[str, Redating]:
    return {"redating": redating} if redating else {}


def _instant(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)


def _text(moment: datetime | None) -> str | None:
    if moment is None:
        return None
    return (moment.astimezone(UTC) if moment.tzinfo else moment).isoformat()
