"""The type of Jira connectors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakesync.connectors.jira.configuration import JiraSettings
from lakesync.connectors.jira.webhooks import REPEATED_S_MAX, verified
from lakesync.connectors.port import ConnectorType, WebhookType

if TYPE_CHECKING:
    from lakesync.connectors.outside import Outside
    from lakesync.connectors.port import Connector
    from lakesync.connectors.storage import Storage


def _jira(settings: JiraSettings, storage: Storage, outside: Outside) -> Connector:
    from lakesync.connectors.jira.source import JiraConnector  # noqa: PLC0415 - when polled

    return JiraConnector(settings, storage, outside)


JIRA = ConnectorType(
    "jira", "Jira Cloud", JiraSettings, _jira, JiraSettings.named,
    webhook=WebhookType("webhookSecret", verified, REPEATED_S_MAX),
)  # fmt: skip
