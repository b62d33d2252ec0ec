"""Batches made of deltas, and the rows they merge to: input and expectations of the suites."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from lakesync.adapters.database import PlacedDelta, Position, TableBatch
from lakesync.core.delta import Op, make_delta
from lakesync.core.merge import as_read, fold, view
from lakesync.core.schema import Column, TableSchema
from lakesync.core.values import parse

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from lakesync.adapters.database import DatabaseAdapter
    from lakesync.core.delta import Delta

_ROWS: Final = ("r1", "r 2", "é", "\U0001f600")
_CLIENTS: Final = ("c1", "é")
_COLUMNS: Final = ("a", "B", "order")
_PAGES_MAX: Final = 1_000
_VALUES: Final = (None, True, 0, -1.5, "", "O'Brien \\ % \U0001f600", [1, [None]], {"k": {"": 2}})


def new_table() -> str:
    """Return the name of a table that nobody else uses."""
    return f"t{uuid4().hex[:12]}"


def schema(table: str, columns: dict[str, str], **more: Any) -> TableSchema:
    """Make a schema of nullable columns."""
    return TableSchema(table, tuple(Column(name, kind) for name, kind in columns.items()), **more)


def batch(
    table: str,
    deltas: Sequence[Delta],
    *,
    after: int = 0,
    schema: TableSchema | None = None,
    commit_deltas: int = 2,
) -> TableBatch:
    """Make a batch: commits of a few deltas each, behind a stamp."""
    placed = [
        PlacedDelta(Position(after + 1 + number // commit_deltas, number % commit_deltas), delta)
        for number, delta in enumerate(deltas)
    ]
    last = placed[-1].position.commit if placed else after + 1
    return TableBatch(table, after, last, placed, schema)


def numbered(table: str, count: int) -> list[Delta]:
    """Return inserts of rows ``r0``, ``r1`` and so on, one after another."""
    return [
        make_delta(Op.INSERT, table, f"r{n}", {"n": n}, client_id="c", hlc=n + 1)
        for n in range(count)
    ]


def mixed(table: str, seed: int, count: int = 12) -> list[Delta]:
    """Return deltas of few rows, stamps and clients, so that they collide; ties and repeats too."""
    chance = random.Random(seed)  # noqa: S311 - the same deltas each time
    made: list[Delta] = []
    for _ in range(count):
        if made and chance.random() < 0.1:
            made.append(chance.choice(made))
            continue
        op = chance.choice([Op.INSERT, Op.UPDATE, Op.UPDATE, Op.DELETE])
        named = [] if op is Op.DELETE else chance.sample(_COLUMNS, chance.randint(0, 2))
        columns = {name: chance.choice(_VALUES) for name in named}
        row, client, hlc = chance.choice(_ROWS), chance.choice(_CLIENTS), chance.randint(1, 6)
        made.append(make_delta(op, table, row, columns, client_id=client, hlc=hlc))
    return made


def merged(deltas: Iterable[Delta], *, delete_wins: bool = False) -> dict[str, dict[str, Any]]:
    """Return the rows that deltas merge to, by row id, as their table reads them."""
    by_row: dict[str, list[Delta]] = {}
    for delta in deltas:
        by_row.setdefault(delta.row_id, []).append(delta)
    rows = {
        row_id: view(as_read(fold(changes), delete_wins=delete_wins))
        for row_id, changes in by_row.items()
    }
    return {
        row_id: {name: parse(raw) for name, raw in values.items()}
        for row_id, values in rows.items()
        if values is not None
    }


def history(adapter: DatabaseAdapter, table: str, deltas_max: int = 3) -> list[Delta]:
    """Read all of a table's history, page by page: in order, and no page too long."""
    position, pages = Position(), 0
    read: list[Delta] = []
    while True:
        page = adapter.query_deltas_since(table, position, deltas_max).unwrap()
        assert len(page.deltas) <= deltas_max
        places = [placed.position for placed in page.deltas]
        assert places == sorted(place for place in places if place > position)
        read += [delta for _, delta in page.deltas]
        position, pages = page.position, pages + 1
        if not page.has_more:
            return read
        assert pages < _PAGES_MAX, "the history has no end"
