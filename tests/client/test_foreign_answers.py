"""Answers that are not the gateway's, but login pages' and proxies', decide about no edit."""

from __future__ import annotations

import asyncio
import gzip
import itertools
import socket
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from lakesync.client import AsyncClient, HttpTransport, StoppedEdit, SyncLoop
from lakesync.client.upload import STOPPED_MS_MAX, STOPPED_MS_MIN
from lakesync.client.waits import FOREIGN_S_MAX, FOREIGN_WAIT_S_MAX
from lakesync.core.messages import ACTIONS_MAX, Action, Pull
from lakesync.errors import LakeSyncError, NotFound, NotTheGateway, RateLimited, Retry
from lakesync.result import Err, Ok
from lakesync.wire import jsonish, proto
from tests.client.support.acting import Shop
from tests.client.support.gateways import GATEWAY
from tests.client.support.world import Clock, check_sound, reopened, rows_of
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from lakesync.client import Client
    from tests.client.support.world import World

PROTOBUF = "application/x-protobuf"
LOGIN = b"<html>Welcome to the hotel. Please log in.</html>"
PORTALS = {
    "a login page": httpx.Response(200, content=LOGIN, headers={"content-type": "text/html"}),
    "a login page that says it is protobuf": httpx.Response(
        200, content=LOGIN, headers={"content-type": PROTOBUF}
    ),
    "nothing": httpx.Response(200, headers={"content-type": PROTOBUF}, content=b""),
    "a redirect": httpx.Response(302, headers={"location": "https://login.example/?to=1"}),
    "a permanent redirect": httpx.Response(308, headers={"location": "https://login.example/"}),
    "forbidden": httpx.Response(403, content=LOGIN),
    "forbidden, by a firewall": httpx.Response(403, json={"message": "Forbidden"}),
    "not there": httpx.Response(404, content=LOGIN),
    "gone": httpx.Response(410, content=LOGIN),
    "a conflict": httpx.Response(409, content=LOGIN),
    "too large": httpx.Response(413, content=LOGIN),
    "no token": httpx.Response(401, content=LOGIN),
    "no token for the proxy": httpx.Response(407, content=LOGIN),
    "bad request": httpx.Response(400, content=LOGIN),
    "log in": httpx.Response(511, content=LOGIN),
    "an error without an id": httpx.Response(400, json={"error": "x", "code": "SCHEMA_ERROR"}),
}


