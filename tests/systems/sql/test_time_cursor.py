"""Where polls by times begin, and how changes are dated, whatever the source's clock does."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lakesync.connectors.pages import microseconds
from lakesync.systems.sql.by_time import Redating, begun_at, reach_of

if TYPE_CHECKING:
    from lakesync.systems.sql.by_time import Reach

OVERLAP_S = 60
INTERVAL_S_MAX, PASSES_S_MAX = 50, 30
PAGE = 2


class Table:
    """A table in memory with the clock of its source, ours, and what the gateway has of it."""

    def __init__(self, *, is_zoneless: bool, hours: int, ahead_s: int) -> None:
        self.is_zoneless, self.hours = is_zoneless, hours
        self.ours = datetime(2026, 3, 2, 10, tzinfo=UTC)
        self.clock = self.ours + timedelta(seconds=ahead_s)
        self.rows: dict[int, tuple[datetime, int]] = {}
        self.stamped: dict[int, tuple[int, int]] = {}
        self.deltas: set[tuple[int, int, int]] = set()
        self.cursor = ""
        self.value = 0

    def passes(self, seconds: float) -> None:
        """Let time pass."""
        self.ours += timedelta(seconds=seconds)
        self.clock += timedelta(seconds=seconds)

    def change(self, row: int) -> None:
        """Change a row, or insert it."""
        self.value += 1
        self.passes(1)
        moment = self.clock
        if self.is_zoneless:
            moment = moment.replace(tzinfo=None) + timedelta(hours=self.hours)
        self.rows[row] = (moment, self.value)

    def poll(self, pages: int = 1_000_000) -> None:
        """Read a whole poll, or some pages, one after another, and merge what they bring."""
        self.passes(1)
        poll_ms = microseconds(self.ours) // 1000
        for _ in range(pages):
            reach = reach_of(
                self.cursor, self.clock, poll_ms, OVERLAP_S, 0, is_zoneless=self.is_zoneless
            )
            page = self._page(reach)
            for moment, row, value in page:
                self._merge(reach.redating, moment, row, value, poll_ms)
            if len(page) < PAGE:
                self.cursor = reach.ended(page[-1][0] if page else None, poll_ms, OVERLAP_S, 0)
                return
            self.cursor = reach.going_on(page[-1][0], [page[-1][1]])

    def begin_at(self, before_s: int) -> set[int]:
        """Have what changed since a time read again; returns the rows that did."""
        at_us = microseconds(self.clock) - before_s * 1_000_000
        self.cursor = begun_at(self.cursor, at_us, OVERLAP_S)
        behind = timedelta(hours=self.hours if self.is_zoneless else 0)
        return {
            row for row, (moment, _) in self.rows.items() if microseconds(moment - behind) >= at_us
        }

    def _page(self, reach: Reach) -> list[tuple[datetime, int, int]]:
        rows = sorted((moment, row, value) for row, (moment, value) in self.rows.items())
        return [
            one
            for one in rows
            if microseconds(one[0]) <= microseconds(reach.until)
            and (reach.since is None or self._is_behind(one, reach.since, reach.key))
        ][:PAGE]

    @staticmethod
    def _is_behind(one: tuple[datetime, int, int], since: datetime, key: list[int]) -> bool:
        at = microseconds(one[0])
        return (at, *one[1 : 1 + len(key)]) > (microseconds(since), *key)

    def _merge(
        self, redating: Redating | None, moment: datetime, row: int, value: int, poll_ms: int
    ) -> None:
        time_us = microseconds(moment)
        stamp = min(redating.changed_us(time_us) if redating else time_us, poll_ms * 1000)
        self.deltas.add((row, value, stamp))
        self.stamped[row] = max(self.stamped.get(row, (0, 0)), (stamp, value))

    def is_whole(self) -> bool:
        """Return whether the gateway has every row as it is."""
        gateway = {row: value for row, (_, value) in self.stamped.items()}
        return gateway == {row: value for row, (_, value) in self.rows.items()}


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("change"), st.integers(1, 4)),
        st.tuples(st.just("passes"), st.integers(1, PASSES_S_MAX)),
        st.tuples(st.just("poll"), st.just(0)),
        st.tuples(st.just("back"), st.integers(2 * INTERVAL_S_MAX, 7_200)),
    ),
    max_size=40,
)


def run(table: Table, steps: list[tuple[str, int]]) -> int:
    """Do the steps; no two polls are further apart than `INTERVAL_S_MAX`.

    Gives how often the clock stepped back.
    """
    backs = since_poll_s = 0
    for what, number in [*steps, ("poll", 0)]:
        if what == "change":
            table.change(number)
            since_poll_s += 1
        elif what == "passes":
            table.passes(number)
            since_poll_s += number
        elif what == "back":
            table.poll()
            table.clock -= timedelta(seconds=number)
            backs, since_poll_s = backs + 1, 0
        if what == "poll" or since_poll_s > INTERVAL_S_MAX - PASSES_S_MAX:
            table.poll()
            since_poll_s = 0
            assert table.is_whole()
    return backs


@pytest.mark.law("N5")
@given(steps=STEPS, is_zoneless=st.booleans(), ahead_s=st.sampled_from([0, 3_600]))
@example(
    steps=[("change", 1), ("back", 3600), ("change", 1), ("change", 2)],
    is_zoneless=False,
    ahead_s=0,
)
@example(
    steps=[("change", 1), ("back", 700), ("poll", 0), ("poll", 0), ("change", 1)],
    is_zoneless=True, ahead_s=3_600,
)  # fmt: skip
def test_every_row_has_its_last_value_although_the_clock_steps_back(
    *, steps: list[tuple[str, int]], is_zoneless: bool, ahead_s: int
) -> None:
    table = Table(is_zoneless=is_zoneless, hours=0, ahead_s=ahead_s)
    backs = run(table, steps)

    if not ahead_s:
        times = Counter((row, value) for row, value, _ in table.deltas)
        assert all(number <= 1 + backs for number in times.values()), "once more for each step"


@pytest.mark.law("N5", "Y5")
@given(
    steps=STEPS, is_zoneless=st.booleans(), hours=st.integers(-12, 0),
    before_s=st.integers(-3_600, 7_200), pages=st.integers(0, 3),
)  # fmt: skip
def test_going_back_to_a_time_reads_all_later_changes_again_and_skips_none(
    *, steps: list[tuple[str, int]], is_zoneless: bool, hours: int, before_s: int, pages: int
) -> None:
    table = Table(is_zoneless=is_zoneless, hours=hours, ahead_s=0)
    run(table, [step for step in steps if step[0] != "back"])
    table.change(9)
    table.begin_at(before_s)
    table.poll()
    assert table.is_whole()

    table.change(1)
    table.passes(1)
    table.poll(pages)  # it is interrupted there
    if not pages:
        table.stamped.clear()  # the destination lost everything
    changed = table.begin_at(before_s)
    table.poll()
    table.poll()
    assert changed <= table.stamped.keys()
    assert pages == 0 or table.is_whole()


@pytest.mark.law("N5")
def test_zoned_cursor_of_a_zoneless_column_continues_without_a_zone() -> None:
    now = datetime(2026, 3, 2, 10, tzinfo=UTC)
    before = '{"since": "2026-03-02T09:00:00+00:00"}'
    reach = reach_of(before, now, 1, OVERLAP_S, 0, is_zoneless=True)
    ended = reach.ended(None, 1, OVERLAP_S, 0)

    later = reach_of(ended, now + timedelta(minutes=1), 2, OVERLAP_S, 0, is_zoneless=True)
    assert later.since == datetime(2026, 3, 2, 9)  # noqa: DTZ001


@pytest.mark.law("N5")
@given(steps=STEPS, hours=st.integers(-12, 0))
def test_zoneless_times_west_of_utc_are_read_once(steps: list[tuple[str, int]], hours: int) -> None:
    table = Table(is_zoneless=True, hours=hours, ahead_s=0)
    run(table, [step for step in steps if step[0] != "back"])

    assert len(table.deltas) == len({(row, value) for row, value, _ in table.deltas})


@pytest.mark.law("N5")
@given(
    redating=st.builds(Redating, st.integers(10**6, 10**12), st.integers(0, 10**12)),
    times=st.lists(st.integers(0, 2 * 10**12), min_size=2),
)
def test_redated_changes_keep_their_order_and_are_later_than_given_ones(
    redating: Redating, times: list[int]
) -> None:
    dated = [redating.changed_us(time_us) for time_us in sorted(times)]

    assert dated == sorted(dated)
    assert dated[0] > redating.given_us
