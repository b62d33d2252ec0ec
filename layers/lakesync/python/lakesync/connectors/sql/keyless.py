"""Rows whose key is NULL: no page of a key's order has them, so one of them is reported."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lakesync.connectors.port import Unreadable
from lakesync.connectors.sql.names import quoted_name
from lakesync.connectors.sql.plan import row_id_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lakesync.adapters.sql.dialect import Dialect
    from lakesync.connectors.sql.plan import Plan
    from lakesync.connectors.sql.query import Condition


def has_key(dialect: Dialect, plan: Plan) -> list[Condition]:
    """Return the conditions for rows with a key; none if no column of it may be NULL."""
    return [(f"{quoted_name(dialect, name)} IS NOT NULL", ()) for name in plan.nullable_key]


def without_key(
    dialect: Dialect, cursor: Any, plan: Plan, within: Sequence[Condition]
) -> tuple[Unreadable, ...]:
    """Return one row without a key, of those that fulfil some conditions, as unreadable."""
    if not plan.nullable_key:
        return ()
    lacking = " OR ".join(f"{quoted_name(dialect, name)} IS NULL" for name in plan.nullable_key)
    conditions = " AND ".join([*(text for text, _ in within), f"({lacking})"])
    names = ", ".join(quoted_name(dialect, name) for name in plan.key)
    cursor.execute(
        f"SELECT {names} FROM {plan.origin(dialect)} WHERE {conditions} LIMIT 1",  # noqa: S608 - quoted
        [value for _, values in within for value in values],
    )
    return tuple(keyless(plan, row) for row in plan.source.rows(cursor))


def keyless(plan: Plan, key: Sequence[Any]) -> Unreadable:
    """Return a row without a key as unreadable."""
    reason = (
        f"a column of its key is NULL ({', '.join(plan.key)}), so that it is not read, nor other "
        "rows without: set it in all rows, or name another key"
    )
    pairs = zip(key, plan.key_places, strict=True)
    values = [None if value is None else plan.converts[at](value) for value, at in pairs]
    return Unreadable(row_id_of(values), reason)
