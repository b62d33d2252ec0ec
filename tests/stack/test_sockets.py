"""Real time on the deployed stack: an edit of one client arrives in the file of another."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from lakesync.client import Client, HttpTransport, SyncLoop
from lakesync.core.delta import Op
from lakesync.core.messages import Pull, Push
from lakesync.wire import jsonish, proto
from lakesync.wire.proto import Tag
from tests.support.waiting import DEPLOYED_S, waited

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.deployed import Tenant

ARRIVES_S_MAX = DEPLOYED_S


def opened(
    url: str, tenant: Tenant, client: str = "c1", *, protocol: str = "lakesync.v1", **token: Any
) -> Any:
    """Open a WebSocket as a browser does: with sub-protocols and nothing else."""
    protocols: Any = [protocol, f"bearer.{tenant.token(client, **token)}"]
    return connect(
        f"{url}?clientId={client}", subprotocols=protocols, proxy=None, open_timeout=ARRIVES_S_MAX
    )


def next_frame(socket: Any) -> tuple[Tag, bytes]:
    return proto.decode_frame(socket.recv(timeout=ARRIVES_S_MAX))


def next_answer(socket: Any) -> tuple[Tag, bytes]:
    """Take what answers a request: of the first commit of all there is a poke besides."""
    while True:
        tag, body = next_frame(socket)
        if tag is not Tag.BROADCAST:
            return tag, body


def next_json_answer(socket: Any) -> dict[str, Any]:
    """Do the same with frames of JSON."""
    while True:
        answer: dict[str, Any] = json.loads(socket.recv(timeout=ARRIVES_S_MAX))
        if answer["tag"] != Tag.BROADCAST:
            return answer


@pytest.mark.law("T1", "T4")
def test_edit_of_one_client_is_broadcast_to_another(
    tenant: Tenant, socket_url: str, tmp_path: Path
) -> None:
    def transport(client: str) -> HttpTransport:
        return HttpTransport(
            tenant.stack.http,
            tenant.gateway,
            token=lambda: tenant.token(client),
            socket_url=socket_url,
        )

    with (
        transport("ann") as anns,
        transport("bob") as bobs,
        Client(tmp_path / "ann.db", client_id="ann", transport=anns) as ann,
        Client(tmp_path / "bob.db", client_id="bob", transport=bobs) as bob,
        # Nobody polls meanwhile.
        SyncLoop(ann, every_s=3_600),
        SyncLoop(bob, every_s=3_600),
    ):
        assert waited(lambda: ann.status.connected and bob.status.connected)
        ann.insert("todos", "t1", {"title": "Buy milk"}).unwrap()
        assert waited(lambda: titles(bob) == ["Buy milk"])
        bob.update("todos", "t1", {"title": "Buy bread"}).unwrap()
        assert waited(lambda: titles(ann) == ["Buy bread"])


def titles(client: Client) -> list[object]:
    rows = client.query("SELECT title FROM todos").unwrap_or([])
    return [row["title"] for row in rows]


@pytest.mark.law("T7")
def test_concurrent_pushes_and_a_pull_on_one_web_socket_are_answered(
    tenant: Tenant, socket_url: str
) -> None:
    deltas = [tenant.make(Op.INSERT, f"r{number}", {"n": number}) for number in range(3)]
    with opened(socket_url, tenant) as socket:
        assert socket.subprotocol == "lakesync.v1"
        for number, delta in enumerate(deltas):
            push = Push("c1", ((0, delta),), own_cursor=True)
            socket.send(proto.encode_push_frame(push, number + 1))
        answers = [next_answer(socket) for _ in deltas]
        assert sorted(proto.answered_id_of(tag, body) for tag, body in answers) == [1, 2, 3]
        socket.send(proto.encode_pull_frame(Pull("c1", removes=True, own_cursor=True), 9))
        tag, body = next_answer(socket)
        assert (tag, proto.answered_id_of(tag, body)) == (Tag.PULL, 9)
        assert proto.decode_page(body).count == 3


@pytest.mark.law("T1", "T7", "W8")
def test_json_web_socket_is_answered_and_hears_of_another_client(
    tenant: Tenant, socket_url: str
) -> None:
    json_protocol = "lakesync.v1.json"
    with (
        opened(socket_url, tenant, "c2", protocol=json_protocol) as reader,
        opened(socket_url, tenant, protocol=json_protocol) as writer,
    ):
        assert writer.subprotocol == json_protocol
        heard: dict[str, Any] = {"deltas": []}
        for number in range(2):
            delta = tenant.make(Op.INSERT, f"r{number}", {"n": number})
            push = json.loads(jsonish.encode_push(Push("c1", ((0, delta),), own_cursor=True)))
            writer.send(json.dumps({"tag": 1, "requestId": number + 1, "body": push}))
            answer = next_json_answer(writer)
            assert (answer["tag"], answer["requestId"]) == (1, number + 1)
            assert answer["body"]["accepted"] == 1
            broadcast = json.loads(reader.recv(timeout=ARRIVES_S_MAX))
            assert (broadcast["tag"], "requestId" in broadcast) == (3, False)
            heard = broadcast["body"]
        assert [each["rowId"] for each in heard["deltas"]] == ["r1"]
        writer.send(proto.KEEP_ALIVE)
        assert writer.recv(timeout=ARRIVES_S_MAX) == proto.KEEP_ALIVE_ANSWER
        pull = {"removes": True, "ownCursor": True}
        writer.send(json.dumps({"tag": 2, "requestId": 9, "body": pull}))
        page = next_json_answer(writer)
        assert (page["tag"], page["requestId"]) == (2, 9)
        assert [each["rowId"] for each in page["body"]["deltas"]] == ["r0", "r1"]
        writer.send("no JSON")
        refused = json.loads(writer.recv(timeout=ARRIVES_S_MAX))
        assert (refused["tag"], refused["body"]["closes"]) == (6, True)
        with pytest.raises(ConnectionClosed):
            writer.recv(timeout=ARRIVES_S_MAX)


@pytest.mark.law("T7")
def test_keep_alive_is_answered(tenant: Tenant, socket_url: str) -> None:
    with opened(socket_url, tenant) as socket:
        socket.send(proto.KEEP_ALIVE)
        assert next_answer(socket) == (Tag.KEEP_ALIVE, b"")
        socket.send(proto.encode_pull_frame(Pull("c1", removes=True, own_cursor=True), 9))
        tag, body = next_answer(socket)
        assert (tag, proto.answered_id_of(tag, body)) == (Tag.PULL, 9)


@pytest.mark.law("T6")
def test_web_socket_with_an_invalid_token_is_refused(tenant: Tenant, socket_url: str) -> None:
    for wrong in ({"gw": ""}, {"ttl_s": -60}):
        with pytest.raises(InvalidStatus) as caught, opened(socket_url, tenant, **wrong):
            pass
        assert caught.value.response.status_code == 401


@pytest.mark.law("T10")
def test_ticket_opens_exactly_one_connection(tenant: Tenant, socket_url: str) -> None:
    answer = tenant.call("POST", f"/sync/{tenant.gateway}/ticket", token=tenant.token("c1"))
    assert answer.status_code == 200, answer.text
    address = f"{socket_url}?clientId=c1&ticket={answer.json()['ticket']}"
    with connect(address, proxy=None, open_timeout=ARRIVES_S_MAX) as socket:
        socket.send(proto.encode_pull_frame(Pull("c1", removes=True, own_cursor=True), 9))
        tag, body = next_answer(socket)
        assert (tag, proto.answered_id_of(tag, body)) == (Tag.PULL, 9)
    with (
        pytest.raises(InvalidStatus) as caught,
        connect(address, proxy=None, open_timeout=ARRIVES_S_MAX),
    ):
        pass
    assert caught.value.response.status_code == 401


@pytest.mark.law("T6")
def test_connection_of_a_revoked_user_is_notified_and_closed(
    tenant: Tenant, socket_url: str
) -> None:
    with opened(socket_url, tenant, "c1") as socket:
        answer = tenant.call(
            "POST",
            f"/admin/access/{tenant.gateway}",
            token=tenant.token("ops", role="admin"),
            json={"revoke": {"user": "c1"}},
        )
        assert answer.status_code == 200, answer.text
        tag, body = next_frame(socket)
        assert tag is Tag.REFUSAL
        assert proto.decode_refusal(body).error.code == "REVOKED"
        with pytest.raises(ConnectionClosed):
            socket.recv(timeout=ARRIVES_S_MAX)


@pytest.mark.law("T6")
def test_disconnected_client_is_notified_and_closed(tenant: Tenant, socket_url: str) -> None:
    with opened(socket_url, tenant, "c1") as socket:
        answer = tenant.call(
            "POST",
            f"/admin/clients/{tenant.gateway}",
            token=tenant.token("ops", role="admin"),
            json={"disconnect": {"client": "c1"}},
        )
        assert answer.json() == {"disconnected": 1}, answer.text
        tag, body = next_frame(socket)
        assert tag is Tag.REFUSAL
        assert proto.decode_refusal(body).error.code == "UNAVAILABLE", "it may connect again"
        with pytest.raises(ConnectionClosed):
            socket.recv(timeout=ARRIVES_S_MAX)


@pytest.mark.law("T7")
def test_invalid_frame_closes_the_connection_with_a_refusal(
    tenant: Tenant, socket_url: str
) -> None:
    with opened(socket_url, tenant) as socket:
        socket.send('{"action": "pull"}')
        tag, body = next_frame(socket)
        assert (tag, proto.decode_refusal(body).closes) == (Tag.REFUSAL, True)
        with pytest.raises(ConnectionClosed):
            socket.recv(timeout=ARRIVES_S_MAX)
