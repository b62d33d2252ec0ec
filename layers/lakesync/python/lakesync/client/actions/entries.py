"""Actions of the client's queue and their statuses.

::

    waiting ──sent──► sent ──final outcome──► done, or dead ──retry──► another action, waiting
       │               │ └──no answer, or not now──► sent again, under the same id
       └── an edit that it waits for was refused ──► dead
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from lakesync.core.actions import Action, checked_action
from lakesync.errors import BY_CODE, ActionFailed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lakesync.errors import LakeSyncError


class ActionStatus(StrEnum):
    """Where an action stands on its way; stored by these names."""

    WAITING = "waiting"
    """It was never sent."""
    SENT = "sent"
    """It was sent, and how it ended is not known: it may have been done or not."""
    DONE = "done"
    DEAD = "dead"
    """It was not done, or its outcome is unknown; it waits for the app's decision."""


@dataclass(frozen=True, slots=True)
class ActionEntry:
    """An action of the queue."""

    action_id: str
    connector: str
    """The action handler that shall do it, by its registered name."""
    action: str
    params: Mapping[str, Any]
    idempotency_key: str
    status: ActionStatus
    data: Mapping[str, Any]
    """What it gave, once it is done."""
    error: LakeSyncError | None
    """Why it ended; before it ends, why it could not be done when it was last sent."""
    attempts: int
    """How often it was sent."""
    queued_at: datetime
    """By the device's clock."""

    @staticmethod
    def stored(
        action_id: str,
        connector: str,
        action: str,
        params: str,
        idempotency_key: str,
        status: str,
        data: str | None,
        code: str | None,
        message: str | None,
        attempts: int,
        queued_ms: int,
    ) -> ActionEntry:
        """Read an action out of its columns."""
        error = BY_CODE.get(code, ActionFailed)(message or "") if code is not None else None
        return ActionEntry(
            action_id,
            connector,
            action,
            json.loads(params),
            idempotency_key,
            ActionStatus(status),
            json.loads(data) if data is not None else {},
            error,
            attempts,
            datetime.fromtimestamp(queued_ms / 1000, UTC),
        )

    @property
    def has_ended(self) -> bool:
        """Return whether nothing will become of it any more by itself."""
        return self.status in {ActionStatus.DONE, ActionStatus.DEAD}

    @property
    def code(self) -> str:
        """The error's code; empty if there was no error."""
        return self.error.code if self.error else ""

    @property
    def reason(self) -> str:
        """The error's message; empty if there was no error."""
        return self.error.message if self.error else ""

    def to_send(self, client_id: str) -> Action:
        """Return it as it is sent, in the same words however often.

        Raises:
            ActionInvalid: it is not a valid action.
            ValueError: it differs from what was queued: the file is damaged.
        """
        fields = self.connector, self.action, self.params, self.idempotency_key
        action = checked_action(Action(self.action_id, client_id, 0, *fields))
        if self.action_id != action_id_of(self.action_id[:_NONCE], action):
            raise ValueError("the action is not what was queued")
        return action


def action_id_of(nonce: str, action: Action) -> str:
    """Return an action's id: a nonce of 32 characters, and a checksum of the request.

    The checksum detects a damaged file before an action that the app did not request is done.
    """
    asked = f"{nonce}{action.idempotency_key}{action.digest()}"
    return nonce + hashlib.sha256(asked.encode()).hexdigest()[:16]


_NONCE: Final = 32
COLUMNS: Final = (
    "action_id, connector, action, params, idempotency_key, status, data, code, message, attempts, "
    "queued_ms"
)
"""What `ActionEntry.stored` takes."""
