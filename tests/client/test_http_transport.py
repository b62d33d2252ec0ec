"""The HTTP transport: what it sends, and what it makes of every answer."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import traceback
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from lakesync.client import HttpTransport, Timeouts
from lakesync.connectors.registry import all_described
from lakesync.core.clock import STAMP_MAX
from lakesync.core.messages import Action, Pull, Push
from lakesync.errors import (
    BY_CODE,
    AuthFailed,
    Forbidden,
    InvalidInput,
    LakeSyncError,
    Retry,
    Unreachable,
)
from lakesync.result import Err, Ok
from lakesync.testing.memory_gateway import MemoryGateway
from lakesync.wire import jsonish, proto
from tests.client.support.acting import Shop
from tests.client.support.gateways import GATEWAY
from tests.client.support.world import check_sound, rows_of
from tests.support.builders import insert
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.client.support.world import World

PROTOBUF = "application/x-protobuf"
PULL = Pull("phone", 7, 50, "e1")
PUSH = Push("phone", ((0, insert(client="phone", title="x")),))


class Server:
    """Serves the world's gateway as the deployed one does, to tokens that it knows."""

    def __init__(self, world: World) -> None:
        self.gateway = world.gateway
        self.valid = {"token-1"}
        self.requests: list[httpx.Request] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        """Answer."""
        self.requests.append(request)
        if request.headers["authorization"].removeprefix("Bearer ") not in self.valid:
            fields = {"error": "get a fresh token", "code": "AUTH_ERROR", "requestId": "r-1"}
            return httpx.Response(401, json=fields)
        try:
            body = self.answer(request)
        except LakeSyncError as error:
            fields = {"error": error.message, "code": error.code, "requestId": "r-1"}
            return httpx.Response(error.status, json=fields)
        packed = gzip.compress(body)
        headers = {"content-type": PROTOBUF, "content-encoding": "gzip"}
        return httpx.Response(200, content=packed, headers=headers)

    def answer(self, request: httpx.Request) -> bytes:
        """Return the body."""
        if request.url.path == "/stage/v1/sync/g1/push":
            sent = request.content
            if request.headers.get("content-encoding") == "gzip":
                sent = gzip.decompress(sent)
            push = proto.decode_push(sent)
            return proto.encode_receipt(self.gateway.push(GATEWAY, push))
        assert request.url.path == "/stage/v1/sync/g1/pull"
        query = request.url.params
        pull = Pull(
            query["clientId"], int(query["since"]), int(query["limit"]), query.get("epoch", "")
        )
        return proto.encode_page(self.gateway.pull(GATEWAY, pull))


def transport(
    handler: Callable[[httpx.Request], httpx.Response], token: Any = "token-1"
) -> HttpTransport:
    return HttpTransport(
        "https://api.example.com/stage/", "g1", token=token, http=httpx.MockTransport(handler)
    )


def test_clients_sync_over_http(world: World) -> None:
    server = Server(world)
    with transport(server) as there, transport(server) as here:
        first, second = world.client("a", transport=there), world.client("b", transport=here)
        for place in range(300):
            first.insert("todos", f"t{place}", {"title": f"number {place}"}).unwrap()
        first.sync().unwrap()
        second.sync().unwrap()

        assert rows_of(first) == rows_of(second) == world.rows()
        check_sound(second)
    push = next(request for request in server.requests if request.method == "POST")
    assert push.headers["content-type"] == PROTOBUF
    assert push.headers["accept"] == PROTOBUF
    assert push.headers["content-encoding"] == "gzip"


def test_a_small_body_is_sent_uncompressed(world: World) -> None:
    server = Server(world)
    with transport(server) as there:
        there.push(PUSH)

    assert "content-encoding" not in server.requests[0].headers
    assert proto.decode_push(server.requests[0].content) == PUSH


def test_a_token_that_expired_is_renewed_once(world: World) -> None:
    server = Server(world)
    tokens = iter(["old", "token-1", "token-2"])
    with transport(server, token=lambda: next(tokens)) as there:
        there.push(PUSH)
        there.push(PUSH)
        server.valid = {"token-2"}
        there.push(PUSH)

    assert [request.headers["authorization"] for request in server.requests] == [
        "Bearer old",
        "Bearer token-1",
        "Bearer token-1",
        "Bearer token-1",
        "Bearer token-2",
    ]


def test_a_token_that_is_refused_twice_is_an_err(world: World) -> None:
    server = Server(world)
    client = world.client(transport=transport(server, token=lambda: "wrong"))
    client.insert("todos", "t1", {"title": "x"}).unwrap()

    result = client.push()

    assert isinstance(result, Err)
    assert (result.error.code, result.error.retry) == ("AUTH_ERROR", Retry.AFTER_REFRESH)
    assert len(server.requests) == 2
    assert len(client.pending().unwrap()) == 1


