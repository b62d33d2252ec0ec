"""How tables are laid out: as their schema says, by both writers alike, and by its last one."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from lakesync.core.delta import Op, make_delta
from lakesync.core.schema import Column, TableSchema
from lakesync.materialise import small_batches
from lakesync.materialise.lake_schema import recorded_layout
from lakesync_spark.iceberg import state_merge, table_files
from lakesync_spark.iceberg.layout import keep_layout
from lakesync_spark.iceberg.tables import find_table
from tests.glue.test_merge_agrees_with_core import agree, fresh
from tests.glue.test_small_batches import same_as_sparks, take

if TYPE_CHECKING:
    from lakesync.core.delta import Delta
    from tests.glue.support.lake import Lake

pytestmark = pytest.mark.spark

TYPES = {
    "string": ("", "plain", "prefix-1", "prefix-2", "é😀 and more"),
    "integer": (0, -1, 7, -2048, "9223372036854775807"),
    "decimal(9,2)": (0, "-0.01", "12.50", "-999.99", "1234567.89"),
    "date": ("1969-12-31", "1970-01-01", "2024-02-29", "2024-03-01", "0001-01-01"),
    "timestamp": (
        "1969-12-31T23:59:59.999999Z",
        "1970-01-01T00:00:00Z",
        "2024-02-29T13:05:09Z",
        "2024-02-29T14:05:09.5Z",
        "1901-01-01T00:00:00Z",
    ),
    "number": (0.5, -2, 1e300, 0, 5e-324),
    "boolean": (True, False, True, False, True),
}
FIELDS = {
    "string": ("{}", "bucket(16,{})", "truncate(3,{})"),
    "integer": ("{}", "bucket(7,{})", "truncate(10,{})"),
    "decimal(9,2)": ("{}", "bucket(4,{})", "truncate(50,{})"),
    "date": ("{}", "year({})", "month({})", "day({})", "bucket(5,{})"),
    "timestamp": ("{}", "year({})", "month({})", "day({})", "hour({})", "bucket(3,{})"),
    "number": ("{}",),
    "boolean": ("{}",),
}
"""Each transform of each type."""


def put(row_id: str, at: int, **columns: Any) -> Delta:
    return make_delta(Op.INSERT, "todos", row_id, columns, client_id="c", hlc=at)


def change(row_id: str, at: int, **columns: Any) -> Delta:
    return make_delta(Op.UPDATE, "todos", row_id, columns, client_id="d", hlc=at)


def gone(row_id: str, at: int) -> Delta:
    return make_delta(Op.DELETE, "todos", row_id, client_id="d", hlc=at)


def partitions(lake: Lake) -> dict[tuple[Any, ...], int]:
    """Count the rows of each partition of the current layout, tombstones too."""
    files = lake.read(f"{lake.name.rows}.files").where("content = 0").collect()
    counts: dict[tuple[Any, ...], int] = {}
    for file in files:
        key = tuple(file["partition"])
        counts[key] = counts.get(key, 0) + file["record_count"]
    return counts


def fields_of(lake: Lake) -> list[str]:
    table = find_table(lake.spark, lake.name.rows, lake.stack)
    assert table is not None
    return [str(field) for field in table.java.spec().fields()]


EACH = [(f"c{n}", kind, field) for n, (kind, field) in enumerate(
    (kind, field) for kind, fields in FIELDS.items() for field in fields
)]  # fmt: skip
"""A column for each: its name, its type, and the field that it is in."""


@pytest.mark.law("L19", "L22")
@pytest.mark.parametrize("append", [False, True], ids=["rows", "events"])
def test_function_and_spark_use_the_same_table_layout(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, *, append: bool
) -> None:
    """Each transform of each type, of values before the epoch, at it and behind it, and of NULL."""
    # Merged by both, or a dead row would count in its old partition with one of them alone.
    monkeypatch.setattr(state_merge, "REWRITE_DELTAS_PER_ROW", 0)
    schema = TableSchema(
        "todos",
        tuple(Column(name, kind) for name, kind, _ in EACH),
        partition=tuple(field.format(name) for name, _, field in EACH),
        sort=("c0", "c1"),
        append=append,
    )
    rows = [
        put(f"v{n}", n + 2, **{name: TYPES[kind][n] for name, kind, _ in EACH}) for n in range(5)
    ]
    more = [] if append else [change("v0", 20, c0="plain", c9="2024-03-01"), gone("v1", 21)]
    alone = fresh(lake)
    for each in (lake, alone):
        each.put([put("first", 1)], schema=schema)
        each.run()
    for batch in filter(None, (rows, more)):
        for each in (lake, alone):
            each.put(batch, schema=schema)
        assert alone.run().problem() == ""
        assert take(lake).left == {}

    assert len(partitions(lake)) >= 5
    assert partitions(lake) == partitions(alone)
    if not append:
        same_as_sparks(lake, alone)


LAID_OUT = TableSchema(
    "todos",
    (Column("customer", "string"), Column("due", "timestamp"), Column("n", "integer")),
)
LAYOUTS = (
    (("due",), ()),
    (("month(due)", "bucket(4,customer)"), ("n",)),
    (("truncate(1,customer)",), ("due", "n")),
    ((), ("customer",)),
    (("hour(due)",), ()),
)


@pytest.mark.law("L1", "L22", "S3")
def test_changed_table_layout_applies_to_later_rows_only(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows lie under five layouts at once, and are changed and deleted there."""
    monkeypatch.setattr(state_merge, "REWRITE_DELTAS_PER_ROW", 1e9)
    deltas: list[Delta] = []
    for turn, (partition, sort) in enumerate(LAYOUTS):
        schema = replace(LAID_OUT, version=turn + 1, partition=partition, sort=sort)
        at = 100 * turn + 1
        rows = [
            put(f"r{turn}-{n}", at + n, customer=f"c{n}", due=f"2024-0{n + 1}-01T0{n}:00:00Z", n=n)
            for n in range(6)
        ]
        old = [gone(f"r{one}-1", at + 50 + one) for one in range(turn)]
        old += [
            change(f"r{one}-2", at + 60 + one, customer=f"x{turn}", n=turn) for one in range(turn)
        ]
        for part, writes in ((rows, lake.run), (old, lambda: take(lake))):
            if part:
                deltas += part
                lake.put(part, schema=schema)
                writes()
        lake.run()  # what the function left: the merge is by whichever
        assert lake.pending() == []
        agree(lake, deltas)

    assert fields_of(lake) == [next(one for one in fields_of(lake) if "hour" in one)], (
        "only the last layout's field is left"
    )
    monkeypatch.setattr("lakesync.maintenance.lake_plan.SMALL_FILES_MAX", 1)
    monkeypatch.setattr(table_files, "SMALL_FILES_MAX", 1)
    before = lake.rows()
    files = table_files.TableFiles(lake.spark, lake.name.rows)
    files.rewrite({})
    files.rewrite_dead({})
    assert lake.rows() == before