class Way:
    """A gateway over HTTP, and somebody on the way there."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.answers: Callable[[httpx.Request], httpx.Response | None] = lambda _: None
        self.requests: list[httpx.Request] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        if (answer := self.answers(request)) is not None:
            return answer
        try:
            body = self.answer(request)
        except LakeSyncError as error:
            fields = {"error": error.message, "code": error.code, "requestId": "r-1"}
            return httpx.Response(error.status, json=fields)
        return httpx.Response(200, content=body, headers={"content-type": PROTOBUF})

    def answer(self, request: httpx.Request) -> bytes:
        if request.url.path.endswith("/push"):
            return proto.encode_receipt(self.world.gateway.push(GATEWAY, pushed(request)))
        if not request.url.path.endswith("/pull"):
            raise NotFound("there is no such address")
        query = request.url.params
        pull = Pull(
            query["clientId"], int(query["since"]), int(query["limit"]), query.get("epoch", "")
        )
        return proto.encode_page(self.world.gateway.pull(GATEWAY, pull))

    def transport(self, token: Any = "token") -> HttpTransport:
        return HttpTransport("https://a.example", "g1", token=token, http=httpx.MockTransport(self))


def pushed(request: httpx.Request) -> Any:
    """Return what a request pushes."""
    packed = request.headers.get("content-encoding") == "gzip"
    return proto.decode_push(gzip.decompress(request.content) if packed else request.content)


def over(size: int, answer: httpx.Response) -> Callable[[httpx.Request], httpx.Response | None]:
    """Answer for the gateway where a body is over a size."""
    return lambda request: answer if len(request.content) > size else None


def naming(*rows: str) -> Callable[[httpx.Request], httpx.Response | None]:
    """Answer for the gateway where a push names one of some rows."""

    def answer(request: httpx.Request) -> httpx.Response | None:
        if not request.url.path.endswith("/push"):
            return None
        guilty = any(delta.row_id in rows for _, delta in pushed(request).deltas)
        return (
            httpx.Response(403, content=b"<html>blocked by your company</html>") if guilty else None
        )

    return answer


def accepts_all_at_once(client: Client, world: World) -> None:
    client.hurry()
    client.sync().unwrap()
    assert (client.pending(), client.quarantined()) == (Ok([]), Ok([]))
    assert rows_of(client) == world.rows()
    assert client.status.stopped_edits == ()
    check_sound(client)


@pytest.mark.law("K7", "K17")
@pytest.mark.parametrize("name", PORTALS)
def test_edits_behind_a_login_page_wait_and_sync_when_it_is_gone(both: World, name: str) -> None:
    way, portal = Way(both), PORTALS[name]
    client = both.client(transport=way.transport())
    client.insert("todos", "before", {"n": 0}).unwrap()
    client.sync().unwrap()
    for number in range(20):
        client.insert("todos", f"t{number}", {"n": number}).unwrap()
    with client.transaction() as edits:
        edits.update("todos", "before", {"n": 1}).unwrap()
        edits.insert("todos", "both", {"n": 2}).unwrap()
    way.answers = lambda _: portal
    asked = len(way.requests)

    result = client.sync()

    assert isinstance(result, Err)
    assert (result.error.code, result.error.retry) == ("NOT_THE_GATEWAY", Retry.LATER)
    assert "not a LakeSync gateway's" in result.error.message
    assert len(way.requests) - asked <= 6
    assert (len(client.pending().unwrap()), client.quarantined()) == (22, Ok([]))
    assert client.status.stopped_edits == ()
    check_sound(client)
    way.answers = lambda _: None
    client.sync().unwrap()
    assert rows_of(client) == both.rows()
    assert len(both.rows()) == 22
    check_sound(client)


@pytest.mark.law("K7")
@pytest.mark.parametrize("status", [403, 413])
def test_small_edits_all_pass_a_proxy_with_a_small_body_limit(both: World, status: int) -> None:
    way = Way(both)
    way.answers = over(400, httpx.Response(status, json={"message": "Request Too Long"}))
    client = both.client(transport=way.transport())
    for number in range(60):
        client.insert("todos", f"t{number}", {"n": number}).unwrap()

    summary = client.sync().unwrap()

    assert (summary.pushed.accepted, summary.pushed.quarantined, summary.pushed.stopped) == (
        60,
        0,
        0,
    )
    assert (client.pending(), client.quarantined()) == (Ok([]), Ok([]))
    assert len(both.rows()) == 60


@pytest.mark.law("K7", "K23")
def test_an_edit_blocked_by_a_proxy_waits_and_is_named_while_other_edits_sync(
    both: World,
) -> None:
    way = Way(both)
    way.answers = naming("t33")
    client = both.client(transport=way.transport())
    for number in range(100):
        client.insert("todos", f"t{number}", {"n": number}).unwrap()

    summary = client.sync().unwrap()

    assert (summary.pushed.accepted, summary.pushed.quarantined, summary.pushed.stopped) == (
        99,
        0,
        1,
    )
    assert len(way.requests) <= 30
    assert client.quarantined() == Ok([])
    (entry,) = client.pending().unwrap()
    assert (entry.delta.row_id, entry.code) == ("t33", "NOT_THE_GATEWAY")
    (named,) = client.status.stopped_edits
    assert isinstance(named, StoppedEdit)
    assert (named.table, named.row_id) == ("todos", "t33")
    assert "blocked by your company" in named.reason
    assert (client.status.pending, client.status.quarantined) == (1, 0)
    client.insert("todos", "later", {"n": 1}).unwrap()
    assert client.sync().unwrap().pushed.accepted == 1
    client = reopened(both, client, transport=way.transport())
    assert client.status.stopped_edits == (named,)
    way.answers = lambda _: None
    accepts_all_at_once(client, both)


@pytest.mark.law("K7", "K8")
def test_a_transaction_blocked_by_a_proxy_waits_whole(both: World) -> None:
    way = Way(both)
    way.answers = naming("bad")
    client = both.client(transport=way.transport())
    for name in ("good", "bad", "fine"):
        with client.transaction() as edits:
            edits.insert("todos", name, {"n": 1}).unwrap()
            edits.insert("todos", f"{name} too", {"n": 2}).unwrap()

    summary = client.sync().unwrap()

    assert (summary.pushed.stopped, summary.pushed.ungrouped) == (2, 0)
    assert {edit.row_id for edit in client.status.stopped_edits} == {"bad", "bad too"}
    assert {row_id for _, row_id in both.rows()} == {"good", "good too", "fine", "fine too"}
    way.answers = lambda _: None
    way.requests.clear()
    accepts_all_at_once(client, both)
    (again,) = [pushed(request) for request in way.requests if request.method == "POST"]
    assert again.atomic
    assert len(again.deltas) == 2


@pytest.mark.law("K7")
def test_a_stopped_edit_is_retried_with_doubling_waits_up_to_a_maximum(world: World) -> None:
    way = Way(world)
    way.answers = naming("bad")
    client = world.client(transport=way.transport())
    client.insert("todos", "bad", {"n": 1}).unwrap()
    tries: list[int] = []
    for second in range(0, 2_000, 5):
        before = len(way.requests)
        client.push().unwrap()
        if len(way.requests) > before:
            tries.append(second)
        world.clock.ms += 5_000
    waits = [after - before for before, after in itertools.pairwise(tries)]

    assert waits[:3] == [STOPPED_MS_MIN // 1000 * factor for factor in (1, 2, 4)]
    assert max(waits) == STOPPED_MS_MAX // 1000
    before = len(way.requests)
    client.hurry()
    client.push().unwrap()
    assert len(way.requests) > before


@pytest.mark.law("K7", "K11")
def test_a_stopped_append_table_edit_that_later_edits_overtook_is_stored_once(both: World) -> None:
    both.gateway.append_only("events")
    way = Way(both)
    way.answers = naming("e1")
    client = both.client(transport=way.transport())
    for name in ("e0", "e1", "e2"):
        client.insert("events", name, {"title": name}).unwrap()
    client.sync().unwrap()
    assert [edit.row_id for edit in client.status.stopped_edits] == ["e1"]
    way.answers = lambda _: None
    client.hurry()

    for _ in range(3):
        client.sync()
        both.clock.ms += 1_000

    assert client.pending() == Ok([])
    assert sorted(delta.row_id for delta in both.deltas()) == ["e0", "e1", "e2"]
    check_sound(client)


@pytest.mark.law("K7", "K11")
def test_a_stopped_edit_stays_older_than_the_edits_that_overtook_it(both: World) -> None:
    both.gateway.append_only("events")
    way = Way(both)
    client = both.client(transport=way.transport())
    client.insert("events", "e1", {"title": "e1"}).unwrap()
    client.insert("todos", "t1", {"title": "old"}).unwrap()
    client.insert("events", "e2", {"title": "e2"}).unwrap()
    client.update("todos", "t1", {"title": "new"}).unwrap()

    def stopping(*titles: str) -> Callable[[httpx.Request], httpx.Response | None]:
        def answer(request: httpx.Request) -> httpx.Response | None:
            if not request.url.path.endswith("/push"):
                return None
            values = {str(delta.values["title"]) for _, delta in pushed(request).deltas}
            return httpx.Response(413) if values & {*titles} else None

        return answer

    for titles in (("e1", "old"), ("old",), ()):
        way.answers = stopping(*titles)
        client.hurry()
        for _ in range(3):
            client.sync()
            both.clock.ms += 1_000

    assert client.pending() == Ok([])
    assert client.get("todos", "t1") == Ok({"title": "new"})
    other = both.client("other")
    other.sync().unwrap()
    assert other.get("todos", "t1") == Ok({"title": "new"})
    check_sound(client)


@pytest.mark.law("K7", "K10")
def test_a_stopped_edit_stamped_far_ahead_does_not_block_later_edits(both: World) -> None:
    way, device = Way(both), Clock(both.clock.ms + 86_400_000)
    way.answers = naming("bad")
    client = both.client(transport=way.transport(), wall_clock=device)
    client.insert("todos", "bad", {"n": 1}).unwrap()
    assert client.push().unwrap().stopped == 1
    client.insert("todos", "good", {"n": 2}).unwrap()

    assert client.sync().unwrap().pushed.accepted == 1

    assert [edit.row_id for edit in client.status.stopped_edits] == ["bad"]
    way.answers = lambda _: None
    accepts_all_at_once(client, both)


@pytest.mark.law("K7")
def test_a_foreign_401_renews_the_token_once_until_the_gateway_answers(
    world: World,
) -> None:
    way, given = Way(world), []
    # A gateway has an identity from its first commit on, and thereafter a cursor.
    writer = world.client("writer")
    writer.insert("todos", "t1", {"n": 1}).unwrap()
    writer.sync().unwrap()

    def give() -> str:
        given.append(1)
        return f"token-{len(given)}"

    client = world.client(transport=way.transport(give))
    client.sync().unwrap()
    way.answers = lambda _: httpx.Response(401, content=LOGIN)
    for _ in range(5):
        assert isinstance(client.sync(), Err)
    assert len(given) == 2
    way.answers = lambda _: None
    client.sync().unwrap()
    way.answers = lambda _: httpx.Response(401, content=LOGIN)
    assert isinstance(client.sync(), Err)
    assert len(given) == 3


@pytest.mark.law("K18")
def test_a_redirect_is_not_followed_with_a_token(world: World) -> None:
    way = Way(world)
    way.answers = lambda _: httpx.Response(307, headers={"location": "https://evil.example/?a=b"})
    result = world.client(transport=way.transport()).pull()

    assert isinstance(result, Err)
    assert "https://evil.example/" in result.error.message
    assert "a=b" not in result.error.message
    assert {request.url.host for request in way.requests} == {"a.example"}


@pytest.mark.law("K17")
def test_the_backoff_after_a_foreign_answer_is_short(world: World) -> None:
    loop = SyncLoop(world.client(), chance=lambda: 0.999)
    loop._failures = 1_000
    refused = NotTheGateway("a login page", retry_after_s=900)
    busy = RateLimited("too many requests", retry_after_s=900)
    busy.is_foreign = True

    assert loop.backoff_s(refused) <= FOREIGN_S_MAX == 15.0
    assert loop.backoff_s(busy) <= FOREIGN_WAIT_S_MAX == 60.0


@pytest.mark.law("K17")
def test_an_edit_made_behind_a_login_page_triggers_an_immediate_retry(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    way, tried = Way(world), threading.Event()
    way.answers = lambda _: httpx.Response(200, content=LOGIN)
    client = world.client(transport=way.transport())
    loop = SyncLoop(client, on_result=lambda _: tried.set())
    monkeypatch.setattr(loop, "backoff_s", lambda _: 10 * PATIENCE_S)
    with loop:
        assert tried.wait(PATIENCE_S)
        way.answers = lambda _: None
        tried.clear()
        client.insert("todos", "t1", {"n": 1}).unwrap()
        assert tried.wait(PATIENCE_S), "an edit ends the wait"
    assert len(world.rows()) == 1


def test_the_status_of_an_async_client_names_stopped_edits(world: World, tmp_path: Path) -> None:
    way = Way(world)
    way.answers = naming("bad")
    asyncio.run(names_what_is_stopped(way, tmp_path))


async def names_what_is_stopped(way: Way, tmp_path: Path) -> None:
    async with AsyncClient(
        tmp_path / "async.db", client_id="b", transport=way.transport()
    ) as client:
        (await client.insert("todos", "bad", {"n": 1})).unwrap()
        (await client.sync()).unwrap()
        assert [edit.row_id for edit in (await client.status).stopped_edits] == ["bad"]


@pytest.mark.law("X11")
@pytest.mark.parametrize("is_open", [True, False])
def test_actions_blocked_by_a_proxy_stay_queued_and_do_not_become_dead_letters(
    world: World, *, is_open: bool
) -> None:
    shop = Shop(world)
    asked: list[int] = []

    def serve(request: httpx.Request) -> httpx.Response:
        if request.method == "GET":
            if not is_open:
                return httpx.Response(403, content=LOGIN)
            body = jsonish.encode_discovery(shop.discover_actions(GATEWAY))
        else:
            push = jsonish.decode_action_push(request.content)
            asked.append(len(push.actions))
            if any(isinstance(it, Action) and it.params["order"] == 7 for it in push.actions):
                return httpx.Response(413, content=LOGIN)
            body = jsonish.encode_answers(shop.run_actions(GATEWAY, push))
        return httpx.Response(200, content=body, headers={"content-type": "application/json"})

    http = httpx.MockTransport(serve)
    client = world.client(transport=HttpTransport("https://a.example", "g1", token="t", http=http))
    for number in range(20):
        client.actions.run("shipping", "ship", {"order": number, "to": "x"}).unwrap()

    result = client.actions.send()

    assert client.actions.dead_letters() == Ok([])
    if is_open:
        assert (result.unwrap().done, result.unwrap().later) == (19, 1)
    else:
        assert isinstance(result, Err)
        assert result.error.code == "NOT_THE_GATEWAY"
        assert len(asked) == 1
    assert ACTIONS_MAX >= 20


# --- bytes that are cut on the way ----------------------------------------------------------------


@contextmanager
def answering(*chunks: bytes) -> Iterator[str]:
    """Serve one answer, as it is, to each connection, and close it."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    connection.recv(65_536)
                    connection.sendall(b"".join(chunks))

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)
        thread.join()


