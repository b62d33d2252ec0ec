"""The settings of each function, read from its environment once per cold start.

One frozen class for each function, composed of small parts. `load` reports every missing or
malformed variable at once, in one message, before the function serves anything. Those of the
functions of WebSockets are in `lakesync.runtime.websockets`.
"""

from __future__ import annotations

from dataclasses import MISSING, dataclass, field, fields
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

S = TypeVar("S")


class SettingsError(Exception):
    """The function's environment is incomplete; the text names every faulty variable."""


def variable(name: str, read: Callable[[str], Any] = str, default: Any = MISSING) -> Any:
    """Declare a setting: its environment variable, how it is read, and its default."""
    metadata = {"variable": name, "read": read}
    if default is MISSING:
        return field(metadata=metadata)
    return field(default=default, metadata=metadata)


def positive(text: str) -> int:
    """Read a number above 0."""
    if (number := int(text)) <= 0:
        raise ValueError("it must be above 0")
    return number


def not_negative(text: str) -> int:
    """Read a whole number of at least 0."""
    if (number := int(text)) < 0:
        raise ValueError("it must not be below 0")
    return number


def _yes(text: str) -> bool:
    if text in {"yes", "no"}:
        return text == "yes"
    raise ValueError("it must be yes or no")


def _words(text: str) -> tuple[str, ...]:
    if words := tuple(word.strip() for word in text.split(",") if word.strip()):
        return words
    raise ValueError("it must name at least one")


def words_or_none(text: str) -> tuple[str, ...]:
    """Read words with commas between them; there may be none."""
    return _words(text) if text.strip() else ()


def read_hosts(text: str) -> tuple[str, ...]:
    """Read hosts, domains and networks with commas between them; there may be none."""
    from lakesync.adapters.network import (  # noqa: PLC0415 - of functions with databases
        check_listed,
    )

    entries = words_or_none(text)
    check_listed(entries)
    return entries


def not_empty(text: str) -> str:
    """Read text that is not empty."""
    if not text:
        raise ValueError("it must not be empty")
    return text


@dataclass(frozen=True, kw_only=True)
class Aws:
    """Where the function runs. AWS sets these itself."""

    region: str = variable("AWS_REGION", not_empty)
    dynamodb_endpoint: str | None = variable("AWS_ENDPOINT_URL_DYNAMODB", not_empty, None)
    """The SDK's own variables for another endpoint: a VPC endpoint, for instance."""
    endpoint: str | None = variable("AWS_ENDPOINT_URL", not_empty, None)


@dataclass(frozen=True, kw_only=True)
class OpenSettings:
    """What ``functions/open`` tells callers."""

    socket_url: str = variable("SOCKET_URL", not_empty)


@dataclass(frozen=True, kw_only=True)
class BufferSettings(Aws):
    """The buffer's table."""

    buffer_table: str = variable("BUFFER_TABLE", not_empty)


@dataclass(frozen=True, kw_only=True)
class LakeSettings(Aws):
    """The bucket of batches, claims, checkpoints, attachments, and what of connectors is large."""

    lake_bucket: str = variable("LAKE_BUCKET", not_empty)


@dataclass(frozen=True, kw_only=True)
class DatabaseSettings(Aws):
    """Which hosts of databases may be reached that are not public."""

    database_hosts: tuple[str, ...] = variable("DATABASE_HOSTS", read_hosts, ())


@dataclass(frozen=True, kw_only=True)
class SourcePullSettings(BufferSettings, DatabaseSettings):
    """What ``functions/pull_source`` needs, and whoever opens declared databases."""

    secret_prefix: str = variable("SECRET_PREFIX", not_empty)
    """What the names of the secrets begin with that hold databases' URLs."""


@dataclass(frozen=True, kw_only=True)
class FlushQueueSettings(Aws):
    """The queue of gateways that are due to be flushed."""

    flush_queue_url: str = variable("FLUSH_QUEUE_URL", not_empty)


@dataclass(frozen=True, kw_only=True)
class QuotaSettings(BufferSettings):
    """What each gateway may push in a second, unless its operator set another; 0: any amount."""

    quota_pushes: int = variable("QUOTA_PUSHES_PER_S", not_negative)
    quota_deltas: int = variable("QUOTA_DELTAS_PER_S", not_negative)
    quota_bytes: int = variable("QUOTA_BYTES_PER_S", not_negative)


