"""Reading a table by a column with the time of each row's last change.

A poll reads what lies between two times of the source's clock. It ends a little before now, so that
of one instant all changes are there; the next begins so much before that end as the longest
transaction takes, which may bring changes of then. What comes again is a duplicate to the gateway.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from lakesync.connectors.port import Change, SourcePage, Unreadable
from lakesync.connectors.sql.query import Bound, behind, key_value, page_of
from lakesync.connectors.sql.values import instant_us
from lakesync.errors import AdapterRefused

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lakesync.connectors.sql.catalogue import Database
    from lakesync.connectors.sql.plan import Plan


def check(database: Database, cursor: Any, plan: Plan) -> None:
    """Refuse a cursor column that holds no times, or that rows have none in.

    Raises:
        AdapterRefused: it is one.
    """
    column = plan.settings.cursor_column
    if column and plan.types[plan.place(column)] != "timestamp":
        raise AdapterRefused(
            f"{column} of {plan.settings.name} holds no times: name a column of times as "
            "cursorColumn, or none, to compare all rows"
        )
    wanted = [column] if column else list(plan.key)
    cursor.execute(*page_of(database.dialect, plan.settings.name, wanted, wanted, [], 1))
    cursor.fetchall()
    row_id = _without_time(database, cursor, plan) if column else None
    if row_id is not None:
        raise AdapterRefused(
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
    overlap_s: int,
    settle_s: int,
) -> SourcePage:
    """Give the rows behind a cursor, in the order of their times; may raise `Altered`."""
    column = plan.settings.cursor_column or ""
    place = plan.place(column)
    since, until, key = _begun(database, cursor, after, settle_s)
    order = [column, *(name for name in plan.key if name != column)]
    conditions: list[tuple[str, Sequence[Any]]] = []
    if since is not None:
        bound = Bound(order[: 1 + len(key)], [since, *key])
        conditions.append(behind(database.dialect, bound))
    conditions.append((f"{database.dialect.quote(column)} <= %s", [until]))
    statement = page_of(
        database.dialect, plan.settings.name, plan.columns, order, conditions, rows_max
    )
    rows = plan.rows(cursor, statement)
    changes, unreadable = _changes(plan, rows, place)
    if not key:  # the first page of a poll
        unreadable = (*unreadable, *_said(plan, _without_time(database, cursor, plan)))
    if len(rows) < rows_max:
        ended = {"since": _text(until - timedelta(seconds=overlap_s))}
        return SourcePage(changes, json.dumps(ended), False, unreadable)
    last = rows[-1]
    values = [key_value(last[plan.place(name)]) for name in order[1:]]
    going_on = {"since": key_value(last[place]), "until": _text(until), "key": values}
    return SourcePage(changes, json.dumps(going_on), True, unreadable)


def _begun(
    database: Database, cursor: Any, after: str, settle_s: int
) -> tuple[datetime | None, datetime, list[Any]]:
    """Give where a page begins, where its poll ends, and the key of the row before."""
    stored: dict[str, Any] = json.loads(after) if after else {}
    since = datetime.fromisoformat(stored["since"]) if stored else None
    if "until" in stored:
        return since, datetime.fromisoformat(stored["until"]), stored["key"]
    until = database.now(cursor) - timedelta(seconds=settle_s)
    return since, until, []


def _without_time(database: Database, cursor: Any, plan: Plan) -> str | None:
    """Give the id of one row that no time finds, as its change time is NULL; None if all have one.

    In the order of that column alone, so that its index answers.
    """
    column = plan.settings.cursor_column or ""
    condition = f"{database.dialect.quote(column)} IS NULL", ()
    wanted = [column, *plan.key]
    cursor.execute(*page_of(database.dialect, plan.settings.name, wanted, [column], [condition], 1))
    row = cursor.fetchone()
    # MySQL also takes a day 0000-00-00 in a column that is NOT NULL for NULL: that one is read.
    return plan.key_row_id(row[1:]) if row and row[0] is None else None


def _said(plan: Plan, row_id: str | None) -> tuple[Unreadable, ...]:
    """Give the row without a change time as one that cannot be read, until it has one."""
    if row_id is None:
        return ()
    reason = (
        f"its {plan.settings.cursor_column} is NULL, so that no poll reads it, nor other rows "
        "without: set it, or name no cursorColumn, to compare all rows"
    )
    return (Unreadable(row_id, reason),)


def _changes(
    plan: Plan, rows: Sequence[Sequence[Any]], place: int
) -> tuple[tuple[Change, ...], tuple[Unreadable, ...]]:
    changes: list[Change] = []
    unreadable: list[Unreadable] = []
    for row in rows:
        row_id = plan.row_id(row)
        try:
            changes.append(Change(row_id, plan.values(row), instant_us(row[place])))
        except ValueError as exc:
            unreadable.append(Unreadable(row_id, str(exc)))
    return tuple(changes), tuple(unreadable)


def _text(moment: datetime) -> str:
    return (moment.astimezone(UTC) if moment.tzinfo else moment).isoformat()
