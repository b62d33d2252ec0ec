"""Reads a table by a column with the time of each row's last change.

A poll reads the rows between two times of the source's clock. It ends a little before now, so that
all changes of its last instant are visible. The next poll begins before that end, by the duration
of the longest transaction, which may commit late with earlier times. Rows that are read again are
duplicates to the gateway.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

from lakesync.connectors.instants import microseconds
from lakesync.connectors.port import Change, SourcePage, Stretch, Unreadable
from lakesync.connectors.sql.keyless import has_key, without_key
from lakesync.connectors.sql.names import quoted_name
from lakesync.connectors.sql.query import Bound, behind, page_of, up_to
from lakesync.connectors.sql.time_cursor import is_midway, reach_of
from lakesync.errors import AdapterRefused

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lakesync.connectors.sql.catalogue import Database
    from lakesync.connectors.sql.configuration import SqlSettings
    from lakesync.connectors.sql.plan import Plan
    from lakesync.connectors.sql.query import Condition
    from lakesync.connectors.sql.time_cursor import Reach, Redating


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
        plan: how the table is read.
        rows: the rows.
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
