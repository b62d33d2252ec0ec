"""What a writer that died had asked of a database, which does it once another has gone on."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from lakesync.adapters.database import Position, TableBatch
from lakesync.connectors import FEED, Change
from lakesync.connectors.poll import Poll, Route
from lakesync.connectors.polls import LEASE_MS
from lakesync.core.clock import stamp
from lakesync.errors import AdapterTimedOut
from lakesync.result import Err
from tests.connectors.test_poll import World as PollWorld
from tests.flows.test_polled import at, change, expected, row
from tests.flows.world import SOURCE_TABLE, World
from tests.support.builders import delete
from tests.support.lake import Killed

if TYPE_CHECKING:
    from collections.abc import Callable

    from lakesync.adapters.database import Inserted
    from lakesync.errors import LakeSyncError
    from lakesync.result import Result


def keep_late(world: World, monkeypatch: pytest.MonkeyPatch, *, dies: bool) -> list[TableBatch]:
    """Have the next batch of the destination come late: its writer dies, or waits no longer."""
    late: list[TableBatch] = []
    database = world.database()
    insert = database.insert_deltas

    def kept(batch: TableBatch) -> Result[Inserted, LakeSyncError]:
        if late or not batch.deltas:
            return insert(batch)
        late.append(batch)
        if dies:
            raise Killed
        return Err(AdapterTimedOut("it takes too long"))

    monkeypatch.setattr(database, "insert_deltas", kept)
    return late


@pytest.mark.law("Y5")
@pytest.mark.parametrize("dies", [True, False])
@pytest.mark.parametrize("has_more", [True, False])
def test_late_write_does_not_restore_a_deleted_row(
    monkeypatch: pytest.MonkeyPatch, *, dies: bool, has_more: bool
) -> None:
    world = World()
    world.commit(row(1), *([row(2)] if has_more else []))
    world.declare()
    late = keep_late(world, monkeypatch, dies=dies)
    with suppress(Killed):
        world.poll()
    assert len(late) == 1
    world.commit(delete("r1", table=SOURCE_TABLE, at=at(50)))
    assert world.poll() == "done"

    world.database().insert_deltas(late[0])
    assert world.rows() == expected(world)
    world.commit(row(3), *([change("r2", 60, n=7)] if has_more else []))
    assert world.poll() == "done"
    assert world.rows() == expected(world)
    assert set(world.rows()) == ({"r2", "r3"} if has_more else {"r3"})


@pytest.mark.law("Y5")
def test_batch_overtaken_by_a_later_mark_is_not_taken_for_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    world.commit(row(1))
    world.declare()
    database = world.database()
    mark = database.mark

    def moved(table: str) -> Any:
        answer = mark(table)
        ahead = TableBatch(table, answer.unwrap(), stamp(world.time.wall_clock()) + 2**30, ())
        database.insert_deltas(ahead).unwrap()  # by a clock that is ahead
        monkeypatch.setattr(database, "mark", mark)
        return answer

    monkeypatch.setattr(database, "mark", moved)
    assert world.poll() == "wait"
    assert world.poll() == "done"
    assert world.rows() == expected(world) != {}


@pytest.mark.law("Y5")
@pytest.mark.parametrize("hours", [0, 2])
def test_two_writers_of_the_same_page_write_its_history_once(
    monkeypatch: pytest.MonkeyPatch, hours: int
) -> None:
    """A writer whose lease has ended is overtaken between its reading of rows and its write."""
    world = World()
    world.commit(row(1))
    world.declare()
    world.poll()
    world.commit(row(2), row(3))
    world.time.now_ms += hours * 3_600_000 + LEASE_MS
    database = world.database()
    rows_of = database.rows_of

    def overtaken(table: str, row_ids: Any) -> Any:
        answer = rows_of(table, row_ids)
        monkeypatch.setattr(database, "rows_of", rows_of)
        world.time.now_ms += 2 * LEASE_MS
        assert world.poll() == "done"
        return answer

    monkeypatch.setattr(database, "rows_of", overtaken)
    world.poll()
    assert world.poll() == "done"
    assert world.rows() == expected(world) != {}
    history = database.query_deltas_since(SOURCE_TABLE, Position(), 99).unwrap().deltas
    assert [placed.delta.row_id for placed in history] == ["r1", "r2", "r3"]


@pytest.mark.law("Y5")
def test_continued_poll_fences_only_the_tables_of_its_feed() -> None:
    """A feed is read under a name of its own, which no table has."""
    world = PollWorld(tables={FEED: "", "items": "things"})
    world.source.log.append(Change("a", {"v": 1}, table="items"))
    fenced: list[list[str]] = []

    def polled(has_time: Callable[[], bool] = lambda: True) -> str:
        fenced.append([])
        poll = Poll(
            "c", Route(world.source, world.tables, world.push, fence=fenced[-1].append),
            letters=world.letters(), deletions=world.deletions(), save=world.save,
            wall_clock=world.time.wall_clock,
        )  # fmt: skip
        world.time.sleep_ms(5)
        return poll.run(world.state, has_time).status

    assert polled(lambda: False) == "more"
    assert polled() == "done"
    assert polled() == "done"
    assert [set(one) for one in fenced] == [set(), {"things"}, set()]
