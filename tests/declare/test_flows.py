"""Declarations of flows: every fault at once; what is stored is read again. Law Y4."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import pytest

from lakesync.core.config import GatewayConfig
from lakesync.core.flows import (
    DATABASES,
    LAKES,
    ConnectorSource,
    DatabaseSource,
    flow_from_stored,
    flow_to_json,
    flow_to_stored,
)
from lakesync.declare.flows import read_flow
from lakesync.declare.schemas import read_schema
from lakesync.errors import FlowRefused

SCHEMA = read_schema(
    {"table": "orders", "columns": [{"name": "region", "type": "string"},
                                    {"name": "email", "type": "string"}]}
)  # fmt: skip
CONFIG = GatewayConfig(schemas=MappingProxyType({"orders": SCHEMA}))
TO: dict[str, Any] = {"database": "postgres", "secret": "warehouse"}
EU: dict[str, Any] = {
    "name": "eu",
    "tables": ["orders"],
    "filters": [{"column": "region", "op": "eq", "value": "eu"}],
}
OUT: dict[str, Any] = {
    "name": "orders-out",
    "source": "gateway",
    "tables": ["orders"],
    "filter": [EU],
    "map": {"orders": {"hash": ["email"], "drop": ["region"]}},
    "destination": TO | {"tableNames": {"orders": "sales"}, "deletes": "soft"},
    "continuous": True,
}
IN: dict[str, Any] = {
    "name": "tickets",
    "source": {"connector": "jira", "configuration": {"site": "x", "token": "hush"}},
    "filter": [{"name": "open", "tables": ["issues"],
                "filters": [{"column": "status", "op": "neq", "value": "Done"}]}],
    "map": {"issues": {"drop": ["description"]}},
    "destination": "gateway",
    "schedule": {"everyMinutes": 5},
}  # fmt: skip
ACROSS: dict[str, Any] = {
    "name": "across",
    "source": {"database": "mysql", "secret": "shop", "gateway": "other"},
    "tables": ["orders"],
    "map": {"orders": {"rename": {"total": "amount"}}},
    "destination": TO,
}


PLAIN: dict[str, Any] = ACROSS | {
    "source": {
        "database": "iceberg",
        "secret": "lake",
        "plain": {
            name: {"table": f"raw.{name}", "key": ["id"], "columns": ["total"]}
            for name in ACROSS["tables"]
        },
    }
}


@pytest.mark.law("Y4")
def test_flow_declares_its_source_destination_schedule_and_column_map() -> None:
    out = read_flow(OUT, CONFIG, "acme")
    tickets = read_flow(IN, CONFIG, "acme")
    across = read_flow(ACROSS, CONFIG, "acme")

    assert (out.source, out.to_gateway, out.every_minutes) == (None, False, 0)
    assert out.to.is_filtered("orders")
    mapped = out.to.schema_of("orders", SCHEMA)
    assert mapped is not None
    assert [column.name for column in mapped.columns] == ["email"]
    assert (mapped.source_table, mapped.soft_delete) == ("sales", True)
    assert tickets.source == ConnectorSource("jira", IN["source"]["configuration"])
    assert (tickets.to_gateway, tickets.every_minutes) == (True, 5)
    assert across.source == DatabaseSource("mysql", "shop", "other")
    assert across.every_minutes == 15
    continuous = ACROSS | {"continuous": True}
    assert read_flow(continuous, CONFIG, "acme").every_minutes == 1
    dear = continuous | {"destination": {"database": "bigquery", "secret": "reports"}}
    assert read_flow(dear, CONFIG, "acme").every_minutes == 2, "as often as it may be written"
    named = {"database": "s3", "secret": "r", "tableNames": {"orders": "o"}}
    kept = ACROSS | {"destination": named}
    with pytest.raises(FlowRefused, match="its own name there"):
        read_flow(kept, CONFIG, "acme")


@pytest.mark.law("Y4")
def test_iceberg_is_a_source_or_destination_of_polled_flows_only() -> None:
    lake = {"database": "iceberg", "secret": "lake"}
    out = read_flow(ACROSS | {"source": lake}, CONFIG, "acme")
    into = read_flow(ACROSS | {"destination": lake, "continuous": True}, CONFIG, "acme")
    assert (out.source, out.place) == (DatabaseSource("iceberg", "lake", "acme"), LAKES)
    assert (into.to.kind, into.place, into.every_minutes) == ("iceberg", LAKES, 2)
    assert read_flow(ACROSS, CONFIG, "acme").place == DATABASES

    wrong = lake | {"tableNames": {"orders": "sales"}, "deletes": "hard"}
    with pytest.raises(FlowRefused) as refused:
        read_flow(OUT | {"destination": wrong}, CONFIG, "acme")
    assert {fault.path for fault in refused.value.faults} == {
        "destination.tableNames", "destination.deletes", "destination.database",
    }  # fmt: skip
    assert "in its lake" in str([fault.message for fault in refused.value.faults])


@pytest.mark.law("Y4")
@pytest.mark.parametrize("body", [OUT, IN, ACROSS, PLAIN])
def test_shown_flow_can_be_declared_again_and_a_stored_one_read_back(body: dict[str, Any]) -> None:
    flow = read_flow(body, CONFIG, "acme")
    shown = flow_to_json(flow)
    del shown["paused"]

    again = read_flow(shown if flow.every_minutes != 1 else body, CONFIG, "acme")
    assert again == flow
    if flow.source is not None:
        stored = flow_to_stored(flow) | {"later": 1}
        read = flow_from_stored(flow.name, stored, flow.every_minutes, paused=False)
        assert read == flow
        assert flow_to_stored(read)["later"] == 1


@pytest.mark.law("Y7")
def test_secrets_of_a_flows_source_can_be_removed() -> None:
    flow = read_flow(IN, CONFIG, "acme").without(frozenset({"token"}))

    assert "hush" not in str(flow_to_stored(flow))
    assert "hush" not in str(flow_to_json(flow))
    assert read_flow(OUT, CONFIG, "acme").without(frozenset({"token"})).source is None


@pytest.mark.law("Y4")
@pytest.mark.parametrize(
    ("body", "paths"),
    [
        (
            OUT
            | {
                "name": "No Name",
                "map": {"orders": {"drop": ["gone"]}, "other": {}},
                "filter": [
                    EU | {"filters": [{"column": "region", "op": "like", "value": "jwt:x"}]}
                ],
                "destination": {"database": "oracle", "secret": "a/b", "deletes": "no", "url": "u"},
                "schedule": {"everyMinutes": 5},
                "every": 1,
            },
            [
                "destination.database", "destination.deletes", "destination.secret",
                "destination.url", "every", "filter[0].filters[0].op", "filter[0].filters[0].value",
                "map.orders", "map.other", "name", "schedule", "schedule",
            ],
        ),
        (OUT | {"destination": "gateway"}, ["destination"]),
        (OUT | {"destination": 7, "source": "lake"}, ["destination", "source"]),
        (
            ACROSS
            | {
                "source": {"database": "oracle", "secret": "", "gateway": 1, "url": 2},
                "tables": [],
                "schedule": {"everyMinutes": 0},
                "continuous": "yes",
            },
            [
                "continuous", "schedule.everyMinutes", "source.database", "source.gateway",
                "source.secret", "source.url", "tables",
            ],
        ),
        (ACROSS | {"source": {"database": "postgres", "secret": "warehouse"}},
         ["destination.secret"]),
        (
            ACROSS
            | {
                "source": {
                    "database": "postgres", "secret": "lake", "gateway": "g",
                    "plain": {
                        "other": {"table": "raw.other", "key": ["id"]}, "no name": 7,
                        "keyless": {"table": "nowhere", "key": [], "cursor": "at", "columns": [1]},
                    },
                },
            },
            [
                "source.gateway", "source.plain", "source.plain.keyless.columns",
                "source.plain.keyless.cursor",
                "source.plain.keyless.key", "source.plain.keyless.table", "source.plain.no name",
                "source.plain.no name", "tables",
            ],
        ),
        (ACROSS | {"source": {"database": "iceberg", "secret": "lake", "plain": []}},
         ["source.plain"]),
        (
            IN | {"source": {"connector": 1, "configuration": {"x": "y" * 9_000}, "type": "x"}},
            ["source.configuration", "source.connector", "source.type"],
        ),
    ],
)  # fmt: skip
def test_every_fault_of_a_flow_is_reported_at_once(body: dict[str, Any], paths: list[str]) -> None:
    with pytest.raises(FlowRefused) as refused:
        read_flow(body, CONFIG, "acme")

    assert sorted(fault.path for fault in refused.value.faults) == paths


@pytest.mark.law("Y4")
@pytest.mark.parametrize("body", [None, [], "x", 7, {}, {"source": {}, "destination": []}])
def test_malformed_flow_is_refused_with_the_number_of_faults(body: object) -> None:
    with pytest.raises(FlowRefused, match=r"^(1 fault|[2-9] faults) in the flow"):
        read_flow(body, CONFIG, "acme")
