"""What every buffer promises: `lakesync.ports.Buffer`, on each implementation."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING

import pytest

from lakesync.core.config import GatewayConfig
from lakesync.core.gateway_identity import new_epoch, restored_at
from lakesync.core.layout import MAIN_LANE, ONE_LANE, Layout
from lakesync.core.merge import AppendMark
from lakesync.core.schema import Column, TableSchema
from lakesync.errors import ValidationFailed
from lakesync.ports import (
    ROW_PARTS,
    ConfigMoved,
    FlushState,
    Head,
    HeadMoved,
    RowPut,
    StaleRead,
    StoredRow,
)
from tests.support.commits import RECORDS, Writer, renamed

if TYPE_CHECKING:
    from lakesync.ports import Buffer

R1, R2 = ("todos", "r1"), ("todos", "r2")
ODD_IDS = ("|", "a|b", " ", "\x00", "\u00e9", "\U0001f600", '"\\', "#head", "x" * 512)


@pytest.fixture
def writer(buffer: Buffer, gateway: str) -> Writer:
    return Writer(buffer, gateway)


def everything(buffer: Buffer, gateway: str) -> tuple[object, ...]:
    """Return all that a refused commit must leave as it was."""
    lanes = ["main", "other"]
    return (
        buffer.all_heads(gateway),
        [buffer.entries(gateway, lane, 0, 1 << 62, 100) for lane in lanes],
        buffer.rows(gateway, [R1, R2]),
        buffer.marks(gateway, [(shard, "phone") for shard in lanes]),
    )


# --- reads


def test_unwritten_gateway_reads_as_empty(buffer: Buffer, gateway: str) -> None:
    assert buffer.heads(gateway) == buffer.all_heads(gateway) == {}
    assert buffer.lane_heads(gateway, ["main", "other"]) == {}
    assert buffer.epoch(gateway) == ""
    assert buffer.rows(gateway, [R1]) == {}
    assert buffer.marks(gateway, [("main", "phone")]) == {}
    assert buffer.entries(gateway, "main", 0, 1 << 62, 10).entries == ()
    assert buffer.config(gateway) == GatewayConfig()
    assert buffer.flush_state(gateway) == FlushState()
    assert gateway not in buffer.gateways()


def test_reads_of_no_keys_return_nothing(buffer: Buffer, gateway: str) -> None:
    assert buffer.lane_heads(gateway, []) == {}
    assert buffer.rows(gateway, []) == {}
    assert buffer.marks(gateway, []) == {}
    assert buffer.in_parallel([]) == []


def test_duplicate_keys_are_read_once(buffer: Buffer, writer: Writer) -> None:
    writer.write(rows={R1: b"one"}, marks={"phone": AppendMark(5, ((5, 1),))})

    assert len(buffer.lane_heads(writer.gateway, ["main", "main"])) == 1
    assert len(buffer.rows(writer.gateway, [R1, R1])) == 1
    assert len(buffer.marks(writer.gateway, [("main", "phone")] * 2)) == 1


def test_more_than_a_hundred_rows_are_read_at_once(buffer: Buffer, writer: Writer) -> None:
    keys = [("todos", f"r{number}") for number in range(130)]
    writer.write(rows=dict.fromkeys(keys[:70], b"state"))
    writer.write(rows=dict.fromkeys(keys[70:], b"state"))

    assert buffer.rows(writer.gateway, keys).keys() == set(keys)


def test_more_than_a_hundred_marks_are_read_serializably(buffer: Buffer, writer: Writer) -> None:
    clients = [f"phone{number}" for number in range(130)]
    mark = AppendMark(5, ((5, 1),))
    for first in range(0, 130, 65):
        writer.write(marks=dict.fromkeys(clients[first : first + 65], mark))
    wanted = [(shard, client) for shard in ("main", "other") for client in clients]

    marks = buffer.read_marks_serializable(writer.gateway, wanted + wanted[:1])
    assert marks == buffer.marks(writer.gateway, wanted)
    assert marks.keys() == {("main", client) for client in clients}
    assert buffer.read_marks_serializable(writer.gateway, []) == {}


@pytest.mark.parametrize("odd", ODD_IDS)
def test_ids_may_hold_any_character(buffer: Buffer, writer: Writer, odd: str) -> None:
    key = ("todos", odd)
    mark = AppendMark(7, ((7, 1),))
    client = odd[:128]
    commit = writer.write(rows={key: b"state"}, marks={client: mark})

    assert buffer.rows(writer.gateway, [key])[key] == (b"state", commit.stamp)
    assert buffer.marks(writer.gateway, [("main", client)])["main", client] == (mark, commit.stamp)


def test_rows_and_log_are_separate_by_gateway(buffer: Buffer, gateway: str) -> None:
    names = [gateway, f"{gateway}-", f"{gateway}-main", f"{gateway}_head"]
    for number, name in enumerate(names):
        Writer(buffer, name, stamp=number).write(rows={R1: name.encode()})

    for name in names:
        assert buffer.rows(name, [R1])[R1].state == name.encode()
        assert len(buffer.entries(name, "main", 0, 1 << 62, 100).entries) == 1
    assert set(names) <= set(buffer.gateways())


@pytest.mark.parametrize("odd", ["", "a|b", "-a", "\u00e9", "a b", "a" * 65, "a\n"])
def test_invalid_gateway_id_is_refused(buffer: Buffer, odd: str) -> None:
    with pytest.raises(ValidationFailed):
        buffer.heads(odd)


# --- commit


@pytest.mark.law("B1")
def test_commit_writes_heads_log_marks_and_rows(buffer: Buffer, writer: Writer) -> None:
    mark = AppendMark(9, ((8, 1), (9, (1 << 48) - 1)), moves=3)

    commit = writer.write("main", "other", rows={R1: b"\x00one"}, marks={"phone": mark}, count=7)

    expected = Head(
        commit=commit.stamp,
        logged_bytes=len(RECORDS),
        oldest_unflushed=commit.stamp,
        last_logged=commit.stamp,
    )
    heads = buffer.lane_heads(writer.gateway, ["main", "other"])
    assert heads == {"main": expected, "other": expected}
    for shard in ("main", "other"):
        log = buffer.entries(writer.gateway, shard, 0, commit.stamp, 10)
        assert log.entries == (commit.lanes[shard].entry,)
        assert buffer.marks(writer.gateway, [(shard, "phone")])[shard, "phone"].mark == mark
    assert buffer.rows(writer.gateway, [R1, R2]) == {R1: (b"\x00one", commit.stamp)}


@pytest.mark.law("B1")
def test_later_commit_replaces_rows_and_keeps_head_counters(buffer: Buffer, writer: Writer) -> None:
    first = writer.write(rows={R1: b"one", R2: b"two"})
    second = writer.write(rows={R1: b"three"})

    head = writer.head("main")
    assert head is not None
    assert head.logged_bytes == 2 * len(RECORDS)
    assert head.oldest_unflushed == first.stamp
    assert buffer.rows(writer.gateway, [R1, R2]) == {
        R1: (b"three", second.stamp),
        R2: (b"two", first.stamp),
    }
    assert second.lanes["main"].entry.previous == first.stamp


@pytest.mark.law("B2")
def test_commit_on_a_moved_head_is_refused_and_changes_nothing(
    buffer: Buffer, writer: Writer
) -> None:
    writer.write("main", "other")
    late = writer.prepare("main", "other", rows={R1: b"late"})
    winner = writer.write("main", rows={R2: b"winner"})
    before = everything(buffer, writer.gateway)

    with pytest.raises(HeadMoved) as refused:
        buffer.commit(late)

    assert refused.value.heads == {"main": writer.head("main")}
    assert refused.value.heads["main"].commit == winner.stamp
    assert everything(buffer, writer.gateway) == before


@pytest.mark.law("B2")
def test_a_first_commit_is_refused_if_another_was_first(buffer: Buffer, writer: Writer) -> None:
    late = writer.prepare(rows={R1: b"late"})
    winner = writer.write(rows={R2: b"winner"})

    with pytest.raises(HeadMoved) as refused:
        buffer.commit(late)

    assert refused.value.heads["main"].commit == winner.stamp
    assert buffer.rows(writer.gateway, [R1]) == {}


@pytest.mark.law("B2")
def test_commit_on_a_nonexistent_head_is_refused(buffer: Buffer, writer: Writer) -> None:
    commit = writer.prepare()
    part = replace(commit.lanes["main"], seen=Head(commit=5))

    with pytest.raises(HeadMoved) as refused:
        buffer.commit(replace(commit, lanes={"main": part}))

    assert refused.value.heads == {"main": Head()}
    assert writer.head("main") is None


@pytest.mark.law("B3")
@pytest.mark.parametrize("seen", [0, 1])
def test_commit_on_a_stale_row_is_refused_and_changes_nothing(
    buffer: Buffer, writer: Writer, seen: int
) -> None:
    written = writer.write(rows={R1: b"one"})
    commit = writer.prepare(rows={R2: b"two"})
    stale = replace(commit, rows={**commit.rows, R1: RowPut(b"lost update", seen)})
    before = everything(buffer, writer.gateway)

    with pytest.raises(StaleRead) as refused:
        buffer.commit(stale)

    assert everything(buffer, writer.gateway) == before
    assert refused.value.rows == {R1: StoredRow(b"one", written.stamp)}


@pytest.mark.law("B3")
def test_commit_on_a_nonexistent_row_is_refused(buffer: Buffer, writer: Writer) -> None:
    commit = writer.prepare()

    with pytest.raises(StaleRead) as refused:
        buffer.commit(replace(commit, rows={R1: RowPut(b"state", 7)}))

    assert refused.value.rows == {R1: None}


@pytest.mark.law("B3")
def test_stale_read_carries_exactly_the_rows_that_changed(buffer: Buffer, writer: Writer) -> None:
    keys = [("todos", row_id) for row_id in ODD_IDS]
    writer.write(rows=dict.fromkeys(keys, b"old"))
    late = writer.prepare("other", rows=dict.fromkeys([*keys, R1, R2], b"late"))
    winner = writer.write("main", rows={**{key: bytes(9_000) for key in keys[1:]}, R1: b"new"})

    with pytest.raises(StaleRead) as refused:
        buffer.commit(late)

    expected = {key: StoredRow(bytes(9_000), winner.stamp) for key in keys[1:]}
    assert refused.value.rows == {**expected, R1: StoredRow(b"new", winner.stamp)}


@pytest.mark.law("B3")
def test_refusal_with_moved_heads_and_stale_rows_reports_the_heads(
    buffer: Buffer, writer: Writer
) -> None:
    late = writer.prepare("main", "other", rows={R1: b"late"})
    winner = writer.write("main", rows={R1: b"winner"})

    with pytest.raises(HeadMoved) as refused:
        buffer.commit(late)

    assert {lane: head.commit for lane, head in refused.value.heads.items()} == {
        "main": winner.stamp
    }


@pytest.mark.law("B3")
def test_commit_on_a_stale_mark_is_refused_and_changes_nothing(
    buffer: Buffer, writer: Writer
) -> None:
    stale = writer.prepare(marks={"phone": AppendMark(9)})
    writer.write(marks={"phone": AppendMark(5)})
    commit = writer.prepare()
    before = everything(buffer, writer.gateway)

    with pytest.raises(StaleRead) as refused:
        buffer.commit(replace(commit, marks=stale.marks))

    assert refused.value.rows == {}
    assert everything(buffer, writer.gateway) == before


@pytest.mark.law("B4")
def test_repeated_commit_succeeds_and_changes_nothing(buffer: Buffer, writer: Writer) -> None:
    commit = writer.write(rows={R1: b"one"}, marks={"phone": AppendMark(5)})
    writer.write(rows={R1: b"two"})
    before = everything(buffer, writer.gateway)

    buffer.commit(commit)

    assert everything(buffer, writer.gateway) == before
    with pytest.raises(HeadMoved):
        buffer.commit(renamed(commit))


def test_a_commit_of_a_hundred_items_fits(buffer: Buffer, writer: Writer) -> None:
    keys = [("todos", f"r{number}") for number in range(98)]
    writer.write(rows=dict.fromkeys(keys, b"state"))

    assert len(buffer.rows(writer.gateway, keys)) == 98


def test_items_near_the_limit_of_a_store_fit(buffer: Buffer, writer: Writer) -> None:
    large = bytes(range(256)) * 1_484  # 380 KB
    writer.write(records=large, rows={("todos", "x" * 512): large})

    assert buffer.entries(writer.gateway, "main", 0, 1 << 62, 1).entries[0].records == large


# --- the read barrier


@pytest.mark.law("B7")
def test_a_raised_head_stops_commits_at_or_below_it(buffer: Buffer, writer: Writer) -> None:
    writer.write("main")
    late = writer.prepare("main")

    assert buffer.raise_head(writer.gateway, "main", writer.head("main"), late.stamp, Head())

    with pytest.raises(HeadMoved):
        buffer.commit(late)
    head = writer.head("main")
    assert head is not None
    assert (head.commit, head.last_logged) == (late.stamp, late.stamp - 10)


@pytest.mark.law("B7")
def test_head_that_changed_since_read_is_not_raised(buffer: Buffer, writer: Writer) -> None:
    writer.write("main")
    seen = writer.head("main")
    writer.write("main")
    before = writer.head("main")

    assert not buffer.raise_head(writer.gateway, "main", seen, 9_999, Head())
    assert not buffer.raise_head(writer.gateway, "main", None, 9_999, Head())
    assert not buffer.raise_head(writer.gateway, "never", seen, 9_999, Head())
    assert writer.head("main") == before
    assert writer.head("never") is None


# --- the log


@pytest.mark.law("B8")
@pytest.mark.parametrize("count_max", [1, 3, 50, 1_000])
def test_entries_are_read_in_order_without_gaps_at_any_page_size(
    buffer: Buffer, writer: Writer, count_max: int
) -> None:
    stamps = [writer.write(count=1 + number % 3).stamp for number in range(30)]
    read, after = [], 0
    while after < stamps[-1]:
        part = buffer.entries(writer.gateway, "main", after, stamps[-1], count_max)
        assert part.entries
        assert part.until >= part.entries[-1].stamp > after
        if part.until < stamps[-1]:
            assert sum(entry.count for entry in part.entries) >= count_max
        assert sum(entry.count for entry in part.entries[:-1]) < count_max
        read += [entry.stamp for entry in part.entries]
        after = part.until

    assert read == stamps


@pytest.mark.law("B8")
def test_a_range_of_the_log_is_open_below_and_closed_above(buffer: Buffer, writer: Writer) -> None:
    stamps = [writer.write().stamp for _ in range(4)]
    log = buffer.entries(writer.gateway, "main", stamps[0], stamps[2], 100)

    assert [entry.stamp for entry in log.entries] == stamps[1:3]
    assert log.until == stamps[2]
    assert buffer.entries(writer.gateway, "main", 5, 5, 100).entries == ()


@pytest.mark.law("B8")
def test_read_of_large_entries_ends_at_a_megabyte_and_reports_its_end(
    buffer: Buffer, writer: Writer
) -> None:
    stamps = [writer.write(records=bytes(300_000)).stamp for _ in range(9)]
    log = buffer.entries(writer.gateway, "main", 0, 1 << 62, 10_000)

    assert 1_048_576 <= sum(len(entry.records) for entry in log.entries) < 1_400_000
    assert log.until == log.entries[-1].stamp < stamps[-1]


# --- configuration

PLACED = GatewayConfig(
    version=1,
    schemas=MappingProxyType(
        {"todos": TableSchema("todos", (Column("title", "string"),), soft_delete=True)}
    ),
    layout=Layout().moved("todos", "hot"),
)


def declare(buffer: Buffer, gateway: str, config: GatewayConfig, to: int) -> None:
    """Put a configuration in force, as whoever reads the main lane's head now would."""
    main = buffer.heads(gateway).get(MAIN_LANE)
    lanes = (main or Head()).lanes.paused(0)
    buffer.save_config(gateway, config, main, lanes, to)


