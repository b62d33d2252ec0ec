"""How a column's value is held against a filter's operand.

Equal are equal numbers (``42`` and an operand ``"42"``), equal booleans, equal texts, and texts
that spell one instant. Text that merely looks like a number equals nothing but the same text: a
tenant ``"1e3"`` is not the tenant ``"1000"``. In order stand numbers, also those that travel as
text since a double would round them; instants (ISO 8601, in UTC where no offset is given); and any
other text by code point. What is of two kinds is different, and neither is less.

A null, a missing column, an object and an array match nothing, whatever the operator: what is not
known is not shown. Law V2: ``docs/spec/visibility.md``.
"""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from decimal import Decimal
from functools import lru_cache
from operator import ge, gt, le, lt
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from lakesync.core.values import NULL, canonical

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from lakesync.core.rules import Literal
    from lakesync.core.values import CanonicalJson

Condition: TypeAlias = "Callable[[CanonicalJson | None], bool]"
"""Tells whether a column's value passes; None is a missing column."""

RULE_VALUE_BYTES_MAX: Final = 256
"""A longer value matches nothing: what filters look at is kept beside each delta in the log."""
_ORDERS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "gt": gt, "lt": lt, "gte": ge, "lte": le,
}  # fmt: skip
_QUOTE: Final = ord('"')
_WORDS: Final = (b"true", b"false")
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_INSTANT = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}"
    r"(T[0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,9})?)?(Z|[+-][0-9]{2}:[0-9]{2})?)?"
)
_INSTANTS_REMEMBERED: Final = 4_096


def never(value: CanonicalJson | None) -> bool:
    """Let nothing pass."""
    del value
    return False


def condition(op: str, operands: Sequence[Literal]) -> Condition:
    """Give the test of a filter whose claims are resolved.

    Args:
        op: one of `lakesync.core.rules.OPERATORS`.
        operands: what the value is held against; none, if a claim is missing: nothing passes.
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
    known = frozenset(form for operand in operands for form in _forms(operand))
    instants = frozenset(
        found for operand in operands if (found := instant(_text(operand))) is not None
    )
    known = frozenset(form for form in known if len(form) <= RULE_VALUE_BYTES_MAX)
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
    text = _text(operand)
    number, moment = number_of(text), instant(text)

    def ordered(value: CanonicalJson | None) -> bool:
        if value is None or not is_scalar(value) or value in _WORDS:
            return False
        if value[0] != _QUOTE:
            return number is not None and order(float(value), number)
        held = text_of(value)
        if moment is not None and (at := instant(held)) is not None:
            return order(at, moment)
        if number is not None and number_of(held) is not None:
            return order(Decimal(held), Decimal(text))
        return order(held, text)

    return ordered


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
    number = number_of(text)
    if number is not None:
        forms.append(canonical(number))
    elif text.encode() in _WORDS:
        forms.append(text.encode())
    return forms


def _text(operand: Literal) -> str:
    return operand if isinstance(operand, str) else canonical(operand).decode()


def number_of(text: str) -> float | None:
    """Give the number that text spells out, if it does, in a double's range."""
    if _NUMBER.fullmatch(text) is None:
        return None
    number = float(text)
    return None if number in {float("inf"), float("-inf")} else number


def text_of(value: CanonicalJson) -> str:
    """Give the text of a text value."""
    if b"\\" in value:
        text: str = json.loads(value)
        return text
    return value[1:-1].decode()


@lru_cache(_INSTANTS_REMEMBERED)
def instant(text: str) -> datetime | None:
    """Give the instant that text spells out, if it does; without an offset it is in UTC."""
    if _INSTANT.fullmatch(text) is None:
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)
