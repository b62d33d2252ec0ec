"""Broadcasts: exactly what a pull would give, to exactly those who may see it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakesync.core.clock import STAMP_MAX
from lakesync.core.messages import Pull
from lakesync.errors import Unavailable
from lakesync.gateway import broadcast, connected
from lakesync.gateway.connected import CLIENT_CONNECTIONS_MAX
from lakesync.gateway.pull import PullService
from lakesync.ports import CONNECTION_S_MAX, GATEWAY_KIND, Revocation
from lakesync.wire import json_frames, proto
from tests.support.builders import at_ms, insert, update
from tests.support.gateways import GATEWAY, deltas_of
from tests.support.sockets import Hub, is_json

if TYPE_CHECKING:
    from types import ModuleType

    from lakesync.core.delta import Delta
    from lakesync.core.messages import PullPage


def bucket(name: str, column: str, value: str) -> dict[str, Any]:
    filters = [{"column": column, "op": "eq", "value": value}]
    return {"name": name, "tables": [], "filters": filters, "write": []}


RULES = bucket("own", "owner", "jwt:sub"), bucket("all", "owner", "all")


class World(Hub):
    """A hub with clients that write."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._stamp = 0

    def write(self, client: str, row: str, **columns: Any) -> None:
        """Push a change of a row, and let a second pass."""
        self.time.sleep_ms(1_000)
        self._stamp += 1
        delta = insert(row, at=at_ms(0, self._stamp), client=client, **columns)
        assert not self.send(delta, sub=client).outcomes

    def push_trusted(self, delta: Delta) -> None:
        """Push a change as a connector does, whom no rule concerns."""
        self.time.sleep_ms(1_000)
        self.send(delta, trusted=True)

    def pull(self, client: str, since: int, scope: str = "") -> list[Any]:
        """Return what a client pulls behind a cursor, and the page's scope, epoch and end."""
        wanted = Pull(
            client, since, 10_000, claims={"sub": client}, removes=True, scope=scope,
            own_cursor=True, at_least=STAMP_MAX,
        )  # fmt: skip
        page = self.puller().pull(GATEWAY, wanted)
        assert not page.has_more
        return [page, deltas_of(page)]


@pytest.fixture
def world() -> World:
    return World()


def only(pages: list[PullPage]) -> PullPage:
    (page,) = pages
    return page


def settled(world: World) -> None:
    """Bring the connections to where a first broadcast has been made."""
    world.write("setup", "r0", owner="all")
    world.notify()
    world.sockets.sent.clear()


@pytest.mark.law("T1")
def test_broadcast_holds_the_commit_and_names_the_cursor_it_follows(world: World) -> None:
    world.connect("ann")
    settled(world)
    before, _ = world.pull("ann", 0)
    world.write("bob", "r1", title="Buy milk")
    world.notify()

    page = only(world.sockets.pages("to-ann"))
    pulled, deltas = world.pull("ann", before.cursor)
    assert page.follows(before.cursor)
    assert deltas_of(page) == deltas
    assert (page.cursor, page.scope, page.epoch) == (pulled.cursor, pulled.scope, pulled.epoch)
    assert not page.follows(page.cursor)


@pytest.mark.law("T1")
def test_broadcast_without_a_known_predecessor_is_a_poke(world: World) -> None:
    world.connect("ann")
    world.write("bob", "r1", title="Buy milk")
    world.notify()

    page = only(world.sockets.pages("to-ann"))
    assert page.is_poke
    assert page.has_more
    assert not page.count


@pytest.mark.law("T2")
def test_too_large_broadcast_is_a_poke(world: World) -> None:
    world.connect("ann")
    settled(world)
    world.write("bob", "r1", title="x" * 200_000)
    world.notify()

    assert only(world.sockets.pages("to-ann")).is_poke


