"""A flow from a real PostgreSQL to a real MariaDB: typed tables, growth, a refused row."""

from __future__ import annotations

from functools import partial
from threading import Event, Thread, Timer
from typing import TYPE_CHECKING, Any

import pytest

from lakesync.connectors import Outside
from lakesync.core.delta import Op, make_delta
from lakesync.core.merge import view
from lakesync.core.schema import Column, TableSchema
from lakesync.flows.routes import keeper
from tests.flows.world import GATEWAY, World
from tests.support.bigquery import DATASET
from tests.support.bigquery_sources import BigQuerySource
from tests.support.builders import delete, insert
from tests.support.destinations import (
    SqlDestination,
    mariadb_dialect,
    new_table,
    postgres_dialect,
)
from tests.support.sources import SqlSource
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tools.local_stack.bigquery import BigQueryServer
    from tools.local_stack.databases import Database

pytestmark = pytest.mark.emulator


@pytest.fixture
def ends(postgres: Database, mariadb: Database) -> Iterator[tuple[SqlDestination, SqlDestination]]:
    opened = SqlDestination(postgres_dialect(postgres)), SqlDestination(mariadb_dialect(mariadb))
    yield opened
    for each in opened:
        each.close()


@pytest.mark.law("Y2", "Y3", "Y5", "Y9")
def test_rows_flow_from_postgres_to_mariadb_typed_and_mapped(
    ends: tuple[SqlDestination, SqlDestination],
) -> None:
    source, destination = ends
    table, world = new_table(), World()
    world.source = world.by_hand.databases["shop", "other"] = source.adapter(f"other{table}")
    name = "flow"
    world.by_hand.databases["warehouse", keeper(GATEWAY, name)] = destination.adapter(
        f"{table}/{name}"
    )
    columns = (Column("region", "string"), Column("total", "integer"), Column("email", "string"))
    world.source.ensure_schema(TableSchema(table, columns)).unwrap()
    world.declare(
        tables=[table],
        filter=[{"name": "eu", "tables": [table],
                 "filters": [{"column": "region", "op": "eq", "value": "eu"}]}],
        map={table: {"rename": {"total": "amount"}, "drop": ["region"], "hash": ["email"]}},
    )  # fmt: skip

    def put(row_id: str, at: int, **values: Any) -> None:
        world.commit(make_delta(Op.INSERT, table, row_id, values, client_id="c", hlc=at))

    for number in range(30):
        region = "eu" if number % 3 else "us"
        put(f"r{number:02}", 1 + number, region=region, total=number, email=f"{number}@x.example")
    assert world.poll() == "done"
    rows = destination.rows(table, "amount", "email")
    assert len(rows) == 20
    assert rows["r01"][0] == 1
    assert len(rows["r01"][1]) == 64
    assert destination.columns(table) >= {"amount", "email"}
    assert "region" not in destination.columns(table)

    wider = (*columns, Column("size", "number"))
    world.source.ensure_schema(TableSchema(table, wider, version=2)).unwrap()
    put("r01", 100, region="us")
    put("r00", 101, region="eu", size=2.5)
    assert world.poll() == "done"
    rows = destination.rows(table, "amount", "size")
    assert ("r01" in rows, rows["r00"]) == (False, (0, 2.5))
    assert len(rows) == 20

    put("r02", 110, total=1 << 50)
    put("r04", 111, total=7)
    assert world.poll() == "done"
    assert world.poll() == "done"
    rows = destination.rows(table, "amount")
    assert (rows["r02"], rows["r04"]) == ((1 << 50,), (7,))
    assert world.status()["rows"] == 20 + 2 + 2


