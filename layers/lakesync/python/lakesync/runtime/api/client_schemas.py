"""What is shown of a gateway's clients, as JSON Schema; see `lakesync.runtime.api.schemas`."""

from __future__ import annotations

from typing import Final

from lakesync.runtime.api.shapes import (
    CLIENT_ID,
    COUNT,
    FLAG,
    TEXT,
    Schema,
    list_of,
    object_of,
    reference,
)

_TIME: Final[Schema] = {"type": "string", "format": "date-time"}
CLIENT_COMPONENTS: Final[dict[str, Schema]] = {
    "ClientSeen": object_of(
        {
            "client": TEXT,
            "user": TEXT,
            "connections": list_of(object_of({"openedAt": _TIME, "expiresAt": _TIME})),
            "revoked": FLAG | {"description": "It or its user is revoked."},
            "behindMs": {
                "type": ["integer", "null"],
                "description": "How far behind it was when it was noted; null if it never was, or "
                "has read nothing in whole.",
            },
            "quarantined": {
                "type": ["integer", "null"],
                "description": "Edits that were refused and wait for a decision, by its own word.",
            },
            "notedAt": {"type": ["string", "null"], "format": "date-time"},
        }
    ),
    "Clients": object_of(
        {"clients": list_of(reference("ClientSeen"))},
        {"next": TEXT | {"description": "The `cursor` of the next page."}},
    ),
    "Disconnect": object_of(
        {"disconnect": object_of({"client": CLIENT_ID}) | {"additionalProperties": False}}
    )
    | {"additionalProperties": False},
    "Disconnected": object_of({"disconnected": COUNT}),
}
