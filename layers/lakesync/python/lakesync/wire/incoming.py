"""Checks deltas and actions from outside, for both encodings, and names what is wrong.

A fault of a delta names its field; a malformed action is refused alone.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from lakesync.core.delta import CHANGES, Delta, Op, check_row_id, checked_delta, removal
from lakesync.core.messages import ACTIONS_MAX, Action, ActionRefused
from lakesync.core.names import check_table_name
from lakesync.errors import ActionInvalid, InvalidInput, ValidationFailed

if TYPE_CHECKING:
    from lakesync.core.delta import Columns

# --- deltas ---------------------------------------------------------------------------------------


PUSH_DELTAS_MAX: Final = 10_000
"""Deltas in one push."""

OP_NAMES: Final = {op.name: op for op in CHANGES}


def incoming_delta(
    op: Op, table: str, row_id: str, client_id: str, hlc: int, columns: Columns, delta_id: str
) -> Delta:
    """Make a valid delta from decoded fields; an id that was sent must match the change.

    Raises:
        ValidationFailed: a field is malformed, or the id does not match this change.
        DeltaTooLarge: the delta is over its limits.
    """
    delta = checked_delta(op, table, row_id, client_id, hlc, columns)
    if delta_id and delta_id != delta.delta_id:
        raise ValidationFailed(
            "deltaId is not the SHA-256 of this change; leave it out, or see docs/spec/identity.md",
            field="deltaId",
        )
    return delta


def row_key(table: str, row_id: str) -> tuple[str, str]:
    """Return the row that a delta names.

    Raises:
        ValidationFailed: a name is malformed.
    """
    return check_table_name(table, "table"), check_row_id(row_id)


def under(error: InvalidInput, path: str) -> InvalidInput:
    """Put the path of a delta before the field that an error names."""
    error.field = f"{path}.{error.field}" if error.field else path
    return error


def check_count(count: int) -> None:
    """Refuse a push of too many deltas.

    Raises:
        ValidationFailed: more than `PUSH_DELTAS_MAX`.
    """
    if count > PUSH_DELTAS_MAX:
        raise ValidationFailed(
            f"a push may carry {PUSH_DELTAS_MAX} deltas; this one carries {count}: push in parts",
            field="deltas",
        )


def incoming_removal(table: str, row_id: str, hlc: int) -> Delta:
    """Return a removal from a page, if it is valid.

    Raises:
        ValidationFailed: a name is malformed.
    """
    return removal(*row_key(table, row_id), hlc)


# --- actions --------------------------------------------------------------------------------------


_ID_CHARACTERS_SHOWN_MAX = 128


def check_action_count(count: int) -> None:
    """Refuse a request of too many actions.

    Raises:
        ValidationFailed: more than `ACTIONS_MAX`.
    """
    if count > ACTIONS_MAX:
        raise ValidationFailed(
            f"a request may carry {ACTIONS_MAX} actions; this one carries {count}: send in parts",
            field="actions",
        )


def own_action(action: Action, client_id: str) -> Action:
    """Return an action if it belongs to the client.

    Raises:
        ActionInvalid: it names another client.
    """
    if action.client_id != client_id:
        raise ActionInvalid("an action's clientId must be that of the request", field="clientId")
    return action


def refused_action(action_id: str, error: InvalidInput) -> ActionRefused:
    """Return the refusal of a malformed action, with the id that it claims."""
    # The claimed id is returned to the client, and half a surrogate pair could not be encoded.
    claimed = action_id[:_ID_CHARACTERS_SHOWN_MAX].encode("utf-8", "replace").decode()
    if not isinstance(error, ActionInvalid):
        error = ActionInvalid(error.message, field=error.field)
    return ActionRefused(claimed, error)


def json_text(value: object) -> bytes:
    """Write a JSON value."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
