"""Removing what a connector made at its source, while nobody polls it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lakesync.connectors.definition import definition_from
from lakesync.connectors.registered import secret_name
from lakesync.connectors.registry import configured, connector_type
from lakesync.connectors.state import PollState, state_from
from lakesync.errors import Conflict, NotFound, ValidationFailed

if TYPE_CHECKING:
    from lakesync.connectors.storage import Storage
    from lakesync.ports import ConnectorStore, SecretStore, StoredConnector

_LEASE_MS: Final = 60_000


def leased(store: ConnectorStore, gateway: str, name: str, now_ms: int) -> StoredConnector:
    """Keep polls out of a connector that is reset or removed.

    Raises:
        Conflict: it is being polled.
    """
    stored = store.lease(gateway, name, now_ms, now_ms + _LEASE_MS)
    if stored is None:
        raise Conflict(f"{name} is being polled: pause it, and try again in a minute")
    return stored


def makes_something(stored: StoredConnector) -> bool:
    """Say whether connectors of a type make something at their sources."""
    try:
        return connector_type(definition_from(stored.definition).reads()[0]).forget is not None
    except NotFound:
        return False  # its package is gone: what it made, nobody can remove here


def forgotten(secrets: SecretStore, storage: Storage, gateway: str, stored: StoredConnector) -> str:
    """Remove what a connector made at its source; gives what remains there, empty if nothing."""
    name, public = definition_from(stored.definition).reads()
    kind = connector_type(name) if name else None
    if kind is None or kind.forget is None:
        return ""
    hidden = secrets.get(secret_name(gateway, stored.name))
    return kind.forget(configured(kind, {**public, **hidden}), storage, None)


def reset(
    secrets: SecretStore, storage: Storage, gateway: str, stored: StoredConnector
) -> PollState:
    """Forget all that is known of a source, and what was made there; gives how far it is then.

    Raises:
        ValidationFailed: what was made there remains.
    """
    remains = forgotten(secrets, storage, gateway, stored)
    if remains:
        raise ValidationFailed(f"it was not reset: {remains}")
    storage.clear()
    before = state_from(stored.state)
    # The next poll is later than every one before, or what it reads would be older.
    return PollState(polled_ms=max(before.polled_ms, before.poll_ms))
