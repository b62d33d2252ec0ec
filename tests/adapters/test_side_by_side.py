"""Several writers of one table, each with other rows: all is there once, in one order. Law P13."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from lakesync.adapters.database import PlacedDelta, Position, SideBySide, TableBatch
from lakesync.adapters.memory import MemoryDatabase
from lakesync.core.schema import Column, TableSchema
from tests.support.builders import at_ms, insert
from tests.support.destinations import (
    SqlDestination,
    mariadb_dialect,
    new_gateway,
    new_table,
    postgres_dialect,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

KINDS = [
    pytest.param("postgres", marks=pytest.mark.emulator),
    pytest.param("mariadb", marks=pytest.mark.emulator),
]


@pytest.fixture(params=KINDS)
def destination(request: pytest.FixtureRequest) -> Iterator[SqlDestination]:
    kind: str = request.param
    dialect = postgres_dialect if kind == "postgres" else mariadb_dialect
    opened = SqlDestination(dialect(request.getfixturevalue(kind)))
    yield opened
    opened.close()


@pytest.fixture(params=["memory", *KINDS])
def database(request: pytest.FixtureRequest) -> Iterator[Any]:
    if request.param == "memory":
        yield MemoryDatabase()
        return
    dialect = postgres_dialect if request.param == "postgres" else mariadb_dialect
    opened = SqlDestination(dialect(request.getfixturevalue(request.param)))
    yield opened.adapter(new_gateway())
    opened.close()


def batch_of(
    table: str, first: int, many: int, value: Callable[[int], Any] = lambda number: number
) -> TableBatch:
    """Return inserts of rows that no other batch has."""
    made = [
        insert(f"r{n:04}", table=table, at=at_ms(n), n=value(n)) for n in range(first, first + many)
    ]
    placed = [PlacedDelta(Position(7, at), one) for at, one in enumerate(made)]
    return TableBatch(table, 0, 7, placed, TableSchema(table, (Column("n", "integer"),)))


@pytest.mark.law("P13")
def test_row_ahead_returns_the_row_at_a_given_distance(database: Any) -> None:
    table = new_table()
    assert isinstance(database, SideBySide)
    database.insert_apart(batch_of(table, 0, 9)).unwrap()
    assert database.row_ahead(table, "", 1).unwrap() == "r0000"
    assert database.row_ahead(table, "r0003", 4).unwrap() == "r0007"
    assert database.row_ahead(table, "r0003", 6).unwrap() == ""


@pytest.mark.law("P13")
def test_concurrent_writers_lose_nothing_and_their_commits_are_ordered(
    destination: SqlDestination,
) -> None:
    gateway, table = new_gateway(), new_table()

    def write(writer: int) -> None:
        with destination.adapter(gateway) as adapter:
            for number in range(5):
                adapter.insert_apart(batch_of(table, 1_000 * writer + 40 * number, 40)).unwrap()

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(write, range(4)))
    adapter = destination.adapter(gateway)
    deltas = adapter.query_deltas_since(table, Position(), 9_999).unwrap().deltas
    assert len({placed.delta.delta_id for placed in deltas}) == len(deltas) == 800
    commits = {placed.position.commit for placed in deltas}
    assert (len(commits), max(commits)) == (20, adapter.mark(table).unwrap())
    assert len(destination.rows(table)) == 800
    assert len(adapter.rows_after(table, "", 9_999).unwrap().rows) == 800


@pytest.mark.law("P13")
def test_rows_refused_from_concurrent_writers_are_all_listed(
    destination: SqlDestination,
) -> None:
    gateway, table = new_gateway(), new_table()

    def write(writer: int) -> int:
        with destination.adapter(gateway) as adapter:
            first = 1_000 * writer
            batch = batch_of(table, first, 20, lambda n: "no number" if n == first else n)
            return len(adapter.insert_apart(batch).unwrap().dead_letters)

    with ThreadPoolExecutor(4) as threads:
        assert sorted(threads.map(write, range(4))) == [1, 2, 3, 4]
    adapter = destination.adapter(gateway)
    refused = {letter.row_id for letter in adapter.dead_letters(table).unwrap()}
    assert refused == {"r0000", "r1000", "r2000", "r3000"}
    assert len(destination.rows(table)) == 76
