"""lakesync.log.read: what is final, what is raised for it, and how races are waited for."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from lakesync.buffer.memory_buffer import MemoryBuffer
from lakesync.core.clock import STAMP_MAX, stamp
from lakesync.core.config import GatewayConfig
from lakesync.core.layout import ONE_LANE
from lakesync.errors import Contention
from lakesync.log.read import CLOCKS_APART_MS, RAISED_EVERY_MS, ReadBarrier, read_all
from lakesync.maintenance import horizons
from lakesync.ports import NO_HEAD, Head, HeadMoved
from tests.support.builders import WALL_MS, at_ms, insert, push
from tests.support.commits import Writer
from tests.support.gateways import GivenTime, pusher
from tests.support.lagging import LaggingBuffer

if TYPE_CHECKING:
    from collections.abc import Callable

    from lakesync.core.clock import Stamp
    from lakesync.log.read import FinalLog

GATEWAY = "g"
TWO = ONE_LANE.opening("main", 2)
THREE = ONE_LANE.opening("main", 3)
NOW = stamp(WALL_MS)


class Patient(LaggingBuffer):
    """Counts how often it is waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.pauses: list[int] = []
        self.version = 0
        time = GivenTime(WALL_MS)
        pusher(self, time_=time).push(GATEWAY, push(insert(at=at_ms(1), n=1)))
        self.pauses.clear()

    def pause(self, tries: int) -> None:
        """Note how often."""
        self.pauses.append(tries)

    def heads(self, gateway: str, since: Stamp = 0, *, at_once: bool = False) -> dict[str, Head]:
        """Return the heads, maybe as of another configuration."""
        heads = super().heads(gateway, since, at_once=at_once)
        if not self.version:
            return heads
        return {lane: replace(head, config_version=99) for lane, head in heads.items()}


@pytest.mark.law("B8")
def test_page_waits_for_a_commit_that_is_becoming_visible() -> None:
    buffer = Patient()
    large = insert("r2", at=at_ms(2), n="x" * 2_000)  # it moves into the log
    pusher(buffer, time_=GivenTime(WALL_MS)).push(GATEWAY, push(large))
    buffer.pauses.clear()
    log = ReadBarrier(buffer).raise_heads(GATEWAY)
    buffer.lag = 4
    assert len(list(read_all(buffer, log, (0, log.top), 10))) == 2
    assert buffer.pauses == [1, 2, 3, 4]

    buffer.lag = 99
    with pytest.raises(Contention):
        list(read_all(buffer, log, (0, log.top), 10))
    assert buffer.pauses[4:] == list(range(1, len(buffer.pauses) - 3))


def test_reader_waits_for_a_constantly_changing_configuration_and_then_fails() -> None:
    buffer = Patient()
    buffer.version = 99

    with pytest.raises(Contention):
        ReadBarrier(buffer).raise_heads(GATEWAY)
    assert buffer.pauses == list(range(1, 20))


def test_reader_waits_for_constantly_moving_heads_and_then_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    buffer = Patient()
    main = buffer.heads(GATEWAY)["main"]
    assert buffer.change_lanes(GATEWAY, main, TWO)
    monkeypatch.setattr(buffer, "raise_head", lambda *_: False)

    with pytest.raises(Contention):
        ReadBarrier(buffer).raise_heads(GATEWAY)
    assert buffer.pauses == list(range(1, 20))


def test_beginning_an_epoch_is_retried_with_pauses_and_then_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    buffer = Patient()

    def moved(*_: object) -> None:
        raise HeadMoved({})

    monkeypatch.setattr(buffer, "begin_epoch", moved)
    with pytest.raises(Contention):
        horizons.begin_epoch(buffer, GATEWAY, wall_clock=lambda: WALL_MS)
    assert buffer.pauses == list(range(1, 10))


# --- what is final


class Raised(MemoryBuffer):
    """Notes which heads are raised, and lets something happen just before."""

    def __init__(self) -> None:
        super().__init__()
        self.raises: list[str] = []
        self.before: list[Callable[[], object]] = []

    def raise_head(self, gateway: str, lane: str, seen: Head | None, to: Stamp, main: Head) -> bool:
        """Raise a head."""
        while self.before:
            self.before.pop()()
        self.raises.append(lane)
        return super().raise_head(gateway, lane, seen, to, main)

    def log(self, at_least: Stamp = STAMP_MAX, now_ms: int = WALL_MS) -> FinalLog:
        """Return the log as a process reads it that knows nothing yet."""
        self.raises.clear()
        barrier = ReadBarrier(self)
        return barrier.raise_heads(GATEWAY, at_least=at_least, wall_clock=lambda: now_ms)


def stamps(buffer: Raised, log: FinalLog) -> list[Stamp]:
    """Return the stamps of what a page that ends with the log shows."""
    return sorted(entry.stamp for entry in read_all(buffer, log, (0, log.top), 100))


