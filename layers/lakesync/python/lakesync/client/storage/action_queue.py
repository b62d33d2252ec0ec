"""`ActionQueue`: the actions of one file, in the order in which they were requested.

::

    waiting ──sent──► sent ──final outcome──► done, or dead ──retry──► another action, waiting
       │               │ └──no answer, or not now──► sent again, under the same id
       └── an edit that it waits for was refused ──► dead

Rules of this module
    1. An action is always sent with the id and the content with which it was queued, however often
       it is sent: the gateway recognises it by these. A retry as another action has another id.
    2. An action that waits for edits waits for every edit that was in the outbox when it was
       queued, except those already quarantined. Stamping edits again keeps that; if one of the
       edits is refused meanwhile, the action ends, unsent.
    3. An action that was sent and has no final outcome is sent again for as long as the gateway
       certainly remembers it. After that it is never sent: it ends with its outcome unknown.

Law X11-X14: ``docs/spec/actions.md``.
"""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_right
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from lakesync.client.storage.misuse import checked_key
from lakesync.core.clock import doubled
from lakesync.core.delta import canonical
from lakesync.core.messages import Action, checked_action
from lakesync.errors import (
    BY_CODE,
    ActionFailed,
    ActionOutcomeUnknown,
    Backpressure,
    EditRefused,
    NotFound,
)

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Mapping, Sequence

    from lakesync.client.storage.outbox import DeviceClock
    from lakesync.core.clock import Stamp
    from lakesync.core.messages import ActionOutcome
    from lakesync.errors import LakeSyncError

# --- entries --------------------------------------------------------------------------------------


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
        """Return it as it is always sent; `ValueError` if a damaged file has altered it."""
        fields = self.connector, self.action, self.params, self.idempotency_key
        action = checked_action(Action(self.action_id, client_id, 0, *fields))
        if self.action_id != action_id_of(self.action_id[:_NONCE], action):
            raise ValueError("the action is not what was queued")
        return action


def action_id_of(nonce: str, action: Action) -> str:
    """Return a nonce and a checksum, which detects an action that the app did not request."""
    asked = f"{nonce}{action.idempotency_key}{action.digest()}"
    return nonce + hashlib.sha256(asked.encode()).hexdigest()[:16]


_NONCE: Final = 32
COLUMNS: Final = (
    "action_id, connector, action, params, idempotency_key, status, data, code, message, attempts, "
    "queued_ms"
)
"""What `ActionEntry.stored` takes."""


# --- the queue ------------------------------------------------------------------------------------


QUEUED_MAX: Final = 10_000
"""Actions of one file that wait, or are dead letters: as many as an app would go through."""
DONE_KEPT_MAX: Final = 1_000
"""Actions that were done and whose results are kept, the latest of them."""
SENT_AGAIN_MS_MAX: Final = 28 * 86_400_000
"""For how long after the first time an action is sent again: gateways remember actions for 30 days.
"""
RETRY_MS_MIN: Final = 1_000
"""The least wait before an action that could not be done is resent; it doubles with each attempt.
"""
RETRY_MS_MAX: Final = 300_000
"""The longest wait before what could not be done is sent again."""

_OPEN: Final = "status IN ('waiting', 'sent')"
_SELECT: Final = f"SELECT {COLUMNS} FROM _lakesync_actions WHERE "  # noqa: S608 - names
_FIRST_EDIT: Final = (
    "SELECT hlc FROM _lakesync_outbox WHERE status <> 'quarantined' ORDER BY hlc LIMIT 1"
)
_READY: Final = (
    f"{_OPEN} AND (status = 'sent' OR NOT EXISTS (SELECT 1 FROM ({_FIRST_EDIT}) "  # noqa: S608
    # One that is due in a far future was noted before the clock was set back.
    "WHERE hlc <= after_hlc)) AND (due_ms <= ? OR due_ms > ?)"
)
_LAST_EDIT: Final = (
    "SELECT hlc FROM _lakesync_outbox WHERE status <> 'quarantined' ORDER BY hlc DESC LIMIT 1"
)
GONE: Final = "no action has this id: it was discarded, or is one of those done long ago"
_TOO_OLD: Final = (
    "it was sent, no outcome came within four weeks, and a gateway does not remember it much "
    "longer: look at the other side before you retry it"
)


