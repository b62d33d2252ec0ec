"""A client that hears of changes: what fits its cursor is applied, anything else is pulled."""

from __future__ import annotations

import contextlib
import heapq
import itertools
import logging
import socket
import threading
import time
from collections import Counter
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from random import Random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from websockets.sync.server import serve

from lakesync.client import Client, MemoryTransport, SyncLoop, Waits
from lakesync.client import websocket_listener as module
from lakesync.client.gateway_http import PROBE_S, Token, probe_when_silent
from lakesync.client.loop import Hearing
from lakesync.client.waits import HEARTBEAT_S
from lakesync.client.websocket_listener import SocketListener
from lakesync.core.messages import PullPage
from lakesync.errors import AuthFailed, RateLimited, Revoked, ValidationFailed
from lakesync.wire import proto
from tests.support.builders import at_ms, insert, push
from tests.support.gateways import GATEWAY, administrator, puller, pusher
from tests.support.sockets import Hub
from tests.support.waiting import waited

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from lakesync.core.messages import Pull


TEAM = {"column": "team", "op": "eq", "value": "red"}


class World(Hub):
    """A hub whose pushes and pulls are a client's too."""

    folder: Path

    def __post_init__(self) -> None:
        super().__post_init__()
        self.pushes, self.pulls = (
            pusher(self.buffer, time_=self.time),
            puller(self.buffer, time_=self.time),
        )

    def client(self, name: str = "ann", transport: Any = None) -> Client:
        """Open a client, and a connection of it."""
        self.connect(name)
        transport = transport or MemoryTransport(GATEWAY, self.pushes, self.pulls)
        return Client(self.folder / f"{name}.db", client_id=name, transport=transport)

    def write(self, row: str, client: str = "bob", **columns: Any) -> None:
        """Let another client write, and notify."""
        self.time.sleep_ms(1000)
        delta = insert(row, at=at_ms(int(self.time.now_ms) % 100_000), client=client, **columns)
        assert not self.pushes.push(GATEWAY, push(delta, client=client)).outcomes
        self.notify()

    def broadcasts(self, name: str = "ann") -> list[PullPage]:
        return self.sockets.pages(f"to-{name}")


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World()
    world.folder = tmp_path
    world.connect("setup")
    world.write("r0", title="first")
    return world


def titles(client: Client) -> list[str]:
    return [str(row["title"]) for row in client.query("SELECT title FROM todos").unwrap()]


@pytest.mark.law("T1")
def test_a_broadcast_that_follows_the_cursor_is_applied_without_a_pull(world: World) -> None:
    with world.client() as client:
        client.sync().unwrap()
        world.write("r1", title="second")
        (page,) = world.broadcasts()
        assert client._syncer.hear(page)
        assert titles(client) == ["first", "second"]
        assert client._syncer.next_pull().since == page.cursor
        world.write("r2", title="third")
        (page,) = world.broadcasts()
        assert client._syncer.hear(page)
        assert titles(client) == ["first", "second", "third"]


@pytest.mark.law("T1", "T2")
def test_a_broadcast_after_a_gap_is_not_applied(world: World) -> None:
    with world.client() as client:
        client.sync().unwrap()
        world.write("r1", title="lost")
        world.write("r2", title="third")
        lost, page = world.broadcasts()
        assert not client._syncer.hear(page)
        assert titles(client) == ["first"]
        client.pull().unwrap()
        assert titles(client) == ["first", "lost", "third"]
        assert client._syncer.hear(lost), "what is old is done"
        assert client._syncer.hear(page)
        assert titles(client) == ["first", "lost", "third"]


@pytest.mark.law("T1")
@pytest.mark.parametrize("other", [{"epoch": "other"}, {"scope": "other"}])
def test_a_broadcast_of_another_epoch_or_scope_is_not_applied(
    world: World, other: dict[str, Any]
) -> None:

    with world.client() as client:
        client.sync().unwrap()
        world.write("r1", title="second")
        (page,) = world.broadcasts()
        assert not client._syncer.hear(replace(page, **other))
        assert titles(client) == ["first"]