@pytest.mark.law("Y3", "Y9")
def test_column_type_change_refuses_only_rows_that_do_not_fit(
    postgres: Database, mariadb: Database
) -> None:
    source = SqlSource(postgres, "postgres", by_time=False)
    destination, world = SqlDestination(mariadb_dialect(mariadb)), World()
    name, table = "typed", new_table()
    world.by_hand.databases["warehouse", keeper(GATEWAY, name)] = destination.adapter(
        f"{table}/{name}"
    )
    settings = {
        "host": postgres.host, "port": postgres.port, "database": postgres.database,
        "user": postgres.user, "password": postgres.password, "tls": "off",
        "tables": [{"name": source.table, "as": table, "columns": ["id", "value"]}],
    }  # fmt: skip

    def retype(kind: str) -> None:
        source.run(f"ALTER TABLE {source.table} ALTER COLUMN value TYPE {kind} USING value::{kind}")

    retype("integer")
    source.put({"1": 1, "2": 2})
    world.declare(name=name, source={"connector": "postgres", "configuration": settings})
    assert world.poll(name) == "done"
    assert destination.rows(table, "value") == {"1": (1,), "2": (2,)}

    retype("text")
    source.put({"2": "two", "3": "3"})
    source.delete("1")
    assert world.poll(name) == "done"
    rows = destination.rows(table, "value")
    assert (world.status(name)["deadLetters"], rows["3"], "1" in rows) == (1, (3,), False)

    source.put({"2": "22"})
    retype("integer")
    assert world.poll(name) == "done"
    assert destination.rows(table, "value") == {"2": (22,), "3": (3,)}
    assert world.status(name)["deadLetters"] == 0
    source.close()
    destination.close()


@pytest.mark.law("Y5")
@pytest.mark.parametrize("which", [0, 1])
def test_late_commit_does_not_restore_a_deleted_row(
    ends: tuple[SqlDestination, SqlDestination], which: int
) -> None:
    destination, table, world = ends[which], new_table(), World()
    named = f"{table}/flow"
    late = destination.adapter(named)
    world.by_hand.databases["warehouse", keeper(GATEWAY, "flow")] = late
    arrived, released, run = Event(), Event(), late._transactions.run

    def run_late(work: Any) -> Any:
        if not isinstance(work, partial) or work.func.__name__ != "_insert_locked":
            return run(work)

        def waiting(cursor: Any, ledger: Any) -> Any:
            done = work(cursor, ledger)
            arrived.set()
            released.wait(PATIENCE_S)  # its commit is under way
            return done

        return run(waiting)

    late._transactions.run = run_late  # type: ignore[method-assign]
    world.commit(insert("r1", table=table, at=1, n=1))
    world.admin.declare(GATEWAY, world.body(tables=[table]))
    first = Thread(target=world.poll)
    first.start()
    assert arrived.wait(PATIENCE_S)

    world.commit(delete("r1", table=table, at=2))
    after = destination.adapter(named)
    world.by_hand.databases["warehouse", keeper(GATEWAY, "flow")] = after
    Timer(0.5, released.set).start()
    assert world.poll() == "done"
    first.join(PATIENCE_S)
    assert not any(view(one) for one in after.rows_of(table, ["r1"]).unwrap().values())


@pytest.mark.law("N21", "Y2", "Y8")
@pytest.mark.parametrize("way", ["time", "difference"])
def test_bigquery_table_without_an_owner_is_read_into_the_gateway(
    way: str, bigquery: BigQueryServer
) -> None:
    source = BigQuerySource(bigquery, by_time=way == "time")
    world = World(Outside((bigquery.endpoint,)))
    table: dict[str, Any] = {"name": source.table, "as": "things", "key": ["id"]}
    if way == "time":
        table["cursorColumn"] = "changed"
    world.declare(
        name="items", destination="gateway", map={"things": {"drop": ["changed"]}},
        source={"connector": "bigquery", "configuration": {
            "project": bigquery.project, "dataset": DATASET, "endpoint": bigquery.endpoint,
            "settleS": 0, "tables": [table],
        }},
    )  # fmt: skip
    source.put({"1": "a", "2": "b"})
    world.poll("items")
    assert world.in_gateway("things") == {
        "1": {"id": 1, "value": "a"}, "2": {"id": 2, "value": "b"},
    }  # fmt: skip
    source.put({"2": "c", "3": "d"})
    world.poll("items")
    source.close()

    assert {row_id: row["value"] for row_id, row in world.in_gateway("things").items()} == {
        "1": "a", "2": "c", "3": "d",
    }  # fmt: skip
