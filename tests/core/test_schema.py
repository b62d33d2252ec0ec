"""lakesync.core.schema: what a schema may be, what it refuses, and its JSON."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakesync.core.delta import COLUMNS_MAX, Delta
from lakesync.core.schema import (
    Column,
    Schemas,
    TableSchema,
    check_delta,
    schema_to_json,
    schemas_from_json,
    schemas_to_json,
    shown_to_clients,
)
from lakesync.errors import LakeSyncError, NameTaken, SchemaMismatch, ValidationFailed
from tests.support.builders import delete, insert, update
from tests.support.strategies import table_schemas

TODOS = TableSchema(
    "todos",
    (
        Column("title", "string"),
        Column("rank", "integer", nullable=False),
        Column("price", "decimal(5,2)"),
        Column("later", "null"),
    ),
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
def test_delta_that_fits_the_schema_is_accepted(delta: Delta) -> None:
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
        (update(Title="x"), "Title", "the column Title is there already, spelled title"),
    ],
)
def test_delta_that_does_not_fit_is_refused_with_the_name_of_the_column(
    delta: Delta, field: str, reason: str
) -> None:
    with pytest.raises((SchemaMismatch, NameTaken), match=reason) as refused:
        check_delta(TODOS, delta)

    assert refused.value.field == field


@pytest.mark.parametrize(
    ("fields", "kind", "field"),
    [
        ({"table": "a b"}, ValidationFailed, "table"),
        ({"columns": ()}, SchemaMismatch, "columns"),
        ({"columns": (Column("a", "json"),) * 2}, SchemaMismatch, "columns"),
        ({"columns": (Column("a", "json"), Column("A", "json"))}, SchemaMismatch, "columns"),
        (
            {"columns": tuple(Column(f"c{n}", "json") for n in range(COLUMNS_MAX + 1))},
            SchemaMismatch,
            "columns",
        ),
        ({"primary_key": ("id",)}, SchemaMismatch, "primaryKey"),
        ({"primary_key": ("title", "title")}, SchemaMismatch, "primaryKey"),
        ({"partition": ("day",)}, SchemaMismatch, "partition"),
        ({"external_id_column": "key"}, SchemaMismatch, "externalIdColumn"),
        ({"external_id_column": ""}, SchemaMismatch, "externalIdColumn"),
        ({"source_table": ""}, SchemaMismatch, "sourceTable"),
        ({"source_table": "x" * 257}, SchemaMismatch, "sourceTable"),
    ],
)
def test_invalid_schema_is_refused_with_the_name_of_the_field(
    fields: dict[str, Any], kind: type[LakeSyncError], field: str
) -> None:
    with pytest.raises(kind) as refused:
        replace(TODOS, **fields)

    assert refused.value.field == field


@pytest.mark.law("S4")
@given(
    tables=st.lists(table_schemas(), max_size=3), version=st.integers(0, 99), strict=st.booleans()
)
def test_list_of_schemas_round_trips_through_json(
    tables: list[TableSchema], version: int, *, strict: bool
) -> None:
    schemas = Schemas(version, tuple(tables), strict)

    assert schemas_from_json(schemas_to_json(schemas)) == schemas


@pytest.mark.parametrize(
    "body", [None, [], {}, {"schemaVersion": 1}, {"schemaVersion": 1, "tables": {}},
             {"schemaVersion": "1", "tables": []}, {"schemaVersion": 1, "tables": [1]}]
)  # fmt: skip
def test_malformed_list_of_schemas_is_refused(body: object) -> None:
    with pytest.raises(ValidationFailed):
        schemas_from_json(body)


@given(table_schemas())
def test_schema_shown_to_clients_has_no_fields_of_the_lake_or_of_sources(
    schema: TableSchema,
) -> None:
    shown = shown_to_clients(schema)
    assert shown is not None
    fields = schema_to_json(shown)

    assert fields.keys() <= {"table", "version", "columns", "primaryKey", "append", "deleteWins"}
    plain = [replace(column, description="") for column in schema.columns]
    assert fields["columns"] == schema_to_json(replace(schema, columns=tuple(plain)))["columns"]
