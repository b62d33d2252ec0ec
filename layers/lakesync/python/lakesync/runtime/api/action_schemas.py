"""What is sent and read about actions, as JSON Schema; see `lakesync.runtime.api.schemas`."""

from __future__ import annotations

from typing import Final

from lakesync.core.actions import ACTION_ID_BYTES_MAX, ACTIONS_MAX
from lakesync.runtime.api.connector_schemas import ANYTHING, CONNECTOR_NAME
from lakesync.runtime.api.shapes import (
    CLIENT_ID,
    EPOCH,
    FLAG,
    STAMP,
    TEXT,
    Schema,
    list_of,
    object_of,
    reference,
)

_ID: Final[Schema] = {"type": "string", "minLength": 1, "maxLength": ACTION_ID_BYTES_MAX}
_NAME: Final[Schema] = {"type": "string", "minLength": 1, "maxLength": 64}
_ALLOW: Final[Schema] = object_of(
    {},
    {
        "actions": list_of(TEXT) | {"description": "None: all of the handler's."},
        "role": {"enum": ["client", "admin"]},
        "claims": list_of(ANYTHING | {"description": "{claim, op, value}"}),
        "params": list_of(ANYTHING | {"description": "{param, op, value}"}),
    },
)
_HANDLER: Final[dict[str, Schema]] = {
    "configuration": ANYTHING | {"description": "As the type has it; see docs/actions.md."},
    "allow": list_of(_ALLOW) | {"description": "Who may run what; none: administrators alone."},
    "perMinute": {"type": "integer", "minimum": 1, "description": "By each client; 60."},
}

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
    "ActionHandler": object_of(
        {"name": CONNECTOR_NAME, "type": TEXT},
        {**_HANDLER, "replace": FLAG | {"description": "Put it in place of one of that name."}},
    ),
    "ActionHandlerAdded": object_of({"registered": FLAG, "name": TEXT, "actions": list_of(TEXT)}),
    "ActionHandlers": object_of(
        {"handlers": list_of(object_of({"name": TEXT, "type": TEXT}, _HANDLER))}
    ),
}
