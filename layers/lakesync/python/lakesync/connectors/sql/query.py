"""The statements that read a table, page by page in the order of some columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from lakesync.connectors.sql.names import quoted_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lakesync.adapters.sql.dialect import Dialect

    Condition: TypeAlias = tuple[str, Sequence[Any]]
    """A condition, and its parameters."""


class Bound(NamedTuple):
    """Where a range of rows begins or ends, in the order of some columns."""

    columns: Sequence[str]
    values: Sequence[Any]


def behind(dialect: Dialect, bound: Bound) -> tuple[str, list[Any]]:
    """Return the condition for rows behind a bound.

    It is spelled out, as not every database uses an index for a row comparison of several columns.
    """
    parts: list[str] = []
    values: list[Any] = []
    for number, column in enumerate(bound.columns):
        equal = [f"{quoted_name(dialect, name)} = %s" for name in bound.columns[:number]]
        parts.append(" AND ".join([*equal, f"{quoted_name(dialect, column)} > %s"]))
        values += bound.values[: number + 1]
    first = f"{quoted_name(dialect, bound.columns[0])} >= %s AND " if len(parts) > 1 else ""
    condition = f"{first}({' OR '.join(f'({part})' for part in parts)})"
    return condition, [*([bound.values[0]] if first else []), *values]


def up_to(dialect: Dialect, bound: Bound) -> tuple[str, list[Any]]:
    """Return the condition for rows at a bound or before it.

    It repeats the first column separately, which shows the database how far to read an index.
    """
    condition, values = behind(dialect, bound)
    first = f"{quoted_name(dialect, bound.columns[0])} <= %s AND "
    return f"{first}NOT ({condition})", [bound.values[0], *values]


def page_of(
    dialect: Dialect,
    origin: str,
    columns: Sequence[str],
    order: Sequence[str],
    conditions: Sequence[Condition],
    rows_max: int,
    *,
    skipped: int = 0,
) -> tuple[str, list[Any]]:
    """Return the statement that reads some columns of a table in an order, and its parameters.

    It limits the number of rows, after those that are skipped.

    Args:
        dialect: the source's.
        origin: the table, or the query that is read in its place: `Plan.origin`.
        columns: the columns.
        order: the columns by which rows are sorted.
        conditions: those of the rows, with their parameters.
        rows_max: how many rows.
        skipped: how many before them.
    """
    names = ", ".join(quoted_name(dialect, name) for name in columns)
    where = " AND ".join(condition for condition, _ in conditions)
    sorting = ", ".join(quoted_name(dialect, name) for name in order)
    statement = (
        f"SELECT {names} FROM {origin}"  # noqa: S608 - quoted
        f"{f' WHERE {where}' if where else ''} ORDER BY {sorting} LIMIT {int(rows_max)}"
        f"{f' OFFSET {int(skipped)}' if skipped else ''}"
    )
    return statement, [value for _, values in conditions for value in values]
