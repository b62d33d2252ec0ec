"""Tables and columns have names in words; where two meet, what was there first keeps its name."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from lakesync.core.delta import Op, make_delta
from lakesync.core.names import lake_columns, lake_tables
from lakesync.core.schema import Column, TableSchema
from lakesync_spark.iceberg import apply
from tests.glue.test_crashes import Killed, kill
from tests.support.builders import insert, update

if TYPE_CHECKING:
    from lakesync.core.delta import Delta
    from tests.glue.support.lake import Lake

pytestmark = pytest.mark.spark

DIGESTED = lake_columns(["dueDate", "due_date"], {})["dueDate"]
LATER = lake_columns(["due_date"], {"duedate": "due_date"})["due_date"]


@pytest.mark.law("S5")
def test_later_column_with_a_colliding_name_renames_no_existing_one_even_after_a_crash(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema = TableSchema("todos", (Column("dueDate", "date"),), partition=("dueDate",))
    lake.put([insert("r1", at=5, dueDate="2024-01-01")], schema=schema)
    with monkeypatch.context() as patch:
        kill(patch, apply, "prepare", after=True)
        with pytest.raises(Killed):
            lake.run()
    lake.put([update("r1", at=6, due_date="x")])
    assert lake.run().problem() == ""
    [row] = lake.visible().values()

    assert {name: str(value) for name, value in row.items()} == {
        "due_date": "2024-01-01",
        LATER: '"x"',
    }
    assert [change["_columns"] for change in lake.changes()] == [["due_date"], [LATER]]


@pytest.mark.law("S5")
def test_of_two_new_columns_with_colliding_names_the_exact_one_keeps_the_name(lake: Lake) -> None:
    lake.put([insert("r1", at=5, dueDate=1, due_date=2)])
    lake.run()

    assert lake.visible() == {"r1": {"due_date": "2", DIGESTED: "1"}}


def of(table: str, row_id: str, value: int) -> Delta:
    return make_delta(Op.INSERT, table, row_id, {"n": value}, client_id="c", hlc=value)


@pytest.mark.law("S5")
def test_later_table_with_a_colliding_name_renames_no_existing_one(lake: Lake) -> None:
    first, later = (replace(lake, table=name, batches=[]) for name in ("dueDates", "due_dates"))
    first.put([of("dueDates", "r1", 1)])
    first.run()
    later.put([of("due_dates", "r1", 2)])
    later.run()
    first.put([of("dueDates", "r2", 3)])
    later.put([of("due_dates", "r2", 4)])
    assert first.run().problem() == ""

    assert first.name.lake_table == "due_dates"
    assert later.name.lake_table == lake_tables("due_dates")[1]
    assert {row["n"] for row in first.visible().values()} == {"1", "3"}
    assert {row["n"] for row in later.visible().values()} == {"2", "4"}
