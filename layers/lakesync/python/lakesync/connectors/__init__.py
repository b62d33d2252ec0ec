"""Connectors: outside systems whose rows become deltas.

To write your own connector, see ``docs/guide/connectors.md``.
"""

from typing import Final

from lakesync.connectors.port import (
    FEED,
    Change,
    Connector,
    ConnectorType,
    Delivery,
    Divisible,
    Outside,
    SourceColumn,
    SourcePage,
    SourceTable,
    Storage,
    Stretch,
    TakesWebhooks,
    TellsColumns,
    Unreadable,
    WebhookType,
)

__all__ = [
    "FEED",
    "Change",
    "Connector",
    "ConnectorType",
    "Delivery",
    "Divisible",
    "Outside",
    "SourceColumn",
    "SourcePage",
    "SourceTable",
    "Storage",
    "Stretch",
    "TakesWebhooks",
    "TellsColumns",
    "Unreadable",
    "WebhookType",
]

DOORS: Final = (
    "connector_admin",
    "http",
    "incoming_webhooks",
    "large_polls",
    "missing_rows",
    "pages",
    "poll",
    "polls",
    "port",
    "registry",
    "state",
)
"""What other folders may import, beside the names of this module."""
