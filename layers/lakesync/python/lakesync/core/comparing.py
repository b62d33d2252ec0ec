"""How a column's value is compared with a filter's operand.

A scalar is a boolean, a number, an instant or another text. A text that has the form of a JSON
number, or of an instant in ISO 8601, counts as a number or an instant. Numbers are compared digit
by digit and instants to the nanosecond, so nothing is rounded and nothing is too large.

- Equality holds between equal numbers (``42`` and an operand ``"42"``), equal booleans, equal
  texts, and texts that name the same instant. A text that names a number equals no other text: the
  tenant ``"1e3"`` is not the tenant ``"1000"``.
- An order exists between two numbers, between two instants (in UTC where no offset is given), and
  between two other texts (by code point). Values of different kinds are unequal, and neither is
  less; booleans have no order.
- A null, a missing column, an object, an array and any value longer than `RULE_VALUE_BYTES_MAX`
  match nothing, whatever the operator: an unknown value is never shown.

No value makes a comparison fail, and the cost is bounded by the value's length. Law V2:
``docs/spec/visibility.md``.
"""

from __future__ import annotations

import json
import re
from datetime import date
from functools import lru_cache
from operator import ge, gt, le, lt
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from lakesync.core.values import NULL, canonical
from lakesync.errors import ValidationFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from lakesync.core.rules import Literal
    from lakesync.core.values import CanonicalJson

Condition: TypeAlias = "Callable[[CanonicalJson | None], bool]"
"""True if a column's value passes; None stands for a missing column."""
Number: TypeAlias = tuple[int, int, str]
"""A decimal number in comparable form: its sign, its power of ten, its digits."""

RULE_VALUE_BYTES_MAX: Final = 256
"""A longer value matches nothing: the columns that filters read are kept beside each delta in the
log. A longer text is never a number or an instant."""
_ORDERS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "gt": gt, "lt": lt, "gte": ge, "lte": le,
}  # fmt: skip
_QUOTE: Final = ord('"')
_WORDS: Final = (b"true", b"false")
_NUMBER = re.compile(r"(-?)(0|[1-9][0-9]*)(?:\.([0-9]+))?(?:[eE]([+-]?[0-9]+))?")
_COMPLEMENT: Final = str.maketrans("0123456789", "9876543210")
_INSTANT = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})"
    r"(?:[T ]([01][0-9]|2[0-3]):([0-5][0-9])(?::([0-5][0-9])(?:\.([0-9]{1,9}))?)?"
    r"(?:Z|([+-])([01][0-9]|2[0-3]):([0-5][0-9]))?)?"
)
_NS: Final = 1_000_000_000
_TEXTS_REMEMBERED: Final = 4_096
"""Texts whose kind is cached: the rows of one page mostly contain the same few."""


def never(value: CanonicalJson | None) -> bool:
    """Match nothing."""
    del value
    return False


def condition(op: str, operands: Sequence[Literal]) -> Condition:
    """Return the test of a filter whose claims are resolved.

    Args:
        op: one of `lakesync.core.rules.OPERATORS`.
        operands: what the value is compared with. If a claim is missing there are none, and nothing
            passes. Several operands are alternatives for ``eq`` and ``in``, are all excluded by
            ``neq``, and match nothing for an order.
    """
    if not operands:
        return never
    if op in _ORDERS:
        return _ordered(_ORDERS[op], operands[0]) if len(operands) == 1 else never
    equal = _equal(operands)
    return _differs(equal) if op == "neq" else equal


def _equal(operands: Sequence[Literal]) -> Condition:
    """Compare canonical bytes; only two texts of one instant are also equal."""
    forms = {form for operand in operands for form in _forms(operand)}
    known = frozenset(form for form in forms if len(form) <= RULE_VALUE_BYTES_MAX)
    instants = frozenset(at for operand in operands if (at := instant(_text(operand))) is not None)
    if not instants:
        return known.__contains__

    def equal(value: CanonicalJson | None) -> bool:
        if value in known:
            return True
        return value is not None and value[0] == _QUOTE and instant(text_of(value)) in instants

    return equal


