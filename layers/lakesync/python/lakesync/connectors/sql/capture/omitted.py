"""Reads columns from the table that the source's log omits at a change of key.

A value that is stored outside its row (TOAST) and did not change is not in the log. With an
unchanged key the gateway has it already, but a row under a new key would lack it. The current value
is read; if it changed since, that change follows in the log.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lakesync.connectors.sql.plan import key_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lakesync.adapters.sql.dialect import Dialect
    from lakesync.connectors.port import Change
    from lakesync.connectors.sql.capture.parts import Omitted, Part


def with_omitted(cursor: Any, dialect: Dialect, parts: Sequence[Part]) -> tuple[Change, ...]:
    """Return the changes of parts, with the columns that the log omits."""
    changes: list[Change] = []
    for part in parts:
        omitted = {(each.table.name, each.row_id): each for each in part.omitted}
        for change in part.changes:
            each = omitted.get((change.table, change.row_id))
            if each is None or change.columns is None:
                changes.append(change)
            else:
                columns = _read(cursor, dialect, each) | dict(change.columns)
                changes.append(change._replace(columns=columns))
    return tuple(changes)


def _read(cursor: Any, dialect: Dialect, omitted: Omitted) -> dict[str, Any]:
    """Return those columns; none if the row's key changed again, or the row was deleted."""
    plan = omitted.table.plan
    names = ", ".join(map(dialect.quote, omitted.columns))
    condition = " AND ".join(f"{dialect.quote(name)} = %s" for name in plan.key)
    table = dialect.quote(plan.settings.name)
    cursor.execute("SAVEPOINT omitted")
    try:
        cursor.execute(
            f"SELECT {names} FROM {table} WHERE {condition}",  # noqa: S608 - quoted
            key_of(omitted.row_id, plan.key),
        )
        rows = cursor.fetchall()
    except Exception as exc:
        if dialect.translate(exc) is None:
            raise
        cursor.execute("ROLLBACK TO SAVEPOINT omitted")
        return {}
    if len(rows) != 1:
        return {}
    return plan.some_values(omitted.columns, rows[0])
