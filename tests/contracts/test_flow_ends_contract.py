"""What each end of a polled flow does, as its source and as its destination.

Laws Y2, Y3, Y5, Y6, Y8, Y9: ``docs/spec/flows.md``.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from lakesync.core.clock import stamp
from lakesync.core.schema import Column, TableSchema
from lakesync.errors import NotFound
from lakesync.flows.routes import keeper
from tests.delivery.world import KeptDatabase
from tests.flows.test_polled import expected
from tests.flows.world import GATEWAY, MortalEnd, World
from tests.support.bigquery import bigquery_destination
from tests.support.buckets import BucketDatabases
from tests.support.builders import delete, insert, update
from tests.support.destinations import (
    SqlDestination,
    mariadb_dialect,
    new_gateway,
    new_table,
    postgres_dialect,
)
from tests.support.lake import Killed
from tests.support.lake_databases import GlueDatabases, LakeDatabases

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lakesync.adapters.database import TableBatch
    from lakesync.core.delta import Delta

    Opens = Callable[[str], Any]

ENDS = [
    "memory",
    "iceberg",
    pytest.param("postgres", marks=pytest.mark.emulator),
    pytest.param("mariadb", marks=pytest.mark.emulator),
    pytest.param("bigquery", marks=pytest.mark.emulator),
    "s3",
    pytest.param("iceberg_in_glue", marks=pytest.mark.emulator),
]
COLUMNS = (Column("n", "integer"), Column("title", "string"))


@pytest.fixture(params=ENDS)
def opens(request: pytest.FixtureRequest, credentials: None) -> Iterator[Opens]:
    """Open an end of each kind, for one keeper's tables."""
    del credentials
    kind: str = request.param
    if kind == "memory":
        kept: dict[str, KeptDatabase] = {}
        yield lambda keeper: kept.setdefault(keeper, KeptDatabase())
        return
    if kind == "iceberg":
        lake = LakeDatabases(request.getfixturevalue("tmp_path"))
        yield lake.adapter
        lake.close()
        return
    if kind == "s3":
        request.getfixturevalue("in_moto")
        yield BucketDatabases().adapter
        return
    if kind == "iceberg_in_glue":
        yield GlueDatabases(request.getfixturevalue("emulator").endpoint).adapter
        return
    server = request.getfixturevalue(kind)
    end: Any
    if kind == "bigquery":
        end = bigquery_destination(server)
    else:
        dialect = postgres_dialect if kind == "postgres" else mariadb_dialect
        end = SqlDestination(dialect(server))
    yield end.adapter
    end.close()


class Ends:
    """A flow of one table between an end under test and one in memory."""

    def __init__(self, opens: Opens, *, is_source: bool) -> None:
        self.table, self.world, name = new_table(), World(), new_gateway()
        self.name = f"flow-{name}"
        kept = MortalEnd(opens(name), self.world.steps)
        databases = self.world.by_hand.databases
        if is_source:
            self.world.source = databases["shop", "other"] = kept
        else:
            databases["warehouse", keeper(GATEWAY, self.name)] = kept
        self.end = kept
        self._at = 0

    def body(self, **body: Any) -> dict[str, Any]:
        """Return the flow's declaration."""
        return self.world.body(name=self.name, tables=[self.table], **body)

    def declare(self, **body: Any) -> None:
        """Declare the flow."""
        self.world.database("warehouse", self.name)
        self.world.admin.declare(GATEWAY, self.body(**body))

    def commit(self, *deltas: Delta) -> None:
        """Commit at the source."""
        self.world.commit(*deltas)

    def row(self, number: int, **columns: Any) -> Delta:
        """Return the insert of a row."""
        return insert(f"r{number:02}", table=self.table, at=self.at(), n=number, **columns)

    def change(self, number: int, **columns: Any) -> Delta:
        """Return an update."""
        return update(f"r{number:02}", table=self.table, at=self.at(), **columns)

    def gone(self, number: int) -> Delta:
        """Return a deletion."""
        return delete(f"r{number:02}", table=self.table, at=self.at())

    def at(self) -> int:
        """Return a stamp above those before."""
        self._at += 1
        return self._at

    def poll(self) -> str:
        """Poll the flow to its end."""
        return self.world.poll(self.name)

    def rows(self) -> Any:
        """Return the rows at the destination."""
        databases = self.world.by_hand.databases
        return self.world.rows(databases["warehouse", keeper(GATEWAY, self.name)], self.table)

    def expected(self, **body: Any) -> Any:
        """Return the rows that are to be there."""
        return expected(self.world, table=self.table, **body)


