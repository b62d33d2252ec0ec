"""Identity laws I1-I4: docs/spec/identity.md."""

from __future__ import annotations

import hashlib
import json
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st

from lakesync.core.delta import Delta, Op, canonical, delta_id_of, make_delta, parse, recanonical
from lakesync.errors import ValidationFailed
from tests.support.doubles import loads
from tests.support.strategies import deltas, ids, json_values, texts

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random


WRITERS = (
    json.dumps,
    partial(json.dumps, ensure_ascii=False, separators=(",", ":")),
    partial(json.dumps, indent="\t", sort_keys=True),
)


@pytest.mark.law("I1")
@given(json_values)
def test_canonical_bytes_are_those_of_an_independent_library(value: object) -> None:
    assert canonical(value) == rfc8785.dumps(value)  # type: ignore[arg-type]  # its own JSON type


@pytest.mark.law("I1")
@given(json_values)
def test_canonical_bytes_are_unchanged_by_canonicalisation(value: object) -> None:
    raw = canonical(value)

    assert recanonical(raw) == canonical(parse(raw)) == raw


@pytest.mark.law("I1")
@given(json_values, st.sampled_from(WRITERS))
def test_every_spelling_of_a_value_has_the_same_canonical_bytes(
    value: object, write: Callable[[object], str]
) -> None:
    written = write(value)

    assert recanonical(written.encode()) == canonical(value)


@pytest.mark.law("I1")
@given(st.dictionaries(texts, st.integers(0, 9)), st.randoms())
def test_order_of_keys_does_not_change_canonical_bytes(value: dict[str, int], rng: Random) -> None:
    items = list(value.items())
    rng.shuffle(items)

    assert canonical(dict(items)) == canonical(value)


@pytest.mark.law("I2")
@given(json_values)
def test_canonical_value_is_read_back_exactly(value: object) -> None:
    raw = canonical(value)

    assert loads(raw) == value
    assert json.dumps(parse(raw)) == json.dumps(json.loads(raw))


@pytest.mark.law("I2")
@given(st.integers(-(1 << 80), 1 << 80))
def test_an_integer_keeps_every_digit_or_is_refused(value: int) -> None:
    try:
        raw = canonical(value)
    except ValidationFailed:
        assert abs(value) > 2**53
    else:
        assert raw == str(value).encode()


@pytest.mark.law("I3")
@given(st.binary(max_size=12) | texts.map(str.encode))
def test_any_bytes_become_canonical_or_are_refused(raw: bytes) -> None:
    try:
        text = recanonical(raw)
    except ValidationFailed:
        return

    assert text == rfc8785.dumps(loads(bytes(raw)))


@pytest.mark.law("I3")
@given(json_values, st.data())
def test_canonical_text_with_one_byte_changed_becomes_canonical_or_is_refused(
    value: object, data: st.DataObject
) -> None:
    raw = bytearray(canonical(value))
    raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    try:
        text = recanonical(bytes(raw))
    except ValidationFailed:
        return

    assert text == rfc8785.dumps(loads(bytes(raw)))


@pytest.mark.law("I4")
@given(deltas())
def test_delta_id_is_the_hash_of_the_canonical_json_of_the_change(delta: Delta) -> None:
    change: dict[str, Any] = {
        "table": delta.table,
        "rowId": delta.row_id,
        "hlc": str(delta.hlc),
        "columns": [{"column": name, "value": loads(value)} for name, value in delta.columns],
        "clientId": delta.client_id,
    }

    assert delta.delta_id == hashlib.sha256(rfc8785.dumps(change)).hexdigest()


@pytest.mark.law("I4")
@given(st.dictionaries(st.sampled_from("abc"), json_values), ids)
def test_same_change_has_the_same_delta_id(columns: dict[str, object], row: str) -> None:
    made = [make_delta(Op.UPDATE, "t", row, columns, client_id="c", hlc=7) for _ in range(2)]
    spelt_otherwise = tuple(
        (name, recanonical(json.dumps(value, indent=2).encode())) for name, value in columns.items()
    )

    assert made[0] == made[1]
    assert made[0].delta_id == delta_id_of("c", spelt_otherwise, 7, row, "t")


@pytest.mark.law("I4")
@given(deltas(), deltas())
def test_different_changes_have_different_delta_ids(one: Delta, other: Delta) -> None:
    same_change = one._replace(op=other.op, delta_id="") == other._replace(delta_id="")

    assert (one.delta_id == other.delta_id) == same_change
