"""Whether a key of KMS lets principals of its account use it, by the key's own policy.

A key's policy admits a principal itself, or names the account, which leaves the decision to that
principal's own policies (KMS developer guide, "Key policies"). Conditions are read as far as what
they ask for is known here; another one makes the answer unknown.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

_EXACT: Final = frozenset({"StringEquals", "ArnEquals"})
_LIKE: Final = frozenset({"StringLike", "ArnLike"})


class Asker(NamedTuple):
    """A principal of the key's account that uses it through S3."""

    arn: str
    """Of a role or user."""
    region: str

    @property
    def account(self) -> str:
        """Its account."""
        return self.arn.split(":")[4]

    @property
    def root(self) -> str:
        """The account, as policies name it."""
        return ":".join([*self.arn.split(":")[:5], "root"])

    def context(self) -> Mapping[str, str]:
        """Return what conditions may ask for."""
        return {
            "kms:calleraccount": self.account,
            "kms:viaservice": f"s3.{self.region}.amazonaws.com",
            "aws:principalaccount": self.account,
            "aws:principalarn": self.arn,
        }


class Admission(NamedTuple):
    """What a key's policy says of one use."""

    itself: bool | None
    """Whether it admits the principal; None if a condition decides that is not known here."""
    by_iam: bool | None
    """Whether it leaves it to the principal's own policies; None as above."""


def admission(policy: Mapping[str, Any], action: str, asker: Asker) -> Admission:
    """Return what a key's policy says of an action, such as ``kms:Decrypt``."""
    denied: list[bool | None] = [False]
    itself: list[bool | None] = [False]
    by_iam: list[bool | None] = [False]
    for statement in _listed(policy.get("Statement", [])):
        if not any(fnmatchcase(action, one) for one in _listed(statement.get("Action", []))):
            continue
        named = _principals(statement)
        met = _met(statement.get("Condition", {}), asker)
        if "*" in named or asker.arn in named:
            (itself if statement["Effect"] == "Allow" else denied).append(met)
        elif {asker.root, asker.account} & named:
            (by_iam if statement["Effect"] == "Allow" else denied).append(met)
    if True in denied:
        return Admission(itself=False, by_iam=False)
    is_sure = None not in denied
    return Admission(_any(itself, is_sure=is_sure), _any(by_iam, is_sure=is_sure))


def _any(some: Collection[bool | None], *, is_sure: bool) -> bool | None:
    """Return whether one holds; None if that depends on what is not known."""
    if True in some and is_sure:
        return True
    return None if True in some or None in some else False


def _principals(statement: Mapping[str, Any]) -> set[str]:
    named = statement.get("Principal", {})
    return set(_listed(named if isinstance(named, str) else named.get("AWS", [])))


def _met(condition: Mapping[str, Mapping[str, Any]], asker: Asker) -> bool | None:
    """Return whether every condition is met; None if no known one fails, and one is not known."""
    known, results = asker.context(), list[bool | None]()
    for operator, keys in condition.items():
        name = operator.removesuffix("IfExists").rpartition(":")[2]
        for key, wanted in keys.items():
            value = known.get(key.lower())
            if value is None or name not in _EXACT | _LIKE:
                results.append(None)
            elif name in _EXACT:
                results.append(value in _listed(wanted))
            else:
                results.append(any(fnmatchcase(value, one) for one in _listed(wanted)))
    if False in results:
        return False
    return None if None in results else True


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]
