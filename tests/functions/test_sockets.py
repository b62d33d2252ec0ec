"""The functions of WebSockets: who may connect, what frames are answered, what closes them."""

from __future__ import annotations

import base64
import json
import time
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from lakesync.buffer.connections import ItemConnections
from lakesync.buffer.memory_items import MemoryItemStore
from lakesync.core.delta import Op, make_delta
from lakesync.core.messages import Pull, Push
from lakesync.errors import Unavailable
from lakesync.gateway.broadcast import Broadcaster
from lakesync.ports import Connection, Revocation
from lakesync.runtime import observe, websocket_frames, websockets, wiring, wiring_connectors
from lakesync.runtime.websocket_frames import COUNTED_AT_ONCE, WINDOW_FRAMES_MAX, WINDOW_S
from lakesync.runtime.websockets import FramesSettings
from lakesync.wire import lakesync_pb2 as pb
from lakesync.wire import proto
from lakesync.wire.proto import Tag
from tests.functions.conftest import Context, event
from tests.support.acting import use_memory_outside
from tests.support.polling import MemorySecrets
from tests.support.sockets import FakeSockets, broadcast_of, is_json

if TYPE_CHECKING:
    import io

    from tests.functions.conftest import Functions
    from tests.support.acting import MemoryOutside

NAME = "L0SM9cOFvHcCIhw="
GATEWAY = "demo"
NOBODY_NOTIFIED: dict[str, Any] = {"gateways": 0, "batchItemFailures": []}


class Api:
    """A WebSocket API in front of the functions."""

    def __init__(self, functions: Functions) -> None:
        self.functions = functions
        self.connections = ItemConnections(MemoryItemStore())
        self.sockets = FakeSockets()
        self._handlers: dict[str, Any] = {}

    def call(self, name: str, sent: dict[str, Any]) -> dict[str, Any]:
        """Call a function, which stays warm."""
        if name not in self._handlers:
            self._handlers[name] = self.functions.load(name)
        answer: dict[str, Any] = self._handlers[name](sent, Context())
        return answer

    def connect(self) -> None:
        assert self.call("connect", event("connect_sub_protocol"))["statusCode"] == 200

    def send(self, frame: object, **changed: Any) -> tuple[Tag, bytes]:
        """Send a frame; returns the one that answers it."""
        self.sockets.sent.clear()
        answer = self.call("frames", event("frames_pull") | {"body": frame} | changed)
        assert answer == {"statusCode": 200}, "the emulator would send a body to the client"
        (answered,) = self.sockets.sent[NAME]
        return proto.decode_frame(answered)

    def refusal(self, frame: object, **changed: Any) -> proto.Refused:
        tag, body = self.send(frame, **changed)
        assert tag is Tag.REFUSAL
        return proto.decode_refusal(body)


@pytest.fixture
def api(functions: Functions, monkeypatch: pytest.MonkeyPatch) -> Api:
    served = Api(functions)
    monkeypatch.setattr(websockets, "connections", lambda _: served.connections)
    monkeypatch.setattr(websockets, "sockets", lambda _: served.sockets)
    for name, value in {
        "CONNECTIONS_TABLE": "connections",
        "SOCKET_HOST": "socketsapi.execute-api.eu-central-1.amazonaws.com",
        "SOCKET_STAGE": "live",
    }.items():
        monkeypatch.setenv(name, value)
    return served


def with_context(name: str, **context: Any) -> dict[str, Any]:
    """Return a sample event with another context."""
    sent = event(name)
    sent["requestContext"].update(context)
    return sent


def some_push(client: str = "phone-1", title: str = "Buy milk") -> Push:
    hlc = time.time_ns() // 1_000_000 << 16
    delta = make_delta(Op.INSERT, "todos", "r1", {"title": title}, client_id=client, hlc=hlc)
    return Push(client, ((0, delta),), own_cursor=True)


def some_actions(*orders: int, client: str = "phone-1", connector: str = "slack") -> bytes:
    message = pb.ActionPush(client_id=client)
    for order in orders:
        message.actions.add(
            action_id=f"a{order}",
            connector=connector,
            action_type="send",
            params=json.dumps({"n": order}).encode(),
        )
    return message.SerializeToString()


PULL = proto.encode_pull_frame(Pull("phone-1", removes=True, own_cursor=True), 7)

# --- who may connect ------------------------------------------------------------------------------


