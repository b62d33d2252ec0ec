"""Starts polling connectors and flows, and moves their cursors."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

from lakesync.connectors.definition import definition_from
from lakesync.connectors.deltas import client_id_of
from lakesync.connectors.forgetting import leased
from lakesync.connectors.registered import secret_name
from lakesync.connectors.state import state_from
from lakesync.core.client_ids import CONNECTORS_USER
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
"""Connectors and polled flows of one gateway; each has its own secret, at $0.40 a month."""


class Keeping:
    """Stores the definitions of connectors, and schedules their polls."""

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
        """Refuse a name that is in use, or a connector above the limit.

        Raises:
            Conflict: the name is in use.
            ValidationFailed: the limit is reached.
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
            gateway: the gateway's id.
            name: the name to store it under.
            definition: the definition, without secrets.
            hidden: the secrets.
            undo: removes what was stored, if some of it could not be.

        Raises:
            Conflict: the name is in use, here or by a client.
        """
        if self._access.bind(gateway, client_id_of(name), CONNECTORS_USER) != CONNECTORS_USER:
            raise Conflict("a client writes under this connector's id: choose another name")
        if not self._store.add(gateway, name, definition.to_json(), self._wall_clock()):
            raise _taken(name)
        try:
            self._secrets.put(secret_name(gateway, name), hidden)
            self._schedules.put(gateway, name, definition.every_minutes, paused=False)
        except LakeSyncError:
            # A half-stored connector might be polled, or not, without notice.
            with suppress(LakeSyncError):  # the first failure is what counts
                undo()
            raise

    def complete(self, gateway: str, name: str, hidden: Mapping[str, str]) -> None:
        """Complete a start whose process died after its first write.

        Args:
            gateway: the gateway's id.
            name: the stored name.
            hidden: the secrets to store if none are stored.
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
        """Make the next poll read some tables from other cursors. Safe to repeat.

        Args:
            gateway: the gateway's id.
            name: the connector's or flow's.
            moved: gives those cursors, from the secrets and the current cursors.

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