@pytest.mark.law("B6")
def test_saved_configuration_is_read_back_and_its_version_is_in_the_main_head(
    buffer: Buffer, writer: Writer
) -> None:
    writer.write("main", rows={R1: b"one"})
    before = writer.head("main")
    assert before is not None

    buffer.save_config(writer.gateway, PLACED, before, ONE_LANE.paused(77), 5_000)

    assert buffer.config(writer.gateway) == PLACED
    expected = replace(before, commit=5_000, config_version=1, lanes=ONE_LANE.paused(77))
    assert buffer.all_heads(writer.gateway) == {"main": expected}


@pytest.mark.law("B6")
def test_first_configuration_creates_the_main_head(buffer: Buffer, gateway: str) -> None:
    buffer.save_config(gateway, PLACED, None, ONE_LANE.paused(0), 5_000, epoch="e")

    expected = Head(commit=5_000, config_version=1, epoch="e", lanes=ONE_LANE.paused(0))
    assert buffer.heads(gateway) == {"main": expected}


@pytest.mark.law("B6")
def test_commit_with_an_older_configuration_version_is_refused(
    buffer: Buffer, writer: Writer
) -> None:
    writer.write("main")
    late = writer.prepare("main", at=6_000)
    first = Writer(buffer, f"{writer.gateway}-new").prepare("main", at=6_000)
    for commit in (late, first):
        declare(buffer, commit.gateway, PLACED, 1_020)

        with pytest.raises(HeadMoved) as refused:
            buffer.commit(commit)
        assert refused.value.heads["main"].config_version == 1


