"""Declarations of destinations: every fault at once; what is stored is read again."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import pytest

from lakesync.core.config import GatewayConfig
from lakesync.core.destinations import (
    NO_DESTINATIONS,
    Archive,
    destination_to_json,
    destinations_from_json,
    destinations_to_json,
)
from lakesync.declare.destinations import read_destination
from lakesync.declare.flows import read_flow
from lakesync.declare.schemas import read_schema
from lakesync.errors import DestinationRefused, FlowRefused, UpgradeRequired

SCHEMA = read_schema({"table": "flights", "columns": [{"name": "carrier", "type": "string"}]})
CONFIG = GatewayConfig(
    schemas=MappingProxyType({"flights": SCHEMA}),
    tables=MappingProxyType({"notes": frozenset({"n"})}),
)
GOOD: dict[str, Any] = {
    "kind": "postgres",
    "secret": "warehouse",
    "tables": ["flights", "notes"],
    "buckets": [
        {
            "name": "ours",
            "tables": ["flights"],
            "filters": [{"column": "carrier", "op": "in", "value": ["UA", "AA"]}],
        }
    ],
    "tableNames": {"flights": "ops.flights"},
    "deletes": "soft",
}


def test_destination_declaration_selects_filters_and_renames_tables() -> None:
    one = read_destination("warehouse", GOOD, CONFIG)
    named = one.schema_of("flights", SCHEMA)

    assert one.wants("flights")
    assert not one.wants("notes"), "no bucket speaks of it"
    assert not one.wants("other")
    assert one.is_filtered("flights")
    assert named is not None
    assert (named.source_table, named.soft_delete) == ("ops.flights", True)


@pytest.mark.law("D12")
def test_every_fault_of_a_destination_is_reported_with_its_path() -> None:
    faulty = {
        "kind": "oracle",
        "secret": "a/b",
        "tables": ["flights", "Flights", "no table", "flights"],
        "buckets": [
            {
                "name": "b",
                "tables": ["flights"],
                "filters": [{"column": "carrier", "op": "eq", "value": "jwt:sub"}],
                "write": [],
            }
        ],
        "tableNames": {"notes": "x", "flights": ""},
        "deletes": "never",
        "password": "hunter2",
    }
    with pytest.raises(DestinationRefused) as refused:
        read_destination("Lake!", faulty, CONFIG)

    assert sorted({fault.path for fault in refused.value.faults}) == [
        "buckets[0].filters[0].value", "buckets[0].write", "deletes", "kind", "name", "password",
        "secret", "tableNames.flights", "tableNames.notes", "tables[1]", "tables[2]", "tables[3]",
    ]  # fmt: skip
    assert "hunter2" not in str(refused.value)


@pytest.mark.law("D12")
@pytest.mark.parametrize("body", [None, [], "x", 7, {}, {"buckets": {}, "tables": 1}])
def test_malformed_destination_is_refused(body: object) -> None:
    with pytest.raises(DestinationRefused):
        read_destination("warehouse", body, CONFIG)


def test_stored_destinations_keep_fields_of_a_later_release() -> None:
    one = read_destination("warehouse", GOOD, CONFIG)
    document = NO_DESTINATIONS.with_one(one).with_one(one)
    stored = destinations_to_json(document) | {"later": 1}
    stored["destinations"][0]["newer"] = [2]
    again = destinations_to_json(destinations_from_json(stored))

    assert destinations_from_json(stored) == document
    assert again["later"] == 1
    assert again["destinations"][0]["newer"] == [2]
    assert destination_to_json(one)["buckets"][0]["filters"][0]["value"] == ["UA", "AA"]
    with pytest.raises(UpgradeRequired):
        destinations_from_json(stored | {"format": 99})


def test_archive_is_declared_stored_and_read_back() -> None:
    body = {"kind": "postgres", "secret": "warehouse"}
    archived = body | {"archive": {"secret": "cold", "afterDays": 30}}
    one = read_destination("warehouse", archived, CONFIG)
    assert one.archive == Archive("cold", 30)
    assert one.secrets == {"warehouse", "cold"}
    assert not one.declares_as(read_destination("warehouse", body, CONFIG))
    stored = destinations_to_json(NO_DESTINATIONS.with_one(one))
    assert stored["destinations"][0]["archive"] == archived["archive"]
    assert destinations_from_json(stored).by_name["warehouse"] == one
    assert "archive" not in destination_to_json(read_destination("warehouse", body, CONFIG))
    cold = {"secret": "cold", "afterDays": 30, "kind": "postgres"}
    other = read_destination("warehouse", body | {"archive": cold}, CONFIG)
    assert other.archive == Archive("cold", 30, "postgres")
    assert destination_to_json(other)["archive"] == cold
    again = destinations_to_json(NO_DESTINATIONS.with_one(other))
    assert destinations_from_json(again).by_name["warehouse"] == other


@pytest.mark.law("D12")
@pytest.mark.parametrize(
    ("archive", "paths"),
    [
        (None, ["archive"]),
        ([], ["archive"]),
        ({}, ["archive.afterDays", "archive.secret"]),
        ({"secret": "w", "afterDays": 1}, ["archive.secret"]),
        ({"secret": "a/b", "afterDays": 0, "url": "s3://b"},
         ["archive.afterDays", "archive.secret", "archive.url"]),
        ({"secret": "cold", "afterDays": True}, ["archive.afterDays"]),
        ({"secret": "cold", "afterDays": 31}, ["archive.afterDays"]),
        ({"secret": "cold", "afterDays": 3, "kind": "mysql"}, ["archive.kind"]),
    ],
)  # fmt: skip
def test_all_faults_of_an_archive_are_reported_at_once(archive: object, paths: list[str]) -> None:
    body = {"kind": "postgres", "secret": "w", "archive": archive}
    with pytest.raises(DestinationRefused) as refused:
        read_destination("warehouse", body, CONFIG)
    assert sorted({fault.path for fault in refused.value.faults}) == paths


def test_bigquery_destination_is_archived_only_in_a_bucket() -> None:
    archive = {"secret": "cold", "afterDays": 7, "kind": "postgres"}
    with pytest.raises(DestinationRefused) as refused:
        read_destination("w", {"kind": "bigquery", "secret": "w", "archive": archive}, CONFIG)
    assert [fault.path for fault in refused.value.faults] == ["archive.kind"]


def test_s3_destinations_and_flows_cannot_have_an_archive() -> None:
    archive = {"secret": "cold", "afterDays": 7}
    with pytest.raises(DestinationRefused) as refused:
        read_destination("w", {"kind": "s3", "secret": "w", "archive": archive}, CONFIG)
    assert [fault.path for fault in refused.value.faults] == ["archive"]
    flow = {
        "name": "f",
        "source": "gateway",
        "destination": {"database": "postgres", "secret": "w"},
    }
    with pytest.raises(FlowRefused) as unknown:
        read_flow(flow | {"archive": archive}, CONFIG, "acme")
    assert [fault.path for fault in unknown.value.faults] == ["archive"]


@pytest.mark.law("Y4")
def test_every_fault_of_a_column_map_is_reported_with_its_path() -> None:
    schema = read_schema(
        {
            "table": "t",
            "columns": [{"name": name, "type": "string"} for name in ("id", "a", "b")],
            "primaryKey": ["id"],
        }
    )
    config = GatewayConfig(schemas=MappingProxyType({"t": schema}))
    body = {
        "kind": "postgres", "secret": "w", "tables": ["t", "u", "v"],
        "map": {
            "t": {
                "rename": {"a": "b", "gone": "x"},
                "drop": ["id", "a", "a"],
                "hash": "a",
                "constant": {"x": 1, "1x": 2},
                "more": 1,
            },
            "u": [],
            "v": {"constant": {"c": "x" * 2_000}, "rename": {"a": "no name"}},
            "other": {},
            "no table": {},
        },
    }  # fmt: skip
    with pytest.raises(DestinationRefused) as refused:
        read_destination("w", body, config)

    assert sorted({fault.path for fault in refused.value.faults}) == [
        "map.no table", "map.other", "map.t", "map.t.constant", "map.t.constant.1x",
        "map.t.drop[2]", "map.t.hash", "map.t.more", "map.t.rename", "map.u", "map.v.constant.c",
        "map.v.rename.a",
    ]  # fmt: skip
