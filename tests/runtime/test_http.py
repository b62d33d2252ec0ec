"""The boundary: every error of the tree, every unexpected one, with and without ``/v1``."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import httpx
import pytest
from fastapi import APIRouter, FastAPI, Query, Request, Response

from lakesync.errors import BY_CODE, Backpressure, LakeSyncError, Retry
from lakesync.runtime.bodies import GZIP_BYTES_MIN
from lakesync.runtime.http import answer_json, create_app

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass
class Client:
    """Sends requests to an app, without a network."""

    app: FastAPI

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
    router = APIRouter()

    @router.get("/thing")
    async def thing(request: Request, limit: Annotated[int, Query(ge=1)] = 1) -> Response:
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

    assert answer.status_code == kind.status
    assert (body["error"], body["code"], body["field"]) == ("do this", kind.code, "thing")
    assert body["requestId"] == answer.headers["x-request-id"]
    assert ("retry-after" in answer.headers) == (kind.retry is Retry.LATER)


def test_retry_after_is_the_errors_own() -> None:
    answer = client(raising(Backpressure("later"))).get("/thing")

    assert answer.headers["retry-after"] == "15"


@pytest.mark.parametrize("prefix", ["", "/v1"])
def test_routes_are_served_with_and_without_the_prefix(prefix: str) -> None:
    assert client(lambda: 7).get(f"{prefix}/thing").json() == {"limit": 1, "value": 7}


@pytest.mark.parametrize("path", ["/v1", "/v1thing", "/v2/thing", "/v1/v1/thing", "/thing/"])
def test_other_prefixes_are_unknown(path: str) -> None:
    answer = client(lambda: 7).get(path)

    assert (answer.status_code, answer.json()["code"]) == (404, "NOT_FOUND")


def test_a_wrong_method_is_told() -> None:
    answer = client(lambda: 7).post("/thing")

    assert (answer.status_code, answer.json()["code"]) == (405, "METHOD_NOT_ALLOWED")
    assert answer.headers["allow"] == "GET"


def test_a_malformed_parameter_is_a_400_that_names_it() -> None:
    answer = client(lambda: 7).get("/thing?limit=none")

    assert (answer.status_code, answer.json()["code"]) == (400, "VALIDATION_ERROR")
    assert answer.json()["field"] == "limit"


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


def test_a_caller_who_cannot_read_gzip_gets_none() -> None:
    plain = client(lambda: "x" * 5000).get("/thing", **{"accept-encoding": "identity"})

    assert "content-encoding" not in plain.headers