def _differs(equal: Condition) -> Condition:
    def differs(value: CanonicalJson | None) -> bool:
        return is_scalar(value) and not equal(value)

    return differs


def _ordered(order: Callable[[Any, Any], bool], operand: Literal) -> Condition:
    if isinstance(operand, bool):
        return never
    kind, key = _sort_key(_text(operand))

    def ordered(value: CanonicalJson | None) -> bool:
        if value is None or not is_scalar(value) or value in _WORDS:
            return False
        its_kind, its_key = _sort_key(text_of(value))
        # A number is ordered against a text only if that text is a number.
        return its_kind is kind and order(its_key, key)

    return ordered


def is_operand(value: object) -> bool:
    """Return whether a column could hold a scalar; half a surrogate pair or 2^53 + 1 it could not.

    Rules with such a literal are refused. A claim with such a value comes from the token's issuer,
    so it matches nothing, as if it were missing; only a large integer is taken for its text.
    """
    if not isinstance(value, str | int | float):
        return False
    try:
        canonical(value)
    except ValidationFailed:
        return False
    return True


def is_scalar(value: CanonicalJson | None) -> bool:
    """Return whether a value is text, a number or a boolean, and not too long to be compared."""
    return (
        value is not None
        and value != NULL
        and value[:1] not in {b"[", b"{"}
        and len(value) <= RULE_VALUE_BYTES_MAX
    )


def _forms(operand: Literal) -> list[CanonicalJson]:
    """Return every canonical value that equals an operand: as text, as number, as boolean."""
    text = _text(operand)
    forms = [canonical(text)]
    if text.encode() in _WORDS:
        forms.append(text.encode())
    exact = number(text)
    if exact is not None:
        # A double that is only close is another number: 2^53 is not the tenant 2^53 + 1.
        near = float(text)
        if near - near == 0 and number(canonical(near).decode()) == exact:
            forms.append(canonical(near))
    return forms


def _text(operand: Literal) -> str:
    return operand if isinstance(operand, str) else canonical(operand).decode()


def text_of(value: CanonicalJson) -> str:
    """Return the text of a text value, or the written form of a number."""
    if value[0] != _QUOTE:
        return value.decode()
    if b"\\" in value:
        text: str = json.loads(value)
        return text
    return value[1:-1].decode()


@lru_cache(_TEXTS_REMEMBERED)
def _sort_key(text: str) -> tuple[object, Any]:
    """Return the kind of a text and its sort key among others of its kind."""
    exact = number(text)
    if exact is not None:
        return number, exact
    at = instant(text)
    return (str, text) if at is None else (instant, at)


def number(text: str) -> Number | None:
    """Return a text's number in comparable form: equal numbers are equal, a lesser one is less."""
    match = _NUMBER.fullmatch(text) if len(text) <= RULE_VALUE_BYTES_MAX else None
    if match is None:
        return None
    minus, whole, fraction, power = match.groups(default="")
    digits = (whole + fraction).lstrip("0")
    if not digits.strip("0"):
        return (0, 0, "")
    # The number is 0.DIGITS times ten to this power.
    exponent = int(power or 0) + len(whole) - (len(whole + fraction) - len(digits))
    digits = digits.rstrip("0")
    if not minus:
        return (1, exponent, digits)
    # Of two negative numbers with the same leading digits, the one with more digits is less.
    return (-1, -exponent, digits.translate(_COMPLEMENT) + ":")


@lru_cache(_TEXTS_REMEMBERED)
def instant(text: str) -> int | None:
    """Return the instant of a text, if it is one, in nanoseconds; in UTC without an offset."""
    match = _INSTANT.fullmatch(text)
    if match is None:
        return None
    year, month, day, hour, minute, second, fraction, sign, *offset = match.groups(default="0")
    try:
        days = date(int(year), int(month), int(day)).toordinal()
    except ValueError:  # no such day exists
        return None
    minutes = (days * 24 + int(hour)) * 60 + int(minute)
    ahead = int(offset[0]) * 60 + int(offset[1])
    minutes += ahead if sign == "-" else -ahead
    return (minutes * 60 + int(second)) * _NS + int(fraction.ljust(9, "0"))
