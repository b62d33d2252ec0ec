"""lakesync.core.schema: how a schema may change, and what it says where it may not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given

from lakesync.core.schema import Column, TableSchema, evolve
from lakesync.errors import Conflict, NameTaken, SchemaMismatch
from tests.support.strategies import table_schemas

TODOS = TableSchema(
    "todos",
    (
        Column("title", "string"),
        Column("rank", "integer", nullable=False),
        Column("price", "decimal(5,2)"),
        Column("later", "null"),
        Column("body", "json"),
    ),
)
MORE = Column("note", "string")


@pytest.mark.law("S3")
@given(table_schemas())
def test_first_schema_has_version_1_and_registering_it_again_changes_nothing(
    schema: TableSchema,
) -> None:
    before = evolve(None, schema)

    assert before == replace(schema, version=1)
    assert evolve(before, schema) is before
    assert evolve(before, replace(schema, version=77)) is before


def changed(name: str, **fields: Any) -> TableSchema:
    """Return the schema with one column changed."""
    columns = [
        replace(column, **fields) if column.name == name else column for column in TODOS.columns
    ]
    return replace(TODOS, columns=tuple(columns))


@pytest.mark.law("S3")
@pytest.mark.parametrize(
    "wanted",
    [
        replace(TODOS, columns=(*TODOS.columns, MORE)),
        replace(TODOS, columns=(MORE, *TODOS.columns[::-1])),
        changed("price", type="decimal(9,2)"),
        changed("later", type="timestamp"),
        changed("rank", nullable=True),
        changed("rank", description="1 is first"),
        replace(TODOS, soft_delete=True),
        replace(TODOS, source_table="dbo.todos"),
        replace(TODOS, partition=("rank",)),
        replace(TODOS, partition=("bucket(16,title)",), sort=("rank", "title")),
        replace(TODOS, external_id_column="title"),
        replace(TODOS, columns=(*TODOS.columns, MORE), partition=("note",)),
    ],
    ids=[
        "a new nullable column",
        "columns in another order",
        "a wider decimal",
        "a type for a column of nulls",
        "a column that may now be null",
        "what a column means",
        "soft delete",
        "source table",
        "partition",
        "buckets, and an order",
        "external id",
        "partition by a new column",
    ],
)
def test_schema_may_grow_and_its_version_increases(wanted: TableSchema) -> None:
    assert evolve(replace(TODOS, version=4), wanted) == replace(wanted, version=5)


@pytest.mark.law("S3")
@pytest.mark.parametrize(
    "wanted",
    [
        TODOS,
        replace(TODOS, soft_delete=True, source_table="other", external_id_column="title"),
        replace(TODOS, source_table="other", external_id_column="title"),
        replace(TODOS, soft_delete=True, external_id_column="title", partition=("title", "rank")),
    ],
)
def test_adapter_settings_of_a_schema_may_change_back_and_forth(wanted: TableSchema) -> None:
    before = replace(TODOS, soft_delete=True, source_table="dbo.todos")

    assert evolve(before, wanted) == replace(wanted, version=2)


@pytest.mark.law("S3")
@pytest.mark.parametrize(
    ("wanted", "field", "reason"),
    [
        (replace(TODOS, columns=TODOS.columns[1:]), "title", "cannot be removed; stop writing it"),
        (changed("title", nullable=False), "title", "cannot become non-null: .* add a new column"),
        (changed("title", type="json"), "title", "from string to json; add a new column"),
        (changed("rank", type="number"), "rank", "from integer to number; add a new column"),
        (changed("price", type="decimal(4,2)"), "price", "add a new column"),
        (changed("price", type="decimal(9,3)"), "price", "add a new column"),
        (
            replace(TODOS, columns=(*TODOS.columns, replace(MORE, nullable=False))),
            "note",
            "must be nullable: rows exist without it; register it with nullable true",
        ),
        (replace(TODOS, append=True), "append", "make a new table and copy the rows"),
        (replace(TODOS, delete_wins=True), "deleteWins", "make a new table and copy the rows"),
        (replace(TODOS, primary_key=("title",)), "primaryKey", "make a new table and copy"),
    ],
)
def test_schema_change_that_would_break_rows_is_refused_with_an_alternative(
    wanted: TableSchema, field: str, reason: str
) -> None:
    with pytest.raises(Conflict, match=reason) as refused:
        evolve(TODOS, wanted)

    assert refused.value.field == field


@pytest.mark.law("S3", "S5")
def test_a_column_keeps_its_first_spelling() -> None:
    first, *others = TODOS.columns
    with pytest.raises(NameTaken, match="column Title is there already, spelled title"):
        evolve(TODOS, replace(TODOS, columns=(replace(first, name="Title"), *others)))


LAID_OUT = replace(TODOS, partition=("rank", "title"), external_id_column="title", append=True)


@pytest.mark.law("L22", "S3")
@pytest.mark.parametrize(
    "fields",
    [{"partition": ()}, {"partition": ("title", "truncate(10,rank)")}, {"sort": ("rank",)}],
    ids=["none", "others, in another order", "sorted"],
)
def test_table_layout_may_change_at_any_time(fields: dict[str, Any]) -> None:
    changed = replace(LAID_OUT, **fields)

    assert evolve(LAID_OUT, changed) == replace(changed, version=2)
    assert evolve(changed, LAID_OUT) == replace(LAID_OUT, version=2)


@pytest.mark.law("S3")
@pytest.mark.parametrize(
    ("fields", "field", "reason"),
    [
        ({"external_id_column": None}, "externalIdColumn", "know the rows by title"),
        ({"external_id_column": "rank"}, "externalIdColumn", "make a new table"),
        ({"append": False}, "append", "append cannot change"),
    ],
)
def test_external_id_column_and_append_of_a_table_cannot_change(
    fields: dict[str, Any], field: str, reason: str
) -> None:
    with pytest.raises(Conflict, match=reason) as refused:
        evolve(LAID_OUT, replace(LAID_OUT, **fields))

    assert refused.value.field == field


@pytest.mark.law("S3")
@pytest.mark.parametrize("before", [None, TODOS])
@pytest.mark.parametrize("name", ["later", "body"])
def test_table_is_not_partitioned_by_null_or_json_columns(
    before: TableSchema | None, name: str
) -> None:
    with pytest.raises(
        SchemaMismatch, match=r"by which no table is partitioned as .*; use another"
    ) as refused:
        evolve(before, replace(TODOS, partition=("rank", name)))

    assert refused.value.field == "partition"