@pytest.mark.law("T1")
def test_a_client_without_a_cursor_applies_no_broadcast(world: World) -> None:
    with world.client() as client:
        world.write("r1", title="second")
        (page,) = world.broadcasts()
        assert not client._syncer.hear(page)
        assert client._syncer.next_pull().snapshot


@pytest.mark.law("T2")
def test_a_poke_requires_a_pull(world: World) -> None:
    with world.client() as client:
        client.sync().unwrap()
        world.write("r1", title="x" * 200_000)
        (page,) = world.broadcasts()
        assert page.is_poke
        assert not client._syncer.hear(page)
        client.pull().unwrap()
        assert client._syncer.hear(page)


# --- the socket -----------------------------------------------------------------------------------


class Server:
    """A gateway's WebSocket: what clients ask, and what they are sent."""

    def __init__(self) -> None:
        self.offered: list[list[str]] = []
        self.paths: list[str] = []
        self.open: list[Any] = []
        self.refused = 0
        self.asked: list[Pull] = []
        self.kept_alive = 0
        self.answer = proto.KEEP_ALIVE_ANSWER
        """What a keep-alive is answered by."""
        self.pulled: Callable[[Pull], PullPage] | None = None
        """What a pull is answered by; None if it is not."""
        self.status, self.location = 0, ""
        self.first = ""
        """What a connection is sent at once."""

    def __call__(self, socket: Any) -> None:
        self.open.append(socket)
        self.paths.append(socket.request.path)
        words = socket.request.headers["Sec-WebSocket-Protocol"].split(",")
        self.offered.append([word.strip() for word in words])
        if self.first:
            socket.send(self.first)
        for frame in socket:
            if frame == proto.KEEP_ALIVE:
                self.kept_alive += 1
                if self.answer:
                    socket.send(self.answer)
                continue
            _, message = proto.decode_frame(frame)
            self.asked.append(proto.decode_pull(message))
            if self.pulled:
                socket.send(proto.encode_page_frame(self.pulled(self.asked[-1]), 1))

    def refuse(self, connection: Any, _: Any) -> Any:
        if not self.status:
            return None
        response = connection.respond(self.status, "")
        if self.location:
            response.headers["Location"] = self.location
        self.refused += 1
        return response

    def send(self, page: PullPage) -> None:
        self.open[-1].send(proto.encode_broadcast(page))


@contextmanager
def serving(server: Server) -> Iterator[str]:
    protocols: Any = ["lakesync.v1"]
    with serve(
        server, "127.0.0.1", 0, subprotocols=protocols, process_request=server.refuse
    ) as listening:
        thread = threading.Thread(target=listening.serve_forever)
        thread.start()
        try:
            yield f"ws://127.0.0.1:{listening.socket.getsockname()[1]}/live"
        finally:
            listening.shutdown()
            thread.join()


class Woken:
    """Counts how often a client is told to sync."""

    def __init__(self) -> None:
        self.times = 0

    def __call__(self) -> None:
        self.times += 1


