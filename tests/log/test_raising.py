"""Which heads a reader raises that does not insist on a fresh page."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakesync.core.clock import stamp, stamp_ms
from lakesync.log.ages import Ages
from lakesync.log.raising import BUSY_LANES, RAISED_EVERY_MS, may_end_at, may_raise
from lakesync.log.restraint import Restraint
from lakesync.ports import Head, LogEntry
from tests.support.builders import WALL_MS
from tests.support.gateways import GivenTime

NOW = stamp(WALL_MS)
MOVED_INTO_LOG = Head(commit=NOW, last_logged=NOW)


@pytest.mark.law("B7")
def test_a_lane_whose_entries_just_moved_into_the_log_is_left_to_its_writer_while_many_write() -> (
    None
):
    assert not may_raise(MOVED_INTO_LOG, WALL_MS + 1, BUSY_LANES)
    assert may_raise(MOVED_INTO_LOG, WALL_MS + 1, BUSY_LANES - 1)
    assert may_raise(MOVED_INTO_LOG, WALL_MS + RAISED_EVERY_MS, BUSY_LANES)


@pytest.mark.law("B7")
def test_a_head_that_was_raised_a_moment_ago_is_not_raised_again() -> None:
    raised = replace(MOVED_INTO_LOG, commit=NOW + 1)

    assert not may_raise(raised, WALL_MS + RAISED_EVERY_MS - 1, 1)
    assert may_raise(raised, WALL_MS + RAISED_EVERY_MS, 1)


@pytest.mark.law("B7")
def test_a_page_ends_at_a_head_only_if_none_before_it_ended_above() -> None:
    closed = replace(MOVED_INTO_LOG, is_closed=True)

    assert may_end_at(MOVED_INTO_LOG, NOW)
    assert not may_end_at(MOVED_INTO_LOG, NOW + 1)
    assert not may_end_at(closed, NOW)
    assert not may_end_at(None, 0)


@pytest.mark.law("B7")
@given(
    wall_ms=st.integers(WALL_MS - 6_000, WALL_MS + 6_000),
    reads=st.lists(st.tuples(st.integers(0, 400), st.booleans()), min_size=2, max_size=12),
)
def test_a_head_that_was_seen_to_stand_for_a_while_is_raised_whatever_clocks_say(
    wall_ms: int, reads: list[tuple[int, bool]]
) -> None:
    """The lanes are in use by their stamps: each has two commits within the last moments."""
    steady = GivenTime(0)
    restraint = Restraint(Ages(lambda: wall_ms + steady.wall_clock(), steady.wall_clock))
    commit, stood_since = NOW, None
    for passed_ms, is_used in reads:
        steady.now_ms += passed_ms
        if is_used:
            commit, stood_since = commit + 2, None
        stood_since = steady.wall_clock() if stood_since is None else stood_since
        lanes = {f"main.{n}": busy(commit + n) for n in range(BUSY_LANES)}

        raised = restraint.heads_to_raise("g", lanes, commit + BUSY_LANES - 1, 0)

        if steady.wall_clock() - stood_since >= RAISED_EVERY_MS:
            assert raised.keys() == set(list(lanes)[:-1])
        elif wall_ms + steady.wall_clock() < stamp_ms(commit) + RAISED_EVERY_MS:
            assert not raised


def busy(commit: int) -> Head:
    """Give the head of a lane that was written to twice within a moment."""
    entry = LogEntry(commit, b"", 1, frozenset(), 1, commit - 1)
    return Head(commit, last_logged=commit, recent=(entry,))
