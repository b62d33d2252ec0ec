"""The views of tables that the job writes: made with the tables, and live in Spark's own SQL."""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings

from lakesync.core.column_types import value_of
from lakesync.core.merge import as_read, view
from lakesync.core.names import lake_database
from lakesync.core.schema import Column, TableSchema
from lakesync.materialise.lake_schema import EVENTS_TABLE, STATE_TABLE, LakeColumn
from lakesync.materialise.sharing import KeptViews, Share, Shares, shared_views
from lakesync.materialise.views import ViewedTable, schema_statement, views_of
from lakesync_spark.common.arguments import Arguments
from lakesync_spark.iceberg import apply
from lakesync_spark.iceberg.run import run
from lakesync_spark.iceberg.tables import find_table
from tests.glue.support.lake import PREFIX, STACK, Lake
from tests.glue.support.spark import CATALOG
from tests.glue.test_merge_agrees_with_core import FINAL, SLOW, fresh, states_of, tables
from tests.support.builders import delete, insert, update

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame

    from lakesync.core.delta import Delta
    from lakesync.materialise.views import ViewCatalogue

pytestmark = pytest.mark.spark

TYPED = TableSchema("todos", (Column("n", "integer"), Column("due", "date")))


class Views:
    """A catalogue that notes what it is to keep, and fails where it is told to."""

    def __init__(self, faults: Mapping[str, str] | None = None) -> None:
        self.kept: list[ViewedTable] = []
        self._faults = faults or {}

    def keep(self, table: ViewedTable) -> Mapping[str, str]:
        self.kept.append(table)
        return self._faults


def run_with(lake: Lake, views: ViewCatalogue) -> str:
    lake.runs += 1
    arguments = Arguments("lake", PREFIX, lake.catalog, lake.stack)
    return run(lake.spark, lake.store, arguments, f"run-{lake.runs}", views).problem()  # type: ignore[arg-type]


@pytest.mark.law("L9", "L10")
def test_views_get_new_columns_before_rows_are_merged(lake: Lake) -> None:
    views = Views({"todos__rows": "no right to"})
    described = (Column("dueDate", "date", description="When"),)
    lake.put([insert("r1", at=5, dueDate="2013-01-01")], schema=TableSchema("todos", described))
    assert run_with(lake, views) == ""
    wider = (*described, Column("n", "integer"))
    lake.put([update("r1", at=6, n=2)], schema=TableSchema("todos", wider, version=2))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(apply, "merge_state", lambda *_: 1 / 0)
        assert run_with(lake, views) != ""

    database = lake_database(PREFIX, lake.gateway)
    due, n = LakeColumn("due_date", "date", "dueDate"), LakeColumn("n", "integer", "n")
    first, last = views.kept[0], views.kept[-1]
    assert first[:5] == (database, "todos", STATE_TABLE, (due,), STACK)
    assert first.comments["due_date"] == "When (date dueDate)"
    assert last.columns == (due, n)
    assert lake.visible() == {"r1": {"due_date": date(2013, 1, 1), "n": None}}


@pytest.mark.law("L11")
def test_append_table_has_a_view(lake: Lake) -> None:
    views = Views()
    lake.put(
        [insert("r1", at=5, n=1)],
        schema=TableSchema("todos", (Column("n", "integer"),), append=True),
    )
    assert run_with(lake, views) == ""
    assert [table.kind for table in views.kept] == [EVENTS_TABLE]


@pytest.mark.law("L20")
@pytest.mark.parametrize("schema", [None, FINAL], ids=["updates count", "deletes win"])
@given(deltas=tables())
@settings(SLOW, max_examples=2)
def test_live_view_includes_changes_not_yet_merged(
    lake: Lake, deltas: list[Delta], schema: TableSchema | None
) -> None:
    table = fresh(lake)
    seen: dict[tuple[str, int, str], Delta] = {}
    for delta in deltas:  # a sound client writes one thing under one stamp
        seen.setdefault((delta.row_id, delta.hlc, delta.client_id), delta)
    sound = list(seen.values())
    middle = len(sound) // 2
    table.put(sound[:middle], schema=schema)
    table.run()
    table.put(sound[middle:], schema=schema)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(apply, "merge_state", lambda *_: 1 / 0)
        assert table.run().problem() != ""
    assert table.marks()["changes"].commit > table.marks()["rows"].commit

    rows = live_rows(table)
    assert rows == typed_rows(sound, delete_wins=schema is FINAL)
    table.run()
    assert live_rows(table) == rows


