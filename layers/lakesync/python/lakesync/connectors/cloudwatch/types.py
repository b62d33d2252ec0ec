"""The type of connectors of CloudWatch's metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lakesync.connectors.cloudwatch.configuration import CloudWatchSettings
from lakesync.connectors.port import ConnectorType
from lakesync.errors import ValidationFailed

if TYPE_CHECKING:
    from lakesync.connectors.outside import Outside
    from lakesync.connectors.port import Connector
    from lakesync.connectors.storage import Storage

ANY: Final = "*"
"""Allows metrics of every namespace."""


def _cloudwatch(settings: CloudWatchSettings, _: Storage, outside: Outside) -> Connector:
    from lakesync.connectors.cloudwatch.source import CloudWatchConnector  # noqa: PLC0415

    allowed, client = outside.metrics, outside.aws
    wanted = {metric.namespace for metric in settings.metrics}
    refused = sorted(set() if ANY in allowed else wanted - {*allowed})
    if refused or client is None:
        named = ", ".join(refused or sorted(wanted))[:200]
        raise ValidationFailed(
            f"the operator allows no metrics of {named}: the stack's parameter MetricNamespaces "
            "lists the namespaces that may be read",
            field="configuration.metrics",
        )
    return CloudWatchConnector(settings, lambda: client("cloudwatch"))


def _begins_at(settings: CloudWatchSettings, table: str, cursor: str, at_us: int) -> str:
    from lakesync.connectors.cloudwatch.source import begun_at  # noqa: PLC0415 - when asked for

    return begun_at(settings, table, cursor, at_us)


CLOUDWATCH = ConnectorType(
    "cloudwatch", "Amazon CloudWatch", CloudWatchSettings, _cloudwatch, CloudWatchSettings.named,
    begins_at=_begins_at,
)  # fmt: skip
