"""Who may use a gateway: one user for each client, and nobody a minute after being revoked."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakesync.buffer.admission import ItemAccess
from lakesync.buffer.memory_items import MemoryItemStore
from lakesync.errors import ClientTaken, LakeSyncError, Revoked, Unavailable, ValidationFailed
from lakesync.gateway import access as module
from lakesync.gateway.access import (
    CLIENTS_REMEMBERED_MAX,
    GATEWAYS_REMEMBERED_MAX,
    NOTED_MS_MIN,
    REFUSALS_NOTED_MS_MIN,
    REMEMBERED_MS_MAX,
    REVOCATIONS_MAX,
    USER_BYTES_MAX,
    Access,
    AccessAdmin,
)
from lakesync.ports import Seen
from tests.support.builders import WALL_MS

if TYPE_CHECKING:
    from collections.abc import Callable

    from lakesync.ports import KnownClient, Revocation

G = "g1"
MINUTE_MS = 60_000


class Store(ItemAccess):
    """A store that counts what it is asked, and may be away."""

    def __init__(self) -> None:
        super().__init__(MemoryItemStore())
        self.asked: list[str] = []
        self.is_away = False

    def client(self, gateway: str, client_id: str) -> KnownClient | None:
        self._ask("client")
        return super().client(gateway, client_id)

    def note(self, gateway: str, client_id: str, seen: Seen) -> None:
        self._ask("note")
        super().note(gateway, client_id, seen)

    def bind(self, gateway: str, client_id: str, user: str) -> str:
        self._ask("bind")
        return super().bind(gateway, client_id, user)

    def revocations(self, gateway: str) -> list[Revocation]:
        self._ask("revocations")
        return super().revocations(gateway)

    def _ask(self, what: str) -> None:
        self.asked.append(what)
        if self.is_away:
            raise Unavailable("nobody answers")


class World:
    """Processes over one store, each with a clock of its own."""

    def __init__(self, *lag_ms: int) -> None:
        self.store = Store()
        self.now_ms = WALL_MS
        self.lag_ms = list(lag_ms) or [0]
        self.processes = [
            Access(
                self.store,
                wall_clock=lambda number=number: self.now_ms + self.lag_ms[number],
                monotonic_ms=lambda: self.now_ms,
            )
            for number in range(len(self.lag_ms))
        ]
        self.admin = AccessAdmin(self.store, wall_clock=lambda: self.now_ms)

    def lets_in(self, user: str, client_id: str, process: int = 0) -> bool:
        try:
            self.processes[process].check_user(G, user)
            self.processes[process].check_client(G, user, client_id)
        except (ClientTaken, Revoked):
            return False
        return True


NAMES = st.sampled_from(["ann", "bob"])
STEPS = st.one_of(
    st.tuples(st.just("use"), st.integers(0, 2), NAMES, st.sampled_from(["phone", "ann"])),
    st.tuples(st.sampled_from(["revoke", "restore"]), st.just("user"), NAMES),
    st.tuples(
        st.sampled_from(["revoke", "restore"]), st.just("client"), st.sampled_from(["phone", "ann"])
    ),
    st.tuples(st.just("step"), st.integers(0, 2), st.sampled_from([-60_000, -1, 40_000])),
    st.tuples(st.just("wait"), st.sampled_from([1, 5_000, 30_000, 59_999, 60_000, 90_000])),
)


@pytest.mark.law("U1", "U2")
@given(st.lists(STEPS, max_size=40))
def test_revocations_and_restores_are_in_force_within_a_minute_in_every_process(
    steps: list[tuple[object, ...]],
) -> None:
    """The client's first user is admitted; a revocation or restore of a minute ago is in force."""
    world = World(-2_000, 0, 3_000)
    owners: dict[object, object] = {}
    changed_ms: dict[tuple[object, object], tuple[int, bool]] = {}
    for step in steps:
        if step[0] == "wait":
            world.now_ms += int(str(step[1]))
        elif step[0] == "step":
            world.lag_ms[int(str(step[1]))] += int(str(step[2]))
        elif step[0] == "use":
            _, process, user, client_id = step
            lets_in = world.lets_in(str(user), str(client_id), int(str(process)))
            states = [
                changed_ms.get(name, (0, False)) for name in (("user", user), ("client", client_id))
            ]
            shut = [at for at, is_shut in states if is_shut]
            if any(world.now_ms - at >= MINUTE_MS for at in shut):
                assert not lets_in
            if lets_in:
                assert owners.setdefault(client_id, user) == user
            elif not shut and all(world.now_ms - at >= MINUTE_MS for at, _ in states):
                assert owners[client_id] != user
        else:
            action, kind, name = map(str, step)
            if action == "revoke":
                world.admin.revoke(G, kind, name, by="ops")
            else:
                world.admin.restore(G, kind, name)
            if changed_ms.get((kind, name), (0, False))[1] != (action == "revoke"):
                changed_ms[kind, name] = (world.now_ms, action == "revoke")