@pytest.mark.law("L22")
def test_files_are_sorted_by_spark_the_function_and_maintenance(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema = replace(LAID_OUT, sort=("n",))
    numbers = [5, 1, 9, None, 3, 7]
    for turn in range(2):
        at = 10 * turn + 1
        lake.put([put(f"r{turn}{p}", at + p, n=n) for p, n in enumerate(numbers)], schema=schema)
        left = take(lake).left if turn else lake.run().problem()
        assert not left
    first, second = in_files(lake)
    assert first == second == [None, 1, 3, 5, 7, 9]

    monkeypatch.setattr(table_files, "SMALL_FILES_MAX", 1)
    table_files.TableFiles(lake.spark, lake.name.rows).rewrite({})

    (joined,) = in_files(lake)
    assert joined == [None, None, 1, 1, 3, 3, 5, 5, 7, 7, 9, 9]


def in_files(lake: Lake) -> list[list[int | None]]:
    """Return the numbers of each file, in the order in which they lie there."""
    files = [row["file_path"] for row in lake.read(f"{lake.name.rows}.files").collect()]
    return [[row["n"] for row in lake.spark.read.parquet(file).collect()] for file in sorted(files)]


@pytest.mark.law("L22")
def test_partition_fields_added_by_others_are_kept(lake: Lake) -> None:
    schema = replace(LAID_OUT, partition=("day(due)",))
    lake.put([put("r1", 1, n=1)], schema=schema)
    lake.run()
    lake.spark.sql(f"ALTER TABLE {lake.name.rows} ADD PARTITION FIELD bucket(2, _id)")
    lake.put([put("r2", 2, n=1)], schema=replace(schema, version=2, partition=("month(due)",)))
    lake.run()

    assert [field.split(":")[1].split("(")[0].strip() for field in fields_of(lake)] == [
        "_id_bucket_2",
        "_due_month",
    ]
    assert lake.visible().keys() == {"r1", "r2"}


@pytest.mark.law("L22")
def test_column_may_have_the_name_of_a_partition_field(lake: Lake) -> None:
    columns = (*LAID_OUT.columns, Column("due_day", "string"))
    schema = replace(LAID_OUT, columns=columns, partition=("due",))
    lake.put([put("r1", 1, due="2024-02-29T13:05:09Z", due_day="Thursday")], schema=schema)
    lake.run()
    later = replace(schema, version=2, columns=(*columns, Column("due_day_part", "string")))
    lake.put([put("r2", 2, due_day_part="x")], schema=later)

    assert lake.run().problem() == ""
    assert lake.visible()["r1"]["due_day"] == "Thursday"
    assert lake.visible()["r2"]["due_day_part"] == "x"


@pytest.mark.law("L19", "L22")
def test_layout_changes_and_batches_over_many_partitions_are_left_to_spark(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"{lake.gateway}/todos"
    schema = replace(LAID_OUT, partition=("n",))
    lake.put([put("r1", 1, n=1)], schema=schema)
    lake.run()
    monkeypatch.setattr(small_batches, "PARTITIONS_MAX", 1)
    lake.put([put("r2", 2, n=2), put("r3", 3, n=3)], schema=schema)
    reasons = [take(lake).left[name]]
    lake.run()
    lake.put([put("r4", 4, n=4)], schema=replace(schema, version=2, sort=("n",)))
    reasons.append(take(lake).left[name])
    lake.run()
    keep_layout_again(lake)

    assert [reason.rpartition(": ")[2] for reason in reasons] == [
        "its rows are in too many partitions",
        "its layout changes",
    ]
    assert lake.visible().keys() == {"r1", "r2", "r3", "r4"}


def keep_layout_again(lake: Lake) -> None:
    """What the table was given last is given again: it changes no metadata."""
    table = find_table(lake.spark, lake.name.rows, lake.stack)
    assert table is not None
    layout = recorded_layout(table.java.properties())
    assert layout is not None
    before = table.java.operations().current().metadataFileLocation()
    keep_layout(lake.spark, table, layout)
    assert table.java.operations().current().metadataFileLocation() == before
