"""Requests to BigQuery, each with a bounded wait, and the client that sends them.

Requests are statements, scripts, loads and tables. Their answers say columns with whole types,
partitions and bytes (`Look`, `Trial`).

Credentials are an AWS workload's by identity federation, or a service account's key. The
configuration of federation is not secret: it states which AWS identity may act as which Google
identity. The AWS identity is proved by a signed request to AWS STS. An endpoint without TLS, which
can only be an emulator, gets no credentials, so no token is sent unencrypted.
"""

from __future__ import annotations

import io
import re
from contextlib import suppress
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar
from urllib.parse import parse_qs, urlsplit
from uuid import uuid4

from google.api_core.exceptions import Conflict
from google.auth import aws
from google.auth import exceptions as auth
from google.auth.credentials import AnonymousCredentials
from google.cloud import bigquery
from google.cloud.bigquery.retry import DEFAULT_RETRY
from google.oauth2 import service_account

from lakesync.adapters.connect import ENDPOINT, not_a_url
from lakesync.errors import (
    AdapterFailed,
    AdapterRefused,
    AdapterTimedOut,
    AdapterUnreachable,
    LakeSyncError,
    OutcomeUnknown,
)
from lakesync.systems.bigquery.bigquery_statements import is_missing_table, quoted, translated

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from google.auth.credentials import Credentials
    from google.cloud.bigquery import SchemaField, Table

T = TypeVar("T")

REQUEST_TIMEOUT_S: Final = 30
"""How long one request may take."""
RETRY_S: Final = 30
"""How long a request with a temporary error is retried."""
JOB_TIMEOUT_S: Final = 300
"""How long a statement, script or load may run."""
_PARAMETERS: Final[tuple[tuple[type[Any], str], ...]] = (
    (str, "STRING"), (bool, "BOOL"), (int, "INT64"), (bytes, "BYTES"), (Decimal, "BIGNUMERIC"),
    (time, "TIME"),
)  # fmt: skip
"""Types of parameters, the subclass before its base class."""
STAGE_HOURS_MAX: Final = 24
"""After this BigQuery removes a stage that a killed writer left."""


