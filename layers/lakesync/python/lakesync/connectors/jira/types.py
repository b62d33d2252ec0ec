"""The type of Jira connectors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lakesync.connectors.jira.configuration import JiraSettings
from lakesync.connectors.jira.webhooks import REPEATED_S_MAX, verified
from lakesync.connectors.port import ConnectorType, WebhookType
from lakesync.errors import ValidationFailed

if TYPE_CHECKING:
    from lakesync.connectors.outside import Outside
    from lakesync.connectors.port import Connector
    from lakesync.connectors.storage import Storage

LISTED: Final = frozenset({"projects", "users"})
"""Tables that are listed whole at each poll."""


def _jira(settings: JiraSettings, storage: Storage, outside: Outside) -> Connector:
    from lakesync.connectors.jira.source import JiraConnector  # noqa: PLC0415 - when polled

    return JiraConnector(settings, storage, outside)


def _begins_at(_: JiraSettings, source: str, cursor: str, at_us: int) -> str:
    from lakesync.connectors.jira import walk, worklogs  # noqa: PLC0415 - when asked for

    if source in LISTED:
        raise ValidationFailed(
            f"{source} of Jira are listed whole, and have no times of change: name the flow's "
            "other tables, or leave it out to read everything again",
            field="from",
        )
    begun_at = worklogs.begun_at if source == worklogs.TABLE else walk.begun_at
    return begun_at(cursor, at_us // 1_000)


JIRA = ConnectorType(
    "jira", "Jira Cloud", JiraSettings, _jira, JiraSettings.named, begins_at=_begins_at,
    webhook=WebhookType("webhookSecret", verified, REPEATED_S_MAX),
)  # fmt: skip
