"""Quotas of gateways: what is let in is bounded, and who keeps to the quota is never refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakesync.buffer.admission import ItemQuotas
from lakesync.buffer.memory_items import MemoryItemStore
from lakesync.errors import RateLimited, Unavailable
from lakesync.gateway import access as module
from lakesync.gateway.access import BUSY_SHARE, PAUSE_MS, SHARES, WINDOW_MS, Quotas
from lakesync.ports import Quota, Usage, WindowUsage

G = "g1"
PUSHES, DELTAS, BYTES = 64, 1_280, 0
QUOTA = Quota(PUSHES, DELTAS, BYTES)
WINDOW_PUSHES = PUSHES * WINDOW_MS // 1000
SHARE = WINDOW_PUSHES // SHARES


class Store(ItemQuotas):
    """A store that counts reports, and may be away."""

    def __init__(self) -> None:
        super().__init__(MemoryItemStore())
        self.reports = 0
        self.is_away = False

    def report(self, gateway: str, window: int, usage: Usage) -> WindowUsage:
        self.reports += 1
        if self.is_away:
            raise Unavailable("nobody answers")
        return super().report(gateway, window, usage)


class World:
    """Processes over one store, with a clock each."""

    def __init__(self, *ahead_ms: int, quota: Quota = QUOTA) -> None:
        self.now_ms = WINDOW_MS * 1_000
        self.store = Store()
        self.waits_s: set[int] = set()
        self.processes = [
            Quotas(self.store, quota, wall_clock=lambda ahead=ahead: self.now_ms + ahead)
            for ahead in ahead_ms or (0,)
        ]

    def pushes(self, process: int = 0, deltas: int = 1, gateway: str = G) -> bool:
        """Push once; tells whether it was let in."""
        try:
            self.processes[process].check(gateway)
        except RateLimited as error:
            self.waits_s.add(error.retry_after_s)
            return False
        self.processes[process].use(gateway, Usage(1, deltas, 100))
        return True


@pytest.mark.law("Q1")
@given(
    st.lists(st.integers(-8_000, 8_000), min_size=1, max_size=6),
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 40)), min_size=200, max_size=400),
)
def test_admitted_pushes_are_bounded_per_window_whatever_the_clocks_say(
    ahead_ms: list[int], steps: list[tuple[int, int]]
) -> None:
    world = World(*ahead_ms)
    began_ms, let_in = world.now_ms, 0
    for process, waited_ms in steps:
        world.now_ms += waited_ms
        for _ in range(5):
            let_in += world.pushes(process % len(ahead_ms))
    windows = 2 + (world.now_ms - began_ms) // WINDOW_MS + (1 if len(set(ahead_ms)) > 1 else 0)
    slack = len(ahead_ms) * (SHARE + 1)

    assert let_in <= windows * (WINDOW_PUSHES + slack)
    assert world.waits_s <= set(range(1, WINDOW_MS // 1000 + 1))


@pytest.mark.law("Q1")
def test_flood_over_many_processes_is_admitted_up_to_the_quota() -> None:
    world = World(*[0] * 20)
    let_in = 0
    for _ in range(20):  # windows
        for _ in range(50):
            world.now_ms += WINDOW_MS // 50
            let_in += sum(world.pushes(process) for process in range(20))

    assert 20 * WINDOW_PUSHES * 0.95 <= let_in <= 20 * WINDOW_PUSHES * 1.2


@pytest.mark.law("Q2")
def test_gateway_within_its_quota_is_never_refused() -> None:
    world = World(*[0] * 8)
    pause_ms = 1000 / (PUSHES * BUSY_SHARE)
    for number in range(2_000):
        world.now_ms = WINDOW_MS * 1_000 + int(number * pause_ms)
        assert world.pushes(number % 8)


@pytest.mark.law("Q2")
def test_push_larger_than_the_quota_is_admitted_once_per_window() -> None:
    world = World()
    for _ in range(3):
        assert world.pushes(deltas=DELTAS * 100)
        assert not world.pushes()
        world.now_ms += WINDOW_MS


@pytest.mark.law("Q3")
def test_gateway_over_its_quota_takes_nothing_from_another_gateways_quota() -> None:
    world = World()
    while world.pushes():
        pass

    assert all(world.pushes(gateway="g2") for _ in range(WINDOW_PUSHES - 1))


@pytest.mark.law("Q4")
def test_pushes_are_reported_to_the_store_in_shares() -> None:
    world = World(0, 0)
    let_in = sum(world.pushes(number % 2) for number in range(10 * WINDOW_PUSHES))

    assert let_in <= WINDOW_PUSHES + 2
    assert world.store.reports <= 120


@pytest.mark.law("Q4")
def test_half_of_a_quota_costs_few_reports() -> None:
    world = World(0, 0)
    assert all(world.pushes(number % 2) for number in range(WINDOW_PUSHES // 2))

    assert world.store.reports <= 24


@pytest.mark.law("Q4")
def test_refused_pushes_are_not_reported_to_the_store() -> None:
    world = World()
    while world.pushes():
        pass
    reports = world.store.reports
    assert not any(world.pushes() for _ in range(100))

    assert world.store.reports == reports


@pytest.mark.law("Q4")
def test_pushes_are_admitted_and_reports_pause_while_the_store_is_unavailable() -> None:
    world = World()
    world.store.is_away = True
    assert all(world.pushes() for _ in range(10 * WINDOW_PUSHES))
    assert world.store.reports == 1

    world.store.is_away = False
    world.now_ms += PAUSE_MS
    assert not world.pushes()


def test_changed_quota_applies_from_the_next_report() -> None:
    world = World(0, 0)
    world.store.set_quota(G, Quota(1, None, None))
    for process in (0, 1):
        assert sum(world.pushes(process) for _ in range(100)) <= SHARE
    world.store.set_quota(G, Quota(0, 0, 0))
    world.now_ms += WINDOW_MS
    assert world.pushes()

    assert all(world.pushes() for _ in range(10 * WINDOW_PUSHES))


def test_quota_of_zero_admits_everything_and_reports_nothing() -> None:
    world = World(quota=Quota(0, 0, 0))

    assert all(world.pushes(deltas=10_000) for _ in range(1_000))
    assert world.store.reports == 0


@pytest.mark.parametrize("stepped_ms", [-WINDOW_MS * 100, -WINDOW_MS, -1, WINDOW_MS * 100])
def test_clock_step_blocks_pushes_for_at_most_one_window(stepped_ms: int) -> None:
    world = World()
    while world.pushes():
        pass
    world.now_ms += stepped_ms
    world.pushes()
    world.now_ms += WINDOW_MS

    assert world.pushes()


def test_remembered_quotas_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "QUOTAS_REMEMBERED_MAX", 2)
    world = World()
    for number in range(5):
        world.pushes(gateway=f"g{number}")

    (process,) = world.processes
    assert list(process._counted) == ["g3", "g4"]
