"""Connectors: outside systems whose rows become deltas.

What a connector of yours is made of; see ``docs/guide/connectors.md``.
"""

from lakesync.connectors.outside import Outside
from lakesync.connectors.port import (
    FEED,
    Change,
    Connector,
    ConnectorType,
    SourceColumn,
    SourcePage,
    SourceTable,
    Unreadable,
)
from lakesync.connectors.storage import Storage

__all__ = [
    "FEED",
    "Change",
    "Connector",
    "ConnectorType",
    "Outside",
    "SourceColumn",
    "SourcePage",
    "SourceTable",
    "Storage",
    "Unreadable",
]
