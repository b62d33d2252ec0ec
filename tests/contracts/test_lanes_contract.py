"""What every buffer promises of lanes: opened, raised, closed, and entries that lie in heads."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import pytest

from lakesync.core.config import GatewayConfig
from lakesync.core.layout import LANES_MAX, ONE_LANE, lane_name
from lakesync.log.read import FinalLog, read
from lakesync.ports import Head, HeadMoved
from tests.support.commits import RECORDS, Writer

if TYPE_CHECKING:
    from lakesync.core.layout import Lanes
    from lakesync.ports import Buffer, LogEntry

R1 = ("todos", "r1")
TWO = ONE_LANE.opening("main", 2)


@pytest.fixture
def writer(buffer: Buffer, gateway: str) -> Writer:
    return Writer(buffer, gateway)


def open_lanes(writer: Writer, lanes: Lanes, to: int = 0) -> None:
    """Change the lanes, as whoever read the main lane's head just now."""
    assert writer.buffer.change_lanes(writer.gateway, writer.head("main"), lanes, to)


def log_of(writer: Writer, lane: str, after: int = 0) -> list[LogEntry]:
    """Return the entries of a lane's log, those in the head too."""
    heads = writer.buffer.all_heads(writer.gateway)
    log = FinalLog(writer.gateway, GatewayConfig(), heads, heads[lane].commit)
    return list(read(writer.buffer, log, lane, (after, log.top), 1_000).entries)


# --- which lanes are open


@pytest.mark.law("B7")
def test_lane_list_and_main_head_change_in_one_write(buffer: Buffer, writer: Writer) -> None:
    writer.write("main")
    before = writer.head("main")
    assert before is not None

    assert buffer.change_lanes(writer.gateway, before, TWO, 5_000)

    assert writer.head("main") == replace(before, commit=5_000, lanes=TWO)
    assert buffer.change_lanes(writer.gateway, writer.head("main"), TWO.paused(9))
    assert writer.head("main") == replace(before, commit=5_000, lanes=TWO.paused(9))


@pytest.mark.law("B7")
def test_lanes_can_be_listed_before_any_commit(buffer: Buffer, gateway: str) -> None:
    assert buffer.change_lanes(gateway, None, TWO, 5_000)
    assert buffer.all_heads(gateway) == {"main": Head(commit=5_000, lanes=TWO)}
    assert not buffer.change_lanes(gateway, None, TWO.paused(9), 6_000)


@pytest.mark.law("B7")
def test_lanes_changed_since_read_are_not_overwritten(buffer: Buffer, writer: Writer) -> None:
    writer.write("main")
    seen = writer.head("main")
    open_lanes(writer, TWO)
    now = writer.head("main")

    assert not buffer.change_lanes(writer.gateway, seen, ONE_LANE.opening("main", 4), 5_000)
    assert not buffer.change_lanes(writer.gateway, seen, ONE_LANE.opening("main", 4))
    assert not buffer.change_lanes(f"{writer.gateway}-new", seen, TWO)
    assert writer.head("main") == now
    assert buffer.all_heads(f"{writer.gateway}-new") == {}


@pytest.mark.law("B7")
@pytest.mark.parametrize("to", [1_009, 1_010])
def test_lane_list_that_does_not_raise_the_main_head_is_refused(
    buffer: Buffer, writer: Writer, to: int
) -> None:
    writer.write("main")
    before = writer.head("main")

    assert not buffer.change_lanes(writer.gateway, before, TWO, to)
    assert writer.head("main") == before


@pytest.mark.law("B7")
def test_lanes_can_change_despite_commits_since_read(buffer: Buffer, writer: Writer) -> None:
    writer.write("main")
    seen = writer.head("main")
    later = writer.write("main")

    assert buffer.change_lanes(writer.gateway, seen, TWO)

    head = writer.head("main")
    assert head is not None
    assert (head.commit, head.lanes) == (later.stamp, TWO)


