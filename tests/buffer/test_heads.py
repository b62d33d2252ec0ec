"""lakesync.buffer.dynamo: open lanes are listed beside their heads, and no commit is missed."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakesync.buffer.caller import DynamoCaller
from lakesync.buffer.dynamo import DynamoBuffer
from lakesync.core.clock import STAMP_MAX, stamp_ms
from lakesync.core.layout import MAIN_LANE, lane_name
from lakesync.log.lanes import close_lanes
from lakesync.log.read import ReadBarrier, read_all
from tests.support.commits import Writer
from tests.support.modelled import LockedModel

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lakesync.core.clock import Stamp
    from lakesync.log.read import FinalLog
    from lakesync.ports import Head

T = TypeVar("T")
GATEWAY = "g"
LANES = 18
"""Of three groups, so that some are read beside the list and others after it."""


class Side:
    """Calls side by side of which the first, the list of lanes, comes last; it counts them."""

    def __init__(self) -> None:
        self.meanwhile: Callable[[], object] = lambda: None
        self.widths: list[int] = []

    def __call__(self, calls: Sequence[Callable[[], T]]) -> list[T]:
        """Make them."""
        self.widths.append(len(calls))
        later = [call() for call in calls[1:]]
        act, self.meanwhile = self.meanwhile, lambda: None
        act()
        return [calls[0](), *later]


class Lanes:
    """A gateway whose lanes are opened, written to, raised and closed, each as it should be."""

    def __init__(self) -> None:
        self._model = LockedModel()
        self.buffer = self.process(Side())
        self.writer = Writer(self.buffer, GATEWAY)
        self.writer.write(MAIN_LANE)
        self._opened: dict[str, Stamp] = {}
        """The stamp above which each lane was opened."""

    def process(self, side: Side) -> DynamoBuffer:
        """Return the buffer as another process has it."""
        caller = DynamoCaller(
            "us-east-1", send=self._model, credentials=lambda: ("model", "model", None)
        )
        return DynamoBuffer("lakesync-buffer", caller, sleep_s=lambda _: None, in_parallel=side)

    def main(self) -> Head:
        """Return the main lane's head as it is now."""
        return self.buffer.heads(GATEWAY, STAMP_MAX)[MAIN_LANE]

    def write(self, number: int, ahead: int) -> None:
        """Commit to one of the open lanes."""
        lanes = self.main().lanes.open()
        lane = lanes[number % len(lanes)]
        head = self.writer.head(lane)
        above = max(head.commit if head else 0, self._opened.get(lane, 0))
        self.writer.write(lane, at=above + 1 + ahead, in_head=ahead % 2 == 0)

    def open(self, count: int) -> None:
        """Open the first so many lanes."""
        main = self.main()
        names = [lane_name("main", n) for n in range(count)]
        closed = [name for name in names if not main.lanes.is_open(name)]
        if closed:
            to = main.commit + 1
            assert self.buffer.change_lanes(GATEWAY, main, main.lanes.opening("main", count), to)
            self._opened |= dict.fromkeys(closed, to)

    def close(self, count: int) -> None:
        """Close all but the first so many lanes."""
        heads = self.buffer.heads(GATEWAY, STAMP_MAX)
        if count < len(heads[MAIN_LANE].lanes.open()):
            assert close_lanes(self.buffer, GATEWAY, heads, {"main": count})

    def let_pass(self, happens: Sequence[tuple[str, int, int]]) -> None:
        """Let some things happen, one after the other."""
        for what, number, ahead in happens:
            if what == "write":
                self.write(number, ahead)
            elif what == "open":
                self.open(number)
            elif what == "close":
                self.close(number)
            else:
                ReadBarrier(self.process(Side())).raise_heads(GATEWAY)

    def entries(self) -> set[tuple[str, Stamp]]:
        """Return all that was committed, by lane and stamp."""
        log = ReadBarrier(self.process(Side())).raise_heads(GATEWAY)
        return {
            (lane, entry.stamp)
            for lane in log.heads
            for entry in read_all(self.buffer, only(log, lane), (0, log.top), 1_000)
        }


def only(log: FinalLog, lane: str) -> FinalLog:
    """Return the log of one lane."""
    return replace(log, heads={lane: log.heads[lane]})


_happens = st.lists(
    st.tuples(
        st.sampled_from(["write", "write", "write", "open", "close", "raise"]),
        st.integers(1, LANES),
        st.integers(0, 40),
    ),
    max_size=8,
)


@pytest.mark.law("B7")
@pytest.mark.law("B8")
@given(
    first=_happens,
    then=_happens,
    meanwhile=_happens,
    after=_happens,
    at_least=st.sampled_from([0, STAMP_MAX]),
)
def test_no_commit_is_missed_whatever_happens_between_reading_heads_and_the_list_of_lanes(
    first: list[tuple[str, int, int]],
    then: list[tuple[str, int, int]],
    meanwhile: list[tuple[str, int, int]],
    after: list[tuple[str, int, int]],
    at_least: Stamp,
) -> None:
    lanes = Lanes()
    lanes.let_pass(first)
    side = Side()
    reader = lanes.process(side)
    barrier = ReadBarrier(reader)
    since = barrier.raise_heads(GATEWAY).top
    before = {entry for entry in lanes.entries() if entry[1] <= since}
    lanes.let_pass(then)
    newest = max(stamp for _, stamp in lanes.entries())

    side.meanwhile = lambda: lanes.let_pass(meanwhile)
    log = barrier.raise_heads(
        GATEWAY, since, at_least=at_least, wall_clock=lambda: stamp_ms(newest)
    )
    page = {
        (lane, entry.stamp)
        for lane in log.heads
        for entry in read_all(reader, only(log, lane), (since, log.top), 1_000)
    }
    lanes.let_pass(after)

    assert log.top >= (newest if at_least else since)
    assert before | page == {entry for entry in lanes.entries() if entry[1] <= log.top}


@pytest.mark.law("B7")
def test_process_that_knows_the_lanes_reads_heads_in_one_round_trip() -> None:
    lanes = Lanes()
    lanes.open(LANES)
    side = Side()
    reader = lanes.process(side)

    reader.heads(GATEWAY, STAMP_MAX, at_once=True)
    assert side.widths == [3]  # the list before
    side.widths.clear()
    reader.heads(GATEWAY, STAMP_MAX, at_once=True)
    assert side.widths == [4]
    side.widths.clear()
    reader.heads(GATEWAY, STAMP_MAX)
    assert side.widths == [3]


@pytest.mark.law("B7")
def test_lanes_opened_since_are_read_after_the_list() -> None:
    lanes = Lanes()
    lanes.open(2)
    side = Side()
    reader = lanes.process(side)
    reader.heads(GATEWAY, STAMP_MAX, at_once=True)

    lanes.open(LANES)
    for number in range(LANES):
        lanes.write(number, 0)

    heads = reader.heads(GATEWAY, STAMP_MAX, at_once=True)
    assert heads == lanes.buffer.heads(GATEWAY, STAMP_MAX)
    assert next(iter(heads)) == MAIN_LANE
    assert len(heads) == LANES
