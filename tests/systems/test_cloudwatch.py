"""CloudWatch's metrics, against the emulator's CloudWatch: the contract, and what is its own."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import boto3
import pytest
from botocore.config import Config

from lakesync.connectors import Change, Connector, Outside, SourcePage, Storage
from lakesync.connectors.registry import configured
from lakesync.errors import AdapterFailed, AdapterRefused, AdapterUnreachable, ValidationFailed
from lakesync.result import Err, Ok, Result
from lakesync.systems.cloudwatch import ANY, CLOUDWATCH
from lakesync.testing.connector_contract import ConnectorContract, Reader
from tests.support.lake import Objects

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lakesync.errors import LakeSyncError
    from tools.local_stack.aws_emulator import Emulator

POLL_S = 4_000_000_000 // 60 * 60
"""When the contract's polls begin, in whole minutes."""
EMULATED = pytest.mark.emulator


class Account:
    """Metrics of a namespace of their own; also the bench of the contract.

    A row of the contract is a minute's datapoint of one metric, its texts are numbers that grow.
    """

    table = "datapoints"
    notices_deletions = False
    numbers = itertools.count(1)

    def __init__(self, emulator: Emulator, **settings: Any) -> None:
        self.client = boto3.client("cloudwatch", **emulator.client_options())
        self.namespace = f"test {next(self.numbers)}"
        self.settings = settings
        self.texts: list[Any] = [None]
        self.outside = Outside(
            (), lambda service: getattr(self, service), metrics=(self.namespace,)
        )

    @property
    def cloudwatch(self) -> Any:
        return self.client

    def metric(self, name: str) -> dict[str, Any]:
        given = {"name": name, "namespace": self.namespace, "metric": f"of {name}"}
        return {**given, "dimensions": {"queue": "é"}, "statistic": "Maximum"}

    def connector(self) -> Connector:
        settings = {"metrics": [self.metric("m")], **self.settings}
        made = CLOUDWATCH.make(
            configured(CLOUDWATCH, settings), Storage(Objects(), "g", "c"), self.outside
        )
        return _ByMinute(made)

    def measure(self, name: str, at_s: int, value: float) -> None:
        self.client.put_metric_data(
            Namespace=self.namespace,
            MetricData=[
                {
                    "MetricName": f"of {name}",
                    "Dimensions": [{"Name": "queue", "Value": "é"}],
                    "Timestamp": datetime.fromtimestamp(at_s, UTC),
                    "Value": value,
                }
            ],
        )

    def put(self, rows: Mapping[str, Any]) -> None:
        for minute, text in rows.items():
            self.texts.append(text)
            self.measure("m", POLL_S - 2_700 + 60 * int(minute), len(self.texts) - 1)

    def delete(self, row_id: str) -> None:
        """Nothing: nobody deletes a datapoint."""

    def value(self, columns: Mapping[str, Any]) -> Any:
        return self.texts[int(columns["value"])]


class _ByMinute:
    """The connector, its rows named by minutes as the contract names them."""

    def __init__(self, connector: Connector) -> None:
        self._connector = connector
        self.check = connector.check
        self.discover = connector.discover
        self.close = connector.close

    def read(
        self, table: str, cursor: str, *, rows_max: int, poll_ms: int
    ) -> Result[SourcePage, LakeSyncError]:
        read = self._connector.read(table, cursor, rows_max=rows_max, poll_ms=poll_ms)
        if isinstance(read, Err):
            return read
        page = read.value
        changes = tuple(change._replace(row_id=_minute(change)) for change in page.changes)
        return Ok(SourcePage(changes, page.cursor, page.has_more))


def _minute(change: Change) -> str:
    at = datetime.fromisoformat(change.row_id.removeprefix("m/"))
    return str((int(at.timestamp()) - POLL_S + 2_700) // 60)


@EMULATED
@pytest.mark.law("N1", "N2", "N3")
class TestCloudWatch(ConnectorContract):
    """CloudWatch; what is read again reaches back over all that the tests change."""

    @pytest.fixture
    def bench(self, emulator: Emulator) -> Account:
        return Account(emulator, firstHours=1, lateMinutes=50)


@EMULATED
@pytest.mark.law("N1", "N3")
def test_late_sample_changes_only_its_own_datapoint(emulator: Emulator) -> None:
    account = Account(emulator)
    account.put({"1": "a", "40": "b", "41": "c"})
    reader = Reader(account)
    before = {delta.delta_id for page in reader.poll() for delta in reader.deltas(page)}
    account.put({"40": "later"})
    new = [d for page in reader.poll() for d in reader.deltas(page) if d.delta_id not in before]

    assert [delta.row_id for delta in new] == ["40"]
    assert reader.rows == {"1": "a", "40": "later", "41": "c"}


@EMULATED
def test_many_metrics_are_read_in_pages_of_time(emulator: Emulator) -> None:
    names = [f"m{number}" for number in range(3)]
    account = Account(emulator)
    connector = CLOUDWATCH.make(
        configured(CLOUDWATCH, {"metrics": [account.metric(name) for name in names]}),
        Storage(Objects(), "g", "c"),
        account.outside,
    )
    for name in names:
        for minute in (1, 2, 900):
            account.measure(name, POLL_S - 60 * minute, minute)
    rows, cursor, pages = set(), "", 0
    while True:
        read = connector.read("datapoints", cursor, rows_max=600, poll_ms=POLL_S * 1000)
        assert isinstance(read, Ok)
        rows |= {
            (change.columns["metric"], change.columns["value"])
            for change in read.value.changes
            if change.columns
        }
        cursor, pages = read.value.cursor, pages + 1
        if not read.value.has_more:
            break

    assert rows == {(name, value) for name in names for value in (1, 2, 900)}
    assert pages == 24 * 60 // (600 // 3) + 1
    assert int(cursor) == POLL_S - 15 * 60


@EMULATED
def test_check_names_metrics_without_datapoints(emulator: Emulator) -> None:
    account = Account(emulator)
    checked = account.connector().check()

    assert checked == Ok("0 metrics have datapoints, and these have none: m.")


@EMULATED
def test_clock_that_steps_back_does_not_move_the_cursor(emulator: Emulator) -> None:
    read = (
        Account(emulator)
        .connector()
        .read("datapoints", str(POLL_S), rows_max=9, poll_ms=(POLL_S - 3600) * 1000)
    )

    assert read == Ok(SourcePage((), str(POLL_S), has_more=False))


def _no_client(service: str) -> Any:
    """Give no client: nothing is asked."""
    raise AssertionError(service)


def _refusing(code: str, status: int) -> Any:
    """An AWS client whose every answer is this error: as the service's own, of a real client."""
    from botocore.exceptions import ClientError  # noqa: PLC0415

    class Refusing:
        def get_metric_data(self, **_: Any) -> Any:
            raise ClientError(
                {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}},  # type: ignore[typeddict-item] # the rest is nobody's business
                "GetMetricData",
            )

    return Refusing()


