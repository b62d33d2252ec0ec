"""Pulls that read at once share the heads that were read, and none ends where it may not."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakesync.buffer.memory_buffer import MemoryBuffer
from lakesync.core.clock import STAMP_MAX
from lakesync.core.layout import MAIN_LANE
from lakesync.gateway.pull import PullService
from lakesync.log.read import RAISED_EVERY_MS
from tests.support.builders import at_ms, insert, push
from tests.support.gateways import (
    GATEWAY,
    GatewayWorld,
    GivenTime,
    administrator,
    deltas_of,
    pulled,
)
from tests.support.lanes import close_all_but

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lakesync.core.messages import PullPage
    from lakesync.ports import Head

OTHERS = 3
"""Processes that push beside the first one, each in a lane of its own."""


class Counting(MemoryBuffer):
    """Counts how often all heads are read, and how often the main lane's alone."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = self.main_reads = 0

    def heads(self, gateway: str, since: int = 0, *, at_once: bool = False) -> dict[str, Head]:
        self.reads += 1
        return super().heads(gateway, since, at_once=at_once)

    def lane_heads(self, gateway: str, lanes: Sequence[str]) -> dict[str, Head]:
        self.main_reads += list(lanes) == [MAIN_LANE]
        return super().lane_heads(gateway, lanes)


@dataclass
class World(GatewayWorld):
    """A gateway that several processes write to, and one process that is asked for pages."""

    buffer: Counting = field(default_factory=Counting)
    accepted: list[tuple[int, int]] = field(default_factory=list)
    """When each push was answered, and its stamp."""
    made: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.writers = [self.pusher(n) for n in range(OTHERS)]
        for number in range(4 * OTHERS):  # until each has a lane of its own
            self.time.now_ms += 1
            self.write(number % OTHERS)
        self.time.now_ms += 2 * RAISED_EVERY_MS

    def write(self, writer: int) -> int:
        """Push an edit through one of the lanes; returns the receipt's stamp."""
        self.made += 1
        delta = insert(f"r{self.made}", at=at_ms(self.made), n=self.made)
        receipt = self.writers[writer].push(GATEWAY, push(delta))
        assert receipt.accepted == 1
        self.accepted.append((self.time.wall_clock(), receipt.server_hlc))
        return receipt.server_hlc

    def pull_under_load(self) -> int:
        """Have heads read while two lanes are in use; returns a cursor below them."""
        cursor = self.page(0, at_least=STAMP_MAX).cursor
        for writer in (0, 0, 1, 1, 2):
            self.time.now_ms += 1
            self.write(writer)
        page = self.page(cursor)
        assert page.behind_ms > 0
        assert page.cursor > cursor
        return cursor


@pytest.fixture
def world() -> World:
    return World()


@pytest.mark.law("B15")
def test_pull_under_load_reuses_heads_read_just_before(world: World) -> None:
    cursor = world.pull_under_load()
    reads, main_reads = world.buffer.reads, world.buffer.main_reads
    first = world.page(cursor)
    world.time.now_ms += 50
    world.write(0)

    again = world.page(cursor)

    assert (world.buffer.reads, world.buffer.main_reads) == (reads, main_reads + 2)
    assert (again.cursor, again.records) == (first.cursor, first.records)
    assert first.behind_ms + 50 <= again.behind_ms <= RAISED_EVERY_MS + 1


@pytest.mark.law("B15")
def test_heads_are_read_again_once_the_page_would_end_too_far_back(world: World) -> None:
    cursor = world.pull_under_load()
    reads = world.buffer.reads
    world.time.now_ms += RAISED_EVERY_MS

    page = world.page(cursor)

    assert world.buffer.reads == reads + 1
    assert page.cursor >= world.accepted[-1][1]


@pytest.mark.law("B15")
@pytest.mark.parametrize("at_least", ["fresh", "receipt"])
def test_pull_with_at_least_is_not_served_from_older_heads(world: World, at_least: str) -> None:
    cursor = world.pull_under_load()
    receipt = world.write(0)

    page = world.page(cursor, at_least=STAMP_MAX if at_least == "fresh" else receipt)

    assert page.cursor >= receipt
    assert page.behind_ms == 0 or at_least == "receipt"


@pytest.mark.law("B15")
def test_pull_at_the_cursor_of_the_recent_heads_reads_them_again(world: World) -> None:
    cursor = world.pull_under_load()
    top = world.page(cursor).cursor
    reads = world.buffer.reads

    world.page(top)

    assert world.buffer.reads == reads + 1


