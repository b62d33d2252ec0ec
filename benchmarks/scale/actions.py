"""Writes as DynamoDB is asked for them, alone or within a transaction; and its refusals."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from benchmarks.scale.expressions import UnknownSyntax, bindings, condition
from benchmarks.scale.items import Key, key_of
from benchmarks.scale.updates import UpdateRefused, update
from benchmarks.units import item_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.scale.expressions import Bindings, Condition, Item

ITEM_BYTES_MAX: Final = 400 * 1024
_COMMON: Final = (
    "TableName ConditionExpression ExpressionAttributeNames ExpressionAttributeValues "
    "ReturnValuesOnConditionCheckFailure ReturnValues "
)
_KNOWN: Final = {
    "Put": _COMMON + "Item",
    "Update": _COMMON + "Key UpdateExpression",
    "Delete": _COMMON + "Key",
    "ConditionCheck": _COMMON + "Key",
}


class Refused(Exception):
    """A refusal, as DynamoDB answers it."""

    def __init__(self, kind: str, message: str, **more: object) -> None:
        super().__init__(kind)
        self.kind = kind
        address = f"com.amazonaws.dynamodb.v20120810#{kind}"
        self.body = {"__type": address, "message": message, **more}

    @classmethod
    def cancelled(cls, reasons: list[dict[str, Any]]) -> Refused:
        """Return the refusal of a transaction, with a reason for each of its items."""
        codes = ", ".join(reason["Code"] for reason in reasons)
        return cls(
            "TransactionCanceledException",
            "Transaction cancelled, please refer cancellation reasons for specific reasons "
            f"[{codes}]",
            CancellationReasons=reasons,
        )


class Action(NamedTuple):
    """One write of one item."""

    key: Key
    condition: Condition
    bound: Bindings
    make: Callable[[Item | None], Item | None]
    """Gives the item's next version; None if there is none, or none other."""
    deletes: bool
    gives_old_on_failure: bool
    returns: str


def size_of(item: Item | None) -> int:
    """Return the size of an item that may not be there."""
    return item_bytes(item) if item is not None else 0


def action_of(kind: str, request: dict[str, Any]) -> Action:
    """Read a write.

    Raises:
        UnknownSyntax: it asks for something that the model does not know.
    """
    known_only(request, _KNOWN[kind])
    returns = request.get("ReturnValues", "NONE")
    if returns not in {"NONE", "ALL_OLD", "ALL_NEW"}:
        raise UnknownSyntax(f"ReturnValues {returns}")
    bound = bindings(request)
    text = request.get("ConditionExpression")
    return Action(
        key_of(request["Item"] if kind == "Put" else request["Key"]),
        condition(text) if text else lambda _, __: True,
        bound,
        _making(kind, request, bound),
        kind == "Delete",
        request.get("ReturnValuesOnConditionCheckFailure") == "ALL_OLD",
        returns,
    )


def _making(
    kind: str, request: dict[str, Any], bound: Bindings
) -> Callable[[Item | None], Item | None]:
    if kind == "Put":
        item: Item = request["Item"]
        return lambda _: _checked(item)
    if kind == "Update":
        change = update(request["UpdateExpression"])
        key: Item = request["Key"]
        return lambda before: _checked(change(before if before is not None else dict(key), bound))
    return lambda _: None


def _checked(item: Item) -> Item:
    if item_bytes(item) > ITEM_BYTES_MAX:
        raise UpdateRefused("Item size has exceeded the maximum allowed size")
    return item


def known_only(request: dict[str, Any], names: str) -> None:
    """Raise if a request asks for something that the model does not know."""
    unknown = set(request) - set(names.split())
    if unknown:
        raise UnknownSyntax(", ".join(sorted(unknown)))
