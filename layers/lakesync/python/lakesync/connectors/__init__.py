"""Connectors: outside systems whose rows become deltas.

What a connector of yours is made of; see ``docs/guide/connectors.md``.
"""

from lakesync.connectors.outside import Outside
from lakesync.connectors.port import (
    FEED,
    Change,
    Connector,
    ConnectorType,
    Delivery,
    SourceColumn,
    SourcePage,
    SourceTable,
    TakesWebhooks,
    Unreadable,
    WebhookType,
)
from lakesync.connectors.storage import Storage

__all__ = [
    "FEED",
    "Change",
    "Connector",
    "ConnectorType",
    "Delivery",
    "Outside",
    "SourceColumn",
    "SourcePage",
    "SourceTable",
    "Storage",
    "TakesWebhooks",
    "Unreadable",
    "WebhookType",
]
