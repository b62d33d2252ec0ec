"""The schema registry of a gateway: what is registered, what it does to pushes and rules."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lakesync.core.config import config_from_json, config_to_json
from lakesync.core.schema import schema_to_json
from lakesync.errors import Conflict, NotFound, SchemaMismatch
from tests.support.builders import at_ms, insert, push, update
from tests.support.gateways import GATEWAY, GatewayWorld, pulled


class Registry(GatewayWorld):
    """A gateway's administrator and one process that takes pushes, on one buffer."""

    def register(self, table: str, *columns: str, **more: object) -> Any:
        listed = [dict(zip(("name", "type"), item.split(":"), strict=True)) for item in columns]
        body = {"table": table, "columns": listed} | more
        return self.admin.register_schema(GATEWAY, body)

    def names(self, claims: dict[str, Any]) -> list[str]:
        shown = self.admin.schemas_for(GATEWAY, claims)
        return [schema.table for schema in shown.tables]


@pytest.fixture
def registry() -> Registry:
    return Registry()


def test_schemas_are_listed_with_versions_and_registering_them_again_changes_nothing(
    registry: Registry,
) -> None:
    registry.register("todos", "title:string")
    registry.register("notes", "body:json")
    registry.register("todos", "title:string", "done:boolean", softDelete=True)

    registered = registry.admin.schemas(GATEWAY)

    assert [(item.table, item.version) for item in registered.tables] == [
        ("notes", 1),
        ("todos", 2),
    ]
    assert registered.version == 3
    for schema in registered.tables:
        again = registry.admin.register_schema(GATEWAY, schema_to_json(schema))
        assert again == schema
    assert registry.admin.schemas(GATEWAY) == registered


def test_one_schema_is_read_by_its_exact_table_name_or_not_found(registry: Registry) -> None:
    registry.register("todos", "title:string")
    registry.register("notes", "body:json")

    assert [s.table for s in registry.admin.schemas(GATEWAY, "todos").tables] == ["todos"]
    for table in ("Todos", "nobody", ""):
        with pytest.raises(NotFound):
            registry.admin.schemas(GATEWAY, table)


def test_a_gateway_without_schemas_has_version_0(registry: Registry) -> None:
    registered = registry.admin.schemas(GATEWAY)

    assert (registered.version, registered.tables) == (0, ())


@pytest.mark.law("S2")
def test_each_delta_of_a_push_is_checked_against_its_schema(registry: Registry) -> None:
    registry.register("todos", "title:string", "n:integer")
    deltas = [
        insert("r0", at=at_ms(0), title="good", n=1),
        insert("r1", at=at_ms(1), title="no such column", colour="red"),
        insert("r2", at=at_ms(2), title=7),
        insert("r3", at=at_ms(3), table="free", anything={"a": 1}),
        update("r0", at=at_ms(4), n="1e3"),
        update("r0", at=at_ms(5), title=None),
    ]

    receipt = registry.pushes.push(GATEWAY, push(*deltas))

    refused = [(outcome.index, outcome.error) for outcome in receipt.outcomes if outcome.error]
    assert [(index, error.code, error.field) for index, error in refused] == [
        (1, "SCHEMA_ERROR", "colour"), (2, "SCHEMA_ERROR", "title"), (4, "SCHEMA_ERROR", "n"),
    ]  # fmt: skip
    assert receipt.accepted == 3
    assert pulled(registry.buffer, GATEWAY) == [deltas[0], deltas[3], deltas[5]]


@pytest.mark.law("S2", "S3")
def test_warm_process_accepts_a_new_column_with_the_next_push(registry: Registry) -> None:
    registry.register("todos", "title:string")
    registry.pushes.push(GATEWAY, push(insert("r0", at=at_ms(0), title="a")))
    registry.register("todos", "title:string", "done:boolean")

    # This process still knows the schema of before, and no commit would tell it.
    receipt = registry.pushes.push(GATEWAY, push(insert("r1", at=at_ms(1), done=True)))

    assert (receipt.accepted, receipt.outcomes) == (1, ())
    wrong = registry.pushes.push(GATEWAY, push(insert("r2", at=at_ms(2), done=1)))
    assert [outcome.error and outcome.error.field for outcome in wrong.outcomes] == ["done"]


@pytest.mark.law("S2", "S3")
def test_process_that_has_only_refused_deltas_learns_of_a_new_schema(registry: Registry) -> None:
    registry.register("notes", "body:string")
    registry.pushes.push(GATEWAY, push(insert("r0", at=at_ms(0), table="notes", x=1)))
    registry.register("notes", "body:string", "x:integer")

    receipt = registry.pushes.push(
        GATEWAY, push(insert("r1", at=at_ms(1), table="notes", x=1), atomic=True)
    )

    assert (receipt.accepted, receipt.outcomes) == (1, ())


@pytest.mark.law("S2")
def test_strict_gateway_refuses_deltas_of_tables_without_a_schema(
    registry: Registry,
) -> None:
    registry.register("todos", "title:string")
    registry.pushes.push(GATEWAY, push(insert("f0", at=at_ms(0), table="free", x=1)))
    registry.admin.set_strict(GATEWAY, strict=True)
    deltas = [insert("f1", at=at_ms(1), table="free", x=1), insert("r1", at=at_ms(2), title="a")]

    receipt = registry.pushes.push(GATEWAY, push(*deltas))

    [refused] = receipt.outcomes
    assert refused.error is not None
    assert (refused.index, refused.error.field) == (0, "table")
    # Clients try again once a schema is registered.
    assert refused.error.code == "TABLE_NOT_DECLARED"
    assert receipt.accepted == 1
    assert registry.admin.schemas(GATEWAY).strict
    # Every process learns of it, also one that has only refusals to tell.
    registry.admin.set_strict(GATEWAY, strict=False)
    again = registry.pushes.push(GATEWAY, push(deltas[0]))
    assert (again.accepted, again.outcomes) == (1, ())


