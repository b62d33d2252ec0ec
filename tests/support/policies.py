"""Decides as IAM does whether statements allow something; what it does not know it refuses.

AWS: IAM User Guide, "Policy evaluation logic" and "IAM JSON policy elements: Condition operators".
"""

from __future__ import annotations

import fnmatch
import functools
import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

KEYS: Final = frozenset({
    *("dynamodb:Attributes", "dynamodb:LeadingKeys", "dynamodb:ReturnValues", "dynamodb:Select"),
    *("iam:PassedToService", "s3:prefix"),
})  # fmt: skip
"""The condition keys that the record of calls has wherever AWS has them."""

_ELEMENTS: Final = frozenset({"Sid", "Effect", "Action", "Resource", "Condition"})


class PolicyNotUnderstoodError(Exception):
    """A statement has something that is not evaluated here, so that no answer would be right."""


class Statement(NamedTuple):
    """One statement of a policy, all of its texts worked out."""

    effect: str
    actions: tuple[str, ...]
    resources: tuple[str, ...]
    condition: Mapping[str, Mapping[str, tuple[str, ...]]]

    @classmethod
    def of(cls, written: Mapping[str, Any]) -> Statement:
        """Read a statement as it is written in a policy.

        Raises:
            PolicyNotUnderstoodError: it has an element, operator or key that is not evaluated.
        """
        unknown = written.keys() - _ELEMENTS
        if unknown:
            raise PolicyNotUnderstoodError(f"{sorted(unknown)} of {written}")
        condition = {
            operator: {key: _texts(values) for key, values in keys.items()}
            for operator, keys in written.get("Condition", {}).items()
        }
        for operator, keys in condition.items():
            _operator(operator)
            if keys.keys() - KEYS:
                raise PolicyNotUnderstoodError(f"condition keys {sorted(keys)}")
        resources = _texts(written["Resource"])
        if any("${" in resource for resource in resources):
            raise PolicyNotUnderstoodError(f"variables of a policy: {resources}")
        return cls(written["Effect"], _texts(written["Action"]), resources, condition)

    def applies(self, action: str, resource: str, context: Mapping[str, Collection[str]]) -> bool:
        return (
            any(matches(action.lower(), one.lower()) for one in self.actions)
            and any(matches(resource, one) for one in self.resources)
            and all(
                _meets(operator, context.get(key), values)
                for operator, keys in self.condition.items()
                for key, values in keys.items()
            )
        )


def allowed(statements: Iterable[Statement], action: str, resource: str,
            context: Mapping[str, Collection[str]]) -> bool:  # fmt: skip
    """Whether one statement allows it and none denies it."""
    effects = {one.effect for one in statements if one.applies(action, resource, context)}
    return effects == {"Allow"}


@functools.cache
def _pattern(pattern: str) -> re.Pattern[str]:
    # IAM has no sets of characters.
    return re.compile(fnmatch.translate(pattern.replace("[", "[[]")))


def matches(text: str, pattern: str) -> bool:
    return _pattern(pattern).match(text) is not None


_COMPARE: Final[dict[str, Callable[[str, str], bool]]] = {
    "StringEquals": lambda value, wanted: value == wanted,
    "StringLike": matches,
    "ArnEquals": matches,
    "ArnLike": matches,
    "Bool": lambda value, wanted: value.lower() == wanted.lower(),
}
_NEGATED: Final = {"StringNotEquals": "StringEquals", "StringNotLike": "StringLike"}


def _operator(written: str) -> tuple[str, str, bool]:
    """Return an operator's set prefix, its comparison, and whether an absent key satisfies it."""
    prefix, _, name = written.rpartition(":")
    comparison = name.removesuffix("IfExists")
    known = comparison in _COMPARE or comparison in _NEGATED
    if not known or prefix not in {"", "ForAllValues", "ForAnyValue"}:
        raise PolicyNotUnderstoodError(f"condition operator {written}")
    return prefix, comparison, name != comparison


def _meets(written: str, values: Collection[str] | None, wanted: tuple[str, ...]) -> bool:
    """Whether the values of a key, None if it is absent, are as a condition wants them."""
    prefix, comparison, if_exists = _operator(written)
    negated = comparison in _NEGATED
    if values is None:
        return if_exists or prefix == "ForAllValues" or (negated and not prefix)
    compare = _COMPARE[_NEGATED.get(comparison, comparison)]
    hits = [any(compare(value, one) for one in wanted) != negated for value in values]
    if prefix == "ForAllValues":
        return all(hits)
    if not prefix and len(values) > 1:
        raise PolicyNotUnderstoodError(f"{written} for several values")
    return any(hits)


def _texts(value: Any) -> tuple[str, ...]:
    values = value if isinstance(value, list) else [value]
    if not all(isinstance(one, str) for one in values):
        raise PolicyNotUnderstoodError(f"no text: {values}")
    return tuple(values)
