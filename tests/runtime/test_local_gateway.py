"""The gateway in this process is as API Gateway is: its WebSockets, and pages of other origins."""

from __future__ import annotations

import json
import urllib.request
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from lakesync.client import Client, HttpTransport, SyncLoop
from lakesync.core.delta import Op, make_delta
from lakesync.core.messages import Pull, Push
from lakesync.wire import proto
from lakesync.wire.proto import Tag
from tests.infrastructure.stack import resources
from tests.support.gateways import administrator
from tests.support.local_gateway import GATEWAY, LocalGateway, serve_gateway
from tests.support.waiting import PATIENCE_S, waited

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PULL = proto.encode_pull_frame(Pull("ann", removes=True, own_cursor=True), 9)

RULES = {
    "buckets": [
        {
            "name": "own",
            "tables": [],
            "filters": [{"column": "owner", "op": "eq", "value": "jwt:sub"}],
        }
    ]
}


@pytest.fixture
def gateway() -> Iterator[LocalGateway]:
    with serve_gateway() as served:
        yield served


def opened(
    gateway: LocalGateway, token: str = "", client: str = "ann", protocol: str = "lakesync.v1"
) -> Any:
    protocols: Any = [protocol, f"bearer.{token or gateway.token(client)}"]
    return connect(f"{gateway.socket_url}?clientId={client}", subprotocols=protocols, proxy=None)


@contextmanager
def client_of(gateway: LocalGateway, name: str, folder: Path) -> Iterator[Client]:
    transport = HttpTransport(
        gateway.url, GATEWAY, token=gateway.token(name), socket_url=gateway.socket_url
    )
    with (
        transport,
        Client(folder / f"{name}.db", client_id=name, transport=transport) as client,
        SyncLoop(client, every_s=3_600),  # nobody polls meanwhile
    ):
        assert waited(lambda: client.status.connected)
        yield client


@pytest.mark.law("T1")
def test_edit_of_one_client_arrives_over_the_socket_of_another(
    gateway: LocalGateway, tmp_path: Path
) -> None:
    with client_of(gateway, "ann", tmp_path) as ann, client_of(gateway, "bob", tmp_path) as bob:
        ann.insert("todos", "r1", {"title": "milk"}).unwrap()
        assert waited(lambda: bob.get("todos", "r1").unwrap() == {"title": "milk"})
        pulls = sum(" /sync/g1/pull" in each for each in gateway.requests)
        bob.update("todos", "r1", {"title": "bread"}).unwrap()
        assert waited(lambda: ann.get("todos", "r1").unwrap() == {"title": "bread"})
        assert sum(" /sync/g1/pull" in each for each in gateway.requests) <= pulls + 1, "bob's sync"
    assert waited(lambda: gateway.connections.of_gateway(GATEWAY)[0] == [])


@pytest.mark.law("T7")
def test_push_pull_and_keep_alive_are_answered_over_a_socket(gateway: LocalGateway) -> None:
    delta = make_delta(Op.INSERT, "todos", "r1", {"n": 1}, client_id="ann", hlc=5 << 16)
    with opened(gateway) as socket:
        assert socket.subprotocol == "lakesync.v1"
        socket.send(proto.encode_push_frame(Push("ann", ((0, delta),), own_cursor=True), 7))
        tag, body = proto.decode_frame(socket.recv(PATIENCE_S))
        assert (tag, proto.decode_receipt(body).accepted) == (Tag.PUSH, 1)
        socket.send(proto.KEEP_ALIVE)
        socket.send(PULL)
        frames = [socket.recv(PATIENCE_S) for _ in range(2)]
        assert proto.KEEP_ALIVE_ANSWER in frames


@pytest.mark.law("T1", "T7", "W8")
def test_json_socket_pushes_pulls_and_hears_of_another_client(gateway: LocalGateway) -> None:
    delta = {"op": "INSERT", "table": "todos", "rowId": "r1", "clientId": "ann", "hlc": "327680"}
    push = {"clientId": "ann", "deltas": [delta], "ownCursor": True}
    with (
        opened(gateway, protocol="lakesync.v1.json") as ann,
        opened(gateway, protocol="lakesync.v1.json", client="bob") as bob,
    ):

        def asked(tag: int, body: dict[str, Any]) -> Any:
            ann.send(json.dumps({"tag": tag, "requestId": tag + 10, "body": body}))
            answer = {"tag": 3}
            while answer["tag"] == 3:  # of the first commit of all there is a poke besides
                answer = json.loads(ann.recv(PATIENCE_S))
            assert (answer["tag"], answer["requestId"]) == (tag, tag + 10)
            return answer["body"]

        assert ann.subprotocol == "lakesync.v1.json"
        assert asked(1, push)["accepted"] == 1
        assert [each["rowId"] for each in asked(2, {"ownCursor": True})["deltas"]] == ["r1"]
        ann.send(proto.KEEP_ALIVE)
        assert ann.recv(PATIENCE_S) == proto.KEEP_ALIVE_ANSWER
        heard = json.loads(bob.recv(PATIENCE_S))
        assert (heard["tag"], heard["body"]["deltas"], heard["body"]["hasMore"]) == (3, [], True)
        assert asked(1, push | {"deltas": [delta | {"rowId": "r2"}]})["accepted"] == 1
        heard = json.loads(bob.recv(PATIENCE_S))
        assert "requestId" not in heard
        assert [each["rowId"] for each in heard["body"]["deltas"]] == ["r2"]
        assert int(heard["body"]["previous"]) < int(heard["body"]["first"])
        ann.send(PULL)
        refused = json.loads(ann.recv(PATIENCE_S))
        assert (refused["tag"], refused["body"]["closes"]) == (6, True)
        with pytest.raises(ConnectionClosed):
            ann.recv(PATIENCE_S)


