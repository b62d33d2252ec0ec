"""The statements that read a table of BigQuery. Pure; tests parse all of them.

A poll reads a table by one statement, whose rows BigQuery keeps for its pages: so a page costs
nothing, and all pages see the table at one time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

PLACE: Final = "lakesync_place"
"""The column of a row's place in the order by which rows are compared: a digest of its key."""


class Statement(NamedTuple):
    """A statement, and the values of ``@p0``, ``@p1`` and so on."""

    text: str
    parameters: tuple[Any, ...] = ()


def quoted(name: str) -> str:
    """Return a name as part of a statement."""
    escaped = name.replace("\\", "\\\\").replace("`", "\\`")
    return f"`{escaped}`"


def origin_of(name: str, query: str | None) -> str:
    """Return a table, or the query in its place; a comment at its end ends with its line."""
    if query is None:
        return quoted(name)
    return f"(\n{query}\n) AS lakesync_rows"


def changed_rows(
    origin: str,
    columns: Sequence[str],
    key: Sequence[str],
    time: str,
    bounds: tuple[Any, Any],
    partition: tuple[str, Any] | None,
) -> Statement:
    """Return the statement that reads rows by their times, and one row without a time.

    Args:
        origin: the table, or the query in its place.
        columns: what is read.
        key: the columns of the key.
        time: the column of times.
        bounds: rows after the first time are read, up to the second; all before, if it is None.
        partition: the column of partitions, and the first value of it that is read.
    """
    column = quoted(time)
    since, until = bounds
    parameters = [until] if since is None else [until, since]
    behind = "" if since is None else f" AND {column} > @p1"
    condition = f"(({column} <= @p0{behind}) OR {column} IS NULL)"
    if partition is not None:
        named = quoted(partition[0])
        # Rows that were streamed just now have no partition yet.
        condition += f" AND ({named} >= @p{len(parameters)} OR {named} IS NULL)"
        parameters.append(partition[1])
    order = ", ".join(map(quoted, key))
    first = f"ROW_NUMBER() OVER (PARTITION BY {column} ORDER BY {order}) = 1"
    text = (
        f"SELECT {_names(columns)} FROM {origin} WHERE {condition} "  # noqa: S608 - quoted
        f"QUALIFY {column} IS NOT NULL OR {first}"
    )
    return Statement(text, tuple(parameters))


def all_rows(
    origin: str, columns: Sequence[str], key: Sequence[str], after: str | None
) -> Statement:
    """Return the statement that reads all rows in the order of their places, or those behind one.

    Args:
        origin: the table, or the query in its place.
        columns: what is read.
        key: the columns of the key.
        after: the place.
    """
    place = f"TO_HEX(MD5(TO_JSON_STRING(STRUCT({_names(key)}))))"
    where = "" if after is None else f"WHERE {place} > @p0 "
    text = (
        f"SELECT {_names(columns)}, {place} AS {quoted(PLACE)} FROM {origin} {where}"  # noqa: S608
        f"ORDER BY {quoted(PLACE)}"
    )
    return Statement(text, () if after is None else (after,))


def rows_with_keys(origin: str, key: Sequence[str], keys: Sequence[Sequence[Any]]) -> Statement:
    """Return the statement that reads the keys of the given rows, of those that are there."""
    count = len(key)
    places = [[f"@p{at * count + one}" for one in range(count)] for at in range(len(keys))]
    listed = ", ".join(f"({', '.join(place)})" for place in places)
    names = _names(key)
    text = f"SELECT {names} FROM {origin} WHERE ({names}) IN ({listed})"  # noqa: S608 - quoted
    return Statement(text, tuple(value for row in keys for value in row))


def untimed_row(origin: str, key: Sequence[str], time: str) -> Statement:
    """Return the statement that reads the key of one row without a time."""
    text = f"SELECT {_names(key)} FROM {origin} WHERE {quoted(time)} IS NULL LIMIT 1"  # noqa: S608
    return Statement(text)


def _names(columns: Sequence[str]) -> str:
    return ", ".join(map(quoted, columns))
