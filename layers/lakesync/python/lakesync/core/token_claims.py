"""A token's claims as sync rules and permissions use them: values that filters compare.

A missing, null or non-scalar claim matches nothing. Law V1: ``docs/spec/visibility.md``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from lakesync.core.comparing import RULE_VALUE_BYTES_MAX, condition, is_operand
from lakesync.core.rules import Claim
from lakesync.core.values import canonical

if TYPE_CHECKING:
    from lakesync.core.rules import ClaimFilter, Literal, Operand

_EXACT_BITS: Final = 53
_LARGEST_BITS: Final = 3 * RULE_VALUE_BYTES_MAX
"""Longer integers are longer than any value that is compared."""

Claims: TypeAlias = "Mapping[str, Any]"
"""The token's claims, ``sub`` and ``gw`` included."""


def resolved(operand: Operand, claims: Claims) -> tuple[Literal, ...]:
    """Return the values of a filter's operand; none if the claim is missing or null."""
    if not isinstance(operand, Claim):
        return operand if isinstance(operand, tuple) else (operand,)
    claimed: Any = claims
    for name in operand.path:
        claimed = claimed.get(name) if isinstance(claimed, Mapping) else None
    values = claimed if isinstance(claimed, list) else [claimed]
    return tuple(value for value in map(_exact, values) if is_operand(value))


def _exact(value: Any) -> Any:
    """Return an integer that no JSON number of a row can be as the text that rows have for it."""
    is_large = type(value) is int and value.bit_length() > _EXACT_BITS
    if not is_large:
        return value
    return str(value) if value.bit_length() <= _LARGEST_BITS else None


def passes(item: ClaimFilter, claims: Claims) -> bool:
    """Return whether a token passes a condition on a claim.

    For a list it is enough that one value passes; with ``neq`` all of them must pass.
    """
    values = resolved(item.claim, claims)
    test = condition(item.op, resolved(item.value, claims))
    every = all if item.op == "neq" else any
    return bool(values) and every(test(canonical(value)) for value in values)
