"""lakesync.core.comparing: what equals what, and what comes before what."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakesync.core.comparing import condition, instant, number_of
from lakesync.core.rules import OPERATORS, ORDERED
from lakesync.core.values import canonical
from tests.support.strategies import json_values


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
    ],
)
def test_these_are_equal(value: object, operand: str | float) -> None:
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
    ],
)
def test_these_are_different(value: object, operand: str | float) -> None:
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
    ],
)
def test_these_stand_in_order(less: object, more: str | float) -> None:
    assert [op for op in OPERATORS if op in ORDERED and passes(less, op, more)] == ["lt", "lte"]


@pytest.mark.law("V2")
@pytest.mark.parametrize(("value", "operand"), [(1, "a"), (True, True), (True, 0), (1, True)])
def test_what_is_of_two_kinds_or_has_no_order_is_never_less(value: object, operand: object) -> None:
    assert not any(passes(value, op, operand) for op in ORDERED)  # type: ignore[arg-type]


@pytest.mark.law("V2")
@pytest.mark.parametrize("op", OPERATORS)
@pytest.mark.parametrize("value", [None, [1], {"a": 1}, []])
def test_null_and_structures_match_nothing(op: str, value: object) -> None:
    assert not any(passes(value, op, operand) for operand in ("", "null", "[1]", 0, "a"))
    assert not condition(op, ("a",))(None), "a missing column"


@pytest.mark.law("V2")
@pytest.mark.parametrize("op", OPERATORS)
@given(json_values)
def test_no_operand_lets_nothing_pass(op: str, value: object) -> None:
    assert not passes(value, op)


@pytest.mark.law("V2")
@given(json_values, st.text(max_size=4) | st.integers(-99, 99) | st.booleans())
def test_a_scalar_is_equal_or_different_and_in_order_one_way_at_most(
    value: object, operand: str | float
) -> None:
    scalar = isinstance(value, str | int | float)

    assert passes(value, "eq", operand) + passes(value, "neq", operand) == scalar
    assert passes(value, "gt", operand) + passes(value, "lte", operand) <= scalar
    assert passes(value, "lt", operand) + passes(value, "gte", operand) <= scalar
    assert not (passes(value, "lt", operand) and passes(value, "gt", operand))


@pytest.mark.law("V2")
@given(st.text(max_size=6), st.text(max_size=6))
def test_other_text_stands_by_code_point(one: str, two: str) -> None:
    if all(number_of(text) is None and instant(text) is None for text in (one, two)):
        assert passes(one, "lt", two) == (one < two)
        assert passes(one, "gte", two) == (one >= two)
