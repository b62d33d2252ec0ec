"""Declarations of schemas: every fault at once, each with its path."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakesync.core.schema import Column, TableSchema, schema_from_stored, schema_to_json
from lakesync.declare.schemas import read_schema, read_strict
from lakesync.errors import InvalidInput, SchemaMismatch, ValidationFailed
from tests.support.strategies import json_values, table_schemas

BODY = {"table": "todos", "columns": [{"name": "title", "type": "string"}]}


@pytest.mark.law("S4")
@given(table_schemas())
def test_schema_round_trips_through_json(schema: TableSchema) -> None:
    body = schema_to_json(schema)

    assert read_schema(body) == schema
    assert schema_from_stored(body) == schema, "what is declared is stored as it is"


@pytest.mark.law("S4")
def test_minimal_schema_json_is_accepted() -> None:
    assert read_schema(BODY) == TableSchema("todos", (Column("title", "string"),))


@pytest.mark.law("S4")
def test_spaces_in_a_decimal_type_do_not_matter() -> None:
    body = {"table": "t", "columns": [{"name": "a", "type": "decimal(5, 2)"}]}

    assert read_schema(body).columns == (Column("a", "decimal(5,2)"),)


@pytest.mark.law("S4")
def test_key_names_the_row_id_by_either_spelling_unless_a_column_has_it() -> None:
    assert read_schema(BODY | {"primaryKey": ["rowId"]}).primary_key == ("row_id",)
    assert read_schema(BODY | {"primaryKey": ["row_id"]}).primary_key == ("row_id",)
    columns = [{"name": "rowId", "type": "string"}]
    own = read_schema({"table": "t", "columns": columns, "primaryKey": ["rowId"]})
    assert own.primary_key == ("rowId",)


def column(**fields: object) -> dict[str, object]:
    """Return a body whose only column has other fields."""
    return {"columns": [{"name": "title", "type": "string"} | fields]}


@pytest.mark.law("S4")
@pytest.mark.parametrize(
    ("fields", "field", "reason"),
    [
        ({"table": 1}, "table", "a table is named by"),
        ({"table": ""}, "table", "a table is named by"),
        ({"columns": {}}, "columns", "must be a list"),
        ({"columns": []}, "columns", "needs 1 to 500 columns"),
        ({"columns": ["title"]}, "columns[0]", "must be an object"),
        ({"columns": [{"name": "title"}]}, "columns[0].type", "is missing"),
        (column(name=None), "columns[0].name", "a column is named by"),
        (column(name="a b"), "columns[0].name", "a column is named by"),
        (column(type="blob"), "columns[0].type", "'blob' is not a type"),
        (column(type=["string"]), "columns[0].type", "must be text"),
        (column(nullable="no"), "columns[0].nullable", "must be true or false"),
        (column(description=1), "columns[0].description", "is one line of 160 bytes"),
        (column(description="a\nb"), "columns[0].description", "is one line of 160 bytes"),
        (column(description="\ud800"), "columns[0].description", "is one line of 160 bytes"),
        (column(description="é" * 81), "columns[0].description", "is one line of 160 bytes"),
        (column(size=3), "columns[0].size", "there is no such field"),
        ({"version": True}, "version", "must be a whole number"),
        ({"primaryKey": "title"}, "primaryKey", "must be a list"),
        ({"primaryKey": [1]}, "primaryKey[0]", "a column is named by"),
        ({"partition": 0}, "partition", "must be a list"),
        ({"softDelete": 1}, "softDelete", "must be true or false"),
        ({"append": None}, "append", "must be true or false"),
        ({"externalIdColumn": 7}, "externalIdColumn", "must be text"),
        ({"colour": "red"}, "colour", "there is no such field"),
        ({"\ud800": 1}, "body", "half of a surrogate pair"),
    ],
)
def test_invalid_schema_json_is_refused_with_the_path_of_the_field(
    fields: dict[str, object], field: str, reason: str
) -> None:
    with pytest.raises((ValidationFailed, SchemaMismatch), match=reason) as refused:
        read_schema(BODY | fields)

    assert refused.value.field == field


@pytest.mark.law("S4")
def test_all_faults_of_a_schema_are_reported_with_their_paths() -> None:
    columns = [{"name": "a b", "type": "blob", "more": 1}, {"name": "b", "type": "decimal"}]
    body = {"table": "t", "columns": columns, "primaryKey": ["c"], "partition": ["week(b)"]}
    with pytest.raises(ValidationFailed) as refused:
        read_schema(body)

    assert [fault.path for fault in refused.value.faults] == [
        "columns[0].name", "columns[0].more", "columns[0].type", "columns[1].type", "partition",
        "primaryKey",
    ]  # fmt: skip


@pytest.mark.law("S4")
@given(json_values | st.just(True))
def test_junk_is_refused_as_a_schema(body: object) -> None:
    with pytest.raises(InvalidInput):
        read_schema(body)


def test_strict_is_true_or_false() -> None:
    assert read_strict({"strict": True})
    with pytest.raises(ValidationFailed, match="strict: must be true or false"):
        read_strict({"strict": 1})
