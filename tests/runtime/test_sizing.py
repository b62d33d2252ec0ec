"""What sizing needs is logged of samples, where Lambda's own reports are left out."""

from __future__ import annotations

import json
from itertools import count
from typing import TYPE_CHECKING, Any
from zlib import crc32

import pytest

from lakesync.runtime.observe import MESSAGE, SAMPLED_OF, sized
from tests.support.logs import logged

if TYPE_CHECKING:
    from collections.abc import Iterator
    from io import StringIO


class Context:
    """What Lambda tells of a call."""

    def __init__(self, request_id: str) -> None:
        self.aws_request_id = request_id


NAMES = [f"request-{number}" for number in range(5 * SAMPLED_OF)]
SAMPLED = [name for name in NAMES if crc32(name.encode()) % SAMPLED_OF == 0]
OTHER = next(name for name in NAMES if name not in SAMPLED)


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Iterator[StringIO]:
    monkeypatch.setenv("AWS_LAMBDA_FUNCTION_MEMORY_SIZE", "1024")
    with logged(monkeypatch) as stream:
        yield stream


def lines(log: StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.getvalue().splitlines()]


def test_the_first_call_of_a_process_logs_memory_and_duration(log: StringIO) -> None:
    handler = sized(lambda event, _: event["answer"])

    assert handler({"answer": 7}, Context(OTHER)) == 7
    assert handler({"answer": 8}, Context(OTHER)) == 8

    [line] = lines(log)
    assert (line["message"], line["coldStart"], line["memorySizeMb"]) == (MESSAGE, 1, 1024)
    assert line["memoryMb"] > 10
    assert 0 <= line["durationMs"] < 1_000


def test_further_calls_are_logged_as_a_sample_by_request_id(log: StringIO) -> None:
    handler = sized(lambda *_: None)
    for name in NAMES:
        handler({}, Context(name))

    assert [line["coldStart"] for line in lines(log)] == [1, *(0 for _ in SAMPLED)]
    assert 1 <= len(SAMPLED) <= 20


def test_a_failing_call_is_logged_and_its_error_raised(log: StringIO) -> None:
    numbers = count()

    def fails(*_: object) -> None:
        raise ValueError(next(numbers))

    with pytest.raises(ValueError, match="0"):
        sized(fails)({}, Context(OTHER))

    assert [line["message"] for line in lines(log)] == [MESSAGE]
