"""lakesync.log.lanes: whatever the order of things, no reader misses a commit of any lane."""

from __future__ import annotations

import itertools
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lakesync.buffer.memory_buffer import MemoryBuffer
from lakesync.core.clock import STAMP_MAX, stamp
from lakesync.core.layout import LANES_MAX, MAIN_LANE, ONE_LANE, LaneCount, lane_name
from lakesync.core.messages import Pull
from lakesync.errors import Contention, Unavailable
from lakesync.gateway.pull import PullService
from lakesync.gateway.push import PushService
from lakesync.log.lanes import (
    FREE_MS,
    IDLE_MS,
    LaneChoice,
    Limits,
    close_idle,
    close_lanes,
    idle_lanes,
)
from lakesync.log.read import RAISED_EVERY_MS
from lakesync.log.row_cache import RowCache
from lakesync.ports import NO_HEAD, Head
from lakesync.wire.records import decode_records
from tests.support.builders import WALL_MS, at_ms, insert, push, update
from tests.support.commits import Writer
from tests.support.gateways import Administrator, GivenTime, SeededChance, deltas_of, pulled, pusher
from tests.support.steps import SteppedBuffer, Steps

if TYPE_CHECKING:
    from collections.abc import Callable

    from lakesync.core.clock import Stamp
    from lakesync.core.delta import Delta
    from lakesync.ports import RowKey

GATEWAY = "g"
LIMITS = Limits(commit_deadline_ms=2_000)
PUSHES = 5


@dataclass
class World:
    """Programs that write, open, close, change the configuration and read, and what they saw."""

    steps: Steps
    buffer: SteppedBuffer = field(init=False)
    handed_out: Stamp = 0
    """The highest cursor of all pages so far."""

    def __post_init__(self) -> None:
        self.buffer = SteppedBuffer(self.steps)
        pusher(self.buffer, time_=GivenTime(WALL_MS)).push(
            GATEWAY, push(insert(at=at_ms(0), n=0, text=""))
        )

    def check(self) -> None:
        """Hold every head against the list of open lanes."""
        heads = self.buffer._gateways[GATEWAY].heads
        for lane, head in heads.items():
            assert head.is_closed or heads[MAIN_LANE].lanes.is_open(lane)

    def writer(self, number: int, ahead_ms: int) -> None:
        """Push to a row of its own, and to one that others push to as well."""
        service = PushService(
            self.buffer,
            wall_clock=self.steps.wall_clock(ahead_ms),
            sleep_ms=self.steps.sleep_ms,
            chance=SeededChance(number),
            limits=LIMITS,
        )
        client = f"w{number}"
        for place in range(PUSHES):
            text = "x" * (500 * (place % 4))  # two in a row are too much for a head
            deltas = [
                update(f"r{number}-{place % 2}", at=at_ms(place), client=client, n=place),
                update("shared", at=at_ms(place), client=client, text=text),
            ]
            with suppress(Unavailable):
                service.push(GATEWAY, push(*deltas, client=client))

    def opener(self, number: int) -> None:
        """Open lanes, as one that loses races does."""
        cache = RowCache(self.buffer, self.steps.wall_clock())
        chance = SeededChance(number)
        choice = LaneChoice(
            self.buffer, cache, wall_clock=self.steps.wall_clock(), jitter=chance.jitter
        )
        for shard in ("main", "hot", "main"):
            with suppress(Contention):
                choice.lost(GATEWAY, choice.open_lane(GATEWAY, shard))

    def closer(self, stay: int) -> None:
        """Close lanes, used or not."""
        for _ in range(4):
            heads = self.buffer.heads(GATEWAY, STAMP_MAX)
            close_lanes(self.buffer, GATEWAY, heads, {"main": 1 + stay, "hot": stay})

    def idle_closer(self, number: int) -> None:
        """Close lanes in which nothing happened since a moment ago, as flushes have it done."""
        for since in range(number, number + 4):
            self.steps.step()
            newest = max(commit.stamp for commit in self.buffer.commits)
            with suppress(Contention):
                close_idle(self.buffer, GATEWAY, newest - since)

    def changer(self, number: int) -> None:
        """Place the table anew."""
        service = Administrator(
            self.buffer,
            wall_clock=self.steps.wall_clock(),
            sleep_ms=self.steps.sleep_ms,
            chance=SeededChance(number),
        )
        for shard in ("hot", "main"):
            with suppress(Unavailable):
                service.place_table(GATEWAY, "todos", shard)

    def reader(self, reader: Reader) -> None:
        """Read on and on, some pages fresh and some not.

        Some forget at once which heads they have read. Others may use them for a page that ends
        below where a page of another process did (law B15), but not below what was asked for.
        """
        forgets = reader.number % 2 == 0
        wall_clock, passed_ms = self.steps.wall_clock(), itertools.count(0, RAISED_EVERY_MS)
        monotonic_ms = partial(next, passed_ms) if forgets else wall_clock
        service = PullService(self.buffer, wall_clock=wall_clock, monotonic_ms=monotonic_ms)
        for place in range(10):
            at_least = (0, STAMP_MAX, self.handed_out)[(reader.number + place) % 3]
            pull = Pull("r", reader.cursor, 3 + 20 * (place % 2), at_least=at_least)
            handed_out = self.handed_out
            newest = max(commit.stamp for commit in self.buffer.commits)
            with suppress(Unavailable):
                page = service.pull(GATEWAY, pull)
                if not page.has_more:
                    floor = handed_out if forgets or not page.behind_ms else 0
                    assert page.cursor >= max(floor, min(at_least, newest))
                reader.read += deltas_of(page)
                reader.cursor = page.cursor
                self.handed_out = max(self.handed_out, page.cursor)