@pytest.fixture(params=["source", "destination"])
def ends(opens: Opens, request: pytest.FixtureRequest) -> Ends:
    """Return a flow from, and to, each kind."""
    return Ends(opens, is_source=request.param == "source")


@pytest.mark.law("Y2", "Y3", "Y5", "Y8")
def test_flow_copies_filters_maps_and_follows_rows(ends: Ends) -> None:
    low = {"column": "n", "op": "lt", "value": 10}
    what: dict[str, Any] = {
        "filter": [{"name": "low", "tables": [ends.table], "filters": [low]}],
        "map": {ends.table: {"rename": {"title": "name"}, "constant": {"from": "shop"}}},
    }
    ends.world.source.ensure_schema(TableSchema(ends.table, COLUMNS)).unwrap()
    ends.commit(*(ends.row(number, title=f"t{number}") for number in (1, 2, 3, 20)), ends.gone(3))
    ends.declare(**what)
    assert ends.poll() == "done"
    assert ends.rows() == ends.expected(**what)
    assert set(ends.rows()) == {"r01", "r02"}

    wider = (*COLUMNS, Column("size", "number"))
    ends.world.source.ensure_schema(TableSchema(ends.table, wider, version=2)).unwrap()
    ends.commit(ends.change(1, n=11), ends.change(20, n=2), ends.gone(2), ends.row(4, size=2.5))
    assert ends.poll() == "done"
    assert ends.poll() == "done"
    assert ends.rows() == ends.expected(**what)
    assert set(ends.rows()) == {"r04", "r20"}
    assert ends.rows()["r04"]["size"] == 2.5
    assert ends.world.status(ends.name)["state"] == "current"


@pytest.mark.law("Y5")
def test_flow_killed_between_any_two_steps_recovers_all_rows(ends: Ends) -> None:
    ends.commit(ends.row(1), ends.row(2))
    ends.declare()
    deaths, number = 0, 2
    for after in (False, True):
        for step in range(1, 8):
            number += 1
            match number % 3:
                case 0:
                    ends.commit(ends.row(number))
                case 1:
                    ends.commit(ends.change(1, n=number))
                case _:
                    ends.commit(ends.gone(number - 2))
            ends.world.steps.left, ends.world.steps.last_happens = step, after
            with suppress(Killed):
                ends.poll()
                ends.world.steps.left = 1_000_000
                continue
            ends.world.steps.left, deaths = 1_000_000, deaths + 1
    assert deaths > 4
    assert ends.poll() == "done"
    assert ends.poll() == "done"
    assert ends.rows() == ends.expected()
    assert set(ends.rows()) == {"r01", "r02", "r15"}


@pytest.mark.law("Y5")
def test_backfill_of_unchanged_rows_changes_nothing(ends: Ends) -> None:
    ends.commit(ends.row(1), ends.row(2))
    ends.declare()
    ends.poll()
    rows = ends.rows()
    marks = [end.mark(ends.table).unwrap() for end in (ends.end, ends.world.source)]
    ends.world.time.now_ms += 100_000
    ends.world.admin.backfill(GATEWAY, ends.name)
    assert ends.poll() == "done"
    assert ends.rows() == rows == ends.expected()
    assert [end.mark(ends.table).unwrap() for end in (ends.end, ends.world.source)] == marks