@pytest.fixture
def buffer() -> Raised:
    return Raised()


@pytest.fixture
def writer(buffer: Raised) -> Writer:
    return Writer(buffer, GATEWAY)


@pytest.mark.law("B7")
def test_all_heads_below_the_newest_are_raised_to_it_and_missing_ones_created(
    buffer: Raised, writer: Writer
) -> None:
    writer.write("main", at=NOW)
    buffer.change_lanes(GATEWAY, writer.head("main"), THREE)
    writer.write("main.1", at=NOW + 5)
    main = replace(writer.head("main") or NO_HEAD, commit=NOW + 5)

    log = buffer.log()

    assert sorted(buffer.raises) == ["main", "main.2"]
    assert (log.top, log.newest, log.behind_ms) == (NOW + 5, NOW + 5, 0)
    assert writer.head("main") == main
    assert writer.head("main.2") == Head(commit=NOW + 5)
    assert stamps(buffer, log) == [NOW, NOW + 5]
    assert buffer.log() == replace(log, heads=buffer.heads(GATEWAY))
    assert buffer.raises == []


@pytest.mark.law("B7")
def test_lanes_opened_while_the_main_head_is_raised_are_read(
    buffer: Raised, writer: Writer
) -> None:
    """A writer whose clock is behind opens a lane below the newest commit, and commits there."""
    writer.write("main", at=NOW)
    buffer.change_lanes(GATEWAY, writer.head("main"), TWO)
    writer.write("main.1", at=NOW + 1_000)

    def opened_and_used() -> None:
        assert buffer.change_lanes(GATEWAY, writer.head("main"), THREE, NOW + 10)
        writer.write("main.2", at=NOW + 20)

    buffer.before.append(opened_and_used)

    log = buffer.log()

    assert stamps(buffer, log) == [NOW, NOW + 20, NOW + 1_000]


@pytest.mark.law("B6")
def test_log_is_not_read_with_a_configuration_older_than_its_commits(
    buffer: Raised, writer: Writer
) -> None:
    writer.write("main", at=NOW)
    buffer.change_lanes(GATEWAY, writer.head("main"), TWO)
    writer.write("main.1", at=NOW + 1)
    seen = writer.head("main.1")
    MemoryBuffer.raise_head(buffer, GATEWAY, "main.1", seen, NOW + 1_000, NO_HEAD)

    def declared_and_used() -> None:
        head = writer.head("main.1")
        assert buffer.close_lane(GATEWAY, "main.1", head, NOW + 1_001)
        lanes = TWO.closing({"main": 1}, NOW + 1)
        buffer.save_config(GATEWAY, GatewayConfig(1), writer.head("main"), lanes, NOW + 2)
        writer.config_version = 1
        writer.write("main", at=NOW + 3)

    buffer.before.append(declared_and_used)

    log = buffer.log()

    assert log.config.version == 1
    assert stamps(buffer, log) == [NOW, NOW + 1, NOW + 3]


@pytest.mark.law("B7")
def test_closed_lane_is_raised_only_while_it_is_listed_and_stays_readable(
    buffer: Raised, writer: Writer
) -> None:
    writer.write("main", at=NOW)
    buffer.change_lanes(GATEWAY, writer.head("main"), TWO)
    writer.write("main.1", at=NOW + 1)
    writer.write("main", at=NOW + 9)
    buffer.close_lane(GATEWAY, "main.1", writer.head("main.1"), NOW + 2)

    assert stamps(buffer, buffer.log()) == [NOW, NOW + 1, NOW + 9]
    assert buffer.raises == ["main.1"]

    main = buffer.heads(GATEWAY)["main"]
    assert buffer.change_lanes(GATEWAY, main, TWO.closing({"main": 1}, NOW + 1))
    log = buffer.log()
    assert (stamps(buffer, log), log.top) == ([NOW, NOW + 1, NOW + 9], NOW + 9)
    assert buffer.raises == []
    assert ReadBarrier(buffer).raise_heads(GATEWAY, NOW + 1).heads.keys() == {"main"}


@pytest.mark.law("B7")
@pytest.mark.parametrize("at_least", [0, NOW + 5, STAMP_MAX])
def test_newest_commit_is_visible_although_its_lane_was_closed(
    buffer: Raised, writer: Writer, at_least: Stamp
) -> None:
    writer.write("main", at=NOW)
    buffer.change_lanes(GATEWAY, writer.head("main"), TWO)
    writer.write("main.1", at=NOW + 5)
    assert buffer.close_lane(GATEWAY, "main.1", writer.head("main.1"), NOW + 6)
    closed = TWO.closing({"main": 1}, NOW + 5)
    assert buffer.change_lanes(GATEWAY, writer.head("main"), closed)

    log = buffer.log(at_least, WALL_MS + RAISED_EVERY_MS)

    assert (stamps(buffer, log), log.behind_ms) == ([NOW, NOW + 5], 0)
    assert buffer.raises == ["main"]
    assert log.top == buffer.log().top == NOW + 5
    assert buffer.raises == []


