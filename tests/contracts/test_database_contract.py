"""What each `DatabaseAdapter` does. Laws P1-P3, P9-P12: ``docs/spec/databases.md``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lakesync.adapters.copying import Composite, FanOut, Lifecycle, compare_table, copy_table
from lakesync.adapters.database import HISTORY_MS, Fillable, Position
from lakesync.adapters.history_archive import HistoryArchive
from lakesync.adapters.lake.memory import MemoryAdapter
from lakesync.adapters.memory import MemoryDatabase
from lakesync.core.delta import Op, make_delta
from lakesync.result import Err
from lakesync.systems.bigquery.bigquery_database import BigQueryAdapter
from lakesync.systems.objects import ObjectsDatabase
from lakesync.testing.database_contract import (
    DatabaseContract,
    batch,
    history,
    merged,
    numbered,
    schema,
)
from lakesync.testing.fillable_contract import FillableContract
from tests.support.bigquery import PartsAdapter, bigquery_destination
from tests.support.buckets import BucketDatabases
from tests.support.destinations import (
    SqlDestination,
    changed_rows,
    mariadb_dialect,
    new_table,
    postgres_dialect,
)
from tests.support.lake_databases import LakeDatabases

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from lakesync.adapters.database import DatabaseAdapter
    from tools.local_stack.bigquery import BigQueryServer

KINDS = [
    "memory",
    "objects",
    "composite",
    "fan_out",
    "lifecycle",
    "archived",
    pytest.param("postgres", marks=pytest.mark.emulator),
    pytest.param("mariadb", marks=pytest.mark.emulator),
    pytest.param("nested", marks=pytest.mark.emulator),
    pytest.param("archived_postgres", marks=pytest.mark.emulator),
]
few = settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture
def opened() -> Iterator[list[DatabaseAdapter]]:
    """What is closed in the end."""
    adapters: list[DatabaseAdapter] = []
    yield adapters
    for adapter in adapters:
        adapter.close()


IN_MEMORY: dict[str, Callable[[], DatabaseAdapter]] = {
    "memory": MemoryDatabase,
    "objects": lambda: ObjectsDatabase(MemoryAdapter(), "", "g"),
    "composite": lambda: Composite(MemoryDatabase(), {"elsewhere": MemoryDatabase()}),
    "fan_out": lambda: FanOut(MemoryDatabase(), {"second": MemoryDatabase()}),
    "lifecycle": lambda: Lifecycle(MemoryDatabase(), MemoryDatabase()),
    "archived": lambda: Lifecycle(MemoryDatabase(), HistoryArchive(MemoryAdapter(), "", "g")),
}
SLOW = [
    "iceberg",
    "s3",
    *(pytest.param(kind, marks=pytest.mark.emulator) for kind in ("bigquery", "bigquery_in_parts")),
]


@pytest.fixture(params=[*KINDS, *SLOW])
def make(
    request: pytest.FixtureRequest, opened: list[DatabaseAdapter], credentials: None
) -> Callable[[], DatabaseAdapter]:
    """Make an empty database of each kind."""
    del credentials

    def database(kind: str, history_ms: int | None = None) -> DatabaseAdapter:
        if kind in {"postgres", "mariadb"}:
            dialect = postgres_dialect if kind == "postgres" else mariadb_dialect
            server = request.getfixturevalue(kind)
            return SqlDestination(dialect(server)).adapter(history_ms=history_ms)
        if kind in {"bigquery", "bigquery_in_parts"}:
            server = request.getfixturevalue("bigquery")
            way = BigQueryAdapter if kind == "bigquery" else PartsAdapter
            return bigquery_destination(server, way).adapter(history_ms=history_ms)
        if kind == "s3":
            request.getfixturevalue("in_moto")
            return BucketDatabases().adapter("g")
        if kind == "archived_postgres":
            buckets = BucketDatabases(request.getfixturevalue("emulator").endpoint)
            return Lifecycle(database("postgres"), buckets.archive("g"))
        if kind == "iceberg":
            lake = LakeDatabases(request.getfixturevalue("tmp_path_factory").mktemp("lake"))
            request.addfinalizer(lake.close)
            return lake.adapter(history_ms=history_ms)
        if kind == "nested":
            primary = Composite(database("postgres"), {"elsewhere": database("mariadb")})
            return FanOut(Lifecycle(primary, database("mariadb")), {"second": MemoryDatabase()})
        return IN_MEMORY[kind]()

    def made() -> DatabaseAdapter:
        adapter = database(request.param, HISTORY_MS)  # as a deployed destination is
        opened.append(adapter)
        return adapter

    return made


@pytest.fixture
def table() -> str:
    """A table that nobody else uses."""
    return new_table()


@pytest.mark.law("P1", "P2", "P3")
@few
@given(data=st.data())
@pytest.mark.parametrize("make", KINDS, indirect=True)
def test_rows_and_history_equal_the_inserted_deltas(
    make: Callable[[], DatabaseAdapter], opened: list[DatabaseAdapter], data: st.DataObject
) -> None:
    rows_and_history_are_those_inserted(make(), data)
    while opened:
        opened.pop().close()


@pytest.mark.law("P1", "P2", "P3")
@pytest.mark.emulator
@settings(few, max_examples=4)
@given(data=st.data())
@pytest.mark.parametrize("kind", [BigQueryAdapter, PartsAdapter])
def test_rows_and_history_equal_the_inserted_deltas_in_bigquery(
    bigquery: BigQueryServer, kind: type[BigQueryAdapter], data: st.DataObject
) -> None:
    rows_and_history_are_those_inserted(bigquery_destination(bigquery, kind).adapter(), data)


@pytest.mark.law("P1", "P2", "P3")
@settings(few, max_examples=4)
@given(data=st.data())
def test_rows_and_history_equal_the_inserted_deltas_in_iceberg(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    lake = LakeDatabases(tmp_path_factory.mktemp("lake"))
    rows_and_history_are_those_inserted(lake.adapter(), data)
    lake.close()


@pytest.mark.law("P1", "P3")
def test_rows_of_an_unchanged_iceberg_file_are_read_after_a_column_was_added(
    tmp_path: Path, table: str
) -> None:
    lake = LakeDatabases(tmp_path)
    adapter = lake.adapter()
    first = [make_delta(Op.DELETE, table, "r1", {}, client_id="c", hlc=2)]
    late = [make_delta(Op.INSERT, table, "r1", {"a": 1}, client_id="c", hlc=1)]
    adapter.insert_deltas(batch(table, first)).unwrap()
    assert adapter.latest_state(table, "r1").unwrap() is None
    adapter.insert_deltas(batch(table, late, after=batch(table, first).last)).unwrap()

    assert adapter.latest_state(table, "r1").unwrap() is None
    assert history(adapter, table) == [*first, *late]
    lake.close()


def rows_and_history_are_those_inserted(adapter: DatabaseAdapter, data: st.DataObject) -> None:
    table = new_table()
    deltas = data.draw(changed_rows(table))
    delete_wins = data.draw(st.booleans())
    kinds = dict.fromkeys(["a", "B", "order"], "json")
    wanted = schema(table, kinds, delete_wins=True) if delete_wins else None
    expected = merged(deltas, delete_wins=delete_wins)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(deltas)), max_size=3)))
    after = 0
    for start, end in zip([0, *cuts], [*cuts, len(deltas)], strict=True):
        part = batch(table, deltas[start:end], after=after, schema=wanted)
        adapter.insert_deltas(part).unwrap()
        if data.draw(st.booleans()):
            again = adapter.insert_deltas(part).unwrap()
            assert (again.deltas, again.rows) == (0, 0)
        if isinstance(adapter, Lifecycle) and data.draw(st.booleans()):
            adapter.archive_until(data.draw(st.integers(0, part.last))).unwrap()
        after = part.last
    for row_id in {delta.row_id for delta in deltas}:
        assert adapter.latest_state(table, row_id).unwrap() == expected.get(row_id)
    assert history(adapter, table) == deltas
    target = MemoryDatabase()
    copy_table(adapter, target, table).unwrap()
    assert compare_table(adapter, target, table).unwrap().is_equal


@pytest.mark.law("P1", "P2", "P3", "P9", "P12", "M10")
class TestDatabases(DatabaseContract):
    """Those of this repository, and their compositions."""

    def caught_up(self, adapter: DatabaseAdapter) -> None:
        """What no secondary has taken is not forgotten."""
        if isinstance(adapter, FanOut):
            adapter.follow("second").unwrap()


@pytest.mark.law("P10")
def test_secondary_that_is_behind_does_not_delay_inserts_and_catches_up(table: str) -> None:
    primary, second = MemoryDatabase(), MemoryDatabase()
    both = FanOut(primary, {"second": second})
    deltas = numbered(table, 6)
    both.insert_deltas(batch(table, deltas[:4])).unwrap()
    assert both.lag("second").unwrap() == {table: (0, 2)}
    both.forget_history(table, 2).unwrap()  # it is still needed
    assert history(both, table) == deltas[:4]
    assert both.follow("second").unwrap()[table].deltas == 4
    both.insert_deltas(batch(table, deltas[4:], after=2)).unwrap()
    both.follow("second").unwrap()
    assert both.lag("second").unwrap() == {}
    assert history(second, table) == deltas


@pytest.mark.law("P10")
def test_history_moves_to_the_archive_once_and_is_read_as_one(table: str) -> None:
    primary, archive = MemoryDatabase(), MemoryDatabase()
    both = Lifecycle(primary, archive)
    deltas = numbered(table, 8)
    both.insert_deltas(batch(table, deltas)).unwrap()
    both.archive_until(2).unwrap()
    assert history(archive, table) == deltas[:4]
    assert isinstance(primary.query_deltas_since(table, Position(), 1), Err)
    # A run that died behind the copy: it is in both, and told once.
    copy_table(primary, archive, table, until=3).unwrap()
    assert history(both, table) == deltas
    both.archive_until(3).unwrap()
    assert history(both, table) == deltas
    assert history(archive, table) == deltas[:6]


# --- rows in place of deltas ----------------------------------------------------------------------


@pytest.mark.law("P11")
class TestFillables(FillableContract):
    """Those that take rows; compositions are given batches alone."""

    @pytest.fixture
    def make(self, make: Callable[[], DatabaseAdapter]) -> Callable[[], DatabaseAdapter]:
        """Make an empty database that takes rows."""

        def made() -> DatabaseAdapter:
            adapter = make()
            if not isinstance(adapter, Fillable):
                pytest.skip("it takes no rows")
            return adapter

        return made