@pytest.mark.law("B7")
def test_commit_on_a_main_head_older_than_the_lane_list_is_refused(
    buffer: Buffer, writer: Writer
) -> None:
    writer.write("main")
    late = writer.prepare("main")
    open_lanes(writer, TWO, late.stamp + 1)

    with pytest.raises(HeadMoved) as refused:
        buffer.commit(late)

    assert refused.value.heads["main"].lanes == TWO


# --- heads


@pytest.mark.law("B7")
def test_heads_lists_open_lanes_with_the_main_lane_first(buffer: Buffer, writer: Writer) -> None:
    lanes = ONE_LANE.opening("cold", 2).opening("main", 3)
    writer.write("main")
    writer.write("main.1", "main.3", "cold.1", "warm")
    open_lanes(writer, lanes)

    heads = buffer.heads(writer.gateway)

    assert list(heads) == ["main", "main.1", "cold.1"]
    assert heads == buffer.lane_heads(writer.gateway, list(heads))
    everything = {"main", "main.1", "main.3", "cold.1", "warm"}
    assert buffer.all_heads(writer.gateway).keys() == everything


@pytest.mark.law("B7")
def test_heads_of_closed_lanes_are_given_to_readers_behind_them(
    buffer: Buffer, writer: Writer
) -> None:
    writer.write("main")
    quiet = writer.write("main.1", "cold").stamp
    lanes = TWO.opening("cold", 1).closing({"main": 1, "cold": 0}, quiet)
    open_lanes(writer, lanes)
    writer.write("main")

    assert buffer.heads(writer.gateway).keys() == {"main", "main.1", "cold"}
    assert buffer.heads(writer.gateway, quiet - 1).keys() == {"main", "main.1", "cold"}
    assert buffer.heads(writer.gateway, quiet).keys() == {"main"}


@pytest.mark.law("B7")
def test_any_number_of_lanes_may_be_open(buffer: Buffer, writer: Writer) -> None:
    lanes = ONE_LANE
    names = [lane_name(shard, number) for shard in ("main", "hot") for number in range(LANES_MAX)]
    for shard in ("main", "hot"):
        lanes = lanes.opening(shard, LANES_MAX)
    open_lanes(writer, lanes, 500)
    for first in range(0, len(names), 32):
        writer.write(*names[first : first + 32])

    heads = buffer.heads(writer.gateway)

    assert heads.keys() == set(names)
    assert next(iter(heads)) == "main"
    assert buffer.all_heads(writer.gateway) == heads
    assert heads["main"].lanes == lanes


# --- raising


@pytest.mark.law("B7")
def test_raising_a_missing_lane_creates_its_head_from_the_main_head(
    buffer: Buffer, writer: Writer
) -> None:
    late = writer.prepare("main.1", at=9_000)
    main = Head(commit=5_000, config_version=3, epoch="e", trimmed=4, lanes=TWO)

    assert buffer.raise_head(writer.gateway, "main.1", None, 9_999, main)

    assert writer.head("main.1") == Head(commit=9_999, config_version=3)
    with pytest.raises(HeadMoved) as refused:
        buffer.commit(late)
    assert refused.value.heads == {"main.1": writer.head("main.1")}


@pytest.mark.law("B7")
def test_raised_head_changes_only_its_commit(buffer: Buffer, writer: Writer) -> None:
    writer.write("main.1")
    writer.write("main.1", in_head=True)
    before = writer.head("main.1")
    assert before is not None

    assert buffer.raise_head(
        writer.gateway, "main.1", before, 9_999, Head(config_version=8, epoch="another")
    )

    assert writer.head("main.1") == replace(before, commit=9_999)


@pytest.mark.law("B7")
def test_raised_closed_lane_stays_closed(buffer: Buffer, writer: Writer) -> None:
    writer.write("main.1")
    assert buffer.close_lane(writer.gateway, "main.1", writer.head("main.1"), 2_000)

    assert buffer.raise_head(writer.gateway, "main.1", writer.head("main.1"), 3_000, Head())

    head = writer.head("main.1")
    assert head is not None
    assert (head.commit, head.is_closed) == (3_000, True)


