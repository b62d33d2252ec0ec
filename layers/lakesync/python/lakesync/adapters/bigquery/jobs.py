"""Requests to BigQuery: statements, scripts, loads and tables, each with a bounded wait.

`lakesync.adapters.bigquery.credentials` makes the client that sends them.
"""

from __future__ import annotations

import io
from contextlib import suppress
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final, TypeVar
from uuid import uuid4

from google.api_core.exceptions import Conflict
from google.cloud import bigquery
from google.cloud.bigquery.retry import DEFAULT_RETRY

from lakesync.adapters.bigquery.credentials import google_client
from lakesync.adapters.bigquery.faults import is_missing_table, translated
from lakesync.adapters.bigquery.looks import ReadRows, Trial, field_of, look_of
from lakesync.adapters.bigquery.names import quoted
from lakesync.errors import (
    AdapterFailed,
    AdapterTimedOut,
    AdapterUnreachable,
    LakeSyncError,
    OutcomeUnknown,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from lakesync.adapters.bigquery.looks import Look

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
        """Run a query and return its rows."""
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
            statement: the statement.
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
        """Create a table if it does not exist."""
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
        """Remove a table if it exists."""
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