SECRET = "eyJhbGciOiJIUzI1NiJ9.c2VjcmV0.c2lnbmF0dXJl"
MALFORMED = [
    f"{SECRET}\n",
    f"{SECRET}\r\nX-Evil: 1",
    f"Bearer {SECRET}",
    f"{SECRET}\N{LATIN SMALL LETTER E WITH ACUTE}",
    f"\N{ZERO WIDTH SPACE}{SECRET}",
    f"{SECRET}\0",
    "",
    " ",
    SECRET.encode(),
    None,
    {"access_token": SECRET},
]


def everything_logged(error: BaseException) -> str:
    """Return all that a log would hold of an error: its traceback, with its causes."""
    return "".join(traceback.format_exception(error))


@pytest.mark.law("K18")
@pytest.mark.parametrize("token", MALFORMED, ids=repr)
def test_a_malformed_token_is_refused_before_any_request_and_never_shown(
    world: World, token: Any, caplog: pytest.LogCaptureFixture
) -> None:
    server = Server(world)
    asked: list[object] = []

    def give() -> Any:
        asked.append(token)
        return token

    client = world.client(transport=transport(server, token=give))
    client.insert("todos", "t1", {"title": "x"}).unwrap()

    with caplog.at_level(0):
        results = (client.push(), client.pull(), client.sync())

    for result in results:
        assert isinstance(result, Err)
        error = result.error
        assert (type(error), error.field, error.retry) == (AuthFailed, "token", Retry.AFTER_REFRESH)
        assert SECRET not in everything_logged(error)
        assert SECRET not in repr(error)
    assert SECRET not in caplog.text
    assert server.requests == []
    assert len(asked) == 4  # once for each request, and no second time
    assert len(client.pending().unwrap()) == 1
    assert client.quarantined() == Ok([])


@pytest.mark.law("K18")
@pytest.mark.parametrize("token", [token for token in MALFORMED if isinstance(token, str)])
def test_a_malformed_constant_token_is_refused_when_the_transport_is_made(
    world: World, token: str
) -> None:
    with pytest.raises(AuthFailed) as raised:
        transport(Server(world), token=token)

    assert raised.value.field == "token"
    assert SECRET not in everything_logged(raised.value)


@pytest.mark.law("K18")
def test_an_exception_of_the_token_callable_is_an_err_and_the_next_call_may_succeed(
    world: World,
) -> None:
    given: list[Any] = [OSError(f"no way to https://id.example/?refresh={SECRET}"), "token-1"]

    def give() -> Any:
        token = given.pop(0)
        if isinstance(token, Exception):
            raise token
        return token

    client = world.client(transport=transport(Server(world), token=give))
    client.insert("todos", "t1", {"title": "x"}).unwrap()

    result = client.push()

    assert isinstance(result, Err)
    assert (result.error.code, result.error.retry) == ("AUTH_ERROR", Retry.AFTER_REFRESH)
    assert "OSError" in result.error.message
    assert SECRET not in result.error.message
    assert isinstance(result.error.__cause__, OSError)
    assert client.push().unwrap().accepted == 1


def test_a_lakesync_error_raised_by_the_token_callable_is_passed_through(world: World) -> None:
    def give() -> str:
        raise Unreachable("the identity provider is away", retry_after_s=40)

    result = world.client(transport=transport(Server(world), token=give)).pull()

    assert isinstance(result, Err)
    assert (result.error.code, result.error.retry_after_s) == ("UNREACHABLE", 40)


def failure(response: httpx.Response | Exception) -> LakeSyncError:
    """Return the error that a pull makes of an answer."""

    def answer(_request: httpx.Request) -> httpx.Response:
        if isinstance(response, Exception):
            raise response
        return response

    with transport(answer) as there, pytest.raises(LakeSyncError) as raised:
        there.pull(PULL)
    return raised.value


@pytest.mark.parametrize("code", sorted(BY_CODE))
def test_each_gateway_error_code_maps_to_its_error_class(code: str) -> None:
    kind = BY_CODE[code]
    body = {"error": "Do this.", "code": code, "requestId": "r-9", "field": "since"}

    error = failure(httpx.Response(kind.status, json=body))

    assert type(error) is kind
    assert error.field == "since"
    assert error.message.startswith("Do this.")
    assert "r-9" in error.message


