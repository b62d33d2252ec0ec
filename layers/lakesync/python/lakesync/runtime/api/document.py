"""The whole API as one OpenAPI document, with its messages as JSON Schema.

Each family of routes is a function of its own; the document describes all of them.

The schemas describe what `lakesync.wire` and `lakesync.core.schema` accept and return; they take no
part in decoding. A test sends what these schemas allow and checks what they promise. What
administrators declare: `lakesync.runtime.api.admin_schemas`.
"""

from __future__ import annotations

import inspect
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Final

import fastapi
from starlette.responses import Response
from starlette.routing import compile_path

from lakesync.actions.service import Registration
from lakesync.core.attachments import PARTS_MAX, REFERENCE_CHARS_MAX
from lakesync.core.delta import COLUMNS_MAX, GATEWAY_CLIENT, ROW_ID_BYTES_MAX
from lakesync.core.messages import ACTION_ID_BYTES_MAX, ACTIONS_MAX
from lakesync.declare import components
from lakesync.declare.flows import DeclaredConnector
from lakesync.gateway.attachments import UPLOAD_CHARS_MAX
from lakesync.runtime.api import (
    CLIENT_ID,
    COUNT,
    EPOCH,
    FLAG,
    NAME,
    STAMP,
    TEXT,
    Path,
    Schema,
    list_of,
    object_of,
    reference,
)
from lakesync.runtime.api import reference as component
from lakesync.runtime.api.admin import admin_routes
from lakesync.runtime.api.admin_schemas import (
    ADMIN_COMPONENTS,
    CLIENT_COMPONENTS,
    DESTINATION_COMPONENTS,
    FLOW_COMPONENTS,
)
from lakesync.runtime.api.outlets import DO, webhook_routes
from lakesync.runtime.api.pull import checkpoint_routes, pull_routes, ticket_routes
from lakesync.runtime.api.submissions import action_routes, attachment_routes, push_routes
from lakesync.wire.incoming import PUSH_DELTAS_MAX

if TYPE_CHECKING:
    from lakesync.runtime.api import Parameter, Route, Router

# --- attachments ----------------------------------------------------------------------------------


_REFERENCE: Final[Schema] = {
    "type": "string",
    "maxLength": REFERENCE_CHARS_MAX,
    "pattern": "^attachment:[0-9a-f]{32}:[0-9a-f]{64}:[0-9]{1,10}:[a-z0-9].*/[a-z0-9].*$",
    "description": "The text that names the file in a row: docs/spec/attachments.md.",
}
_DIGEST: Final[Schema] = {"type": "string", "pattern": "^[0-9a-f]{64}$"}

ATTACHMENT_COMPONENTS: Final[dict[str, Schema]] = {
    "AttachmentUpload": object_of(
        {"reference": _REFERENCE},
        {
            "parts": list_of(_DIGEST, maxItems=PARTS_MAX)
            | {"description": "SHA-256 of each part of 16 MiB; needed if there are several."},
            "upload": {
                "type": "string",
                "maxLength": UPLOAD_CHARS_MAX,
                "description": "`upload` of the last answer, to continue it.",
            },
            "epoch": EPOCH | {"description": "Refused (409) if it is another gateway's."},
        },
    ),
    "SignedRequest": object_of(
        {
            "url": TEXT | {"description": "Whoever has it may use it, for 15 minutes."},
            "headers": {
                "type": "object",
                "additionalProperties": TEXT,
                "description": "To be sent exactly so.",
            },
        },
        {"part": COUNT | {"description": "Which part of the file to PUT; the first is 1."}},
    ),
    "AttachmentUploadState": object_of(
        {
            "stored": FLAG | {"description": "All of it is there, and is what it is named by."},
            "requests": list_of(component("SignedRequest"))
            | {"description": "PUT these parts, then ask again."},
            "partsStored": COUNT,
        },
        {"upload": TEXT},
    ),
    "AttachmentPlace": object_of(
        {
            "table": NAME,
            "rowId": {"type": "string", "minLength": 1, "maxLength": ROW_ID_BYTES_MAX},
            "column": NAME,
            "reference": _REFERENCE,
        }
    ),
}


# --- connectors -----------------------------------------------------------------------------------


ANYTHING: Final[Schema] = {"type": "object"}

