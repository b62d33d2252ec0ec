"""How a column's value is compared with a filter's operand.

A scalar is a boolean, a number, an instant or another text. Text spells a number or an instant
where it looks like one in JSON, or in ISO 8601; numbers are compared digit by digit and instants to
the nanosecond, so nothing is rounded and nothing is too large.

- Equal are equal numbers (``42`` and an operand ``"42"``), equal booleans, equal texts, and texts
  that spell one instant. A text that spells a number equals no other text: the tenant ``"1e3"`` is
  not the tenant ``"1000"``.
- In order stand two numbers, two instants (in UTC where no offset is given), and two other texts,
  these by code point. What is of two kinds is different, and neither is less; booleans have no
  order.
- A null, a missing column, an object, an array and whatever is longer than `RULE_VALUE_BYTES_MAX`
  match nothing, whatever the operator: what is not known is not shown.

No value makes a comparison fail, and none costs more than its length. Law V2:
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
"""True if a column's value passes; None is a missing column."""
Number: TypeAlias = tuple[int, int, str]
"""A decimal number, to be compared: its sign, its power of ten, its digits."""

RULE_VALUE_BYTES_MAX: Final = 256
"""A longer value matches nothing: what filters look at is kept beside each delta in the log. Longer
text spells no number and no instant."""
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
"""Texts whose kind is remembered: the rows of one page mostly hold the same few."""


def never(value: CanonicalJson | None) -> bool:
    """Let nothing pass."""
    del value
    return False


def condition(op: str, operands: Sequence[Literal]) -> Condition:
    """Give the test of a filter whose claims are resolved.

    Args:
        op: one of `lakesync.core.rules.OPERATORS`.
        operands: what the value is compared with; none, if a claim is missing: nothing passes.
            Several are alternatives to ``eq`` and ``in``, all excluded by ``neq``, and nothing to
            an order.
    """
    if not operands:
        return never
    if op in _ORDERS:
        return _ordered(_ORDERS[op], operands[0]) if len(operands) == 1 else never
    equal = _equal(operands)
    return _differs(equal) if op == "neq" else equal


def _equal(operands: Sequence[Literal]) -> Condition:
    """Equality is equality of canonical bytes, but for two spellings of one instant."""
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
        # A number may be compared with text that spells one, and with no other text.
        return its_kind is kind and order(its_key, key)

    return ordered


def is_operand(value: object) -> bool:
    """Tell whether a column could hold a scalar; half a surrogate pair, or 2^53 + 1, it could not.

    Rules with such a literal are refused. A claim is what the token's issuer wrote: it matches
    nothing then, as if it were missing.
    """
    if not isinstance(value, str | int | float):
        return False
    try:
        canonical(value)
    except ValidationFailed:
        return False
    return True


def is_scalar(value: CanonicalJson | None) -> bool:
    """Tell whether a value is text, a number or a boolean, and not too long to be compared."""
    return (
        value is not None
        and value != NULL
        and value[:1] not in {b"[", b"{"}
        and len(value) <= RULE_VALUE_BYTES_MAX
    )


def _forms(operand: Literal) -> list[CanonicalJson]:
    """Give every canonical value that an operand equals: itself as text, as number, as boolean."""
    text = _text(operand)
    forms = [canonical(text)]
    if text.encode() in _WORDS:
        forms.append(text.encode())
    exact = number(text)
    if exact is not None:
        # A double that only comes near is another number: 2^53 is not the tenant 2^53 + 1.
        near = float(text)
        if near - near == 0 and number(canonical(near).decode()) == exact:
            forms.append(canonical(near))
    return forms


def _text(operand: Literal) -> str:
    return operand if isinstance(operand, str) else canonical(operand).decode()


def text_of(value: CanonicalJson) -> str:
    """Give the text of a text value, or how a number is written."""
    if value[0] != _QUOTE:
        return value.decode()
    if b"\\" in value:
        text: str = json.loads(value)
        return text
    return value[1:-1].decode()


@lru_cache(_TEXTS_REMEMBERED)
def _sort_key(text: str) -> tuple[object, Any]:
    """Give the kind of a text and what it is compared by with others of its kind."""
    exact = number(text)
    if exact is not None:
        return number, exact
    at = instant(text)
    return (str, text) if at is None else (instant, at)


def number(text: str) -> Number | None:
    """Give the number that text spells, if it does; equal numbers are equal, a lesser is less."""
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
    # Of two negative numbers the one with more behind the same digits is less.
    return (-1, -exponent, digits.translate(_COMPLEMENT) + ":")


@lru_cache(_TEXTS_REMEMBERED)
def instant(text: str) -> int | None:
    """Give the instant that text spells, if it does, in nanoseconds; in UTC without an offset."""
    match = _INSTANT.fullmatch(text)
    if match is None:
        return None
    year, month, day, hour, minute, second, fraction, sign, *offset = match.groups(default="0")
    try:
        days = date(int(year), int(month), int(day)).toordinal()
    except ValueError:  # there is no such day
        return None
    minutes = (days * 24 + int(hour)) * 60 + int(minute)
    ahead = int(offset[0]) * 60 + int(offset[1])
    minutes += ahead if sign == "-" else -ahead
    return (minutes * 60 + int(second)) * _NS + int(fraction.ljust(9, "0"))
