"""The function that delivers: partial answers, back-off, a sweep; nothing is told of secrets."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import boto3
import pytest
from moto import mock_aws

from lakesync.adapters.database import HISTORY_MS
from lakesync.core.deliveries import announcement, delivery_place
from lakesync.core.destinations import Archive, Destination, Destinations
from lakesync.delivery.deliverer import Delivered, Lag
from lakesync.errors import AdapterRefused, AdapterUnreachable, Contention
from lakesync.maintenance.flush import Batch
from lakesync.ports import BatchRow
from lakesync.runtime import deliver as wiring_deliver
from lakesync.runtime import wiring
from lakesync.runtime.deliver import (
    BACK_OFF_S_MAX,
    LAGS_MAX,
    deliver_handler,
    open_archive,
    open_database,
    secret_text,
)
from lakesync.runtime.settings import DeliverSettings, SettingsError, load
from tests.delivery.world import KeptDatabase
from tests.functions.conftest import Context, event, lake_bucket

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lakesync.core.deliveries import DeliveryPlace
    from lakesync.runtime.settings import Aws
    from tests.functions.conftest import Functions


class Given:
    """A deliverer that does what it is told."""

    def __init__(self, act: Callable[[DeliveryPlace], Delivered] | None = None) -> None:
        self._act = act or (lambda _: Delivered())
        self.asked: list[str] = []
        self.delays: list[int] = []

    def deliver(self, place: DeliveryPlace, has_time: Callable[[], bool]) -> Delivered:
        assert has_time()
        self.asked.append(place.prefix)
        return self._act(place)

    def archive(self, place: DeliveryPlace, has_time: Callable[[], bool]) -> Delivered:
        assert has_time()
        self.asked.append(f"archive {place.prefix}")
        return self._act(place._replace(table="archived"))

    def announce(self) -> int:
        return 3

    def sweep(self) -> list[Lag]:
        return [Lag("acme", "warehouse", 3, 90_000, False), Lag("acme", "cold", 1, 5_000, True)]

    def handle(self, *records: dict[str, Any]) -> list[str]:
        """Handle messages; returns those that are handed back."""
        delay = lambda _, seconds: self.delays.append(seconds)  # noqa: E731 - as it is asked for
        handler = deliver_handler(self, self, delay, lambda: 0.0)
        answer = handler({"Records": list(records)}, Context())
        return [one["itemIdentifier"] for one in answer["batchItemFailures"]]


def message(name: str, table: str = "todos", body: str = "", tries: int = 1) -> dict[str, Any]:
    claim = f"deliveries/acme/{name}/{table}/1-2.json"
    return {
        "messageId": f"{name}/{table}",
        "receiptHandle": "r",
        "body": body or json.dumps({"claim": claim}),
        "attributes": {"ApproximateReceiveCount": str(tries)},
    }


@pytest.mark.law("D9")
def test_only_messages_of_an_unreachable_destination_are_retried_with_back_off() -> None:
    def act(place: DeliveryPlace) -> Delivered:
        if place.destination == "down":
            raise AdapterUnreachable("it cannot be reached")
        return Delivered(1)

    given = Given(act)
    back = given.handle(message("down"), message("up"), message("down", "notes", tries=4))

    assert back == ["down/todos", "down/notes"]
    assert given.asked == ["deliveries/acme/down/todos/", "deliveries/acme/up/todos/"]
    assert given.delays == [15, 120]


@pytest.mark.law("D9", "P15")
def test_an_unreachable_archive_does_not_delay_deliveries_to_its_destination() -> None:
    def act(place: DeliveryPlace) -> Delivered:
        if place.table == "archived":
            raise AdapterUnreachable("the bucket cannot be reached")
        return Delivered(1)

    given = Given(act)
    body = announcement("deliveries/acme/w/todos/", archive=True)
    archived = message("w", body=body) | {"messageId": "archived"}
    again = message("w", body=announcement("deliveries/acme/w/notes/", archive=True))
    back = given.handle(archived, message("w"), again | {"messageId": "again"})

    assert back == ["archived", "again"]
    assert given.asked == ["archive deliveries/acme/w/todos/", "deliveries/acme/w/todos/"]


@pytest.mark.law("P15")
def test_the_daily_event_announces_tables_for_archiving() -> None:
    handler = deliver_handler(Given(), Given(), lambda *_: None, lambda: 0.0)
    assert handler({"archive": True}, Context()) == {"tables": 3}


@pytest.mark.law("D9")
def test_contention_in_one_table_delays_only_its_message_as_long_as_asked() -> None:
    def act(place: DeliveryPlace) -> Delivered:
        if place.table == "todos":
            raise Contention("it is becoming visible", retry_after_s=42)
        return Delivered(1)

    given = Given(act)
    assert given.handle(message("w"), message("w", "notes")) == ["w/todos"]
    assert given.delays == [42]


def test_an_unfinished_delivery_is_retried_without_delay() -> None:
    given = Given(lambda _: Delivered(5, finished=False))

    assert given.handle(message("w"), message("w")) == ["w/todos", "w/todos"]
    assert len(given.asked) == 1, "one place is worked on once"
    assert given.delays == [0, 0]


@pytest.mark.parametrize("body", ["{", "[]", '{"claim": 7}', '{"claim": "claims/acme/t/1.json"}'])
def test_a_malformed_message_does_not_affect_other_messages(body: str) -> None:
    given = Given()

    assert given.handle(message("bad", body=body), message("w")) == ["bad/todos"]
    assert given.asked == ["deliveries/acme/w/todos/"]
    assert given.delays == [BACK_OFF_S_MAX]


def test_an_unexpected_error_does_not_affect_other_messages() -> None:
    def act(place: DeliveryPlace) -> Delivered:
        if place.table == "notes":
            raise ZeroDivisionError
        return Delivered()

    assert Given(act).handle(message("w", "notes"), message("w")) == ["w/notes"]


def test_a_sweep_reports_every_lag_and_alarms_for_no_paused_destination(
    capsys: pytest.CaptureFixture[str],
) -> None:
    handler = deliver_handler(Given(), Given(), lambda *_: None, lambda: 0.0)
    assert handler(event("deliver_sweep"), Context()) == {"waiting": 4}
    written = [json.loads(line) for line in capsys.readouterr().out.splitlines() if "_aws" in line]

    lags = {line["destination"]: line["Lag"] for line in written if "Lag" in line}
    assert lags == {"warehouse": [90.0], "cold": [5.0]}
    [alarmed] = [line["DestinationLag"] for line in written if "DestinationLag" in line]
    assert alarmed == [90.0]


def test_only_the_most_delayed_destinations_of_many_have_their_own_metrics(
    capsys: pytest.CaptureFixture[str],
) -> None:
    class Behind(Given):
        def sweep(self) -> list[Lag]:
            return [Lag(f"g{n}", "warehouse", 1, n * 1_000, False) for n in range(1, 301)]

    deliver_handler(Behind(), Given(), lambda *_: None, lambda: 0.0)(
        event("deliver_sweep"), Context()
    )
    written = [json.loads(line) for line in capsys.readouterr().out.splitlines() if "_aws" in line]

    lags = {line["gateway"]: line["Lag"] for line in written if "Lag" in line}
    assert lags == {f"g{n}": [float(n)] for n in range(301 - LAGS_MAX, 301)}
    ages = [age for line in written for age in line.get("DestinationLag", [])]
    assert sorted(ages) == [float(n) for n in range(1, 301)], "the alarm is on all of them"


def test_the_deployed_function_removes_claims_of_an_unknown_destination(
    functions: Functions, monkeypatch: pytest.MonkeyPatch
) -> None:
    with mock_aws():
        s3 = lake_bucket()
        url = boto3.client("sqs").create_queue(QueueName="deliver")["QueueUrl"]
        monkeypatch.setenv("DELIVER_QUEUE_URL", url)
        sent = event("deliver_claimed")
        key = json.loads(sent["Records"][0]["body"])["claim"]
        s3.put_object(Bucket="lake", Key=key, Body=b"{}")
        answer = functions.call("deliver", sent)

        assert answer == {"batchItemFailures": []}
        assert "Contents" not in s3.list_objects_v2(Bucket="lake")


@pytest.mark.law("D12")
def test_a_missing_secret_is_reported_by_its_name() -> None:
    with mock_aws():
        client = boto3.client("secretsmanager", region_name="eu-central-1")
        client.create_secret(Name="s/destinations/acme/w", SecretString="postgresql://u:pw@h/d")

        assert secret_text(client, "s/destinations/acme/w") == "postgresql://u:pw@h/d"
        with pytest.raises(AdapterRefused, match="s/destinations/acme/missing"):
            secret_text(client, "s/destinations/acme/missing")


@pytest.fixture
def secrets(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Secrets Manager, and what the function finds in its environment."""
    for name, value in {
        "BUFFER_TABLE": "b", "LAKE_BUCKET": "l", "DELIVER_QUEUE_URL": "q", "SECRET_PREFIX": "s/",
        "AWS_DEFAULT_REGION": "eu-central-1", "AWS_REGION": "eu-central-1",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    with mock_aws():
        yield boto3.client("secretsmanager")


@pytest.mark.law("P12")
def test_a_deployed_destination_keeps_its_history_for_a_limited_time(secrets: Any) -> None:
    urls = {
        "postgres": "postgresql://u:pw@h/d",
        "mysql": "mysql://u:pw@h/d",
        "bigquery": "bigquery://acme-prod/sync?endpoint=http://127.0.0.1:9",
    }
    opened = open_database(load(DeliverSettings, os.environ))
    for kind, url in urls.items():
        secrets.create_secret(Name=f"s/acme/{kind}", SecretString=url)
        database: Any = opened("acme", Destination("w", kind, kind))
        assert database._history_ms == HISTORY_MS
        database.close()


@pytest.mark.law("P8")
def test_a_rotated_database_secret_is_used_from_the_next_message_on(secrets: Any) -> None:
    """The function is warm, and has opened the database before."""
    secrets.create_secret(Name="s/acme/w", SecretString="postgresql://u:before@h/d")
    opened = open_database(load(DeliverSettings, os.environ))
    for word in ("before", "after"):
        secrets.put_secret_value(SecretId="s/acme/w", SecretString=f"postgresql://u:{word}@h/d")
        database: Any = opened("acme", Destination("w", "postgres", "w"))
        assert f":{word}@" in database._transactions._dialect.dsn
        database.close()


@pytest.mark.law("N19")
@pytest.mark.parametrize("url", ["postgresql://u:pw@127.0.0.1:1/d", "mysql://u:pw@localhost:1/d"])
def test_a_destination_at_an_unlisted_private_address_is_refused(
    secrets: Any, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    kind = "mysql" if url.startswith("mysql") else "postgres"
    secrets.create_secret(Name="s/acme/w", SecretString=url)
    for listed, refusal in (("", AdapterRefused), ("127.0.0.1,localhost", AdapterUnreachable)):
        monkeypatch.setenv("DATABASE_HOSTS", listed)
        opened = open_database(load(DeliverSettings, os.environ))
        database: Any = opened("acme", Destination("w", kind, "w"))
        assert type(database.mark("t").error) is refusal
    monkeypatch.setenv("DATABASE_HOSTS", "10.0.0.0/33")
    with pytest.raises(SettingsError, match="DATABASE_HOSTS"):
        load(DeliverSettings, os.environ)


@pytest.mark.law("P15")
def test_a_destination_with_an_archive_deletes_no_history_itself(secrets: Any) -> None:
    settings = load(DeliverSettings, os.environ)
    declared = Destination("w", "postgres", "w", declared_ms=5, archive=Archive("cold", 7))
    secrets.create_secret(Name="s/acme/w", SecretString="postgresql://u:pw@h/d")
    secrets.create_secret(Name="s/acme/cold", SecretString="postgresql://u:pw@h/d")
    database: Any = open_database(settings)("acme", declared)
    assert database._history_ms is None
    database.close()
    with pytest.raises(AdapterRefused, match="no URL of a bucket's folder"):
        open_archive(settings)("acme", declared)
    secrets.put_secret_value(SecretId="s/acme/cold", SecretString="s3://lake/destinations/cold")
    s3 = lake_bucket()
    archive = open_archive(settings)("acme", declared)
    archive.begin_anew("todos", 9).unwrap()
    [stored] = s3.list_objects_v2(Bucket="lake")["Contents"]
    assert stored["Key"].startswith("destinations/cold/acme.w.5/todos/archive/")
    assert archive.mark("todos").unwrap() == 9


@pytest.mark.law("D12")
def test_a_database_of_another_kind_than_was_declared_is_refused(secrets: Any) -> None:
    text = '{"url": "bigquery://acme-prod/sync?endpoint=http://127.0.0.1:9"}'
    secrets.create_secret(Name="s/acme/w", SecretString=text)
    opened = open_database(load(DeliverSettings, os.environ))

    opened("acme", Destination("w", "bigquery", "w")).close()
    with pytest.raises(AdapterRefused, match="no URL of a postgres database"):
        opened("acme", Destination("w", "postgres", "w"))


class Glue:
    """Starts runs; one at a time."""

    class exceptions:  # noqa: N801 - boto3's own name
        """What it refuses."""

        class ConcurrentRunsExceededException(Exception):
            """As many are at work as there may be."""

    def __init__(self) -> None:
        self.started: list[str] = []

    def start_job_run(self, *, JobName: str) -> None:  # noqa: N803 - boto3's own name
        """Start a run, if none is at work."""
        self.started.append(JobName)
        if len(self.started) > 1:
            raise self.exceptions.ConcurrentRunsExceededException


@pytest.mark.law("D17")
def test_a_large_delivery_to_bigquery_starts_a_job_run(
    functions: Functions, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent, glue, made = event("deliver_claimed"), Glue(), wiring.client
    sent["Records"] = sent["Records"][:1]
    place = delivery_place(json.loads(sent["Records"][0]["body"])["claim"])
    to = Destination(place.destination, "bigquery", "w", frozenset({place.table}))
    assert functions.buffer.save_destinations(place.gateway, Destinations().with_one(to))
    row = BatchRow(2, 0, "INSERT", "r1", "c1", 1, "d", (("n", b"1"),))
    batch = Batch(place.gateway, place.table, 1, 2, (row,), {"n": "n"})
    monkeypatch.setenv("BIGQUERY_JOB", "large")
    monkeypatch.setenv("BIGQUERY_JOB_DELTAS", "1")
    monkeypatch.setattr(wiring_deliver, "open_database", lambda _: lambda *_: KeptDatabase())

    def client(settings: Aws, service: str, **how: int) -> Any:
        return glue if service == "glue" else made(settings, service, **how)

    monkeypatch.setattr(wiring, "client", client)
    with mock_aws():
        s3 = lake_bucket()
        key = f"{place.prefix}{1:020}-{2:020}.json"
        s3.put_object(Bucket="lake", Key=key, Body=batch.claim(None, 1).encode())

        for _ in range(2):
            assert functions.call("deliver", sent) == {"batchItemFailures": []}
        assert [one["Key"] for one in s3.list_objects_v2(Bucket="lake")["Contents"]] == [key]
    assert glue.started == ["large", "large"], "one that is at work already is no failure"
    assert functions.buffer.delivery_states(place.gateway, place.destination) == {}