@pytest.mark.law("B6")
def test_configuration_that_does_not_raise_the_head_is_refused(
    buffer: Buffer, writer: Writer
) -> None:
    writer.write("main")
    seen = writer.head("main")
    before = everything(buffer, writer.gateway)

    for to in (1_009, 1_010):
        with pytest.raises(HeadMoved) as refused:
            buffer.save_config(writer.gateway, PLACED, seen, ONE_LANE.paused(0), to)
        assert refused.value.heads == {"main": seen}

    assert buffer.config(writer.gateway) == GatewayConfig()
    assert everything(buffer, writer.gateway) == before


@pytest.mark.law("B6")
def test_configuration_saved_without_seeing_the_first_head_is_refused(
    buffer: Buffer, writer: Writer
) -> None:
    writer.write("main")

    with pytest.raises(HeadMoved):
        buffer.save_config(writer.gateway, PLACED, None, ONE_LANE.paused(0), 5_000)
    with pytest.raises(HeadMoved):
        buffer.save_config(
            f"{writer.gateway}-new", PLACED, writer.head("main"), ONE_LANE.paused(0), 5_000
        )

    assert buffer.config(writer.gateway) == GatewayConfig()


@pytest.mark.law("B6")
def test_configuration_is_saved_despite_commits_since_its_head_was_read(
    buffer: Buffer, writer: Writer
) -> None:
    """Where pushes move the head all the time, only the lanes have to be as they were seen."""
    writer.write("main")
    seen = writer.head("main")
    later = writer.write("main")

    buffer.save_config(writer.gateway, PLACED, seen, ONE_LANE.paused(0), 5_000)

    head = writer.head("main")
    assert head is not None
    assert (head.commit, head.last_logged, head.config_version) == (5_000, later.stamp, 1)