CONNECTOR_COMPONENTS: Final[dict[str, Schema]] = {
    **components(Connector=DeclaredConnector),
    "Registered": object_of(
        {"registered": FLAG | {"description": "False of a dry run."}, "name": TEXT},
        {
            "message": TEXT | {"description": "By the source."},
            "tables": list_of(TEXT) | {"description": "Of a dry run: what it would write to."},
            "schemas": list_of(ANYTHING)
            | {"description": "Of a dry run: as POST /admin/schema takes them."},
        },
    ),
    "Unregistered": object_of(
        {"unregistered": FLAG, "name": TEXT},
        {"message": TEXT | {"description": "What remains at the source."}},
    ),
    "ConnectorAction": {
        "oneOf": [
            object_of({"do": {"type": "string", "enum": [*DO]}}) | {"additionalProperties": False},
            object_of({"do": {"type": "string", "enum": ["configure"]}, "configuration": ANYTHING})
            | {"additionalProperties": False},
        ]
    },
    "Done": object_of({"done": FLAG}, {"message": TEXT | {"description": "By the source."}}),
    "ConnectorTypes": list_of(
        object_of(
            {"type": TEXT, "title": TEXT},
            {
                "configuration": ANYTHING | {"description": "A JSON Schema."},
                "error": TEXT | {"description": "In its place: it cannot be imported here."},
            },
        )
    ),
    "Webhook": ANYTHING | {"description": "As the connector's source sends it."},
    "WebhookTaken": object_of(
        {
            "accepted": COUNT | {"description": "Delivered rows, deletions included."},
            "repeated": FLAG
            | {"description": "The webhook was processed before; nothing was done."},
        }
    ),
    "Connectors": list_of(reference("ConnectorState")),
    "ConnectorState": object_of(
        {
            "name": TEXT,
            "type": TEXT,
            "hasIngest": FLAG,
            "isPolling": FLAG | {"description": "It is not paused."},
            "isReading": FLAG | {"description": "A poll is under way at this moment."},
            "everyMinutes": COUNT,
            "polls": COUNT | {"description": "Completed polls."},
            "rows": COUNT | {"description": "Rows that were pushed, deletions included."},
            "deadLetterCount": COUNT,
        },
        {
            "polledMs": COUNT | {"description": "All earlier changes have been delivered."},
            "lagS": COUNT,
            "waitS": COUNT | {"description": "The source or the gateway asked to wait."},
            "jobMs": COUNT | {"description": "Since when a job has been requested, or reads."},
            "lastError": object_of({"code": TEXT, "error": TEXT, "atMs": COUNT}, {"table": TEXT}),
            "schemaChanges": list_of(
                object_of(
                    {
                        "atMs": COUNT,
                        "table": TEXT,
                        "column": TEXT | {"description": "Empty for the table itself."},
                        "severity": {"enum": ["note", "warning", "severe"]},
                        "change": TEXT,
                    }
                )
            )
            | {"description": "The latest changes of the source's schema."},
            "source": ANYTHING
            | {"description": "What the source says of itself, such as keptBytes."},
            "configuration": ANYTHING | {"description": "Without secrets."},
            "webhook": TEXT | {"description": "Where its source may send webhooks."},
            "deadLetters": list_of(ANYTHING),
        },
    ),
}


# --- actions --------------------------------------------------------------------------------------


_ID: Final[Schema] = {"type": "string", "minLength": 1, "maxLength": ACTION_ID_BYTES_MAX}
_NAME: Final[Schema] = {"type": "string", "minLength": 1, "maxLength": 64}
_HANDLER: Final = components(Handler=Registration)["Handler"]
ACTION_COMPONENTS: Final[dict[str, Schema]] = {
    "Action": object_of(
        {"actionId": _ID, "connector": _NAME, "actionType": _NAME},
        {
            "clientId": CLIENT_ID,
            "hlc": STAMP,
            "params": ANYTHING,
            "idempotencyKey": _ID | {"description": "Of one client, the same key is one action."},
        },
    ),
    "ActionPush": object_of(
        {"clientId": CLIENT_ID, "actions": list_of(reference("Action"), maxItems=ACTIONS_MAX)},
        {"epoch": EPOCH | {"description": "Refused (409) if it is another gateway's."}},
    ),
    "ActionAnswers": object_of(
        {"results": list_of(reference("ActionOutcome")), "serverHlc": STAMP}
    ),
    "ActionOutcome": {
        "anyOf": [
            object_of({"actionId": TEXT, "data": ANYTHING, "serverHlc": STAMP}),
            object_of(
                {
                    "actionId": TEXT,
                    "code": TEXT,
                    "message": TEXT,
                    "retryable": FLAG | {"description": "Send it again as it is."},
                }
            ),
        ]
    },
    "Actions": object_of(
        {
            "connectors": {
                "type": "object",
                "additionalProperties": list_of(
                    object_of({"actionType": TEXT, "description": TEXT, "paramsSchema": ANYTHING})
                ),
            }
        }
    ),
    "ActionHandler": _HANDLER,
    "ActionHandlerAdded": object_of({"registered": FLAG, "name": TEXT, "actions": list_of(TEXT)}),
    "ActionHandlers": object_of(
        {"handlers": list_of(object_of({"name": TEXT, "type": TEXT}, _HANDLER["properties"]))}
    ),
}


