"""lakesync.core.config: one document that comes back as it went in."""

from __future__ import annotations

import json
from types import MappingProxyType

from lakesync.core.config import GatewayConfig, config_from_json, config_to_json
from lakesync.core.layout import Layout
from lakesync.core.schema import Column, TableSchema

EVENTS = TableSchema("events", (Column("kind", "string"),), append=True)
TODOS = TableSchema("todos", (Column("title", "string"), Column("done", "boolean")), version=3)
FULL = GatewayConfig(
    7,
    MappingProxyType({"events": EVENTS, "todos": TODOS}),
    Layout(MappingProxyType({"events": "hot"}), 3, frozenset({"warm", "cold"})),
    strict=True,
)


def test_configuration_round_trips_through_json_text() -> None:
    assert config_from_json(json.loads(json.dumps(config_to_json(FULL)))) == FULL


def test_empty_configuration_round_trips_through_json() -> None:
    assert config_from_json(config_to_json(GatewayConfig())) == GatewayConfig()


def test_equal_configurations_give_equal_text() -> None:
    again = config_from_json(config_to_json(FULL))

    assert json.dumps(config_to_json(again)) == json.dumps(config_to_json(FULL))


def test_table_is_an_append_table_only_if_declared_so() -> None:
    assert FULL.appends("events")
    assert not FULL.appends("todos")
    assert not FULL.appends("never declared")
