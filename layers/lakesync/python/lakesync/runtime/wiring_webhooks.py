"""What takes the webhooks of connectors, as settings say. Part of `lakesync.runtime.wiring`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakesync.runtime import wiring, wiring_actions, wiring_connectors

if TYPE_CHECKING:
    from lakesync.connectors.webhooks import Webhooks
    from lakesync.runtime.settings_connectors import WebhookSettings


def webhooks(settings: WebhookSettings) -> Webhooks:
    """Return the service behind ``functions/webhook``; it records webhooks beside actions."""
    from lakesync.connectors.webhooks import Webhooks  # noqa: PLC0415

    return Webhooks(
        wiring_connectors.connector_store(settings),
        wiring_connectors.secrets(settings, settings.connector_secrets),
        wiring.objects(settings, settings.lake_bucket),
        wiring_connectors.pushing(settings),
        wiring.buffer(settings),
        wiring_actions.runs(settings),
        wall_clock=wiring.wall_clock,
        outside=wiring_connectors.outside(settings),
    )