def test_configuration_whose_version_is_not_the_next_is_refused(
    buffer: Buffer, gateway: str
) -> None:
    declare(buffer, gateway, PLACED, 10)

    with pytest.raises(ConfigMoved):
        declare(buffer, gateway, replace(PLACED, layout=Layout()), 20)
    declare(buffer, gateway, replace(PLACED, version=2), 20)
    with pytest.raises(ConfigMoved):
        declare(buffer, gateway, replace(PLACED, version=4), 30)

    assert buffer.config(gateway).version == 2


def test_a_configured_gateway_is_listed(buffer: Buffer, gateway: str) -> None:
    declare(buffer, gateway, PLACED, 10)

    assert gateway in buffer.gateways()


# --- flushing


def test_flush_state_changes_only_from_the_seen_state(buffer: Buffer, gateway: str) -> None:
    recorded = FlushState(until=50)
    done = FlushState(watermark=50)

    assert buffer.save_flush_state(gateway, FlushState(), recorded)
    assert not buffer.save_flush_state(gateway, FlushState(), FlushState(until=60))
    assert buffer.flush_state(gateway) == recorded
    assert buffer.save_flush_state(gateway, recorded, done)
    assert not buffer.save_flush_state(gateway, recorded, FlushState(until=70))
    assert buffer.flush_state(gateway) == done