@dataclass
class Reader:
    """What was read up to a cursor."""

    number: int
    cursor: Stamp = 0
    read: list[Delta] = field(default_factory=list)


def committed(world: World, until: Stamp) -> list[str]:
    """Return the deltas that are committed at or below a stamp by now."""
    return sorted(
        delta.delta_id
        for commit in world.buffer.commits
        if commit.stamp <= until
        for part in commit.lanes.values()
        for delta in decode_records(part.entry.records)
    )


@pytest.mark.law("B2")
@pytest.mark.law("B7")
@pytest.mark.law("B8")
@example(choices=[200, 255, 255, 255], ahead_ms=[0, 0, 0, -1], others=[], readers=3)
@given(
    choices=st.lists(st.integers(0, 255), max_size=600),
    ahead_ms=st.lists(st.integers(-400, 400), min_size=1, max_size=4),
    others=st.lists(st.sampled_from(["open", "close", "close all", "idle", "change"]), max_size=4),
    readers=st.integers(1, 3),
)
def test_no_reader_misses_a_commit_whatever_the_order_of_steps(
    choices: list[int], ahead_ms: list[int], others: list[str], readers: int
) -> None:
    world = World(Steps(choices))
    reading = [Reader(number) for number in range(readers)]
    programs: list[Callable[[], object]] = [
        *(partial(world.writer, number, ms) for number, ms in enumerate(ahead_ms)),
        *(partial(world.reader, reader) for reader in reading),
    ]
    kinds = {
        "open": world.opener,
        "close": lambda _: world.closer(1),
        "close all": lambda _: world.closer(0),
        "idle": world.idle_closer,
        "change": world.changer,
    }
    programs += [partial(kinds[kind], number) for number, kind in enumerate(others)]

    world.steps.run(programs, world.check)

    for reader in reading:
        read = sorted(delta.delta_id for delta in reader.read)
        assert read == committed(world, reader.cursor)
    everything = sorted(delta.delta_id for delta in pulled(world.buffer, GATEWAY))
    assert everything == committed(world, STAMP_MAX)
    of_rows: dict[RowKey, Stamp] = {}
    for commit in world.buffer.commits:
        for key, put in commit.rows.items():
            assert put.seen == of_rows.get(key, 0) < commit.stamp
            of_rows[key] = commit.stamp


# --- the choice of a lane


class Process:
    """One process's choice of lanes."""

    def __init__(self, buffer: MemoryBuffer, time: GivenTime, jitter: float = 0.0) -> None:
        self.cache = RowCache(buffer, time.wall_clock)
        self.choice = LaneChoice(
            buffer, self.cache, wall_clock=time.wall_clock, jitter=lambda: jitter
        )


@pytest.fixture
def time() -> GivenTime:
    return GivenTime(WALL_MS)


@pytest.fixture
def buffer() -> MemoryBuffer:
    return MemoryBuffer()


