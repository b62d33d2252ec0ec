"""What a table knows of its columns stays right whatever somebody does in the catalogue."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING

import pytest

from lakesync.core.schema import Column, TableSchema
from lakesync.materialise.shape import COLUMNS
from lakesync_spark.iceberg.lake_table import LakeTable
from tests.support.builders import insert, update

if TYPE_CHECKING:
    from tests.glue.support.lake import Lake

pytestmark = pytest.mark.spark

FIRST = TableSchema("todos", (Column("Due", "decimal(5,2)"), Column("n", "number")))
WIDER = TableSchema(
    "todos",
    (Column("Due", "decimal(9,2)"), Column("n", "number"), Column("Extra", "string")),
    version=2,
)


@pytest.mark.law("L9", "L10")
def test_a_column_comment_may_be_edited(lake: Lake) -> None:
    lake.put([insert("r1", at=5, Due=1.25, n=1)], schema=FIRST)
    lake.run()
    for table in (lake.name.rows, lake.name.changes):
        lake.spark.sql(f"ALTER TABLE {table} ALTER COLUMN due COMMENT 'When it is due'")
        lake.spark.sql(f"ALTER TABLE {table} ALTER COLUMN n COMMENT ''")
    lake.put([update("r1", at=6, Due="1234567.25", Extra="x")], schema=WIDER)
    report = lake.run()

    assert report.problem() == ""
    assert lake.visible() == {"r1": {"due": Decimal("1234567.25"), "n": 1.0, "extra": "x"}}
    comments = {
        row["col_name"]: row["comment"]
        for row in lake.spark.sql(f"DESCRIBE TABLE {lake.name.rows}").collect()
    }
    assert comments["due"] == "When it is due"
    assert comments["extra"] == "string Extra"


@pytest.mark.law("L9")
def test_a_claim_is_not_set_aside_for_a_fault_of_its_table(lake: Lake) -> None:
    lake.put([insert("r1", at=5, Due=1.25, n=1)], schema=FIRST)
    lake.run()
    table = LakeTable(lake.spark, lake.name.rows)
    columns = table.columns()
    broken = [column.__class__(column.name, "date", column.written) for column in columns]
    table.record_columns(broken)
    lake.put([update("r1", at=6, n=2)], schema=FIRST)
    report = lake.run()

    assert "cannot become" in report.problem()
    assert [failure.set_aside for failure in report.failed] == [False]
    assert len(lake.pending()) == 1

    table.record_columns(columns)
    assert lake.run().problem() == ""
    assert lake.visible()["r1"]["n"] == 2.0


@pytest.mark.law("L6")
def test_a_run_that_died_before_it_recorded_its_columns_is_healed_by_the_next(lake: Lake) -> None:
    lake.put([insert("r1", at=5, Due=1.25, n=1)], schema=FIRST)
    lake.run()
    lake.spark.sql(f"ALTER TABLE {lake.name.rows} UNSET TBLPROPERTIES ('{COLUMNS}')")
    lake.put([update("r1", at=6, n=2)], schema=FIRST)

    assert lake.run().problem() == ""
    properties = lake.spark.sql(f"SHOW TBLPROPERTIES {lake.name.rows} ('{COLUMNS}')").first()
    assert properties is not None
    assert '["number","n"]' in properties["value"]
