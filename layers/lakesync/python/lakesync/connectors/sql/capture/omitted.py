"""Reads from the table what the source's log does not have.

A value that is stored outside its row (TOAST) and did not change is not in the log. With an
unchanged key the gateway has it already, but a row under a new key would lack it. And a key that a
row left may be another row's by then. The current values are read; if they changed since, that
change follows in the log.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from lakesync.connectors.sql.gone import rows_with
from lakesync.connectors.sql.names import quoted_name, quoted_table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lakesync.adapters.sql.dialect import Dialect
    from lakesync.connectors.port import Change
    from lakesync.connectors.sql.capture.parts import Left, Omitted, Part

_KEYS_MAX: Final = 500
"""Keys of one query."""


def with_omitted(cursor: Any, dialect: Dialect, parts: Sequence[Part]) -> tuple[Change, ...]:
    """Return the changes of parts, with what the log does not have."""
    changes: list[Change] = []
    taken = _taken(cursor, dialect, [each for part in parts for each in part.left])
    for part in parts:
        omitted = {(each.table.name, each.row_id): each for each in part.omitted}
        left = {(each.table.name, each.row_id) for each in part.left}
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
    cursor: Any, dialect: Dialect, left: Sequence[Left]
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
