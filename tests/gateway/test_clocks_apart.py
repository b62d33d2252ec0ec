"""What a process has seen committed is in its pages, however far clocks are apart."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lakesync.buffer.memory_buffer import MemoryBuffer
from lakesync.core.clock import STAMP_MAX
from lakesync.core.messages import Pull
from lakesync.gateway.pull import PullService
from lakesync.log.read import CLOCKS_APART_MS, RAISED_EVERY_MS, SEEN_APART_MS
from tests.support.builders import WALL_MS, at_ms, insert, push
from tests.support.gateways import GivenTime, deltas_of, pulled, pusher

if TYPE_CHECKING:
    from collections.abc import Callable

    from lakesync.core.clock import Stamp
    from lakesync.core.messages import PullPage
    from lakesync.ports import Head

GATEWAY = "g"
APART_MS = 5_000
SEEN_MS = RAISED_EVERY_MS + SEEN_APART_MS
"""What was seen so long ago is in the next page."""


class Counting(MemoryBuffer):
    """Counts how often all heads are read, and how often each is raised or tried to be."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = 0
        self.raises: Counter[str] = Counter()
        self.slowly: Callable[[], None] | None = None
        """What happens behind the next raise."""

    def heads(self, gateway: str, since: int = 0, *, at_once: bool = False) -> dict[str, Head]:
        self.reads += 1
        return super().heads(gateway, since, at_once=at_once)

    def raise_head(self, gateway: str, lane: str, seen: Head | None, to: Stamp, main: Head) -> bool:
        self.raises[lane] += 1
        slowly, self.slowly = self.slowly, None
        try:
            return super().raise_head(gateway, lane, seen, to, main)
        finally:
            if slowly:
                slowly()


@dataclass
class World:
    """A gateway whose writers and readers have clocks that are apart; all see the same time pass.

    Args:
        writers_ms: how far the clock of each process that pushes is ahead.
    """

    writers_ms: list[int]
    readers_ms: list[int]
    buffer: Counting = field(default_factory=Counting)
    time: GivenTime = field(default_factory=lambda: GivenTime(WALL_MS + 60_000))
    made: int = 0
    newest: Stamp = 0
    looks: list[list[tuple[int, Stamp]]] = field(default_factory=list)
    """By reader, when it read the heads, and the newest commit that was accepted by then."""

    def __post_init__(self) -> None:
        clocks = [self._ahead(ms) for ms in self.writers_ms]
        self.writers = [pusher(self.buffer, seed=n, time_=clock) for n, clock in enumerate(clocks)]
        self.readers = [
            PullService(
                self.buffer,
                wall_clock=lambda ahead_ms=ms: self.time.wall_clock() + ahead_ms,
                monotonic_ms=self.time.wall_clock,
            )
            for ms in self.readers_ms
        ]
        self.looks = [[] for _ in self.readers]
        for number in range(4 * len(self.writers)):  # until each has a lane of its own
            self.push(number % len(self.writers))
        self.time.now_ms += 2 * RAISED_EVERY_MS

    def _ahead(self, ms: int) -> GivenTime:
        time = self.time

        class Ahead(GivenTime):
            def wall_clock(self) -> int:
                return time.wall_clock() + ms

            def sleep_ms(self, milliseconds: float) -> None:
                time.sleep_ms(milliseconds)

        return Ahead(0)

    def push(self, writer: int) -> None:
        self.time.now_ms += 1
        self.made += 1
        delta = insert(f"r{self.made}", at=at_ms(self.made), n=self.made)
        receipt = self.writers[writer].push(GATEWAY, push(delta))
        assert receipt.accepted == 1
        self.newest = max(self.newest, receipt.server_hlc)

    def pull(self, reader: int, since: Stamp, deltas_max: int = 100) -> PullPage:
        """Ask for a page, and hold its end against what the reader has seen before."""
        reads, now_ms = self.buffer.reads, self.time.wall_clock()
        asked = Pull("r", since, deltas_max)
        page = self.readers[reader].pull(GATEWAY, asked)
        seen = [newest for ms, newest in self.looks[reader] if ms <= now_ms - SEEN_MS]
        assert page.has_more or page.cursor >= max(seen, default=0)
        if self.buffer.reads > reads:
            self.looks[reader].append((now_ms, self.newest))
        return page


