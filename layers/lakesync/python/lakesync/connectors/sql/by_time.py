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
    """Refuse a cursor column that holds no times.

    Raises:
        AdapterRefused: it does not.
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