@pytest.mark.law("B15")
def test_reading_many_pages_reads_heads_for_the_first_and_last_page_only(world: World) -> None:
    world.page(0, at_least=STAMP_MAX)
    reads = world.buffer.reads
    cursors = [0]
    page = world.page(0, deltas_max=2)
    while page.has_more:
        cursors.append(page.cursor)
        page = world.page(page.cursor, deltas_max=2)

    assert len(cursors) > 3
    assert world.buffer.reads == reads + 2
    assert page.cursor == world.accepted[-1][1]


CHANGES: dict[str, Callable[[World], object]] = {
    "configuration": lambda world: administrator(world.buffer, time_=world.time).set_strict(
        GATEWAY, strict=True
    ),
    "horizon": lambda world: world.buffer.raise_horizon(GATEWAY, 1),
    "lanes": lambda world: close_all_but(world.buffer, GATEWAY),
}


@pytest.mark.law("B15")
@pytest.mark.parametrize("change", CHANGES)
def test_heads_are_read_again_after_a_new_configuration_horizon_or_list_of_lanes(
    world: World, change: str
) -> None:
    cursor = world.pull_under_load()
    CHANGES[change](world)
    reads = world.buffer.reads

    world.page(cursor)

    assert world.buffer.reads > reads


@pytest.mark.law("B15")
def test_clock_step_back_does_not_make_recent_heads_younger() -> None:
    world, steady = World(), GivenTime(0)
    world.pulls = PullService(
        world.buffer, wall_clock=world.time.wall_clock, monotonic_ms=steady.wall_clock
    )
    cursor = world.pull_under_load()
    for wall_ms, steady_ms in ((-1, 0), (0, RAISED_EVERY_MS)):
        world.time.now_ms += wall_ms
        steady.now_ms += steady_ms
        reads = world.buffer.reads

        world.page(cursor)

        assert world.buffer.reads == reads + 1


STEPS = st.one_of(
    st.tuples(st.just("push"), st.integers(0, OTHERS - 1)),
    st.tuples(st.just("pull"), st.integers(0, 2)),
    st.tuples(st.just("page"), st.integers(0, 2)),
    st.tuples(st.just("ask"), st.integers(0, 2)),
    st.tuples(st.just("wait"), st.sampled_from([1, 20, 100, 240, 251])),
    st.tuples(st.just("close"), st.just(0)),
)


@pytest.mark.law("B7", "B8", "B15")
@given(steps=st.lists(STEPS, max_size=40))
def test_no_page_ends_further_back_than_permitted_whatever_the_order_of_steps(
    steps: list[tuple[str, int]],
) -> None:
    world = World()
    cursors = [world.page(0, at_least=STAMP_MAX).cursor] * 3
    read: list[list[str]] = [[], [], []]
    for step, number in steps:
        if step == "push":
            world.time.now_ms += 1
            world.write(number)
        elif step == "wait":
            world.time.now_ms += number
        elif step == "close":
            close_all_but(world.buffer, GATEWAY)
        else:
            newest = world.accepted[-1][1]
            page = world.page(
                cursors[number], deltas_max=1 if step == "page" else 100,
                at_least=newest if step == "ask" else 0,
            )  # fmt: skip
            read[number] += [delta.row_id for delta in deltas_of(page)]
            cursors[number] = page.cursor
            if not page.has_more:
                _check_last(world, page, newest, asked=step == "ask")
    for cursor, rows in zip(cursors, read, strict=True):
        rest = [delta.row_id for delta in pulled(world.buffer, GATEWAY, since=cursor)]
        assert sorted(rows + rest) == sorted(f"r{n + 1}" for n in range(4 * OTHERS, world.made))


def _check_last(world: World, page: PullPage, newest: int, *, asked: bool) -> None:
    """Hold the end of a last page against what was accepted before it was asked for."""
    now_ms = world.time.wall_clock()
    lately = [at_ms for at_ms, _ in world.accepted if at_ms > now_ms - RAISED_EVERY_MS]
    if asked or not page.behind_ms or len(lately) <= 1:
        assert page.cursor >= newest
    due = [stamp for at_ms, stamp in world.accepted if at_ms <= now_ms - RAISED_EVERY_MS]
    assert page.cursor >= max(due)
