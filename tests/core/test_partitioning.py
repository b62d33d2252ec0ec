"""lakesync.core.schema: what a table may be partitioned and sorted by, and how it is said."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakesync.core.column_map import ColumnMap, map_schema
from lakesync.core.schema import (
    PARTITION_WIDTH_MAX,
    Column,
    PartitionField,
    TableSchema,
    evolve,
    partition_field,
)
from lakesync.declare.schemas import read_schema
from lakesync.errors import SchemaMismatch
from tests.support.strategies import identifiers

KINDS = ("string", "integer", "decimal(9,2)", "number", "boolean", "date", "timestamp")
NONE = ("json", "bytes", "null")
TODOS = TableSchema("todos", tuple(Column(f"c_{kind[:7]}", kind) for kind in (*KINDS, *NONE)))
ALLOWED = {
    "{}": set(KINDS),
    "year({})": {"date", "timestamp"},
    "month({})": {"date", "timestamp"},
    "day({})": {"date", "timestamp"},
    "hour({})": {"timestamp"},
    "bucket(16,{})": {"string", "integer", "decimal(9,2)", "date", "timestamp"},
    "truncate(3,{})": {"string", "integer", "decimal(9,2)"},
}


@pytest.mark.law("S4")
@given(
    identifiers,
    st.sampled_from(["", "year", "month", "day", "hour"])
    | st.tuples(st.sampled_from(["bucket", "truncate"]), st.integers(1, PARTITION_WIDTH_MAX)),
)
def test_partition_field_round_trips_through_its_text(
    column: str, by: str | tuple[str, int]
) -> None:
    field = PartitionField(column, by) if isinstance(by, str) else PartitionField(column, *by)

    assert partition_field(str(field)) == field


@pytest.mark.law("S3")
@pytest.mark.parametrize("written", ALLOWED)
@pytest.mark.parametrize("column", TODOS.columns, ids=lambda column: column.type)
def test_each_type_accepts_only_its_own_transforms(written: str, column: Column) -> None:
    wanted = replace(TODOS, partition=(written.format(column.name),))
    if column.type in ALLOWED[written]:
        assert evolve(None, wanted) == wanted
        return
    with pytest.raises(SchemaMismatch, match="by which no table is partitioned as") as refused:
        evolve(None, wanted)

    assert refused.value.field == "partition"


@pytest.mark.law("S3")
@pytest.mark.parametrize("kind", NONE)
def test_table_is_not_sorted_by_a_type_without_order(kind: str) -> None:
    with pytest.raises(SchemaMismatch, match="by which no table is sorted") as refused:
        evolve(None, replace(TODOS, sort=(f"c_{kind}",)))

    assert refused.value.field == "sort"


@pytest.mark.parametrize(
    ("written", "reason"),
    [
        ("week(c_date)", "neither a column nor one of year"),
        ("bucket(16,c_date", "neither a column nor one of year"),
        ("c_date)", "neither a column nor one of year"),
        ("", "neither a column nor one of year"),
        ("month(c_date); DROP TABLE x", "neither a column nor one of year"),
        ("bucket(c_date)", "take a number of 1 to 1,000"),
        ("bucket(0,c_date)", "take a number of 1 to 1,000"),
        ("truncate(1001,c_string)", "take a number of 1 to 1,000"),
        ("month(2,c_date)", "the others take none"),
        ("month(nothing)", "names no declared column"),
    ],
)
def test_invalid_partition_field_is_refused(written: str, reason: str) -> None:
    with pytest.raises(SchemaMismatch, match=reason) as refused:
        replace(TODOS, partition=(written,))

    assert refused.value.field == "partition"


def test_partition_that_names_a_column_twice_is_refused() -> None:
    with pytest.raises(SchemaMismatch, match="names a column twice"):
        replace(TODOS, partition=("month(c_date)", "bucket(4,c_date)"))


@pytest.mark.law("S4")
def test_spaces_in_a_partition_field_do_not_matter() -> None:
    columns = [{"name": "a", "type": "string"}]
    body = {"table": "t", "columns": columns, "partition": ["bucket( 16, a )"], "sort": ["a"]}

    schema = read_schema(body)
    assert (schema.partition, schema.sort) == (("bucket(16,a)",), ("a",))


def test_partition_and_sort_follow_renamed_and_dropped_columns() -> None:
    laid_out = replace(TODOS, partition=("month(c_date)", "c_string"), sort=("c_string",))
    mapped = map_schema(ColumnMap(rename={"c_date": "day"}, drop=frozenset({"c_string"})), laid_out)

    assert (mapped.partition, mapped.sort) == (("month(day)",), ())
