"""BigQuery as a source: the type of its connectors."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from lakesync.connectors.bigquery_settings import BigQuerySettings
from lakesync.connectors.http import ANY, is_listed
from lakesync.connectors.port import ConnectorType
from lakesync.errors import ValidationFailed

if TYPE_CHECKING:
    from lakesync.connectors.port import Connector, Outside, Storage


def _bigquery(settings: BigQuerySettings, storage: Storage, outside: Outside) -> Connector:
    named = [entry for entry in outside.hosts if entry != ANY]
    if settings.endpoint and not is_listed(settings.endpoint, named):
        raise ValidationFailed(
            f"the operator of this stack does not list {settings.endpoint} in ConnectorHosts: "
            "leave endpoint out, or ask for it",
            field="configuration.endpoint",
        )
    try:
        from lakesync.adapters.bigquery import Jobs  # noqa: PLC0415 - when polled
        from lakesync.connectors.bigquery_source import BigQueryConnector  # noqa: PLC0415
    except ModuleNotFoundError as exc:
        raise ValidationFailed(
            "the library of BigQuery is missing: install google-cloud-bigquery", field="type"
        ) from exc
    key = settings.credentials
    jobs = Jobs(
        settings.project, settings.dataset, settings.location, endpoint=settings.endpoint,
        credentials=json.loads(key.get_secret_value()) if key else None,
    )  # fmt: skip
    return BigQueryConnector(jobs, settings, storage)


def _begins_at(settings: BigQuerySettings, source: str, cursor: str, at_us: int) -> str:
    from lakesync.connectors.bigquery_queries import (  # noqa: PLC0415 - when asked for
        time_place_from,
    )
    from lakesync.connectors.sql.by_time import begun_at  # noqa: PLC0415 - as above

    if source not in {table.name for table in settings.tables if table.cursor_column}:
        raise ValidationFailed(
            f"{source} is read by difference, and its rows have no times of change: name a "
            "cursorColumn of it, or leave it out to read everything again",
            field="from",
        )
    return begun_at(time_place_from(cursor).before, at_us, settings.overlap_s)


BIGQUERY = ConnectorType(
    "bigquery", "BigQuery", BigQuerySettings, _bigquery, BigQuerySettings.named,
    begins_at=_begins_at,
)  # fmt: skip
