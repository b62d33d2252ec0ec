"""Connectors: outside systems whose rows become deltas.

To write your own connector, see ``docs/guide/connectors.md``.
"""

from lakesync.connectors.outside import Outside
from lakesync.connectors.port import (
    FEED,
    Change,
    Connector,
    ConnectorType,
    Delivery,
    Divisible,
    SourceColumn,
    SourcePage,
    SourceTable,
    Stretch,
    TakesWebhooks,
    TellsColumns,
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
