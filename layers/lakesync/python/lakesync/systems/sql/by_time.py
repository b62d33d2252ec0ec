"""Reads a table by a column with the time of each row's last change.

A poll reads the rows between two times of the source's clock. It ends a little before now, so that
all changes of its last instant are visible. The next poll begins before that end, by the duration
of the longest transaction, which may commit late with earlier times. Rows that are read again are
duplicates to the gateway.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from lakesync.connectors.pages import microseconds
from lakesync.connectors.port import Change, SourcePage, Stretch, Unreadable
from lakesync.errors import AdapterRefused, ValidationFailed
from lakesync.systems.sql.sql_settings import quoted_name
from lakesync.systems.sql.table_plan import Bound, behind, has_key, page_of, up_to, without_key

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lakesync.systems.sql.sql_settings import PolledSettings, SqlSettings
    from lakesync.systems.sql.table_plan import Condition, Database, Plan


def is_cursor(cursor: str) -> bool:
    """Return whether a cursor is of a table that is read by change times."""
    return cursor.startswith('{"since"')


def check(database: Database, cursor: Any, plan: Plan) -> str:
    """Refuse a cursor column that is not of times, or that is NULL in rows.

    Return a note on the column, or empty text.

    Raises:
        AdapterRefused: the column is refused.
    """
    column = plan.settings.cursor_column
    check_times(plan)
    wanted = [column] if column else list(plan.key)
    cursor.execute(*page_of(database.dialect, plan.origin(database.dialect), wanted, wanted, [], 1))
    cursor.fetchall()
    for row in without_key(database.dialect, cursor, plan, []):
        raise AdapterRefused(f"{plan.settings.name}: {row.reason}")
    if not column:
        return ""
    row_id, is_zoneless = _asked(database, cursor, plan)
    if row_id is not None:
        raise untimed(plan, row_id)
    name = f"{column} of {plan.settings.name}"
    return f"{name} has no zone and is read as of UTC" if is_zoneless else ""


def check_times(plan: Plan) -> None:
    """Refuse a cursor column that is not of times.

    Raises:
        AdapterRefused: it is not.
    """
    column = plan.settings.cursor_column
    if column and plan.types[plan.place(column)] != "timestamp":
        raise AdapterRefused(
            f"{column} of {plan.settings.name} holds no times: name a column of times as "
            "cursorColumn, or none, to compare all rows"
        )


def untimed(plan: Plan, row_id: str) -> AdapterRefused:
    """Return the refusal of a table with rows whose cursor column is NULL."""
    column = plan.settings.cursor_column
    return AdapterRefused(
        f"rows of {plan.settings.name} have no {column}, such as {row_id[:60]}, and would not "
        "be read: set it in all rows and make it NOT NULL with a default, or name no "
        "cursorColumn, to compare all rows"
    )


def read(
    database: Database,
    cursor: Any,
    plan: Plan,
    after: str,
    rows_max: int,
    settings: SqlSettings,
    poll_ms: int,
    ends: str = "",
) -> SourcePage:
    """Return the rows behind a cursor, in the order of their times; may raise `Altered`.

    With ``ends``, from `ahead`, read up to there.
    """
    place = plan.place(plan.settings.cursor_column or "")
    row_id, is_zoneless = None, False
    if not is_midway(after):
        row_id, is_zoneless = _asked(database, cursor, plan)
    margins = settings.overlap_s, settings.settle_s
    now = database.now(cursor)
    reach = reach_of(after, now, poll_ms, *margins, is_zoneless=is_zoneless)
    last_one = reach_of(ends, now, poll_ms, *margins, is_zoneless=False) if ends else None
    order, statement = _statement(database, plan, reach, rows_max, last_one)
    rows = plan.rows(cursor, statement)
    changes, unreadable = dated_changes(plan, rows, place, reach.redating)
    unreadable = (*unreadable, *without_time(plan, row_id))
    if not is_midway(after):
        within = _within(database, plan, reach)
        unreadable = (*unreadable, *without_key(database.dialect, cursor, plan, within))
    last = rows[-1] if rows else None
    if last is None or len(rows) < rows_max:
        if ends:
            return SourcePage(changes, ends, False, unreadable)
        ended = reach.ended(last and _time_of(plan, last[place], reach), poll_ms, *margins)
        return SourcePage(changes, ended, False, unreadable)
    values = plan.ends_at(order[1:], [last[plan.place(name)] for name in order[1:]])
    going_on = reach.going_on(_time_of(plan, last[place], reach), values)
    return SourcePage(changes, going_on, True, unreadable)


def ahead(
    database: Database,
    cursor: Any,
    plan: Plan,
    after: str,
    rows: int,
    settings: SqlSettings,
    poll_ms: int,
) -> Stretch:
    """Return a stretch of the next rows behind a cursor, in the order of their times."""
    is_zoneless = not is_midway(after) and _asked(database, cursor, plan)[1]
    now, margins = database.now(cursor), (settings.overlap_s, settings.settle_s)
    reach = reach_of(after, now, poll_ms, *margins, is_zoneless=is_zoneless)
    order, conditions = _asked_for(database, plan, reach)
    dialect = database.dialect
    cursor.execute(
        *page_of(dialect, plan.origin(dialect), order, order, conditions, 1, skipped=rows - 1)
    )
    rows_read = plan.source.rows(cursor)
    if not rows_read:
        return Stretch(reach.begun(), "")
    time, *rest = rows_read[0]
    going_on = reach.going_on(_time_of(plan, time, reach), plan.ends_at(order[1:], rest))
    return Stretch(reach.begun(), going_on)


def _statement(
    database: Database, plan: Plan, reach: Reach, rows_max: int, ends: Reach | None
) -> tuple[list[str], tuple[str, list[Any]]]:
    """Return the order of a page, and the statement that reads it."""
    order, conditions = _asked_for(database, plan, reach)
    if ends is not None and ends.since is not None:
        conditions.append(up_to(database.dialect, _bound(plan, order, ends)))
    dialect = database.dialect
    statement = page_of(dialect, plan.origin(dialect), plan.columns, order, conditions, rows_max)
    return order, statement


def _asked_for(database: Database, plan: Plan, reach: Reach) -> tuple[list[str], list[Condition]]:
    """Return the order in which rows are read, and which of them."""
    column = plan.settings.cursor_column or ""
    order = [column, *(name for name in plan.key if name != column)]
    conditions = [*has_key(database.dialect, plan)]
    if reach.since is not None:
        conditions.append(behind(database.dialect, _bound(plan, order, reach)))
    conditions.append((f"{quoted_name(database.dialect, column)} <= %s", [reach.until]))
    return order, conditions


def _within(database: Database, plan: Plan, reach: Reach) -> list[Condition]:
    """Return the conditions of a poll's rows, whatever their keys."""
    column = quoted_name(database.dialect, plan.settings.cursor_column or "")
    since = [] if reach.since is None else [(f"{column} >= %s", [reach.since])]
    return [*since, (f"{column} <= %s", [reach.until])]


