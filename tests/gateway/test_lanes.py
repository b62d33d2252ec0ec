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
from tests.support.gateways import (
    GATEWAY,
    GatewayWorld,
    GivenTime,
    administrator,
    deltas_of,
    pusher,
)
from tests.support.lake import Messages, Objects
from tests.support.lanes import close_all_but, open_lanes

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lakesync.core.clock import Stamp
    from lakesync.core.delta import Delta
    from lakesync.gateway.push import PushService
    from lakesync.ports import Head, RowKey, StoredRow


def race(
    services: list[PushService], world: GatewayWorld, rounds: int, text: str = "", first: int = 0
) -> list[Delta]:
    """Let processes push in turns, so quickly that each finds that another wrote meanwhile."""
    made = []
    for number in range(first, first + rounds):
        for place, service in enumerate(services):
            world.time.now_ms += 1
            delta = insert(f"r{number}-{place}", at=at_ms(number, place), n=text)
            assert service.push(GATEWAY, push(delta)).accepted == 1
            made.append(delta)
    return made


@pytest.mark.law("B2", "B8")
@pytest.mark.parametrize("text", ["", "x" * 2_000])
def test_processes_that_write_concurrently_use_separate_lanes(
    world: GatewayWorld, text: str
) -> None:
    services = [world.pusher(seed) for seed in range(3)]

    made = race(services, world, 12, text)

    lanes = world.buffer.heads(GATEWAY)[MAIN_LANE].lanes.open()
    assert len(lanes) >= 3
    assert sum(1 for entries in logged(world.buffer, GATEWAY).values() if entries) >= 3
    for deltas_max in (1, 4, 100):
        assert world.pulled(deltas_max=deltas_max) == made


@pytest.mark.law("B8")
def test_small_entries_move_from_heads_to_the_log_and_every_cursor_gets_them(
    world: GatewayWorld,
) -> None:
    made: list[Delta] = []
    cursors = [0]
    in_heads = set()
    for number in range(40):
        world.time.now_ms += 1
        made.append(insert(f"r{number}", at=at_ms(number), n=number))
        world.send(made[-1])
        page = world.page(cursors[-1])
        assert deltas_of(page) == made[-1:]
        cursors.append(page.cursor)
        in_heads.add(len(world.buffer.heads(GATEWAY)[MAIN_LANE].recent))

    chunks = world.buffer._gateways[GATEWAY].logs[MAIN_LANE]
    assert 0 in in_heads
    assert max(in_heads) > 3
    assert 1 < len(chunks) < 40 / 3
    for number, cursor in enumerate(cursors):
        assert world.pulled(since=cursor, deltas_max=3) == made[number:]


@pytest.mark.law("B7", "B8")
def test_closed_and_reopened_lane_hides_no_commit(world: GatewayWorld) -> None:
    services = [world.pusher(seed) for seed in range(2)]
    made = race(services, world, 4)
    used = world.buffer.heads(GATEWAY)[MAIN_LANE].lanes.used()
    cursor = world.page(at_least=STAMP_MAX).cursor

    close_all_but(world.buffer, GATEWAY)

    assert world.buffer.heads(GATEWAY)[MAIN_LANE].lanes.open() == [MAIN_LANE]
    assert world.pulled() == made  # closed lanes are read for who has not read them
    assert world.pulled(since=cursor) == []
    more = race(services, world, 4, first=4)  # with what the processes remember of those lanes
    assert set(world.buffer.heads(GATEWAY)[MAIN_LANE].lanes.open()) <= set(used)
    assert len(world.buffer.heads(GATEWAY)[MAIN_LANE].lanes.open()) > 1
    assert world.pulled(since=cursor) == more
    assert world.pulled() == made + more


@pytest.mark.law("B16")
def test_flush_closes_idle_lanes(world: GatewayWorld) -> None:
    services = [world.pusher(seed) for seed in range(2)]
    made = race(services, world, 4)
    flusher = Flusher(world.buffer, Objects(), Messages(), ParquetEncoder(), Messages())
    flusher.flush(GATEWAY)
    assert len(world.buffer.heads(GATEWAY)[MAIN_LANE].lanes.open()) > 1
    world.time.now_ms += 2 * IDLE_MS
    late = insert("late", at=at_ms(99), n=1)
    world.pusher(9).push(GATEWAY, push(late))

    flusher.flush(GATEWAY)

    assert world.buffer.heads(GATEWAY)[MAIN_LANE].lanes.open() == [MAIN_LANE]
    assert world.pulled() == [*made, late]