def test_flushed_tables_are_listed_by_name_and_never_go_back(buffer: Buffer, gateway: str) -> None:
    assert buffer.flushed_tables(gateway) == {}
    for table, last in [("todos", 40), ("Notes", 50), ("_x", 1), ("todos", 60), ("Notes", 49)]:
        buffer.save_flushed_table(gateway, table, last)

    assert list(buffer.flushed_tables(gateway).items()) == [("Notes", 50), ("_x", 1), ("todos", 60)]
    assert buffer.flushed_tables(gateway, "Notes") == {"_x": 1, "todos": 60}
    assert buffer.flushed_tables(gateway, "todos") == {}
    assert buffer.flushed_tables("another") == {}


def test_over_a_thousand_flushed_tables_are_listed(buffer: Buffer, gateway: str) -> None:
    names = [f"t{number:04}" for number in range(1_200)]
    for number, name in enumerate(names):
        buffer.save_flushed_table(gateway, name, number + 1)

    assert list(buffer.flushed_tables(gateway)) == names


def test_noted_flushed_bytes_are_never_lowered(buffer: Buffer, writer: Writer) -> None:
    first, second = writer.write(), writer.write()
    size = len(RECORDS)

    def noted() -> tuple[int, int]:
        head = writer.head("main")
        assert head is not None
        return head.flushed_bytes, head.oldest_unflushed

    assert noted() == (0, first.stamp)
    buffer.note_flushed(writer.gateway, "main", first.stamp, size)
    assert noted() == (size, first.stamp)
    buffer.note_flushed(writer.gateway, "main", second.stamp, 2 * size)
    assert noted() == (2 * size, 0)
    buffer.note_flushed(writer.gateway, "main", first.stamp, size)
    assert noted() == (2 * size, 0)
    third = writer.write()
    assert noted() == (2 * size, third.stamp)


