"""The release after this one, as far as its data goes: all that it writes holds more than is known.

It stands between this release's code and its stores, and adds to what is written what a later
release may add without raising the format: attributes to items, fields to documents and messages.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final

from lakesync.wire.log_entries import deflate, inflate
from tests.support.lake import Objects

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lakesync.buffer.caller import Send

ATTRIBUTE: Final = "zz"
"""The attribute that each of its items has."""
_VALUE: Final = {"S": "by the next release"}
_FIELD: Final = bytes([0xF8, 0x07, 0x01])
"""Field 127 = 1, of any protobuf message."""
_MORE_LANES: Final = ";added"


class NextRelease:
    """`lakesync.buffer.caller.Send` of the next release."""

    def __init__(self, send: Send) -> None:
        self._send = send

    def __call__(self, headers: dict[str, str], body: bytes) -> tuple[int, bytes]:
        request = json.loads(body)
        for write in _writes(headers["X-Amz-Target"].partition(".")[2], request):
            _add(write)
        return self._send(headers, json.dumps(request).encode())


class NextObjects(Objects):
    """Objects that the next release writes into another's."""

    def __init__(self, shared: Objects) -> None:
        super().__init__()
        self.bodies, self.written = shared.bodies, shared.written

    def put_object(self, key: str, body: bytes, content_type: str) -> None:
        """Store an object; a document with more in it."""
        is_document = body.startswith(b"{")
        super().put_object(key, with_more(body) if is_document else body, content_type)


def with_more(document: bytes) -> bytes:
    return json.dumps(json.loads(document) | {"added": {"deep": [1]}}).encode()


def _writes(operation: str, request: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if operation == "TransactWriteItems":
        for one in request["TransactItems"]:
            yield from (one[kind] for kind in ("Put", "Update") if kind in one)
    elif operation in {"PutItem", "UpdateItem"}:
        yield request


def _add(write: dict[str, Any]) -> None:
    if "Item" in write:
        item = write["Item"]
        item[ATTRIBUTE] = _VALUE
        _add_within(item["pk"]["S"], item, "")
        return
    values = write["ExpressionAttributeValues"]
    change = write["UpdateExpression"]
    assert change.startswith("SET ")
    write["UpdateExpression"] = f"SET {ATTRIBUTE} = :{ATTRIBUTE}, {change.removeprefix('SET ')}"
    values[f":{ATTRIBUTE}"] = _VALUE
    _add_within(write["Key"]["pk"]["S"], values, ":")


def _add_within(pk: str, values: dict[str, Any], prefix: str) -> None:
    kind = pk.partition("|")[2].partition("|")[0]
    data, entries, lanes = f"{prefix}d", f"{prefix}i", f"{prefix}ln"
    if data in values and kind in _FORMS:
        stored = _FORMS[kind](b64decode(values[data]["B"]))
        values[data] = {"B": b64encode(stored).decode()}
        if f"{prefix}h" in values:
            digest = sha256(inflate(stored)).digest()
            values[f"{prefix}h"] = {"B": b64encode(digest).decode()}
    if entries in values:
        stored = _message(b64decode(values[entries]["B"]))
        values[entries] = {"B": b64encode(stored).decode()}
    if lanes in values and _MORE_LANES not in values[lanes]["S"]:
        values[lanes]["S"] += _MORE_LANES


def _message(stored: bytes) -> bytes:
    return deflate(inflate(stored) + _FIELD)


_FORMS: Final[dict[str, Callable[[bytes], bytes]]] = {
    "client": lambda stored: deflate(with_more(inflate(stored))),
    "config": lambda stored: deflate(with_more(inflate(stored))),
    "log": _message,
    "mark": lambda stored: deflate(inflate(stored) + b"more"),
}
"""What is done to the attribute ``d``, by the kind of the item. Nothing to a row's: its bytes are
taken apart by hand where tables are sent, so whatever is added to them raises the format."""