OPTIONS: dict[str, Any] = {}
"""Of the listeners of a test."""


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Failures are followed by next to no wait."""
    monkeypatch.setitem(OPTIONS, "waits", Waits(reconnect_s=0.005, reconnect_s_max=0.02))


@contextmanager
def listening(
    client: Client, url: str, token: Any = "a-token", network: Any = None
) -> Iterator[Woken]:
    woken = Woken()
    hearing = Hearing(client.client_id, client._syncer, client._activity, woken, **OPTIONS)
    listener = SocketListener(url, hearing, Token(token), network=network).start()
    try:
        yield woken
    finally:
        listener.stop()
        assert not listener._thread.is_alive()


@contextmanager
def linked(
    world: World,
    server: Server,
    token: Any = "a-token",
    network: Any = None,
    *,
    synced: bool = False,
) -> Iterator[tuple[Client, Woken]]:
    """A client that listens to a server, perhaps behind a sync."""
    with world.client() as client, serving(server) as url:
        if synced:
            client.sync().unwrap()
        with listening(client, url, token, network) as woken:
            yield client, woken


@pytest.mark.usefixtures("quick")
def test_the_status_shows_why_the_socket_cannot_open(world: World) -> None:
    nowhere = "wss://abc.execute-api.us-east-1.nowhere.invalid/prod"
    with world.client() as client:
        assert client.status.socket_error is None
        with listening(client, nowhere), client.watch_status() as watch:
            assert waited(lambda: client.status.socket_error)
            said = str(client.status.socket_error)
            assert said.startswith(f"{nowhere}: ")
            assert len(said) > len(nowhere) + 2
            assert "a-token" not in said
            assert watch.next(1) is not None
            assert not client.status.connected


@pytest.mark.usefixtures("quick")
def test_an_open_socket_clears_the_socket_error(world: World) -> None:
    server = Server()
    with world.client() as client, serving(server) as url:
        client._activity.hears(is_open=False, reason="it was refused")
        with listening(client, url):
            assert waited(lambda: client.connected)
            assert client.status.socket_error is None


def test_a_connection_uses_the_browser_handshake_and_applies_broadcasts(world: World) -> None:
    server = Server()
    with linked(world, server, synced=True) as (client, woken):
        assert waited(lambda: client.connected and server.open)
        assert server.offered == [["lakesync.v1", "bearer.a-token"]]
        assert server.paths == ["/live?clientId=ann"]
        assert woken.times == 1, "what was committed before is pulled"
        world.write("r1", title="second")
        server.send(world.broadcasts()[0])
        assert waited(lambda: titles(client) == ["first", "second"])
        server.send(PullPage((), 0, 1 << 62, has_more=True))
        assert waited(lambda: woken.times == 2)
    assert not client.connected


@pytest.mark.law("T6")
def test_the_token_is_in_no_log_of_the_app(world: World, caplog: pytest.LogCaptureFixture) -> None:
    server = Server()
    with (
        caplog.at_level(logging.DEBUG),
        serving(server) as url,
        world.client() as client,
        listening(client, url, token="the.secret.token"),
    ):
        assert waited(lambda: client.status.connected)

    assert server.offered == [["lakesync.v1", "bearer.the.secret.token"]]
    logged = [record for record in caplog.records if "the.secret.token" in record.getMessage()]
    # The server of this test is in the same process, and logs for itself.
    assert [record for record in logged if record.name != "websockets.server"] == []


def opened_and_woken(server: Server, woken: Woken, times: int) -> bool:
    return len(server.open) == times == woken.times


@pytest.mark.law("T2")
def test_a_broken_connection_is_opened_again(world: World, quick: None) -> None:
    server = Server()
    with linked(world, server) as (_, woken):
        for number in range(3):
            assert waited(partial(opened_and_woken, server, woken, number + 1))
            server.open[-1].socket.shutdown(2)


@pytest.mark.law("T6")
def test_a_token_refused_in_the_handshake_is_renewed(world: World, quick: None) -> None:
    server, given = Server(), iter(f"token-{n}" for n in range(1000))
    server.status = 401
    with linked(world, server, lambda: next(given)):
        assert waited(lambda: server.refused)
        server.status = 0
        assert waited(lambda: server.offered)
        assert server.offered[0][1] != "bearer.token-0"


@pytest.mark.law("K17", "K18")
@pytest.mark.parametrize(("status", "renewals"), [(401, 1), (403, 0), (200, 0), (404, 0)])
def test_a_handshake_with_foreign_answers_renews_the_token_at_most_once(
    world: World, quick: None, status: int, renewals: int
) -> None:
    server, given = Server(), iter(f"token-{n}" for n in range(1000))
    server.status = status
    with linked(world, server, lambda: next(given)):
        assert waited(lambda: server.refused > 2)
        server.status = 0
        assert waited(lambda: server.offered)
        assert server.offered[0][1] == f"bearer.token-{renewals}"


@pytest.mark.law("K18")
def test_a_redirected_handshake_is_not_followed_with_the_token(world: World, quick: None) -> None:
    there, server = Server(), Server()
    with (
        world.client() as client,
        serving(there) as elsewhere,
        serving(server) as url,
    ):
        server.status, server.location = 302, elsewhere
        with listening(client, url):
            assert waited(lambda: server.refused > 1)
        assert (there.paths, there.offered) == ([], [])


@pytest.mark.law("T6")
def test_a_connection_closed_for_an_expired_token_reopens_with_a_fresh_one(
    world: World, quick: None
) -> None:
    server, given = Server(), iter(f"token-{n}" for n in range(1000))
    server.first = proto.encode_refusal(AuthFailed("expired"), 0, closes=True)
    with linked(world, server, lambda: next(given)):
        assert waited(lambda: len(server.offered) > 1)
        assert server.offered[1][1] == "bearer.token-1"


@pytest.mark.law("T6")
def test_a_revoked_client_does_not_reconnect(world: World, quick: None) -> None:
    server = Server()
    server.first = proto.encode_refusal(Revoked("revoked"), 0, closes=True)
    with linked(world, server) as (client, _):
        assert waited(lambda: server.open)
        assert waited(lambda: not client.connected)
        time.sleep(0.1)
        assert len(server.open) == 1


@pytest.mark.law("T5")
def test_a_client_closed_for_being_too_slow_reconnects(world: World, quick: None) -> None:
    server = Server()
    server.first = proto.encode_refusal(RateLimited("too slow"), 0, closes=True)
    with linked(world, server):
        assert waited(lambda: len(server.open) >= 3)


@pytest.fixture
def impatient(quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Silent connections are soon asked whether they are dead, and have long to answer."""
    monkeypatch.setitem(OPTIONS, "waits", replace(OPTIONS["waits"], heartbeat_s=0.02))