class CountingHeads(MemoryBuffer):
    """Counts how many heads are read."""

    read = 0

    def heads(self, gateway: str, since: int = 0, *, at_once: bool = False) -> dict[str, Head]:
        heads = super().heads(gateway, since, at_once=at_once)
        self.read += len(heads)
        return heads


@pytest.mark.law("B16")
@pytest.mark.parametrize("ahead_ms", [0, 600_000])
def test_quiet_gateway_is_read_with_one_head_after_its_lanes_are_closed(ahead_ms: int) -> None:
    """Also where stamps are far ahead of clocks, as they are after a restore."""
    buffer, later = CountingHeads(), Messages()
    world = GatewayWorld(buffer)
    world.time.now_ms += ahead_ms
    made = race([world.pusher(seed) for seed in range(3)], world, 6)
    world.time.now_ms -= ahead_ms
    flusher = Flusher(
        world.buffer, Objects(), Messages(), ParquetEncoder(), Messages(),
        still_open=lambda gateway, since: later.send(f"{gateway} {since}"),
    )  # fmt: skip
    flusher.flush(GATEWAY)
    readers = [world.puller() for _ in range(2)]
    cursor = max(reader.pull(GATEWAY, Pull("r", at_least=STAMP_MAX)).cursor for reader in readers)
    assert len(world.buffer.heads(GATEWAY)) >= 3
    ((gateway, since),) = [sent.split() for sent in later.sent]

    flusher.close_lanes(gateway, int(since))

    for reader in (*readers, *readers):
        before = buffer.read
        page = reader.pull(GATEWAY, Pull("r", cursor))
        assert (page.count, page.has_more, page.behind_ms) == (0, False, 0)
        assert buffer.read == before + 1
        cursor = page.cursor
    assert world.pulled() == made
    flusher.flush(GATEWAY)
    assert len(later.sent) == 1, "nothing is left to look at"


@pytest.mark.law("B16")
def test_lanes_in_use_are_not_closed(world: GatewayWorld) -> None:
    services = [world.pusher(seed) for seed in range(2)]
    race(services, world, 4)
    asked: list[Stamp] = []
    flusher = Flusher(
        world.buffer, Objects(), Messages(), ParquetEncoder(), Messages(),
        still_open=lambda _, since: asked.append(since),
    )  # fmt: skip
    flusher.flush(GATEWAY)
    race(services, world, 1, first=50)
    is_open = world.buffer.heads(GATEWAY)[MAIN_LANE].lanes.open()

    flusher.close_lanes(GATEWAY, asked[0])

    assert world.buffer.heads(GATEWAY)[MAIN_LANE].lanes.open() == is_open
    flusher.flush(GATEWAY)
    flusher.close_lanes(GATEWAY, asked[1])
    assert world.buffer.heads(GATEWAY)[MAIN_LANE].lanes.open() == [MAIN_LANE]


class CountingRows(MemoryBuffer):
    """Counts the rows that are asked for."""

    read = 0

    def rows(self, gateway: str, wanted: Iterable[RowKey]) -> dict[RowKey, StoredRow]:
        keys = list(wanted)
        self.read += len(keys)
        return super().rows(gateway, keys)


@pytest.mark.law("B3")
def test_push_to_a_row_last_written_in_another_lane_merges_without_another_read() -> None:
    """No head stands in the way: only the row's own condition tells, and its answer how it is."""
    buffer = CountingRows()
    world = GatewayWorld(buffer)
    one, other = (world.pusher(seed) for seed in range(2))
    names = insert("names", at=at_ms(0), a=0, b=0, c=0, n="")  # else each declares its column
    one.push(GATEWAY, push(names))
    race([one, other], world, 4)
    assert one.push(GATEWAY, push(insert("both", at=at_ms(90), a=0))).accepted == 1
    assert other.push(GATEWAY, push(update("both", at=at_ms(91), b=1))).accepted == 1
    read_before = buffer.read

    assert one.push(GATEWAY, push(update("both", at=at_ms(92), c=2))).accepted == 1

    assert buffer.read == read_before
    state = decode_row_state(world.buffer.rows(GATEWAY, [("todos", "both")])["todos", "both"].state)
    assert sorted(state.columns) == ["a", "b", "c"]
    commits = [
        entry.stamp for entries in logged(world.buffer, GATEWAY).values() for entry in entries
    ]
    assert len(commits) == 1 + 8 + 3