@dataclass(frozen=True, kw_only=True)
class PushSettings(QuotaSettings, FlushQueueSettings):
    """What ``functions/push`` needs."""

    flush_threshold_bytes: int = variable("FLUSH_THRESHOLD_BYTES", positive)
    """Unflushed bytes at which a flush is requested without waiting for the schedule."""
    backpressure_bytes_max: int = variable("BACKPRESSURE_BYTES_MAX", positive)
    backpressure_age_s_max: int = variable("BACKPRESSURE_AGE_S_MAX", positive)


@dataclass(frozen=True, kw_only=True)
class PullSettings(BufferSettings, LakeSettings):
    """What is needed to answer pulls."""


@dataclass(frozen=True, kw_only=True)
class ConnectorSettings(BufferSettings, LakeSettings, DatabaseSettings):
    """What connectors may reach, and where their secrets are."""

    connector_secrets: str = variable("CONNECTOR_SECRETS", not_empty)
    """What the names of connectors' secrets begin with."""
    connector_hosts: tuple[str, ...] = variable("CONNECTOR_HOSTS", words_or_none, ())
    """Where connectors may ask over HTTP."""
    metric_namespaces: tuple[str, ...] = variable("METRIC_NAMESPACES", words_or_none, ())
    """Of which namespaces of CloudWatch connectors may read metrics."""


@dataclass(frozen=True, kw_only=True)
class ActionHostsSettings(DatabaseSettings):
    """What action handlers may reach, and where their secrets are."""

    action_secrets: str = variable("ACTION_SECRETS", not_empty)
    """What the names of action handlers' secrets begin with."""
    action_hosts: tuple[str, ...] = variable("ACTION_HOSTS", words_or_none, ())
    """Where webhooks may go."""


@dataclass(frozen=True, kw_only=True)
class AdminSettings(ConnectorSettings, ActionHostsSettings):
    """What ``functions/admin`` needs, but for what it asks of WebSockets."""

    flush_function: str = variable("FLUSH_FUNCTION", not_empty)
    """The name of ``functions/flush``, which ``POST /admin/flush`` waits for."""
    retain_function: str = variable("RETAIN_FUNCTION", not_empty)
    """The name of ``functions/retain``, which ``DELETE /admin/gateways`` waits for."""
    flow_function: str = variable("FLOW_FUNCTION", not_empty)
    lake_flow_function: str = variable("LAKE_FLOW_FUNCTION", not_empty)
    """The names of ``functions/flow`` and ``lake_flow``: they count what a flow would move."""
    deliver_function: str = variable("DELIVER_FUNCTION", not_empty)
    """The name of ``functions/deliver``, which asks a destination's database whether it answers."""
    deliver_queue_url: str = variable("DELIVER_QUEUE_URL", not_empty)
    poll_machine: str = variable("POLL_MACHINE", not_empty)
    """The ARN of the state machine that polls connectors."""
    poll_schedule_group: str = variable("POLL_SCHEDULE_GROUP", not_empty)
    poll_schedule_role: str = variable("POLL_SCHEDULE_ROLE", not_empty)
    """The ARN of the role by which schedules start polls."""
    audit_table: str = variable("AUDIT_TABLE", not_empty)
    """Where the records are of what administrators change."""


@dataclass(frozen=True, kw_only=True)
class FlushSettings(BufferSettings, FlushQueueSettings, LakeSettings):
    """What ``functions/flush`` needs."""

    announce_queue_url: str = variable("ANNOUNCE_QUEUE_URL", not_empty)
    deliver_queue_url: str = variable("DELIVER_QUEUE_URL", not_empty)


@dataclass(frozen=True, kw_only=True)
class DeliverSettings(SourcePullSettings, LakeSettings):
    """What ``functions/deliver`` needs, and the job of large BigQuery batches."""

    deliver_queue_url: str = variable("DELIVER_QUEUE_URL", not_empty)
    bigquery_job: str = variable("BIGQUERY_JOB", str, "")
    """The Glue job; empty for none."""
    bigquery_job_deltas: int = variable("BIGQUERY_JOB_DELTAS", not_negative, 0)
    """The number of waiting deltas from which a BigQuery table is left to the job; 0 for never."""


@dataclass(frozen=True, kw_only=True)
class ScheduleFlushSettings(BufferSettings, FlushQueueSettings):
    """What ``functions/schedule_flush`` needs."""

    flush_every_minutes: int = variable("FLUSH_EVERY_MINUTES", positive)
    """How often each gateway is asked for; the function is called every minute."""


