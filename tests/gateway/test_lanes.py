"""Many who write at once, each in a lane of its own: what pushes and pulls see of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lakesync.adapters.lake.parquet import ParquetEncoder
from lakesync.buffer.memory_buffer import MemoryBuffer
from lakesync.core.clock import STAMP_MAX
from lakesync.core.layout import MAIN_LANE
from lakesync.core.messages import Pull
from lakesync.errors import Backpressure, Contention
from lakesync.log.lanes import FREE_MS, IDLE_MS, Limits, close_lanes
from lakesync.log.read import RAISED_EVERY_MS
from lakesync.maintenance.flush import Flusher
from lakesync.wire.records import decode_row_state
from tests.support.builders import WALL_MS, at_ms, insert, push, update
from tests.support.commits import logged
from tests.support.gateways import GivenTime, administrator, deltas_of, pulled, puller, pusher
from tests.support.lake import Messages, Objects
from tests.support.lanes import close_all_but, open_lanes

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lakesync.core.clock import Stamp
    from lakesync.core.delta import Delta
    from lakesync.gateway.push import PushService
    from lakesync.ports import Head, RowKey, StoredRow

GATEWAY = "g"


@pytest.fixture
def time() -> GivenTime:
    return GivenTime(WALL_MS + 60_000)


@pytest.fixture
def buffer() -> MemoryBuffer:
    return MemoryBuffer()


def race(
    services: list[PushService], time: GivenTime, rounds: int, text: str = "", first: int = 0
) -> list[Delta]:
    """Let processes push in turns, so quickly that each finds that another wrote meanwhile."""
    made = []
    for number in range(first, first + rounds):
        for place, service in enumerate(services):
            time.now_ms += 1
            delta = insert(f"r{number}-{place}", at=at_ms(number, place), n=text)
            assert service.push(GATEWAY, push(delta)).accepted == 1
            made.append(delta)
    return made


@pytest.mark.law("B2", "B8")
@pytest.mark.parametrize("text", ["", "x" * 2_000])
def test_processes_that_write_concurrently_use_separate_lanes(
    buffer: MemoryBuffer, time: GivenTime, text: str
) -> None:
    services = [pusher(buffer, seed=seed, time_=time) for seed in range(3)]

    made = race(services, time, 12, text)

    lanes = buffer.heads(GATEWAY)[MAIN_LANE].lanes.open()
    assert len(lanes) >= 3
    assert sum(1 for entries in logged(buffer, GATEWAY).values() if entries) >= 3
    for deltas_max in (1, 4, 100):
        assert pulled(buffer, GATEWAY, deltas_max=deltas_max) == made


@pytest.mark.law("B8")
def test_small_entries_move_from_heads_to_the_log_and_every_cursor_gets_them(
    buffer: MemoryBuffer, time: GivenTime
) -> None:
    service = pusher(buffer, time_=time)
    made: list[Delta] = []
    cursors = [0]
    in_heads = set()
    for number in range(40):
        time.now_ms += 1
        made.append(insert(f"r{number}", at=at_ms(number), n=number))
        service.push(GATEWAY, push(made[-1]))
        page = puller(buffer, time_=time).pull(GATEWAY, Pull("r", cursors[-1]))
        assert deltas_of(page) == made[-1:]
        cursors.append(page.cursor)
        in_heads.add(len(buffer.heads(GATEWAY)[MAIN_LANE].recent))

    chunks = buffer._gateways[GATEWAY].logs[MAIN_LANE]
    assert 0 in in_heads
    assert max(in_heads) > 3
    assert 1 < len(chunks) < 40 / 3
    for number, cursor in enumerate(cursors):
        assert pulled(buffer, GATEWAY, since=cursor, deltas_max=3) == made[number:]


@pytest.mark.law("B7", "B8")
def test_closed_and_reopened_lane_hides_no_commit(buffer: MemoryBuffer, time: GivenTime) -> None:
    services = [pusher(buffer, seed=seed, time_=time) for seed in range(2)]
    made = race(services, time, 4)
    used = buffer.heads(GATEWAY)[MAIN_LANE].lanes.used()
    reader = puller(buffer, time_=time)
    cursor = reader.pull(GATEWAY, Pull("r", at_least=STAMP_MAX)).cursor

    close_all_but(buffer, GATEWAY)

    assert buffer.heads(GATEWAY)[MAIN_LANE].lanes.open() == [MAIN_LANE]
    assert pulled(buffer, GATEWAY) == made  # closed lanes are read for who has not read them
    assert pulled(buffer, GATEWAY, since=cursor) == []
    more = race(services, time, 4, first=4)  # with what the processes remember of those lanes
    assert set(buffer.heads(GATEWAY)[MAIN_LANE].lanes.open()) <= set(used)
    assert len(buffer.heads(GATEWAY)[MAIN_LANE].lanes.open()) > 1
    assert pulled(buffer, GATEWAY, since=cursor) == more
    assert pulled(buffer, GATEWAY) == made + more


@pytest.mark.law("B16")
def test_flush_closes_idle_lanes(buffer: MemoryBuffer, time: GivenTime) -> None:
    services = [pusher(buffer, seed=seed, time_=time) for seed in range(2)]
    made = race(services, time, 4)
    flusher = Flusher(buffer, Objects(), Messages(), ParquetEncoder(), Messages())
    flusher.flush(GATEWAY)
    assert len(buffer.heads(GATEWAY)[MAIN_LANE].lanes.open()) > 1
    time.now_ms += 2 * IDLE_MS
    late = insert("late", at=at_ms(99), n=1)
    pusher(buffer, seed=9, time_=time).push(GATEWAY, push(late))

    flusher.flush(GATEWAY)

    assert buffer.heads(GATEWAY)[MAIN_LANE].lanes.open() == [MAIN_LANE]
    assert pulled(buffer, GATEWAY) == [*made, late]


class CountingHeads(MemoryBuffer):
    """Counts how many heads are read."""

    read = 0

    def heads(self, gateway: str, since: int = 0, *, at_once: bool = False) -> dict[str, Head]:
        heads = super().heads(gateway, since, at_once=at_once)
        self.read += len(heads)
        return heads


@pytest.mark.law("B16")
@pytest.mark.parametrize("ahead_ms", [0, 600_000])
def test_quiet_gateway_is_read_with_one_head_after_its_lanes_are_closed(
    time: GivenTime, ahead_ms: int
) -> None:
    """Also where stamps are far ahead of clocks, as they are after a restore."""
    buffer, later = CountingHeads(), Messages()
    time.now_ms += ahead_ms
    made = race([pusher(buffer, seed=seed, time_=time) for seed in range(3)], time, 6)
    time.now_ms -= ahead_ms
    flusher = Flusher(
        buffer, Objects(), Messages(), ParquetEncoder(), Messages(),
        still_open=lambda gateway, since: later.send(f"{gateway} {since}"),
    )  # fmt: skip
    flusher.flush(GATEWAY)
    readers = [puller(buffer, time_=time) for _ in range(2)]
    cursor = max(reader.pull(GATEWAY, Pull("r", at_least=STAMP_MAX)).cursor for reader in readers)
    assert len(buffer.heads(GATEWAY)) >= 3
    ((gateway, since),) = [sent.split() for sent in later.sent]

    flusher.close_lanes(gateway, int(since))

    for reader in (*readers, *readers):
        before = buffer.read
        page = reader.pull(GATEWAY, Pull("r", cursor))
        assert (page.count, page.has_more, page.behind_ms) == (0, False, 0)
        assert buffer.read == before + 1
        cursor = page.cursor
    assert pulled(buffer, GATEWAY) == made
    flusher.flush(GATEWAY)
    assert len(later.sent) == 1, "nothing is left to look at"


@pytest.mark.law("B16")
def test_lanes_in_use_are_not_closed(buffer: MemoryBuffer, time: GivenTime) -> None:
    services = [pusher(buffer, seed=seed, time_=time) for seed in range(2)]
    race(services, time, 4)
    asked: list[Stamp] = []
    flusher = Flusher(
        buffer, Objects(), Messages(), ParquetEncoder(), Messages(),
        still_open=lambda _, since: asked.append(since),
    )  # fmt: skip
    flusher.flush(GATEWAY)
    race(services, time, 1, first=50)
    is_open = buffer.heads(GATEWAY)[MAIN_LANE].lanes.open()

    flusher.close_lanes(GATEWAY, asked[0])

    assert buffer.heads(GATEWAY)[MAIN_LANE].lanes.open() == is_open
    flusher.flush(GATEWAY)
    flusher.close_lanes(GATEWAY, asked[1])
    assert buffer.heads(GATEWAY)[MAIN_LANE].lanes.open() == [MAIN_LANE]


class CountingRows(MemoryBuffer):
    """Counts the rows that are asked for."""

    read = 0

    def rows(self, gateway: str, wanted: Iterable[RowKey]) -> dict[RowKey, StoredRow]:
        keys = list(wanted)
        self.read += len(keys)
        return super().rows(gateway, keys)


@pytest.mark.law("B3")
def test_push_to_a_row_last_written_in_another_lane_merges_without_another_read(
    time: GivenTime,
) -> None:
    """No head stands in the way: only the row's own condition tells, and its answer how it is."""
    buffer = CountingRows()
    one, other = (pusher(buffer, seed=seed, time_=time) for seed in range(2))
    names = insert("names", at=at_ms(0), a=0, b=0, c=0, n="")  # else each declares its column
    one.push(GATEWAY, push(names))
    race([one, other], time, 4)
    assert one.push(GATEWAY, push(insert("both", at=at_ms(90), a=0))).accepted == 1
    assert other.push(GATEWAY, push(update("both", at=at_ms(91), b=1))).accepted == 1
    read_before = buffer.read

    assert one.push(GATEWAY, push(update("both", at=at_ms(92), c=2))).accepted == 1

    assert buffer.read == read_before
    state = decode_row_state(buffer.rows(GATEWAY, [("todos", "both")])["todos", "both"].state)
    assert sorted(state.columns) == ["a", "b", "c"]
    commits = [entry.stamp for entries in logged(buffer, GATEWAY).values() for entry in entries]
    assert len(commits) == 1 + 8 + 3


