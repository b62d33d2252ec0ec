"""The messages of the API as JSON Schema, for the OpenAPI document alone.

They describe what `lakesync.wire` and `lakesync.core.schema` accept and return; they take no part
in decoding. A test sends what these schemas allow and checks what they promise.
"""

from __future__ import annotations

from typing import Final

from lakesync.core.delta import COLUMNS_MAX, ROW_ID_BYTES_MAX
from lakesync.runtime.api.action_schemas import ACTION_COMPONENTS
from lakesync.runtime.api.admin_schemas import ADMIN_COMPONENTS
from lakesync.runtime.api.attachment_schemas import ATTACHMENT_COMPONENTS
from lakesync.runtime.api.client_schemas import CLIENT_COMPONENTS
from lakesync.runtime.api.connector_schemas import CONNECTOR_COMPONENTS
from lakesync.runtime.api.destination_schemas import DESTINATION_COMPONENTS
from lakesync.runtime.api.flow_schemas import FLOW_COMPONENTS
from lakesync.runtime.api.shapes import (
    CLIENT_ID,
    COUNT,
    EPOCH,
    FLAG,
    NAME,
    STAMP,
    TEXT,
    Schema,
    list_of,
    object_of,
    reference,
)
from lakesync.wire.incoming import PUSH_DELTAS_MAX

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
    ),
    "Push": object_of(
        {"clientId": CLIENT_ID, "deltas": list_of(reference("Delta"), maxItems=PUSH_DELTAS_MAX)},
        {
            "lastSeenHlc": STAMP,
            "atomic": FLAG | {"description": "One commit, or none of the deltas."},
            "ownCursor": FLAG | {"description": "Receipts do not move the client's cursor."},
            "epoch": EPOCH | {"description": "Refused (409) if it is another gateway's."},
        },
    ),
    "Pull": object_of(
        {},
        {
            "clientId": CLIENT_ID,
            "since": STAMP | {"description": "The cursor: `serverHlc` of the page before."},
            "sinceHlc": STAMP | {"description": "The same, by protobuf's name."},
            "limit": COUNT | {"minimum": 1, "description": "Deltas wanted, as in the address."},
            "maxDeltas": COUNT | {"minimum": 1, "description": "The same, by protobuf's name."},
            "epoch": EPOCH,
            "snapshot": TEXT,
            "scope": TEXT,
            "removes": FLAG,
            "ownCursor": FLAG,
            "fresh": FLAG,
            "atLeast": STAMP,
            "quarantined": COUNT,
        },
    ),
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
            "serverHlc": STAMP,
            "accepted": COUNT | {"description": "Deltas that are durable, duplicates too."},
            "deltas": list_of(reference("Delta"), maxItems=0),
        },
        {
            "results": list_of(reference("DeltaOutcome")),
            "serverTimeMs": COUNT,
            "epoch": EPOCH | {"description": "The gateway's; name it from now on."},
        },
    ),
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
        },
    ),
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
        },
    ),
    "Removal": object_of(
        {
            "op": {"const": "REMOVE"},
            "table": NAME,
            "rowId": {"type": "string", "minLength": 1, "maxLength": ROW_ID_BYTES_MAX},
            "hlc": STAMP,
        }
    ),
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
