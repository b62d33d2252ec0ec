"""What is sent and read about connectors, as JSON Schema; see `lakesync.runtime.api.schemas`."""

from __future__ import annotations

from typing import Final

from lakesync.connectors.definition import EVERY_MINUTES_MAX
from lakesync.runtime.api.connectors import DO
from lakesync.runtime.api.shapes import COUNT, FLAG, TEXT, Schema, list_of, object_of, reference

ANYTHING: Final[Schema] = {"type": "object"}
CONNECTOR_NAME: Final[Schema] = {"type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$"}

CONNECTOR_COMPONENTS: Final[dict[str, Schema]] = {
    "Connector": object_of(
        {"type": TEXT, "name": CONNECTOR_NAME, "configuration": ANYTHING},
        {
            "everyMinutes": {"type": "integer", "minimum": 1, "maximum": EVERY_MINUTES_MAX},
            "check": FLAG | {"description": "Check with the source first; true by default."},
        },
    )
    | {"additionalProperties": False},
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
