"""``functions/schedule_flush`` at scale: what it reads and sends, and where it goes on."""

from __future__ import annotations

import json
import threading
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import boto3
import pytest
from moto import mock_aws

from lakesync.adapters.lake.s3 import SqsQueue
from lakesync.buffer.memory_buffer import MemoryBuffer
from lakesync.core.clock import stamp
from lakesync.errors import AdapterFailed, Unavailable, ValidationFailed
from lakesync.maintenance import flush
from lakesync.maintenance.flush import DUE_HEADS_MAX, due_slices
from lakesync.ports import NO_HEAD
from lakesync.runtime import observe, wiring
from lakesync.runtime.tasks import MESSAGES_MAX, SENDERS_MAX, schedule_handler
from tests.functions.conftest import Context, event
from tests.support.commits import Writer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from lakesync.ports import GatewaySlice
    from tests.functions.conftest import Functions

NOW_MS = 1_800_000_000_000
GATEWAYS = [f"g{number:05}" for number in range(10_000)]


class Counted:
    """A buffer that counts its reads, whichever they are."""

    def __init__(self, buffer: MemoryBuffer) -> None:
        self._buffer = buffer
        self.reads: list[str] = []

    def __getattr__(self, name: str) -> Any:
        self.reads.append(name)
        return getattr(self._buffer, name)


class Sent:
    """A queue that keeps what it is sent, and how many were sending at once."""

    def __init__(self) -> None:
        self.calls: list[list[str]] = []
        self.at_once = 0
        self._now = 0
        self._lock = threading.Lock()

    def send_all(self, bodies: Sequence[str]) -> None:
        with self._lock:
            self._now += 1
            self.at_once = max(self.at_once, self._now)
            self.calls.append(list(bodies))
        with self._lock:
            self._now -= 1

    def gateways(self) -> list[str]:
        return sorted(json.loads(body)["gateway"] for call in self.calls for body in call)


def waiting(gateways: Sequence[str]) -> MemoryBuffer:
    """Return a buffer in which each gateway has something to flush."""
    buffer = MemoryBuffer()
    for gateway in gateways:
        Writer(buffer, gateway).write()
    return buffer


@pytest.fixture(scope="module")
def many() -> MemoryBuffer:
    """Ten thousand gateways, of which every tenth has something to flush."""
    buffer = MemoryBuffer()
    for number, gateway in enumerate(GATEWAYS):
        if number % 10:
            assert buffer.raise_head(gateway, "main", None, 5, NO_HEAD)
        else:
            Writer(buffer, gateway).write()
    return buffer


def not_again(function: str, what: str) -> None:
    pytest.fail(f"{function} is not to go on: {what}")


def handler(
    buffer: Any,
    sent: Sent,
    go_on: Callable[[str, str], None],
    seconds: Callable[[], float],
    every_minutes: int = 15,
) -> Callable[[Any, Any], Any]:
    return schedule_handler(
        lambda place: due_slices(buffer, place), sent.send_all, go_on, seconds,
        lambda: NOW_MS, every_minutes,
    )  # fmt: skip