@pytest.mark.law("T6")
def test_a_connection_is_stored_with_user_claims_and_scope(api: Api) -> None:
    answer = api.call("connect", event("connect_sub_protocol"))

    assert answer == {"statusCode": 200, "headers": {"Sec-WebSocket-Protocol": "lakesync.v1"}}
    connection = api.connections.get(GATEWAY, NAME)
    assert connection is not None
    assert (connection.client_id, connection.user) == ("phone-1", "ann")
    assert connection.claims["gw"] == GATEWAY
    assert connection.scope
    assert connection.expires_s == 4102444800


@pytest.mark.law("T6")
def test_a_connection_with_a_refused_token_is_rejected(api: Api) -> None:
    answer = api.call("connect", event("connect_refused"))

    assert answer["statusCode"] == 401
    assert json.loads(answer["body"])["code"] == "AUTH_ERROR"
    assert api.connections.scan("") == ([], "")


@pytest.mark.law("T6")
def test_a_revoked_user_cannot_connect(api: Api, functions: Functions) -> None:
    functions.access.revoke(GATEWAY, Revocation("user", "ann", 1, "ops"))

    assert api.call("connect", event("connect_sub_protocol"))["statusCode"] == 403


@pytest.mark.law("T6")
def test_a_user_cannot_connect_as_another_users_client(api: Api, functions: Functions) -> None:
    functions.access.bind(GATEWAY, "phone-1", "bob")

    assert api.call("connect", event("connect_sub_protocol"))["statusCode"] == 403


@pytest.mark.law("U6")
def test_an_operator_cannot_connect(api: Api) -> None:
    answer = api.call("connect", event("connect_sub_protocol", role="operator"))

    assert answer["statusCode"] == 403
    assert json.loads(answer["body"])["code"] == "FORBIDDEN"
    assert api.connections.of_gateway(GATEWAY)[0] == []


@pytest.mark.law("T7")
def test_a_connection_with_an_unknown_sub_protocol_is_rejected(api: Api) -> None:
    sent = event("connect_sub_protocol") | {"headers": {"sec-websocket-protocol": "mqtt"}}

    assert api.call("connect", sent)["statusCode"] == 400


@pytest.mark.law("T6")
def test_a_closed_connection_is_removed(api: Api) -> None:
    api.connect()

    assert api.call("disconnect", event("disconnect_closed"))["statusCode"] == 200
    assert api.connections.get(GATEWAY, NAME) is None


# --- frames ---------------------------------------------------------------------------------------


@pytest.mark.law("T7")
def test_a_push_and_a_pull_are_answered_under_their_ids(api: Api) -> None:
    api.connect()
    tag, body = api.send(proto.encode_push_frame(some_push(), 5))
    assert (tag, proto.answered_id_of(tag, body)) == (Tag.PUSH, 5)
    assert proto.decode_receipt(body).accepted == 1
    tag, body = api.send(PULL)
    assert (tag, proto.answered_id_of(tag, body)) == (Tag.PULL, 7)
    assert proto.decode_page(body).count == 1


@pytest.mark.law("T7")
def test_a_page_too_large_for_a_frame_is_refused(api: Api) -> None:
    api.connect()
    service = websockets.frame_service(wiring.load(FramesSettings))
    service._pushes.push(GATEWAY, some_push(title="x" * 150_000))

    refused = api.refusal(PULL)
    assert (refused.request_id, refused.error.code, refused.closes) == (7, "BODY_TOO_LARGE", False)


@pytest.mark.law("T7")
@pytest.mark.parametrize(
    "frame",
    [
        event("frames_not_base64")["body"],
        "",
        None,
        "AA==",
        "CQ==",
        proto.encode_frame(Tag.PUSH, b"\x08"),
        proto.encode_push_frame(some_push(), 5)[:40],
        "A" * (proto.FRAME_CHARS_MAX + 4),
    ],
)
def test_a_malformed_frame_closes_the_connection_with_an_error_code(
    api: Api, frame: str | None
) -> None:
    api.connect()
    refused = api.refusal(frame)

    assert refused.closes
    assert refused.error.code in {"VALIDATION_ERROR", "BODY_TOO_LARGE"}
    assert api.sockets.closed == [NAME]
    assert api.connections.get(GATEWAY, NAME) is None


@pytest.mark.law("T7")
def test_a_binary_frame_closes_the_connection(api: Api) -> None:
    api.connect()

    assert api.refusal(PULL, isBase64Encoded=True).closes