@pytest.mark.law("B6")
def test_new_configuration_is_in_force_for_the_writers_of_all_lanes(
    buffer: MemoryBuffer, time: GivenTime
) -> None:
    services = [pusher(buffer, seed=seed, time_=time) for seed in range(3)]
    made = race(services, time, 6)
    schema = {"table": "todos", "columns": [{"name": "n", "type": "integer"}]}

    administrator(buffer, time_=time).register_schema(GATEWAY, schema)

    assert buffer.heads(GATEWAY)[MAIN_LANE].lanes.open() == [MAIN_LANE]
    for number, service in enumerate(services):
        wrong = insert(f"wrong{number}", at=at_ms(90, number), n="text")
        (outcome,) = service.push(GATEWAY, push(wrong)).outcomes
        assert outcome.error is not None
        assert outcome.error.code == "SCHEMA_ERROR"
    assert pulled(buffer, GATEWAY) == made


@pytest.mark.law("B6")
def test_commit_prepared_before_a_configuration_change_does_not_happen_after_it(
    time: GivenTime,
) -> None:
    """Whoever closed the lanes, a commit that was prepared before does not happen after."""

    class Slow(MemoryBuffer):
        """Changes the configuration while a commit is on its way, once."""

        waits = False

        def commit(self, commit: object) -> None:
            if self.waits:
                self.waits = False
                administrator(self, time_=time).set_strict(GATEWAY, strict=True)
            super().commit(commit)  # type: ignore[arg-type]

    buffer = Slow()
    services = [pusher(buffer, seed=seed, time_=time) for seed in range(2)]
    made = race(services, time, 4)
    for service in services:
        administrator(buffer, time_=time).set_strict(GATEWAY, strict=False)
        buffer.waits = True
        (outcome,) = service.push(GATEWAY, push(insert("late", at=at_ms(95), n="x"))).outcomes
        assert outcome.error is not None
    assert pulled(buffer, GATEWAY) == made