@pytest.mark.law("U1")
def test_user_who_loses_the_race_to_bind_a_client_is_refused() -> None:
    world = World(0, 0)
    bind = world.store.bind

    def late(gateway: str, client_id: str, user: str) -> str:
        bind(gateway, client_id, "bob")
        return bind(gateway, client_id, user)

    world.store.bind = late  # type: ignore[method-assign]
    assert not world.lets_in("ann", "phone")
    assert world.lets_in("bob", "phone", 1)


@pytest.mark.law("U1")
def test_released_client_admits_its_next_user_at_once_and_refuses_the_last_after_a_minute() -> None:
    world = World(0, 0)
    assert world.lets_in("ann", "phone")
    world.admin.release(G, "phone")

    assert world.lets_in("bob", "phone", 1)
    assert world.lets_in("bob", "phone", 0)
    world.now_ms += MINUTE_MS
    assert not world.lets_in("ann", "phone")


@pytest.mark.law("U3")
def test_warm_process_remembers_an_access_check_for_a_bounded_time() -> None:
    world = World()
    for _ in range(10):
        world.now_ms += REMEMBERED_MS_MAX // 10
        assert world.lets_in("ann", "phone")

    assert world.store.asked == ["revocations", "client", "bind"]
    world.now_ms += REMEMBERED_MS_MAX // 10
    assert world.lets_in("ann", "phone")
    assert world.store.asked[3:] == ["revocations", "client"]


@pytest.mark.law("U3")
@pytest.mark.parametrize("stepped_ms", [-1, -100_000, REMEMBERED_MS_MAX])
def test_revocation_is_in_force_at_once_after_a_clock_step(stepped_ms: int) -> None:
    world = World()
    world.lets_in("ann", "phone")
    world.admin.revoke(G, "user", "ann", by="ops")
    world.now_ms += stepped_ms

    assert not world.lets_in("ann", "phone")


@pytest.mark.law("U3")
def test_access_check_fails_while_the_store_is_unavailable() -> None:
    world = World()
    world.store.is_away = True
    with pytest.raises(Unavailable):
        world.lets_in("ann", "phone")


def test_refused_access_check_writes_nothing() -> None:
    world = World()
    world.lets_in("ann", "phone")
    world.store.asked.clear()
    for _ in range(3):
        assert not world.lets_in("bob", "phone")

    assert world.store.asked == ["client"] * 3


def test_remembered_clients_and_gateways_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CLIENTS_REMEMBERED_MAX", 3)
    monkeypatch.setattr(module, "GATEWAYS_REMEMBERED_MAX", 2)
    world = World()
    (process,) = world.processes
    for number in range(10):
        process.check_client(f"g{number}", "ann", f"c{number}")
    world.store.asked.clear()
    process.check_client("g9", "ann", "c9")
    assert world.store.asked == []
    process.check_client("g0", "ann", "c0")

    assert world.store.asked == ["revocations", "client"]
    assert CLIENTS_REMEMBERED_MAX > 0
    assert GATEWAYS_REMEMBERED_MAX > 0


@pytest.mark.law("U2")
def test_revocation_and_binding_in_one_gateway_do_not_affect_another() -> None:
    world = World()
    world.admin.revoke("g2", "user", "ann", by="ops")
    world.store.bind("g2", "phone", "bob")

    assert world.lets_in("ann", "phone")


@pytest.mark.parametrize(
    "act",
    [
        lambda admin: admin.revoke(G, "user", "", by="ops"),
        lambda admin: admin.revoke(G, "user", "u" * (USER_BYTES_MAX + 1), by="ops"),
        lambda admin: admin.revoke(G, "user", "\ud800", by="ops"),
        lambda admin: admin.revoke(G, "client", "c" * 129, by="ops"),
        lambda admin: admin.revoke(G, "team", "a", by="ops"),
        lambda admin: admin.revoke(G, "user", "ops", by="ops"),
        lambda admin: admin.restore(G, "team", "a"),
        lambda admin: admin.restore(G, "client", ""),
        lambda admin: admin.release(G, ""),
        lambda admin: admin.user_of(G, ""),
    ],
)
def test_invalid_user_or_client_names_are_refused_in_access_changes(
    act: Callable[[AccessAdmin], object],
) -> None:
    world = World()
    with pytest.raises(ValidationFailed):
        act(world.admin)

    assert world.admin.revocations(G) == []


