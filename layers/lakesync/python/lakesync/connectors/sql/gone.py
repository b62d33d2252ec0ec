"""Finds rows that a table no longer has: deletions that no log reports."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lakesync.connectors.sql.plan import key_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from lakesync.adapters.sql.dialect import Dialect
    from lakesync.connectors.sql.plan import Plan
    from lakesync.connectors.storage import Storage


def rows_gone(
    cursor: Any, dialect: Dialect, plan: Plan, storage: Storage, place: str
) -> tuple[list[str], str]:
    """Return some of the rows that came from a table and that it no longer has.

    Args:
        cursor: a cursor of the source.
        dialect: the source's.
        plan: how the table is read.
        storage: the connector's, which lists the rows that the gateway has from it.
        place: where the previous call ended; empty to begin.

    Returns:
        Their ids, and the place to continue; empty after the last.
    """
    brought = storage.brought(plan.settings.table, place)
    there = _rows_there(cursor, dialect, plan, brought.row_ids)
    return [row_id for row_id in brought.row_ids if row_id not in there], brought.place


def _rows_there(cursor: Any, dialect: Dialect, plan: Plan, row_ids: Sequence[str]) -> set[str]:
    """Return which of the given rows the table has."""
    keys = []
    for row_id in row_ids:
        try:
            keys.append(key_of(row_id, plan.key))
        except ValueError:
            continue  # its id is of a former key of the table
    if not keys:
        return set()
    cursor.execute("SAVEPOINT there")
    try:
        return _with_keys(cursor, dialect, plan, keys)
    except Exception as exc:
        if not dialect.is_row_fault(exc):
            raise
        cursor.execute("ROLLBACK TO SAVEPOINT there")
    there: set[str] = set()
    for key in keys:
        cursor.execute("SAVEPOINT there")
        try:
            there |= _with_keys(cursor, dialect, plan, [key])
        except Exception as exc:
            if not dialect.is_row_fault(exc):
                raise
            # Not a value of the key's type: such a row cannot exist.
            cursor.execute("ROLLBACK TO SAVEPOINT there")
    return there


def _with_keys(
    cursor: Any, dialect: Dialect, plan: Plan, keys: Iterable[Sequence[Any]]
) -> set[str]:
    wanted = list(keys)
    names = ", ".join(map(dialect.quote, plan.key))
    one = f"({', '.join(['%s'] * len(plan.key))})"
    cursor.execute(
        f"SELECT {names} FROM {dialect.quote(plan.settings.name)} "  # noqa: S608 - quoted
        f"WHERE ({names}) IN ({', '.join([one] * len(wanted))})",
        [value for key in wanted for value in key],
    )
    return {plan.key_row_id(row) for row in cursor.fetchall()}
