"""What a table knows of its columns stays right whatever somebody does in the catalogue."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING

import pytest

from lakesync.core.schema import Column, TableSchema
from lakesync.materialise.lake_schema import CHANGES_TABLE, COLUMNS, STATE_TABLE, own_comments
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
    comments = comments_of(lake, lake.name.rows)
    assert comments["due"] == "When it is due"
    assert comments["n"] == "number n"
    assert comments["extra"] == "string Extra"


def comments_of(lake: Lake, table: str) -> dict[str, str]:
    lake.spark.catalog.refreshTable(table)
    rows = lake.spark.sql(f"DESCRIBE TABLE {table}").collect()
    return {row["col_name"]: row["comment"] for row in rows if row["comment"]}


def described(due: str, n: str = "json", about_n: str = "") -> TableSchema:
    columns = (Column("Due", "date", description=due), Column("n", n, description=about_n))
    return TableSchema("todos", columns)


SAID = "When it's due: \\d, ${spark.app.name} (see §2)"


@pytest.mark.law("L10")
def test_column_comments_follow_the_schema_and_keep_edited_ones(lake: Lake) -> None:
    lake.put([insert("r1", at=5, Due="2013-01-01", n=1)], schema=described(SAID))
    lake.run()
    for table, kind in ((lake.name.rows, STATE_TABLE), (lake.name.changes, CHANGES_TABLE)):
        comments = comments_of(lake, table)
        assert comments.pop("due") == f"{SAID} (date Due)"
        assert comments.pop("n") == "json n"
        assert comments == own_comments(kind)
        assert all(len(text.encode()) <= 255 for text in comments.values())

    lake.spark.sql(f"ALTER TABLE {lake.name.rows} ALTER COLUMN n COMMENT 'Mine'")
    lake.spark.sql(f"ALTER TABLE {lake.name.rows} ALTER COLUMN _id COMMENT 'Key'")
    # A new type writes the column anew: what somebody said of it stays all the same.
    lake.put([update("r1", at=6, n=2)], schema=described("", "number", "How many"))

    assert lake.run().problem() == ""
    comments = comments_of(lake, lake.name.rows)
    assert [comments[name] for name in ("due", "n", "_id")] == ["date Due", "Mine", "Key"]
    assert comments_of(lake, lake.name.changes)["n"] == "How many (number n)"


@pytest.mark.law("L10")
def test_unchanged_column_comments_are_not_written_again(lake: Lake) -> None:
    lake.put([update("r1", at=5, n=5)], schema=described(SAID))
    lake.run()
    schema_id = LakeTable(lake.spark, lake.name.rows).java.schema().schemaId()
    lake.put([update("r1", at=6, n=6)], schema=described(SAID))
    lake.run()

    assert LakeTable(lake.spark, lake.name.rows).java.schema().schemaId() == schema_id


@pytest.mark.law("L9")
def test_claim_is_not_set_aside_because_of_a_fault_of_its_table(lake: Lake) -> None:
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
def test_missing_record_of_columns_is_written_by_the_next_run(lake: Lake) -> None:
    lake.put([insert("r1", at=5, Due=1.25, n=1)], schema=FIRST)
    lake.run()
    lake.spark.sql(f"ALTER TABLE {lake.name.rows} UNSET TBLPROPERTIES ('{COLUMNS}')")
    lake.put([update("r1", at=6, n=2)], schema=FIRST)

    assert lake.run().problem() == ""
    properties = lake.spark.sql(f"SHOW TBLPROPERTIES {lake.name.rows} ('{COLUMNS}')").first()
    assert properties is not None
    assert '["number","n"]' in properties["value"]
