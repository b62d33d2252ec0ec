"""The boundary: every error of the tree, every unexpected one, with and without ``/v1``."""

from __future__ import annotations

import asyncio
import inspect
import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlencode

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError
from starlette.requests import Request

from lakesync.errors import (
    BY_CODE,
    AdapterFailed,
    Backpressure,
    Contention,
    FlushFailed,
    InternalError,
    InvalidCursor,
    LakeSyncError,
    RateLimited,
    Retry,
    Unavailable,
    Unreachable,
    UpgradeRequired,
    ValidationFailed,
)
from lakesync.runtime import observe
from lakesync.runtime.api import Parameter, Query, Router
from lakesync.runtime.http import GZIP_BYTES_MIN, answer_json, create_app
from tests.support.logs import logged

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.applications import Starlette
    from starlette.responses import Response


@dataclass
class Client:
    """Sends requests to an app, without a network."""

    app: Starlette

    def get(self, path: str, **headers: str) -> httpx.Response:
        return self.send("GET", path, headers)

    def post(self, path: str) -> httpx.Response:
        return self.send("POST", path, {})

    def send(self, method: str, path: str, headers: dict[str, str]) -> httpx.Response:
        async def ask() -> httpx.Response:
            transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="https://api") as sender:
                return await sender.request(method, path, headers=headers)

        return asyncio.run(ask())


def client(act: Callable[[], object]) -> Client:
    router = Router()

    @router.get("/thing")
    async def thing(
        request: Request, limit: Annotated[int, Query("How many.", ge=1)] = 1
    ) -> Response:
        return answer_json(request, {"limit": limit, "value": act()})

    return Client(create_app(router))


def raising(error: Exception) -> Callable[[], object]:
    def act() -> object:
        raise error

    return act


@pytest.mark.parametrize("kind", BY_CODE.values(), ids=lambda kind: kind.code)
def test_each_error_is_answered_by_its_own_status_and_code(kind: type[LakeSyncError]) -> None:
    answer = client(raising(kind("do this", field="thing"))).get("/thing")
    body = answer.json()

    assert (answer.status_code, body["code"]) == (kind.status, kind.code)
    if not kind.public_message:
        assert (body["error"], body["field"]) == ("do this", "thing")
    assert body["requestId"] == answer.headers["x-request-id"]
    assert ("retry-after" in answer.headers) == (kind.retry is Retry.LATER)


@pytest.mark.parametrize(
    "kind", [InternalError, AdapterFailed, Unavailable, Unreachable, UpgradeRequired]
)
def test_internal_errors_are_answered_without_detail(kind: type[LakeSyncError]) -> None:
    error = kind("DynamoDB refused Query: AccessDeniedException", field="buffer-table")
    answer = client(raising(error)).get("/thing")

    assert "AccessDenied" not in answer.text
    assert "buffer-table" not in answer.text
    assert answer.json() == {
        "error": kind.public_message,
        "code": kind.code,
        "requestId": answer.headers["x-request-id"],
    }