def test_note_flushed_on_a_missing_lane_creates_no_head(buffer: Buffer, gateway: str) -> None:
    buffer.note_flushed(gateway, "main", 5, 10)
    buffer.note_flushed(gateway, "main.1", 5, 10)

    assert buffer.all_heads(gateway) == {}


def test_note_flushed_does_not_move_the_head(buffer: Buffer, writer: Writer) -> None:
    first = writer.write()
    waiting = writer.prepare()
    buffer.note_flushed(writer.gateway, "main", first.stamp, len(RECORDS))

    buffer.commit(waiting)

    head = writer.head("main")
    assert head is not None
    assert (head.commit, head.flushed_bytes) == (waiting.stamp, len(RECORDS))


# --- which gateways have unflushed data


def waiting(buffer: Buffer, gateways: set[str]) -> set[str]:
    """Return those of some gateways that are listed, by slices of one head."""
    listed: set[str] = set()
    place = ""
    while True:
        due = buffer.unflushed(place, 1)
        assert len(due.gateways) <= 1
        listed |= set(due.gateways) & gateways
        if not due.place:
            return listed
        place = due.place


@pytest.mark.law("D6")
def test_gateway_with_unflushed_commits_is_listed(buffer: Buffer, gateway: str) -> None:
    names = {f"{gateway}-{number}" for number in range(4)}
    writers = {name: Writer(buffer, name) for name in sorted(names)}
    assert waiting(buffer, names) == set()
    commits = {name: writer.write() for name, writer in writers.items()}
    assert waiting(buffer, names) == names

    some = f"{gateway}-2"
    size = len(RECORDS)
    buffer.note_flushed(some, "main", commits[some].stamp, size)
    assert waiting(buffer, names) == names - {some}
    head = writers[some].head("main")
    assert head is not None
    buffer.raise_head(some, "main", head, commits[some].stamp + 9, head)
    assert waiting(buffer, names) == names - {some}
    other = writers[some].write("side")
    assert waiting(buffer, names) == names
    buffer.note_flushed(some, "side", other.stamp, size)
    assert waiting(buffer, names) == names - {some}


@pytest.mark.law("D6")
def test_gateway_whose_flush_is_behind_stays_listed(buffer: Buffer, writer: Writer) -> None:
    first, _ = writer.write(), writer.write()
    buffer.note_flushed(writer.gateway, "main", first.stamp, len(RECORDS))

    assert waiting(buffer, {writer.gateway}) == {writer.gateway}


def test_unflushed_slice_reports_its_oldest_waiting_commit(buffer: Buffer, gateway: str) -> None:
    first, second = (Writer(buffer, f"{gateway}-{number}") for number in range(2))
    old, young = first.write(), second.write(at=first.stamp + 7)
    oldest: dict[str, int] = {}
    place = ""
    while True:
        due = buffer.unflushed(place, 1)
        oldest |= dict.fromkeys(due.gateways, due.oldest)
        if not due.place:
            break
        place = due.place

    assert oldest[first.gateway] == old.stamp
    assert oldest[second.gateway] == young.stamp


# --- scanning rows


def scanned(buffer: Buffer, gateway: str, table: str, count_max: int) -> list[tuple[str, bytes]]:
    """Return all rows of a table, slice by slice."""
    rows: list[tuple[str, bytes]] = []
    place = ""
    while True:
        part = buffer.scan_rows(gateway, table, place, count_max)
        assert len(part.rows) <= count_max
        rows += [(row_id, row.state) for row_id, row in part.rows]
        place = part.place
        if not place:
            return rows