@pytest.fixture
def asking(world: World, impatient: None) -> Server:
    """A gateway's WebSocket that answers pulls."""
    server = Server()
    server.pulled = MemoryTransport(GATEWAY, world.pushes, world.pulls).pull
    return server


def test_a_silent_connection_sends_keep_alives_and_a_pull_after_every_second_one(
    world: World, asking: Server
) -> None:
    with linked(world, asking, synced=True) as (_, woken):
        assert waited(lambda: asking.kept_alive > 3)
    assert len(asking.open) == woken.times == 1
    assert asking.kept_alive - len(asking.asked) in {0, 1}


@pytest.mark.law("T2")
def test_a_commit_whose_broadcast_was_lost_triggers_a_pull(world: World, asking: Server) -> None:
    with linked(world, asking, synced=True) as (_, woken):
        assert waited(lambda: len(asking.asked) > 1)
        assert woken.times == 1
        world.write("r1", title="second")  # its broadcast is lost
        assert waited(lambda: woken.times > 1)


@pytest.mark.law("T2")
@pytest.mark.parametrize("other", ["scope", "schemas", "epoch", "snapshot"])
def test_an_empty_answer_with_another_scope_schema_epoch_or_snapshot_triggers_a_pull(
    world: World, asking: Server, other: str
) -> None:
    now = MemoryTransport(GATEWAY, world.pushes, world.pulls).pull
    changed: dict[str, Any] = {"scope": "other", "epoch": "other", "snapshot": "token"}
    with world.client() as client, serving(asking) as url:
        client.sync().unwrap()
        asking.pulled = lambda pull: replace(now(pull), **{other: changed[other]})
        if other == "schemas":
            asking.pulled = lambda pull: replace(now(pull), schema_version=7)
        with listening(client, url) as woken:
            assert waited(lambda: woken.times > 1)