FOREIGN_BODIES = [
    *(b'{"message": "Forbidden"}', b"<html>no</html>", b"", b"[1]", b"\xff", b'{"code": 7}'),
    b'{"error": "no", "code": "FORBIDDEN"}',
    b"[" * 100_000,
]
FOREIGN_NAMES = [
    *("message", "html", "empty", "list", "not UTF-8", "a code that is none", "no request id"),
    "nested",
]


@pytest.mark.law("K7")
@pytest.mark.parametrize(
    ("status", "code"),
    [
        *((status, "NOT_THE_GATEWAY") for status in (301, 302, 307, 400, 401, 403, 404, 405, 406)),
        *((status, "NOT_THE_GATEWAY") for status in (407, 409, 410, 413, 418, 501, 511)),
        (429, "RATE_LIMITED"),
        *((status, "UNAVAILABLE") for status in (408, 500, 502, 503, 504)),
    ],
)
@pytest.mark.parametrize("body", FOREIGN_BODIES, ids=FOREIGN_NAMES)
def test_an_http_error_not_from_the_gateway_is_foreign_and_retried_later(
    status: int, code: str, body: bytes
) -> None:
    error = failure(httpx.Response(status, content=body))

    assert (error.code, error.retry, error.is_foreign) == (code, Retry.LATER, True)
    assert str(status) in error.message
    assert not isinstance(error, InvalidInput | Forbidden)


@pytest.mark.parametrize(
    ("header", "seconds"), [("7", 7), (None, 1), ("soon", 1), ("99999999", 3_600), ("-1", 1)]
)
def test_the_retry_after_header_sets_the_wait_within_bounds(
    header: str | None, seconds: int
) -> None:
    headers = {} if header is None else {"Retry-After": header}
    body = json.dumps({"error": "later", "code": "UNAVAILABLE", "requestId": "r"})

    error = failure(httpx.Response(503, content=body, headers=headers))

    assert error.retry_after_s == seconds


@pytest.mark.parametrize(
    "trouble",
    [
        httpx.ConnectError("refused"),
        httpx.ConnectTimeout("slow"),
        httpx.ReadTimeout(""),
        httpx.RemoteProtocolError("cut short"),
        httpx.PoolTimeout("busy"),
    ],
)
def test_a_network_failure_is_unreachable_and_retried_later(trouble: Exception) -> None:
    error = failure(trouble)

    assert (error.code, error.retry) == ("UNREACHABLE", Retry.LATER)
    assert error.__cause__ is trouble


@pytest.mark.parametrize(
    "response",
    [
        httpx.Response(200, content=b"<html>welcome</html>", headers={"content-type": "text/html"}),
        httpx.Response(200, content=b"\xff\xff\xff", headers={"content-type": PROTOBUF}),
        httpx.Response(200, content=b"no header"),
    ],
)
def test_a_success_response_that_is_no_page_is_not_the_gateways(response: httpx.Response) -> None:
    error = failure(response)

    assert error.code == "NOT_THE_GATEWAY"
    assert "not a LakeSync gateway's" in error.message


def test_an_empty_body_is_not_taken_for_an_empty_page() -> None:
    """Protobuf reads it as the first page of an empty buffer, which would empty the client's."""
    empty = httpx.Response(200, content=b"", headers={"content-type": PROTOBUF})

    assert failure(empty).code == "NOT_THE_GATEWAY"


def test_a_response_with_damaged_compression_is_unreachable() -> None:
    stream = httpx.ByteStream(b"\x1f\x8b not gzip")
    headers = {"content-type": PROTOBUF, "content-encoding": "gzip"}

    assert failure(httpx.Response(200, stream=stream, headers=headers)).code == "UNREACHABLE"


def test_the_query_string_of_a_pull_has_cursor_client_limit_and_epoch(world: World) -> None:
    seen: list[httpx.URL] = []
    world.gateway.push(GATEWAY, PUSH)

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request.url)
        page = world.gateway.pull(GATEWAY, Pull("x", 0, 10))
        content = proto.encode_page(page)
        return httpx.Response(200, content=content, headers={"content-type": PROTOBUF})

    with transport(answer) as there:
        there.pull(PULL)
        there.pull(Pull("a b&c", 0, 10))
        there.pull(Pull("x", at_least=17))
        there.pull(Pull("x", at_least=STAMP_MAX))

    assert [url.params.get("atLeast") for url in seen] == [None, None, "17", None]
    assert [url.params.get("fresh") for url in seen] == [None, None, None, "true"]
    assert dict(seen[0].params) == {
        "since": "7",
        "clientId": "phone",
        "limit": "50",
        "epoch": "e1",
        "ownCursor": "true",
    }
    assert dict(seen[1].params) == {
        "since": "0",
        "clientId": "a b&c",
        "limit": "10",
        "ownCursor": "true",
    }


