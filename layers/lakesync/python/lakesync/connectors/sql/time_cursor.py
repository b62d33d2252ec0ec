"""How far a table is that is read by times: its cursor, and where the next poll begins. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any


@dataclass(frozen=True)
class Reach:
    """What a page of a poll asks for, and what was read before."""

    since: datetime | None
    """Only what is later; None for everything."""
    until: datetime
    """Where the poll ends, by the source's clock."""
    key: list[Any] = field(default_factory=list)
    """Of the row before, which has the time `since`; empty on a poll's first page."""
    is_begun: bool = False
    """Pages of the same poll were read before."""
    is_zoneless: bool = False
    """The column holds times without a zone, which may be of one that is behind UTC."""
    latest: datetime | None = None
    """The latest time that polls before read; only of a column without a zone."""
    latest_until: datetime | None = None
    """Where the poll ended that read it first."""

    def going_on(self, since: str | int, key: list[Any]) -> str:
        """Give the cursor behind a page, in the midst of a poll."""
        going_on = {"since": since, "until": _text(self.until), "key": key}
        return json.dumps(going_on | self._zoneless())

    def ended(self, last: object, overlap_s: int, settle_s: int) -> str:
        """Give the cursor behind a poll.

        Args:
            last: the time of the last row of the last page; None if there was none.
            overlap_s: how late transactions commit.
            settle_s: how fine the column is.
        """
        if not self.is_zoneless:
            since = self.until - timedelta(seconds=overlap_s)
            return json.dumps({"since": _text(since)})
        return self._zoneless_ended(last, timedelta(seconds=overlap_s + settle_s))

    def _zoneless_ended(self, last: object, margin: timedelta) -> str:
        """Begin next at the latest time there is, whatever the clock says that wrote it.

        Until no transaction can be late, what it may bring is read again; then nothing is.
        """
        read = last if isinstance(last, datetime) else self.since if self.is_begun else None
        latest, latest_until = self.latest, self.latest_until
        if read is not None and (latest is None or read > latest):
            latest, latest_until = read, self.until
        since = self.since
        if latest is not None and latest_until is not None:
            is_over = self.until - latest_until > margin
            since = latest if is_over else latest - margin
        at = {"latest": _text(latest), "latestUntil": _text(latest_until)}
        return json.dumps({"since": _text(since)} | at)

    def _zoneless(self) -> dict[str, Any]:
        if not self.is_zoneless:
            return {}
        return {"latest": _text(self.latest), "latestUntil": _text(self.latest_until)}


def reach_of(cursor: str, until: datetime, *, is_zoneless: bool) -> Reach:
    """Give what the next page asks for.

    Args:
        cursor: of the page before; empty for the first of all.
        until: where a poll ends that begins now.
        is_zoneless: whether the column has no zone now; in the midst of a poll the cursor says.
    """
    stored: dict[str, Any] = json.loads(cursor) if cursor else {}
    since = _instant(stored.get("since"))
    key: list[Any] = stored.get("key", [])
    is_begun = "until" in stored
    if is_begun:
        until, is_zoneless = datetime.fromisoformat(stored["until"]), "latest" in stored
    latest = _instant(stored.get("latest")) if is_zoneless else None
    latest_until = _instant(stored.get("latestUntil")) if is_zoneless else None
    return Reach(since, until, key, is_begun, is_zoneless, latest, latest_until)


def is_midway(cursor: str) -> bool:
    """Tell whether a cursor is of a poll that has more pages."""
    return bool(cursor) and "until" in json.loads(cursor)


def _instant(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)


def _text(moment: datetime | None) -> str | None:
    if moment is None:
        return None
    return (moment.astimezone(UTC) if moment.tzinfo else moment).isoformat()
