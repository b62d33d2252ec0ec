"""How routes are documented: their bodies and answers, and building blocks of JSON Schemas."""

from __future__ import annotations

from typing import Any, Final

from lakesync.core.delta import CLIENT_ID_BYTES_MAX
from lakesync.core.epoch import EPOCH_LENGTH_MAX
from lakesync.runtime.http import Encoding

Schema = dict[str, Any]

NAME: Final[Schema] = {"type": "string", "pattern": "^[A-Za-z_][A-Za-z0-9_]{0,63}$"}
SHARD: Final[Schema] = {"type": "string", "pattern": "^[a-z][a-z0-9_-]{0,31}$"}
STAMP: Final[Schema] = {
    "type": "string",
    "pattern": "^[0-9]{1,18}$",
    "examples": ["112589990684262400"],
    "description": "A 64-bit stamp as decimal digits.",
}
CLIENT_ID: Final[Schema] = {"type": "string", "minLength": 1, "maxLength": CLIENT_ID_BYTES_MAX}
TEXT: Final[Schema] = {"type": "string"}
EPOCH: Final[Schema] = {"type": "string", "maxLength": EPOCH_LENGTH_MAX}
FLAG: Final[Schema] = {"type": "boolean"}
COUNT: Final[Schema] = {"type": "integer", "minimum": 0}


def object_of(required: dict[str, Schema], optional: dict[str, Schema] | None = None) -> Schema:
    """Return an object with these members; others may be there too."""
    return {
        "type": "object",
        "required": list(required),
        "properties": required | (optional or {}),
    }


def list_of(items: Schema, **bounds: int) -> Schema:
    """Return a list of such items."""
    return {"type": "array", "items": items, **bounds}


def reference(name: str) -> Schema:
    """Point to one of `COMPONENTS`."""
    return {"$ref": f"#/components/schemas/{name}"}


_ERRORS: Final = {
    400: "A field is missing, malformed or out of its limits.",
    401: "There is no valid token.",
    403: "The token is for another gateway, role or client id.",
    404: "There is nothing at that address.",
    409: "The change does not fit what exists.",
    410: "The log no longer reaches back to the cursor.",
    413: "The request is too large.",
    429: "Too many requests.",
    500: "A bug; report the request id.",
    502: "S3 or SQS refused; try again after `Retry-After` seconds.",
    503: "Not now: try again after `Retry-After` seconds.",
}
# No token at all, a request over API Gateway's own limits, a function that did not answer in time.
_ALSO_BY_GATEWAY: Final = frozenset({401, 413, 429, 500, 503})


def answers(
    name: str,
    description: str,
    *errors: int,
    common: tuple[int, ...] = (400, 401, 403, 429, 503),
    protobuf: bool = False,
) -> dict[int | str, dict[str, Any]]:
    """Document a route's answers: the good one, the common errors, and its own."""
    good = {"description": description, "content": _content(name, protobuf=protobuf)}
    bad: dict[int | str, dict[str, Any]] = {
        status: {"description": _ERRORS[status], "content": _error(status)}
        for status in sorted({*common, *errors, 500})
    }
    return {200: good, **bad}


def binary_answers(kind: str, description: str, *errors: int) -> dict[int | str, dict[str, Any]]:
    """Document the answers of a route whose successful answer is bytes of its own media type."""
    documented = answers("Error", description, *errors)
    documented[200]["content"] = {kind: {"schema": {"type": "string", "format": "binary"}}}
    return documented


def takes(name: str, *, protobuf: bool = False) -> Schema:
    """Document a route's request body."""
    return {"requestBody": {"required": True, "content": _content(name, protobuf=protobuf)}}


def _error(status: int) -> Schema:
    ours = reference("Error")
    if status not in _ALSO_BY_GATEWAY:
        return {Encoding.JSON.value: {"schema": ours}}
    return {Encoding.JSON.value: {"schema": {"anyOf": [ours, reference("GatewayAnswer")]}}}


def _content(name: str, *, protobuf: bool = False) -> Schema:
    content: Schema = {Encoding.JSON.value: {"schema": reference(name)}}
    if protobuf:
        binary = {"type": "string", "format": "binary", "description": "See lakesync.proto."}
        content[Encoding.PROTOBUF.value] = {"schema": binary}
    return content
