"""Pulls from a source: handed on whole, answered by the function that has the drivers, or 503."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from botocore.exceptions import ClientError, ReadTimeoutError

from lakesync.adapters.copying import Lifecycle
from lakesync.adapters.history_archive import HistoryArchive
from lakesync.adapters.lake.memory import MemoryAdapter
from lakesync.adapters.memory import MemoryDatabase
from lakesync.core.clock import STAMP_MAX
from lakesync.core.delta import Op, make_delta
from lakesync.core.destinations import Archive, Destination
from lakesync.errors import AdapterRefused, AdapterUnreachable
from lakesync.runtime import deliver, wiring
from lakesync.testing.database_contract import batch
from lakesync.wire.proto import decode_page
from tests.functions.conftest import event

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.functions.conftest import Functions


def answering(
    functions: Functions,
    monkeypatch: pytest.MonkeyPatch,
    opened: Any,
    archive: Archive | None = None,
) -> list[str]:
    """Have the function asked that opens databases so; returns the names that are invoked."""
    invoked: list[str] = []

    def invoker(_: object, name: str, seconds: int) -> Callable[[str], tuple[bool, bytes]]:
        def invoke(sent: str) -> tuple[bool, bytes]:
            invoked.append(name)
            assert seconds <= 20
            return True, json.dumps(functions.call("pull_source", json.loads(sent))).encode()

        return invoke

    monkeypatch.setattr(wiring, "invoker", invoker)
    monkeypatch.setattr(deliver, "open_database", lambda _: opened)
    declared = functions.buffer.destinations("demo").with_one(
        Destination("warehouse", "postgres", "warehouse", archive=archive)
    )
    assert functions.buffer.save_destinations("demo", declared)
    return invoked


def filled() -> MemoryDatabase:
    """Return a database with a row."""
    database = MemoryDatabase()
    delta = make_delta(Op.INSERT, "todos", "r", {"n": 1}, client_id="w", hlc=1)
    database.insert_deltas(batch("todos", [delta])).unwrap()
    return database


@pytest.mark.law("D13")
def test_a_source_pull_is_answered_by_the_function_with_database_drivers(
    functions: Functions, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = filled()
    invoked = answering(functions, monkeypatch, lambda *_: database)
    answer = functions.http("pull", "pull_source_first_page")
    page = answer.json

    assert answer.status == 200
    assert invoked == ["pull_source"]
    assert [delta["rowId"] for delta in page["deltas"]] == ["r"]
    assert (page["hasMore"], bool(page["snapshot"])) == (False, True)
    by_post = event("pull_source_first_page", body={}, query="source=warehouse")
    by_post["requestContext"]["http"]["method"] = "POST"
    by_post["headers"] |= {"content-type": "application/json"}
    assert functions.http("pull", by_post).json["deltas"] == page["deltas"]
    functions.http("pull", "pull_first_page")
    assert invoked == ["pull_source"] * 2, "an ordinary pull asks nobody"


@pytest.mark.law("D13")
def test_a_page_of_a_source_is_sent_in_protobuf_too(
    functions: Functions, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = filled()
    answering(functions, monkeypatch, lambda *_: database)
    sent = event("pull_source_first_page")
    sent["headers"]["accept"] = "application/x-protobuf"
    page = decode_page(functions.http("pull", sent).body)

    assert (page.count, page.has_more, bool(page.snapshot)) == (1, False, True)


@pytest.mark.law("D13", "P15")
def test_a_source_pull_continues_through_the_archive_without_a_re_sync(
    functions: Functions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What moved into it since the client's last page is not read anew, as rows."""
    database, archive = filled(), HistoryArchive(MemoryAdapter(), "", "demo/warehouse/0")
    answering(functions, monkeypatch, lambda *_: database, archive=Archive("cold", 7))
    monkeypatch.setattr(deliver, "open_archive", lambda _: lambda *_: archive)
    first = functions.http("pull", "pull_source_first_page").json
    deltas = [make_delta(Op.UPDATE, "todos", "r", {"n": n}, client_id="w", hlc=n) for n in (2, 3)]
    after = database.mark("todos").unwrap()
    database.insert_deltas(batch("todos", deltas, after=after)).unwrap()
    Lifecycle(database, archive).archive_until(STAMP_MAX).unwrap()
    query = event("pull_source_first_page")["queryStringParameters"]
    sent = event("pull_source_first_page", query=query | {"snapshot": first["snapshot"]})
    page = functions.http("pull", sent).json

    assert [delta["rowId"] for delta in page["deltas"]] == ["r", "r"]
    assert not page.get("resync")


@pytest.mark.law("D14")
@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (AdapterUnreachable("db.internal is away"), 503, "SOURCE_UNAVAILABLE"),
        (AdapterRefused("password of db.internal"), 502, "ADAPTER_REFUSED"),
    ],
)
def test_a_failing_database_is_answered_without_its_host_name(
    functions: Functions, monkeypatch: pytest.MonkeyPatch, error: Exception, status: int, code: str
) -> None:
    def opened(*_: object) -> Any:
        raise error

    answering(functions, monkeypatch, opened)
    answer = functions.http("pull", "pull_source_first_page")

    assert (answer.status, answer.json["code"]) == (status, code)
    assert "db.internal" not in answer.body.decode()
    assert ("retry-after" in answer.headers) == (status == 503)


@pytest.mark.law("D14")
def test_an_unknown_source_is_a_404(functions: Functions, monkeypatch: pytest.MonkeyPatch) -> None:
    answering(functions, monkeypatch, lambda *_: filled())
    answer = functions.http("pull", event("pull_source_first_page", query="source=elsewhere"))

    assert (answer.status, answer.json["code"]) == (404, "NOT_FOUND")


def _throttled() -> tuple[bool, bytes]:
    raise ClientError({"Error": {"Code": "TooManyRequestsException"}}, "Invoke")


def _slow() -> tuple[bool, bytes]:
    raise ReadTimeoutError(endpoint_url="lambda")


@pytest.mark.law("D14")
@pytest.mark.parametrize("act", [lambda: (False, b"{}"), _throttled, _slow])
def test_a_failing_source_function_is_answered_503_with_retry_after(
    functions: Functions, monkeypatch: pytest.MonkeyPatch, act: Callable[[], tuple[bool, bytes]]
) -> None:
    monkeypatch.setattr(wiring, "invoker", lambda *_: lambda _: act())
    answer = functions.call("pull", "pull_source_first_page")

    assert answer["statusCode"] == 503
    assert json.loads(answer["body"])["code"] == "SOURCE_UNAVAILABLE"
    assert answer["headers"]["cache-control"] == "no-store"
    assert "TooManyRequests" not in answer["body"], "what is in the account is for the log"
    assert answer["headers"]["retry-after"]
    assert answer["headers"]["content-type"].startswith("application/json")