@pytest.mark.law("B17")
@pytest.mark.parametrize("reader_ms", [-APART_MS, -CLOCKS_APART_MS - 10, 0])
@pytest.mark.parametrize("writer_ms", [0, APART_MS])
def test_first_pull_after_a_burst_is_complete_only_if_the_readers_clock_is_far_behind(
    writer_ms: int, reader_ms: int
) -> None:
    """By their stamps lanes are in use for as long as the clocks are apart: nobody uses them."""
    world = World([writer_ms] * 3, [reader_ms])
    cursor = pulled_to(world)
    for writer in (0, 0, 1, 1, 2):
        world.push(writer)
    is_behind = writer_ms - reader_ms > CLOCKS_APART_MS

    page = world.pull(0, cursor)

    assert (page.behind_ms == 0) is is_behind
    assert (page.cursor == world.newest) is is_behind


@pytest.mark.law("B17")
def test_pull_after_a_slow_pull_includes_commits_made_meanwhile() -> None:
    """Its heads were read when it began, so by its end the process has not looked for long."""
    world = World([APART_MS, 0, 0], [0])
    cursor = pulled_to(world)
    world.push(0)
    cursor = world.pull(0, cursor).cursor  # what follows is of the same millisecond, seconds ahead
    world.time.now_ms += 2 * RAISED_EVERY_MS
    world.push(1)

    def slowly() -> None:
        world.time.now_ms += RAISED_EVERY_MS + 50
        world.push(2)

    world.buffer.slowly = slowly
    cursor = world.pull(0, cursor).cursor

    page = world.pull(0, cursor)

    assert page.cursor == world.newest
    assert page.behind_ms == 0


@pytest.mark.law("B17")
@pytest.mark.parametrize("reader_ms", [-APART_MS, -CLOCKS_APART_MS - 10, 0])
@pytest.mark.parametrize("writer_ms", [0, APART_MS])
def test_second_pull_after_a_burst_is_complete_although_clocks_differ(
    writer_ms: int, reader_ms: int
) -> None:
    """Who has just read knows which lanes move on; a quarter of a second later none has."""
    world = World([writer_ms] * 3, [reader_ms])
    world.push(0)
    cursor = world.readers[0].pull(GATEWAY, Pull("r", at_least=STAMP_MAX)).cursor
    for writer in (0, 0, 1, 1, 2):
        world.push(writer)
    first = world.pull(0, cursor)
    assert first.behind_ms > 0
    world.time.now_ms += RAISED_EVERY_MS

    page = world.pull(0, first.cursor)

    assert (page.cursor, page.has_more, page.behind_ms) == (world.newest, False, 0)
    assert len(deltas_of(first)) + len(deltas_of(page)) == 5


@pytest.mark.law("B17")
@pytest.mark.parametrize("reader_ms", [-APART_MS, 0, APART_MS])
def test_commit_into_a_quiet_gateway_is_in_the_next_page_although_clocks_differ(
    reader_ms: int,
) -> None:
    world = World([APART_MS, 0, -APART_MS], [reader_ms])
    cursor = world.pull(0, 0).cursor
    for writer in (0, 2, 1, 2, 0, 1):
        world.time.now_ms += RAISED_EVERY_MS
        cursor = world.pull(0, cursor).cursor
        world.time.now_ms += RAISED_EVERY_MS
        cursor = world.pull(0, cursor).cursor
        world.push(writer)

        page = world.pull(0, cursor)

        assert [delta.row_id for delta in deltas_of(page)] == [f"r{world.made}"]
        assert page.behind_ms == 0
        cursor = page.cursor


