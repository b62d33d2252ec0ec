"""The messages of the API as JSON Schema, for the OpenAPI document alone.

They describe what `lakesync.wire` and `lakesync.core.schema` accept and give; decoding never comes
here. A test sends what these schemas allow and checks what they promise.
"""

from __future__ import annotations

from typing import Any, Final

from lakesync.core.column_types import TYPES
from lakesync.core.delta import CLIENT_ID_BYTES_MAX, COLUMNS_MAX, ROW_ID_BYTES_MAX
from lakesync.core.rules import BUCKETS_MAX, FILTERS_MAX, OPERATORS, VALUES_MAX
from lakesync.runtime.bodies import Encoding
from lakesync.wire.incoming import PUSH_DELTAS_MAX

Schema = dict[str, Any]

_NAME: Final[Schema] = {"type": "string", "pattern": "^[A-Za-z_][A-Za-z0-9_]{0,63}$"}
_STAMP: Final[Schema] = {
    "type": "string",
    "pattern": "^[0-9]{1,18}$",
    "examples": ["112589990684262400"],
    "description": "A 64-bit stamp as decimal digits.",
}
_CLIENT_ID: Final[Schema] = {"type": "string", "minLength": 1, "maxLength": CLIENT_ID_BYTES_MAX}
_TEXT: Final[Schema] = {"type": "string"}
_FLAG: Final[Schema] = {"type": "boolean"}
_LITERAL: Final[Schema] = {"type": ["string", "number", "boolean"], "minLength": 1}
_COUNT: Final[Schema] = {"type": "integer", "minimum": 0}


def _object(required: dict[str, Schema], optional: dict[str, Schema] | None = None) -> Schema:
    return {
        "type": "object",
        "required": list(required),
        "properties": required | (optional or {}),
    }


def _list(items: Schema, **bounds: int) -> Schema:
    return {"type": "array", "items": items, **bounds}


def reference(name: str) -> Schema:
    """Point to one of `COMPONENTS`."""
    return {"$ref": f"#/components/schemas/{name}"}


COMPONENTS: Final[dict[str, Schema]] = {
    "Column": _object({"column": _NAME, "value": {"description": "Any JSON value."}}),
    "Delta": _object(
        {
            "op": {"type": "string", "enum": ["INSERT", "UPDATE", "DELETE"]},
            "table": _NAME,
            "rowId": {"type": "string", "minLength": 1, "maxLength": ROW_ID_BYTES_MAX},
            "clientId": _CLIENT_ID,
            "columns": _list(reference("Column"), maxItems=COLUMNS_MAX),
            "hlc": _STAMP,
        },
        {
            "deltaId": {
                "type": "string",
                "pattern": "^[0-9a-f]{64}$",
                "description": "SHA-256 of the change's canonical JSON; checked where it is sent.",
            }
        },
    ),
    "Push": _object(
        {"clientId": _CLIENT_ID, "deltas": _list(reference("Delta"), maxItems=PUSH_DELTAS_MAX)},
        {
            "lastSeenHlc": _STAMP,
            "atomic": _FLAG | {"description": "One commit, or none of the deltas."},
        },
    ),
    "DeltaOutcome": _object(
        {
            "index": _COUNT | {"description": "The delta's place in the push."},
            "deltaId": _TEXT,
            "outcome": {"type": "string", "enum": ["duplicate", "refused"]},
        },
        {"code": _TEXT, "error": _TEXT, "field": _TEXT},
    ),
    "PushReceipt": _object(
        {
            "serverHlc": _STAMP,
            "accepted": _COUNT | {"description": "Deltas that are durable, duplicates too."},
            "deltas": _list(reference("Delta"), maxItems=0),
        },
        {
            "results": _list(reference("DeltaOutcome")),
            "serverTimeMs": _COUNT,
        },
    ),
    "PullPage": _object(
        {
            "deltas": _list({"anyOf": [reference("Delta"), reference("Removal")]}),
            "serverHlc": _STAMP | {"description": "The next cursor: pull with since=serverHlc."},
            "hasMore": _FLAG,
        },
        {
            "epoch": _TEXT,
            "snapshot": _TEXT | {"description": "Rows as they are; ask with it for the next page."},
            "scope": _TEXT | {"description": "A digest of what decided the page; send it back."},
        },
    ),
    "Removal": _object(
        {
            "op": {"const": "REMOVE"},
            "table": _NAME,
            "rowId": {"type": "string", "minLength": 1, "maxLength": ROW_ID_BYTES_MAX},
            "hlc": _STAMP,
        }
    ),
    "Filter": _object(
        {
            "column": _NAME,
            "op": {"type": "string", "enum": list(OPERATORS)},
            "value": {
                "description": "A literal, a list of them, or `jwt:` and a claim's dotted path.",
                "anyOf": [_LITERAL, _list(_LITERAL, minItems=1, maxItems=VALUES_MAX)],
            },
        }
    ),
    "Bucket": _object(
        {
            "name": {"type": "string", "minLength": 1, "maxLength": 64},
            "tables": _list(_NAME) | {"description": "None: all tables."},
            "filters": _list(reference("Filter"), maxItems=FILTERS_MAX),
        },
        {"write": _list(reference("Filter"), maxItems=FILTERS_MAX)},
    ),
    "SyncRules": _object(
        {"buckets": _list(reference("Bucket"), maxItems=BUCKETS_MAX)},
        {"version": {"type": "integer", "minimum": 1}},
    ),
    "SchemaColumn": _object(
        {
            "name": _NAME,
            "type": {
                "type": "string",
                "anyOf": [
                    {"enum": [name for name in TYPES if name != "decimal"]},
                    {"pattern": r"^decimal\([0-9]{1,2},[0-9]{1,2}\)$"},
                ],
            },
        },
        {"nullable": _FLAG},
    ),
    "TableSchema": _object(
        {
            "table": _NAME,
            "columns": _list(reference("SchemaColumn"), minItems=1, maxItems=COLUMNS_MAX),
        },
        {
            "primaryKey": _list(_NAME),
            "softDelete": _FLAG,
            "externalIdColumn": _NAME,
            "sourceTable": _NAME,
            "append": _FLAG | {"description": "Rows are events: written once, never changed."},
            "partition": _list(_NAME),
        },
    ),
    "Saved": _object({"saved": {"const": True}}, {"version": _COUNT}),
    "Flushed": _object(
        {"flushed": {"const": True}},
        {"batches": _COUNT, "deltas": _COUNT, "watermark": _STAMP},
    ),
    "Metrics": _object(
        {
            "gateway": _TEXT,
            "headHlc": _STAMP,
            "flushedHlc": _STAMP,
            "unflushedBytes": _COUNT,
            "unflushedAgeMs": _COUNT,
        },
        {"configVersion": _COUNT, "tables": _list(_NAME), "shards": {"type": "object"}},
    ),
    "Health": _object({"status": {"const": "ok"}}),
    "GatewayAnswer": _object(
        {"message": _TEXT | {"description": "API Gateway's own words; no function was asked."}}
    ),
    "Error": _object(
        {
            "error": _TEXT | {"description": "What is wrong, and what to do."},
            "code": _TEXT,
            "requestId": _TEXT,
        },
        {
            "field": _TEXT | {"description": "The part of the request at fault."},
            "faults": _list(_object({"path": _TEXT, "error": _TEXT})),
        },
    ),
}

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
