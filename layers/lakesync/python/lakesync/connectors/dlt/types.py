"""The type of connectors of dlt."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakesync.connectors.dlt.configuration import DltSettings
from lakesync.connectors.port import ConnectorType
from lakesync.errors import ValidationFailed

if TYPE_CHECKING:
    from lakesync.connectors.outside import Outside
    from lakesync.connectors.port import Connector
    from lakesync.connectors.storage import Storage


def _dlt(settings: DltSettings, storage: Storage, outside: Outside) -> Connector:
    try:
        from lakesync.connectors.dlt.source import DltConnector  # noqa: PLC0415 - when polled
    except ModuleNotFoundError as exc:
        raise ValidationFailed(
            f"this deployment has no {exc.name}: give it dlt's layer, by the stack's parameter "
            "ConnectorLayer",
            field="type",
        ) from exc
    return DltConnector(settings, storage, outside)


DLT = ConnectorType("dlt", "A source of dlt", DltSettings, _dlt, DltSettings.named)