@pytest.mark.law("T2")
def test_a_dead_connection_is_replaced_and_missed_commits_are_pulled(
    world: World, impatient: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ANSWER_S_MAX", 0.2)
    server = Server()
    server.answer = ""
    with linked(world, server) as (_, woken):
        assert waited(lambda: len(server.open) > 1)
        assert waited(lambda: woken.times > 1), "what was missed is pulled"


@pytest.mark.parametrize("answer", ["", "anything that lives"])
def test_keep_alives_are_sent_five_to_ten_minutes_apart(world: World, answer: str) -> None:
    page = proto.encode_broadcast(PullPage((), 0, 0, has_more=False))
    with world.client() as client:
        socket = ScriptedSocket([lambda: page], answer and proto.KEEP_ALIVE_ANSWER)
        heard(client, Random(7), socket, 6_000)
    apart = [later - sooner for sooner, later in itertools.pairwise([0.0, *socket.sent_s])]
    if not answer:
        assert len(apart) == 1, "then it is dead"
        return
    assert len(apart) > 10
    assert all(300 <= each < 600 for each in apart), "API Gateway ends what is silent for ten"
    assert len(set(apart)) == len(apart), "clients that connect together spread out"
    assert socket.asked_s == socket.sent_s[1::2]
    checks = [later - sooner for sooner, later in itertools.pairwise(socket.asked_s)]
    assert all(900 <= each < 1_020 for each in checks)


@pytest.mark.law("T2")
def test_a_change_of_network_replaces_the_connection_and_triggers_a_pull(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "NETWORK_LOOK_S", 0.01)
    server, at = Server(), ["10.0.0.7"]
    with linked(world, server, network=lambda: at[0]) as (client, woken):
        assert waited(lambda: server.open and woken.times == 1)
        at[0] = ""
        time.sleep(0.1)
        assert len(server.open) == 1, "a network that is gone may come back"
        at[0] = "192.168.1.7"
        assert waited(lambda: len(server.open) == 2 == woken.times)
        assert client.connected


def test_a_gateway_that_refuses_keep_alives_is_sent_pulls_instead(
    world: World, asking: Server
) -> None:
    server = asking
    server.answer = proto.encode_refusal(ValidationFailed("no frame"), 0, closes=True)
    with linked(world, server):
        assert waited(lambda: len(server.asked) > 2)
        assert server.kept_alive == 1
        assert server.asked[0].client_id == "ann"


def test_an_error_message_of_api_gateway_itself_does_not_close_the_connection(
    world: World, asking: Server
) -> None:
    server = asking
    server.answer = '{"message": "Too Many Requests", "connectionId": "a=", "requestId": "b="}'
    with linked(world, server, synced=True) as (_, woken):
        assert waited(lambda: server.kept_alive > 3)
        assert (len(server.open), woken.times) == (1, 1)


def test_tcp_keepalive_probes_a_silent_connection() -> None:
    with socket.socket() as opened:
        probe_when_silent(opened)
        assert opened.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        if hasattr(socket, "TCP_KEEPIDLE"):
            idle_s = opened.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE)
            assert idle_s == PROBE_S < HEARTBEAT_S


def test_a_connection_is_renewed_before_the_old_one_is_closed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RENEWED_S", 0.05)
    server = Server()
    with linked(world, server) as (client, woken):
        assert waited(lambda: len(server.open) > 2)
        assert client.connected
        assert woken.times >= 2


def test_a_malformed_frame_closes_the_connection_and_the_listener_reconnects(
    world: World, quick: None
) -> None:
    server = Server()
    server.first = "no frame"
    with linked(world, server):
        assert waited(lambda: len(server.open) >= 2)


ACCEPTED_PER_S = 100


@pytest.mark.law("T9")
@pytest.mark.parametrize("error", [None, RateLimited("full", retry_after_s=120)])
def test_a_thousand_clients_disconnected_at_once_reconnect_spread_out(
    error: RateLimited | None,
) -> None:
    """Of a gateway that takes a hundred handshakes a second, and refuses the others."""
    random = Random(7)
    every = [listener_of(number, random) for number in range(1_000)]
    least_s = error.retry_after_s if error else 0
    waiting = [(again_s(listener, error), number) for number, listener in enumerate(every)]
    heapq.heapify(waiting)
    tried: Counter[int] = Counter()
    taken: Counter[int] = Counter()
    while waiting:
        at_s, number = heapq.heappop(waiting)
        assert at_s >= least_s
        tried[int(at_s)] += 1
        if taken[int(at_s)] < ACCEPTED_PER_S:
            taken[int(at_s)] += 1
        else:
            heapq.heappush(waiting, (at_s + again_s(every[number], None), number))

    assert max(tried) < least_s + 180
    assert sum(tried.values()) < 5_000
    assert max(tried.values()) <= (25 if error else 700)


def listener_of(number: int, random: Random) -> SocketListener:
    """Return a listener that does not begin."""
    hearer: Any = SimpleNamespace(client_id=f"c{number}", reconnect_s=1.0, reconnect_s_max=300.0)
    return SocketListener("ws://nowhere", hearer, Token("a-token"), chance=random.random)


def again_s(listener: SocketListener, error: RateLimited | None) -> float:
    """Return the wait behind one more failure."""
    listener._failures += 1
    return listener._backoff_s(error)


