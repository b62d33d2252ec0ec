"""The type of Salesforce connectors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakesync.connectors.port import ConnectorType
from lakesync.connectors.salesforce.configuration import SalesforceSettings

if TYPE_CHECKING:
    from lakesync.connectors.outside import Outside
    from lakesync.connectors.port import Connector
    from lakesync.connectors.storage import Storage


def _salesforce(settings: SalesforceSettings, storage: Storage, outside: Outside) -> Connector:
    from lakesync.connectors.salesforce.source import SalesforceConnector  # noqa: PLC0415

    return SalesforceConnector(settings, storage, outside)


def _begins_at(_: SalesforceSettings, __: str, cursor: str, at_us: int) -> str:
    from lakesync.connectors.salesforce.source import begun_at  # noqa: PLC0415 - when asked for

    return begun_at(cursor, at_us)


SALESFORCE = ConnectorType(
    "salesforce", "Salesforce", SalesforceSettings, _salesforce, SalesforceSettings.named,
    begins_at=_begins_at,
)  # fmt: skip
