"""Calls of DynamoDB in Lambda's traces: told where somebody traces, and never in the way."""

from __future__ import annotations

import json
import socket
from typing import TYPE_CHECKING, Any

import pytest

from lakesync.buffer.caller import DAEMON, TRACE, DynamoCaller, Refusal, TracedSend
from lakesync.errors import Unavailable, Unreachable

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = "1-581cf771-a006649127e371903a2de979"
PARENT = "70de5b6f19ff9a0a"
SAMPLED = f"Root={ROOT};Parent={PARENT};Sampled=1;Lineage=1:2:3"


class Daemon:
    """What takes what belongs to a trace."""

    def __init__(self) -> None:
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind(("127.0.0.1", 0))
        self.socket.settimeout(5)

    @property
    def address(self) -> str:
        host, port = self.socket.getsockname()
        return f"{host}:{port}"

    def segment(self) -> dict[str, Any]:
        header, _, document = self.socket.recv(65_536).partition(b"\n")
        assert json.loads(header) == {"format": "json", "version": 1}
        return json.loads(document)  # type: ignore[no-any-return]

    def is_silent(self) -> bool:
        self.socket.setblocking(False)
        try:
            self.socket.recv(1)
        except BlockingIOError:
            return True
        return False


@pytest.fixture
def daemon(monkeypatch: pytest.MonkeyPatch) -> Iterator[Daemon]:
    daemon = Daemon()
    monkeypatch.setenv(DAEMON, daemon.address)
    monkeypatch.setenv(TRACE, SAMPLED)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    yield daemon
    daemon.socket.close()


def caller(status: int = 200, content: bytes = b"{}") -> DynamoCaller:
    def answers(headers: dict[str, str], body: bytes) -> tuple[int, bytes]:
        return status, content

    return DynamoCaller("eu-west-1", send=TracedSend(answers, "eu-west-1"))


def test_call_is_traced_with_its_operation_time_and_outcome(daemon: Daemon) -> None:
    caller()("TransactWriteItems", b"{}")
    segment = daemon.segment()

    assert segment["end_time"] >= segment["start_time"] > 1_000_000_000
    assert len(segment["id"]) == 16
    assert int(segment["id"], 16) >= 0
    assert {name: segment[name] for name in segment.keys() - {"id", "start_time", "end_time"}} == {
        "name": "DynamoDB",
        "trace_id": ROOT,
        "parent_id": PARENT,
        "type": "subsegment",
        "namespace": "aws",
        "aws": {"operation": "TransactWriteItems", "region": "eu-west-1"},
        "http": {"response": {"status": 200}},
    }


@pytest.mark.parametrize(
    ("status", "kind", "raised", "words"),
    [
        (400, "TransactionCanceledException", Refusal, {"error": True, "throttle": False}),
        (400, "ThrottlingException", Unavailable, {"error": True, "throttle": True}),
        (500, "InternalServerError", Unavailable, {"fault": True}),
    ],
)
def test_failed_call_is_traced_with_its_kind_of_failure(
    daemon: Daemon, status: int, kind: str, raised: type[Exception], words: dict[str, bool]
) -> None:
    with pytest.raises(raised):
        caller(status, json.dumps({"__type": f"x#{kind}"}).encode())("GetItem", b"{}")
    segment = daemon.segment()

    assert {
        word: segment[word] for word in ("error", "throttle", "fault") if word in segment
    } == words


def test_unanswered_call_is_traced_as_a_fault(daemon: Daemon) -> None:
    def breaks(headers: dict[str, str], body: bytes) -> tuple[int, bytes]:
        raise Unreachable("gone")

    with pytest.raises(Unreachable):
        DynamoCaller("eu-west-1", send=TracedSend(breaks, "eu-west-1"))("GetItem", b"{}")
    assert daemon.segment()["fault"] is True


@pytest.mark.parametrize(
    "trace", ["", f"Root={ROOT};Parent={PARENT};Sampled=0", f"Root={ROOT}", "Sampled=1", ";;=x"]
)
def test_call_without_a_sampled_trace_is_not_traced(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch, trace: str
) -> None:
    monkeypatch.setenv(TRACE, trace)

    assert caller()("GetItem", b"{}") == {}
    assert daemon.is_silent()


@pytest.mark.parametrize("address", ["", "nobody", "127.0.0.1:no", "256.256.256.256:2000"])
def test_unwritable_trace_does_not_fail_the_request(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    monkeypatch.setenv(DAEMON, address)

    assert caller()("GetItem", b"{}") == {}


def test_default_caller_traces_its_calls(daemon: Daemon) -> None:
    """Where nobody listens at the table's address, that is what the trace shows."""
    with pytest.raises(Unreachable):
        DynamoCaller("eu-west-1", "http://127.0.0.1:1")("GetItem", b"{}")
    assert daemon.segment()["aws"] == {"operation": "GetItem", "region": "eu-west-1"}