@pytest.mark.law("T1", "T2")
def test_connections_of_both_encodings_are_sent_the_same_page_each_written_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        world.connect(f"ann{number}")
        world.connect(f"web{number}", is_json=True)
    settled(world)
    before, _ = world.pull("ann0", 0)
    written = count_calls(monkeypatch, json_frames), count_calls(monkeypatch, proto)
    world.write("bob", "r1", title="Buy milk")
    world.notify()

    frames = {name: only_text(sent) for name, sent in world.sockets.sent.items()}
    assert {name for name, frame in frames.items() if is_json(frame)} == {
        "to-web0", "to-web1", "to-web2",
    }  # fmt: skip
    assert [len(calls) for calls in written] == [2, 2], "a page and a poke for each encoding"
    page, same = only(world.sockets.pages("to-ann0")), only(world.sockets.pages("to-web0"))
    assert page.follows(before.cursor)
    assert deltas_of(page) == deltas_of(same)
    assert replace(page, records=()) == replace(same, records=())


@pytest.mark.law("T2")
def test_page_that_fits_no_json_frame_is_a_poke_to_who_reads_json_alone(world: World) -> None:
    world.connect("ann")
    world.connect("web", is_json=True)
    settled(world)
    world.time.sleep_ms(1_000)
    # A control character is one byte of a row id in protobuf, and six characters in JSON.
    rows = [f"{number:02}" + 500 * "\x01" for number in range(50)]
    world.send(*(insert(row, at=at_ms(1, n), client="bob", n=n) for n, row in enumerate(rows)))
    world.notify()

    assert only(world.sockets.pages("to-ann")).count == 50
    poke = only(world.sockets.pages("to-web"))
    assert (poke.is_poke, poke.has_more, poke.count) == (True, True, 0)
    world.write("bob", "r2", title="x")
    world.notify()
    assert only(world.sockets.pages("to-web")).count == 1


@pytest.mark.law("T4")
def test_json_connection_of_the_sender_is_poked_when_others_wrote_as_well(world: World) -> None:
    world.connect("bob", is_json=True)
    settled(world)
    world.write("bob", "r1", title="Buy milk")
    world.write("ann", "r2", title="Buy bread")
    world.notify()

    assert is_json(only_text(world.sockets.sent["to-bob"]))
    assert only(world.sockets.pages("to-bob")).is_poke


def test_nothing_is_written_as_json_where_nobody_reads_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.connect("ann")
    settled(world)
    calls = count_calls(monkeypatch, json_frames)
    world.write("bob", "r1", title="Buy milk")
    world.notify()

    assert only(world.sockets.pages("to-ann")).count == 1
    assert calls == []


@pytest.mark.law("T6")
def test_closed_json_connections_are_told_the_reason_in_json(world: World) -> None:
    world.connect("ann", expires_s=world.time.now_ms / 1000 + 5, is_json=True)
    world.connect("carl", is_json=True)
    world.connect("dora", expires_s=world.time.now_ms / 1000 + 5, is_json=True)
    settled(world)
    world.broadcaster.close_revoked(GATEWAY, "user", "carl")
    world.time.sleep_ms(6_000)
    world.sweep.sweep(lambda: True)

    for name, code in (("ann", "AUTH_ERROR"), ("carl", "REVOKED"), ("dora", "AUTH_ERROR")):
        assert is_json(only_text(world.sockets.sent[f"to-{name}"]))
        (refused,) = world.sockets.refusals(f"to-{name}")
        assert (refused.error.code, refused.closes, refused.request_id) == (code, True, 0)
    assert sorted(world.sockets.closed) == ["to-ann", "to-carl", "to-dora"]


def count_calls(monkeypatch: pytest.MonkeyPatch, encoding: ModuleType) -> list[PullPage]:
    """Note the broadcasts that are written in an encoding from now on."""
    calls: list[PullPage] = []
    write = encoding.encode_broadcast

    def noted(page: PullPage) -> str:
        calls.append(page)
        frame: str = write(page)
        return frame

    monkeypatch.setattr(encoding, "encode_broadcast", noted)
    return calls


def only_text(frames: list[str]) -> str:
    (frame,) = frames
    return frame


