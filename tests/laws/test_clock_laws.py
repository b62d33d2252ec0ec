"""Clock laws C1-C5: docs/spec/clock.md."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from lakesync.core.clock import (
    COUNTER_MAX,
    DRIFT_MS_MAX,
    STAMP_MAX,
    HybridLogicalClock,
    check_drift,
    stamp,
    stamp_ms,
)
from lakesync.errors import ClockDrift
from tests.support.builders import WALL_MS, at_ms

walls = st.integers(WALL_MS - 20_000, WALL_MS + 20_000)
counters = st.sampled_from([0, 1, COUNTER_MAX - 1, COUNTER_MAX])
near_stamps = st.builds(stamp, walls, counters)


@pytest.mark.law("C1")
@given(near_stamps, st.lists(walls, min_size=2, max_size=20))
def test_stamps_strictly_increase_whatever_the_wall_clock_does(start: int, wall: list[int]) -> None:
    clock = HybridLogicalClock(start)

    issued = [start, *(clock.now(wall_ms) for wall_ms in wall)]

    assert issued == sorted(set(issued))


@pytest.mark.law("C2")
@given(near_stamps, near_stamps, walls)
def test_every_stamp_after_an_observed_one_is_greater(start: int, remote: int, wall: int) -> None:
    clock = HybridLogicalClock(start, drift_ms_max=100_000)
    clock.observe(remote, wall)

    assert clock.last == max(start, remote)
    assert clock.now(wall) > max(start, remote)


@pytest.mark.law("C2")
@given(near_stamps, near_stamps, walls)
def test_observing_a_stamp_again_changes_nothing(start: int, remote: int, wall: int) -> None:
    clock = HybridLogicalClock(start, drift_ms_max=100_000)
    clock.observe(remote, wall)
    once = clock.last
    clock.observe(remote, wall)

    assert clock.last == once


@pytest.mark.law("C3")
def test_a_full_counter_carries_into_the_milliseconds() -> None:
    clock = HybridLogicalClock(at_ms(0, COUNTER_MAX))

    assert clock.now(WALL_MS) == at_ms(1, 0)


@pytest.mark.law("C3")
def test_stamps_beyond_a_full_counter_in_one_millisecond_stay_in_order() -> None:
    clock = HybridLogicalClock()

    issued = [clock.now(WALL_MS) for _ in range(COUNTER_MAX + 3)]

    assert issued == list(range(at_ms(0), at_ms(1) + 2))


@pytest.mark.law("C4")
@pytest.mark.parametrize("counter", [0, COUNTER_MAX])
def test_a_stamp_exactly_at_the_drift_bound_is_accepted(counter: int) -> None:
    clock = HybridLogicalClock()
    clock.observe(at_ms(DRIFT_MS_MAX, counter), WALL_MS)

    assert clock.last == at_ms(5_000, counter)


@pytest.mark.law("C4")
def test_a_stamp_one_millisecond_past_the_bound_is_refused_and_changes_nothing() -> None:
    clock = HybridLogicalClock(at_ms(-7, 3))
    with pytest.raises(ClockDrift, match=r"5001 ms ahead.*at most 5000 ms") as refused:
        clock.observe(at_ms(5_001), WALL_MS)

    assert refused.value.code == "CLOCK_DRIFT"
    assert clock.last == at_ms(-7, 3)


@pytest.mark.law("C4")
@given(near_stamps, walls, st.integers(0, 10_000))
def test_a_stamp_is_refused_exactly_when_it_is_more_than_the_bound_ahead(
    value: int, wall: int, bound_ms: int
) -> None:
    try:
        check_drift(value, wall, bound_ms)
    except ClockDrift:
        assert stamp_ms(value) > wall + bound_ms
    else:
        assert stamp_ms(value) <= wall + bound_ms


@pytest.mark.law("C4")
@given(st.integers(0, at_ms(0)))
def test_stamp_in_the_past_is_accepted_however_old(value: int) -> None:
    check_drift(value, WALL_MS)


@pytest.mark.law("C5")
@given(near_stamps, walls)
def test_a_stamp_is_never_behind_the_wall_clock_that_issued_it(start: int, wall: int) -> None:
    assert stamp_ms(HybridLogicalClock(start).now(wall)) >= wall


@pytest.mark.law("C3")
@given(st.integers(0, STAMP_MAX))
def test_a_stamp_is_its_milliseconds_and_its_counter(value: int) -> None:
    assert stamp(stamp_ms(value), value & COUNTER_MAX) == value


class Clocks(RuleBasedStateMachine):
    """Three processes whose wall clocks are skewed, and step; they exchange stamps and restart."""

    def __init__(self) -> None:
        super().__init__()
        self.true_ms = WALL_MS
        self.skew_ms = [0, 0, 0]
        self.clocks = [HybridLogicalClock() for _ in range(3)]
        self.issued: list[list[int]] = [[], [], []]
        self.wall_max = [0, 0, 0]

    def wall(self, who: int) -> int:
        """Read one process's wall clock."""
        wall_ms = self.true_ms + self.skew_ms[who]
        self.wall_max[who] = max(self.wall_max[who], wall_ms)
        return wall_ms

    def observe(self, who: int, remote: int) -> None:
        """Let one process see a stamp, and check what it makes of it."""
        clock, wall_ms = self.clocks[who], self.wall(who)
        before = clock.last
        try:
            clock.observe(remote, wall_ms)
        except ClockDrift:
            assert stamp_ms(remote) - wall_ms > DRIFT_MS_MAX
            assert clock.last == before
        else:
            assert stamp_ms(remote) - wall_ms <= DRIFT_MS_MAX
            assert clock.last == max(before, remote)

    @rule(by_ms=st.integers(0, 3_000))
    def time_passes(self, by_ms: int) -> None:
        self.true_ms += by_ms

    @rule(who=st.integers(0, 2), to_ms=st.integers(-9_000, 9_000))
    def a_wall_clock_steps(self, who: int, to_ms: int) -> None:
        self.skew_ms[who] = to_ms

    @rule(who=st.integers(0, 2))
    def issue(self, who: int) -> None:
        self.issued[who].append(self.clocks[who].now(self.wall(who)))

    @rule(who=st.integers(0, 2), other=st.integers(0, 2))
    def send(self, who: int, other: int) -> None:
        self.issue(who)
        self.observe(other, self.issued[who][-1])

    @rule(who=st.integers(0, 2), ahead_ms=st.integers(-9_000, 9_000), counter=counters)
    def a_stamp_comes_from_outside(self, who: int, ahead_ms: int, counter: int) -> None:
        self.observe(who, stamp(self.true_ms + ahead_ms, counter))

    @rule(who=st.integers(0, 2))
    def restart(self, who: int) -> None:
        self.clocks[who] = HybridLogicalClock(self.clocks[who].last)

    @invariant()
    def stamps_increase(self) -> None:
        for clock, issued in zip(self.clocks, self.issued, strict=True):
            assert issued == sorted(set(issued))
            assert not issued or clock.last >= issued[-1]

    @invariant()
    def no_clock_runs_away(self) -> None:
        for clock, issued, wall_max in zip(self.clocks, self.issued, self.wall_max, strict=True):
            assert clock.last <= stamp(wall_max + DRIFT_MS_MAX, COUNTER_MAX) + len(issued)


@pytest.mark.law("C1")
@pytest.mark.law("C2")
@pytest.mark.law("C4")
@pytest.mark.law("C5")
def test_clocks_that_observe_each_other_stay_in_order_and_near_wall_time() -> None:
    run_state_machine_as_test(Clocks)