def _bound(plan: Plan, order: Sequence[str], reach: Reach) -> Bound:
    """Return the last row before a page, in the order in which rows are read."""
    key = plan.bound(order[1 : 1 + len(reach.key)], reach.key)
    return Bound([order[0], *key.columns], [reach.since, *key.values])


def _time_of(plan: Plan, value: Any, reach: Reach) -> datetime | None:
    """Return a row's time; Python's first for one that it does not have, as none later is read."""
    try:
        return plan.instant(value)
    except ValueError:
        return datetime.min.replace(tzinfo=reach.until.tzinfo)


def _asked(database: Database, cursor: Any, plan: Plan) -> tuple[str | None, bool]:
    """Return the id of one row whose change time is NULL, and whether the column has no zone.

    Ordered by that column only, so that its index is used. None if all rows have a time.
    """
    column = plan.settings.cursor_column or ""
    condition = f"{quoted_name(database.dialect, column)} IS NULL", ()
    wanted = [column, *plan.key]
    dialect = database.dialect
    cursor.execute(*page_of(dialect, plan.origin(dialect), wanted, [column], [condition], 1))
    is_zoneless = cursor.description[0][1] == database.zoneless
    row = next(iter(plan.source.rows(cursor)), None)
    # In a NOT NULL column MySQL also treats the day 0000-00-00 as NULL: such a row is read.
    row_id = plan.key_row_id(row[1:]) if row and row[0] is None else None
    return row_id, is_zoneless


def without_time(plan: Plan, row_id: str | None) -> tuple[Unreadable, ...]:
    """Return the row without a change time as one that cannot be read, until it has one."""
    if row_id is None:
        return ()
    reason = (
        f"its {plan.settings.cursor_column} is NULL, so that no poll reads it, nor other rows "
        "without: set it, or name no cursorColumn, to compare all rows"
    )
    return (Unreadable(row_id, reason),)


def dated_changes(
    plan: Plan, rows: Sequence[Sequence[Any]], place: int, redating: Redating | None
) -> tuple[tuple[Change, ...], tuple[Unreadable, ...]]:
    """Return rows as changes at their times, and those that cannot be read.

    Args:
        place: the position of the time in a row.
        redating: how they are dated, if the source's clock stepped back.
    """
    changes: list[Change] = []
    unreadable: list[Unreadable] = []
    for row in rows:
        row_id = plan.row_id(row)
        try:
            changed = plan.instant(row[place])
            changed_us = None if changed is None else microseconds(changed)
            if redating and changed_us is not None:
                changed_us = redating.changed_us(changed_us)
            changes.append(Change(row_id, plan.values(row), changed_us))
        except ValueError as exc:
            unreadable.append(Unreadable(row_id, str(exc)))
    return tuple(changes), tuple(unreadable)


# --- the cursor -----------------------------------------------------------------------------------


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


def begins_at(settings: PolledSettings, source: str, cursor: str, at_us: int) -> str:
    """Return the cursor from which changes of a table since a time are read again.

    Raises:
        ValidationFailed: the table is read by difference.
    """
    if source not in {table.name for table in settings.tables if table.cursor_column}:
        raise ValidationFailed(
            f"{source} is read by difference, and its rows have no times of change: name a "
            "cursorColumn of it, or leave it out to read everything again",
            field="from",
        )
    return begun_at(cursor, at_us, settings.overlap_s)


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
