"""Outcomes of actions in the form in which they are stored."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from lakesync.core.actions import ActionOutcome
from lakesync.core.clock import stamp

if TYPE_CHECKING:
    from lakesync.actions.port import Done

DATA_BYTES_MAX: Final = 131_072
"""An action's result, as JSON: it is remembered in one item, and 25 of them fit one answer."""


def done_outcome(action_id: str, done: Done, now_ms: int) -> ActionOutcome:
    """Return the outcome of an action that was done; its result is left out if it is too large."""
    data = dict(done.data)
    try:
        size = len(json.dumps(data))
    except (TypeError, ValueError):
        data = {"omitted": "the action was done; what it gave is no JSON"}
    else:
        if size > DATA_BYTES_MAX:
            data = {"omitted": f"the action was done; what it gave is over {DATA_BYTES_MAX} bytes"}
    return ActionOutcome(action_id, data, stamp(now_ms))


def written(outcome: ActionOutcome) -> bytes:
    """Write an outcome in its stored form."""
    fields = {"data": outcome.data, "hlc": outcome.server_hlc, "code": outcome.code,
              "message": outcome.message}  # fmt: skip
    return json.dumps(fields, separators=(",", ":")).encode()


def read(body: bytes) -> ActionOutcome:
    """Read what `written` wrote."""
    fields = json.loads(body)
    return ActionOutcome("", fields["data"], fields["hlc"], fields["code"], fields["message"])