class ActionQueue:
    """The actions of one file. Used within the caller's transaction."""

    def __init__(self, connection: sqlite3.Connection, client_id: str, clock: DeviceClock) -> None:
        self._run = connection.execute
        self._client_id = client_id
        self._clock = clock

    def add(
        self,
        connector: str,
        action: str,
        params: Mapping[str, Any],
        idempotency_key: str,
        *,
        after_edits: bool,
    ) -> ActionEntry:
        """Queue an action behind all others; `Backpressure` if `QUEUED_MAX` are there."""
        nonce = uuid4().hex
        key = checked_key(idempotency_key, "idempotency_key")
        asked = Action(nonce, self._client_id, 0, connector, action, params, key)
        action_id = action_id_of(nonce, checked_action(asked))
        ((count,),) = self._run("SELECT count(*) FROM _lakesync_actions WHERE status <> 'done'")
        if count >= QUEUED_MAX:
            raise Backpressure(
                f"{count} actions wait or are dead letters: sync, or discard some; this one was "
                "not queued"
            )
        last = self._run(_LAST_EDIT).fetchone() if after_edits else None
        self._run(
            "INSERT INTO _lakesync_actions (action_id, connector, action, params, "
            "idempotency_key, after_hlc, status, queued_ms) "
            "VALUES (?, ?, ?, ?, ?, ?, 'waiting', ?)",
            (
                *(action_id, connector, action, canonical(params).decode(), idempotency_key),
                *(last[0] if last else 0, self._clock.device_ms()),
            ),
        )
        return self.get(action_id)

    def get(self, action_id: str) -> ActionEntry:
        for entry in self._entries("action_id = ?", action_id):
            return entry
        raise NotFound(GONE, field="action_id")

    def listed(self, *, dead: bool) -> list[ActionEntry]:
        """Return the actions that have not ended, or the dead letters, oldest first."""
        return self._entries("status = 'dead'" if dead else _OPEN)

    def ready(self, number_max: int) -> list[ActionEntry]:
        """Return the first actions that may be sent now."""
        now_ms = self._clock.device_ms()
        return self._entries(_READY, now_ms, now_ms + RETRY_MS_MAX, number_max=number_max)

    def _entries(self, where: str, *values: object, number_max: int = -1) -> list[ActionEntry]:
        sql = f"{_SELECT}{where} ORDER BY place LIMIT ?"
        return [ActionEntry.stored(*row) for row in self._run(sql, (*values, number_max))]

    def due_ms(self) -> int | None:
        """Get in how many milliseconds the next retry of an action is due; None if none waits."""
        ((due_ms,),) = self._run(
            f"SELECT min(due_ms) FROM _lakesync_actions WHERE {_OPEN} AND due_ms > 0"  # noqa: S608
        )
        now_ms = self._clock.device_ms()
        return None if due_ms is None else min(RETRY_MS_MAX, max(0, due_ms - now_ms))

    def too_old(self) -> list[ActionEntry]:
        since_ms = self._clock.device_ms() - SENT_AGAIN_MS_MAX
        return self._entries(f"{_OPEN} AND sent_ms <= ?", since_ms)

    def mark_sent(self, entries: Sequence[ActionEntry]) -> None:
        now_ms = self._clock.device_ms()
        for entry in entries:
            self._run(
                "UPDATE _lakesync_actions SET status = 'sent', attempts = attempts + 1, "
                "sent_ms = coalesce(sent_ms, ?), due_ms = 0 WHERE action_id = ?",
                (now_ms, entry.action_id),
            )

    def answer(self, entry: ActionEntry, outcome: ActionOutcome, chance: float) -> bool:
        """Note an outcome; returns whether the action has ended with it."""
        if outcome.retryable:
            ceiling_ms = doubled(RETRY_MS_MIN, RETRY_MS_MAX, entry.attempts)
            wait_ms = max(RETRY_MS_MIN, int(ceiling_ms * (1 + chance) / 2))
            due_ms = self._clock.device_ms() + wait_ms
            changes = {"due_ms": due_ms, "code": outcome.code, "message": outcome.message}
            self._change(entry, **changes)
            return False
        self._end(
            entry,
            status="done" if outcome.is_done else "dead",
            data=canonical(outcome.data).decode() if outcome.is_done else None,
            code=outcome.code or None,
            message=outcome.message or None,
        )
        self._run(
            "DELETE FROM _lakesync_actions WHERE status = 'done' AND place <= (SELECT place "
            "FROM _lakesync_actions WHERE status = 'done' ORDER BY place DESC LIMIT 1 OFFSET ?)",
            (DONE_KEPT_MAX,),
        )
        return True

    def end_too_old(self) -> None:
        for entry in self.too_old():
            self.end(entry, ActionOutcomeUnknown(_TOO_OLD))

    def end(self, entry: ActionEntry, error: LakeSyncError) -> None:
        """Make an action that has not ended a dead letter."""
        self._end(entry, status="dead", code=error.code, message=error.message)

    def _end(self, entry: ActionEntry, **changes: object) -> None:
        self._change(entry, ended_ms=self._clock.device_ms(), due_ms=0, **changes)

    def _change(self, entry: ActionEntry, **changes: object) -> None:
        """Change an action that has not ended; another process may have recorded its end."""
        sets = ", ".join(f"{name} = ?" for name in changes)
        self._run(
            f"UPDATE _lakesync_actions SET {sets} WHERE action_id = ? AND {_OPEN}",  # noqa: S608 - names
            (*changes.values(), entry.action_id),
        )

    def edits_refused(self, stamps: Sequence[Stamp], why: str) -> None:
        """End what waits for edits that were just set aside; nothing of it was sent."""
        if not stamps:
            return
        error = EditRefused(
            f"an edit that was made before it was refused ({why}), so it was not sent: see to the "
            "edit, then retry the action"
        )
        for entry in self._entries("status = 'waiting' AND after_hlc >= ?", min(stamps)):
            self.end(entry, error)

    def edits_restamped(self, stamps: Sequence[tuple[Stamp, Stamp]]) -> None:
        """Follow edits to their new stamps; the pairs are in the order of the edits."""
        old = [before for before, _ in stamps]
        if not old:
            return
        for place, after in self._run(
            "SELECT place, after_hlc FROM _lakesync_actions "
            "WHERE status = 'waiting' AND after_hlc >= ?",
            (old[0],),
        ).fetchall():
            new = stamps[bisect_right(old, after) - 1][1]
            self._run("UPDATE _lakesync_actions SET after_hlc = ? WHERE place = ?", (new, place))

    def retry(self, action_id: str, idempotency_key: str, *, after_edits: bool) -> ActionEntry:
        """Queue a dead letter as a new action, in its stead."""
        entry = self.get(action_id)
        if entry.status != "dead":
            raise NotFound("no dead letter has this id; list them again", field="action_id")
        self._run("DELETE FROM _lakesync_actions WHERE action_id = ?", (action_id,))
        return self.add(
            entry.connector, entry.action, entry.params, idempotency_key, after_edits=after_edits
        )

    def discard(self, action_id: str) -> ActionEntry:
        entry = self.get(action_id)
        self._run("DELETE FROM _lakesync_actions WHERE action_id = ?", (action_id,))
        return entry

    def clear(self) -> int:
        """Take all out of the queue that has not ended, and all dead letters; returns how many."""
        return self._run(f"DELETE FROM _lakesync_actions WHERE {_OPEN} OR status = 'dead'").rowcount  # noqa: S608
