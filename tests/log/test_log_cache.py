"""lakesync.log.log_cache: what is remembered of the log, held against the log itself."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakesync.log import log_cache as tail
from lakesync.log.log_cache import Tails
from lakesync.ports import Head, LogEntry, LogSlice

GATEWAY = "g"


class Log:
    """One shard's log, which counts what is read of it."""

    def __init__(self) -> None:
        self.all: list[LogEntry] = []
        self.hidden: set[int] = set()
        self.reads = 0
        self.items_read: list[dict[str, int]] = []

    def commit(self, stamp: int, size: int = 10) -> None:
        previous = self.all[-1].stamp if self.all else 0
        records = b"x" * size
        logged_bytes = self.logged_bytes + size
        tables = frozenset({"t"})
        self.all.append(LogEntry(stamp, records, 1, tables, logged_bytes, previous))

    @property
    def logged_bytes(self) -> int:
        """Return how much was ever logged."""
        return self.all[-1].logged_bytes if self.all else 0

    def head(self, in_head: int) -> Head:
        """Return the head while the last so many entries lie in it."""
        recent = tuple(self.all[len(self.all) - in_head :])
        last = self.all[-1].stamp
        return Head(last, logged_bytes=self.logged_bytes, last_logged=last, recent=recent)

    def log_items(self, gateway: str, wanted: dict[str, int]) -> dict[str, tuple[LogEntry, ...]]:
        """Return items of two entries each, the second of which is asked for."""
        del gateway
        self.items_read.append(dict(wanted))
        answer = {}
        for lane, last in wanted.items():
            if last not in self.hidden:
                place = [entry.stamp for entry in self.all].index(last)
                answer[lane] = tuple(self.all[max(place - 1, 0) : place + 1])
        return answer

    def entries(self, gateway: str, shard: str, after: int, until: int, count_max: int) -> LogSlice:
        del gateway, shard
        self.reads += 1
        shown = [e for e in self.all if after < e.stamp <= until and e.stamp not in self.hidden]
        if len(shown) > count_max:
            return LogSlice(tuple(shown[:count_max]), shown[count_max - 1].stamp)
        return LogSlice(tuple(shown), until)


@pytest.fixture
def log() -> Log:
    return Log()


def source(log: Log, epoch: str = "") -> tail.Tail:
    return Tails(log).of(epoch)  # type: ignore[arg-type]


def stamps(log: LogSlice) -> list[int]:
    return [entry.stamp for entry in log.entries]


@pytest.mark.law("B9")
class TestServed:
    def test_entries_read_by_one_request_are_served_from_memory_to_the_next(self, log: Log) -> None:
        for stamp in (10, 20, 30):
            log.commit(stamp)
        of = source(log)
        of.entries(GATEWAY, "main", 0, 30, 100)

        assert stamps(of.entries(GATEWAY, "main", 10, 30, 100)) == [20, 30]
        assert stamps(of.entries(GATEWAY, "main", 15, 25, 100)) == [20]
        assert log.reads == 1

    def test_new_entries_are_read_with_one_request_and_joined(self, log: Log) -> None:
        log.commit(10)
        of = source(log)
        of.entries(GATEWAY, "main", 0, 10, 100)
        log.commit(20)

        assert stamps(of.entries(GATEWAY, "main", 5, 20, 100)) == [10, 20]
        assert stamps(of.entries(GATEWAY, "main", 10, 20, 100)) == [20]
        assert log.reads == 2

    def test_reader_further_behind_extends_the_cache_backwards(self, log: Log) -> None:
        for stamp in (10, 20, 30):
            log.commit(stamp)
        of = source(log)
        of.entries(GATEWAY, "main", 20, 30, 100)
        of.entries(GATEWAY, "main", 0, 30, 100)
        reads = log.reads

        assert stamps(of.entries(GATEWAY, "main", 5, 30, 100)) == [10, 20, 30]
        assert log.reads == reads

    def test_invisible_entry_leaves_a_gap_that_is_read_again(self, log: Log) -> None:
        for stamp in (10, 20, 30):
            log.commit(stamp)
        log.hidden = {20}
        of = source(log)
        assert stamps(of.entries(GATEWAY, "main", 0, 30, 100)) == [10, 30]
        log.hidden = set()

        assert stamps(of.entries(GATEWAY, "main", 0, 30, 100)) == [10, 20, 30]

    def test_new_epoch_uses_no_cached_entries_of_another(self, log: Log) -> None:
        log.commit(10)
        tails = Tails(log)  # type: ignore[arg-type]
        tails.of("").entries(GATEWAY, "main", 0, 10, 100)
        log.all = []
        log.commit(20)

        assert stamps(tails.of("e2").entries(GATEWAY, "main", 0, 20, 100)) == [20]


LANES = ("main", "main.1", "main.2")


def read_ahead(of: tail.Tail, heads: dict[str, Head], after: int, count_max: int = 100) -> None:
    for call in of.read_ahead(GATEWAY, heads, after, count_max):
        call()