class Jobs:
    """Runs jobs on one dataset, one at a time. It connects when the first job runs.

    Args:
        project: the project of the jobs and of the dataset.
        dataset: the dataset of tables whose names state no other; it must exist.
        location: the dataset's location, such as ``EU``; if empty, BigQuery determines it.
        client: an existing client to use.
        endpoint: the API's address if it is not Google's public one: regional, private, or an
            emulator's.
        credentials: a configuration for `google_credentials`; None for the default credentials.
        retry_s: how long a request with a temporary error is retried.
    """

    def __init__(
        self,
        project: str,
        dataset: str,
        location: str = "",
        client: bigquery.Client | None = None,
        retry_s: float = RETRY_S,
        *,
        endpoint: str = "",
        credentials: Mapping[str, Any] | None = None,
    ) -> None:
        self.project = project
        self.dataset = dataset
        self._location = location
        self._own = client
        self._endpoint = endpoint
        self._info = credentials
        self._retry = DEFAULT_RETRY.with_timeout(retry_s)

    def close(self) -> None:
        """Close the connections; the next request opens new ones."""
        if self._own is not None:
            self._own.close()

    # --- statements -------------------------------------------------------------------------------

    def query(self, statement: str, **parameters: str | int | Sequence[str]) -> list[Any]:
        return self._asked(lambda: list(self._finished(statement, parameters)[1]))

    def change(self, statement: str, **parameters: str | int | Sequence[str]) -> int:
        """Run a statement that changes rows, and return their number. Safe to repeat."""
        return self._asked(lambda: self._finished(statement, parameters)[0])

    def transact(self, script: str) -> None:
        """Run a script as one transaction.

        Raises:
            Contention: another writer was first; the script had no effect.
            OutcomeUnknown: it is not known whether the script took effect.
        """
        try:
            self._asked(lambda: self._finished(script, {}))
        except (AdapterUnreachable, AdapterTimedOut) as error:
            raise OutcomeUnknown(
                "the connection to BigQuery was lost during a transaction; repeat the operation"
            ) from error

    def _finished(
        self, statement: str, parameters: Mapping[str, Any]
    ) -> tuple[int, Iterable[tuple[Any, ...]]]:
        # The job has an id of our own, so a request that is repeated starts no second job.
        job = self._client.query(
            statement,
            job_config=bigquery.QueryJobConfig(
                query_parameters=[_parameter(name, value) for name, value in parameters.items()],
                default_dataset=f"{self.project}.{self.dataset}",
                job_timeout_ms=JOB_TIMEOUT_S * 1_000,
            ),
            job_id=f"lakesync_{uuid4().hex}",
            retry=self._retry,
            job_retry=None,
            timeout=REQUEST_TIMEOUT_S,
        )
        try:
            rows = job.result(timeout=JOB_TIMEOUT_S, retry=self._retry, job_retry=None)
        except TimeoutError:
            with suppress(Exception):  # the timeout is the error to report
                job.cancel(retry=None, timeout=REQUEST_TIMEOUT_S)
            raise
        return job.num_dml_affected_rows or 0, (tuple(row) for row in rows)

    # --- reading in pages -------------------------------------------------------------------------

    def look(self, table: str) -> Look:
        """Return what a table is; free.

        Raises:
            AdapterFailed: there is no such table: `is_missing_table`.
        """
        asked = lambda: self._client.get_table(  # noqa: E731 - a call
            self._placed(table), retry=self._retry, timeout=REQUEST_TIMEOUT_S
        )
        return look_of(self._asked(asked))

    def tables(self, tables_max: int) -> list[str]:
        """Return the names of tables of the dataset; free."""

        def work() -> list[str]:
            listed = self._client.list_tables(
                f"{self.project}.{self.dataset}", max_results=tables_max, retry=self._retry,
                timeout=REQUEST_TIMEOUT_S,
            )  # fmt: skip
            return [table.table_id for table in listed]

        return self._asked(work)

    def trial(self, statement: str, parameters: Sequence[Any] = ()) -> Trial:
        """Return what a statement would be and read, without running it; free.

        Args:
            parameters: the values of ``@p0``, ``@p1`` and so on.
        """

        def work() -> Trial:
            config = self._reading(parameters)
            config.dry_run, config.use_query_cache = True, False
            job = self._client.query(
                statement, job_config=config, retry=self._retry, job_retry=None,
                timeout=REQUEST_TIMEOUT_S,
            )  # fmt: skip
            return Trial(
                job.statement_type or "", tuple(map(field_of, job.schema or ())),
                job.total_bytes_processed or 0, job.location or "",
            )  # fmt: skip

        return self._asked(work)

    def start(
        self,
        statement: str,
        parameters: Sequence[Any] = (),
        *,
        job_id: str,
        location: str,
        bytes_billed_max: int,
    ) -> None:
        """Start a query whose rows are read by `rows`. Safe to repeat with the same id."""

        def work() -> None:
            config = self._reading(parameters)
            config.maximum_bytes_billed = bytes_billed_max
            with suppress(Conflict):
                self._client.query(
                    statement, job_config=config, job_id=job_id, location=location or None,
                    retry=self._retry, job_retry=None, timeout=REQUEST_TIMEOUT_S,
                )  # fmt: skip

        self._asked(work)

    def rows(
        self, job_id: str, location: str, start: int, rows_max: int, wait_s: float
    ) -> ReadRows | None:
        """Return some rows of a query that was started, always in the same order.

        BigQuery keeps them for a day, and reading them is free. None if the query still runs.

        Raises:
            AdapterFailed: the query failed, or its rows are no longer kept: `is_missing`.
        """

        def work() -> ReadRows | None:
            job: Any = self._client.get_job(
                job_id, location=location or None, retry=self._retry, timeout=REQUEST_TIMEOUT_S
            )
            try:
                read = job.result(
                    start_index=start, max_results=rows_max, timeout=wait_s, retry=self._retry,
                    job_retry=None,
                )  # fmt: skip
            except TimeoutError:
                return None
            return ReadRows([tuple(row) for row in read], read.total_rows or 0)

        return self._asked(work)

    def _reading(self, parameters: Sequence[Any]) -> bigquery.QueryJobConfig:
        named = [_parameter(f"p{place}", value) for place, value in enumerate(parameters)]
        return bigquery.QueryJobConfig(
            query_parameters=named,
            default_dataset=f"{self.project}.{self.dataset}",
            job_timeout_ms=JOB_TIMEOUT_S * 1_000,
        )

    # --- tables -----------------------------------------------------------------------------------

    def columns(self, table: str) -> set[str] | None:
        """Return the names of a table's columns; None if there is no such table."""

        def work() -> set[str]:
            # A dry run is free, and returns the schema.
            job = self._client.query(
                f"SELECT * FROM {quoted(self._placed(table))}",  # noqa: S608 - quoted
                job_config=bigquery.QueryJobConfig(dry_run=True, use_query_cache=False),
                retry=self._retry,
                job_retry=None,
                timeout=REQUEST_TIMEOUT_S,
            )
            return {field.name for field in job.schema or ()}

        try:
            return self._asked(work)
        except AdapterFailed as error:
            if is_missing_table(error):
                return None
            raise

    def create(
        self,
        table: str,
        columns: Mapping[str, str],
        cluster_by: str = "",
        *,
        is_stage: bool = False,
    ) -> None:
        made = bigquery.Table(self._placed(table), schema=_fields(columns))
        if cluster_by:
            made.clustering_fields = [cluster_by]
        if is_stage:
            made.expires = datetime.now(UTC) + timedelta(hours=STAGE_HOURS_MAX)

        def work() -> None:
            # With exists_ok the client would ask for the table that exists, in another request.
            with suppress(Conflict):
                self._client.create_table(made, retry=self._retry, timeout=REQUEST_TIMEOUT_S)

        self._asked(work)

    def load(self, table: str, columns: Mapping[str, str], lines: Iterable[bytes]) -> None:
        """Load rows, one line of JSON each, into a new stage."""
        body = b"\n".join(lines)
        self.create(table, columns, is_stage=True)

        def work() -> None:
            job = self._client.load_table_from_file(
                io.BytesIO(body),
                self._placed(table),
                job_config=bigquery.LoadJobConfig(
                    source_format=bigquery.SourceFormat.NEWLINE_DELIMITED_JSON,
                    write_disposition=bigquery.WriteDisposition.WRITE_TRUNCATE,
                    schema=_fields(columns),
                ),
                timeout=REQUEST_TIMEOUT_S,
            )
            job.result(timeout=JOB_TIMEOUT_S, retry=self._retry)

        self._asked(work)

    def drop(self, table: str) -> None:
        self._asked(
            lambda: self._client.delete_table(
                self._placed(table),
                not_found_ok=True,
                retry=self._retry,
                timeout=REQUEST_TIMEOUT_S,
            )
        )

    # --- the client -------------------------------------------------------------------------------

    @property
    def _client(self) -> bigquery.Client:
        if self._own is None:
            self._own = google_client(self.project, self._location, self._endpoint, self._info)
        return self._own

    def _placed(self, table: str) -> str:
        parts = [self.project, self.dataset, table]
        named = table.split(".")
        return ".".join(parts[: 3 - len(named)] + named)

    def _asked(self, work: Callable[[], T]) -> T:
        try:
            return work()
        except LakeSyncError:
            raise
        except Exception as exc:
            error = translated(exc)
            if error is None:
                raise
            raise error from exc