def test_gateway_has_a_bounded_number_of_revocations(monkeypatch: pytest.MonkeyPatch) -> None:
    assert REVOCATIONS_MAX >= 1_000
    monkeypatch.setattr(module, "REVOCATIONS_MAX", 2)
    world = World()
    for name in ("a", "b", "b"):
        world.admin.revoke(G, "user", name, by="ops")
    with pytest.raises(LakeSyncError, match="at most 2"):
        world.admin.revoke(G, "client", "c", by="ops")
    world.admin.restore(G, "user", "a")
    world.admin.revoke(G, "client", "c", by="ops")

    assert [each.name for each in world.admin.revocations(G)] == ["c", "b"]


# --- what is noted --------------------------------------------------------------------------------


def noted(world: World) -> Seen | None:
    client = world.store.client(G, "phone")
    return client.seen if client else None


def writes(world: World) -> int:
    return world.store.asked.count("note")


@pytest.mark.law("U7")
def test_client_cursor_is_recorded_at_first_and_then_every_quarter_of_an_hour() -> None:
    world = World()
    for minute in range(61):
        assert world.lets_in("ann", "phone")
        world.processes[0].note(G, "phone", 100 + minute, 0)
        world.now_ms += MINUTE_MS

    assert noted(world) == Seen(WALL_MS + 60 * MINUTE_MS, 160, 0)
    assert writes(world) == 5


@pytest.mark.law("U7")
def test_up_to_date_client_is_recorded_only_once_across_processes() -> None:
    world = World(0, 0, 0)
    assert world.lets_in("ann", "phone")
    world.processes[0].note(G, "phone", 100, 0)
    for minute in range(200):
        assert world.lets_in("ann", "phone", minute % 3)
        world.processes[minute % 3].note(G, "phone", 100, 0)
        world.now_ms += MINUTE_MS

    assert writes(world) == 1


@pytest.mark.law("U7")
def test_refused_edits_are_recorded_within_a_minute() -> None:
    world = World()
    assert world.lets_in("ann", "phone")
    world.processes[0].note(G, "phone", 100, 0)
    world.now_ms += REFUSALS_NOTED_MS_MIN - 1
    world.processes[0].note(G, "phone", 100, 3)
    assert noted(world) == Seen(WALL_MS, 100, 0)
    world.now_ms += 1
    world.processes[0].note(G, "phone", 100, 3)
    assert noted(world) == Seen(world.now_ms, 100, 3)


@pytest.mark.law("U7")
@given(
    steps=st.lists(
        st.tuples(st.integers(0, 2), st.integers(0, 3), st.integers(1, 20 * MINUTE_MS)), max_size=40
    )
)
def test_recorded_cursor_never_exceeds_the_read_one_and_is_written_seldom(
    steps: list[tuple[int, int, int]],
) -> None:
    world, cursor, began = World(0, 0, 0), 100, WALL_MS
    for process, more, wait_ms in steps:
        assert world.lets_in("ann", "phone", process)
        world.processes[process].note(G, "phone", cursor)
        seen = noted(world)
        assert seen is not None
        assert seen.cursor <= cursor
        # It had read what it is noted with no more than a quarter of an hour, and one memory, ago.
        assert seen.cursor == cursor or world.now_ms - seen.at_ms < NOTED_MS_MIN + REMEMBERED_MS_MAX
        cursor += more
        world.now_ms += wait_ms
    # Each process may remember what was noted before another one did.
    assert writes(world) <= 3 * (1 + (world.now_ms - began) / NOTED_MS_MIN)


@pytest.mark.law("U7")
def test_failed_recording_of_a_cursor_is_not_retried_at_every_pull() -> None:
    world = World()
    assert world.lets_in("ann", "phone")
    world.store.is_away = True
    with pytest.raises(Unavailable):
        world.processes[0].note(G, "phone", 100)
    world.processes[0].note(G, "phone", 101)
    world.processes[0].note(G, "tablet", 101)
    assert writes(world) == 1