def test_push_waits_to_open_a_lane_while_a_configuration_changes(
    buffer: MemoryBuffer, time: GivenTime
) -> None:
    service = pusher(buffer, time_=time)
    known = [insert("r1", at=at_ms(1), table=table, n=1) for table in ("todos", "notes")]
    service.push(GATEWAY, push(*known))
    administrator(buffer, time_=time).place_table(GATEWAY, "notes", "side")
    main = buffer.heads(GATEWAY)[MAIN_LANE]
    paused = main.lanes.paused(time.wall_clock() + 2_000)
    assert buffer.change_lanes(GATEWAY, main, paused)
    before_ms = time.now_ms

    receipt = service.push(GATEWAY, push(insert("n1", at=at_ms(2), table="notes", n=1)))

    assert receipt.accepted == 1
    assert 2_000 <= time.now_ms - before_ms < 8_000
    assert buffer.heads(GATEWAY).keys() == {MAIN_LANE, "side"}


@pytest.mark.law("D4")
def test_backpressure_applies_per_lane_and_ends_with_a_flush(
    buffer: MemoryBuffer, time: GivenTime
) -> None:
    limits = Limits(backpressure_bytes_max=3_000)
    time.now_ms += 1
    full = pusher(buffer, time_=time, limits=limits)
    with pytest.raises(Backpressure):
        race([full], time, 100, "x" * 100)
    administrator(buffer, time_=time).place_table(GATEWAY, "notes", "side")
    elsewhere = insert("n1", at=at_ms(200), table="notes", n=1)

    assert full.push(GATEWAY, push(elsewhere)).accepted == 1
    with pytest.raises(Backpressure):
        race([full], time, 1, first=300)

    Flusher(buffer, Objects(), Messages(), ParquetEncoder(), Messages()).flush(GATEWAY)
    assert len(race([full], time, 1, first=301)) == 1