@pytest.mark.law("D6")
def test_the_flush_schedule_reads_only_the_heads_of_due_gateways(
    many: MemoryBuffer,
) -> None:
    buffer, sent = Counted(many), Sent()
    answer = handler(buffer, sent, not_again, lambda: 0.0)({}, Context(60_000))

    assert answer == {"due": 1_000, "finished": True}
    assert sent.gateways() == GATEWAYS[::10]
    assert buffer.reads == ["unflushed"] * (1_000 // DUE_HEADS_MAX)


def test_flushes_of_ten_thousand_gateways_are_requested_in_a_thousand_calls() -> None:
    buffer, sent = waiting(GATEWAYS), Sent()
    counted = Counted(buffer)
    answer = handler(counted, sent, not_again, lambda: 0.0)({}, Context(60_000))

    assert answer == {"due": len(GATEWAYS), "finished": True}
    assert sent.gateways() == GATEWAYS
    assert len(sent.calls) == len(GATEWAYS) // MESSAGES_MAX
    assert len(counted.reads) == len(GATEWAYS) // DUE_HEADS_MAX
    assert 1 <= sent.at_once <= SENDERS_MAX


@pytest.mark.law("D6")
def test_a_schedule_run_without_time_continues_in_another_invocation() -> None:
    buffer, sent = waiting(GATEWAYS[: 3 * DUE_HEADS_MAX]), Sent()
    now = 0.0
    events: list[tuple[str, Any]] = []

    def seconds() -> float:
        nonlocal now
        now += 30.0  # each look at the clock is a slice later
        return now

    def go_on(function: str, what: str) -> None:
        events.append((function, json.loads(what)))

    handle = handler(buffer, sent, go_on, seconds)
    answers = [handle(event("schedule_flush_tick"), Context(60_000))]
    while len(events) == len(answers):
        function, what = events[-1]
        assert function == Context.invoked_function_arn
        answers.append(handle(what, Context(60_000)))

    assert [answer["finished"] for answer in answers][-1] is True
    assert len(answers) > 1
    assert sent.gateways() == GATEWAYS[: 3 * DUE_HEADS_MAX], "each once, none left out"


def test_the_age_of_the_oldest_unflushed_commit_is_a_metric_if_there_is_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    observe.publish()  # what others counted
    capsys.readouterr()
    buffer = MemoryBuffer()
    handle = handler(buffer, Sent(), not_again, lambda: 0.0)
    handle({}, Context(60_000))
    assert capsys.readouterr().out == ""

    Writer(buffer, "young").write(at=stamp(NOW_MS - 5_000))
    Writer(buffer, "old").write(at=stamp(NOW_MS - 90_000))
    handle({}, Context(60_000))
    counted = json.loads(capsys.readouterr().out)

    assert counted["UnflushedAge"] == [90.0]
    assert {"Name": "UnflushedAge", "Unit": "Seconds"} in counted["_aws"]["CloudWatchMetrics"][0][
        "Metrics"
    ]


def test_a_gateway_of_many_shards_gets_one_message() -> None:
    buffer, sent = MemoryBuffer(), Sent()
    writer = Writer(buffer, "demo")
    for shard in range(DUE_HEADS_MAX + 5):
        writer.write(f"s{shard}")
    handler(buffer, sent, not_again, lambda: 0.0)({}, Context(60_000))

    assert sent.gateways() == ["demo"]


def test_a_queue_failure_is_raised_after_all_messages_were_tried() -> None:
    buffer, sent = waiting(GATEWAYS[:40]), Sent()

    def refuses(bodies: Sequence[str]) -> None:
        sent.send_all(bodies)
        if len(sent.calls) == 1:
            raise AdapterFailed("SQS refused 1 of 10 messages: InternalError")

    handle = schedule_handler(
        lambda place: due_slices(buffer, place), refuses, not_again, lambda: 0.0, lambda: NOW_MS
    )
    with pytest.raises(AdapterFailed):
        handle({}, Context(60_000))
    assert len(sent.calls) == 4


# --- whose turn it is


def ticks(start: str, count: int) -> list[dict[str, str]]:
    """Return the events of so many ticks, a minute apart."""
    first = datetime.fromisoformat(start)
    return [{"at": f"{first + timedelta(minutes=number):%FT%TZ}"} for number in range(count)]


@pytest.mark.law("D6")
@pytest.mark.parametrize("every_minutes", [1, 7, 15, 60])
def test_flush_requests_are_spread_over_the_interval_one_fixed_minute_per_gateway(
    every_minutes: int,
) -> None:
    buffer = waiting(GATEWAYS[:300])
    minutes: dict[str, list[int]] = {}
    most = 0
    for number, tick in enumerate(ticks("2026-11-28T22:59:59Z", 2 * every_minutes)):
        sent = Sent()
        handle = handler(buffer, sent, not_again, lambda: 0.0, every_minutes)
        assert handle(tick, Context(60_000)) == {"due": len(sent.gateways()), "finished": True}
        most = max(most, len(sent.gateways()))
        for gateway in sent.gateways():
            minutes.setdefault(gateway, []).append(number)

    assert sorted(minutes) == sorted(GATEWAYS[:300])
    assert {after - before for before, after in minutes.values()} == {every_minutes}
    assert most <= 300 * 3 // every_minutes + 5


def test_a_missing_time_requests_all_due_gateways_and_an_invalid_one_those_of_the_minute() -> None:
    buffer = waiting(GATEWAYS[:300])

    def asked(event: dict[str, str]) -> list[str]:
        sent = Sent()
        handler(buffer, sent, not_again, lambda: 0.0, 15)(event, Context(60_000))
        return sent.gateways()

    assert asked({}) == sorted(GATEWAYS[:300])
    now = datetime.fromtimestamp(NOW_MS / 1000, UTC)
    of_its_minute = asked({"at": "<aws.scheduler.scheduled-time>"})
    assert 0 < len(of_its_minute) < 100
    assert of_its_minute == asked({"at": f"{now:%FT%TZ}"})


def test_a_continued_schedule_run_keeps_the_minute_of_the_first() -> None:
    buffer, sent = waiting(GATEWAYS[: 2 * DUE_HEADS_MAX]), Sent()
    clock = iter([0.0, 100.0, 100.0, 200.0])
    further: list[Any] = []
    [tick] = ticks("2026-11-28T22:10:00Z", 1)
    handle = handler(
        buffer, sent, lambda _, what: further.append(json.loads(what)), clock.__next__, 15
    )
    assert handle(tick, Context(60_000))["finished"] is False
    assert further[0]["at"] == tick["at"]
    while further:
        handle(further.pop(0), Context(1_000_000))

    alone = Sent()
    handler(buffer, alone, not_again, lambda: 0.0, 15)(tick, Context(60_000))
    assert sent.gateways() == alone.gateways()


def test_an_unavailable_buffer_and_an_invalid_place_raise_errors() -> None:
    def away(place: str) -> Iterator[GatewaySlice]:
        raise Unavailable(place)

    handle = schedule_handler(away, Sent().send_all, not_again, lambda: 0.0, lambda: NOW_MS)
    with pytest.raises(Unavailable):
        handle({}, Context(60_000))
    with pytest.raises(ValidationFailed):
        handle({"place": 7}, Context(60_000))


def test_the_schedule_function_invokes_itself_asynchronously(
    functions: Functions, monkeypatch: pytest.MonkeyPatch
) -> None:
    invoked: list[dict[str, Any]] = []

    class Lambda:
        def invoke(self, **asked: Any) -> None:
            invoked.append(asked)

    heads_max = 20
    monkeypatch.setattr(flush, "DUE_HEADS_MAX", heads_max)
    for gateway in GATEWAYS[: heads_max + 1]:
        Writer(functions.buffer, gateway).write()
    with mock_aws():
        url = boto3.client("sqs").create_queue(QueueName="due")["QueueUrl"]
        monkeypatch.setenv("FLUSH_QUEUE_URL", url)
        real = wiring.client
        monkeypatch.setattr(
            wiring,
            "client",
            lambda settings, service: Lambda() if service == "lambda" else real(settings, service),
        )
        # No time is left but for one slice.
        answer = functions.load("schedule_flush")({}, Context(remaining_ms=1_000))

    assert answer == {"due": heads_max, "finished": False}
    [asked] = invoked
    assert asked["FunctionName"] == Context.invoked_function_arn
    assert asked["InvocationType"] == "Event"
    rest = functions.buffer.unflushed(json.loads(asked["Payload"])["place"], heads_max)
    assert rest.gateways == (GATEWAYS[heads_max],)


# --- messages ten at a time


class Sqs:
    """SQS's SendMessageBatch, which refuses some messages for a while."""

    def __init__(self, refusals: int) -> None:
        self.refusals = refusals
        self.taken: list[str] = []

    def send_message_batch(self, *, QueueUrl: str, Entries: list[dict[str, str]]) -> Any:  # noqa: N803 - boto3's own names
        assert QueueUrl == "url"
        failed = Entries[:2] if self.refusals else []
        self.refusals -= bool(failed)
        self.taken += [entry["MessageBody"] for entry in Entries[len(failed) :]]
        return {"Failed": [{"Id": entry["Id"], "Code": "InternalError"} for entry in failed]}


def test_messages_refused_by_sqs_are_sent_again() -> None:
    sqs = Sqs(refusals=2)
    SqsQueue("url", sqs).send_all([str(number) for number in range(10)])

    assert sorted(sqs.taken) == [str(number) for number in range(10)]


def test_messages_that_sqs_keeps_refusing_raise_an_error() -> None:
    with pytest.raises(AdapterFailed, match="2 of 10 messages: InternalError"):
        SqsQueue("url", Sqs(refusals=99)).send_all([str(number) for number in range(10)])


def test_a_head_that_was_never_written_is_not_due() -> None:
    assert NO_HEAD.oldest_unflushed == 0
