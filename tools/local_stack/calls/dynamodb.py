"""What AWS asks about calls of DynamoDB: tables, indexes, partition keys, attributes.

AWS: Service Authorization Reference, "Actions, resources, and condition keys for Amazon DynamoDB";
DynamoDB Developer Guide, "Using IAM policy conditions for fine-grained access control".
"""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING, Any, Final

from tools.local_stack.calls.request import Question, Request, UnknownCallError, context

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

PARTITION_KEY: Final = "pk"
"""Of every table of the template."""

_ONE_ITEM: Final = {"GetItem": "Key", "PutItem": "Item", "UpdateItem": "Key", "DeleteItem": "Key"}
# A transaction asks for the action of each of its items; there is none for the whole.
_TRANSACTED: Final = {
    "Get": "GetItem",
    "Put": "PutItem",
    "Update": "UpdateItem",
    "Delete": "DeleteItem",
    "ConditionCheck": "ConditionCheckItem",
}
_EXPRESSIONS: Final = (
    *("ProjectionExpression", "UpdateExpression", "ConditionExpression"),
    *("FilterExpression", "KeyConditionExpression"),
)
_READS: Final = frozenset({"GetItem", "BatchGetItem", "Query", "Scan"})
_NAME: Final = re.compile(r"(?<![:\w.#])#?[A-Za-z_]\w*")
_EQUALS: Final = re.compile(r"(#?\w+)\s*=\s*(:\w+)")
_WORDS: Final = frozenset({
    *("set", "remove", "add", "delete", "and", "or", "not", "between", "in", "attribute_exists"),
    *("attribute_not_exists", "attribute_type", "begins_with", "contains", "size"),
    *("if_not_exists", "list_append"),
})  # fmt: skip
_OF_TABLES: Final = frozenset({"DescribeTable", "DescribeTimeToLive", "DescribeContinuousBackups"})


def dynamodb_questions(request: Request, operation: str) -> Iterator[Question]:
    """The questions about one call.

    Raises:
        UnknownCallError: an operation that LakeSync does not call.
    """
    document = request.document
    if operation in _ONE_ITEM:
        yield _about_item(request, operation, document)
    elif operation in {"Query", "Scan"}:
        yield _about_items(request, operation, document)
    elif operation in {"TransactWriteItems", "TransactGetItems"}:
        for entry in document["TransactItems"]:
            ((kind, item),) = entry.items()
            yield _about_item(request, _TRANSACTED[kind], item)
    elif operation == "BatchGetItem":
        for table, asked in document["RequestItems"].items():
            yield _about_keys(request, operation, table, asked, asked["Keys"])
    elif operation == "BatchWriteItem":
        for table, writes in document["RequestItems"].items():
            items = [
                write["PutRequest"]["Item"] if "PutRequest" in write
                else write["DeleteRequest"]["Key"]
                for write in writes
            ]  # fmt: skip
            yield _about_keys(request, operation, table, {}, items)
    elif operation in _OF_TABLES:
        yield Question(f"dynamodb:{operation}", _table(request, document["TableName"]))
    else:
        raise UnknownCallError(f"dynamodb {operation}")


def _about_item(request: Request, operation: str, item: Mapping[str, Any]) -> Question:
    named = item[_ONE_ITEM.get(operation, "Key")]
    return _about_keys(request, operation, item["TableName"], item, [named])


def _about_keys(
    request: Request, operation: str, table: str, asked: Mapping[str, Any],
    items: list[dict[str, Any]],
) -> Question:  # fmt: skip
    attributes = _named(asked).union(*items)
    leading = {_text(item[PARTITION_KEY]) for item in items if PARTITION_KEY in item}
    return _question(request, operation, _table(request, table), asked, attributes, leading)


def _about_items(request: Request, operation: str, asked: Mapping[str, Any]) -> Question:
    index = asked.get("IndexName")
    resource = _table(request, asked["TableName"]) + (f"/index/{index}" if index else "")
    leading = None if operation == "Scan" else set(_queried(asked))
    return _question(request, operation, resource, asked, _named(asked), leading)


def _question(
    request: Request, operation: str, resource: str, asked: Mapping[str, Any],
    attributes: set[str], leading: set[str] | None,
) -> Question:  # fmt: skip
    return Question(
        f"{request.service}:{operation}",
        resource,
        context(
            dynamodb__Attributes=sorted(attributes),
            dynamodb__LeadingKeys=None if leading is None else sorted(leading),
            dynamodb__Select=_selected(asked) if operation in _READS else None,
            dynamodb__ReturnValues=asked.get("ReturnValues"),
        ),
    )


def _selected(asked: Mapping[str, Any]) -> str:
    """Which attributes a read returns; one that names none returns all."""
    if "ProjectionExpression" in asked:
        return "SPECIFIC_ATTRIBUTES"
    whole = "ALL_PROJECTED_ATTRIBUTES" if "IndexName" in asked else "ALL_ATTRIBUTES"
    return str(asked.get("Select", whole))


def _named(asked: Mapping[str, Any]) -> set[str]:
    """The attributes that the expressions of a request name, each by its first part."""
    aliases = asked.get("ExpressionAttributeNames", {})
    texts = (asked[name] for name in _EXPRESSIONS if name in asked)
    return {aliases.get(name, name) for text in texts for name in _names(text)}


@functools.lru_cache(maxsize=1024)
def _names(expression: str) -> frozenset[str]:
    """What is a name in an expression; the same few come again and again."""
    return frozenset(name for name in _NAME.findall(expression) if name.lower() not in _WORDS)


def _queried(asked: Mapping[str, Any]) -> Iterator[str]:
    aliases = asked.get("ExpressionAttributeNames", {})
    for name, value in _EQUALS.findall(asked.get("KeyConditionExpression", "")):
        if aliases.get(name, name) == PARTITION_KEY:
            yield _text(asked["ExpressionAttributeValues"][value])


def _table(request: Request, name: str) -> str:
    return name if name.startswith("arn:") else request.arn(f"table/{name}", "dynamodb")


def _text(value: Mapping[str, Any]) -> str:
    return str(next(iter(value.values())))