def _parameter(name: str, value: Any) -> Any:
    for kind, sql_type in _PARAMETERS:
        if isinstance(value, kind):
            return bigquery.ScalarQueryParameter(name, sql_type, value)
    if isinstance(value, datetime):
        sql_type = "TIMESTAMP" if value.tzinfo else "DATETIME"
        return bigquery.ScalarQueryParameter(name, sql_type, value)
    if isinstance(value, date):
        return bigquery.ScalarQueryParameter(name, "DATE", value)
    return bigquery.ArrayQueryParameter(name, "STRING", list(value))


def _fields(columns: Mapping[str, str]) -> list[bigquery.SchemaField]:
    """Return the schema fields for SQL types, such as ``NUMERIC(12, 2)`` or ``STRING NOT NULL``."""
    fields = []
    for name, kind in columns.items():
        base, _, digits = kind.removesuffix(" NOT NULL").rstrip(")").partition("(")
        size: dict[str, Any] = {}
        if digits:
            size = dict(zip(("precision", "scale"), map(int, digits.split(",")), strict=True))
        mode = "REQUIRED" if kind.endswith("NOT NULL") else "NULLABLE"
        fields.append(bigquery.SchemaField(name, base, mode=mode, **size))
    return fields


# --- what BigQuery says of a table or a statement -------------------------------------------------