# --- closing


@pytest.mark.law("B7")
def test_closed_lane_refuses_a_commit_prepared_before(buffer: Buffer, writer: Writer) -> None:
    writer.write("main.1", rows={R1: b"one"})
    before = writer.head("main.1")
    assert before is not None
    late = writer.prepare("main.1", rows={R1: b"late"}, at=9_000)

    assert buffer.close_lane(writer.gateway, "main.1", before, before.commit + 1)

    assert writer.head("main.1") == replace(before, commit=before.commit + 1, is_closed=True)
    with pytest.raises(HeadMoved) as refused:
        buffer.commit(late)
    assert refused.value.heads["main.1"].is_closed
    assert buffer.rows(writer.gateway, [R1])[R1].state == b"one"


@pytest.mark.law("B7")
def test_missing_lane_can_be_closed(buffer: Buffer, writer: Writer) -> None:
    late = writer.prepare("main.1", at=9_000)

    assert buffer.close_lane(writer.gateway, "main.1", None, 2_000)

    assert writer.head("main.1") == Head(commit=2_000, is_closed=True)
    with pytest.raises(HeadMoved):
        buffer.commit(late)
    assert not buffer.raise_head(writer.gateway, "main.1", None, 9_999, Head())


@pytest.mark.law("B7")
def test_lane_changed_since_read_is_not_closed(buffer: Buffer, writer: Writer) -> None:
    writer.write("main.1")
    seen = writer.head("main.1")
    writer.write("main.1")
    before = writer.head("main.1")

    assert not buffer.close_lane(writer.gateway, "main.1", seen, 9_999)
    assert not buffer.close_lane(writer.gateway, "main.1", None, 9_999)
    assert not buffer.close_lane(writer.gateway, "never", seen, 9_999)
    assert buffer.all_heads(writer.gateway) == {"main.1": before}


@pytest.mark.law("B7")
def test_second_close_refuses_a_commit_that_would_reopen_the_lane(
    buffer: Buffer, writer: Writer
) -> None:
    assert buffer.close_lane(writer.gateway, "main.1", None, 2_000)
    late = writer.prepare("main.1", at=9_000)

    assert buffer.close_lane(writer.gateway, "main.1", writer.head("main.1"), 2_001)

    with pytest.raises(HeadMoved):
        buffer.commit(late)


@pytest.mark.law("B7")
@pytest.mark.parametrize("in_head", [True, False])
def test_commit_to_a_closed_lane_reopens_it_and_continues_its_log(
    buffer: Buffer, writer: Writer, *, in_head: bool
) -> None:
    first = writer.write("main.1", in_head=True)
    buffer.close_lane(writer.gateway, "main.1", writer.head("main.1"), 2_000)
    writer.config_version = 4

    second = writer.write("main.1", at=2_010, in_head=in_head)

    head = writer.head("main.1")
    assert head is not None
    assert (head.is_closed, head.commit, head.config_version) == (False, second.stamp, 4)
    assert (head.logged_bytes, head.oldest_unflushed) == (2 * len(RECORDS), first.stamp)
    entries = [first.lanes["main.1"].entry, second.lanes["main.1"].entry]
    assert log_of(writer, "main.1") == entries
    assert head.recent == (tuple(entries) if in_head else ())


@pytest.mark.law("B6")
def test_configuration_saved_without_seeing_the_open_lanes_is_refused(
    buffer: Buffer, writer: Writer
) -> None:
    writer.write("main")
    seen = writer.head("main")
    open_lanes(writer, TWO)
    config = GatewayConfig(1)

    with pytest.raises(HeadMoved) as refused:
        buffer.save_config(writer.gateway, config, seen, ONE_LANE.paused(0), 5_000)

    now = writer.head("main")
    assert refused.value.heads == {"main": now}
    assert buffer.config(writer.gateway) == GatewayConfig()
    closed = TWO.closing({"main": 1}, 1_000)
    buffer.save_config(writer.gateway, config, now, closed, 5_000)
    head = writer.head("main")
    assert head is not None
    assert (head.lanes, head.config_version, head.commit) == (closed, 1, 5_000)


