"""Which heads a reader raises that does not insist on a fresh page."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lakesync.core.clock import stamp
from lakesync.log.read import BUSY_LANES, RAISED_EVERY_MS, heads_to_raise, may_end_at, may_raise
from lakesync.ports import Head
from tests.support.builders import WALL_MS

NOW = stamp(WALL_MS)
MOVED_INTO_LOG = Head(commit=NOW, last_logged=NOW)


@pytest.mark.law("B7")
def test_lane_whose_entries_just_moved_into_the_log_is_not_raised_while_many_write() -> None:
    assert not may_raise(MOVED_INTO_LOG, WALL_MS + 1, BUSY_LANES)
    assert may_raise(MOVED_INTO_LOG, WALL_MS + 1, BUSY_LANES - 1)
    assert may_raise(MOVED_INTO_LOG, WALL_MS + RAISED_EVERY_MS, BUSY_LANES)


@pytest.mark.law("B7")
def test_lane_of_many_shards_is_not_raised_while_its_writer_may_be_active() -> None:
    heads: dict[str, Head | None] = {"main": replace(MOVED_INTO_LOG, commit=NOW + 1)}
    heads["side"] = MOVED_INTO_LOG
    soon_ms, later_ms = WALL_MS + 1, WALL_MS + RAISED_EVERY_MS

    assert heads_to_raise(heads, NOW + 1, 0, soon_ms, {}, shards=2) == {"side": MOVED_INTO_LOG}
    assert heads_to_raise(heads, NOW + 1, 0, soon_ms, {}, shards=BUSY_LANES) == {}
    assert list(heads_to_raise(heads, NOW + 1, 0, later_ms, {}, shards=BUSY_LANES)) == ["side"]
    assert list(heads_to_raise(heads, NOW + 1, 0, soon_ms, {"side": NOW}, shards=40)) == ["side"]


@pytest.mark.law("B7")
def test_head_raised_just_before_is_not_raised_again() -> None:
    raised = replace(MOVED_INTO_LOG, commit=NOW + 1)

    assert not may_raise(raised, WALL_MS + RAISED_EVERY_MS - 1, 1)
    assert may_raise(raised, WALL_MS + RAISED_EVERY_MS, 1)


@pytest.mark.law("B7")
def test_page_may_end_at_an_open_head_that_is_not_below_earlier_pages() -> None:
    closed = replace(MOVED_INTO_LOG, is_closed=True)

    assert may_end_at(MOVED_INTO_LOG, NOW)
    assert not may_end_at(MOVED_INTO_LOG, NOW + 1)
    assert not may_end_at(closed, NOW)
    assert not may_end_at(None, 0)