@pytest.mark.law("T6")
def test_handshake_without_a_good_token_shows_the_status_alone(gateway: LocalGateway) -> None:
    with pytest.raises(InvalidStatus) as caught, opened(gateway, "e30.e30.x"):
        pass
    assert (caught.value.response.status_code, caught.value.response.body) == (401, b"")


@pytest.mark.law("T10")
def test_ticket_opens_one_connection(gateway: LocalGateway) -> None:
    asked = urllib.request.Request(  # noqa: S310 - it is http
        f"{gateway.url}/sync/{GATEWAY}/ticket",
        method="POST",
        headers={"authorization": f"Bearer {gateway.token('ann')}"},
    )
    with urllib.request.urlopen(asked) as answer:  # noqa: S310
        ticket = answer.read().decode().split('"ticket":"')[1].split('"')[0]
    address = f"{gateway.socket_url}?clientId=ann&ticket={ticket}"
    with connect(address, proxy=None) as socket:
        assert socket.subprotocol is None
    with pytest.raises(InvalidStatus), connect(address, proxy=None):
        pass


@pytest.mark.law("T7")
@pytest.mark.parametrize(
    ("sent", "code"), [(b"bytes", 1003), ("A" * 32_769, 1009), (["A" * 32_768] * 5, 1009)]
)
def test_binary_and_large_messages_close_the_connection(
    gateway: LocalGateway, sent: Any, code: int
) -> None:
    with opened(gateway) as socket:
        socket.send(sent)
        with pytest.raises(ConnectionClosed) as caught:
            socket.recv(PATIENCE_S)
    assert caught.value.rcvd
    assert caught.value.rcvd.code == code


@pytest.mark.law("T6")
def test_change_of_rules_and_revocation_are_told_at_once(gateway: LocalGateway) -> None:
    with opened(gateway) as socket:
        administrator(gateway.buffer).save_rules(GATEWAY, RULES)
        assert proto.decode_frame(socket.recv(PATIENCE_S))[0] is Tag.BROADCAST
        asked = urllib.request.Request(  # noqa: S310
            f"{gateway.url}/admin/access/{GATEWAY}",
            data=b'{"revoke": {"user": "ann"}}',
            headers={
                "authorization": f"Bearer {gateway.token('ops', role='admin')}",
                "content-type": "application/json",
            },
        )
        urllib.request.urlopen(asked).close()  # noqa: S310
        tag, body = proto.decode_frame(socket.recv(PATIENCE_S))
        assert (tag, proto.decode_refusal(body).error.code) == (Tag.REFUSAL, "REVOKED")
        with pytest.raises(ConnectionClosed):
            socket.recv(PATIENCE_S)


def test_pages_of_other_origins_are_answered_as_the_template_says(gateway: LocalGateway) -> None:
    cors = resources("AWS::Serverless::HttpApi")["HttpApi"]["Properties"]["CorsConfiguration"]

    def answered(method: str, **headers: str) -> Any:
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        asked = urllib.request.Request(f"{gateway.url}/health", method=method, headers=sent)  # noqa: S310
        with urllib.request.urlopen(asked) as answer:  # noqa: S310
            return answer.status, answer.headers

    page = {"Origin": "https://app.example"}
    status, headers = answered("OPTIONS", **page, Access_Control_Request_Method="POST")
    assert status == 204
    assert headers["access-control-allow-origin"] == "*"
    assert headers["access-control-allow-methods"].split(",") == cors["AllowMethods"]
    assert headers["access-control-allow-headers"].split(",") == cors["AllowHeaders"]
    assert headers["access-control-max-age"] == str(cors["MaxAge"])
    status, headers = answered("GET", **page)
    assert (status, headers["access-control-allow-origin"]) == (200, "*")
    assert headers["access-control-expose-headers"].split(",") == cors["ExposeHeaders"]
    assert "access-control-allow-origin" not in answered("GET")[1]
