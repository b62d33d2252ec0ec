"""Sends actions to the gateway, and records their outcomes.

Rules of this module
    1. That an action is sent is recorded before it is sent, and its outcome before it is reported.
       So an action that is interrupted at any point is sent again under its id, and the gateway
       returns the same outcome.
    2. The database's lock is never held while waiting for the network.
"""

from __future__ import annotations

import random
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from lakesync.core.actions import ACTIONS_MAX, ActionPush, refusal
from lakesync.core.values import canonical
from lakesync.errors import (
    AnotherGateway,
    BodyTooLarge,
    LakeSyncError,
    NotOffered,
    NotTheGateway,
    Unavailable,
    ValidationFailed,
)
from lakesync.ports import RunsActions

if TYPE_CHECKING:
    from collections.abc import Callable

    from lakesync.client.actions.entries import ActionEntry
    from lakesync.client.live.status import Activity
    from lakesync.client.storage.file import ClientFile
    from lakesync.core.actions import ActionDescription
    from lakesync.ports import Transport

REQUEST_BYTES_MAX: Final = 250_000
"""Parameters of one request, unless one action alone has more: seconds on a slow line."""
_UNSEND: Final = (
    "UPDATE _lakesync_actions SET status = 'waiting', attempts = 0, sent_ms = NULL "
    "WHERE action_id = ? AND status = 'sent' AND attempts = 1"
)


@dataclass(frozen=True, slots=True)
class ActionSummary:
    """What sending actions did."""

    done: int = 0
    dead: int = 0
    """Those that ended otherwise, and are dead letters."""
    later: int = 0
    """Those that could not be done now, and are sent again by themselves."""

    def __add__(self, other: ActionSummary) -> ActionSummary:
        return ActionSummary(
            self.done + other.done, self.dead + other.dead, self.later + other.later
        )


class Sender:
    """Sends the actions of one client."""

    def __init__(
        self,
        file: ClientFile,
        transport: Transport,
        activity: Activity,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._file = file
        self._transport = transport
        self._activity = activity
        self._chance = chance
        self._one_at_a_time = threading.Lock()

    def send(self, stopped: Callable[[], bool]) -> ActionSummary:
        """Send until nothing is ready, or until stopped; the ``done`` of an error is as for `sync`.

        Raises:
            LakeSyncError: why actions must wait; those without an answer are sent again.
        """
        self._file.database.must_be_idle()
        done = ActionSummary()
        number_max = ACTIONS_MAX
        with self._one_at_a_time:
            try:
                while not stopped() and (entries := self._leave(number_max)):
                    summary, number_max = self._exchange(entries)
                    done += summary
            except LakeSyncError as error:
                error.done = done
                self._activity.ended("actions", error)
                raise
        self._activity.ended("actions", None)
        return done

    def discover(self) -> dict[str, list[ActionDescription]]:
        """Ask the gateway which actions this client may run."""
        return self._runner().discover_actions()

    def _runner(self) -> RunsActions:
        if not isinstance(self._transport, RunsActions):
            raise NotOffered("this transport runs no actions: use HttpTransport")
        return self._transport

    def _leave(self, number_max: int) -> list[ActionEntry]:
        """Choose the next request and note that it leaves."""
        actions = self._file.actions
        with self._file.database.lock:
            if not actions.too_old() and not actions.ready(1):
                return []
        with self._file.database.transaction():
            actions.end_too_old()
            ready = actions.ready(number_max)
            size = 0
            for number, entry in enumerate(ready):
                size += len(canonical(entry.params))
                if number and size > REQUEST_BYTES_MAX:
                    ready = ready[:number]
                    break
            actions.mark_sent(ready)
            return [actions.get(entry.action_id) for entry in ready]

    def _exchange(self, entries: list[ActionEntry]) -> tuple[ActionSummary, int]:
        """Send actions and note their outcomes; tells too how many may go next."""
        client_id = self._file.client_id
        with self._file.database.lock:
            epoch = self._file.position().epoch
        push = ActionPush(client_id, tuple(entry.to_send(client_id) for entry in entries), epoch)
        try:
            with self._activity.uploading():
                answers = self._runner().run_actions(push)
        except AnotherGateway:
            with self._file.database.transaction():
                self._file.connection.executemany(_UNSEND, [(one.action_id,) for one in entries])
            raise
        except (ValidationFailed, BodyTooLarge, NotTheGateway) as error:
            if error.is_foreign:
                self.discover()  # raises if it is not only these that do not get through
            # Refused as a whole: what cannot be made smaller is to blame, or is stopped.
            if len(entries) > 1:
                return ActionSummary(), len(entries) // 2
            outcomes = {entries[0].action_id: refusal(entries[0].action_id, error)}
        else:
            outcomes = {outcome.action_id: outcome for outcome in answers.results}
        unanswered = Unavailable("the gateway's answer left this action out")
        done = dead = 0
        with self._file.database.transaction():
            for entry in entries:
                outcome = outcomes.get(entry.action_id) or refusal(entry.action_id, unanswered)
                if self._file.actions.answer(entry, outcome, self._chance()):
                    done += outcome.is_done
                    dead += not outcome.is_done
        summary = ActionSummary(done, dead, len(entries) - done - dead)
        return summary, ACTIONS_MAX