_NAMES: Final = {
    "INTEGER": "INT64", "FLOAT": "FLOAT64", "BOOLEAN": "BOOL", "RECORD": "STRUCT",
}  # fmt: skip
"""Types that the API spells otherwise than SQL does."""
PARTITION_TIME: Final = "_PARTITIONTIME"
"""The column of a table that is partitioned by the time of ingestion."""


class Field(NamedTuple):
    """A column."""

    name: str
    type: str
    """As SQL spells it, whole: ``NUMERIC(12, 2)``, ``ARRAY<STRUCT<x INT64>>``."""
    is_required: bool


class Look(NamedTuple):
    """What a table is."""

    fields: tuple[Field, ...]
    key: tuple[str, ...]
    """Its primary key, if it declares one."""
    partition: str
    """The column by whose days, hours, months or years it is partitioned; empty if by none."""
    location: str


class Trial(NamedTuple):
    """What a statement would do."""

    kind: str
    """``SELECT``, ``DELETE``, ``SCRIPT`` …"""
    fields: tuple[Field, ...]
    bytes: int
    """How many it would read."""
    location: str


class ReadRows(NamedTuple):
    """Rows of a query."""

    rows: Sequence[tuple[Any, ...]]
    total: int
    """How many the query has."""


def look_of(table: Table) -> Look:
    times, constraints = table.time_partitioning, table.table_constraints
    key = constraints.primary_key.columns if constraints and constraints.primary_key else ()
    partition = (times.field or PARTITION_TIME) if times else ""
    fields = tuple(map(field_of, table.schema))
    return Look(fields, tuple(key), partition, table.location or "")


def field_of(field: SchemaField) -> Field:
    kind = _type_of(field)
    whole = f"ARRAY<{kind}>" if field.mode == "REPEATED" else kind
    return Field(field.name, whole, field.mode == "REQUIRED")


def _type_of(field: SchemaField) -> str:
    kind = _NAMES.get(field.field_type.upper(), field.field_type.upper())
    if kind == "STRUCT":
        parts = ", ".join(f"{part.name} {field_of(part).type}" for part in field.fields)
        return f"STRUCT<{parts}>"
    digits = [str(one) for one in (field.precision, field.scale) if one is not None]
    return f"{kind}({', '.join(digits)})" if digits else kind


# --- credentials ----------------------------------------------------------------------------------


SCOPES: Final = ("https://www.googleapis.com/auth/bigquery",)
_AWS: Final = "urn:ietf:params:aws:token-type:aws4_request"
_FORMS: Final = (
    "BigQuery's credentials are what `gcloud iam workload-identity-pools create-cred-config … "
    "--aws` writes, or the key of a service account"
)