@pytest.mark.law("B12")
def test_epoch_begun_without_seeing_the_open_lanes_is_refused(
    buffer: Buffer, writer: Writer
) -> None:
    writer.write("main")
    seen = writer.head("main")
    open_lanes(writer, TWO)

    with pytest.raises(HeadMoved):
        buffer.begin_epoch(writer.gateway, seen, ONE_LANE.paused(0), 5_000, 0, "e")

    assert writer.head("main").epoch == ""  # type: ignore[union-attr]


@pytest.mark.law("B12")
def test_epoch_begun_without_seeing_the_configuration_is_refused(
    buffer: Buffer, writer: Writer
) -> None:
    for version in (0, 1):
        writer.write("main")
        seen = writer.head("main")
        assert seen is not None
        changed = GatewayConfig(version + 1)
        buffer.save_config(writer.gateway, changed, seen, ONE_LANE.paused(0), seen.commit + 1)

        with pytest.raises(HeadMoved):
            buffer.begin_epoch(writer.gateway, seen, ONE_LANE.paused(0), 1 << 40, version, "e")

        assert epoch_and_version(writer) == ("", version + 1)
    buffer.begin_epoch(writer.gateway, writer.head("main"), ONE_LANE.paused(0), 1 << 40, 2, "e")
    assert epoch_and_version(writer) == ("e", 2)


def epoch_and_version(writer: Writer) -> tuple[str, int]:
    """Return what the main lane's head says of both."""
    head = writer.head("main")
    assert head is not None
    return head.epoch, head.config_version


# --- entries in heads


@pytest.mark.law("B8")
def test_entries_stay_in_the_head_until_they_move_into_the_log_together(
    buffer: Buffer, writer: Writer
) -> None:
    commits = [writer.write(in_head=True, count=number + 1) for number in range(3)]
    entries = tuple(commit.lanes["main"].entry for commit in commits)
    head = writer.head("main")
    assert head is not None
    assert (head.recent, head.stored_until, head.last_logged) == (entries, 0, commits[-1].stamp)
    assert buffer.entries(writer.gateway, "main", 0, 1 << 62, 100).entries == ()

    last = writer.write()

    entries += (last.lanes["main"].entry,)
    head = writer.head("main")
    assert head is not None
    assert (head.recent, head.stored_until) == ((), last.stamp)
    assert head.logged_bytes == 4 * len(RECORDS)
    log = buffer.entries(writer.gateway, "main", 0, last.stamp, 1)
    assert (log.entries, log.until) == (entries, last.stamp)


@pytest.mark.law("B8")
@pytest.mark.parametrize("count_max", [1, 2, 100])
def test_reads_may_start_and_end_inside_an_item_of_several_entries(
    buffer: Buffer, writer: Writer, count_max: int
) -> None:
    stamps = [writer.write(in_head=number % 4 != 0).stamp for number in range(11)]
    heads = buffer.heads(writer.gateway)
    log = FinalLog(writer.gateway, GatewayConfig(), heads, stamps[-1])
    for after in (0, *stamps):
        for until in (stamp for stamp in stamps if stamp > after):
            at, seen = after, []
            while at < until:
                part = read(buffer, log, "main", (at, until), count_max)
                assert part.until > at
                seen += [entry.stamp for entry in part.entries]
                at = part.until
            assert seen == [stamp for stamp in stamps if after < stamp <= until]


@pytest.mark.law("B8")
def test_lanes_of_one_gateway_have_separate_logs(buffer: Buffer, writer: Writer) -> None:
    both = writer.write("main", "main.1")
    one = writer.write("main.1", in_head=True)
    assert [entry.stamp for entry in log_of(writer, "main")] == [both.stamp]
    assert [entry.stamp for entry in log_of(writer, "main.1")] == [both.stamp, one.stamp]


