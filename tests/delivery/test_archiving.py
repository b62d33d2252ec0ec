"""A destination that is declared with an archive: its old history moves there, day by day."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from lakesync.adapters.copying import Lifecycle
from lakesync.adapters.database import Position
from lakesync.core.deliveries import DeliveryPlace
from lakesync.errors import AdapterUnreachable, DestinationRefused
from lakesync.maintenance.erasure import ask_destinations
from lakesync.result import Err
from lakesync.testing.database_contract import history
from tests.delivery.world import World
from tests.support.archives import Dying, everything, stored_text
from tests.support.builders import at_ms, delete, insert, update
from tests.support.gateways import GATEWAY
from tests.support.lake import Killed, Life

if TYPE_CHECKING:
    from lakesync.adapters.database import PlacedDelta

DAY_MS = 86_400_000
ARCHIVE = {"secret": "cold", "afterDays": 7}
PLACE = DeliveryPlace(GATEWAY, "warehouse", "todos")


def world_with_history() -> World:
    """Return a destination that has an archive, with history that is old, and some that is new."""
    world = World()
    world.declare(archive=ARCHIVE)
    world.declare("plain")
    world.deliver()
    world.push(insert("old", at=at_ms(1), title="o"), update("old", at=at_ms(2), title="p"))
    world.flush()
    world.deliver()
    world.time.now_ms += 8 * DAY_MS
    world.push(insert("new", at=at_ms(3), title="n"))
    world.flush()
    world.deliver()
    return world


def rows_of(world: World) -> list[str]:
    """Return the rows of the history, read through both as one."""
    declared = world.buffer.destinations(GATEWAY).by_name["warehouse"]
    both = Lifecycle(world.databases["warehouse"], world.archive(GATEWAY, declared))
    return [delta.row_id for delta in history(both, "todos")]


@pytest.mark.law("P15")
def test_old_history_is_archived_and_new_history_stays() -> None:
    world = world_with_history()
    before = rows_of(world)
    assert before == ["old", "old", "new"]

    assert world.archiver().announce() == 1
    [body] = world.deliveries.sent
    assert json.loads(body) == {"claim": PLACE.prefix, "object": "", "archive": True}
    moved = world.archiver().archive(PLACE)
    assert (moved.deltas, moved.finished) == (2, True)
    assert world.archiver().archive(PLACE).deltas == 0
    noted = world.buffer.delivery_states(GATEWAY, "warehouse")["todos"]
    assert 0 < noted.archived < noted.mark
    world.push(insert("newer", at=at_ms(4), title="n"))
    world.flush()
    world.deliver()
    assert world.buffer.delivery_states(GATEWAY, "warehouse")["todos"].archived == noted.archived
    before.append("newer")
    assert rows_of(world) == before
    forgotten = world.databases["warehouse"].query_deltas_since("todos", Position(), 9)
    assert isinstance(forgotten, Err)
    world.check()
    world.check(name="plain")


@pytest.mark.law("P15")
def test_archiving_without_time_is_done_by_the_next_run() -> None:
    world = world_with_history()
    assert not world.archiver().archive(PLACE, lambda: False).finished
    assert world.bucket.list_objects("") == []
    assert world.archiver().archive(PLACE).deltas == 2


@pytest.mark.law("P15")
def test_paused_removed_or_unarchived_destination_moves_no_history() -> None:
    world = world_with_history()
    world.destinations().set_paused(GATEWAY, "warehouse", paused=True)
    assert world.archiver().announce() == 0
    assert world.archiver().archive(PLACE).deltas == 0
    assert world.archiver().archive(PLACE._replace(destination="plain")).deltas == 0
    world.destinations().remove(GATEWAY, "warehouse")
    assert world.archiver().archive(PLACE).deltas == 0
    assert world.bucket.list_objects("") == []


@pytest.mark.law("P15")
def test_archive_continues_after_a_filling_that_leaves_a_gap() -> None:
    world = world_with_history()
    world.archiver().archive(PLACE)
    world.destinations().backfill(GATEWAY, "warehouse")
    world.deliver()
    world.push(insert("later", at=at_ms(9), title="l"))
    world.flush()
    world.deliver()
    world.time.now_ms += 8 * DAY_MS
    assert world.archiver().archive(PLACE).deltas == 1
    declared = world.buffer.destinations(GATEWAY).by_name["warehouse"]
    archive = world.archive(GATEWAY, declared)
    first = archive.query_deltas_since("todos", Position(), 9).unwrap()
    assert [one.delta.row_id for one in first.deltas] == ["old", "old"]
    gone = archive.query_deltas_since("todos", first.position, 9)
    assert isinstance(gone, Err), "what the filling made up for is nowhere"


def ask_to_erase(world: World, row: str) -> None:
    """Ask for the erasure of a row, once its deletion is delivered."""
    stores = world.objects, world.deliveries
    ask_destinations(world.buffer.destinations(GATEWAY), *stores, GATEWAY, "todos", [row])


def archived(world: World) -> list[PlacedDelta]:
    declared = world.buffer.destinations(GATEWAY).by_name["warehouse"]
    return everything(world.archive(GATEWAY, declared), "todos")


def whole_history(world: World) -> list[PlacedDelta]:
    declared = world.buffer.destinations(GATEWAY).by_name["warehouse"]
    return everything(
        Lifecycle(world.databases["warehouse"], world.archive(GATEWAY, declared)), "todos"
    )


@pytest.mark.law("E9", "P15")
def test_erasure_removes_only_the_row_from_the_archive() -> None:
    world = world_with_history()
    world.archiver().archive(PLACE)
    world.push(delete("old", at=at_ms(20)))
    world.flush()
    world.deliver()
    before = whole_history(world)
    assert [one.delta.row_id for one in before] == ["old", "old", "new", "old"]
    ask_to_erase(world, "old")
    assert world.deliver() == []

    assert archived(world) == [one for one in before if one.delta.row_id != "old"]
    assert b"old" not in stored_text(world.bucket)
    gone = world.databases["warehouse"].query_deltas_since("todos", Position(), 9)
    assert isinstance(gone, Err), "what was not archived yet was moved before it was forgotten"
    world.check()

    world.push(insert("later", at=at_ms(30), title="l"))
    world.flush()
    world.deliver()
    world.time.now_ms += 8 * DAY_MS
    assert world.archiver().archive(PLACE).deltas == 1
    assert [one.delta.row_id for one in archived(world)] == ["new", "later"]


@pytest.mark.law("E9", "P15")
@pytest.mark.parametrize("last_happens", [False, True])
def test_erasure_killed_anywhere_is_completed_by_the_next_delivery(*, last_happens: bool) -> None:
    for writes in range(30):
        world = world_with_history()
        world.archiver().archive(PLACE)
        world.push(delete("old", at=at_ms(20)))
        world.flush()
        world.deliver()
        expected = [one for one in whole_history(world) if one.delta.row_id != "old"]
        ask_to_erase(world, "old")
        life = Life(writes, last_happens=last_happens)
        bucket, database = world.bucket, world.databases["warehouse"]
        mortal: Any = Dying(bucket, life), Dying(database, life)
        world.bucket, world.databases["warehouse"] = mortal
        try:
            assert world.deliver() == []
        except Killed:
            pass
        finally:
            world.bucket, world.databases["warehouse"] = bucket, database
        has_died = bool(world.waiting())
        world.sweep()
        assert world.waiting() == []
        assert archived(world) == expected
        assert b"old" not in stored_text(bucket)
        world.check()
        if not has_died:
            assert writes > 5
            return
    raise AssertionError("it never came to an end")


@pytest.mark.law("E9", "P15")
def test_archive_erasure_continues_where_time_ran_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("lakesync.delivery.table_delivery.DELTAS_READ", 1)
    world = world_with_history()
    world.push(delete("old", at=at_ms(20)))
    world.flush()
    world.deliver()
    ask_to_erase(world, "old")
    turns = 0
    while world.waiting():
        world.deliverer().deliver(PLACE, partial(next, iter([True, True]), False))
        turns += 1
    assert turns > 1
    assert [one.delta.row_id for one in archived(world)] == ["new"]
    assert b"old" not in stored_text(world.bucket)


@pytest.mark.law("E9", "P15")
def test_unreachable_archive_keeps_its_database_from_forgetting() -> None:
    world = world_with_history()
    world.push(delete("old", at=at_ms(20)))
    world.flush()
    world.deliver()
    before = whole_history(world)
    ask_to_erase(world, "old")
    bucket = world.bucket
    away: Any = Away()
    world.bucket = away
    assert [type(error) for error in world.deliver()] == [AdapterUnreachable]
    world.bucket = bucket
    assert whole_history(world) == before
    assert len(world.waiting()) == 1
    world.sweep()
    assert [one.delta.row_id for one in archived(world)] == ["new"]


class Away:
    """A bucket that cannot be reached."""

    def __getattr__(self, name: str) -> Any:
        raise AdapterUnreachable(f"the bucket cannot be reached: {name}")


@pytest.mark.law("P15")
def test_redeclared_destination_gets_a_new_archive() -> None:
    world = world_with_history()
    world.archiver().archive(PLACE)
    world.destinations().remove(GATEWAY, "warehouse")
    world.time.now_ms += DAY_MS
    world.declare(archive=ARCHIVE)
    declared = world.buffer.destinations(GATEWAY).by_name["warehouse"]
    assert world.archive(GATEWAY, declared).mark("todos").unwrap() == 0


@pytest.mark.law("P15")
def test_unreachable_database_is_reported_and_moves_no_history() -> None:
    world = world_with_history()
    world.databases["warehouse"].is_away = True
    with pytest.raises(AdapterUnreachable):
        world.archiver().archive(PLACE)
    assert world.bucket.list_objects("") == []


@pytest.mark.law("P15")
def test_destinations_sharing_a_secret_are_refused() -> None:
    world = world_with_history()
    for body in ({"archive": ARCHIVE}, {"secret": "cold"}):
        with pytest.raises(DestinationRefused, match="warehouse is there already"):
            world.declare("other", **body)