def page_of(world: World) -> bytes:
    body: bytes = proto.encode_page(world.gateway.pull(GATEWAY, Pull("a", 0, 1_000)))
    return body


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/x-protobuf\r\n"
PACKED = HEAD + b"Content-Encoding: gzip\r\n"


@pytest.mark.law("K5", "K7")
@pytest.mark.parametrize("packs", [True, False])
def test_a_page_truncated_anywhere_is_an_err_and_applies_nothing(
    world: World, *, packs: bool
) -> None:
    """Also where no length tells that it was cut: a page that lacks its end may well decode."""
    writer = world.client("writer")
    for number in range(40):
        writer.insert("todos", f"t{number}", {"n": number}).unwrap()
    writer.sync().unwrap()
    body = gzip.compress(page_of(world)) if packs else page_of(world)
    head = PACKED if packs else HEAD
    client = world.client()
    for place in range(0, len(body), 7):
        with answering(head, b"\r\n", body[:place]) as url:
            client._transport = client._syncer._transport = HttpTransport(url, "g1", token="t")
            result = client.pull()
        assert isinstance(result, Err)
        assert result.error.code in {"UNREACHABLE", "NOT_THE_GATEWAY"}
        assert rows_of(client) == {}
    if packs:
        with answering(head, b"\r\n", body) as url:
            client._transport = client._syncer._transport = HttpTransport(url, "g1", token="t")
            client.pull().unwrap()
        assert len(rows_of(client)) == 40


@pytest.mark.parametrize(
    "answer",
    [
        PACKED + b"Content-Length: 12\r\n\r\nnot gzip at",
        PACKED + b"Content-Length: 11\r\n\r\nnot gzip at",
        HEAD + b"Content-Encoding: br\r\nContent-Length: 3\r\n\r\nabc",
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"",
    ],
)
def test_a_garbage_answer_is_a_retryable_err(world: World, answer: bytes) -> None:
    with answering(answer) as url:
        result = world.client(transport=HttpTransport(url, "g1", token="t")).pull()

    assert isinstance(result, Err)
    assert result.error.code in {"UNREACHABLE", "NOT_THE_GATEWAY"}
    assert result.error.retry is Retry.LATER
