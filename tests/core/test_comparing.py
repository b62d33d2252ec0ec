"""lakesync.core.rules: what equals what, and what comes before what."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakesync.core.column_types import fits
from lakesync.core.delta import canonical
from lakesync.core.rules import (
    OPERATORS,
    ORDERED,
    RULE_VALUE_BYTES_MAX,
    condition,
    instant,
    is_operand,
    number,
)
from lakesync.errors import ValidationFailed
from tests.support.strategies import json_values

if TYPE_CHECKING:
    from decimal import Decimal


def passes(value: object, op: str, *operands: str | float) -> bool:
    return condition(op, operands)(canonical(value))


@pytest.mark.law("V2")
@pytest.mark.parametrize(
    ("value", "operand"),
    [
        ("a", "a"),
        ("", ""),
        ("a\nb", "a\nb"),
        ("ä", "ä"),
        (42, 42),
        (42, "42"),
        (42, 42.0),
        (1.5, "1.5"),
        (1000, "1e3"),
        (True, True),
        (False, "false"),
        ("42", 42),
        ("2024-05-01T12:00:00Z", "2024-05-01T14:00:00+02:00"),
        ("2024-05-01", "2024-05-01T00:00:00Z"),
        ("2024-05-01T12:00:00", "2024-05-01T12:00Z"),
        ("2024-05-01 12:00:00", "2024-05-01T12:00Z"),
        ("0001-01-01T00:00:00+23:59", "0001-01-01T00:00+23:59"),
        ("9999-12-31T23:59:59-23:59", "9999-12-31T23:59:59.000-23:59"),
        (1e21, "1000000000000000000000"),
        (0, "-0.000e99999999999999999999"),
    ],
)
def test_equal_operands_match_eq_and_in(value: object, operand: str | float) -> None:
    assert passes(value, "eq", operand)
    assert passes(value, "in", "something else", operand)
    assert not passes(value, "neq", operand)
    assert not passes(value, "neq", "something else", operand)


@pytest.mark.law("V2")
@pytest.mark.parametrize(
    ("value", "operand"),
    [
        ("a", "A"),
        ("1000", "1e3"),  # two tenants, not one number
        ("1.0", "1"),
        ("é", "e\u0301"),
        (1, True),
        (0, "false"),
        ("true", "TRUE"),
        ("2024-05-01T12:00:00Z", "2024-05-01T12:00:01Z"),
        ("2024-13-01", "2024-13-02"),
        (2**53, "9007199254740993"),  # what a double would make of it
        (0.1, "0.10000000000000000001"),
        (0, "1e-99999999999999999999"),
        ("2024-05-01T12:00:00.000000001Z", "2024-05-01T12:00:00.000000002Z"),
    ],
)
def test_different_operands_match_only_neq(value: object, operand: str | float) -> None:
    assert not passes(value, "eq", operand)
    assert not passes(value, "in", operand)
    assert passes(value, "neq", operand)


@pytest.mark.law("V2")
@pytest.mark.parametrize(
    ("less", "more"),
    [
        (9, 10),
        (9, "10"),
        (-1.5, 0),
        ("9007199254740993", "9007199254740994"),  # beyond a double
        ("9", "10"),
        ("a", "b"),
        ("Z", "a"),
        ("a", "aa"),
        ("\ue000", "\U00010000"),  # by code point, where UTF-16 has it the other way
        ("2024-05-01T14:00:00+02:00", "2024-05-01T12:00:01Z"),
        ("2024-05-01", "2024-05-01T00:00:01Z"),
        ("2024-05-01T12:00:00.000000001Z", "2024-05-01T12:00:00.000000002Z"),
        ("0001-01-01T00:00:00+23:59", "0001-01-01"),
        ("9999-12-31", "9999-12-31T23:59:59.999999999-23:59"),
        ("2024-05-01 12:00:00", "2024-05-01T12:00:01Z"),
        ("1e-99999999999999999999", 1),
        ("-1e99999999999999999999", "-1e99999999999999999998"),
        (0, "1e-99999999999999999999"),
        ("1e-99999999999999999999", "1e-99999999999999999998"),
        (0.1, "0.10000000000000000001"),
        (-0.12, -0.1),
        (-0.12, "-0.119"),
        ("-12", -1.5),
    ],
)
def test_ordered_operands_match_only_lt_and_lte_of_the_orderings(
    less: object, more: str | float
) -> None:
    assert [op for op in OPERATORS if op in ORDERED and passes(less, op, more)] == ["lt", "lte"]


@pytest.mark.law("V2")
@pytest.mark.parametrize(
    ("value", "operand"),
    [
        (1, "a"),
        (True, True),
        (True, 0),
        (1, True),
        ("a", 1),
        ("a", "1"),
        ("1", "a"),
        ("truf", True),
        ("2024-05-01", "may"),
        ("2024-05-01", "2024-05-01T24:00:00"),
        ("2024-05-01", "2024-05-01T23:59:60Z"),
        ("2024-05-01", "2024-05-01T12:00:00+99:99"),
        ("2024-05-01", "2024-05-01T12:00:00+24:00"),
        ("2024-05-01", "0000-01-01"),
        ("1", "1" * (RULE_VALUE_BYTES_MAX + 1)),
    ],
)
def test_operands_of_different_kinds_or_without_order_match_no_ordering(
    value: object, operand: object
) -> None:
    assert not any(passes(value, op, operand) for op in ORDERED)  # type: ignore[arg-type]


@pytest.mark.law("V2")
@pytest.mark.parametrize("op", OPERATORS)
@pytest.mark.parametrize("value", [None, [1], {"a": 1}, []])
def test_null_and_structures_match_no_operator(op: str, value: object) -> None:
    assert not any(passes(value, op, operand) for operand in ("", "null", "[1]", 0, "a"))
    assert not condition(op, ("a",))(None), "a missing column"


@pytest.mark.law("V2")
@pytest.mark.parametrize("op", OPERATORS)
@given(json_values)
def test_condition_without_operands_matches_nothing(op: str, value: object) -> None:
    assert not passes(value, op)


@pytest.mark.law("V2")
@given(json_values, st.text(max_size=4) | st.integers(-99, 99) | st.booleans())
def test_scalars_are_equal_or_different_and_ordered_in_at_most_one_way(
    value: object, operand: str | float
) -> None:
    scalar = isinstance(value, str | int | float)

    assert passes(value, "eq", operand) + passes(value, "neq", operand) == scalar
    assert passes(value, "gt", operand) + passes(value, "lte", operand) <= scalar
    assert passes(value, "lt", operand) + passes(value, "gte", operand) <= scalar
    assert not (passes(value, "lt", operand) and passes(value, "gt", operand))


@pytest.mark.law("V2")
@given(st.text(max_size=6), st.text(max_size=6))
def test_texts_that_are_no_numbers_or_instants_are_ordered_by_code_point(
    one: str, two: str
) -> None:
    if all(number(text) is None and instant(text) is None for text in (one, two)):
        assert passes(one, "lt", two) == (one < two)
        assert passes(one, "gte", two) == (one >= two)


# --- whatever comes


def _joined(*parts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.tuples(*parts).map("".join)


digits = st.text("0123456789", min_size=1, max_size=5) | st.sampled_from(
    ["0" * 300, "9" * 300, "1" + "0" * 200, "9" * 5_000, "99999999999999999999"]
)
spelled_numbers = _joined(
    st.sampled_from(["", "-", "+"]),
    digits,
    st.just("") | digits.map(".{}".format),
    st.just("") | _joined(st.sampled_from(["e", "E", "e-", "e+"]), digits),
)
spelled_instants = _joined(
    st.sampled_from(["0000", "0001", "1969", "2024", "9999", "10000"]),
    st.sampled_from(["-01-01", "-02-29", "-02-30", "-12-31", "-13-01", "-00-00"]),
    st.sampled_from(["", "T", " "]),
    st.sampled_from(
        ["", "00:00", "12:00:00", "23:59:59", "23:59:60", "24:00", "24:00:00", "25:61"]
    ),
    st.sampled_from(["", ".0", ".999999999", ".1234567891", ",5"]),
    st.sampled_from(["", "Z", "z", "+00:00", "-00:00", "+23:59", "-23:59", "+24:00", "-99:99"]),
)
words = st.sampled_from(
    ["", "true", "null", "NaN", "Infinity", "-", "\0", "\ufeff1", "\u0661", "1_0"]
)
texts = spelled_numbers | spelled_instants | words | st.text(max_size=8)
hostile = texts | json_values | st.floats() | st.integers()


def _is_value(value: object) -> bool:
    try:
        canonical(value)
    except ValidationFailed:
        return False
    return True


@pytest.mark.law("V2")
@given(hostile.filter(_is_value), hostile.filter(is_operand))
def test_operators_decide_any_pair_of_values_consistently(
    value: object, operand: str | float
) -> None:
    """And each pair is equal or different, and in order one way at most."""
    passed = {op: passes(value, op, operand) for op in OPERATORS}

    scalar = isinstance(value, str | int | float) and len(canonical(value)) <= RULE_VALUE_BYTES_MAX
    assert passed["eq"] + passed["neq"] == scalar
    assert passed["eq"] == passed["in"]
    assert passed["lt"] + passed["gt"] <= 1
    assert (passed["gte"], passed["lte"]) in {
        (passed["gt"], passed["lt"]),
        (not passed["lt"], not passed["gt"]),
    }
    if passed["lt"] or passed["gt"]:
        assert not passed["eq"]
        assert passed["gte"] != passed["lte"]
    ordered = passed["lte"] or passed["gte"]
    if passed["eq"] and not isinstance(value, bool) and not isinstance(operand, bool):
        assert ordered, "what is equal is of one kind"


@pytest.mark.law("V2")
@given(*[(texts | st.integers(-99, 99) | st.floats(allow_nan=False)).filter(is_operand)] * 3)
def test_lte_is_reflexive_and_transitive_for_any_values(
    one: str | float, two: str | float, three: str | float
) -> None:
    def at_most(left: str | float, right: str | float) -> bool:
        return passes(left, "lte", right)

    assert at_most(one, one) == (len(canonical(one)) <= RULE_VALUE_BYTES_MAX)
    if at_most(one, two) and at_most(two, three):
        assert at_most(one, three)
    if at_most(one, two) and all(len(canonical(each)) <= 256 for each in (one, two)):
        assert passes(two, "gte", one), "seen from the other side"


@pytest.mark.law("V2")
@given(st.decimals(allow_nan=False, allow_infinity=False), st.decimals(allow_nan=False))
def test_numbers_are_ordered_as_by_exact_arithmetic(one: Decimal, two: Decimal) -> None:
    left, right = str(one).replace("E", "e"), str(two).replace("E", "e")
    if number(left) is not None and number(right) is not None:
        assert passes(left, "lt", right) == (one < two)
        assert passes(left, "gte", right) == (one >= two)


@pytest.mark.law("V2")
@given(spelled_instants, spelled_instants)
def test_instants_are_ordered_as_by_python_datetimes(one: str, two: str) -> None:
    first, second = instant(one), instant(two)
    if first is not None and second is not None and "9" not in one[10:] + two[10:]:
        assert (first < second) == (_datetime(one) < _datetime(two))


def _datetime(text: str) -> datetime:
    instant = datetime.fromisoformat(text)
    return instant if instant.tzinfo else instant.replace(tzinfo=UTC)


@given(spelled_instants)
def test_every_timestamp_or_date_is_an_instant(text: str) -> None:
    if fits("timestamp", canonical(text)) or fits("date", canonical(text)):
        assert instant(text) is not None


@pytest.mark.law("V2")
@pytest.mark.parametrize("op", OPERATORS)
def test_too_long_value_equals_nothing_and_is_not_read_as_a_number(op: str) -> None:
    long = "9" * 1_000_000

    assert number(long) is None
    assert not passes(long, op, long)
    assert passes("9", op, long) == (op == "neq")
