"""Trimming: nothing goes before nobody can need it, and whatever dies in between."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakesync.buffer.memory_buffer import MemoryBuffer
from lakesync.core.clock import VISIBLE_MS_MAX, stamp
from lakesync.core.layout import MAIN_LANE
from lakesync.core.messages import Pull
from lakesync.errors import Contention, CursorExpired, LakeSyncError
from lakesync.maintenance.horizons import Trimmer, TrimReport, trim_horizon
from lakesync.ports import FlushState
from tests.support.builders import WALL_MS, at_ms, insert, push
from tests.support.commits import logged
from tests.support.gateways import (
    GATEWAY,
    GatewayWorld,
    GivenTime,
    puller,
)
from tests.support.lake import Killed, Life
from tests.support.some import some

if TYPE_CHECKING:
    from lakesync.core.clock import Stamp
    from lakesync.ports import Head

HOUR_MS = 3_600_000
moments = st.integers(0, WALL_MS)


@pytest.mark.law("B10")
@given(watermark=moments, now_ms=moments, keep_ms=moments, covered=moments | st.none())
def test_trim_horizon_does_not_pass_unflushed_young_or_uncovered_entries(
    watermark: int, now_ms: int, keep_ms: int, covered: int | None
) -> None:
    horizon = trim_horizon(
        stamp(watermark), now_ms, keep_ms, None if covered is None else stamp(covered)
    )

    assert horizon <= stamp(watermark)
    assert horizon <= stamp(max(now_ms - max(keep_ms, VISIBLE_MS_MAX), 0))
    assert covered is None or horizon <= stamp(covered)


@pytest.fixture(autouse=True)
def _all_in_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """No entry is so small that it stays in its lane's head."""
    monkeypatch.setattr("lakesync.log.push_parts.RECENT_BYTES_MAX", 0)


class Log(GatewayWorld):
    """A gateway of two shards with six commits, ten minutes apart."""

    def __init__(self) -> None:
        super().__init__(time=GivenTime(WALL_MS))
        self.admin.place_table(GATEWAY, "notes", "hot")
        self.stamps = []
        for number in range(6):
            self.time.now_ms += 600_000
            rows = [insert(f"r{number}", at=at_ms(number, place), table=table)
                    for place, table in enumerate(("todos", "notes"))]  # fmt: skip
            self.stamps.append(self.send(*rows).server_hlc)

    def flushed(self, until: int) -> None:
        before = self.buffer.flush_state(GATEWAY)
        assert self.buffer.save_flush_state(GATEWAY, before, FlushState(watermark=until))

    def trimmer(self, life: Life | None = None) -> Trimmer:
        buffer = life.of(self.buffer) if life else self.buffer
        return Trimmer(buffer, wall_clock=self.time.wall_clock, keep_ms=1_800_000)

    def left(self) -> list[int]:
        """Return the stamps of the entries that are left of either shard."""
        main, hot = logged(self.buffer, GATEWAY).values()
        assert [entry.stamp for entry in main] == [entry.stamp for entry in hot]
        return [entry.stamp for entry in main]


@pytest.mark.law("B10")
def test_unflushed_log_entries_are_kept_at_any_age() -> None:
    log = Log()
    log.time.now_ms += 100 * HOUR_MS

    assert log.trimmer().trim(GATEWAY) == TrimReport()
    assert log.left() == log.stamps
    log.flushed(log.stamps[1])
    assert log.trimmer().trim(GATEWAY).horizon == log.stamps[1]
    assert log.left() == log.stamps[2:]


@pytest.mark.law("B10")
def test_young_or_uncovered_log_entries_are_kept() -> None:
    log = Log()
    log.flushed(log.stamps[5])

    log.trimmer().trim(GATEWAY, covered=log.stamps[0])
    assert log.left() == log.stamps[1:]
    log.trimmer().trim(GATEWAY)
    assert log.left() == log.stamps[3:]


@pytest.mark.law("B10")
def test_cursor_below_the_trim_horizon_is_void_and_later_cursors_miss_nothing() -> None:
    log = Log()
    log.flushed(log.stamps[5])
    log.trimmer().trim(GATEWAY)

    for since in (0, log.stamps[1]):
        with pytest.raises(CursorExpired):
            log.page(since)
    assert len(log.pulled(since=log.stamps[2])) == 6