@pytest.mark.law("B8")
class TestReadAhead:
    def warm(self, log: Log) -> tail.Tail:
        """Return what remembers three lanes up to 20, of which a later entry lies in the head."""
        for stamp in (10, 20, 30):
            log.commit(stamp)
        of = source(log)
        for lane in LANES:
            of.entries(GATEWAY, lane, 0, 20, 100)
        log.reads = 0
        return of

    def test_last_items_of_all_lanes_are_read_in_one_request(self, log: Log) -> None:
        of = self.warm(log)
        log.commit(40)
        log.commit(50)
        heads = dict.fromkeys(LANES, log.head(in_head=2))

        read_ahead(of, heads, 10)

        assert log.items_read == [dict.fromkeys(LANES, 30)]
        for lane in LANES:
            assert stamps(of.entries(GATEWAY, lane, 10, 30, 100)) == [20, 30]
        assert log.reads == 0

    def test_older_entries_are_read_once_per_lane(self, log: Log) -> None:
        of = self.warm(log)
        for stamp in (40, 50):
            log.commit(stamp)
        heads = dict.fromkeys(LANES, log.head(in_head=1))

        read_ahead(of, heads, 10)

        assert (log.reads, log.items_read) == (3, [])
        for lane in LANES:
            assert stamps(of.entries(GATEWAY, lane, 10, 40, 100)) == [20, 30, 40]
        assert log.reads == 3

    def test_lanes_whose_heads_have_no_room_are_read_one_by_one(self, log: Log) -> None:
        """Each of their items is one entry: what the main lane's head holds says nothing."""
        of = self.warm(log)
        for stamp in (40, 50):
            log.commit(stamp)
        heads = {lane: log.head(in_head=0) for lane in LANES[1:]}
        heads["main"] = log.head(in_head=4)

        read_ahead(of, heads, 20)

        assert (log.reads, log.items_read) == (2, [])
        for lane in LANES[1:]:
            assert stamps(of.entries(GATEWAY, lane, 20, 50, 100)) == [30, 40, 50]
        assert log.reads == 2

    def test_cached_or_unrequested_entries_are_not_read_ahead(self, log: Log) -> None:
        of = self.warm(log)

        assert of.read_ahead(GATEWAY, {"main": log.head(in_head=1)}, 10, 100) == []
        assert of.read_ahead(GATEWAY, {"other": log.head(in_head=1)}, 20, 100) == []

    def test_item_invisible_during_read_ahead_is_read_later(self, log: Log) -> None:
        of = self.warm(log)
        log.commit(40)
        log.hidden = {30}
        read_ahead(of, {"main": log.head(in_head=1)}, 10)
        log.hidden = set()

        assert log.items_read == [{"main": 30}]
        assert stamps(of.entries(GATEWAY, "main", 10, 30, 100)) == [20, 30]

    def test_entries_too_large_for_the_cache_are_read_once_per_lane(
        self, log: Log, little_room: int
    ) -> None:
        for stamp in (10, 20):
            log.commit(stamp, little_room)
        of = source(log)
        heads = dict.fromkeys(LANES, log.head(in_head=0))
        read_ahead(of, heads, 0)

        for lane in LANES:
            assert stamps(of.entries(GATEWAY, lane, 0, 20, 100)) == [10, 20]
        assert log.reads == 3

    def test_lane_evicted_during_read_ahead_is_read_again(self, log: Log, little_room: int) -> None:
        of = self.warm(log)
        for stamp in (40, 50):
            log.commit(stamp)
        items = of.read_ahead(GATEWAY, dict.fromkeys(LANES, log.head(in_head=2)), 10, 100)
        log.commit(60, little_room)
        of.entries(GATEWAY, "another", 0, 60, 100)
        log.reads = 0

        for call in items:
            call()

        assert log.items_read == [dict.fromkeys(LANES, 30)]
        for lane in LANES:
            assert stamps(of.entries(GATEWAY, lane, 10, 30, 100)) == [20, 30]
        assert log.reads > 0


@pytest.fixture
def little_room(monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(tail, "TAIL_BYTES_MAX", 5_000)
    return 5_000


def test_log_cache_is_bounded(log: Log, little_room: int, monkeypatch: pytest.MonkeyPatch) -> None:
    tails = Tails(log)  # type: ignore[arg-type]
    for stamp in range(1, 60):
        log.commit(stamp, 200)
        for shard in ("main", "other"):
            tails.of("").entries(GATEWAY, shard, stamp - 1, stamp, 100)
        assert sum(chain.size_bytes for chain in tails._chains.values()) <= little_room

    assert log.reads == 2 * 59
    assert stamps(tails.of("").entries(GATEWAY, "other", 58, 59, 100)) == [59]


steps = st.lists(
    st.one_of(
        st.tuples(st.just("commit"), st.integers(1, 9), st.integers(1, 400)),
        st.tuples(st.just("read"), st.integers(0, 200), st.integers(1, 6)),
        st.tuples(st.just("read ahead"), st.integers(0, 200), st.integers(1, 6)),
    ),
    min_size=5,
    max_size=60,
)


@pytest.mark.law("B9")
@given(steps, st.sampled_from([1_000, 4_000, 1 << 20]))
def test_reading_to_the_end_returns_the_whole_log_whatever_is_cached(
    happened: list[tuple[str, int, int]], room: int
) -> None:
    before, tail.TAIL_BYTES_MAX = tail.TAIL_BYTES_MAX, room  # type: ignore[misc]
    try:
        log, now = Log(), 0
        of = source(log)
        for what, number, more in happened:
            if what == "commit":
                now += number
                log.commit(now, more)
                continue
            after, read = number, []
            if what == "read ahead" and log.all:
                in_head = min(more // 2, len(log.all) - 1)
                read_ahead(of, {"main": log.head(in_head)}, after, more)
            while after < now:
                part = of.entries(GATEWAY, "main", after, now, more)
                assert part.until > after
                read += stamps(part)
                after = part.until
            assert read == [entry.stamp for entry in log.all if entry.stamp > number]
    finally:
        tail.TAIL_BYTES_MAX = before  # type: ignore[misc]