@pytest.fixture
def writer(buffer: MemoryBuffer) -> Writer:
    return Writer(buffer, GATEWAY, stamp=stamp(WALL_MS))


@pytest.fixture
def process(buffer: MemoryBuffer, time: GivenTime) -> Process:
    return Process(buffer, time)


def lanes_of(buffer: MemoryBuffer) -> list[str]:
    return buffer.heads(GATEWAY)[MAIN_LANE].lanes.open()


@pytest.mark.law("B7")
def test_quiet_gateway_is_written_to_in_its_main_lane(process: Process) -> None:
    assert process.choice.open_lane(GATEWAY, "main") == "main"
    assert process.cache.gateway(GATEWAY).main == NO_HEAD


@pytest.mark.law("B7")
def test_lane_of_another_shard_is_opened_above_the_main_head(
    buffer: MemoryBuffer, writer: Writer, process: Process, time: GivenTime
) -> None:
    writer.write("main")
    time.now_ms += 10

    assert process.choice.open_lane(GATEWAY, "hot") == "hot"

    main = buffer.heads(GATEWAY)["main"]
    assert main.commit == stamp(WALL_MS + 10)
    assert main.lanes == ONE_LANE.opening("hot", 1)
    assert process.cache.gateway(GATEWAY).main == main


@pytest.mark.law("B7")
def test_lost_race_doubles_the_lanes_and_the_process_keeps_to_one(
    buffer: MemoryBuffer, writer: Writer, process: Process, time: GivenTime
) -> None:
    writer.write("main")
    expected = [2, 4, 8]
    for count in expected:
        lane = process.choice.open_lane(GATEWAY, "main")
        writer.write(lane, at=stamp(time.wall_clock()) + 1)
        process.choice.lost(GATEWAY, lane)
        assert buffer.heads(GATEWAY)["main"].lanes.of("main") == LaneCount(count, count)
        chosen = process.choice.open_lane(GATEWAY, "main")
        assert chosen == process.choice.open_lane(GATEWAY, "main") != lane
        for other in range(count // 2, count):  # all are in use
            writer.write(f"main.{other}", at=stamp(time.wall_clock()) + 2)


@pytest.mark.law("B7")
def test_idle_lane_is_used_before_another_is_opened(
    buffer: MemoryBuffer, writer: Writer, process: Process, time: GivenTime
) -> None:
    buffer.change_lanes(GATEWAY, None, ONE_LANE.opening("main", 3), stamp(WALL_MS))
    writer.write("main", "main.2", at=stamp(WALL_MS + FREE_MS))
    writer.write("main.1", at=stamp(WALL_MS + 1))
    time.now_ms += FREE_MS
    process.choice.open_lane(GATEWAY, "main")

    writer.write("main", at=stamp(WALL_MS + FREE_MS + 1))
    process.choice.lost(GATEWAY, "main")

    assert process.choice.open_lane(GATEWAY, "main") == "main.1"
    assert len(lanes_of(buffer)) == 3


@pytest.mark.law("B7")
def test_shard_has_a_bounded_number_of_lanes(
    buffer: MemoryBuffer, writer: Writer, process: Process
) -> None:
    buffer.change_lanes(GATEWAY, None, ONE_LANE.opening("main", LANES_MAX), stamp(WALL_MS))
    names = lanes_of(buffer)
    writer.write(*names[:40], at=stamp(WALL_MS) + 1)
    writer.write(*names[40:], at=stamp(WALL_MS) + 2)

    process.choice.open_lane(GATEWAY, "main")
    process.choice.lost(GATEWAY, "main")

    assert lanes_of(buffer) == names
    assert process.choice.open_lane(GATEWAY, "main") == "main"


@pytest.mark.law("B6")
def test_no_lane_is_opened_while_the_configuration_changes(
    buffer: MemoryBuffer, writer: Writer, process: Process, time: GivenTime
) -> None:
    writer.write("main")
    buffer.change_lanes(GATEWAY, writer.head("main"), ONE_LANE.paused(WALL_MS + 500))

    with pytest.raises(Contention):
        process.choice.open_lane(GATEWAY, "hot")
    assert lanes_of(buffer) == ["main"]
    time.now_ms += 500
    assert process.choice.open_lane(GATEWAY, "hot") == "hot"


@pytest.mark.law("B7")
def test_concurrent_opening_of_lanes_fails_with_contention_and_succeeds_when_retried(
    buffer: MemoryBuffer, writer: Writer, process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer.write("main")
    other = Process(buffer, GivenTime(WALL_MS))
    read = buffer.lane_heads

    def overtaken(gateway: str, lanes: list[str]) -> dict[str, Head]:
        heads = read(gateway, lanes)
        monkeypatch.undo()
        other.choice.open_lane(GATEWAY, "hot")
        return heads

    monkeypatch.setattr(buffer, "lane_heads", overtaken)

    with pytest.raises(Contention):
        process.choice.open_lane(GATEWAY, "hot")
    assert process.choice.open_lane(GATEWAY, "hot") == "hot"
    assert buffer.heads(GATEWAY)["main"].lanes.changes == 1


@pytest.mark.law("B7")
def test_closed_lane_is_opened_again_when_chosen(
    buffer: MemoryBuffer, writer: Writer, process: Process, time: GivenTime
) -> None:
    writer.write("main")
    assert process.choice.open_lane(GATEWAY, "hot") == "hot"
    heads = buffer.heads(GATEWAY)
    assert close_lanes(buffer, GATEWAY, heads, {"hot": 0})
    assert lanes_of(buffer) == ["main"]
    time.now_ms += 5_000

    assert process.choice.open_lane(GATEWAY, "hot") == "hot"

    assert lanes_of(buffer) == ["main", "hot"]
    head = process.cache.gateway(GATEWAY).head("hot")
    assert head is not None
    assert head.is_closed
    assert head == writer.head("hot")


# --- closing


@pytest.mark.law("B7")
def test_lanes_are_idle_if_nothing_was_logged_since_a_stamp() -> None:
    lanes = ONE_LANE.opening("main", 4).opening("hot", 2).opening("cold", 2)
    old = stamp(WALL_MS)
    heads = {
        "main": Head(old, lanes=lanes, last_logged=old),
        "main.1": Head(old + 2, last_logged=old),
        "main.2": Head(last_logged=old + 1),
        "main.3": Head(stamp(WALL_MS + 90), last_logged=old),  # only raised
        "hot": Head(last_logged=old),
        "cold.1": Head(last_logged=old + 1),
    }

    assert idle_lanes(heads, old) == {"main": 3, "hot": 0}
    assert idle_lanes(heads, old - 1) == {"hot": 1}
    assert idle_lanes(heads, old + 1) == {"main": 1, "hot": 0, "cold": 0}


@pytest.mark.law("B16")
def test_idle_lanes_are_closed_relative_to_the_newest_commit_or_a_stamp(
    buffer: MemoryBuffer, writer: Writer
) -> None:
    buffer.change_lanes(GATEWAY, None, ONE_LANE.opening("main", 4), 500)
    begun = stamp(WALL_MS)
    for number in range(4):
        writer.write(lane_name("main", number), at=begun + number)
    writer.write("main.1", at=stamp(WALL_MS + IDLE_MS))

    newest = close_idle(buffer, GATEWAY)  # main.3 and main.2 logged nothing for a minute

    assert newest == stamp(WALL_MS + IDLE_MS)
    assert lanes_of(buffer) == ["main", "main.1"]
    assert close_idle(buffer, GATEWAY, newest - 1) == newest
    assert lanes_of(buffer) == ["main", "main.1"]
    assert close_idle(buffer, GATEWAY, newest) == 0
    assert lanes_of(buffer) == ["main"]
    assert close_idle(buffer, GATEWAY) == 0


@pytest.mark.law("B16")
def test_closing_lanes_is_retried_when_heads_move_and_fails_if_they_keep_moving(
    writer: Writer,
) -> None:
    class Racing(MemoryBuffer):
        races = 2

        def close_lane(self, gateway: str, lane: str, seen: Head | None, to: int) -> bool:
            self.races -= 1
            if self.races >= 0:
                main = self.heads(gateway)["main"]
                assert self.raise_head(gateway, lane, seen, to + 5, main)  # by who reads
            return super().close_lane(gateway, lane, seen, to)

    writer.buffer = buffer = Racing()
    buffer.change_lanes(GATEWAY, None, ONE_LANE.opening("main", 2), 500)
    last = writer.write("main", "main.1")

    assert close_idle(buffer, GATEWAY, last.stamp) == 0
    assert lanes_of(buffer) == ["main"]
    main = buffer.heads(GATEWAY)["main"]
    assert buffer.change_lanes(GATEWAY, main, main.lanes.opening("main", 2), main.commit + 1)
    last = writer.write("main.1")
    buffer.races = 99
    with pytest.raises(Contention):
        close_idle(buffer, GATEWAY, last.stamp)


@pytest.mark.law("B7")
def test_lane_used_while_it_is_closed_stays_open(buffer: MemoryBuffer, writer: Writer) -> None:
    lanes = ONE_LANE.opening("main", 3)
    buffer.change_lanes(GATEWAY, None, lanes, 500)
    last = writer.write("main.1", "main.2")
    heads = buffer.heads(GATEWAY)
    writer.write("main.2")

    assert not close_lanes(buffer, GATEWAY, heads, {"main": 1})
    assert lanes_of(buffer) == lanes.open()
    assert close_lanes(buffer, GATEWAY, buffer.heads(GATEWAY), {"main": 1})

    main = buffer.heads(GATEWAY)["main"]
    assert main.lanes == lanes.closing({"main": 1}, last.stamp + 10)
    assert all(buffer.all_heads(GATEWAY)[lane].is_closed for lane in ("main.1", "main.2"))


@pytest.mark.law("B7")
def test_lanes_changed_meanwhile_are_not_closed(buffer: MemoryBuffer, writer: Writer) -> None:
    buffer.change_lanes(GATEWAY, None, ONE_LANE.opening("main", 2), 500)
    heads = buffer.heads(GATEWAY)
    more = ONE_LANE.opening("main", 2).opening("main", 3)
    buffer.change_lanes(GATEWAY, heads["main"], more, 600)

    assert not close_lanes(buffer, GATEWAY, heads, {"main": 1})
    assert lanes_of(buffer) == more.open()


@pytest.mark.law("B7")
def test_lanes_that_another_process_closed_meanwhile_are_closed(
    buffer: MemoryBuffer, writer: Writer
) -> None:
    """Else several that close the same lanes might get in each other's way again and again."""
    buffer.change_lanes(GATEWAY, None, ONE_LANE.opening("main", 3), 500)
    writer.write("main.1", "main.2")
    heads = buffer.heads(GATEWAY)
    late = writer.write("main.2")
    assert buffer.close_lane(GATEWAY, "main.2", writer.head("main.2"), late.stamp + 5)

    assert close_lanes(buffer, GATEWAY, heads, {"main": 1})

    main = buffer.heads(GATEWAY)["main"]
    assert (main.lanes.open(), main.lanes.quiet) == (["main"], late.stamp)


@pytest.mark.law("B7")
def test_lanes_that_another_process_raised_meanwhile_are_not_closed(
    buffer: MemoryBuffer, writer: Writer
) -> None:
    buffer.change_lanes(GATEWAY, None, ONE_LANE.opening("main", 3), 500)
    writer.write("main.1", "main.2")
    heads = buffer.heads(GATEWAY)
    for lane in ("main.1", "main.2"):
        assert buffer.raise_head(GATEWAY, lane, heads[lane], 5_000, heads["main"])

    assert not close_lanes(buffer, GATEWAY, heads, {"main": 1})
    assert len(lanes_of(buffer)) == 3


@pytest.mark.law("B7")
def test_push_to_a_closed_lane_opens_it_again(buffer: MemoryBuffer, time: GivenTime) -> None:
    service = pusher(buffer, time_=time)
    first = insert("r1", at=at_ms(1), n=1)
    service.push(GATEWAY, push(first))
    config = Administrator(
        buffer, wall_clock=time.wall_clock, sleep_ms=time.sleep_ms, chance=SeededChance()
    )
    config.place_table(GATEWAY, "todos", "hot")
    second = update("r1", at=at_ms(2), n=2)
    assert service.push(GATEWAY, push(second)).accepted == 1
    assert close_lanes(buffer, GATEWAY, buffer.heads(GATEWAY), {"hot": 0})

    third = update("r1", at=at_ms(3), n=3)
    assert service.push(GATEWAY, push(third)).accepted == 1

    assert lanes_of(buffer) == ["main", "hot"]
    assert not buffer.heads(GATEWAY)["hot"].is_closed
    assert pulled(buffer, GATEWAY) == [first, second, third]