def test_making_a_gateway_strict_twice_changes_nothing(registry: Registry) -> None:
    for _ in range(2):
        registry.admin.set_strict(GATEWAY, strict=True)

    assert registry.buffer.config(GATEWAY).version == 1


# --- what clients are told


@pytest.mark.law("S6")
def test_client_is_sent_only_schemas_of_tables_that_rules_can_show_it(registry: Registry) -> None:
    for table in ("flights", "crews", "airports", "secrets"):
        registry.register(table, "carrier:string", sourceTable="dbo.x")
    assert registry.names({"sub": "c1"}) == ["airports", "crews", "flights", "secrets"]

    mine = {"column": "carrier", "op": "in", "value": "jwt:carriers"}
    crew = {"column": "carrier", "op": "eq", "value": "jwt:crew.of"}
    registry.rules(
        {"tables": ["flights"], "filters": [mine]},
        {"tables": ["crews"], "filters": [mine, crew]},
        {"tables": ["airports"], "filters": []},
    )

    assert registry.names({"sub": "c1"}) == ["airports"]
    assert registry.names({"sub": "c1", "carriers": []}) == ["airports"]
    assert registry.names({"sub": "c1", "carriers": ["UA"]}) == ["airports", "flights"]
    both = {"sub": "c1", "carriers": "UA", "crew": {"of": "UA"}}
    assert registry.names(both) == ["airports", "crews", "flights"]
    shown = registry.admin.schemas_for(GATEWAY, both).tables
    assert all(schema.source_table is None for schema in shown)


# --- schemas and the rules in force


@pytest.mark.law("S3", "V3")
@pytest.mark.parametrize(
    ("bucket", "change"),
    [
        (
            {"tables": ["todos"], "filters": [{"column": "later", "op": "eq", "value": "x"}]},
            ("todos", "title:string", "later:json"),
        ),
        (
            {"tables": ["todos"], "filters": [{"column": "later", "op": "eq", "value": "x"}]},
            ("todos", "title:string", "later:integer"),
        ),
        (
            {"tables": [], "filters": [{"column": "title", "op": "gt", "value": 5}]},
            ("flags", "title:boolean"),
        ),
    ],
    ids=["no filter compares json", "text is not a number", "another table's column has no order"],
)
def test_schema_that_conflicts_with_the_rules_in_force_is_refused(
    registry: Registry, bucket: dict[str, Any], change: tuple[str, ...]
) -> None:
    registry.register("todos", "title:string", "later:null")
    registry.rules(bucket)
    before = registry.buffer.config(GATEWAY)

    with pytest.raises(Conflict, match="change the rules first") as refused:
        registry.register(*change)

    assert (refused.value.field or "").startswith("buckets[0].filters[0]")
    assert registry.buffer.config(GATEWAY) == before


def test_refused_schema_leaves_a_configuration_that_can_be_read_back(registry: Registry) -> None:
    """Rules of all tables on many columns, made before there was any table to hold them against."""
    many = [{"column": f"c{n}", "op": "eq", "value": "x"} for n in range(12)]
    registry.rules({"tables": [], "filters": many}, {"tables": [], "filters": [
        item | {"column": f"d{item['column']}"} for item in many]})  # fmt: skip
    with pytest.raises(Conflict, match="would not fit"):
        registry.register("todos", "title:string")

    config = registry.buffer.config(GATEWAY)
    assert config_from_json(json.loads(json.dumps(config_to_json(config)))) == config


@pytest.mark.law("S3")
def test_delete_wins_is_declared_before_the_first_row_and_never_changed(registry: Registry) -> None:
    registry.register("todos", "title:string", deleteWins=True)
    registry.register("notes", "title:string")
    registry.pushes.push(GATEWAY, push(insert(at=at_ms(1), table="jots", title="x")))

    registry.register("todos", "title:string", "more:string", deleteWins=True)
    for table, wins in (("todos", False), ("notes", True)):
        with pytest.raises(Conflict, match="make a new table and copy") as refused:
            registry.register(table, "title:string", "more:string", deleteWins=wins)
        assert refused.value.field == "deleteWins"
    with pytest.raises(Conflict, match="jots has been written to") as refused:
        registry.register("jots", "title:string", deleteWins=True)
    assert refused.value.field == "deleteWins"
    registry.register("jots", "title:string")

    registered = registry.admin.schemas(GATEWAY).tables
    assert {schema.table: schema.delete_wins for schema in registered} == {
        "jots": False, "notes": False, "todos": True,
    }  # fmt: skip
    shown = registry.admin.schemas_for(GATEWAY, {}).tables
    assert [schema.table for schema in shown if schema.delete_wins] == ["todos"]


@pytest.mark.law("S3")
def test_append_table_cannot_be_delete_wins(registry: Registry) -> None:
    with pytest.raises(SchemaMismatch, match="events are never deleted"):
        registry.register("events", "n:integer", append=True, deleteWins=True)


@pytest.mark.law("B14")
def test_delete_wins_is_read_back_from_the_stored_configuration(registry: Registry) -> None:
    registry.register("notes", "title:string")
    registry.register("todos", "title:string", deleteWins=True)
    config = registry.buffer.config(GATEWAY)

    assert config_from_json(config_to_json(config)) == config
    assert config.delete_wins("todos")
    assert not config.delete_wins("notes")