@pytest.mark.law("T7")
@pytest.mark.parametrize(
    ("frame", "code"),
    [
        (proto.encode_pull_frame(Pull("phone-1", deltas_max=-1 & 0xFFFFFFFF), 7), None),
        (proto.encode_pull_frame(Pull("phone-2"), 7), "FORBIDDEN"),
        (proto.encode_push_frame(some_push("phone-2"), 7), "FORBIDDEN"),
        (proto.encode_pull_frame(Pull("phone-1", snapshot="nonsense"), 7), "VALIDATION_ERROR"),
        (proto.encode_pull_frame(replace(Pull("phone-1"), since=1 << 62), 7), "CURSOR_EXPIRED"),
    ],
)
def test_an_invalid_request_is_answered_and_keeps_the_connection_open(
    api: Api, frame: str, code: str | None
) -> None:
    api.connect()
    _, body = api.send(frame)
    if code is not None:
        refused = proto.decode_refusal(body)
        assert (refused.request_id, refused.error.code, refused.closes) == (7, code, False)
    assert api.sockets.closed == []
    assert api.send(PULL)[0] is Tag.PULL


@pytest.mark.law("T7")
def test_frames_with_server_side_tags_are_refused(api: Api) -> None:
    api.connect()
    for tag in (Tag.BROADCAST, Tag.ACTION_RESPONSE, Tag.REFUSAL, Tag.KEEP_ALIVE):
        assert api.refusal(proto.encode_frame(tag, b"")).error.code == "METHOD_NOT_ALLOWED"


@pytest.fixture
def outside(functions: Functions, monkeypatch: pytest.MonkeyPatch) -> MemoryOutside:
    """An action handler, and what hands an event to the function that runs actions."""
    made = use_memory_outside(monkeypatch)
    monkeypatch.setattr(wiring_connectors, "secrets", lambda *_: MemorySecrets())
    handler = {"name": "slack", "type": "memory", "allow": [{}]}
    registered = event("admin_register_action", body=handler)
    assert functions.http("admin", registered).json["registered"]

    def invoker(_settings: object, name: str, _seconds: int) -> Any:
        return lambda sent: (True, json.dumps(functions.call(name, json.loads(sent))).encode())

    monkeypatch.setattr(wiring, "invoker", invoker)
    return made


@pytest.mark.law("X9")
def test_an_action_run_over_a_socket_is_not_repeated_over_https(
    api: Api, outside: MemoryOutside, functions: Functions
) -> None:
    api.connect()

    tag, body = api.send(proto.encode_action_frame(some_actions(1, 2), 9))

    assert tag is Tag.ACTION_RESPONSE
    assert proto.answered_id_of(tag, body) == 9
    results = pb.ActionResponse.FromString(body).results
    assert [json.loads(each.success.data) for each in results] == [{"n": 1}, {"n": 2}]
    sent = event("actions_run")
    sent["headers"] |= {"content-type": "application/x-protobuf", "accept": "application/json"}
    sent["requestContext"]["authorizer"]["lambda"] = event("frames_pull")["requestContext"][
        "authorizer"
    ]
    sent |= {"body": base64.b64encode(some_actions(1)).decode(), "isBase64Encoded": True}
    (remembered,) = json.loads(functions.call("actions", sent)["body"])["results"]
    assert remembered["data"] == {"n": 1}
    assert len(outside.done) == 2


@pytest.mark.law("X9")
def test_invalid_actions_over_a_socket_are_refused_as_over_https(
    api: Api, outside: MemoryOutside
) -> None:
    api.connect()

    def code(body: bytes) -> str:
        refused = api.refusal(proto.encode_action_frame(body, 7))
        assert (refused.request_id, refused.closes) == (7, False)
        return refused.error.code

    assert code(some_actions(1, client="other")) == "FORBIDDEN"
    assert code(some_actions(*range(26))) == "VALIDATION_ERROR"
    _, body = api.send(proto.encode_action_frame(some_actions(1, connector="nobody"), 7))
    (result,) = pb.ActionResponse.FromString(body).results
    assert result.error.code == "ACTION_NOT_SUPPORTED"
    assert outside.done == []


@pytest.mark.law("X9")
def test_refusals_and_failures_of_the_actions_function_are_reported(
    api: Api, outside: MemoryOutside, monkeypatch: pytest.MonkeyPatch
) -> None:
    revoked = json.dumps({"error": "revoked", "code": "REVOKED"})
    answers: list[tuple[bool, bytes]] = [
        (False, b'{"errorMessage": "Task timed out"}'),
        (True, json.dumps({"statusCode": 403, "body": revoked}).encode()),
        (True, b'{"statusCode": 502, "body": "<html>"}'),
        (True, b'{"statusCode": 200, "headers": {"content-encoding": "gzip"}, "body": "H4sI"}'),
    ]
    monkeypatch.setattr(wiring, "invoker", lambda *_: lambda _: answers.pop(0))
    api.connect()
    codes = [
        api.refusal(proto.encode_action_frame(some_actions(1), 7)).error.code for _ in range(4)
    ]
    assert codes == ["UNAVAILABLE", "REVOKED", "INTERNAL_ERROR", "BODY_TOO_LARGE"]
    assert outside.done == []


