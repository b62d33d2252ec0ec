"""lakesync.core.schema: what a schema may be, what it refuses, and how it may change."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakesync.core.delta import COLUMNS_MAX, Delta
from lakesync.core.schema import (
    Column,
    TableSchema,
    check_delta,
    evolve,
    schema_from_json,
    schema_to_json,
)
from lakesync.errors import Conflict, LakeSyncError, SchemaMismatch, ValidationFailed
from tests.support.builders import delete, insert, update
from tests.support.strategies import identifiers

TODOS = TableSchema(
    "todos",
    (
        Column("title", "string"),
        Column("rank", "integer", nullable=False),
        Column("price", "decimal(5,2)"),
        Column("later", "null"),
    ),
)

types = st.sampled_from(
    ["string", "number", "boolean", "json", "null", "integer", "timestamp", "date", "bytes"]
) | st.builds("decimal({},{})".format, st.integers(5, 38), st.integers(0, 5))


@st.composite
def schemas(draw: st.DrawFn) -> TableSchema:
    """Any valid schema."""
    names = draw(st.lists(identifiers, min_size=1, max_size=5, unique=True))
    some_names = st.lists(st.sampled_from(names), unique=True).map(tuple)
    return TableSchema(
        draw(identifiers),
        tuple(Column(name, draw(types), draw(st.booleans())) for name in names),
        draw(st.integers(1, 99)),
        draw(some_names),
        draw(st.booleans()),
        draw(st.none() | st.sampled_from(names)),
        draw(st.none() | identifiers),
        draw(st.booleans()),
        draw(some_names),
    )


@pytest.mark.law("S2")
@pytest.mark.parametrize(
    "delta",
    [
        insert(title="x", rank=1, price="1.25"),
        update(title=None),
        update(later=None),
        update(),
        delete(),
    ],
    ids=["insert", "null", "null of type null", "no columns", "delete"],
)
def test_a_delta_that_fits_is_let_through(delta: Delta) -> None:
    check_delta(TODOS, delta)


@pytest.mark.law("S2")
@pytest.mark.parametrize(
    ("delta", "field", "reason"),
    [
        (update(colour="x"), "colour", "table todos has no column colour"),
        (update(title=1), "title", "todos.title is string; the value is not"),
        (update(rank=None), "rank", "todos.rank may not be null"),
        (update(price="1.255"), "price", r"todos.price is decimal\(5,2\); the value is not"),
        (update(later=0), "later", "todos.later is null; the value is not"),
        (update(title="x", rank="y"), "rank", "todos.rank is integer"),
    ],
)
def test_a_delta_that_does_not_fit_names_its_column(delta: Delta, field: str, reason: str) -> None:
    with pytest.raises(SchemaMismatch, match=reason) as refused:
        check_delta(TODOS, delta)

    assert refused.value.field == field


@pytest.mark.parametrize(
    ("fields", "kind", "field"),
    [
        ({"table": "a b"}, ValidationFailed, "table"),
        ({"columns": ()}, SchemaMismatch, "columns"),
        ({"columns": (Column("a", "json"),) * 2}, SchemaMismatch, "columns"),
        (
            {"columns": tuple(Column(f"c{n}", "json") for n in range(COLUMNS_MAX + 1))},
            SchemaMismatch,
            "columns",
        ),
        ({"primary_key": ("id",)}, SchemaMismatch, "primaryKey"),
        ({"primary_key": ("title", "title")}, SchemaMismatch, "primaryKey"),
        ({"partition": ("day",)}, SchemaMismatch, "partition"),
        ({"external_id_column": "key"}, SchemaMismatch, "externalIdColumn"),
    ],
)
def test_an_unsound_schema_cannot_be_made(
    fields: dict[str, Any], kind: type[LakeSyncError], field: str
) -> None:
    with pytest.raises(kind) as refused:
        replace(TODOS, **fields)

    assert refused.value.field == field


@pytest.mark.law("S3")
@given(schemas())
def test_the_first_schema_is_version_1_and_registering_it_again_changes_nothing(
    schema: TableSchema,
) -> None:
    held = evolve(None, schema)

    assert held == replace(schema, version=1)
    assert evolve(held, schema) is held
    assert evolve(held, replace(schema, version=77)) is held


MORE = Column("note", "string")


def changed(name: str, **fields: Any) -> TableSchema:
    """Give the schema with one column changed."""
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
        replace(TODOS, soft_delete=True),
        replace(TODOS, partition=("rank",)),
        replace(TODOS, external_id_column="title"),
    ],
    ids=[
        "a new nullable column",
        "columns in another order",
        "a wider decimal",
        "a type for a column of nulls",
        "a column that may now be null",
        "soft delete",
        "partition",
        "external id",
    ],
)
def test_a_schema_may_grow_and_its_version_with_it(wanted: TableSchema) -> None:
    assert evolve(replace(TODOS, version=4), wanted) == replace(wanted, version=5)


@pytest.mark.law("S3")
@pytest.mark.parametrize(
    ("wanted", "field", "reason"),
    [
        (replace(TODOS, columns=TODOS.columns[1:]), "title", "cannot be removed; stop writing it"),
        (changed("title", nullable=False), "title", "cannot become non-null"),
        (changed("title", type="json"), "title", "from string to json; add a new column"),
        (changed("rank", type="number"), "rank", "from integer to number; add a new column"),
        (changed("price", type="decimal(4,2)"), "price", "add a new column"),
        (changed("price", type="decimal(9,3)"), "price", "add a new column"),
        (
            replace(TODOS, columns=(*TODOS.columns, replace(MORE, nullable=False))),
            "note",
            "must be nullable: rows exist without it",
        ),
        (replace(TODOS, append=True), "append", "make a new table and copy the rows"),
        (replace(TODOS, primary_key=("title",)), "primaryKey", "make a new table"),
    ],
)
def test_a_change_that_would_break_rows_is_refused_with_the_way_around(
    wanted: TableSchema, field: str, reason: str
) -> None:
    with pytest.raises(Conflict, match=reason) as refused:
        evolve(TODOS, wanted)

    assert refused.value.field == field


@pytest.mark.law("S4")
@given(schemas())
def test_a_schema_comes_back_from_its_json(schema: TableSchema) -> None:
    assert schema_from_json(schema_to_json(schema)) == schema


@pytest.mark.law("S4")
def test_the_least_that_a_client_must_send() -> None:
    body = {"table": "todos", "columns": [{"name": "title", "type": "string"}]}

    assert schema_from_json(body) == TableSchema("todos", (Column("title", "string"),))


@pytest.mark.law("S4")
def test_spaces_in_a_decimal_do_not_matter() -> None:
    body = {"table": "t", "columns": [{"name": "a", "type": "decimal(5, 2)"}]}

    assert schema_from_json(body).columns == (Column("a", "decimal(5,2)"),)


BODY = {"table": "todos", "columns": [{"name": "title", "type": "string"}]}


def column(**fields: object) -> dict[str, object]:
    """Give a body whose only column has other fields."""
    return {"columns": [{"name": "title", "type": "string"} | fields]}


@pytest.mark.law("S4")
@pytest.mark.parametrize(
    ("fields", "field", "reason"),
    [
        ({"table": 1}, "table", "table must be text"),
        ({"table": ""}, "table", "is not a name"),
        ({"columns": {}}, "columns", "columns must be a list"),
        ({"columns": []}, "columns", "needs 1 to 500 columns"),
        ({"columns": ["title"]}, "columns[0]", "must be an object"),
        ({"columns": [{"name": "title"}]}, "type", r"columns\[0\] lacks type"),
        (column(name=None), "name", "name must be text"),
        (column(name="a b"), "columns.name", "is not a name"),
        (column(type="blob"), "columns.type", "'blob' is no type"),
        (column(type=["string"]), "type", "type must be text"),
        (column(nullable="no"), "nullable", "nullable must be true or false"),
        (column(size=3), "size", "unknown fields: size"),
        ({"version": True}, "version", "version must be an integer"),
        ({"primaryKey": "title"}, "primaryKey", "must be a list of column names"),
        ({"primaryKey": [1]}, "primaryKey", "must be a list of column names"),
        ({"partition": 0}, "partition", "must be a list of column names"),
        ({"softDelete": 1}, "softDelete", "softDelete must be true or false"),
        ({"append": None}, "append", "append must be true or false"),
        ({"externalIdColumn": 7}, "externalIdColumn", "must be text"),
        ({"colour": "red"}, "colour", "body has unknown fields: colour"),
        ({"\ud800": 1}, "\\ud800", "unknown fields"),
    ],
)
def test_a_fault_in_the_json_names_its_field(
    fields: dict[str, object], field: str, reason: str
) -> None:
    with pytest.raises((ValidationFailed, SchemaMismatch), match=reason) as refused:
        schema_from_json(BODY | fields)

    assert refused.value.field == field


@pytest.mark.law("S4")
@pytest.mark.parametrize("body", [None, 1, "x", [], [BODY], True])
def test_what_is_no_object_is_no_schema(body: object) -> None:
    with pytest.raises(ValidationFailed, match="body must be an object"):
        schema_from_json(body)