@pytest.mark.parametrize(
    ("code", "status", "kind"),
    [("AccessDenied", 403, AdapterRefused), ("InternalServiceFault", 500, AdapterFailed)],
)
def test_cloudwatch_error_is_translated_and_keeps_its_code(
    code: str, status: int, kind: type[LakeSyncError]
) -> None:
    settings = configured(CLOUDWATCH, {"metrics": [{"name": "m", "namespace": "n", "metric": "m"}]})
    outside = Outside((), lambda _: _refusing(code, status), metrics=(ANY,))
    checked = CLOUDWATCH.make(settings, Storage(Objects(), "g", "c"), outside).check()

    assert isinstance(checked, Err)
    assert type(checked.error) is kind
    assert code in checked.error.message


def test_unreachable_cloudwatch_is_a_retryable_error() -> None:
    settings = configured(CLOUDWATCH, {"metrics": [{"name": "m", "namespace": "n", "metric": "m"}]})
    client = boto3.client(
        "cloudwatch",
        region_name="eu-west-1",
        endpoint_url="http://127.0.0.1:9",
        aws_access_key_id="a",
        aws_secret_access_key="b",
        config=Config(retries={"total_max_attempts": 1}),
    )
    connector = CLOUDWATCH.make(
        settings, Storage(Objects(), "g", "c"), Outside((), lambda _: client, metrics=("n",))
    )
    checked = connector.check()

    assert isinstance(checked, Err)
    assert type(checked.error) is AdapterUnreachable


@pytest.mark.parametrize(
    ("metrics", "named"), [((), "a, b"), (("a",), "b"), (("a", "AWS/*"), "b"), (("A", "b"), "a")]
)
def test_metrics_of_namespaces_that_the_operator_does_not_list_are_refused(
    metrics: tuple[str, ...], named: str
) -> None:
    wanted = [{"name": name, "namespace": name, "metric": "m"} for name in "ab"]
    settings = configured(CLOUDWATCH, {"metrics": wanted})
    storage = Storage(Objects(), "g", "c")
    with pytest.raises(ValidationFailed, match=f"no metrics of {named}: .* MetricNamespaces"):
        CLOUDWATCH.make(settings, storage, Outside((), _no_client, metrics=metrics))
    with pytest.raises(ValidationFailed, match="MetricNamespaces"):
        CLOUDWATCH.make(settings, storage, Outside(metrics=(ANY,)))
    CLOUDWATCH.make(settings, storage, Outside((), _no_client, metrics=("b", "a"))).close()


def test_going_back_to_a_time_moves_the_cursor_back_and_never_forward() -> None:
    settings = configured(
        CLOUDWATCH, {"metrics": [{"name": "m", "namespace": "n", "metric": "m"}], "periodS": 300}
    )
    assert CLOUDWATCH.begins_at is not None
    begun = partial(CLOUDWATCH.begins_at, settings, "datapoints")
    assert begun("3000", 1_799_000_000) == "1500"
    assert begun("1200", 1_799_000_000) == "1200", "never later"
    assert begun("", 1_799_000_000) == ""


def test_two_metrics_of_one_name_are_refused() -> None:
    same = {"name": "m", "namespace": "n", "metric": "m"}
    with pytest.raises(ValidationFailed, match="one name"):
        configured(CLOUDWATCH, {"metrics": [same, same | {"metric": "other"}]})


def test_invalid_statistic_of_a_metric_is_refused() -> None:
    with pytest.raises(ValidationFailed, match=r"metrics\[0\]\.statistic"):
        configured(
            CLOUDWATCH,
            {"metrics": [{"name": "m", "namespace": "n", "metric": "m", "statistic": "p99"}]},
        )
