"""Sources of dlt, the library of sources: any of its resources is a table of a connector."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakesync.connectors.port import ConnectorType
from lakesync.errors import ValidationFailed
from lakesync.systems.dlt.dlt_settings import DltSettings

if TYPE_CHECKING:
    from lakesync.connectors.port import Connector, Outside, Storage


def _dlt(settings: DltSettings, storage: Storage, outside: Outside) -> Connector:
    try:
        from lakesync.systems.dlt.dlt_source import DltConnector  # noqa: PLC0415 - when polled
    except ModuleNotFoundError as exc:
        raise ValidationFailed(
            f"this deployment has no {exc.name}: give it dlt's layer, by the stack's parameter "
            "ConnectorLayer",
            field="type",
        ) from exc
    return DltConnector(settings, storage, outside)


DLT = ConnectorType("dlt", "A source of dlt", DltSettings, _dlt, DltSettings.named)