# --- all of them ----------------------------------------------------------------------------------


_EPOCH: Final = "h5ozawhsa2iw2zkj"
_ROW: Final = {"table": "todos", "rowId": "r1"}
_INSERT: Final = _ROW | {
    "op": "INSERT",
    "clientId": "phone-1",
    "columns": [{"column": "title", "value": "Buy milk"}, {"column": "done", "value": False}],
    "hlc": "111677748019200000",
    "deltaId": "e4b32a7c99cf4fb4d28af5b63c04fb91c0eeea4c1a300f10124f461f32f03bdc",
}
_UPDATE: Final = _ROW | {
    "op": "UPDATE",
    "clientId": "phone-1",
    "columns": [{"column": "done", "value": True}],
    "hlc": "111677748019200001",
    "deltaId": "020304c195d2a3c595ecf5dd2d27bb9c740544141d92d51417b7aff55f87102f",
}
_PUSH: Final = {
    "clientId": "phone-1",
    "deltas": [_INSERT, _UPDATE],
    "lastSeenHlc": "0",
    "atomic": False,
    "epoch": _EPOCH,
    "ownCursor": True,
}
_REFUSED: Final = {"code": "SCHEMA_ERROR", "error": "todos.done must be a string"}
_OUTCOME: Final = {"index": 1, "deltaId": _UPDATE["deltaId"], "outcome": "refused"} | _REFUSED
_RECEIPT: Final = {
    "serverHlc": "111677748084736000",
    "accepted": 1,
    "deltas": [],
    "results": [_OUTCOME | {"field": "deltas[1].columns.done"}],
    "serverTimeMs": 1704067201000,
    "epoch": _EPOCH,
}
_PULL: Final = {
    "clientId": "phone-1",
    "since": "111677748019200000",
    "limit": 1000,
    "epoch": _EPOCH,
    "scope": "*",
    "removes": True,
    "ownCursor": True,
}
_PAGE: Final = {
    "deltas": [_INSERT, {"op": "REMOVE", "table": "todos", "rowId": "r2", "hlc": "1"}],
    "serverHlc": "111677748084736000",
    "hasMore": False,
    "epoch": _EPOCH,
    "scope": "*",
    "schemaVersion": 3,
}
_BODIES: Final = (
    "Push",
    "PushReceipt",
    "Pull",
    "PullPage",
    "ActionPush",
    "ActionAnswers",
    "Refusal",
)
_BROADCAST: Final = _PAGE | {"first": "111677748084736000", "previous": "111677748019200000"}


