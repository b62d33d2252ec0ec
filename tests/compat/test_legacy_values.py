"""lakesync.compat.follower_deltas: what existing clients push means what it meant on the device."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakesync.buffer.memory_buffer import MemoryBuffer
from lakesync.compat.follower_deltas import with_intended_values
from lakesync.core.config import GatewayConfig
from lakesync.core.delta import canonical, parse
from lakesync.core.messages import Push
from lakesync.declare.schemas import read_schema
from tests.compat.requests import now, row
from tests.support.builders import at_ms, insert

if TYPE_CHECKING:
    from tests.compat.requests import Asker

TYPES = ["string", "number", "boolean", "json", "integer", "decimal(5,2)", "timestamp"]
SCHEMA = {"table": "todos", "columns": [{"name": f"c{n}", "type": t} for n, t in enumerate(TYPES)]}
CONFIG = GatewayConfig(schemas={"todos": read_schema(SCHEMA)})
NESTED = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False,
    allow_infinity=False) | st.text(st.characters(codec="utf-8")),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab"), inner, max_size=3),
    max_leaves=5,
)  # fmt: skip


def meant(type_name: str | None, value: object) -> Any:
    name = f"c{TYPES.index(type_name)}" if type_name else "c0"
    table = "todos" if type_name else "others"
    pushed = insert("r1", at=at_ms(1), client="a", table=table, **{name: value})
    read = with_intended_values(MemoryBuffer(), "g1", CONFIG, Push("a", ((0, pushed),)))
    ((_, delta),) = read.deltas
    ((_, kept),) = delta.columns
    return parse(kept)


@pytest.mark.law("F7")
@pytest.mark.parametrize(
    ("type_name", "value", "kept"),
    [
        ("boolean", 0, False), ("boolean", 1, True), ("boolean", 2, 2), ("boolean", "yes", "yes"),
        ("number", "12", 12), ("number", "-1.5", -1.5), ("number", "012", "012"),
        ("number", "1.0", "1.0"), ("number", "true", "true"), ("number", "", ""),
        ("number", "12345678901234567890", "12345678901234567890"), ("number", '"', '"'),
        ("json", '{"b": 1, "a": [2]}', {"a": [2], "b": 1}), ("json", "{no", "{no"),
        ("json", '{"a":1,"a":2}', '{"a":1,"a":2}'), ("json", "[" * 10_000, "[" * 10_000),
        ("json", '{"n":12345678901234567890}', '{"n":12345678901234567890}'),
        ("json", "text", "text"), ("json", "12", "12"),
        ("string", '{"a":1}', '{"a":1}'), ("string", 12, 12), (None, "[1, 2]", "[1, 2]"),
        ("integer", "12", "12"), ("timestamp", 5, 5),
    ],
)  # fmt: skip
def test_legacy_value_is_converted_to_its_type_or_kept(
    type_name: str | None, value: object, kept: Any
) -> None:
    taken = meant(type_name, value)

    assert (taken, type(taken)) == (kept, type(kept))


@pytest.mark.law("F7")
def test_converted_value_may_exceed_the_delta_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was checked as it came in: `0` for `false` makes it no larger than it may be."""
    monkeypatch.setattr("lakesync.core.delta.DELTA_BYTES_MAX", 1)

    assert meant("boolean", 0) is False


@pytest.mark.law("F7")
@given(st.sampled_from([*TYPES, None]), NESTED | st.text(st.characters(codec="utf-8")))
def test_conversion_of_legacy_values_loses_nothing(type_name: str | None, value: object) -> None:
    """What SQLite makes of both is the same, and JSON text stays the same JSON."""
    taken = meant(type_name, value)
    if isinstance(taken, dict | list) and isinstance(value, str):
        assert canonical(json.loads(value)) == canonical(taken)
    elif isinstance(taken, bool):
        assert taken == value
    elif isinstance(value, str) and not isinstance(taken, str):
        assert canonical(taken).decode() == value
    else:
        assert canonical(taken) == canonical(value)


@pytest.fixture
def typed(gateway: Asker) -> Asker:
    assert gateway.administer("schema", SCHEMA).status_code == 200
    return gateway


def columns(**values: object) -> list[dict[str, object]]:
    return [{"column": name, "value": value} for name, value in values.items()]


@pytest.mark.law("F7")
def test_value_of_an_existing_client_that_does_not_fit_is_accepted(typed: Asker) -> None:
    odd = {"c0": 12, "c1": "a dozen", "c2": 0, "c5": "much", "c6": "yesterday"}
    assert typed.push(row(columns=columns(**odd))).json()["accepted"] == 1
    (delta,) = typed.pull(client="client-2").json()["deltas"]

    assert delta["columns"] == columns(**odd | {"c2": False})


@pytest.mark.law("F7")
def test_value_of_a_new_client_must_fit_its_type(typed: Asker) -> None:
    answer = typed.push(row(columns=columns(c1="a dozen")), ownCursor=True).json()

    assert [item["code"] for item in answer["results"]] == ["SCHEMA_ERROR"]


@pytest.mark.law("F7")
def test_strict_gateway_refuses_values_that_do_not_fit(typed: Asker) -> None:
    assert typed.administer("schema", {"strict": True}).status_code == 200
    refused = typed.push(row(columns=columns(c1="a dozen")))
    taken = typed.push(row(columns=columns(c1="12", c2=1)))

    assert (refused.status_code, refused.json()["field"]) == (400, "deltas[0].c1")
    assert taken.status_code == 200


@pytest.mark.law("F7")
def test_object_that_a_client_returns_as_text_stays_an_object(gateway: Asker) -> None:
    value = {"b": [1, None], "a": "é"}
    gateway.push(row(columns=columns(title=value)), ownCursor=True)
    (sent,) = gateway.pull(client="client-2").json()["deltas"]
    text = sent["columns"][0]["value"]
    assert json.loads(text) == value
    echoed = row("row-1", "UPDATE", clientId="client-2", hlc=now(), columns=columns(title=text))
    assert gateway.push(echoed, clientId="client-2").status_code == 200

    page = gateway.pull(client="client-3", ownCursor="true").json()
    assert [delta["columns"] for delta in page["deltas"]] == [columns(title=value)] * 2