@pytest.mark.law("Y5")
def test_late_write_does_not_restore_a_deleted_row(
    opens: Opens, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = Ends(opens, is_source=False)
    ends.world.source.ensure_schema(TableSchema(ends.table, COLUMNS)).unwrap()
    ends.commit(ends.row(1, title="one"))
    ends.declare()
    late: list[TableBatch] = []
    insert_late = ends.end.insert_deltas

    def kept(batch: TableBatch) -> Any:
        late.append(batch)
        raise Killed

    with monkeypatch.context() as patched, suppress(Killed):
        patched.setattr(ends.end, "insert_deltas", kept)
        ends.poll()
    ends.commit(ends.gone(1))
    assert ends.poll() == "done"
    insert_late(late[0])
    assert ends.rows() == {}
    ends.commit(ends.row(2))
    assert ends.poll() == "done"
    assert set(ends.rows()) == {"r02"}


@pytest.mark.law("Y6")
def test_flow_with_a_new_map_leaves_no_columns_of_the_old_one(opens: Opens) -> None:
    ends = Ends(opens, is_source=False)
    ends.world.source.ensure_schema(TableSchema(ends.table, COLUMNS)).unwrap()
    ends.commit(*(ends.row(number, title=f"t{number}") for number in (1, 2, 3)), ends.gone(3))
    for column_map in ({}, {"hash": ["title"]}, {"drop": ["title"]}, {"rename": {"title": "name"}}):
        what: dict[str, Any] = {"map": {ends.table: column_map}}
        with suppress(NotFound):
            ends.world.admin.remove(GATEWAY, ends.name)
        ends.world.time.now_ms += 100_000
        ends.declare(**what)
        assert ends.poll() == "done"
        assert ends.rows() == ends.expected(**what)


@pytest.mark.law("Y5")
def test_backfill_from_a_time_reads_only_rows_changed_since(opens: Opens) -> None:
    ends = Ends(opens, is_source=True)
    ends.commit(ends.row(1), ends.row(2))
    between_ms = ends.world.time.wall_clock() + 1
    ends.commit(ends.row(3), ends.change(1, n=9))
    ends.declare()
    assert ends.poll() == "done"
    for row_id in list(ends.rows()):
        del ends.world.database("warehouse", ends.name)._tables[ends.table].rows[row_id]
    ends.world.time.now_ms += 100_000
    ends.world.admin.backfill(GATEWAY, ends.name, stamp(between_ms))
    assert ends.poll() == "done"
    assert set(ends.rows()) == {"r01", "r03"}


@pytest.mark.law("Y10")
def test_plan_counts_source_rows_and_stores_nothing(ends: Ends) -> None:
    ends.world.source.ensure_schema(TableSchema(ends.table, COLUMNS)).unwrap()
    ends.commit(*(ends.row(number) for number in range(5)), ends.gone(0))
    body = ends.body(filter=[{"name": "f", "tables": [], "filters": [
        {"column": "n", "op": "gt", "value": 2}]}])  # fmt: skip
    planned = ends.world.admin.plan(GATEWAY, body)

    assert planned["tables"] == [
        {"table": ends.table, "columns": ["n", "title"], "rows": 4, "passing": 2, "hasMore": False}
    ]
    assert planned["message"] == "It has all the tables."
    assert ends.world.admin.all(GATEWAY) == []


@pytest.mark.law("Y5", "Y9")
def test_table_missing_at_the_source_is_reported_and_deletes_nothing(opens: Opens) -> None:
    ends = Ends(opens, is_source=True)
    ends.declare()
    assert ends.poll() == "done"
    assert "has no table" in ends.world.status(ends.name)["lastError"]["error"], "not yet"
    ends.commit(*(ends.row(number) for number in range(3)))
    assert ends.poll() == "done"
    rows = ends.rows()
    assert (len(rows), ends.world.status(ends.name)["state"]) == (3, "current")

    databases = ends.world.by_hand.databases
    databases["shop", "other"] = opens(new_gateway())
    assert ends.poll() == "done"
    said = ends.world.status(ends.name)
    assert (said["state"], said["lastError"]["table"]) == ("failing", ends.table)
    assert ends.rows() == rows

    databases["shop", "other"] = ends.end
    ends.commit(ends.change(1, title="new"), ends.gone(2))
    assert ends.poll() == "done"
    assert ends.rows() == ends.expected() != rows
    assert ends.world.status(ends.name)["state"] == "current"