COMPONENTS: Final[dict[str, Schema]] = {
    "Column": object_of({"column": NAME, "value": {"description": "Any JSON value."}}),
    "Delta": object_of(
        {
            "op": {"type": "string", "enum": ["INSERT", "UPDATE", "DELETE"]},
            "table": NAME,
            "rowId": {"type": "string", "minLength": 1, "maxLength": ROW_ID_BYTES_MAX},
            "clientId": CLIENT_ID,
            "columns": list_of(reference("Column"), maxItems=COLUMNS_MAX),
            "hlc": STAMP,
        },
        {
            "deltaId": {
                "type": "string",
                "pattern": "^[0-9a-f]{64}$",
                "description": "SHA-256 of the change's canonical JSON; checked where it is sent.",
            }
        },
    )
    | {"examples": [_INSERT, _UPDATE]},
    "Push": object_of(
        {"clientId": CLIENT_ID, "deltas": list_of(reference("Delta"), maxItems=PUSH_DELTAS_MAX)},
        {
            "lastSeenHlc": STAMP | {"description": "Of clients whose receipts move the cursor."},
            "atomic": FLAG | {"description": "One commit, or none of the deltas."},
            "ownCursor": FLAG | {"description": "Receipts do not move the client's cursor."},
            "epoch": EPOCH | {"description": "Refused (409) if it is another gateway's."},
        },
    )
    | {"examples": [_PUSH]},
    "Pull": object_of(
        {},
        {
            "clientId": CLIENT_ID | {"description": "The token's `sub` if left out."},
            "since": STAMP | {"description": "The cursor: `serverHlc` of the page before."},
            "sinceHlc": STAMP | {"description": "The same, by protobuf's name."},
            "limit": COUNT | {"minimum": 1, "description": "Deltas wanted, as in the address."},
            "maxDeltas": COUNT | {"minimum": 1, "description": "The same, by protobuf's name."},
            "epoch": EPOCH | {"description": "Refused (409) if it is another gateway's."},
            "snapshot": TEXT | {"description": "`begin`, or `snapshot` of the page before."},
            "scope": TEXT | {"description": "`scope` of the page before."},
            "removes": FLAG | {"description": "The client knows `REMOVE`."},
            "ownCursor": FLAG | {"description": "Receipts do not move the client's cursor."},
            "fresh": FLAG | {"description": "The last page ends at the newest commit."},
            "atLeast": STAMP | {"description": "It ends there or later: a receipt's `serverHlc`."},
            "quarantined": COUNT | {"description": "Refused edits, for administrators to see."},
        },
    )
    | {"examples": [_PULL, {"clientId": "phone-1", "snapshot": "begin", "ownCursor": True}]},
    "DeltaOutcome": object_of(
        {
            "index": COUNT | {"description": "The delta's place in the push."},
            "deltaId": TEXT,
            "outcome": {"type": "string", "enum": ["duplicate", "refused"]},
        },
        {"code": TEXT, "error": TEXT, "field": TEXT},
    ),
    "PushReceipt": object_of(
        {
            "serverHlc": STAMP | {"description": "The gateway's newest commit."},
            "accepted": COUNT | {"description": "Deltas that are durable, duplicates too."},
            "deltas": list_of(reference("Delta"), maxItems=0),
            "results": list_of(reference("DeltaOutcome"))
            | {"description": "Of deltas that were not simply accepted."},
            "serverTimeMs": COUNT | {"description": "The gateway's wall clock."},
        },
        {"epoch": EPOCH | {"description": "The gateway's; name it from now on."}},
    )
    | {"examples": [_RECEIPT]},
    "Ticket": object_of({"ticket": TEXT, "expiresInS": COUNT}),
    "PullPage": object_of(
        {
            "deltas": list_of({"anyOf": [reference("Delta"), reference("Removal")]}),
            "serverHlc": STAMP | {"description": "The next cursor: pull with since=serverHlc."},
            "hasMore": FLAG,
        },
        {
            "epoch": EPOCH | {"description": "The gateway's; name it from now on."},
            "snapshot": TEXT | {"description": "Rows as they are; ask with it for the next page."},
            "schemaVersion": COUNT | {"description": "That of `/schema`; absent without schemas."},
            "scope": TEXT
            | {"description": "Identifies the rules that chose these rows; send it back."},
            "behindMs": COUNT | {"description": "How far newer commits are ahead; absent if 0."},
            "resync": reference("Resync"),
            "rowsRead": COUNT | {"description": "Of a checkpoint's rows, hidden ones too."},
            "rowsTotal": COUNT | {"description": "Absent if the number is not known."},
            "first": STAMP | {"description": "Of a broadcast: its first commit."},
            "previous": STAMP | {"description": "Of a broadcast: nothing is between it and that."},
        },
    )
    | {"examples": [_PAGE, _BROADCAST]},
    # Rows of these tables that no page from this one on contains no longer exist.
    "Resync": object_of(
        {"tables": list_of(NAME)},
        {
            "named": list_of(NAME) | {"description": "And of all but these."},
            "omitted": {
                "type": "object",
                "additionalProperties": list_of(NAME),
                "description": "By table, columns of which nothing is kept; of the others under "
                "the empty name.",
            },
            "tombstoneHorizons": {
                "type": "object",
                "additionalProperties": STAMP,
                "description": "By table: a row that is older, and in no page, was deleted.",
            },
        },
    ),
    "Removal": object_of(
        {
            "op": {"const": "REMOVE"},
            "table": NAME,
            "rowId": {"type": "string", "minLength": 1, "maxLength": ROW_ID_BYTES_MAX},
            "hlc": STAMP,
        },
        {
            "clientId": {"const": GATEWAY_CLIENT},
            "columns": list_of(reference("Column"), maxItems=0),
            "deltaId": {"const": ""},
        },
    ),
    "Refusal": object_of(
        {
            "code": TEXT,
            "error": TEXT,
            "closes": FLAG | {"description": "The connection is closed behind it."},
        },
        {"field": TEXT, "retryAfterS": COUNT},
    ),
    "Frame": object_of(
        {
            "tag": {
                "type": "integer",
                "enum": [1, 2, 3, 4, 5, 6, 7],
                "description": "1 push, receipt; 2 pull, page; 3 broadcast; 4 actions, 5 their "
                "answers; 6 refusal.",
            },
            "body": {"anyOf": [*map(reference, _BODIES)]},
        },
        {"requestId": COUNT | {"description": "Below 2^32; the answer repeats it."}},
    )
    | {
        "description": "A message of a WebSocket whose sub-protocol is `lakesync.v1.json`.",
        "examples": [
            {"tag": 1, "requestId": 7, "body": _PUSH},
            {"tag": 2, "requestId": 8, "body": _PAGE},
            {"tag": 3, "body": _BROADCAST},
            {"tag": 6, "requestId": 9, "body": _REFUSED | {"closes": False}},
        ],
    },
    **ACTION_COMPONENTS,
    **ADMIN_COMPONENTS,
    **ATTACHMENT_COMPONENTS,
    **CLIENT_COMPONENTS,
    **CONNECTOR_COMPONENTS,
    **DESTINATION_COMPONENTS,
    **FLOW_COMPONENTS,
    "Health": object_of({"status": {"const": "ok"}}),
    "GatewayAnswer": object_of(
        {
            "message": TEXT
            | {"description": "An answer of API Gateway itself; no function was called."}
        }
    ),
    "Error": object_of(
        {
            "error": TEXT | {"description": "What is wrong, and what to do."},
            "code": TEXT,
            "requestId": TEXT,
        },
        {
            "field": TEXT | {"description": "The part of the request at fault."},
            "faults": list_of(object_of({"path": TEXT, "error": TEXT})),
        },
    ),
}


