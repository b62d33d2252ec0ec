"""What the functions of connectors are told by their environment.

Part of `lakesync.runtime.settings`.
"""

from __future__ import annotations

from dataclasses import dataclass

from lakesync.runtime.settings import (
    PushSettings,
    not_empty,
    not_negative,
    read_hosts,
    variable,
    words_or_none,
)


@dataclass(frozen=True, kw_only=True)
class IngestSettings(PushSettings):
    """What functions need that push what connectors read."""

    lake_bucket: str = variable("LAKE_BUCKET", not_empty)
    connector_secrets: str = variable("CONNECTOR_SECRETS", not_empty)
    connector_hosts: tuple[str, ...] = variable("CONNECTOR_HOSTS", words_or_none, ())
    """Where connectors may ask over HTTP."""
    metric_namespaces: tuple[str, ...] = variable("METRIC_NAMESPACES", words_or_none, ())
    """Of which namespaces of CloudWatch connectors may read metrics."""
    database_hosts: tuple[str, ...] = variable("DATABASE_HOSTS", read_hosts, ())
    """Which hosts of databases may be reached that are not public."""


@dataclass(frozen=True, kw_only=True)
class PollSettings(IngestSettings):
    """What ``functions/ingest`` and ``functions/flow`` need besides."""

    secret_prefix: str = variable("SECRET_PREFIX", not_empty, "")
    """The prefix of the names of secrets with databases' URLs; empty if no flow to or from a
    database is polled.
    """
    flow_job_rows: int = variable("FLOW_JOB_ROWS", not_negative, 0)
    """From how many rows ahead on a table of a flow is the job's; 0 for never."""
    audit_table: str = variable("AUDIT_TABLE", not_empty, "")
    """Where changes of sources' schemas are recorded; empty for a job, which notices none."""
    schema_event_bus: str = variable("SCHEMA_EVENT_BUS", not_empty, "none")
    """Where they are events."""
    place: str = variable("FLOW_PLACE", not_empty, "")
    """Where it polls (`lakesync.core.flows.Flow.place`), if the prefix does not say it."""


@dataclass(frozen=True, kw_only=True)
class WebhookSettings(IngestSettings):
    """What ``functions/webhook`` needs: it pushes what webhooks bring."""

    actions_table: str = variable("ACTIONS_TABLE", not_empty)
    """Where it is noted which were taken."""
