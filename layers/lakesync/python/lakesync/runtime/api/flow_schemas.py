"""What administrators send and read of flows, as JSON Schema."""

from __future__ import annotations

from typing import Final

from lakesync.core.flows import GATEWAY
from lakesync.core.flows_json import SCHEDULE_MINUTES_MAX
from lakesync.runtime.api.destination_schemas import DECLARED, DESTINATION_NAME, KIND
from lakesync.runtime.api.shapes import (
    COUNT,
    FLAG,
    TEXT,
    Schema,
    list_of,
    object_of,
    reference,
)

_DATABASE: Final[dict[str, Schema]] = {"database": KIND["kind"], "secret": KIND["secret"]}
_THE_GATEWAY: Final[Schema] = {"enum": [GATEWAY]}
_SOURCE: Final[Schema] = {
    "oneOf": [
        _THE_GATEWAY,
        object_of({"connector": TEXT}, {"configuration": {"type": "object"}}),
        object_of(
            _DATABASE,
            {"gateway": TEXT | {"description": "Whose tables; this gateway's without it."}},
        ),
    ]
}
_DESTINATION: Final[Schema] = {
    "oneOf": [
        _THE_GATEWAY,
        object_of(
            _DATABASE,
            {name: DECLARED[name] for name in ("tableNames", "deletes")},
        ),
    ]
}
_WHAT: Final[dict[str, Schema]] = {
    "tables": DECLARED["tables"],
    "filter": DECLARED["buckets"],
    "map": DECLARED["map"],
}
_EVERY: Final[Schema] = {"type": "integer", "minimum": 1, "maximum": SCHEDULE_MINUTES_MAX}
_WHEN: Final[dict[str, Schema]] = {
    "schedule": object_of({"everyMinutes": _EVERY}),
    "continuous": FLAG | {"description": "Each minute; from the gateway, behind each flush."},
}
_ERROR: Final[Schema] = object_of({"error": TEXT, "atMs": COUNT}, {"code": TEXT, "table": TEXT})

FLOW_COMPONENTS: Final[dict[str, Schema]] = {
    "FlowDeclared": object_of(
        {"name": DESTINATION_NAME, "source": _SOURCE, "destination": _DESTINATION}, _WHAT | _WHEN
    )
    | {"additionalProperties": False},
    "Flow": object_of(
        {
            "name": DESTINATION_NAME,
            "source": _SOURCE,
            "destination": _DESTINATION,
            **_WHAT,
            "paused": FLAG,
        },
        _WHEN,
    ),
    "FlowStatus": object_of(
        {
            "name": DESTINATION_NAME,
            "source": _SOURCE,
            "destination": _DESTINATION,
            **_WHAT,
            "paused": FLAG,
            "state": {
                "enum": ["current", "behind", "filling", "reading", "waiting", "failing", "paused"]
            },
            "deadLetters": COUNT | {"description": "Rows that could not be delivered."},
        },
        {
            **_WHEN,
            "lagS": COUNT | {"description": "How old may be what is missing there; absent: all."},
            "rows": COUNT | {"description": "Delivered rows, deletions included."},
            "polls": COUNT,
            "waiting": COUNT | {"description": "Batches that wait."},
            "waitS": COUNT,
            "jobMs": COUNT | {"description": "Since when a job has been requested, or reads."},
            "lastError": _ERROR,
        },
    ),
    "Flows": object_of({"flows": list_of(reference("FlowStatus"))}),
    "FlowAnswered": object_of(
        {"flow": reference("Flow"), "isNew": FLAG},
        {
            "message": TEXT | {"description": "By the source."},
            "tables": list_of(reference("FlowTable")) | {"description": "Of a plan."},
        },
    ),
    "FlowTable": object_of(
        {"table": TEXT},
        {
            "rows": COUNT | {"description": "Rows that were looked at; absent: not known."},
            "passing": COUNT | {"description": "Those of them that would move."},
            "hasMore": FLAG | {"description": "There are more than were looked at."},
            "columns": list_of(TEXT) | {"description": "As they would be there."},
        },
    ),
    "FlowRemoved": object_of({"removed": DESTINATION_NAME}, {"message": TEXT}),
    "FlowAction": object_of({}, {"from": {"type": "string", "format": "date-time"}})
    | {"additionalProperties": False},
    "FlowChanged": object_of({"name": DESTINATION_NAME, "action": TEXT}),
}