@pytest.mark.law("B15", "B17")
def test_page_right_after_raising_heads_reports_being_behind_and_the_next_is_complete() -> None:
    """Stamps ahead of all clocks show no age: one commit looks like a lane in use."""
    world = World([APART_MS, 0, 0], [0])
    cursor = pulled_to(world)
    world.time.now_ms += 2 * SEEN_MS
    world.push(0)
    cursor = world.pull(0, cursor).cursor  # raises the other heads
    assert cursor == world.newest
    world.time.now_ms += 50
    world.push(1)
    world.time.now_ms += 40

    page = world.pull(0, cursor)

    assert page.cursor < world.newest
    assert page.behind_ms > 0
    world.time.now_ms += RAISED_EVERY_MS + SEEN_MS
    page = world.pull(0, page.cursor)
    assert (page.cursor, page.has_more, page.behind_ms) == (world.newest, False, 0)


CLOCKS = st.lists(
    st.sampled_from([-APART_MS, -1_000, -RAISED_EVERY_MS, 0, 400, APART_MS]),
    min_size=2, max_size=3,
)  # fmt: skip
STEPS = st.one_of(
    st.tuples(st.just("push"), st.integers(0, 2)),
    st.tuples(st.just("pull"), st.integers(0, 2)),
    st.tuples(st.just("page"), st.integers(0, 2)),
    st.tuples(st.just("wait"), st.sampled_from([1, 20, 26, 100, 240, 251, 276])),
)


LANE_IN_USE_BELOW = [
    *[("push", 1)] * 3, ("pull", 0), ("wait", 276), ("push", 2), ("push", 2), ("pull", 0),
]  # fmt: skip
"""A lane moves on, and stays below what was seen in another, as its writer's clock is behind."""


@pytest.mark.law("B7", "B8", "B17")
@example(writers_ms=[APART_MS, 0, 0], readers_ms=[0, 0], steps=LANE_IN_USE_BELOW)
@given(writers_ms=CLOCKS, readers_ms=CLOCKS, steps=st.lists(STEPS, max_size=60))
def test_pages_hold_every_commit_once_and_all_recently_seen_ones_whatever_clocks_say(
    writers_ms: list[int], readers_ms: list[int], steps: list[tuple[str, int]]
) -> None:
    world = World(writers_ms, readers_ms)
    begun = world.made
    cursors = [pulled_to(world)] * len(readers_ms)
    read: list[list[str]] = [[] for _ in readers_ms]
    for step, number in steps:
        if step == "wait":
            world.time.now_ms += number
        elif step == "push":
            world.push(number % len(writers_ms))
        else:
            reader = number % len(readers_ms)
            page = world.pull(reader, cursors[reader], 1 if step == "page" else 100)
            read[reader] += [delta.row_id for delta in deltas_of(page)]
            cursors[reader] = page.cursor
    for cursor, rows in zip(cursors, read, strict=True):
        rest = [delta.row_id for delta in pulled(world.buffer, GATEWAY, since=cursor)]
        assert sorted(rows + rest) == sorted(f"r{n + 1}" for n in range(begun, world.made))


def pulled_to(world: World) -> Stamp:
    """Return a cursor behind everything, of who asked another process for it."""
    other = PullService(world.buffer, wall_clock=world.time.wall_clock)
    return other.pull(GATEWAY, Pull("r", at_least=STAMP_MAX)).cursor


@pytest.mark.law("B17")
@pytest.mark.parametrize("readers_ms", [0, -APART_MS])
def test_heads_are_raised_seldom_although_stamps_are_ahead_of_all_clocks(
    readers_ms: int,
) -> None:
    """The commits of who writes on are all of the same millisecond, seconds ahead."""
    world = World([APART_MS, 0, 0, 0], [readers_ms] * 4)
    cursors = [pulled_to(world)] * 4
    world.push(0)
    world.buffer.raises.clear()
    seconds = 3
    for tick in range(seconds * 50):
        world.time.now_ms += 16
        world.push(1 + tick % 3)
        reader = tick % 4
        cursors[reader] = world.pull(reader, cursors[reader]).cursor

    assert max(world.buffer.raises.values()) <= 5 * seconds