def live_rows(lake: Lake) -> dict[str, dict[str, Any]]:
    """Return the rows of the live view, without the columns of which none was ever written."""
    table = find_table(lake.spark, lake.name.rows, STACK)
    assert table is not None
    database = lake_database(PREFIX, lake.gateway)
    for name in (lake.name.rows, lake.name.changes):
        lake.spark.catalog.refreshTable(name)
    viewed = ViewedTable(
        database, "todos", STATE_TABLE, table.columns(), STACK, {}, table.delete_wins
    )
    _, live = views_of(viewed, "spark", CATALOG)
    rows = [row.asDict() for row in lake.spark.sql(live.select).collect()]
    assert len({row["_id"] for row in rows}) == len(rows), "one row for each id"
    return {row.pop("_id"): row for row in rows}


def typed_rows(deltas: list[Delta], *, delete_wins: bool) -> dict[str, dict[str, Any]]:
    names = {name for delta in deltas for name, _ in delta.columns}
    if delete_wins:
        names |= {column.name for column in FINAL.columns}
    seen = {
        row_id: view(as_read(state, delete_wins=delete_wins))
        for row_id, state in states_of(deltas).items()
    }
    return {
        row_id: {name: value_of("json", row[name]) if name in row else None for name in names}
        for row_id, row in seen.items()
        if row is not None
    }


@pytest.mark.law("L24")
def test_shared_view_in_spark_has_the_rows_of_all_its_gateways(lake: Lake) -> None:
    shares = Shares(lake.store)  # type: ignore[arg-type]  # it keeps the store's promises
    shares.change("all_todos", lambda _: Share("all_todos", "todos", f"{lake.gateway}*"))
    views = KeptViews(None, shares, PREFIX, STACK)
    other = replace(lake, gateway=f"{lake.gateway}b", batches=[])
    lake.put([insert("r1", at=5, n=1, due="2013-01-01"), insert("r2", at=6, n=2)], schema=TYPED)
    other.put([insert("r1", at=5, n=1.5), delete("r9", at=6)])
    assert run_with(lake, views) == ""

    share = shares.read("all_todos")
    assert share is not None
    assert share.members.keys() == {lake.gateway, other.gateway}
    for one in share.members.values():
        lake.spark.sql(schema_statement(one.database, "spark"))
        for made in views_of(one.viewed(), "spark", CATALOG):
            lake.spark.sql(made.statement(one.database, "spark"))
    lake.spark.sql(schema_statement("ls__shared", "spark"))
    for made in shared_views(share, "spark", CATALOG):
        lake.spark.sql(made.statement("ls__shared", "spark"))

    shown = [(lake.gateway, "r1", "1", date(2013, 1, 1)), (lake.gateway, "r2", "2", None)]
    shown.append((other.gateway, "r1", "1.5", None))
    for name in ("all_todos__rows", "all_todos__live"):
        rows = lake.spark.table(f"ls__shared.{name}").select("_gateway", "_id", "n", "due")
        assert sorted(map(tuple, rows.collect())) == sorted(shown)
    everything = lake.spark.table("ls__shared.all_todos")
    assert everything.where("_is_deleted").select("_gateway", "_id").collect() == [
        (other.gateway, "r9")
    ]
    of_one = everything.where(f"_gateway = '{lake.gateway}'").select("n")
    read = [relation(of_one, gateway) for gateway in (lake.gateway, other.gateway)]
    assert read == [True, False]


def relation(rows: DataFrame, gateway: str) -> bool:
    """Return whether a plan reads a gateway's table."""
    plan = rows._jdf.queryExecution().optimizedPlan().toString()
    return f"{lake_database(PREFIX, gateway)}.todos" in plan
