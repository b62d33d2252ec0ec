"""Rows that a page brings whole and the file does not have: written by the thousand.

Most rows of a first sync are one insert each. Those are not read first, and are written by columns:
the values of one column are parsed at once, as one JSON text. The result is the same as that of
`Rows.save` for the same deltas.
"""

from __future__ import annotations

import json
from collections import defaultdict
from itertools import repeat
from typing import TYPE_CHECKING, Final, NamedTuple

from lakesync.client.storage.cells import BIT, FORMS, cell
from lakesync.core.merge import fold

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from lakesync.client.storage.app_table import AppTable
    from lakesync.client.storage.cells import Cell
    from lakesync.client.storage.rows import Rows
    from lakesync.core.clock import Stamp
    from lakesync.core.delta import Delta
    from lakesync.core.values import CanonicalJson

_INT64: Final = range(-(1 << 63), 1 << 63)
_PLAIN: Final = {str, float, type(None)}
"""Kinds of values that are cells as they are."""
_INTEGERS: Final = {int, float, type(None)}
_INSERT_ROW: Final = (
    "INSERT INTO _lakesync_rows (table_id, row_id, state, waiting) VALUES (?, ?, ?, 0) "
    "ON CONFLICT (table_id, row_id) DO NOTHING"
)


class Inserts(NamedTuple):
    """Rows of one insert each, all of the same columns, by columns."""

    names: tuple[str, ...]
    """Of their columns, at least one."""
    row_ids: Sequence[str]
    stamps: Sequence[Stamp]
    client_ids: Sequence[str]
    values: Sequence[Sequence[CanonicalJson]]
    """Of each column those of all rows."""


def insert_new(
    rows: Rows,
    table: AppTable,
    inserts: Iterable[Inserts],
    several: Mapping[str, Sequence[Delta]],
) -> bool:
    """Write what may be new, if none of it is stored; else write nothing.

    Cost: 5 us for a row of one insert and five columns.

    Args:
        rows: the rows of the file.
        table: their table.
        inserts: rows of one insert.
        several: rows of several deltas by their ids, of which one is an insert and none a deletion.
    """
    states, places = rows.states, table.places
    stored: list[tuple[int, str, bytes]] = []
    for alike in inserts:
        names, row_ids, stamps, client_ids, values = alike
        encoded = states.encode_inserts(places, names, stamps, client_ids, values)
        stored += zip(repeat(table.id), row_ids, encoded, strict=False)
    seen: dict[tuple[str, ...], dict[str, list[CanonicalJson]]] = defaultdict(dict)
    for row_id, deltas in several.items():
        merged = fold(deltas)
        columns = merged.columns
        seen[tuple(columns)][row_id] = [value for _, _, value in columns.values()]
        stored.append((table.id, row_id, states.encode(places, merged)))
    if not _insert_all(rows.connection, stored):
        return False
    for alike in inserts:
        rows.show(table, cells_by_column(table, alike.names, alike.row_ids, alike.values))
    for names, by_row in seen.items():
        values = list(zip(*by_row.values(), strict=True))
        rows.show(table, cells_by_column(table, names, by_row, values))
    return True


def _insert_all(connection: sqlite3.Connection, stored: Sequence[tuple[object, ...]]) -> bool:
    """Insert rows, all of them or, if any is there already, none."""
    connection.execute("SAVEPOINT _lakesync_new")
    is_new = connection.executemany(_INSERT_ROW, stored).rowcount == len(stored)
    if not is_new:
        connection.execute("ROLLBACK TO _lakesync_new")
    connection.execute("RELEASE _lakesync_new")
    return is_new


def cells_by_column(
    table: AppTable,
    names: tuple[str, ...],
    row_ids: Collection[str],
    values: Sequence[Sequence[CanonicalJson]],
) -> Iterable[Sequence[Cell]]:
    """Return what `AppTable.cells` gives for each of some rows with the same columns.

    Cost: 1 us a row of five columns.
    """
    columns: dict[str, Iterable[Cell]] = {}
    for name, raw in zip(names, values, strict=True):
        joined = b"[%b]" % b",".join(raw)
        try:
            parsed = json.loads(joined)
        except (ValueError, RecursionError):  # too many digits, too deep
            parsed, kinds = None, _INTEGERS | {str, list}
        else:
            kinds = set(map(type, parsed))
        _learn(table, name, raw, joined, parsed, kinds)
        write = table.writer(name)
        if parsed is None or write:
            columns[name] = map(write or cell, raw)
        else:
            columns[name] = parsed if kinds <= _PLAIN else _cells(parsed, raw)
    nulls: list[Cell] = [None] * len(row_ids)
    return zip(row_ids, *[columns.get(name, nulls) for name in table.shown], strict=True)


def _learn(
    table: AppTable,
    name: str,
    raw: Sequence[CanonicalJson],
    joined: bytes,
    parsed: Sequence[object] | None,
    kinds: set[type],
) -> None:
    """Note the forms of a column's values, looking at each only where any may have one."""
    if kinds <= _INTEGERS and parsed is not None:
        if int in kinds and not table.forms.get(name, 0) & BIT and (0 in parsed or 1 in parsed):
            table.learn(name, BIT)
    elif not kinds <= _PLAIN or b'"[' in joined or b'"{' in joined:
        forms = 0
        for value in {value[:2] for value in raw}:
            forms |= FORMS.get(value, 0)
        table.learn(name, forms)


def _cells(column: Iterable[object], raw: Iterable[CanonicalJson]) -> Iterator[Cell]:
    for value, text in zip(column, raw, strict=True):
        kind = value.__class__
        if kind is bool:
            yield 1 if value else 0
        elif kind is int:
            # Canonical JSON prints a double such as 1e20 in digits; SQLite's integers end at 2^63.
            yield value if value in _INT64 else float(value)  # type: ignore[arg-type,misc]
        else:
            yield text.decode() if kind is list or kind is dict else value  # type: ignore[misc]