def test_time_outs_are_set_for_each_phase_of_a_request() -> None:
    timeouts = Timeouts(connect_s=1, write_s=2, read_s=3, pool_s=4)
    with HttpTransport("https://a.example", "g", token="t", timeouts=timeouts) as there:
        assert there._http.timeout == httpx.Timeout(connect=1, write=2, read=3, pool=4)


def test_importing_the_client_does_not_import_httpx() -> None:
    code = "import lakesync.client, sys; sys.exit('httpx' in sys.modules)"

    subprocess.run([sys.executable, "-c", code], check=True, timeout=PATIENCE_S)


def test_a_push_over_http_whose_answer_is_lost_is_safe_to_repeat(world: World) -> None:
    server = Server(world)
    lose = [True]

    def answer(request: httpx.Request) -> httpx.Response:
        response = server(request)
        if lose.pop() if lose else False:
            raise httpx.ReadTimeout("lost")
        return response

    with transport(answer) as there:
        client = world.client(transport=there)
        client.insert("todos", "t1", {"title": "x"}).unwrap()
        assert isinstance(client.push(), Err)
        assert isinstance(client.sync(), Ok)

    assert len(world.deltas()) == 1


def test_without_httpx_the_http_transport_names_the_package_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "httpx", None)

    with pytest.raises(ImportError, match=r"pip install .*\[client\]"):
        HttpTransport("https://a.example", "g", token="t")


@pytest.mark.law("X11")
def test_connector_types_are_read_from_the_gateway_and_malformed_lists_are_refused(
    world: World,
) -> None:
    """Asked of the stack, not of one gateway; what is no list is no answer of a gateway."""
    bodies = [json.dumps(all_described()).encode(), b'[{"type": "x"}]', b"[7]", b"{"]
    paths: list[str] = []

    def serve(request: httpx.Request) -> httpx.Response:
        paths.append(f"{request.method} {request.url.path}")
        return httpx.Response(
            200, content=bodies.pop(0), headers={"content-type": "application/json"}
        )

    with transport(serve) as http:
        client = world.client(transport=http)
        listed = {each.type: each for each in client.connector_types().unwrap()}
        refused = [client.connector_types() for _ in range(len(bodies))]

    assert {"postgres", "jira", "stripe", "cloudwatch"} <= listed.keys()
    assert listed["jira"].title == "Jira Cloud"
    assert listed["jira"].configuration["properties"]["apiToken"]["writeOnly"]
    assert {result.error.code for result in refused if isinstance(result, Err)} == {
        "NOT_THE_GATEWAY"
    }
    assert all(isinstance(result, Err) for result in refused)
    assert paths == ["GET /stage/v1/connectors/types"] * 4


def test_a_memory_gateway_lists_connector_types_and_other_transports_refuse(
    world: World, tmp_path: Path
) -> None:
    with MemoryGateway(tmp_path) as gateway:
        types = gateway.client("phone").connector_types().unwrap()
    assert "postgres" in {each.type for each in types}
    refused = world.client("b").connector_types()
    assert isinstance(refused, Err)
    assert refused.error.code == "METHOD_NOT_ALLOWED"


def test_actions_are_sent_over_http_as_json(world: World) -> None:
    shop = Shop(world)
    paths: list[str] = []

    def serve(request: httpx.Request) -> httpx.Response:
        paths.append(f"{request.method} {request.url.path}")
        if request.method == "GET":
            body = jsonish.encode_discovery(shop.discover_actions(GATEWAY))
        else:
            assert request.headers["content-type"] == "application/json"
            push = jsonish.decode_action_push(request.content)
            body = jsonish.encode_answers(shop.run_actions(GATEWAY, push))
        return httpx.Response(200, content=body, headers={"content-type": "application/json"})

    with transport(serve) as http:
        client = world.client(transport=http)
        queued = client.actions.run(
            "shipping", "ship", {"order": 1.5, "to": "Zoë"}, idempotency_key="k"
        ).unwrap()
        client.actions.send().unwrap()
        assert queued.result(0) == Ok({"shipment": 1})
        assert client.actions.discover().unwrap()["shipping"][0].action_type == "ship"

    assert paths == ["POST /stage/v1/sync/g1/action", "GET /stage/v1/sync/g1/actions"]
    assert shop.shipped == [{"order": 1.5, "to": "Zoë"}]
    (action,) = shop.pushes[0].actions
    assert isinstance(action, Action)
    assert (action.idempotency_key, action.client_id) == ("k", client.client_id)