@pytest.mark.law("B11")
@pytest.mark.parametrize("count_max", [1, 7, 1_000])
def test_a_scan_gives_every_row_of_a_table_once(
    buffer: Buffer, writer: Writer, count_max: int
) -> None:
    ids = [*(f"r{number}" for number in range(40)), *ODD_IDS]
    writer.write(rows={("todos", row_id): row_id.encode() for row_id in ids})
    writer.write(rows={("notes", "r1"): b"another table"})

    rows = scanned(buffer, writer.gateway, "todos", count_max)

    assert sorted(rows) == sorted((row_id, row_id.encode()) for row_id in ids)
    assert scanned(buffer, writer.gateway, "nothing", 10) == []


@pytest.mark.law("B11")
def test_scan_returns_each_row_in_its_current_state(buffer: Buffer, writer: Writer) -> None:
    writer.write(rows={R1: b"old", R2: b"old"})
    part = buffer.scan_rows(writer.gateway, "todos", "", 1)
    last = writer.write(rows={R1: b"new", R2: b"new"})

    rest = buffer.scan_rows(writer.gateway, "todos", part.place, 10)

    assert [row for _, row in part.rows] == [(b"old", last.stamp - 10)]
    assert [row for _, row in rest.rows] == [(b"new", last.stamp)]


def test_a_scan_of_large_rows_ends_at_a_megabyte(buffer: Buffer, writer: Writer) -> None:
    for number in range(5):
        writer.write(rows={("todos", f"r{number}"): bytes(380_000)})

    part = buffer.scan_rows(writer.gateway, "todos", "", 100)

    assert len(part.rows) in {3, 4}
    assert part.place
    assert len(scanned(buffer, writer.gateway, "todos", 100)) == 5


@pytest.mark.law("B11")
@pytest.mark.parametrize("count_max", [1, 3, 1_000])
def test_scan_parts_return_every_row_once_in_id_order(
    buffer: Buffer, writer: Writer, count_max: int
) -> None:
    ids = [*(f"r{number}" for number in range(60)), *ODD_IDS]
    writer.write(rows={("todos", row_id): row_id.encode() for row_id in ids})
    scanned_ids: list[str] = []
    for part in range(ROW_PARTS):
        after, of_part = "", []
        while True:
            scan = buffer.scan_part(writer.gateway, "todos", part, after, count_max)
            assert len(scan.rows) <= count_max
            assert all(row.state == row_id.encode() for row_id, row in scan.rows)
            of_part += [row_id for row_id, _ in scan.rows]
            after = scan.place
            if not after:
                break
        assert of_part == sorted(of_part)
        scanned_ids += of_part

    assert sorted(scanned_ids) == sorted(ids)
    assert len({part for part in range(ROW_PARTS)
                if buffer.scan_part(writer.gateway, "todos", part, "", 1).rows}) > 8  # fmt: skip


# --- forgetting


@pytest.mark.law("R5")
def test_row_is_forgotten_only_at_the_seen_stamp(buffer: Buffer, writer: Writer) -> None:
    gateway = writer.gateway
    first = writer.write(rows={R1: b"old", R2: b"old"})
    second = writer.write(rows={R1: b"new"})

    assert not buffer.forget_row(gateway, *R1, first.stamp)
    assert buffer.forget_row(gateway, *R1, second.stamp)
    assert not buffer.forget_row(gateway, *R1, second.stamp)
    assert not buffer.forget_row(gateway, "notes", "r1", first.stamp)
    assert set(buffer.rows(gateway, [R1, R2])) == {R2}
    assert scanned(buffer, gateway, "todos", 10) == [("r2", b"old")]


@pytest.mark.law("R5")
def test_commit_on_a_forgotten_row_is_refused(buffer: Buffer, writer: Writer) -> None:
    written = writer.write(rows={R1: b"old"})
    prepared = writer.prepare(rows={R1: b"new"})
    buffer.forget_row(writer.gateway, *R1, written.stamp)

    with pytest.raises(StaleRead):
        buffer.commit(prepared)
    assert buffer.rows(writer.gateway, [R1]) == {}


# --- trimming