@pytest.mark.law("T7")
def test_an_unexpected_error_in_a_frame_is_answered_without_detail(
    api: Api, monkeypatch: pytest.MonkeyPatch, log: io.StringIO
) -> None:
    api.connect()

    def broken(*_: object) -> Any:
        raise KeyError("detail")

    monkeypatch.setattr(websocket_frames.FrameService, "_pull", broken)
    refused = api.refusal(PULL)

    assert refused.error.code == "INTERNAL_ERROR"
    assert "detail" not in refused.error.message
    assert "detail" in log.getvalue()


@pytest.mark.law("T7")
@pytest.mark.parametrize("processes", [1, 2, 40])
def test_too_many_frames_close_the_connection_across_processes(
    api: Api, functions: Functions, monkeypatch: pytest.MonkeyPatch, processes: int
) -> None:
    monkeypatch.setattr(time, "time", lambda: 1_800_000_000.5)
    api.connect()
    monkeypatch.setattr(websocket_frames.FrameService, "_pull", lambda *_: "page")
    served = [functions.load("frames") for _ in range(processes)]
    land, taken = Random(processes), 0
    while not api.sockets.closed:
        api.sockets.sent.clear()
        land.choice(served)(event("frames_pull") | {"body": PULL}, Context())
        taken += 1

    assert WINDOW_FRAMES_MAX < taken <= WINDOW_FRAMES_MAX + COUNTED_AT_ONCE * processes
    (refused,) = api.sockets.refusals(NAME)
    assert (refused.error.code, refused.closes) == ("RATE_LIMITED", True)