@pytest.mark.parametrize(
    ("error", "level", "metric"),
    [
        (InternalError("DynamoDB refused Query: AccessDenied"), "ERROR", "InternalErrors"),
        (KeyError("a bug"), "ERROR", "InternalErrors"),
        (AdapterFailed("S3 refused k: AccessDenied"), "WARNING", "DependenciesFailed"),
        (Unreachable("DynamoDB could not be reached"), "WARNING", "DependenciesFailed"),
        (Unavailable("DynamoDB is busy"), "WARNING", "DependenciesFailed"),
        (UpgradeRequired("deploy that release again"), "WARNING", "DependenciesFailed"),
        (Contention("another write was in progress"), "WARNING", "Contended"),
        (Backpressure("flushing is behind"), "WARNING", "PushesHeldBack"),
        (FlushFailed("it goes on"), "WARNING", "FlushesFailed"),
        (RateLimited("slow down"), "INFO", "Refused"),
        (InvalidCursor("pull from 0"), "INFO", "Refused"),
    ],
    ids=lambda item: type(item).__name__ if isinstance(item, Exception) else item,
)
def test_a_failure_is_logged_and_counted_by_its_kind(
    error: Exception,
    level: str,
    metric: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    observe.publish()  # what others counted
    capsys.readouterr()
    with logged(monkeypatch) as log:
        client(raising(error)).get("/thing")
        observe.publish()
    [line] = map(json.loads, log.getvalue().splitlines())
    [counted] = map(json.loads, capsys.readouterr().out.splitlines())

    assert line["level"] == level
    assert line["correlation_id"]
    assert [metric] == [m["Name"] for m in counted["_aws"]["CloudWatchMetrics"][0]["Metrics"]]
    if level != "INFO":
        assert str(error.args[0]) in json.dumps(line)


def test_disabled_metrics_print_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("POWERTOOLS_METRICS_DISABLED", "true")
    for _ in range(250):
        observe.count("Refused")
        observe.publish()

    assert capsys.readouterr().out == ""


def test_metrics_have_service_and_stack_dimensions_and_zero_counts_are_omitted(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    observe.publish()  # what others counted
    capsys.readouterr()
    monkeypatch.setattr(observe._metrics.provider, "service", "materialise")
    for _ in range(2):  # the dimensions stay when metrics are written out
        observe.count("GatewaysDue", 0)
        observe.count("RunsStarted")
        observe.publish()
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    for line in lines:
        [declared] = line["_aws"]["CloudWatchMetrics"]
        assert [set(names) for names in declared["Dimensions"]] == [{"service", "stack"}]
        assert [metric["Name"] for metric in declared["Metrics"]] == ["RunsStarted"]
    observe.count("GatewaysDue", 0)
    observe.publish()
    assert len(lines) == 2
    assert capsys.readouterr().out == ""


def test_an_alarm_metric_has_only_the_stack_dimension_and_names_the_service(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    observe.publish()  # what others counted
    capsys.readouterr()
    monkeypatch.setattr(observe._metrics.provider, "service", "push")
    for _ in range(2):
        observe.count("InternalErrors")
        observe.publish()
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    assert len(lines) == 2
    for line in lines:
        [declared] = line["_aws"]["CloudWatchMetrics"]
        assert declared["Dimensions"] == [["stack"]]
        assert line["service"] == "push"


def test_retry_after_is_taken_from_the_error() -> None:
    answer = client(raising(Backpressure("later"))).get("/thing")

    assert answer.headers["retry-after"] == "15"


@pytest.mark.parametrize("prefix", ["", "/v1"])
def test_routes_are_served_with_and_without_the_prefix(prefix: str) -> None:
    assert client(lambda: 7).get(f"{prefix}/thing").json() == {"limit": 1, "value": 7}


@pytest.mark.parametrize("path", ["/v1", "/v1thing", "/v2/thing", "/v1/v1/thing", "/thing/"])
def test_a_path_with_an_unknown_prefix_is_not_found(path: str) -> None:
    answer = client(lambda: 7).get(path)

    assert (answer.status_code, answer.json()["code"]) == (404, "NOT_FOUND")


def test_a_wrong_method_is_reported() -> None:
    answer = client(lambda: 7).post("/thing")

    assert (answer.status_code, answer.json()["code"]) == (405, "METHOD_NOT_ALLOWED")
    assert answer.headers["allow"] == "GET"


def test_a_malformed_parameter_is_a_400_that_names_it() -> None:
    answer = client(lambda: 7).get("/thing?limit=none")

    assert (answer.status_code, answer.json()["code"]) == (400, "VALIDATION_ERROR")
    assert answer.json()["field"] == "limit"


@pytest.mark.parametrize("kind", [int, bool])
@given(
    (
        st.text(max_size=5)
        | st.from_regex(r"\s?[+-]?[0-9_]{0,5}(\.0{0,2})?\s?", fullmatch=True)
        | st.sampled_from(["tRuE", "OFF", "y", "N", "1" * 4300, "1" * 4301, "\u0661", "\xa01"])
    ).filter(lambda text: not re.search("[0_][-_]", text))  # to pydantic, 0-1 is -1, and 0__1 is 1
)
def test_numbers_and_flags_of_a_query_are_read_as_by_pydantic(kind: type, text: str) -> None:
    argument = inspect.Parameter("limit", inspect.Parameter.KEYWORD_ONLY, default=None)
    query = urlencode({"limit": text}).encode()
    try:
        read = Parameter(argument, kind, Query("")).read(
            Request({"type": "http", "query_string": query})
        )
    except ValidationFailed:
        read = None
    expected: object
    try:
        expected = TypeAdapter(kind).validate_python(text)
    except ValidationError:
        expected = None

    assert read == expected


@pytest.mark.parametrize(
    "error", [ZeroDivisionError("detail"), KeyError("detail"), RecursionError()]
)
def test_anything_unexpected_is_a_500_without_detail(error: Exception) -> None:
    answer = client(raising(error)).get("/thing")

    assert (answer.status_code, answer.json()["code"]) == (500, "INTERNAL_ERROR")
    assert "detail" not in answer.text


def test_only_large_answers_are_compressed() -> None:
    small = client(lambda: "x").get("/thing")
    large = client(lambda: "x" * GZIP_BYTES_MIN).get("/thing")

    assert "content-encoding" not in small.headers
    assert large.headers["content-encoding"] == "gzip"
    assert len(large.json()["value"]) == GZIP_BYTES_MIN


def test_an_answer_is_not_compressed_for_a_caller_without_gzip() -> None:
    plain = client(lambda: "x" * 5000).get("/thing", **{"accept-encoding": "identity"})

    assert "content-encoding" not in plain.headers
