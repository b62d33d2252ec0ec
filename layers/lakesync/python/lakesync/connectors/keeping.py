"""Beginning to poll something, and having it read again from somewhere: connectors and flows."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

from lakesync.connectors.definition import definition_from
from lakesync.connectors.deltas import client_id_of
from lakesync.connectors.forgetting import leased
from lakesync.connectors.registered import secret_name
from lakesync.connectors.state import state_from
from lakesync.errors import Conflict, LakeSyncError, ValidationFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lakesync.connectors.definition import Definition
    from lakesync.ports import (
        AccessStore,
        ConnectorStore,
        PollSchedules,
        SecretStore,
        WallClock,
    )

CONNECTORS_MAX: Final = 50
"""Connectors and polled flows of one gateway; each has a secret of its own, at $0.40 a month."""
OWNER: Final = "|connectors"
"""Whose the clients are that connectors write as: no user's."""


class Keeping:
    """Keeps what is polled of gateways."""

    def __init__(
        self,
        store: ConnectorStore,
        secrets: SecretStore,
        schedules: PollSchedules,
        access: AccessStore,
        *,
        wall_clock: WallClock,
    ) -> None:
        self._store = store
        self._secrets = secrets
        self._schedules = schedules
        self._access = access
        self._wall_clock = wall_clock

    def check_free(self, gateway: str, name: str) -> None:
        """Refuse a name that is in use, and one connector too many.

        Raises:
            Conflict: the name is in use.
            ValidationFailed: there are as many as there may be.
        """
        taken = [each.name for each in self._store.connectors(gateway)]
        if name in taken:
            raise _taken(name)
        if len(taken) >= CONNECTORS_MAX:
            raise ValidationFailed(f"a gateway has at most {CONNECTORS_MAX} connectors")

    def begin(
        self,
        gateway: str,
        name: str,
        definition: Definition,
        hidden: Mapping[str, str],
        undo: Callable[[], object],
    ) -> None:
        """Store a definition with its secrets, and poll it from now on.

        Args:
            gateway: whose.
            name: under which name.
            definition: without secrets.
            hidden: the secrets.
            undo: removes what was stored, if not all of it could be.

        Raises:
            Conflict: the name is in use, here or by a client.
        """
        if self._access.bind(gateway, client_id_of(name), OWNER) != OWNER:
            raise Conflict("a client writes under this connector's id: choose another name")
        if not self._store.add(gateway, name, definition.to_json(), self._wall_clock()):
            raise _taken(name)
        try:
            self._secrets.put(secret_name(gateway, name), hidden)
            self._schedules.put(gateway, name, definition.every_minutes, paused=False)
        except LakeSyncError:
            # Half of a connector would be polled, or not, without anybody knowing.
            with suppress(LakeSyncError):  # the first failure is what counts
                undo()
            raise

    def complete(self, gateway: str, name: str, hidden: Mapping[str, str]) -> None:
        """Do what is left of a beginning whose process died behind its first write.

        Args:
            gateway: whose.
            name: of what is stored.
            hidden: the secrets that are stored if none are.
        """
        stored = self._store.connector(gateway, name)
        if stored is not None:
            definition, secret = definition_from(stored.definition), secret_name(gateway, name)
            if hidden and not self._secrets.get(secret):
                self._secrets.put(secret, hidden)
            self._schedules.put(gateway, name, definition.every_minutes, paused=definition.paused)

    def rewind(
        self,
        gateway: str,
        name: str,
        moved: Callable[[Mapping[str, str], Mapping[str, str]], Mapping[str, str]],
    ) -> None:
        """Have some tables read on from other cursors by the next poll. Safe to repeat.

        Args:
            gateway: whose.
            name: of what is polled.
            moved: gives those cursors, by the secrets and the cursors as they are.

        Raises:
            Conflict: it is being polled.
            LakeSyncError: what ``moved`` raises; nothing was changed.
        """
        secrets = self._secrets.get(secret_name(gateway, name))
        stored = leased(self._store, gateway, name, self._wall_clock())
        state = state_from(stored.state)
        try:
            cursors = moved(secrets, state.cursors)
        except LakeSyncError:
            self._store.save(gateway, name, stored.lease, stored.state, 0)
            raise
        state.cursors |= cursors
        state.polled_ms, state.poll_ms = max(state.polled_ms, state.poll_ms), 0
        state.finished = []
        for source in cursors:
            state.begun.pop(source, None)
        self._store.save(gateway, name, stored.lease, state.to_json(), 0)


def _taken(name: str) -> Conflict:
    return Conflict(f"there is a connector {name} already: choose another name, or remove it first")