@pytest.mark.law("B10")
def test_trim_killed_at_any_call_is_finished_by_the_next() -> None:
    for calls in range(1, 40):
        log = Log()
        log.flushed(log.stamps[5])
        try:
            log.trimmer(Life(calls)).trim(GATEWAY)
        except Killed:
            horizon = log.buffer.heads(GATEWAY)[MAIN_LANE].trimmed
            for entries in some(logged(log.buffer, GATEWAY).values()):
                gone = set(log.stamps) - {entry.stamp for entry in entries}
                assert all(at <= horizon for at in gone)
            log.trimmer().trim(GATEWAY)
            assert log.left() == log.stamps[3:]
        else:
            assert calls > 1
            assert log.left() == log.stamps[3:]
            return
    pytest.fail("a trim takes more calls than this test allows")


@pytest.mark.law("B10")
def test_log_entries_in_a_head_or_beside_younger_ones_in_an_item_are_not_trimmed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("lakesync.log.push_parts.RECENT_BYTES_MAX", 300)
    log = Log()
    chunks = [[e.stamp for e in chunk] for chunk in log.buffer._gateways[GATEWAY].logs[MAIN_LANE]]
    assert len(chunks[0]) > 1
    log.flushed(log.stamps[5])
    for covered in log.stamps[:-1]:
        log.time.now_ms += HOUR_MS
        log.trimmer().trim(GATEWAY, covered=covered)
        gone = [chunk for chunk in chunks if chunk[-1] <= covered]
        assert log.left() == log.stamps[sum(map(len, gone)) :]
        rest = log.stamps[log.stamps.index(covered) + 1 :]
        assert len(log.pulled(since=covered)) == 2 * len(rest)


@pytest.mark.law("B10")
def test_log_entries_in_a_head_are_trimmed_once_all_are_below_the_horizon(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("lakesync.log.push_parts.RECENT_BYTES_MAX", 100_000)
    log = Log()
    log.flushed(log.stamps[5])
    log.time.now_ms += HOUR_MS

    assert log.trimmer().trim(GATEWAY, covered=log.stamps[4]).finished
    assert log.left() == log.stamps
    assert log.trimmer().trim(GATEWAY).finished
    assert log.left() == []
    seen = log.buffer.all_heads(GATEWAY)
    log.trimmer().trim(GATEWAY)
    assert log.buffer.all_heads(GATEWAY) == seen  # and no more is written for it

    log.pusher().push(GATEWAY, push(insert("r9", at=at_ms(9))))
    assert [delta.row_id for delta in log.pulled(since=log.stamps[5])] == ["r9"]


def test_trim_stops_when_its_time_is_up_and_continues_later() -> None:
    log = Log()
    log.flushed(log.stamps[5])

    report = log.trimmer().trim(GATEWAY, has_time=lambda: False)

    assert (report.finished, log.left()) == (False, log.stamps)
    assert log.trimmer().trim(GATEWAY).finished
    assert log.left() == log.stamps[3:]


def test_trim_of_an_empty_gateway_does_nothing() -> None:
    trimmer = Trimmer(MemoryBuffer(), wall_clock=lambda: WALL_MS, keep_ms=0)

    assert trimmer.trim("nobody") == TrimReport()


def test_trim_fails_and_removes_nothing_when_the_store_is_busy() -> None:
    class Busy(MemoryBuffer):
        def raise_horizon(self, *_: object) -> None:
            raise Contention("busy")

    log = Log()
    log.flushed(log.stamps[5])
    log.buffer.__class__ = Busy

    with pytest.raises(LakeSyncError):
        log.trimmer().trim(GATEWAY)
    assert log.left() == log.stamps


@pytest.mark.law("B10")
def test_pull_with_heads_from_before_a_trim_is_refused() -> None:
    """The heads were read before the horizon moved, and the entries after."""
    log = Log()
    log.flushed(log.stamps[5])

    class Trimmed(MemoryBuffer):
        def heads(
            self, gateway: str, since: Stamp = 0, *, at_once: bool = False
        ) -> dict[str, Head]:
            heads = super().heads(gateway, since, at_once=at_once)
            log.trimmer().trim(GATEWAY)
            return heads

    reader = Trimmed()
    reader._gateways = log.buffer._gateways
    with pytest.raises(Contention):
        puller(reader, time_=log.time).pull(GATEWAY, Pull("r", log.stamps[0]))