def test_push_to_a_lane_closed_by_a_configuration_change_is_retried(
    buffer: MemoryBuffer, time: GivenTime
) -> None:
    """Somebody else wrote to the lane, and then a configuration closed all of the shard."""
    known = [insert("r1", at=at_ms(1), table=table, n=1) for table in ("todos", "notes")]
    services = [pusher(buffer, seed=seed, time_=time) for seed in range(2)]
    services[0].push(GATEWAY, push(*known))
    service = administrator(buffer, time_=time)
    service.place_table(GATEWAY, "notes", "side")
    for number, pushes in enumerate(services):
        pushes.push(GATEWAY, push(insert(f"n{number}", at=at_ms(2), table="notes", n=1)))
    service.set_strict(GATEWAY, strict=False)
    service.place_table(GATEWAY, "other", "elsewhere")
    late = insert("n9", at=at_ms(3), table="notes", n=1)

    assert services[0].push(GATEWAY, push(late)).accepted == 1

    assert pulled(buffer, GATEWAY)[-1] == late


# --- pages


@pytest.mark.law("B7")
def test_page_ends_at_the_lowest_open_lane_and_reports_how_far_behind_it_is(
    buffer: MemoryBuffer, time: GivenTime
) -> None:
    service = pusher(buffer, time_=time)
    service.push(GATEWAY, push(insert("r1", at=at_ms(1), n=1)))
    open_lanes(buffer, GATEWAY, 2)
    reader = puller(buffer, time_=time)
    first = reader.pull(GATEWAY, Pull("r"))  # raises the lane that has no head yet
    assert (first.count, first.behind_ms) == (1, 0)
    time.now_ms += RAISED_EVERY_MS // 2
    late = insert("r2", at=at_ms(2), n=1)
    receipt = service.push(GATEWAY, push(late))

    relaxed = reader.pull(GATEWAY, Pull("r", first.cursor))

    assert (relaxed.count, relaxed.has_more) == (0, False)
    assert 0 < relaxed.behind_ms <= RAISED_EVERY_MS
    for at_least in (receipt.server_hlc, STAMP_MAX):
        asked = reader.pull(GATEWAY, Pull("r", first.cursor, at_least=at_least))
        assert (deltas_of(asked), asked.behind_ms) == ([late], 0)
        assert asked.cursor >= receipt.server_hlc


