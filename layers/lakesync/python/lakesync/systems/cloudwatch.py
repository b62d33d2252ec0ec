"""Metrics of CloudWatch as a source: a row for each datapoint.

CloudWatch gives no time of a datapoint's last change, and datapoints do change: a late sample is
counted in its own period. So each poll reads the last minutes again. A datapoint only gains
samples, so its change time is its own time plus the number of its samples in microseconds. An
unchanged datapoint that is read twice is the same delta, and one that gained samples is later.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from pydantic import Field, model_validator

from lakesync.connectors.port import (
    Change,
    ConnectorType,
    Settings,
    SourceColumn,
    SourcePage,
    SourceTable,
)
from lakesync.errors import (
    AdapterFailed,
    AdapterQuotaExceeded,
    AdapterRefused,
    AdapterUnreachable,
    LakeSyncError,
    NotFound,
    ValidationFailed,
)
from lakesync.result import Err, Ok

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Self

    from botocore.exceptions import ClientError

    from lakesync.connectors.port import Connector, Outside, Storage
    from lakesync.result import Result

# --- settings -------------------------------------------------------------------------------------


TABLE: Final = "datapoints"
METRICS_MAX: Final = 250
"""Metrics of one connector: each is two of the 500 queries that a request may have."""


class Metric(Settings):
    """One metric, by one statistic."""

    name: str = Field(min_length=1, max_length=100, description="What it is called in the rows.")
    namespace: str = Field(min_length=1, max_length=255)
    metric: str = Field(min_length=1, max_length=255)
    dimensions: dict[str, str] = Field(default_factory=dict, max_length=30)
    statistic: Literal["Average", "Sum", "Minimum", "Maximum", "SampleCount"] = "Average"


class CloudWatchSettings(Settings):
    """Which metrics are read, and how far back."""

    metrics: list[Metric] = Field(min_length=1, max_length=METRICS_MAX)
    period_s: Literal[60, 300, 3600] = Field(60, description="Seconds of one datapoint.")
    first_hours: int = Field(24, ge=1, le=360, description="How far back the first poll reads.")
    late_minutes: int = Field(15, ge=0, le=1440, description="How late samples may come.")

    @model_validator(mode="after")
    def _names_differ(self) -> Self:
        names = [metric.name for metric in self.metrics]
        if len(set(names)) < len(names):
            raise ValueError("two metrics have one name: their rows would be the same")
        return self

    def named(self) -> Mapping[str, str]:
        return {TABLE: "cloudwatch_datapoints"}


# --- reading --------------------------------------------------------------------------------------


_COLUMNS: Final = {"metric": "string", "at": "timestamp", "value": "number"}
_SERVER_ERROR: Final = 500


class Datapoint(NamedTuple):
    """One datapoint of one metric."""

    metric: str
    at: datetime
    value: float
    samples: int

    def change(self, period_s: int) -> Change:
        """Return it as a row, whose time is later with each sample."""
        at = self.at.isoformat()
        changed_us = int(self.at.timestamp()) * 10**6 + min(self.samples, period_s * 10**6)
        columns = {"metric": self.metric, "at": at, "value": self.value}
        return Change(f"{self.metric}/{at}", columns, changed_us)


class CloudWatchConnector:
    """`lakesync.connectors.port.Connector` of metrics of the stack's account and region."""

    def __init__(self, settings: CloudWatchSettings, client: Callable[[], Any]) -> None:
        self._settings = settings
        self._client = client

    def check(self) -> Result[str, LakeSyncError]:
        """Read what the first poll reads; metrics without datapoints are named."""
        return _tried(self._checked)

    def _checked(self) -> str:
        at_s = int(datetime.now(UTC).timestamp())
        since_s = at_s - self._settings.first_hours * 3600
        seen = {each.metric for each in self._datapoints(since_s, at_s)}
        silent = [each.name for each in self._settings.metrics if each.name not in seen]
        return f"{len(seen)} metrics have datapoints" + (
            f", and these have none: {', '.join(silent)}." if silent else "."
        )

    def discover(self) -> Result[tuple[SourceTable, ...], LakeSyncError]:
        columns = tuple(SourceColumn(name, type_) for name, type_ in _COLUMNS.items())
        return Ok((SourceTable(TABLE, columns, key=("metric", "at")),))

    def read(
        self, table: str, cursor: str, *, rows_max: int, poll_ms: int
    ) -> Result[SourcePage, LakeSyncError]:
        if table != TABLE:
            return Err(NotFound(f"there is no table {table[:60]}; there is {TABLE}"))
        return _tried(lambda: self._page(cursor, rows_max, poll_ms // 1000))

    def close(self) -> None:
        """Hold nothing."""

    def _page(self, cursor: str, rows_max: int, poll_s: int) -> SourcePage:
        settings, period_s = self._settings, self._settings.period_s
        now_s = poll_s - poll_s % period_s
        start_s = int(cursor) if cursor else now_s - settings.first_hours * 3600
        periods = max(1, rows_max // len(settings.metrics))
        end_s = min(now_s, start_s + periods * period_s)
        if end_s <= start_s:  # a clock that went back
            return SourcePage((), str(start_s), has_more=False)
        changes = tuple(each.change(period_s) for each in self._datapoints(start_s, end_s))
        has_more = end_s < now_s
        late_s = settings.late_minutes * 60 // period_s * period_s
        return SourcePage(changes, str(end_s if has_more else end_s - late_s), has_more)

    def _datapoints(self, start_s: int, end_s: int) -> Iterator[Datapoint]:
        """Yield the datapoints between two times, by metric."""
        values: dict[str, dict[datetime, float]] = {}
        for result in self._results(start_s, end_s):
            if result["StatusCode"] in {"InternalError", "Forbidden"}:
                raise AdapterFailed(f"CloudWatch gave no data: {result['StatusCode']}")
            times = (at.astimezone(UTC) for at in result["Timestamps"])
            values.setdefault(result["Id"], {}).update(zip(times, result["Values"], strict=True))
        for number, metric in enumerate(self._settings.metrics):
            samples = values.get(f"n{number}", {})
            for at, value in sorted(values.get(f"v{number}", {}).items()):
                yield Datapoint(metric.name, at, value, int(samples.get(at, 0)))

    def _results(self, start_s: int, end_s: int) -> Iterator[Any]:
        request: dict[str, Any] = {
            "MetricDataQueries": [
                query
                for number, metric in enumerate(self._settings.metrics)
                for query in _queries(number, metric, self._settings.period_s)
            ],
            "StartTime": datetime.fromtimestamp(start_s, UTC),
            "EndTime": datetime.fromtimestamp(end_s, UTC),
        }
        while request:
            answer = self._client().get_metric_data(**request)
            yield from answer["MetricDataResults"]
            more = answer.get("NextToken")
            request = {**request, "NextToken": more} if more else {}


def begun_at(settings: CloudWatchSettings, _: str, cursor: str, at_us: int) -> str:
    """Return the cursor from which datapoints since a time are read again."""
    at_s = at_us // 10**6
    return str(min(int(cursor), at_s - at_s % settings.period_s)) if cursor else ""


def _queries(number: int, metric: Metric, period_s: int) -> Iterator[dict[str, Any]]:
    dimensions = [{"Name": name, "Value": value} for name, value in metric.dimensions.items()]
    what = {"Namespace": metric.namespace, "MetricName": metric.metric, "Dimensions": dimensions}
    for prefix, statistic in (("v", metric.statistic), ("n", "SampleCount")):
        stat = {"Metric": what, "Period": period_s, "Stat": statistic}
        yield {"Id": f"{prefix}{number}", "MetricStat": stat}


def _tried(work: Callable[[], Any]) -> Result[Any, LakeSyncError]:
    from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415 - types are listed without it

    try:
        return Ok(work())
    except LakeSyncError as error:
        return Err(error)
    except ClientError as exc:
        return Err(_refused(exc))
    except BotoCoreError as exc:
        return Err(AdapterUnreachable(f"CloudWatch was not reached: {type(exc).__name__}"))


def _refused(error: ClientError) -> LakeSyncError:
    code = error.response["Error"]["Code"]
    if "Throttl" in code or "LimitExceeded" in code:
        return AdapterQuotaExceeded(f"CloudWatch accepts no more for now: {code}")
    if error.response["ResponseMetadata"]["HTTPStatusCode"] >= _SERVER_ERROR:
        return AdapterFailed(f"CloudWatch failed: {code}")
    return AdapterRefused(f"CloudWatch refused it: {code}")


# --- the type -------------------------------------------------------------------------------------


ANY: Final = "*"
"""Allows metrics of every namespace."""


def _cloudwatch(settings: CloudWatchSettings, _: Storage, outside: Outside) -> Connector:

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


CLOUDWATCH = ConnectorType(
    "cloudwatch", "Amazon CloudWatch", CloudWatchSettings, _cloudwatch, CloudWatchSettings.named,
    begins_at=begun_at,
)  # fmt: skip