# --- pages that need not be fresh


@pytest.fixture
def lagging(buffer: Raised, writer: Writer) -> Raised:
    """Return a buffer whose main lane is in use, a moment ahead of another that is in use."""
    for ms in (0, 100):
        writer.write("main.1", at=stamp(WALL_MS + ms), in_head=True)
    for ms in (150, 200):
        writer.write("main", at=stamp(WALL_MS + ms), in_head=True)
    buffer.change_lanes(GATEWAY, writer.head("main"), TWO)
    return buffer


@pytest.mark.law("B7")
def test_lane_in_use_is_not_raised_without_at_least(lagging: Raised) -> None:
    log = lagging.log(0, WALL_MS + 150)

    assert lagging.raises == []
    assert log.top == stamp(WALL_MS + 100)
    assert log.newest == stamp(WALL_MS + 200)
    assert log.behind_ms == 101
    assert stamps(lagging, log) == [stamp(WALL_MS), stamp(WALL_MS + 100)]


@pytest.mark.law("B7")
def test_lane_without_recent_writes_is_raised(lagging: Raised) -> None:
    log = lagging.log(0, WALL_MS + RAISED_EVERY_MS)

    assert lagging.raises == ["main.1"]
    assert (log.top, log.behind_ms) == (stamp(WALL_MS + 200), 0)


@pytest.mark.law("B7")
@pytest.mark.parametrize("at_least", [stamp(WALL_MS + 100) + 1, STAMP_MAX])
def test_read_with_at_least_raises_lanes_at_once(lagging: Raised, at_least: Stamp) -> None:
    log = lagging.log(at_least, WALL_MS + 150)

    assert lagging.raises == ["main.1"]
    assert (log.top, log.behind_ms) == (stamp(WALL_MS + 200), 0)


@pytest.mark.law("B7")
def test_head_is_not_raised_again_within_the_interval(buffer: Raised, writer: Writer) -> None:
    writer.write("main", at=NOW)
    buffer.change_lanes(GATEWAY, writer.head("main"), TWO)
    writer.write("main.1", at=NOW + 1)
    assert buffer.log(0).top == NOW + 1
    later_ms = WALL_MS + RAISED_EVERY_MS - 50
    writer.write("main.1", at=stamp(later_ms))

    assert buffer.log(0, later_ms).top == NOW + 1
    assert buffer.raises == []
    assert buffer.log(0, later_ms + 50).top == stamp(later_ms)
    assert buffer.raises == ["main"]


@pytest.mark.law("B7")
def test_raising_is_retried_after_losing_to_another_reader(lagging: Raised, writer: Writer) -> None:
    """He raised the head to what was the newest commit for him; nobody commits there."""
    seen = writer.head("main.1")

    def raised_by_another() -> None:
        to = stamp(WALL_MS + 120)
        assert MemoryBuffer.raise_head(lagging, GATEWAY, "main.1", seen, to, NO_HEAD)

    lagging.before.append(raised_by_another)

    log = lagging.log(0, WALL_MS + RAISED_EVERY_MS)

    assert lagging.raises == ["main.1", "main.1"]
    assert (log.top, log.behind_ms) == (stamp(WALL_MS + 200), 0)


@pytest.mark.law("B7")
def test_page_ends_at_the_commit_of_a_writer_that_won_the_race(
    lagging: Raised, writer: Writer
) -> None:
    """He may commit again: a page that nobody wants fresh costs him no other race."""
    committed = stamp(WALL_MS + 120)
    lagging.before.append(lambda: writer.write("main.1", at=committed, in_head=True))

    log = lagging.log(0, WALL_MS + RAISED_EVERY_MS)

    assert lagging.raises == ["main.1"]
    assert (log.top, log.newest) == (committed, stamp(WALL_MS + 200))


@pytest.mark.law("B17")
@pytest.mark.parametrize("ahead_ms", [CLOCKS_APART_MS - 1, CLOCKS_APART_MS])
def test_stamps_far_ahead_of_the_clock_do_not_mark_a_lane_as_in_use(
    lagging: Raised, ahead_ms: int
) -> None:
    log = lagging.log(0, WALL_MS + 200 - ahead_ms)

    assert lagging.raises == (["main.1"] if ahead_ms == CLOCKS_APART_MS else [])
    assert (log.behind_ms == 0) is (ahead_ms == CLOCKS_APART_MS)


def test_gateway_without_commits_has_no_log(buffer: Raised) -> None:
    log = buffer.log()

    assert (log.heads, log.top, log.newest, log.epoch, log.trimmed) == ({}, 0, 0, "", 0)
    assert log.behind_ms == 0
