"""Checks actions from outside, for both encodings; a malformed one is refused alone."""

from __future__ import annotations

import json

from lakesync.core.actions import ACTIONS_MAX, Action, ActionRefused
from lakesync.errors import ActionInvalid, InvalidInput, ValidationFailed

_ID_CHARACTERS_SHOWN_MAX = 128


def check_count(count: int) -> None:
    """Refuse a request of too many actions.

    Raises:
        ValidationFailed: more than `ACTIONS_MAX`.
    """
    if count > ACTIONS_MAX:
        raise ValidationFailed(
            f"a request may carry {ACTIONS_MAX} actions; this one carries {count}: send in parts",
            field="actions",
        )


def own(action: Action, client_id: str) -> Action:
    """Return an action if it belongs to the client.

    Raises:
        ActionInvalid: it names another client.
    """
    if action.client_id != client_id:
        raise ActionInvalid("an action's clientId must be that of the request", field="clientId")
    return action


def refused(action_id: str, error: InvalidInput) -> ActionRefused:
    """Return the refusal of a malformed action, with the id that it claims."""
    # The claimed id is returned to the client, and half a surrogate pair could not be encoded.
    claimed = action_id[:_ID_CHARACTERS_SHOWN_MAX].encode("utf-8", "replace").decode()
    if not isinstance(error, ActionInvalid):
        error = ActionInvalid(error.message, field=error.field)
    return ActionRefused(claimed, error)


def json_text(value: object) -> bytes:
    """Write a JSON value."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
