"""lakesync.log.log_cache: what is remembered of the log, held against the log itself."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakesync.log import log_cache as tail
from lakesync.log.log_cache import Tails
from lakesync.ports import LogEntry, LogSlice

GATEWAY = "g"


class Log:
    """One shard's log, which counts what is read of it."""

    def __init__(self) -> None:
        self.all: list[LogEntry] = []
        self.hidden: set[int] = set()
        self.reads = 0

    def commit(self, stamp: int, size: int = 10) -> None:
        previous = self.all[-1].stamp if self.all else 0
        records = b"x" * size
        self.all.append(LogEntry(stamp, records, 1, frozenset({"t"}), 0, previous))

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


def stamps(found: LogSlice) -> list[int]:
    return [entry.stamp for entry in found.entries]


@pytest.mark.law("B9")
class TestServed:
    def test_what_one_request_read_the_next_one_finds_in_memory(self, log: Log) -> None:
        for stamp in (10, 20, 30):
            log.commit(stamp)
        of = source(log)
        of.entries(GATEWAY, "main", 0, 30, 100)

        assert stamps(of.entries(GATEWAY, "main", 10, 30, 100)) == [20, 30]
        assert stamps(of.entries(GATEWAY, "main", 15, 25, 100)) == [20]
        assert log.reads == 1

    def test_what_is_new_is_read_with_one_request_and_joins(self, log: Log) -> None:
        log.commit(10)
        of = source(log)
        of.entries(GATEWAY, "main", 0, 10, 100)
        log.commit(20)

        assert stamps(of.entries(GATEWAY, "main", 5, 20, 100)) == [10, 20]
        assert stamps(of.entries(GATEWAY, "main", 10, 20, 100)) == [20]
        assert log.reads == 2

    def test_who_is_further_behind_makes_the_memory_begin_earlier(self, log: Log) -> None:
        for stamp in (10, 20, 30):
            log.commit(stamp)
        of = source(log)
        of.entries(GATEWAY, "main", 20, 30, 100)
        of.entries(GATEWAY, "main", 0, 30, 100)
        reads = log.reads

        assert stamps(of.entries(GATEWAY, "main", 5, 30, 100)) == [10, 20, 30]
        assert log.reads == reads

    def test_an_entry_that_is_not_visible_yet_leaves_a_gap_that_nothing_joins(
        self, log: Log
    ) -> None:
        for stamp in (10, 20, 30):
            log.commit(stamp)
        log.hidden = {20}
        of = source(log)
        assert stamps(of.entries(GATEWAY, "main", 0, 30, 100)) == [10, 30]
        log.hidden = set()

        assert stamps(of.entries(GATEWAY, "main", 0, 30, 100)) == [10, 20, 30]

    def test_another_epoch_is_another_log(self, log: Log) -> None:
        log.commit(10)
        tails = Tails(log)  # type: ignore[arg-type]
        tails.of("").entries(GATEWAY, "main", 0, 10, 100)
        log.all = []
        log.commit(20)

        assert stamps(tails.of("e2").entries(GATEWAY, "main", 0, 20, 100)) == [20]


@pytest.fixture
def little_room(monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(tail, "TAIL_BYTES_MAX", 5_000)
    return 5_000


def test_what_is_remembered_is_bounded(
    log: Log, little_room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    ),
    min_size=5,
    max_size=60,
)


@pytest.mark.law("B9")
@given(steps, st.sampled_from([1_000, 4_000, 1 << 20]))
def test_reading_to_the_end_gives_the_log_itself_whatever_was_read_before(
    happened: list[tuple[str, int, int]], room: int
) -> None:
    held, tail.TAIL_BYTES_MAX = tail.TAIL_BYTES_MAX, room  # type: ignore[misc]
    try:
        log, now = Log(), 0
        of = source(log)
        for what, number, more in happened:
            if what == "commit":
                now += number
                log.commit(now, more)
                continue
            after, read = number, []
            while after < now:
                found = of.entries(GATEWAY, "main", after, now, more)
                assert found.until > after
                read += stamps(found)
                after = found.until
            assert read == [entry.stamp for entry in log.all if entry.stamp > number]
    finally:
        tail.TAIL_BYTES_MAX = held  # type: ignore[misc]
