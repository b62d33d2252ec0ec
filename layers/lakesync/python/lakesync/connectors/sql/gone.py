"""Finds rows that a table no longer has: deletions that no log reports."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from lakesync.connectors.sql.names import quoted_name

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lakesync.adapters.sql.dialect import Dialect
    from lakesync.connectors.sql.plan import Plan
    from lakesync.connectors.storage import Storage

    RowsThere: TypeAlias = Callable[[Sequence[str]], set[str]]
    """Returns which of the given rows a table has."""


def rows_gone(
    plan: Plan, storage: Storage, place: str, rows_there: RowsThere
) -> tuple[list[str], str]:
    """Return some of the rows that came from a table and that it no longer has.

    Args:
        plan: how the table is read.
        storage: the connector's, which lists the rows that the gateway has from it.
        place: where the previous call ended; empty to begin.
        rows_there: asks the source.

    Returns:
        Their ids, and the place to continue; empty after the last.
    """
    brought = storage.brought(plan.settings.table, place)
    there = rows_there(brought.row_ids)
    return [row_id for row_id in brought.row_ids if row_id not in there], brought.place


def asking(cursor: Any, dialect: Dialect, plan: Plan) -> RowsThere:
    """Return the function that asks a SQL database which rows a table has."""

    def rows_there(row_ids: Sequence[str]) -> set[str]:
        rows = rows_with(cursor, dialect, plan, row_ids, plan.key)
        return {plan.key_row_id(row) for row in rows}

    return rows_there


def rows_with(
    cursor: Any, dialect: Dialect, plan: Plan, row_ids: Sequence[str], columns: Sequence[str]
) -> Sequence[Sequence[Any]]:
    """Return some columns of the given rows, of those that the table has.

    An id that is not of the table's key, as of a former one, is no row of it.
    """
    keys = []
    for row_id in row_ids:
        try:
            keys.append(plan.key_parameters(row_id))
        except ValueError:
            continue
    if not keys:
        return []
    cursor.execute("SAVEPOINT there")
    try:
        return _with_keys(cursor, dialect, plan, keys, columns)
    except Exception as exc:
        if not dialect.is_row_fault(exc):
            raise
        cursor.execute("ROLLBACK TO SAVEPOINT there")
    rows: list[Sequence[Any]] = []
    for key in keys:
        cursor.execute("SAVEPOINT there")
        try:
            rows += _with_keys(cursor, dialect, plan, [key], columns)
        except Exception as exc:
            if not dialect.is_row_fault(exc):
                raise
            # Not a value of the key's type: such a row cannot exist.
            cursor.execute("ROLLBACK TO SAVEPOINT there")
    return rows


def _with_keys(
    cursor: Any,
    dialect: Dialect,
    plan: Plan,
    keys: Sequence[Sequence[Any]],
    columns: Sequence[str],
) -> Sequence[Sequence[Any]]:
    wanted, names = (
        ", ".join(quoted_name(dialect, one) for one in some) for some in (columns, plan.key)
    )
    one = f"({', '.join(['%s'] * len(plan.key))})"
    cursor.execute(
        f"SELECT {wanted} FROM {plan.origin(dialect)} "  # noqa: S608 - quoted
        f"WHERE ({names}) IN ({', '.join([one] * len(keys))})",
        [value for key in keys for value in key],
    )
    return plan.source.rows(cursor)