@pytest.mark.law("B3")
def test_commits_to_one_row_are_ordered_across_lanes(buffer: Buffer, writer: Writer) -> None:
    mine = writer.prepare("main.1", rows={R1: b"mine"})
    theirs = writer.prepare("main.2", rows={R1: b"theirs"})
    apart = writer.prepare("main.3", rows={("todos", "r2"): b"apart"})
    buffer.commit(mine)
    buffer.commit(apart)

    with pytest.raises(Exception, match=r"\b1 row and ") as refused:
        buffer.commit(theirs)

    assert refused.value.rows == {R1: (b"mine", mine.stamp)}  # type: ignore[attr-defined]
    assert writer.head("main.2") is None


@pytest.mark.law("B10")
def test_entries_moved_together_are_dropped_once_all_are_below_the_horizon(
    buffer: Buffer, writer: Writer
) -> None:
    stamps = [writer.write(in_head=number % 3 != 2).stamp for number in range(7)]
    assert buffer.drop_entries(writer.gateway, "main", stamps[4], 10)

    assert [entry.stamp for entry in log_of(writer, "main", stamps[2])] == stamps[3:]
    read = buffer.entries(writer.gateway, "main", 0, stamps[5], 100).entries
    assert [entry.stamp for entry in read] == stamps[3:6]
    assert buffer.drop_entries(writer.gateway, "main", stamps[6], 10)
    assert [entry.stamp for entry in log_of(writer, "main", stamps[5])] == stamps[6:]


@pytest.mark.law("B10", "E5")
def test_emptied_head_refuses_commits_that_saw_its_entries(buffer: Buffer, writer: Writer) -> None:
    writer.write(in_head=True)
    waiting = writer.prepare(in_head=True)
    seen = writer.head("main")
    assert seen is not None
    assert seen.recent

    assert buffer.empty_head(writer.gateway, "main", seen)

    assert writer.head("main") == replace(seen, commit=seen.commit + 1, recent=())
    assert not buffer.empty_head(writer.gateway, "main", seen)
    with pytest.raises(HeadMoved):
        buffer.commit(waiting)
    later = writer.write(in_head=True).stamp
    assert [entry.stamp for entry in log_of(writer, "main", seen.last_logged)] == [later]


def test_parallel_calls_return_results_in_order(buffer: Buffer, writer: Writer) -> None:
    writer.write("main", "main.1", "main.2")
    lanes = ["main.2", "main", "main.1"]
    calls = [partial(writer.head, lane) for lane in lanes]

    heads = buffer.in_parallel(calls)

    assert heads == [writer.head(lane) for lane in lanes]
    with pytest.raises(ZeroDivisionError):
        buffer.in_parallel([lambda: writer.head("main"), lambda: 1 // 0])


# --- items of the log


@pytest.mark.law("B8")
def test_log_items_are_found_by_the_last_entry_of_each_lane(buffer: Buffer, writer: Writer) -> None:
    names = [lane_name("main", number) for number in range(LANES_MAX)]
    writer.write("main", "main.1")
    for _ in range(3):
        writer.write("main.1", in_head=True)
    last = {lane: writer.write(lane).stamp for lane in names}
    later = writer.write("main.2", in_head=True)

    items = buffer.log_items(writer.gateway, last)

    assert {lane: item[-1].stamp for lane, item in items.items()} == last
    assert {lane: len(item) for lane, item in items.items() if len(item) > 1} == {"main.1": 4}
    for lane, item in items.items():
        until = [entry for entry in log_of(writer, lane) if entry.stamp <= last[lane]]
        assert list(item) == until[-len(item) :]
    missing = {"main": last["main"] + 1, "main.2": later.stamp, "never": 5}
    assert buffer.log_items(writer.gateway, missing) == {}
    assert buffer.log_items(writer.gateway, {}) == {}