@pytest.mark.law("B6")
def test_new_configuration_is_in_force_for_the_writers_of_all_lanes(world: GatewayWorld) -> None:
    services = [world.pusher(seed) for seed in range(3)]
    made = race(services, world, 6)
    schema = {"table": "todos", "columns": [{"name": "n", "type": "integer"}]}

    world.admin.register_schema(GATEWAY, schema)

    assert world.buffer.heads(GATEWAY)[MAIN_LANE].lanes.open() == [MAIN_LANE]
    for number, service in enumerate(services):
        wrong = insert(f"wrong{number}", at=at_ms(90, number), n="text")
        (outcome,) = service.push(GATEWAY, push(wrong)).outcomes
        assert outcome.error is not None
        assert outcome.error.code == "SCHEMA_ERROR"
    assert world.pulled() == made


@pytest.mark.law("B6")
def test_commit_prepared_before_a_configuration_change_does_not_happen_after_it() -> None:
    """Whoever closed the lanes, a commit that was prepared before does not happen after."""

    class Slow(MemoryBuffer):
        """Changes the configuration while a commit is on its way, once."""

        waits = False

        def commit(self, commit: object) -> None:
            if self.waits:
                self.waits = False
                administrator(self, time_=world.time).set_strict(GATEWAY, strict=True)
            super().commit(commit)  # type: ignore[arg-type]

    buffer = Slow()
    world = GatewayWorld(buffer)
    services = [world.pusher(seed) for seed in range(2)]
    made = race(services, world, 4)
    for service in services:
        world.admin.set_strict(GATEWAY, strict=False)
        buffer.waits = True
        (outcome,) = service.push(GATEWAY, push(insert("late", at=at_ms(95), n="x"))).outcomes
        assert outcome.error is not None
    assert world.pulled() == made


def test_push_waits_to_open_a_lane_while_a_configuration_changes(world: GatewayWorld) -> None:
    known = [insert("r1", at=at_ms(1), table=table, n=1) for table in ("todos", "notes")]
    world.send(*known)
    world.admin.place_table(GATEWAY, "notes", "side")
    main = world.buffer.heads(GATEWAY)[MAIN_LANE]
    paused = main.lanes.paused(world.time.wall_clock() + 2_000)
    assert world.buffer.change_lanes(GATEWAY, main, paused)
    before_ms = world.time.now_ms

    receipt = world.send(insert("n1", at=at_ms(2), table="notes", n=1))

    assert receipt.accepted == 1
    assert 2_000 <= world.time.now_ms - before_ms < 8_000
    assert world.buffer.heads(GATEWAY).keys() == {MAIN_LANE, "side"}


@pytest.mark.law("D4")
def test_backpressure_applies_per_lane_and_ends_with_a_flush(world: GatewayWorld) -> None:
    limits = Limits(backpressure_bytes_max=3_000)
    world.time.now_ms += 1
    full = world.pusher(limits=limits)
    with pytest.raises(Backpressure):
        race([full], world, 100, "x" * 100)
    world.admin.place_table(GATEWAY, "notes", "side")
    elsewhere = insert("n1", at=at_ms(200), table="notes", n=1)

    assert full.push(GATEWAY, push(elsewhere)).accepted == 1
    with pytest.raises(Backpressure):
        race([full], world, 1, first=300)

    Flusher(world.buffer, Objects(), Messages(), ParquetEncoder(), Messages()).flush(GATEWAY)
    assert len(race([full], world, 1, first=301)) == 1


def test_push_to_a_lane_closed_by_a_configuration_change_is_retried(world: GatewayWorld) -> None:
    """Somebody else wrote to the lane, and then a configuration closed all of the shard."""
    known = [insert("r1", at=at_ms(1), table=table, n=1) for table in ("todos", "notes")]
    services = [world.pusher(seed) for seed in range(2)]
    services[0].push(GATEWAY, push(*known))
    world.admin.place_table(GATEWAY, "notes", "side")
    for number, pushes in enumerate(services):
        pushes.push(GATEWAY, push(insert(f"n{number}", at=at_ms(2), table="notes", n=1)))
    world.admin.set_strict(GATEWAY, strict=False)
    world.admin.place_table(GATEWAY, "other", "elsewhere")
    late = insert("n9", at=at_ms(3), table="notes", n=1)

    assert services[0].push(GATEWAY, push(late)).accepted == 1

    assert world.pulled()[-1] == late