@pytest.mark.law("B10")
def test_entries_below_the_horizon_are_dropped_in_batches(buffer: Buffer, writer: Writer) -> None:
    stamps = [writer.write().stamp for _ in range(60)]
    gateway = writer.gateway

    def left() -> list[int]:
        return [entry.stamp for entry in buffer.entries(gateway, "main", 0, 1 << 62, 100).entries]

    assert buffer.drop_entries(gateway, "main", 10, 30)  # nothing is below
    buffer.raise_horizon(gateway, stamps[49])
    assert left() == stamps
    assert not buffer.drop_entries(gateway, "main", stamps[49], 30)
    assert left() == stamps[30:]
    assert buffer.drop_entries(gateway, "main", stamps[49], 30)
    assert left() == stamps[50:]
    assert buffer.drop_entries(gateway, "main", stamps[49], 30)
    assert left() == stamps[50:]


@pytest.mark.law("B10")
def test_a_horizon_is_never_lowered_and_makes_no_head(buffer: Buffer, writer: Writer) -> None:
    writer.write()
    waiting = writer.prepare()
    buffer.raise_horizon(writer.gateway, 700)
    buffer.raise_horizon(writer.gateway, 600)
    buffer.raise_horizon(f"{writer.gateway}-new", 600)

    buffer.commit(waiting)  # it moves no head

    head = writer.head("main")
    assert head is not None
    assert (head.trimmed, head.commit) == (700, waiting.stamp)
    assert buffer.all_heads(f"{writer.gateway}-new") == {}
    assert buffer.drop_entries(writer.gateway, "other", 600, 10)


# --- epochs

RESTORED = restored_at(new_epoch("a"), 5_000)


@pytest.mark.law("B12")
def test_an_epoch_is_in_the_main_head_and_above_every_commit(
    buffer: Buffer, writer: Writer
) -> None:
    commit = writer.write("main", "main.1")
    waiting = writer.prepare("main")
    lanes = ONE_LANE.opening("main", 2).closing({"main": 1}, commit.stamp)

    buffer.begin_epoch(writer.gateway, writer.head("main"), lanes, 5_000, 7, RESTORED)

    head = writer.head("main")
    assert head is not None
    assert (head.commit, head.epoch, head.config_version) == (5_000, RESTORED, 7)
    assert (head.last_logged, head.lanes) == (commit.stamp, lanes)
    with pytest.raises(HeadMoved):
        buffer.commit(waiting)
    buffer.commit(replace(writer.prepare("main", "main.2", at=5_010), epoch=RESTORED))
    assert writer.head("main").epoch == RESTORED  # type: ignore[union-attr]
    assert buffer.epoch(writer.gateway) == RESTORED


@pytest.mark.law("B19")
@pytest.mark.parametrize("lanes", [("main",), ("main", "other")])
def test_first_commit_sets_the_epoch_of_the_main_head_and_later_ones_keep_it(
    buffer: Buffer, writer: Writer, lanes: tuple[str, ...]
) -> None:
    for epoch in ("first", "second"):
        buffer.commit(replace(writer.prepare(*lanes), epoch=epoch))
        head = writer.head("main")
        assert head is not None
        assert head.epoch == "first"
        buffer.save_config(
            writer.gateway,
            GatewayConfig(head.config_version + 1),
            head,
            ONE_LANE,
            head.commit + 1,
            epoch="third",
        )
        writer.config_version, writer.stamp = head.config_version + 1, head.commit + 1
        assert writer.head("main").epoch == "first"  # type: ignore[union-attr]

    assert all(not writer.head(lane).epoch for lane in lanes[1:])  # type: ignore[union-attr]


@pytest.mark.law("B12")
def test_epoch_can_begin_on_an_unwritten_gateway(buffer: Buffer, gateway: str) -> None:
    buffer.begin_epoch(gateway, None, ONE_LANE.paused(0), 5_000, 0, "")

    expected = Head(commit=5_000, lanes=ONE_LANE.paused(0))
    assert buffer.all_heads(gateway) == {"main": expected}
    assert gateway in buffer.gateways()


@pytest.mark.law("B12")
def test_epoch_that_does_not_raise_the_seen_head_is_refused(buffer: Buffer, writer: Writer) -> None:
    writer.write("main", at=6_000)
    seen = writer.head("main")

    for to, head in ((5_000, seen), (6_000, seen), (7_000, None)):
        with pytest.raises(HeadMoved) as refused:
            buffer.begin_epoch(writer.gateway, head, ONE_LANE.paused(0), to, 0, RESTORED)
        assert refused.value.heads["main"] == seen

    assert writer.head("main") == seen
