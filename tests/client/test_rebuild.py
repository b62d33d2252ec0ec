"""A gateway whose buffer is another one than before: rows are read again, edits are kept."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from lakesync.client import Client, Fault
from lakesync.errors import Retry
from lakesync.result import Err
from tests.client.support.crashes import Crash, CrashingConnection
from tests.client.support.world import World, check_sound, reopened, rows_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(autouse=True)
def _immortal() -> Iterator[None]:
    yield
    CrashingConnection.left = 1 << 60


def restore(world: World, kept: int) -> None:
    """Restore the gateway from a backup that holds its first commits only."""
    del world.gateway.commits[kept:]
    world.gateway.epoch = "restored"


def settled(world: World) -> Client:
    """Give a client with rows of its own and of another, some of which a restore will lose."""
    other = world.client("other")
    other.insert("todos", "t1", {"title": "old", "n": 1}).unwrap()
    other.push().unwrap()
    world.clock.ms += 10
    other.update("todos", "t1", {"title": "lost with the buffer"}).unwrap()
    other.insert("todos", "t2", {"title": "lost with the buffer"}).unwrap()
    other.push().unwrap()
    client = world.client(page_deltas=1)
    client.sync().unwrap()
    return client


@pytest.mark.law("K12")
def test_after_a_restore_the_rows_are_those_of_the_new_buffer(world: World) -> None:
    client = settled(world)
    restore(world, kept=1)

    assert client.pull().unwrap().rebuilt

    assert rows_of(client) == world.rows() == {("todos", "t1"): {"title": "old", "n": 1}}
    assert client.query("SELECT _row_id FROM todos").unwrap() == [{"_row_id": "t1"}]
    assert not client.pull().unwrap().rebuilt
    check_sound(client)


@pytest.mark.law("K12")
def test_a_restore_is_noticed_although_the_cursor_is_still_within_the_log(world: World) -> None:
    client = settled(world)
    world.gateway.epoch = "first"
    client.pull().unwrap()
    world.gateway.epoch = "second"
    world.gateway.commits[0], world.gateway.commits[1] = (
        (world.gateway.commits[0][0], world.gateway.commits[1][1]),
        (world.gateway.commits[1][0], []),
    )

    assert client.pull().unwrap().rebuilt
    assert rows_of(client) == world.rows()


@pytest.mark.law("K12")
def test_pending_edits_survive_a_rebuild_of_several_pages(world: World) -> None:
    client = settled(world)
    world.clock.ms += 10
    client.update("todos", "t1", {"n": 2}).unwrap()
    client.update("todos", "t2", {"done": True}).unwrap()
    client.insert("todos", "t3", {"title": "new"}).unwrap()
    restore(world, kept=1)

    client.pull().unwrap()

    assert rows_of(client) == {
        ("todos", "t1"): {"title": "old", "n": 2},
        ("todos", "t2"): {"done": True},
        ("todos", "t3"): {"title": "new"},
    }
    assert len(client.pending().unwrap()) == 3
    check_sound(client)
    client.sync().unwrap()
    assert rows_of(client) == world.rows()
    check_sound(client)


@pytest.mark.law("K12")
def test_a_rebuild_that_brings_an_echo_leaves_the_other_edits_of_its_row(world: World) -> None:
    transport = world.transport()
    client = world.client(transport=transport)
    client.insert("todos", "t1", {"title": "x", "n": 1}).unwrap()
    client.sync().unwrap()
    client.update("todos", "t1", {"n": 2}).unwrap()
    transport.faults.append(Fault.LOSE_ANSWER)
    assert isinstance(client.push(), Err)
    client.update("todos", "t1", {"title": "pending"}).unwrap()
    world.gateway.epoch = "restored"

    assert client.pull().unwrap().rebuilt

    assert len(client.pending().unwrap()) == 1
    assert client.get("todos", "t1").unwrap() == {"title": "pending", "n": 2}
    check_sound(client)


@pytest.mark.law("K12")
def test_rows_stay_readable_while_a_rebuild_waits_for_its_next_page(world: World) -> None:
    client = settled(world)
    restore(world, kept=1)
    world.clock.ms += 10
    other = world.client("third")
    other.insert("todos", "t9", {"title": "in the new buffer"}).unwrap()
    other.push().unwrap()
    transport = world.transport()
    transport.faults += [Fault.NONE, Fault.NONE, Fault.LOSE_ANSWER]
    client = reopened(world, client, transport=transport, page_deltas=1)

    assert isinstance(client.pull(), Err)

    assert client.get("todos", "t1").unwrap() == {"title": "old", "n": 1}
    assert client.get("todos", "t2").unwrap() == {"title": "lost with the buffer"}
    client = reopened(world, client, page_deltas=1)
    client.pull().unwrap()
    assert rows_of(client) == world.rows()
    check_sound(client)


@pytest.mark.law("K12")
def test_a_log_that_begins_after_the_cursor_is_an_err_and_changes_nothing(world: World) -> None:
    client = settled(world)
    client.insert("todos", "t3", {"title": "pending"}).unwrap()
    before = rows_of(client)
    world.gateway.trimmed = 1 << 62

    result = client.pull()

    assert isinstance(result, Err)
    assert (result.error.code, result.error.retry) == ("CURSOR_EXPIRED", Retry.AFTER_REFRESH)
    assert rows_of(client) == before
    assert len(client.pending().unwrap()) == 1
    fresh = world.client("fresh").pull()
    assert isinstance(fresh, Err)
    assert fresh.error.code == "CURSOR_EXPIRED"


@pytest.mark.law("K12")
@pytest.mark.parametrize("late", [False, True], ids=["before", "after"])
def test_a_rebuild_that_crashes_anywhere_goes_on_where_it_stopped(
    tmp_path: Path, *, late: bool
) -> None:
    CrashingConnection.late = late
    for number in range(1, 200):
        folder = tmp_path / str(number)
        folder.mkdir()
        world = World(folder)
        client = settled(world)
        world.clock.ms += 10
        client.update("todos", "t2", {"done": True}).unwrap()
        client.close()
        restore(world, kept=1)
        crashed = True
        CrashingConnection.left = number
        with suppress(Crash):
            client = world.client(page_deltas=1, connection_class=CrashingConnection)
            client.pull().unwrap()
            crashed = False
        client.close()
        CrashingConnection.left = 1 << 60

        client = world.client(page_deltas=1)
        check_sound(client)
        client.sync().unwrap()
        check_sound(client)
        assert rows_of(client) == world.rows(), number
        assert ("todos", "t2") in world.rows(), number
        world.close()
        if not crashed:
            return
    pytest.fail("a rebuild takes more statements than this test allows")