class ScriptedSocket:
    """Brings its frames at once, then lets the time pass; answers keep-alives, if it does."""

    def __init__(self, arriving: list[Callable[[], str]], answer: str = "") -> None:
        self._arriving = arriving
        self._answer = answer
        self.sent_s: list[float] = []
        self.asked_s: list[float] = []
        self.now_s = 0.0

    def recv(self, timeout: float) -> str:
        """Return the next frame; without one, wait."""
        if not self._arriving:
            self.now_s += timeout
            raise TimeoutError
        return self._arriving.pop(0)()

    def send(self, frame: str) -> None:
        """Take a keep-alive, or a pull that is one too."""
        self.sent_s.append(self.now_s)
        answer = self._answer
        if frame != proto.KEEP_ALIVE:
            self.asked_s.append(self.now_s)
            answer = proto.encode_page_frame(PullPage((), 0, 0, has_more=False), 1)
        if self._answer:
            self._arriving.append(lambda: answer)


def heard(client: Client, random: Random, socket: ScriptedSocket, for_s: float) -> list[float]:
    """Return when a client that receives frames for some time is woken."""
    times: list[float] = []
    hearing = Hearing(
        client.client_id, client._syncer, client._activity, lambda: times.append(socket.now_s)
    )
    listener = SocketListener(
        "ws://nowhere", hearing, Token("a-token"), chance=random.random,
        monotonic_s=lambda: socket.now_s, network=None,
    )  # fmt: skip
    listener._socket = socket
    with contextlib.suppress(TimeoutError):
        listener._hear(for_s)
    return times


def woken_at_s(client: Client, random: Random, arriving: list[Callable[[], str]]) -> list[float]:
    """Return when a client that receives frames within two minutes is woken."""
    return heard(client, random, ScriptedSocket(arriving), 120)


@pytest.mark.law("T6", "V10")
def test_clients_notified_of_changed_rules_spread_out_their_re_syncs(world: World) -> None:
    with world.client() as client:
        client.sync().unwrap()
        by_team = {"name": "team", "tables": [], "filters": [TEAM]}
        administrator(world.buffer, time_=world.time).save_rules(GATEWAY, {"buckets": [by_team]})
        world.notify(rules_changed=True)
        world.write("r1", title="second", team="red")
        notified, decided = world.sockets.sent["to-ann"][-2:]
        random = Random(7)
        # Told of the rules, and of commits that they decided: none is a reason to hurry.
        busy = [lambda: notified, *(20 * [lambda: decided])]
        times = [woken_at_s(client, random, [*busy]) for _ in range(600)]

        assert all(len(each) == 1 and each[0] <= module.REREAD_S_MAX for each in times)
        in_second = Counter(int(each[0]) for each in times)
        assert len(in_second) >= module.REREAD_S_MAX
        assert max(in_second.values()) < 3 * 600 / module.REREAD_S_MAX

        # Whoever has read again meanwhile, as after an edit, is not woken once more.
        def heard_after_a_sync() -> str:
            client.sync().unwrap()
            return decided

        assert woken_at_s(client, random, [lambda: notified, heard_after_a_sync]) == []


class Telling(MemoryTransport):
    """A transport that has a WebSocket beside it."""

    url = ""

    def listen(self, hearer: Any) -> SocketListener:
        return SocketListener(self.url, hearer, Token("a-token")).start()


def is_calm(results: list[Any]) -> bool:
    """Look for as long as fifteen polls would take whether there is more than one."""
    polled = len(results)
    time.sleep(0.3)
    return len(results) <= polled + 1


def test_a_connected_sync_loop_polls_rarely_and_applies_broadcasts(world: World) -> None:
    server = Server()
    transport = Telling(GATEWAY, world.pushes, world.pulls)
    results: list[Any] = []
    with serving(server) as url, world.client(transport=transport) as client:
        transport.url = url
        client.sync().unwrap()
        with SyncLoop(client, every_s=0.02, on_result=results.append):
            assert waited(lambda: client.status.connected and titles(client) == ["first"])
            assert waited(lambda: is_calm(results))
            world.write("r1", title="second")
            server.send(world.broadcasts()[0])
            assert waited(lambda: titles(client) == ["first", "second"])
        assert not client.status.connected