@pytest.mark.law("T2")
def test_group_is_poked_when_deciding_its_broadcast_takes_too_long(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.connect("ann")
    settled(world)
    monkeypatch.setattr(broadcast, "DECIDE_MS_MAX", 0)
    world.write("bob", "r1", title="Buy milk")
    world.notify()

    assert only(world.sockets.pages("to-ann")).is_poke


@pytest.mark.law("T4")
def test_sender_of_a_push_gets_no_broadcast_of_it(world: World) -> None:
    world.connect("ann")
    world.connect("bob")
    settled(world)
    world.write("bob", "r1", title="Buy milk")
    world.notify()

    assert world.sockets.pages("to-bob") == []
    assert only(world.sockets.pages("to-ann")).count == 1


@pytest.mark.law("T4")
def test_sender_is_poked_when_others_wrote_as_well(world: World) -> None:
    world.connect("bob")
    settled(world)
    world.write("bob", "r1", title="Buy milk")
    world.write("ann", "r2", title="Buy bread")
    world.notify()

    assert only(world.sockets.pages("to-bob")).is_poke


@pytest.mark.law("T3")
def test_hidden_commits_are_not_broadcast_and_the_next_broadcast_still_follows_the_cursor(
    world: World,
) -> None:
    world.rules(*RULES)
    for client in ("ann", "bob"):
        world.connect(client, claims={"sub": client})
    settled(world)
    ann, _ = world.pull("ann", 0)
    for number in range(3):
        world.write("bob", f"r{number + 1}", owner="bob")
        world.notify()
    assert world.sockets.pages("to-ann") == []
    world.write("carl", "r9", owner="all")
    world.notify()

    page = only(world.sockets.pages("to-ann"))
    assert page.follows(ann.cursor)
    assert [delta.row_id for delta in deltas_of(page)] == ["r9"]


@pytest.mark.law("T3")
def test_broadcast_to_each_group_is_filtered_by_its_own_claims(world: World) -> None:
    world.rules(*RULES)
    for client in ("ann", "bob"):
        world.connect(client, claims={"sub": client})
    settled(world)
    world.write("carl", "r1", owner="ann")
    world.notify()
    world.write("carl", "r1", owner="bob")
    world.notify()

    first, second = world.sockets.pages("to-ann")
    assert [delta.op.name for delta in deltas_of(first)] == ["INSERT"]
    assert [delta.op.name for delta in deltas_of(second)] == ["REMOVE"]
    assert [delta.row_id for delta in deltas_of(only(world.sockets.pages("to-bob")))] == ["r1"]


@pytest.mark.law("T3", "V12")
def test_broadcast_to_each_group_omits_its_own_columns(world: World) -> None:
    hr = {"claim": "role", "op": "eq", "value": "hr"}
    pay = {"tables": ["todos"], "columns": ["pay"], "except": [hr]}
    world.connect("ann", claims={"sub": "ann"})
    world.connect("bob", claims={"sub": "bob", "role": "hr"})
    world.rules(omit=[pay])
    settled(world)
    world.push_trusted(insert("r1", at=at_ms(1), title="x", pay=1))
    world.notify()
    world.push_trusted(update("r1", at=at_ms(2), pay=2))
    world.notify()

    only_title = only(world.sockets.pages("to-ann"))
    assert [delta.values for delta in deltas_of(only_title)] == [{"title": "x"}]
    both = world.sockets.pages("to-bob")
    assert [delta.values for page in both for delta in deltas_of(page)] == [
        {"title": "x", "pay": 1},
        {"pay": 2},
    ]


@pytest.mark.law("T6")
def test_changed_rules_poke_only_connections_whose_scope_changes(world: World) -> None:
    world.rules(bucket("team", "team", "jwt:team"))
    world.connect("ann", claims={"sub": "ann", "team": "red"})
    settled(world)
    world.notify(rules_changed=True)
    assert world.sockets.pages("to-ann") == []
    world.rules(*RULES)
    world.notify(rules_changed=True)

    poke = only(world.sockets.pages("to-ann"))
    assert poke.is_poke
    pulled, _ = world.pull("ann", 0)
    assert (poke.scope, poke.epoch) == (pulled.scope, pulled.epoch), "so its reader can see why"
    world.notify(rules_changed=True)
    assert world.sockets.pages("to-ann") == []


@pytest.mark.law("T6")
def test_connection_is_closed_once_its_token_has_expired(world: World) -> None:
    world.connect("ann", expires_s=world.time.now_ms / 1000 + 5)
    settled(world)
    world.time.sleep_ms(6_000)
    world.write("bob", "r1", title="Buy milk")
    world.notify()

    assert world.sockets.pages("to-ann") == []
    assert world.sockets.closed == ["to-ann"]
    assert world.connections.get(GATEWAY, "to-ann") is None


@pytest.mark.law("T6")
@pytest.mark.parametrize("kind", ["user", "client"])
def test_connection_of_a_revoked_user_or_client_is_notified_and_closed(
    world: World, kind: str
) -> None:
    world.connect("ann")
    world.connect("bob")
    world.broadcaster.close_revoked(GATEWAY, kind, "ann")

    (refused,) = world.sockets.refusals("to-ann")
    assert (refused.error.code, refused.closes) == ("REVOKED", True)
    assert world.sockets.closed == ["to-ann"]


@pytest.mark.law("T6")
def test_all_connections_of_a_deleted_gateway_are_closed(world: World) -> None:
    world.connect("ann")
    world.connect("bob")
    world.broadcaster.close_revoked(GATEWAY, GATEWAY_KIND, GATEWAY)

    assert sorted(world.sockets.closed) == ["to-ann", "to-bob"]
    assert world.sockets.refusals("to-ann")[0].error.code == "GATEWAY_DELETED"


@pytest.mark.law("T6")
def test_sweep_closes_expired_and_revoked_connections(world: World) -> None:
    world.connect("ann", expires_s=world.time.now_ms / 1000 - 1)
    world.connect("bob")
    world.connect("carl")
    world.access.revoke(GATEWAY, Revocation("user", "carl", 1, "ops"))

    assert world.sweep.sweep(lambda: True) == 2
    assert sorted(world.sockets.closed) == ["to-ann", "to-carl"]


@pytest.mark.law("T9")
def test_oldest_connections_of_a_client_are_closed_beyond_its_limit(world: World) -> None:
    for number in range(CLIENT_CONNECTIONS_MAX + 2):
        world.connect("ann", name=f"ann-{number}")
        world.time.sleep_ms(1_000)
    world.connect("bob")
    world.write("setup", "r0", owner="all")
    world.notify()

    assert sorted(world.sockets.closed) == ["ann-0", "ann-1"]
    (refused,) = world.sockets.refusals("ann-0")
    world.sockets.sent.clear()
    assert (refused.error.code, refused.closes) == ("RATE_LIMITED", True)
    assert "client id of its own" in refused.error.message
    world.write("bob", "r1", title="Buy milk")
    world.notify()
    assert world.sockets.pages("ann-0") == []
    assert only(world.sockets.pages("ann-2")).count == 1


@pytest.mark.law("T9")
def test_youngest_connections_of_a_gateway_are_closed_beyond_its_limit(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connected, "GATEWAY_CONNECTIONS_MAX", 2)
    for client in ("ann", "bob", "carl"):
        world.connect(client)
        world.time.sleep_ms(1_000)

    assert world.sweep.sweep(lambda: True) == 1
    assert world.sockets.closed == ["to-carl"]
    assert world.sockets.refusals("to-carl")[0].error.code == "RATE_LIMITED"


@pytest.mark.law("T5", "T6")
def test_closing_connections_does_not_delay_broadcasts(world: World) -> None:
    for number in range(50):
        world.connect(f"ann{number}", name=f"old-{number}", expires_s=world.time.now_ms / 1000 + 5)
    world.connect("bob")
    settled(world)
    world.time.sleep_ms(6_000)
    order: list[str] = []
    send = world.sockets.send

    def sending(connection_id: str, frame: str) -> Any:
        order.append(connection_id)
        return send(connection_id, frame)

    world.sockets.send = sending  # type: ignore[method-assign]
    world.write("carl", "r1", title="Buy milk")
    world.notify()

    assert order[0] == "to-bob"
    assert len(world.connections.of_gateway(GATEWAY)[0]) == 1


@pytest.mark.law("T8")
def test_commit_notified_during_another_processs_turn_is_broadcast(world: World) -> None:
    world.connect("ann")
    settled(world)
    world.write("bob", "r1", title="first")
    second = world.process()
    send = world.sockets.send
    left: list[bool] = []

    def sending(connection_id: str, frame: str) -> Any:
        if not left:
            left.append(True)
            world.write("bob", "r2", title="second")
            second.notify(GATEWAY, world.newest(), "other")
        return send(connection_id, frame)

    world.sockets.send = sending  # type: ignore[method-assign]
    world.notify()

    rows = [d.row_id for page in world.sockets.pages("to-ann") for d in deltas_of(page)]
    assert rows == ["r1", "r2"]


@pytest.mark.law("T8")
def test_turn_of_a_dead_process_is_taken_over_once_it_expires(world: World) -> None:
    world.connect("ann")
    settled(world)
    now_ms = world.time.wall_clock()
    assert world.connections.begin(GATEWAY, "dead", now_ms, now_ms + broadcast.TURN_MS_MAX)
    world.write("bob", "r1", title="first")
    world.notify()
    assert world.sockets.pages("to-ann") == []
    world.time.sleep_ms(broadcast.TURN_MS_MAX + 1)
    world.write("bob", "r2", title="second")
    world.notify()

    rows = [delta.row_id for delta in deltas_of(only(world.sockets.pages("to-ann")))]
    assert rows == ["r1", "r2"]


@pytest.mark.law("T8")
def test_turn_that_expires_while_it_is_requested_is_taken_over(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    (name,) = some_readers(world, 1)
    world.write("bob", "r1", title="first")
    now_ms = world.time.wall_clock()
    assert world.connections.begin(GATEWAY, "dead", now_ms, now_ms)
    leave, asked = world.connections.leave, []

    def leaving(gateway: str, commit: int, at_ms: int) -> bool:
        asked.append(commit)
        assert len(asked) < 3, "it asks for ever"
        world.time.sleep_ms(1)
        return leave(gateway, commit, at_ms + 1)

    monkeypatch.setattr(world.connections, "leave", leaving)
    world.notify()

    assert only(world.sockets.pages(name)).count == 1


class Running:
    """Time that is over after so many frames."""

    def __init__(self, world: World, frames: int) -> None:
        self._sent = world.sockets.sent
        self._most = sum(map(len, self._sent.values())) + frames

    def __call__(self) -> bool:
        return sum(map(len, self._sent.values())) < self._most


def some_readers(world: World, count: int) -> list[str]:
    """Connect readers, in the order of their connections' names."""
    names = [f"reader-{number:02}" for number in range(count)]
    for name in names:
        world.connect(name, name=name)
    settled(world)
    return names


@pytest.mark.law("T8")
def test_round_without_time_for_all_connections_is_continued_by_the_next_process(
    world: World,
) -> None:
    names = some_readers(world, 6)
    world.write("bob", "r1", title="first")
    first = world.newest()
    assert not world.broadcaster.notify(GATEWAY, first, "batch", Running(world, 2))
    assert [name for name in names if world.sockets.sent[name]] == names[:2]

    # The same batch comes again, to whatever process.
    assert not world.process().notify(GATEWAY, first, "batch", Running(world, 3))
    assert [name for name in names if world.sockets.sent[name]] == names[:5]
    assert world.process().notify(GATEWAY, first, "batch")
    assert world.process().notify(GATEWAY, first, "batch")
    pages = [only(world.sockets.pages(name)) for name in names]
    assert [page.is_poke for page in pages] == [False, False, True, True, True, True]
    assert len({page.scope for page in pages}) == 1
    assert all(page.cursor >= first for page in pages)


@pytest.mark.law("T8")
def test_every_connection_is_notified_although_each_round_has_time_for_one(world: World) -> None:
    names = some_readers(world, 7)
    notified: set[str] = set()
    for number in range(7):
        world.write("bob", f"r{number}", title="x")
        commit = world.newest()
        assert not world.process().notify(GATEWAY, commit, f"batch-{number}", Running(world, 1))
        notified |= {name for name in names if world.sockets.pages(name)}

    assert notified == set(names)


@pytest.mark.law("T1", "T8")
def test_after_an_unfinished_round_notified_connections_get_a_page_and_the_others_a_poke(
    world: World,
) -> None:
    names = some_readers(world, 3)
    since = world.connections.of_gateway(GATEWAY)[1].notified
    world.write("bob", "r1", title="first")
    first = world.newest()
    world.broadcaster.notify(GATEWAY, first, "one", Running(world, 1))
    world.write("bob", "r2", title="second")
    assert world.process().notify(GATEWAY, world.newest(), "two")

    once, again = world.sockets.pages(names[0])
    assert [d.row_id for page in (once, again) for d in deltas_of(page)] == ["r1", "r2"]
    assert once.follows(since)
    assert again.follows(first)
    for name in names[1:]:
        late = only(world.sockets.pages(name))
        assert late.is_poke
        assert late.cursor >= world.newest()


@pytest.mark.law("T8")
def test_notification_without_time_sends_nothing_and_loses_nothing(world: World) -> None:
    (name,) = some_readers(world, 1)
    world.write("bob", "r1", title="first")
    assert not world.broadcaster.notify(GATEWAY, world.newest(), "batch", lambda: False)
    assert world.sockets.pages(name) == []
    world.notify()

    assert only(world.sockets.pages(name)).count == 1


@pytest.mark.law("T8")
def test_commit_left_to_a_process_that_runs_out_of_time_is_broadcast_later(world: World) -> None:
    (name,) = some_readers(world, 1)
    world.write("bob", "r1", title="first")
    first = world.newest()
    second = world.process()

    def has_time() -> bool:
        if not world.sockets.sent[name]:
            return True
        if world.newest() == first:
            world.write("bob", "r2", title="second")
            assert second.notify(GATEWAY, world.newest(), "other"), "it is left to the first"
        return False

    assert not world.broadcaster.notify(GATEWAY, first, "batch", has_time)
    assert world.broadcaster.notify(GATEWAY, first, "batch")
    rows = [d.row_id for page in world.sockets.pages(name) for d in deltas_of(page)]
    assert rows == ["r1", "r2"]


@pytest.mark.law("T8")
def test_failed_broadcast_is_repeated_by_the_next_process(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    (name,) = some_readers(world, 1)
    world.write("bob", "r1", title="first")

    def failing(*_: object) -> Any:
        raise Unavailable("DynamoDB is away")

    with monkeypatch.context() as patched:
        patched.setattr(PullService, "final_log", failing)
        with pytest.raises(Unavailable):
            world.notify()
    world.broadcaster = world.process()
    world.broadcaster.notify(GATEWAY, world.newest(), "another batch")

    assert only(world.sockets.pages(name)).count == 1


@pytest.mark.law("T6")
def test_failure_to_store_a_scope_does_not_prevent_pokes(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = some_readers(world, 2)

    def failing(_: object) -> None:
        raise Unavailable("DynamoDB is away")

    monkeypatch.setattr(world.connections, "rescope", failing)
    world.rules(bucket("all", "owner", "all"))
    world.notify(rules_changed=True)

    assert all(only(world.sockets.pages(name)).is_poke for name in names)


@pytest.mark.law("T6")
def test_sweep_forgets_connections_that_api_gateway_ended(world: World) -> None:
    world.connect("ann")
    world.time.sleep_ms(1_000 * CONNECTION_S_MAX + 1)
    world.connect("bob")
    world.write("carl", "r1", title="Buy milk")
    world.notify()
    assert world.sockets.sent.keys() == {"to-bob"}, "nobody is at the other end"

    assert world.sweep.sweep(lambda: True) == 1
    assert [one.id for one in world.connections.of_gateway(GATEWAY)[0]] == ["to-bob"]
    assert world.sockets.closed == [], "there is nothing to close"


@pytest.mark.law("T9")
def test_ended_connections_do_not_count_towards_a_clients_limit(world: World) -> None:
    for number in range(CLIENT_CONNECTIONS_MAX):
        world.connect("ann", name=f"dead-{number}")
    world.time.sleep_ms(1_000 * CONNECTION_S_MAX + 1)
    world.connect("ann", name="living")

    assert world.sweep.sweep(lambda: True) == CLIENT_CONNECTIONS_MAX
    assert [one.id for one in world.connections.of_gateway(GATEWAY)[0]] == ["living"]


@pytest.mark.law("T6")
def test_sweep_that_runs_out_of_time_continues_where_it_stopped(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    for letter in "abc":
        world.connections.add(replace(world.connect(letter), gateway=f"g-{letter}", expires_s=1))
        world.connections.remove(GATEWAY, f"to-{letter}")
    monkeypatch.setattr("lakesync.buffer.connections._PAGE_ITEMS", 1)
    places: list[str] = []
    scan = world.connections.scan

    def scanning(place: str) -> Any:
        places.append(json.loads(place)[0] if place else "")
        return scan(place)

    monkeypatch.setattr(world.connections, "scan", scanning)
    for _ in range(3):
        world.sweep.sweep(lambda: False)

    assert places == ["", "g-a", "g-b"]


class Reader:
    """A client that follows broadcasts by the rule, and pulls otherwise."""

    def __init__(self, world: World, client: str) -> None:
        self.world, self.client = world, client
        self.cursor, self.scope, self.pulls = 0, "", 0
        self.seen: list[Any] = []
        world.connect(client, claims={"sub": client})
        self.pull()

    def pull(self) -> None:
        page, deltas = self.world.pull(self.client, self.cursor, self.scope)
        self.seen += deltas
        self.cursor, self.scope = page.cursor, page.scope
        self.pulls += 1

    def hear(self, page: PullPage) -> None:
        if page.follows(self.cursor) and page.scope == self.scope:
            self.seen += deltas_of(page)
            self.cursor = page.cursor
        elif page.cursor > self.cursor:
            self.pull()


@settings(max_examples=60, deadline=None)
@given(data=st.data())
@pytest.mark.law("T1", "T2", "T3", "T4")
def test_broadcasts_in_any_order_deliver_the_same_deltas_as_pulls(data: st.DataObject) -> None:
    """Lost, late, doubled and reordered: the same deltas in the same order as by pulls alone."""
    world = World()
    if data.draw(st.booleans(), "with rules"):
        world.rules(*RULES)
    readers = [Reader(world, client) for client in ("ann", "bob")]
    clients, owners = (
        st.sampled_from(["ann", "bob", "carl"]),
        st.sampled_from(["ann", "bob", "all"]),
    )
    late: list[tuple[Reader, PullPage]] = []
    for number in range(data.draw(st.integers(1, 8), "writes")):
        writer = data.draw(clients)
        world.write("carl" if writer == "carl" else writer, f"r{number}", owner=data.draw(owners))
        if data.draw(st.booleans(), "notified"):
            world.notify()
        if data.draw(st.integers(0, 9)) == 0:
            world.broadcaster = world.process()
        for reader in readers:
            if writer == reader.client and data.draw(st.booleans(), "pulls behind its push"):
                reader.pull()
            for page in world.sockets.pages(f"to-{reader.client}"):
                echo = [delta for delta in deltas_of(page) if delta.client_id == reader.client]
                assert echo == []
                late += [(reader, page)] * data.draw(st.integers(0, 2), "times")
        late = list(data.draw(st.permutations(late)))
        for _ in range(data.draw(st.integers(0, len(late)), "arrive")):
            reader, page = late.pop()
            reader.hear(page)
    for reader in readers:
        reader.pull()
        _, wanted = world.pull(reader.client, 0)
        own_cursor = {(delta.row_id, delta.hlc) for delta in wanted}
        assert {(delta.row_id, delta.hlc) for delta in reader.seen} == own_cursor
        assert len(reader.seen) == len(own_cursor), "nothing was applied twice"
        assert reader.seen == wanted