def google_client(
    project: str, location: str, endpoint: str, info: Mapping[str, Any] | None
) -> bigquery.Client:
    """Return a client; no request is sent yet, except to find default credentials.

    Args:
        project: the project that runs and pays for the jobs.
        location: the dataset's location, or empty.
        endpoint: the API's address if it is not Google's public one, or empty.
        info: a configuration for `google_credentials`; None for the default credentials.
    """
    credentials: Credentials | None = None
    if endpoint.startswith("http://"):
        credentials = AnonymousCredentials()
    elif info is not None:
        credentials = google_credentials(info)
    return bigquery.Client(
        project=project,
        location=location or None,
        credentials=credentials,
        client_options={"api_endpoint": endpoint} if endpoint else None,
    )


def google_credentials(info: Mapping[str, Any]) -> Credentials:
    """Return the credentials that a configuration describes; no request is sent yet.

    Raises:
        AdapterRefused: the configuration is of an unknown type, or incomplete; the message repeats
            none of its content.
    """
    kind = info.get("type")
    try:
        if kind == "service_account":
            key: Credentials = service_account.Credentials.from_service_account_info(
                info, scopes=SCOPES
            )
            return key
        if kind == "external_account" and info.get("subject_token_type") == _AWS:
            return _federated(info)
    except (ValueError, KeyError, TypeError, auth.GoogleAuthError) as exc:
        raise AdapterRefused(f"{_FORMS}; this one is incomplete") from exc
    raise AdapterRefused(_FORMS)


def _federated(info: Mapping[str, Any]) -> Credentials:
    asked = [info["token_url"], info.get("service_account_impersonation_url") or "https://"]
    if not info["audience"] or not all(str(url).startswith("https://") for url in asked):
        raise ValueError("no audience, or an address without TLS")
    named = {name: value for name, value in info.items() if name != "credential_source"}
    federated: Credentials = aws.Credentials.from_info(
        named, scopes=SCOPES, aws_security_credentials_supplier=WorkloadOfAws()
    )
    return federated


class WorkloadOfAws(aws.AwsSecurityCredentialsSupplier):
    """The AWS credentials of a Lambda function or a Glue job, as boto3 finds and renews them."""

    def __init__(self) -> None:
        import botocore.session  # noqa: PLC0415 - the SDK, where it is needed

        self._session: Any = botocore.session.get_session()

    def get_aws_security_credentials(
        self,
        context: Any,  # noqa: ARG002 - Google's interface
        request: Any,  # noqa: ARG002 - Google's interface
    ) -> aws.AwsSecurityCredentials:
        identity = self._session.get_credentials()
        if identity is None:
            raise auth.RefreshError("this workload has no identity of AWS", retryable=False)
        keys = identity.get_frozen_credentials()
        return aws.AwsSecurityCredentials(keys.access_key, keys.secret_key, keys.token)

    def get_aws_region(
        self,
        context: Any,  # noqa: ARG002 - Google's interface
        request: Any,  # noqa: ARG002 - Google's interface
    ) -> str:
        region = self._session.get_config_variable("region")
        if not region:
            raise auth.RefreshError("set AWS_REGION: this workload has no region", retryable=False)
        return str(region)


_PROJECT = re.compile(r"[a-z][a-z0-9-]{2,62}")
_DATASET = re.compile(r"[A-Za-z0-9_]{1,1024}")


def bigquery_jobs(url: str, credentials: Mapping[str, Any] | None = None) -> Jobs:
    """Return the dataset at a URL; see `lakesync.adapters.connect.database_adapter`."""
    try:
        parts = urlsplit(url)
        options = parse_qs(parts.query, strict_parsing=bool(parts.query))
    except ValueError as exc:
        raise not_a_url() from exc
    dataset = parts.path.strip("/")
    named = _PROJECT.fullmatch(parts.netloc) and _DATASET.fullmatch(dataset)
    endpoint = options.get("endpoint", [""])[0]
    known = not options.keys() - {"location", "endpoint"}
    if not named or not known or (endpoint and not ENDPOINT.fullmatch(endpoint)):
        raise not_a_url()
    location = options.get("location", [""])[0]
    return Jobs(parts.netloc, dataset, location, endpoint=endpoint, credentials=credentials)