# --- the document ---------------------------------------------------------------------------------


_LIMITS: Final = ("pattern", "max_length", "ge", "le", "lt")
_DESCRIPTION: Final = """\
Offline-first clients push and pull column-level changes; the same rows reach the lake.

Every address is served with and without the `/v1` prefix. 64-bit stamps are decimal strings.
"""


class Description:
    """What the API offers, made of the very routes that the functions serve.

    Args:
        open_routes: those that need no token; they serve the description, and pass themselves.
    """

    def __init__(self, open_routes: Router) -> None:
        # Describing calls no service, so there is none.
        nothing: Any = None
        families = (
            open_routes,
            push_routes(nothing, nothing, body_bytes_max=0),
            pull_routes(nothing),
            checkpoint_routes(nothing),
            ticket_routes(nothing),
            action_routes(nothing),
            attachment_routes(nothing, nothing),
            webhook_routes(nothing),
            admin_routes(*[nothing] * 10),
        )
        self._routes = [
            route
            for family in families
            for route in family.declared
            if route.documented.get("include_in_schema", True)
        ]

    @cached_property
    def document(self) -> dict[str, Any]:
        """Return the OpenAPI document, as FastAPI makes it of an app with these routes."""
        app = fastapi.FastAPI(title="LakeSync", version="1", description=_DESCRIPTION)
        for route in self._routes:
            _add(app, route)
        document = app.openapi()
        # Beside the document, whatever stage or path stands before it.
        document["servers"] = [{"url": "."}]
        for operations in document["paths"].values():
            for operation in operations.values():
                # FastAPI's own answer to a malformed parameter; ours is a 400 with our body.
                operation["responses"].pop("422", None)
        token = {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"}
        document["components"] = {
            "schemas": COMPONENTS,
            "securitySchemes": {"token": token},
        }
        document["security"] = [{"token": []}]
        return document

    def methods_at(self, path: str) -> list[str]:
        """Return the methods that an address offers; none if there is no such address."""
        return sorted(
            route.method for route in self._routes if compile_path(route.path)[0].match(path)
        )


def _add(app: fastapi.FastAPI, route: Route) -> None:
    """Add a route to an app that only describes it: FastAPI reads its endpoint's signature."""

    def endpoint() -> None: ...

    endpoint.__name__, endpoint.__doc__ = route.endpoint.__name__, route.endpoint.__doc__
    parameters = [_parameter(each) for each in route.parameters]
    endpoint.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    family = route.path.split("/")[1]
    app.add_api_route(
        route.path,
        endpoint,
        methods=[route.method],
        tags=[family if family in {"sync", "admin"} else "open"],
        response_class=Response,
        **route.documented,
    )


def _parameter(parameter: Parameter) -> inspect.Parameter:
    declared, argument = parameter.declared, parameter.argument
    kind = fastapi.Path if isinstance(declared, Path) else fastapi.Query
    limits = {name: value for name in _LIMITS if (value := getattr(declared, name)) is not None}
    said = kind(alias=parameter.name, description=declared.description, **limits)
    return argument.replace(
        annotation=Annotated[parameter.kind, said], kind=inspect.Parameter.KEYWORD_ONLY
    )
