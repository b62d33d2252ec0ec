"""Ids that are the gateway's own: nobody else can write as it, or be taken for it."""

from __future__ import annotations

from typing import Final

from lakesync.core.delta import GATEWAY_CLIENT, check_client_id
from lakesync.errors import ValidationFailed

CONNECTOR_CLIENTS: Final = "connector:"
"""How the client ids of connectors and polled flows begin; the name follows."""

CONNECTORS_USER: Final = "|connectors"
"""The user to whom connectors' clients belong. No token is of it."""


def check_own_client_id(client_id: str) -> str:
    """Return the client id if an app or a user may have it.

    Raises:
        ValidationFailed: it is no client id, or one under which the gateway or a connector writes.
    """
    check_client_id(client_id)
    if client_id == GATEWAY_CLIENT or client_id.startswith(CONNECTOR_CLIENTS):
        raise ValidationFailed(
            f"{client_id[:80]!r} is no client id of an app: {GATEWAY_CLIENT} is the gateway's own, "
            f"and what begins with {CONNECTOR_CLIENTS} its connectors'; choose another",
            field="clientId",
        )
    return client_id