@pytest.mark.law("T7")
def test_frames_are_counted_with_one_write_per_ten_and_none_for_few_frames(
    api: Api, functions: Functions, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 1_800_000_000.5
    monkeypatch.setattr(time, "time", lambda: now_s)
    api.connect()
    monkeypatch.setattr(websocket_frames.FrameService, "_pull", lambda *_: "page")
    count_frames, writes = api.connections.count_frames, []

    def counting(connection: Connection, window: int, number: int) -> bool:
        writes.append(number)
        return count_frames(connection, window, number)

    monkeypatch.setattr(api.connections, "count_frames", counting)
    for _ in range(50):
        for _ in range(COUNTED_AT_ONCE - 1):
            api.call("frames", event("frames_pull") | {"body": PULL})
        now_s += WINDOW_S
    assert writes == []
    for _ in range(10):
        for _ in range(WINDOW_FRAMES_MAX):
            api.call("frames", event("frames_pull") | {"body": PULL})
        now_s += WINDOW_S

    assert writes == [COUNTED_AT_ONCE] * (10 * WINDOW_FRAMES_MAX // COUNTED_AT_ONCE)
    assert api.sockets.closed == [], "so many are allowed"


@pytest.mark.law("T7")
def test_frames_are_answered_when_counting_fails(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    api.connect()

    def failing(*_: object) -> bool:
        raise Unavailable("DynamoDB is away")

    monkeypatch.setattr(api.connections, "count_frames", failing)
    for _ in range(2 * COUNTED_AT_ONCE):
        assert api.send(PULL)[0] is Tag.PULL


@pytest.mark.law("T6")
def test_frames_of_an_expired_token_close_the_connection(api: Api) -> None:
    api.connect()
    connection = api.connections.get(GATEWAY, NAME)
    assert connection is not None
    api.connections.add(replace(connection, expires_s=time.time() - 1))

    refused = api.refusal(PULL)
    assert (refused.error.code, refused.closes) == ("AUTH_ERROR", True)
    assert api.sockets.closed == [NAME]


@pytest.mark.law("T6", "T7")
def test_a_token_expiring_during_a_frame_closes_the_connection_at_the_next_frame(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.connect()
    real = websocket_frames.FrameService._pull

    def slow(*arguments: Any) -> str:
        connection = api.connections.get(GATEWAY, NAME)
        assert connection is not None
        api.connections.add(replace(connection, expires_s=time.time() - 1))
        return real(*arguments)

    monkeypatch.setattr(websocket_frames.FrameService, "_pull", slow)
    assert api.send(PULL)[0] is Tag.PULL
    assert api.sockets.closed == []
    assert api.refusal(PULL).error.code == "AUTH_ERROR"
    assert api.sockets.closed == [NAME]


@pytest.mark.law("T6", "T7")
def test_a_push_whose_connection_is_lost_is_committed_once(api: Api, functions: Functions) -> None:
    api.connect()
    api.sockets.gone.add(NAME)
    frame = proto.encode_push_frame(some_push(), 5)
    answer = api.call("frames", event("frames_pull") | {"body": frame})

    assert answer == {"statusCode": 200}
    assert api.connections.get(GATEWAY, NAME) is None, "it is forgotten"
    assert len(functions.buffer.heads(GATEWAY)) == 1, "the push was committed"
    api.sockets.gone.clear()
    api.connect()
    tag, body = api.send(frame)
    assert tag is Tag.PUSH
    assert proto.decode_receipt(body).accepted == 1
    assert proto.decode_page(api.send(PULL)[1]).count == 1, "and once, though it came twice"


@pytest.mark.law("T6")
def test_a_frame_of_an_unknown_connection_closes_the_connection(api: Api) -> None:
    assert api.refusal(PULL).closes
    assert api.sockets.closed == [NAME]


@pytest.mark.law("T6")
def test_no_function_logs_a_token(api: Api, log: io.StringIO) -> None:
    for name in ("connect_sub_protocol", "connect_refused"):
        sent = event(name)
        sent["headers"]["Sec-WebSocket-Protocol"] = "lakesync.v1, bearer.very-secret"
        sent["queryStringParameters"] = {"token": "very-secret", "clientId": "phone-1"}
        api.call("connect", sent)
    api.call("frames", event("frames_not_base64"))
    api.call("disconnect", event("disconnect_closed"))

    assert "very-secret" not in log.getvalue()


# --- frames of JSON -------------------------------------------------------------------------------


JSON_PULL = {"clientId": "phone-1", "removes": True, "ownCursor": True}


def with_protocols(*words: str) -> dict[str, Any]:
    """Return a handshake that offers these sub-protocols."""
    sent = event("connect_sub_protocol")
    sent["headers"]["Sec-WebSocket-Protocol"] = ", ".join([*words, "bearer.left-out"])
    return sent


class JsonSocket:
    """A connection whose frames are JSON."""

    def __init__(self, api: Api) -> None:
        self.api = api
        answer = api.call("connect", with_protocols("lakesync.v1.json"))
        assert answer == {
            "statusCode": 200,
            "headers": {"Sec-WebSocket-Protocol": "lakesync.v1.json"},
        }

    def ask(self, tag: int, body: object, request_id: int = 7) -> tuple[int, Any]:
        return self.send(json.dumps({"tag": tag, "requestId": request_id, "body": body}))

    def send(self, frame: object, request_id: int = 7) -> tuple[int, Any]:
        """Send a frame; returns the tag and body of its answer."""
        self.api.sockets.sent.clear()
        answer = self.api.call("frames", event("frames_pull") | {"body": frame})
        assert answer == {"statusCode": 200}
        (answered,) = self.api.sockets.sent[NAME]
        read = json.loads(answered)
        assert read["requestId"] in {request_id, 0}
        if read["tag"] == Tag.REFUSAL:
            assert read["body"]["closes"] == (read["requestId"] == 0)
        return read["tag"], read["body"]


@pytest.fixture
def socket(api: Api) -> JsonSocket:
    return JsonSocket(api)


def json_push(title: object = "Buy milk", client: str = "phone-1") -> dict[str, Any]:
    hlc = str(time.time_ns() // 1_000_000 << 16)
    columns = [{"column": "title", "value": title}]
    delta = {"op": "INSERT", "table": "todos", "rowId": "r1", "clientId": client}
    return {
        "clientId": client,
        "deltas": [delta | {"columns": columns, "hlc": hlc}],
        "lastSeenHlc": "0",
        "ownCursor": True,
    }


@pytest.mark.law("T7", "W8")
@pytest.mark.parametrize(
    ("words", "chosen"),
    [
        (["lakesync.v1"], "lakesync.v1"),
        (["lakesync.v1.json"], "lakesync.v1.json"),
        (["lakesync.v1", "lakesync.v1.json"], "lakesync.v1"),
        (["mqtt", "lakesync.v1.json", "lakesync.v1"], "lakesync.v1.json"),
    ],
)
def test_first_known_sub_protocol_is_chosen_and_decides_the_encoding(
    api: Api, words: list[str], chosen: str
) -> None:
    answer = api.call("connect", with_protocols(*words))

    assert answer["headers"] == {"Sec-WebSocket-Protocol": chosen}
    connection = api.connections.get(GATEWAY, NAME)
    assert connection is not None
    assert connection.is_json == (chosen == "lakesync.v1.json")


@pytest.mark.law("T7", "W8")
def test_json_push_and_pull_are_answered_by_the_bodies_of_http(
    socket: JsonSocket, functions: Functions
) -> None:
    tag, receipt = socket.ask(1, json_push())
    assert (tag, receipt["accepted"], receipt["results"]) == (1, 1, [])
    tag, page = socket.ask(2, JSON_PULL)
    caller = event("frames_pull")["requestContext"]["authorizer"]
    asked = with_context("pull_first_page", authorizer={"lambda": caller})
    over_https = functions.http("pull", asked).json
    assert tag == 2
    assert [each["rowId"] for each in page["deltas"]] == ["r1"]
    assert page["deltas"] == over_https["deltas"]
    assert socket.ask(2, {})[1]["deltas"] == page["deltas"], "a pull may leave its client out"


@pytest.mark.law("T7", "W8")
def test_json_pages_fit_frames_whatever_the_rows_hold(socket: JsonSocket) -> None:
    service = websockets.frame_service(wiring.load(FramesSettings))
    # A control character is one byte of a row id in protobuf, and six characters in JSON.
    rows = [f"{number:03}" + 500 * "\x01" for number in range(150)]
    for number, row in enumerate(rows):
        hlc = (time.time_ns() // 1_000_000 << 16) + number
        delta = make_delta(Op.INSERT, "todos", row, {"n": number}, client_id="laptop", hlc=hlc)
        service._pushes.push(GATEWAY, Push("laptop", ((0, delta),)))
    read: list[str] = []
    page: dict[str, Any] = {"hasMore": True, "serverHlc": "0"}
    while page["hasMore"]:
        wanted = JSON_PULL | {"since": page["serverHlc"], "limit": 1_000, "fresh": True}
        tag, page = socket.ask(2, wanted)
        assert tag == 2
        assert len(socket.api.sockets.sent[NAME][0].encode()) <= proto.FRAME_CHARS_MAX
        read += [each["rowId"] for each in page["deltas"]]

    assert read == rows


@pytest.mark.law("T7", "W8")
@pytest.mark.parametrize("title", ["x" * 150_000, "\x01" * 22_000, "\U0001f600" * 33_000])
def test_json_page_too_large_for_a_frame_is_refused(socket: JsonSocket, title: str) -> None:
    service = websockets.frame_service(wiring.load(FramesSettings))
    service._pushes.push(GATEWAY, some_push(title=title))

    tag, body = socket.ask(2, JSON_PULL)
    assert (tag, body["code"], body["closes"]) == (6, "BODY_TOO_LARGE", False)
    assert socket.api.sockets.closed == []


@pytest.mark.law("T7", "W8")
@pytest.mark.parametrize(
    "frame",
    [
        PULL,
        "",
        None,
        "[]",
        "{}",
        '{"tag":9,"requestId":7,"body":{}}',
        '{"tag":"2","requestId":7,"body":{}}',
        '{"tag":2,"requestId":-1,"body":{}}',
        '{"tag":2,"requestId":7,"body":{"since":"\ud800"}}',
        "[" * 100_000,
        '{"tag":2,"body":' + "[" * 60_000 + "]" * 60_000 + "}",
        '{"tag":2,"body":"' + "\u00e9" * 65_600 + '"}',
        json.dumps({"tag": 2, "body": "x" * 131_072}),
    ],
)
def test_malformed_json_frame_closes_the_connection_with_an_error_code(
    socket: JsonSocket, frame: str | None
) -> None:
    tag, body = socket.send(frame)

    assert (tag, body["closes"]) == (6, True)
    assert body["code"] in {"VALIDATION_ERROR", "BODY_TOO_LARGE"}
    assert socket.api.sockets.closed == [NAME]
    assert socket.api.connections.get(GATEWAY, NAME) is None


@pytest.mark.law("T7", "W8")
def test_json_frame_on_a_protobuf_connection_closes_it_with_a_protobuf_refusal(api: Api) -> None:
    api.connect()
    refused = api.refusal(json.dumps({"tag": 2, "requestId": 7, "body": JSON_PULL}))

    assert (refused.error.code, refused.closes) == ("VALIDATION_ERROR", True)
    assert api.sockets.closed == [NAME]


@pytest.mark.law("T7", "W8")
@pytest.mark.parametrize(
    ("tag", "body", "code", "field"),
    [
        (1, None, "VALIDATION_ERROR", None),
        (1, {"clientId": "phone-1", "deltas": {}}, "VALIDATION_ERROR", "deltas"),
        (1, json_push(client="phone-2"), "FORBIDDEN", "clientId"),
        (2, [], "VALIDATION_ERROR", None),
        (2, {"clientId": "phone-2"}, "FORBIDDEN", "clientId"),
        (2, {"clientId": "\ud800"}, "VALIDATION_ERROR", "clientId"),
        (2, {"since": -1}, "VALIDATION_ERROR", "since"),
        (2, {"snapshot": "nonsense"}, "VALIDATION_ERROR", None),
        (2, {"since": str(1 << 62), "ownCursor": True}, "CURSOR_EXPIRED", None),
        (3, {}, "METHOD_NOT_ALLOWED", None),
        (5, {}, "METHOD_NOT_ALLOWED", None),
        (6, {}, "METHOD_NOT_ALLOWED", None),
        (7, {}, "METHOD_NOT_ALLOWED", None),
        (4, {"clientId": "phone-1", "actions": 1}, "VALIDATION_ERROR", "actions"),
        (4, {"clientId": "phone-2", "actions": []}, "FORBIDDEN", "clientId"),
    ],
)
def test_invalid_json_request_is_answered_and_keeps_the_connection_open(
    socket: JsonSocket, tag: int, body: object, code: str, field: str | None
) -> None:
    answer, refused = socket.ask(tag, body)
    assert (answer, refused["code"], refused["closes"]) == (6, code, False)
    if field:
        assert refused["field"] == field
    assert socket.api.sockets.closed == []
    assert socket.ask(2, JSON_PULL)[0] == 2


@pytest.mark.law("W3", "W8")
def test_malformed_delta_of_a_json_frame_is_refused_alone(socket: JsonSocket) -> None:
    push = json_push()
    push["deltas"] += [{"op": "UPSERT", "deltaId": "\ud800"}, 7]
    tag, receipt = socket.ask(1, push)

    assert (tag, receipt["accepted"]) == (1, 1)
    assert [each["index"] for each in receipt["results"]] == [1, 2]
    assert {each["outcome"] for each in receipt["results"]} == {"refused"}


@pytest.mark.law("X9", "W8")
def test_actions_of_a_json_frame_are_run_once_and_answered(
    socket: JsonSocket, outside: MemoryOutside
) -> None:
    actions = [
        {
            "actionId": f"a{order}",
            "connector": "slack",
            "actionType": "send",
            "params": {"n": order},
        }
        for order in (1, 2)
    ]
    asked = {"clientId": "phone-1", "actions": [*actions, {"actionId": "\ud800"}]}
    tag, answers = socket.ask(4, asked)

    assert tag == 5
    assert [each.get("data") for each in answers["results"]] == [{"n": 1}, {"n": 2}, None]
    assert answers["results"][2]["code"]
    assert socket.ask(4, asked)[1]["results"] == answers["results"]
    assert len(outside.done) == 2


@pytest.mark.law("X9", "W8")
def test_refusal_of_the_actions_function_reaches_a_json_connection(
    socket: JsonSocket, outside: MemoryOutside, monkeypatch: pytest.MonkeyPatch
) -> None:
    revoked = json.dumps({"error": "revoked", "code": "REVOKED"})
    answer = json.dumps({"statusCode": 403, "body": revoked}).encode()
    monkeypatch.setattr(wiring, "invoker", lambda *_: lambda _: (True, answer))
    tag, refused = socket.ask(4, {"clientId": "phone-1", "actions": []})

    assert (tag, refused["code"], refused["error"]) == (6, "REVOKED", "revoked")
    assert outside.done == []


@pytest.mark.law("T6", "W8")
def test_json_connection_that_is_over_is_closed_in_json(socket: JsonSocket) -> None:
    connection = socket.api.connections.get(GATEWAY, NAME)
    assert connection is not None
    socket.api.connections.add(replace(connection, expires_s=time.time() - 1))
    assert socket.ask(2, JSON_PULL)[1]["code"] == "AUTH_ERROR"
    assert socket.api.connections.get(GATEWAY, NAME) is None
    socket.api.sockets.closed.clear()
    tag, body = socket.ask(2, JSON_PULL)

    assert (tag, body["code"], body["closes"]) == (6, "AUTH_ERROR", True), "nobody knows it"
    assert socket.api.sockets.closed == [NAME]


@pytest.mark.law("T7", "W8")
def test_unexpected_error_in_a_json_frame_is_answered_without_detail(
    socket: JsonSocket, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> Any:
        raise KeyError("detail")

    monkeypatch.setattr(websocket_frames.FrameService, "_pull", broken)
    tag, body = socket.ask(2, JSON_PULL)

    assert (tag, body["code"], body["closes"]) == (6, "INTERNAL_ERROR", False)
    assert "detail" not in body["error"]


# --- the stream -----------------------------------------------------------------------------------


@pytest.mark.law("T1")
@pytest.mark.parametrize("protocol", ["lakesync.v1", "lakesync.v1.json"])
def test_a_commit_is_broadcast_to_connections(api: Api, protocol: str) -> None:
    assert api.call("connect", with_protocols(protocol))["statusCode"] == 200
    service = websockets.frame_service(wiring.load(FramesSettings))
    service._pushes.push(GATEWAY, some_push("laptop"))
    api.call("notify", event("notify_commits"))

    (frame,) = api.sockets.sent[NAME]
    page = broadcast_of(frame)
    assert page is not None
    assert page.is_poke
    assert is_json(frame) == (protocol == "lakesync.v1.json")


class Stepping(Context):
    """Time that goes by as somebody looks at it."""

    def get_remaining_time_in_millis(self) -> int:
        self.remaining_ms -= 250
        return self.remaining_ms


@pytest.mark.law("T8")
def test_an_unfinished_broadcast_is_retried_and_time_is_shared_among_gateways(
    api: Api, functions: Functions
) -> None:
    """One gateway's connections, however many, do not keep those of another waiting."""
    sent = event("notify_commits")
    sent["Records"] = sent["Records"][:1]
    sent["Records"].append(json.loads(json.dumps(sent["Records"][0]).replace("demo", "other")))
    for gateway, count in (("demo", 200), ("other", 3)):
        for number in range(count):
            name = f"{gateway}-{number:03}"
            connection = Connection(gateway, name, name, "ann", 4e9, int(time.time() * 1000), {})
            api.connections.add(connection)
    service = websockets.frame_service(wiring.load(FramesSettings))
    for gateway in ("demo", "other"):
        service._pushes.push(gateway, some_push("laptop"))
    notify = functions.load("notify")
    answer = notify(sent, Stepping(60_000))

    first = sent["Records"][0]["dynamodb"]["SequenceNumber"]
    assert answer["batchItemFailures"] == [{"itemIdentifier": first}]
    notified = sum(name.startswith("demo-") for name in api.sockets.sent)
    assert 0 < notified < 200
    assert sum(name.startswith("other-") for name in api.sockets.sent) == 3
    again = notify(sent, Context())
    assert again["batchItemFailures"] == []
    assert all(len(api.sockets.sent[f"demo-{number:03}"]) == 1 for number in range(200))
    assert len(api.sockets.sent) == 203


@pytest.mark.law("T6")
def test_a_revocation_in_the_stream_closes_the_users_connections(api: Api) -> None:
    api.connect()
    sent = event("notify_commits")
    sent["Records"] = sent["Records"][2:]
    sent["Records"][0]["dynamodb"]["Keys"]["sk"]["S"] = "user|ann"
    api.call("notify", sent)

    assert api.sockets.closed == [NAME]


def test_irrelevant_stream_records_notify_no_connection(api: Api) -> None:
    api.connect()
    sent = event("notify_commits")
    keys = [("demo|log|main", "1"), ("demo|row|t|0", "r"), ("|user|demo|0", "c"), ("gateways", "d")]
    for pk, sk in keys:
        record = json.loads(json.dumps(sent["Records"][0]))
        record["dynamodb"]["Keys"] = {"pk": {"S": pk}, "sk": {"S": sk}}
        assert api.call("notify", {"Records": [record]}) == NOBODY_NOTIFIED
    removal = json.loads(json.dumps(sent["Records"][0]))
    del removal["dynamodb"]["NewImage"]
    assert api.call("notify", {"Records": [removal]}) == NOBODY_NOTIFIED
    assert api.sockets.sent == {}


def test_metrics_are_published_when_draining_frames_fails(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    published: list[None] = []

    def fails(_: Broadcaster) -> None:
        raise Unavailable("the network is gone")

    monkeypatch.setattr(Broadcaster, "drain", fails)
    monkeypatch.setattr(observe, "publish", lambda: published.append(None))
    with pytest.raises(Unavailable):
        api.call("notify", event("notify_sweep"))

    assert published == [None]


@pytest.mark.law("T6")
def test_the_sweep_event_closes_expired_connections(api: Api) -> None:
    api.connect()
    connection = api.connections.get(GATEWAY, NAME)
    assert connection is not None
    api.connections.add(replace(connection, expires_s=1.0))

    assert api.call("notify", event("notify_sweep")) == {"closed": 1}
    assert api.sockets.closed == [NAME]