@dataclass(frozen=True, kw_only=True)
class MaterialiseSettings(LakeSettings):
    """What ``functions/materialise`` needs."""

    glue_job: str = variable("GLUE_JOB", not_empty)
    runs_max: int = variable("RUNS_MAX", positive)
    """Runs of the job that may be at work at once."""
    small_batch_deltas: int = variable("SMALL_BATCH_DELTAS", not_negative)
    """Deltas that are brought into the lake without a run; 0: none."""
    merge_after_minutes: int = variable("MERGE_AFTER_MINUTES", not_negative)
    """How long deltas may wait in a changes table for a merge that needs a run; 0: not at all."""
    database_prefix: str = variable("DATABASE_PREFIX", not_empty)
    lake_catalogue: str = variable("LAKE_CATALOGUE", not_empty)
    """Where the lake's tables are listed; see `lakesync.materialise.lake_catalogue`."""
    stack_id: str = variable("STACK_ID", not_empty)


@dataclass(frozen=True, kw_only=True)
class AuthoriseSettings(Aws):
    """What ``functions/authorise`` needs for tokens: shared secrets, or a set of public keys."""

    algorithms: tuple[str, ...] = variable("JWT_ALGORITHMS", _words)
    secret_arn: str = variable("JWT_SECRET_ARN", default="")
    jwks_url: str = variable("JWKS_URL", default="")
    issuer: str = variable("JWT_ISSUER", default="")
    audience: str = variable("JWT_AUDIENCE", default="")
    token_in_query: bool = variable("SOCKET_TOKEN_IN_QUERY", _yes, default=False)
    """A WebSocket's token may stand in its address, for clients that can do no better."""

    def __post_init__(self) -> None:
        shared = {"HS256"} & set(self.algorithms)
        public = {"RS256", "ES256"} & set(self.algorithms)
        unknown = sorted(set(self.algorithms) - shared - public)
        if unknown:
            raise SettingsError(f"JWT_ALGORITHMS: use HS256, RS256 or ES256, not {unknown[0]}")
        if shared and public:
            # A public key must never be taken for a shared secret (RFC 8725 § 2.1).
            raise SettingsError("JWT_ALGORITHMS: use HS256 alone, or RS256 and ES256")
        if shared and not self.secret_arn:
            raise SettingsError("JWT_SECRET_ARN must be set for HS256")
        if public and not self.jwks_url.startswith("https://"):
            raise SettingsError("JWKS_URL must be an https address for RS256 and ES256")
        if public and not (self.issuer and self.audience):
            # The same keys may sign tokens for other apps.
            raise SettingsError("JWT_ISSUER and JWT_AUDIENCE must be set for RS256 and ES256")

    @property
    def shares_secret(self) -> bool:
        """Return whether tokens are signed with a shared secret rather than a private key."""
        return "HS256" in self.algorithms


def load(kind: type[S], environment: Mapping[str, str]) -> S:
    """Read one function's settings.

    Raises:
        SettingsError: variables are missing or malformed; all of them are named.
    """
    values: dict[str, Any] = {}
    faults: list[str] = []
    for setting in fields(kind):  # type: ignore[arg-type]  # every kind here is a dataclass
        variable = setting.metadata["variable"]
        text = environment.get(variable)
        if text is None:
            faults += [f"{variable} is missing"] if setting.default is MISSING else []
            continue
        try:
            values[setting.name] = setting.metadata["read"](text)
        except ValueError as exc:
            faults.append(f"{variable} is {text[:40]!r}: {exc}")
    if faults:
        raise SettingsError(f"set the function's environment: {'; '.join(faults)}")
    return kind(**values)


# --- actions --------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ActionSettings(BufferSettings, ActionHostsSettings):
    """What ``functions/actions`` needs."""

    actions_table: str = variable("ACTIONS_TABLE", not_empty)
    """What is remembered of actions."""


# --- attachments ----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class AttachmentSettings(QuotaSettings, LakeSettings):
    """What ``functions/attachments`` needs."""

    attachment_bytes_max: int = variable("ATTACHMENT_BYTES_MAX", positive)
    """The largest file that is taken."""


# --- connectors -----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class IngestSettings(PushSettings, ConnectorSettings):
    """What functions need that push what connectors read."""


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


# --- retention ------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class RetainSettings(BufferSettings, LakeSettings):
    """What ``functions/retain`` needs."""

    checkpoint_every_hours: int = variable("CHECKPOINT_EVERY_HOURS", positive)
    checkpoint_chunk_bytes: int = variable("CHECKPOINT_CHUNK_BYTES", positive)
    checkpoint_lake_rows: int = variable("CHECKPOINT_LAKE_ROWS", positive)
    log_keep_days: int = variable("LOG_KEEP_DAYS", positive)
    tombstone_keep_days: int = variable("TOMBSTONE_KEEP_DAYS", positive)
