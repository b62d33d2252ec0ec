"""Connectors: outside systems whose rows become deltas.

To write your own connector, see ``docs/guide/connectors.md``.
"""

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
