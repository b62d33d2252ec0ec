"""lakesync.core.delta: what a delta may hold, and its id in the eyes of another language."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings

from lakesync.core.clock import STAMP_MAX
from lakesync.core.delta import (
    CLIENT_ID_BYTES_MAX,
    COLUMNS_MAX,
    DELTA_BYTES_MAX,
    ROW_ID_BYTES_MAX,
    Delta,
    Op,
    checked_delta,
    make_delta,
    sorted_ids,
)
from lakesync.errors import DeltaTooLarge, LakeSyncError, ValidationFailed
from tests.support.builders import delete, insert, update
from tests.support.doubles import loads
from tests.support.node import run_node
from tests.support.strategies import any_text, deltas

VECTORS = json.loads((Path(__file__).parents[1] / "golden" / "delta_ids.json").read_text("utf-8"))


def as_json(delta: Delta) -> dict[str, Any]:
    """Return what the id of a delta is made of."""
    return {
        "clientId": delta.client_id,
        "columns": [{"column": name, "value": loads(value)} for name, value in delta.columns],
        "hlc": str(delta.hlc),
        "rowId": delta.row_id,
        "table": delta.table,
    }


@pytest.mark.law("I4")
@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["name"])
def test_published_vectors_give_the_published_delta_ids(vector: dict[str, Any]) -> None:
    change = vector["change"]
    columns = {item["column"]: item["value"] for item in change["columns"]}
    op = Op.UPDATE if columns else Op.DELETE

    delta = make_delta(
        op,
        change["table"],
        change["rowId"],
        columns,
        client_id=change["clientId"],
        hlc=int(change["hlc"]),
    )

    assert delta.delta_id == vector["deltaId"]


@pytest.mark.law("I4")
def test_node_computes_the_published_delta_ids() -> None:
    ids = run_node("delta_ids.mjs", [vector["change"] for vector in VECTORS])

    assert ids == [vector["deltaId"] for vector in VECTORS]


@pytest.mark.law("I4")
def test_node_computes_the_same_ids_for_generated_deltas() -> None:
    drawn: list[Delta] = []

    @settings(max_examples=300)
    @given(deltas())
    def draw(delta: Delta) -> None:
        drawn.append(delta)

    draw()

    assert run_node("delta_ids.mjs", [as_json(delta) for delta in drawn]) == [
        delta.delta_id for delta in drawn
    ]


LONG = "n" * 64
ONE = b"1"


def change(**fields: Any) -> Delta:
    """Make a delta, valid but for the named fields."""
    valid: dict[str, Any] = {
        "op": Op.UPDATE,
        "table": "todos",
        "row_id": "r1",
        "client_id": "c1",
        "hlc": 1,
        "columns": (),
    }
    return checked_delta(**(valid | fields))


@pytest.mark.parametrize(
    "delta",
    [
        insert(),
        insert(table="_T9", _c=1),
        change(table=LONG, columns=((LONG, ONE),)),
        update("r" * ROW_ID_BYTES_MAX, client="c" * CLIENT_ID_BYTES_MAX),
        update("\u00e9" * (ROW_ID_BYTES_MAX // 2), client="\u00e9" * (CLIENT_ID_BYTES_MAX // 2)),
        update("a row/with \x00 anything", at=STAMP_MAX),
        update(big="x" * (DELTA_BYTES_MAX - 2)),
        change(columns=tuple((f"c{index}", ONE) for index in range(COLUMNS_MAX))),
        delete(),
    ],
    ids=range(9),
)
def test_delta_at_a_limit_is_accepted(delta: Delta) -> None:
    assert delta == checked_delta(*delta[:6])


@pytest.mark.parametrize(
    ("fields", "kind", "field"),
    [
        ({"table": ""}, ValidationFailed, "table"),
        ({"table": "9lives"}, ValidationFailed, "table"),
        ({"table": "a-b"}, ValidationFailed, "table"),
        ({"table": "t\u00e9"}, ValidationFailed, "table"),
        ({"table": "todos\n"}, ValidationFailed, "table"),
        ({"table": LONG + "n"}, ValidationFailed, "table"),
        ({"table": "\ud800"}, ValidationFailed, "table"),
        ({"row_id": ""}, ValidationFailed, "rowId"),
        ({"row_id": "r" * 513}, ValidationFailed, "rowId"),
        ({"row_id": "\u00e9" * 257}, ValidationFailed, "rowId"),
        ({"row_id": "\ud800"}, ValidationFailed, "rowId"),
        ({"client_id": ""}, ValidationFailed, "clientId"),
        ({"client_id": "c" * 129}, ValidationFailed, "clientId"),
        ({"client_id": "\udfff"}, ValidationFailed, "clientId"),
        ({"hlc": 0}, ValidationFailed, "hlc"),
        ({"hlc": -1}, ValidationFailed, "hlc"),
        ({"hlc": STAMP_MAX + 1}, ValidationFailed, "hlc"),
        ({"columns": (("a b", ONE),)}, ValidationFailed, "columns.column"),
        ({"columns": (("a", ONE), ("a", ONE))}, ValidationFailed, "columns"),
        ({"columns": (("a", ONE), ("A", ONE))}, ValidationFailed, "columns"),
        ({"op": Op.DELETE, "columns": (("a", ONE),)}, ValidationFailed, "columns"),
        ({"columns": (("a", b"1" * (DELTA_BYTES_MAX + 1)),)}, DeltaTooLarge, "columns"),
        (
            {"columns": tuple((f"c{index}", ONE) for index in range(COLUMNS_MAX + 1))},
            DeltaTooLarge,
            "columns",
        ),
    ],
)
def test_invalid_delta_is_refused_with_the_name_of_the_field(
    fields: dict[str, Any], kind: type[LakeSyncError], field: str
) -> None:
    with pytest.raises(kind) as refused:
        change(**fields)

    assert refused.value.field == field
    assert refused.value.message.encode()


def test_python_values_become_canonical_columns_in_their_order() -> None:
    delta = update(z=1.0, a={"k": [None]})

    assert delta.columns == (("z", b"1"), ("a", b'{"k":[null]}'))


def test_sorted_ids_orders_deltas_by_the_text_of_their_ids() -> None:
    pair = [insert(at=1), insert(at=2)]

    assert sorted_ids(pair) == sorted_ids(pair[::-1]) == sorted(delta.delta_id for delta in pair)


def test_invalid_name_is_refused_again_although_names_are_cached() -> None:
    for _ in range(2):
        with pytest.raises(ValidationFailed, match="is not a name"):
            change(table="no name")


@given(any_text)
def test_any_text_as_an_id_is_kept_or_refused(text: str) -> None:
    with contextlib.suppress(ValidationFailed):
        assert change(row_id=text, client_id=text).row_id == text
