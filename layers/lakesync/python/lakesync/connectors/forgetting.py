"""Removes what a connector created at its source, while nobody polls it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lakesync.connectors.definition import definition_from
from lakesync.connectors.deletions import DELETIONS
from lakesync.connectors.registered import secret_name
from lakesync.connectors.registry import configured, connector_type
from lakesync.connectors.state import PollState, state_from
from lakesync.errors import Conflict, NotFound, ValidationFailed

if TYPE_CHECKING:
    from lakesync.connectors.outside import Outside
    from lakesync.connectors.storage import Storage
    from lakesync.ports import ConnectorStore, SecretStore, StoredConnector

_LEASE_MS: Final = 60_000


def leased(store: ConnectorStore, gateway: str, name: str, now_ms: int) -> StoredConnector:
    """Exclude polls from a connector that is being reset or removed.

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
        return False  # its package is gone: what it created cannot be removed here


def forgotten(
    secrets: SecretStore, storage: Storage, outside: Outside, gateway: str, stored: StoredConnector
) -> str:
    """Remove what a connector created at its source; returns what remains, empty for nothing."""
    name, public = definition_from(stored.definition).reads()
    kind = connector_type(name) if name else None
    if kind is None or kind.forget is None:
        return ""
    hidden = secrets.get(secret_name(gateway, stored.name))
    return kind.forget(configured(kind, {**public, **hidden}), storage, None, outside)


def reset(
    secrets: SecretStore, storage: Storage, outside: Outside, gateway: str, stored: StoredConnector
) -> PollState:
    """Forget all state of a source, and remove what was created there; returns the new state.

    Raises:
        ValidationFailed: what was created there remains.
    """
    remains = forgotten(secrets, storage, outside, gateway, stored)
    if remains:
        raise ValidationFailed(f"it was not reset: {remains}")
    storage.clear(keeping=DELETIONS)
    before = state_from(stored.state)
    # The next poll must be later than all before, or its rows would get older stamps.
    return PollState(polled_ms=max(before.polled_ms, before.poll_ms), deleted=before.deleted)
