"""Declarations of sync rules: every fault at once, each with its path."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakesync.core.rules import (
    OMISSIONS_MAX,
    OMITTED_COLUMNS_MAX,
    OPERATORS,
    Bucket,
    Claim,
    ClaimFilter,
    Filter,
    Omission,
    SyncRules,
    rules_from_stored,
    rules_to_json,
)
from lakesync.core.schema import Column, TableSchema
from lakesync.core.visibility import Viewer
from lakesync.declare.sync_rules import read_rules
from lakesync.errors import RulesRefused
from tests.support.strategies import json_values

SCHEMAS = {
    "todos": TableSchema(
        "todos",
        tuple(
            Column(name, kind)
            for name, kind in {
                "owner": "string", "size": "integer", "price": "decimal(9,2)", "done": "boolean",
                "due": "timestamp", "tags": "json", "raw": "bytes",
            }.items()
        ),
    ),
    "lists": TableSchema("lists", (Column("owner", "string"),)),
}  # fmt: skip


def bucket(**changes: Any) -> dict[str, Any]:
    return {"name": "mine", "tables": ["todos"], "filters": []} | changes


def rule(column: str = "owner", op: str = "eq", value: object = "jwt:sub") -> dict[str, Any]:
    return {"column": column, "op": op, "value": value}


def strictly(body: object) -> SyncRules:
    rules, _ = read_rules(body, SCHEMAS, strict=True)
    return rules


def read(*buckets: object) -> SyncRules:
    return strictly({"version": 1, "buckets": list(buckets)})


def refused(body: object) -> dict[str, str]:
    with pytest.raises(RulesRefused) as caught:
        strictly(body)
    return {fault.path: fault.message for fault in caught.value.faults}


@pytest.mark.law("V3")
def test_rules_are_read_and_written_back() -> None:
    rules = read(
        bucket(filters=[rule(), rule("size", "gte", 3), rule("done", "in", [True])]),
        bucket(name="all", tables=[], write=[rule(value="jwt:org.id")]),
    )

    assert rules.buckets[0].filters == (
        Filter("owner", "eq", Claim(("sub",))),
        Filter("size", "gte", 3),
        Filter("done", "in", (True,)),
    )
    assert rules.buckets[1] == Bucket("all", write=(Filter("owner", "eq", Claim(("org", "id"))),))
    assert strictly(rules_to_json(rules)) == rules


@pytest.mark.law("V3")
def test_empty_list_of_buckets_is_valid() -> None:
    assert strictly({"version": 1, "buckets": []}) == SyncRules()


@pytest.mark.law("V3")
def test_all_faults_of_rules_are_reported_with_their_paths() -> None:
    body = {
        "version": 0,
        "buckets": [
            bucket(tables=["todos", "nobody"], filters=[rule("colour"), rule(op="like")]),
            bucket(tables=[], filters=[rule("colour"), rule("size", "gt", "large")]),
            {"name": "", "filters": "none", "more": 1},
        ],
    }

    assert refused(body).keys() == {
        "version",
        "buckets[0].tables[1]",
        "buckets[0].filters[0].column",
        "buckets[0].filters[1].op",
        "buckets[1].name",
        "buckets[1].filters[0].column",
        "buckets[1].filters[1]",
        "buckets[2].more",
        "buckets[2].tables",
        "buckets[2].name",
        "buckets[2].filters",
    }


@pytest.mark.law("V3")
@pytest.mark.parametrize(
    "wrong",
    [
        rule("tags", "eq", "a"),
        rule("done", "gt", True),
        rule("raw", "lt", "a"),
        rule("size", "eq", "many"),
        rule("size", "in", [1, "many"]),
        rule("price", "eq", True),
        rule("due", "gt", "tomorrow"),
        rule("done", "eq", "yes"),
        rule("size", "gt", [1, 2]),
        rule(value="jwt:"),
        rule(value="jwt:a..b"),
        rule(value=""),
        rule(value=None),
        rule(value=[]),
        rule(value={}),
        rule(value=float("inf")),
        rule(value=2**60 + 1),
        rule(value="half a pair \ud800"),
        rule(value=["\udfff"]),
        rule(value="jwt:a.\ud800"),
        rule("size", "in", list(range(201))),
    ],
)
def test_filter_on_an_incomparable_value_is_refused(wrong: dict[str, Any]) -> None:
    (path,) = refused({"version": 1, "buckets": [bucket(filters=[wrong])]})

    assert path.startswith("buckets[0].filters[0]")


@pytest.mark.law("V3")
def test_filter_of_all_tables_may_name_a_column_that_only_some_have() -> None:
    assert read(bucket(tables=[], filters=[rule("size", "gt", 1)])).buckets


@pytest.mark.law("V3")
def test_tables_without_a_schema_cause_only_warnings_unless_the_gateway_is_strict() -> None:
    body = {
        "buckets": [
            bucket(tables=["notes", "todos"], filters=[rule("owner")]),
            bucket(name="all", tables=[], filters=[rule("colour")]),
        ]
    }

    rules, warnings = read_rules(body, SCHEMAS, strict=False)

    assert rules.buckets[0].tables == {"notes", "todos"}
    assert [(each.path, each.message) for each in warnings] == [
        ("buckets[0].tables[0]", "the table notes has no schema: its columns are not checked"),
        ("buckets[1].filters[0].column", "no table with a schema has a column colour"),
    ]
    assert refused(body).keys() == {each.path for each in warnings}


@pytest.mark.law("V3", "S5")
def test_bucket_with_another_spelling_of_a_table_is_refused_with_the_first_spelling() -> None:
    for table, first in (("Todos", "todos"), ("NOTES", "Notes")):
        with pytest.raises(RulesRefused) as caught:
            read_rules({"buckets": [bucket(tables=[table])]}, SCHEMAS, ["Notes"], strict=False)
        (fault,) = caught.value.faults
        assert fault.message == f"the table {table} is spelled {first}"


@pytest.mark.law("V3")
def test_unknown_column_of_a_schema_is_refused_beside_tables_without_one() -> None:
    body = {"buckets": [bucket(tables=["notes", "todos"], filters=[rule("colour")])]}

    with pytest.raises(RulesRefused, match="table todos has no column colour"):
        read_rules(body, SCHEMAS, strict=False)


@pytest.mark.law("V3")
@given(json_values)
def test_malformed_rules_are_refused_with_faults(body: object) -> None:
    with pytest.raises(RulesRefused) as caught:
        strictly(body)

    assert caught.value.faults


shapes = st.fixed_dictionaries(
    {"column": st.sampled_from(["owner", "size", "no", "9", 3]),
     "op": st.sampled_from([*OPERATORS, "like", 7]),
     "value": json_values | st.sampled_from(["jwt:sub", "jwt:", 4, "x"])},
)  # fmt: skip


@pytest.mark.law("V3")
@given(st.lists(shapes, max_size=3), st.lists(st.sampled_from(["todos", "lists", "no", 5])))
def test_accepted_rules_round_trip_through_json(filters: list[Any], tables: list[Any]) -> None:
    body = {"version": 1, "buckets": [bucket(filters=filters, tables=tables, write=filters)]}
    try:
        rules = strictly(body)
    except RulesRefused:
        return
    assert strictly(rules_to_json(rules)) == rules


# --- omissions ------------------------------------------------------------------------------------

HR = {"claim": "role", "op": "eq", "value": "hr"}


def omission(**changes: Any) -> dict[str, Any]:
    return {"tables": ["todos"], "columns": ["size"]} | changes


@pytest.mark.law("V3", "V12")
def test_omissions_are_read_and_written_back() -> None:
    body = {
        "version": 1,
        "buckets": [],
        "omit": [
            omission(**{"except": [HR, {"claim": "org.level", "op": "gte", "value": 3}]}),
            omission(tables=[], columns=["owner", "price"]),
        ],
    }
    rules = strictly(body)

    assert rules.omit == (
        Omission(
            frozenset({"size"}),
            frozenset({"todos"}),
            (
                ClaimFilter(Claim(("role",)), "eq", "hr"),
                ClaimFilter(Claim(("org", "level")), "gte", 3),
            ),
        ),
        Omission(frozenset({"owner", "price"})),
    )
    assert rules_to_json(rules) == body
    assert rules_from_stored(rules_to_json(rules)) == rules
    assert rules.claims() == {Claim(("role",)), Claim(("org", "level"))}


@pytest.mark.law("V3", "V12")
def test_all_faults_of_omissions_are_reported_with_their_paths() -> None:
    keyed = {"keyed": TableSchema("keyed", (Column("id", "string"), Column("x", "string")),
                                  primary_key=("id",))}  # fmt: skip
    body = {
        "buckets": [],
        "omit": [
            omission(tables=["nobody"], columns=["colour", "no name", 3]),
            omission(columns=[]),
            omission(columns=["colour"], **{"except": [HR | {"op": "like"}, {"claim": ""}, 1]}),
            omission(tables=["keyed"], columns=["ID"]),
            omission(tables=[], columns=["id", "nowhere"]),
            {"columns": ["size"], "unless": []},
            omission(**{"except": [HR | {"value": None}, HR | {"op": "gt", "value": [1, 2]}]}),
        ],
    }
    with pytest.raises(RulesRefused) as caught:
        read_rules(body, SCHEMAS | keyed, strict=True)

    assert {fault.path for fault in caught.value.faults} == {
        "omit[0].tables[0]", "omit[0].columns[1]", "omit[0].columns[2]",
        "omit[1].columns",
        "omit[2].columns[0]", "omit[2].except[0].op", "omit[2].except[1].claim",
        "omit[2].except[1].op", "omit[2].except[1].value", "omit[2].except[2]",
        "omit[3].columns[0]",
        "omit[4].columns[0]", "omit[4].columns[1]",
        "omit[5].unless", "omit[5].tables",
        "omit[6].except[0].value", "omit[6].except[1].value",
    }  # fmt: skip


@pytest.mark.law("V3", "V12")
def test_omissions_for_tables_without_a_schema_cause_warnings() -> None:
    body = {"buckets": [], "omit": [omission(tables=["notes"]), omission(tables=[], columns=["z"])]}

    rules, warnings = read_rules(body, SCHEMAS, strict=False)

    assert len(rules.omit) == 2
    assert [each.path for each in warnings] == ["omit[0].tables[0]", "omit[1].columns[0]"]


@pytest.mark.law("V3", "V12")
def test_omissions_and_their_columns_are_bounded_in_number() -> None:
    assert "omit" in refused({"buckets": [], "omit": [omission()] * (OMISSIONS_MAX + 1)})
    many = omission(columns=["size"] * (OMITTED_COLUMNS_MAX + 1))
    assert "omit[0].columns" in refused({"buckets": [], "omit": [many]})


@pytest.mark.law("V12", "B14")
def test_exception_with_an_unknown_operator_excepts_no_client() -> None:
    stored = {"claim": "role", "op": "resembles", "value": "hr"}
    body = {"version": 1, "buckets": [], "omit": [omission(**{"except": [stored]})]}

    viewer = Viewer(rules_from_stored(body), {"role": "hr"})
    assert viewer.omitted("todos") == {"size"}