# --- pages


@pytest.mark.law("B7")
def test_page_ends_at_the_lowest_open_lane_and_reports_how_far_behind_it_is(
    world: GatewayWorld,
) -> None:
    world.send(insert("r1", at=at_ms(1), n=1))
    open_lanes(world.buffer, GATEWAY, 2)
    first = world.page()  # raises the lane that has no head yet
    assert (first.count, first.behind_ms) == (1, 0)
    world.time.now_ms += RAISED_EVERY_MS // 2
    late = insert("r2", at=at_ms(2), n=1)
    receipt = world.send(late)

    relaxed = world.page(first.cursor)

    assert (relaxed.count, relaxed.has_more) == (0, False)
    assert 0 < relaxed.behind_ms <= RAISED_EVERY_MS
    for at_least in (receipt.server_hlc, STAMP_MAX):
        asked = world.page(first.cursor, at_least=at_least)
        assert (deltas_of(asked), asked.behind_ms) == ([late], 0)
        assert asked.cursor >= receipt.server_hlc


@pytest.mark.law("B7")
def test_pull_after_a_short_wait_gets_the_commits_of_lagging_lanes(world: GatewayWorld) -> None:
    world.send(insert("r1", at=at_ms(1), n=1))
    open_lanes(world.buffer, GATEWAY, 3)
    cursor = world.page().cursor
    late = insert("r2", at=at_ms(2), n=1)
    world.send(late)
    assert world.page(cursor).count == 0
    world.time.now_ms += 2 * RAISED_EVERY_MS

    page = world.page(cursor)

    assert (deltas_of(page), page.behind_ms) == ([late], 0)


@pytest.mark.law("B7", "B8")
def test_lane_opens_above_every_page_read_before(world: GatewayWorld) -> None:
    world.send(insert("r1", at=at_ms(1), n=1))
    cursor = world.page(at_least=STAMP_MAX).cursor
    world.admin.place_table(GATEWAY, "notes", "side")
    slow = pusher(world.buffer, seed=1, time_=GivenTime(WALL_MS))
    first = insert("n1", at=at_ms(2), table="notes", n=1)

    slow.push(GATEWAY, push(first))

    assert world.buffer.heads(GATEWAY)["side"].last_logged > cursor
    page = world.page(cursor, at_least=STAMP_MAX)
    assert deltas_of(page) == [first]


def test_process_reuses_a_free_lane_before_opening_another(world: GatewayWorld) -> None:
    services = [world.pusher(seed) for seed in range(2)]
    race(services, world, 6)
    opened = world.buffer.heads(GATEWAY)[MAIN_LANE].lanes.open()

    for start in range(10, 40, 3):
        world.time.now_ms += 2 * FREE_MS
        race(services, world, 3, first=start)

    assert world.buffer.heads(GATEWAY)[MAIN_LANE].lanes.open() == opened


def test_push_that_cannot_open_a_lane_fails_with_contention() -> None:
    class Changing(MemoryBuffer):
        def change_lanes(self, *_: object) -> bool:
            return False

    world = GatewayWorld(Changing())
    world.admin.place_table(GATEWAY, "notes", "side")

    with pytest.raises(Contention):
        world.send(insert("n1", at=at_ms(1), table="notes", n=1))
    assert world.pulled() == []


@pytest.mark.law("B7")
def test_lane_closed_while_its_head_was_read_again_is_reopened_before_the_commit(
    world: GatewayWorld,
) -> None:
    world.admin.place_table(GATEWAY, "notes", "side")
    limits = Limits(backpressure_bytes_max=1)
    service = world.pusher(limits=limits)
    service.push(GATEWAY, push(insert("n1", at=at_ms(1), table="notes", n=1)))
    heads = world.buffer.heads(GATEWAY)
    world.buffer.note_flushed(GATEWAY, "side", heads["side"].commit, heads["side"].logged_bytes)
    assert close_lanes(world.buffer, GATEWAY, heads, {"side": 0})
    second = insert("n2", at=at_ms(2), table="notes", n=2)

    service.push(GATEWAY, push(second))  # what it remembers of the head says that too much waits

    main = world.buffer.heads(GATEWAY)[MAIN_LANE]
    assert main.lanes.open() == [MAIN_LANE, "side"]
    assert world.pulled()[-1] == second