@pytest.mark.law("B7")
def test_pull_after_a_short_wait_gets_the_commits_of_lagging_lanes(
    buffer: MemoryBuffer, time: GivenTime
) -> None:
    service = pusher(buffer, time_=time)
    service.push(GATEWAY, push(insert("r1", at=at_ms(1), n=1)))
    open_lanes(buffer, GATEWAY, 3)
    reader = puller(buffer, time_=time)
    cursor = reader.pull(GATEWAY, Pull("r")).cursor
    late = insert("r2", at=at_ms(2), n=1)
    service.push(GATEWAY, push(late))
    assert reader.pull(GATEWAY, Pull("r", cursor)).count == 0
    time.now_ms += 2 * RAISED_EVERY_MS

    page = reader.pull(GATEWAY, Pull("r", cursor))

    assert (deltas_of(page), page.behind_ms) == ([late], 0)


@pytest.mark.law("B7", "B8")
def test_lane_opens_above_every_page_read_before(buffer: MemoryBuffer, time: GivenTime) -> None:
    service = pusher(buffer, time_=time)
    service.push(GATEWAY, push(insert("r1", at=at_ms(1), n=1)))
    reader = puller(buffer, time_=time)
    cursor = reader.pull(GATEWAY, Pull("r", at_least=STAMP_MAX)).cursor
    administrator(buffer, time_=time).place_table(GATEWAY, "notes", "side")
    slow = pusher(buffer, seed=1, time_=GivenTime(WALL_MS))
    first = insert("n1", at=at_ms(2), table="notes", n=1)

    slow.push(GATEWAY, push(first))

    assert buffer.heads(GATEWAY)["side"].last_logged > cursor
    page = reader.pull(GATEWAY, Pull("r", cursor, at_least=STAMP_MAX))
    assert deltas_of(page) == [first]


def test_process_reuses_a_free_lane_before_opening_another(
    buffer: MemoryBuffer, time: GivenTime
) -> None:
    services = [pusher(buffer, seed=seed, time_=time) for seed in range(2)]
    race(services, time, 6)
    opened = buffer.heads(GATEWAY)[MAIN_LANE].lanes.open()

    for start in range(10, 40, 3):
        time.now_ms += 2 * FREE_MS
        race(services, time, 3, first=start)

    assert buffer.heads(GATEWAY)[MAIN_LANE].lanes.open() == opened


def test_push_that_cannot_open_a_lane_fails_with_contention(time: GivenTime) -> None:
    class Changing(MemoryBuffer):
        def change_lanes(self, *_: object) -> bool:
            return False

    buffer = Changing()
    administrator(buffer, time_=time).place_table(GATEWAY, "notes", "side")

    with pytest.raises(Contention):
        pusher(buffer, time_=time).push(
            GATEWAY, push(insert("n1", at=at_ms(1), table="notes", n=1))
        )
    assert pulled(buffer, GATEWAY) == []


@pytest.mark.law("B7")
def test_lane_closed_while_its_head_was_read_again_is_reopened_before_the_commit(
    buffer: MemoryBuffer, time: GivenTime
) -> None:
    administrator(buffer, time_=time).place_table(GATEWAY, "notes", "side")
    limits = Limits(backpressure_bytes_max=1)
    service = pusher(buffer, time_=time, limits=limits)
    service.push(GATEWAY, push(insert("n1", at=at_ms(1), table="notes", n=1)))
    heads = buffer.heads(GATEWAY)
    buffer.note_flushed(GATEWAY, "side", heads["side"].commit, heads["side"].logged_bytes)
    assert close_lanes(buffer, GATEWAY, heads, {"side": 0})
    second = insert("n2", at=at_ms(2), table="notes", n=2)

    service.push(GATEWAY, push(second))  # what it remembers of the head says that too much waits

    main = buffer.heads(GATEWAY)[MAIN_LANE]
    assert main.lanes.open() == [MAIN_LANE, "side"]
    assert pulled(buffer, GATEWAY)[-1] == second
