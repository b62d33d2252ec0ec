"""A gateway whose buffer is another one than before: rows are read again, edits are kept."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lakesync.client import Client, Fault
from lakesync.core.clock import stamp
from lakesync.core.delta import Op, make_delta
from lakesync.core.messages import Push, Resync
from lakesync.errors import Retry
from lakesync.maintenance.horizons import Trimmer, begin_epoch
from lakesync.ports import FlushState
from lakesync.result import Err
from tests.client.support.crashes import Crash, CrashingConnection
from tests.client.support.gateways import GATEWAY
from tests.client.support.pages import ScriptedPages, page
from tests.client.support.world import World, check_sound, reopened, rows_of
from tests.support.builders import WALL_MS, at_ms

if TYPE_CHECKING:
    from pathlib import Path


def crashes_pulling(world: World, number: int) -> bool:
    """Pull until a statement at which the process dies; returns whether it came to that."""
    CrashingConnection.left = number
    client: Client | None = None
    try:
        client = world.client(page_deltas=1, connection_class=CrashingConnection)
        client.pull().unwrap()
    except Crash:
        return True
    finally:
        if client is not None:
            client.close()
        CrashingConnection.left = 1 << 60
    return False


def restore(world: World, kept: int) -> None:
    """Restore the gateway from a backup that holds its first commits only."""
    del world.gateway.commits[kept:]
    world.gateway.epoch = "here.1"


def settled(world: World) -> Client:
    """Return a client with rows of its own and of another, some of which a restore will lose."""
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
def test_after_a_restore_a_client_has_the_rows_of_the_restored_buffer(world: World) -> None:
    client = settled(world)
    restore(world, kept=1)

    assert client.pull().unwrap().rebuilt

    assert rows_of(client) == world.rows() == {("todos", "t1"): {"title": "old", "n": 1}}
    assert client.query("SELECT _row_id FROM todos").unwrap() == [{"_row_id": "t1"}]
    assert not client.pull().unwrap().rebuilt
    check_sound(client)


@pytest.mark.law("K12")
def test_a_restore_is_detected_although_the_cursor_is_still_within_the_log(world: World) -> None:
    client = settled(world)
    world.gateway.epoch = "here.1"
    client.pull().unwrap()
    world.gateway.epoch = "here.2"
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
def test_an_echo_in_a_rebuild_acknowledges_its_edit_and_keeps_others_of_the_row_pending(
    world: World,
) -> None:
    transport = world.transport()
    client = world.client(transport=transport)
    client.insert("todos", "t1", {"title": "x", "n": 1}).unwrap()
    client.sync().unwrap()
    client.update("todos", "t1", {"n": 2}).unwrap()
    transport.faults.append(Fault.LOSE_ANSWER)
    assert isinstance(client.push(), Err)
    client.update("todos", "t1", {"title": "pending"}).unwrap()
    world.gateway.epoch = "here.1"

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
def test_a_row_known_only_by_a_refused_edit_is_filled_by_the_rebuilds_pages(world: World) -> None:
    client = settled(world)
    world.gateway.only_text_in("todos")
    bad = client.insert("todos", "t9", {"title": 7}).unwrap()
    client.push().unwrap()
    restore(world, kept=1)
    world.clock.ms += 10
    other = world.client("third")
    other.insert("todos", "t9", {"title": "in the new buffer"}).unwrap()
    other.push().unwrap()
    transport = world.transport()
    transport.faults += [Fault.NONE, Fault.NONE, Fault.LOSE_ANSWER]
    client = reopened(world, client, transport=transport, page_deltas=1)
    assert isinstance(client.pull(), Err)  # every row is to be read again, this one too
    client.discard(bad.delta_id).unwrap()

    client.pull().unwrap()

    assert client.get("todos", "t9").unwrap() == {"title": "in the new buffer"}
    assert rows_of(client) == world.rows()
    check_sound(client)


@pytest.mark.law("K12")
def test_a_log_trimmed_past_the_cursor_is_an_err_and_changes_nothing(world: World) -> None:
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
def test_a_rebuild_resumes_after_a_crash_at_any_statement(tmp_path: Path, *, late: bool) -> None:
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
        crashed = crashes_pulling(world, number)
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


# --- what the other buffer lost of one's own


@pytest.mark.law("K13")
def test_a_clients_edits_that_a_restored_buffer_lost_are_pushed_again(world: World) -> None:
    client = world.client()
    client.insert("todos", "t1", {"title": "kept", "n": 1}).unwrap()
    client.sync().unwrap()
    client.update("todos", "t1", {"n": 2}).unwrap()
    client.insert("todos", "t2", {"title": "lost"}).unwrap()
    client.insert("todos", "t3").unwrap()
    client.delete("todos", "t4").unwrap()
    client.sync().unwrap()
    before = rows_of(client)
    restore(world, kept=1)

    assert client.pull().unwrap().rebuilt

    assert rows_of(client) == before
    assert [entry.delta.row_id for entry in client.pending().unwrap()] == ["t1", "t2", "t3", "t4"]
    check_sound(client)
    client.sync().unwrap()
    assert rows_of(client) == world.rows() == before
    assert client.pending().unwrap() == []
    check_sound(client)


@pytest.mark.law("K13")
def test_an_edit_accepted_during_a_rebuild_survives_a_restore(world: World) -> None:
    other = world.client("other")
    for row in ("t0", "t1", "t2"):
        other.insert("todos", row, {"title": "old"}).unwrap()
        other.push().unwrap()
    client = world.client(page_deltas=1)
    client.sync().unwrap()
    client.update("todos", "t1", {"n": 2}).unwrap()
    world.gateway.scope = "ruled"
    transport = world.transport()
    transport.faults += [Fault.NONE, Fault.NONE, Fault.LOSE_ANSWER]
    client = reopened(world, client, transport=transport, page_deltas=1)
    assert isinstance(client.pull(), Err)  # t0 was read, and t1 is to come
    assert client.push().unwrap().accepted == 1
    assert client.push().unwrap().accepted == 0
    transport.faults += [Fault.NONE, Fault.LOSE_ANSWER]
    assert isinstance(client.pull(), Err)  # t1 has come, as it was before the edit
    assert client.get("todos", "t1").unwrap() == {"title": "old", "n": 2}
    check_sound(client)
    restore(world, kept=3)

    client.sync().unwrap()

    assert client.get("todos", "t1").unwrap() == {"title": "old", "n": 2}
    assert rows_of(client) == world.rows()
    assert client.pending().unwrap() == []
    check_sound(client)


@pytest.mark.law("K13")
@pytest.mark.parametrize("scope", ["", "ruled"], ids=["the same rules", "other rules"])
def test_an_edit_missing_from_a_restarted_snapshot_survives_a_restore(
    tmp_path: Path, scope: str
) -> None:
    """It was accepted before, and the log behind begins with somebody else's change of its row."""
    theirs = make_delta(Op.UPDATE, "todos", "t1", {"owner": "b"}, client_id="b", hlc=at_ms(4))
    rows = {"scope": scope, "resync": Resync(("todos",)), "has_more": True}
    transport = ScriptedPages(
        page(cursor=2),
        *([page(cursor=2, scope=scope)] if scope else []),
        page(cursor=2, snapshot=f"{at_ms(2):x}|||", **rows),
        None,
        page(cursor=3, snapshot=f"{at_ms(3):x}|||", **rows),
        page(theirs, cursor=4, scope=scope, has_more=True),
        None,
        page(theirs, cursor=4, epoch="here.1", scope=scope),
        page(theirs, cursor=4, epoch="here.1", scope=scope),
    )
    with Client(
        tmp_path / "a.db", client_id="a", transport=transport, wall_clock=lambda: WALL_MS + 60_000
    ) as client:
        client.pull().unwrap()
        assert isinstance(client.pull(), Err)
        client.insert("todos", "t1", {"title": "mine"}).unwrap()
        client.push().unwrap()
        assert isinstance(client.pull(), Err)
        assert client.get("todos", "t1").unwrap() == {"title": "mine", "owner": "b"}
        check_sound(client)

        client.pull().unwrap()

        (lost,) = client.pending().unwrap()
        assert lost.delta.columns == (("title", b'"mine"'),)
        assert client.get("todos", "t1").unwrap() == {"title": "mine", "owner": "b"}
        check_sound(client)


@pytest.mark.law("K13")
def test_no_edit_is_pushed_before_a_restored_buffer_has_been_read(world: World) -> None:
    """An event that was lost would come too late behind a new one, and be taken for held."""
    other = world.client("other")
    for row in ("t0", "t1"):
        other.insert("todos", row, {"title": "kept"}).unwrap()
        other.push().unwrap()
    world.gateway.events.add("events")
    world.gateway.scope = "ruled"
    client = world.client(page_deltas=1)
    client.insert("events", "e0", {"z": 0}).unwrap()
    client.sync().unwrap()
    restore(world, kept=2)
    client.insert("events", "e1", {"z": 1}).unwrap()
    transport = world.transport()
    transport.faults += [Fault.NONE, Fault.NONE, Fault.LOSE_ANSWER]
    client = reopened(world, client, transport=transport, page_deltas=1)
    assert isinstance(client.pull(), Err)  # t0 was read, and t1 is to come

    result = client.push()

    assert isinstance(result, Err)
    assert result.error.code == "CURSOR_EXPIRED"
    client.sync().unwrap()
    assert world.rows()["events", "e0"] == {"z": 0}
    assert rows_of(client) == world.rows()
    assert client.pending().unwrap() == []
    check_sound(client)


@pytest.mark.law("K13")
def test_lost_append_table_edits_are_pushed_first_and_in_one_commit(world: World) -> None:
    world.gateway.events.add("events")
    world.gateway.scope = "ruled"
    client = world.client()
    client.insert("todos", "t0", {"title": "kept"}).unwrap()
    client.sync().unwrap()
    for row in ("e0", "e1"):
        client.insert("events", row, {"z": row}).unwrap()
        client.sync().unwrap()
    restore(world, kept=1)
    client.insert("events", "e2", {"z": "new"}).unwrap()
    client.pull().unwrap()
    before = len(world.gateway.pushes)

    client.push().unwrap()

    first, second = world.gateway.pushes[before:]
    assert [delta.row_id for _, delta in first.deltas] == ["e0", "e1"]
    assert first.atomic
    assert [delta.row_id for _, delta in second.deltas] == ["e2"]
    client.sync().unwrap()
    assert rows_of(client) == world.rows()
    check_sound(client)


@pytest.mark.law("K13")
def test_edits_that_a_restore_kept_are_not_pushed_again(world: World) -> None:
    client = world.client()
    client.insert("todos", "t1", {"title": "kept"}).unwrap()
    client.sync().unwrap()
    pushes = len(world.gateway.pushes)
    world.gateway.epoch = "here.1"

    client.sync().unwrap()

    assert client.pending().unwrap() == []
    assert len(world.gateway.pushes) == pushes
    check_sound(client)


@pytest.mark.law("K13")
def test_a_lost_append_table_edit_is_pushed_again_as_the_same_delta(world: World) -> None:
    world.gateway.events.add("events")
    client = world.client()
    for number in range(3):
        client.insert("events", f"e{number}", {"z": number, "a": 1}).unwrap()
        client.sync().unwrap()
    lost = [delta.delta_id for _, deltas in world.gateway.commits[1:] for delta in deltas]
    restore(world, kept=1)

    client.sync().unwrap()
    client.sync().unwrap()

    again = [delta.delta_id for _, deltas in world.gateway.commits[1:] for delta in deltas]
    assert again == lost


@pytest.mark.law("K13")
def test_own_append_table_edits_trimmed_from_the_log_are_not_taken_for_lost(tmp_path: Path) -> None:
    """More of them than a mark remembers: the oldest are late, and stay what they were."""
    world = World(tmp_path, "real")
    world.gateway.append_only("events")
    client = world.client()
    for number in range(70):
        client.insert("events", f"e{number}", {"title": f"{number}"}).unwrap()
    client.sync().unwrap()
    trimmed(world)
    world.clock.ms += 600_000
    begin_epoch(world.gateway.buffer, GATEWAY, wall_clock=world.clock)
    before, head = rows_of(client), world.gateway.buffer.heads(GATEWAY)["main"]

    assert client.sync().unwrap().pulled.rebuilt
    client.sync().unwrap()

    assert client.pending().unwrap() == []
    assert rows_of(client) == before
    after = world.gateway.buffer.heads(GATEWAY)["main"]
    assert after.logged_bytes == head.logged_bytes
    check_sound(client)
    world.close()


@pytest.mark.law("K13")
def test_a_lost_append_table_edit_that_is_late_is_restamped(world: World) -> None:
    """Another file of the same client has pushed to the restored buffer before."""
    world.gateway.events.add("events")
    client = world.client()
    client.insert("events", "e0", {"a": 0}).unwrap()
    client.sync().unwrap()
    restore(world, kept=0)
    world.clock.ms += 1_000
    twin = make_delta(Op.INSERT, "events", "twin", {}, client_id="a", hlc=stamp(world.clock.ms))
    world.gateway.push(GATEWAY, Push("a", ((0, twin),)))

    client.sync().unwrap()
    client.sync().unwrap()

    assert [delta.row_id for delta in world.deltas()] == ["twin", "e0"]
    assert client.pending().unwrap() == []
    check_sound(client)


# --- a log that no longer begins where it did


def trimmed(world: World) -> None:
    """Have everything flushed, grown old, and trimmed."""
    buffer = world.gateway.buffer
    top = buffer.heads(GATEWAY)["main"].commit
    buffer.save_flush_state(GATEWAY, FlushState(), FlushState(top))
    buffer.save_flushed_table(GATEWAY, "todos", top)
    world.clock.ms += 600_000
    Trimmer(buffer, wall_clock=world.clock, keep_ms=0).trim(GATEWAY)


def trimmed_under(world: World) -> None:
    """Have everything flushed, grown old, and trimmed, beyond what a client has read."""
    other = world.client("other")
    for number in range(3):
        other.insert("todos", f"t{number}", {"title": f"new {number}"}).unwrap()
    other.delete("todos", "mine").unwrap()
    other.sync().unwrap()
    trimmed(world)
    other.insert("todos", "t9", {"title": "behind the horizon"}).unwrap()
    other.sync().unwrap()


@pytest.mark.law("K14")
@pytest.mark.parametrize("page_deltas", [1, 100])
def test_a_client_with_a_trimmed_cursor_reads_a_snapshot_and_keeps_its_outbox(
    tmp_path: Path, page_deltas: int
) -> None:
    world = World(tmp_path, "real")
    client = world.client(page_deltas=page_deltas)
    client.insert("todos", "mine", {"title": "old"}).unwrap()
    client.insert("todos", "kept", {"title": "old"}).unwrap()
    client.sync().unwrap()
    trimmed_under(world)
    client.update("todos", "t1", {"n": 7}).unwrap()

    summary = client.pull().unwrap()

    assert not summary.rebuilt
    assert len(client.pending().unwrap()) == 1
    check_sound(client)
    client.sync().unwrap()
    fresh = world.client("fresh")
    fresh.sync().unwrap()
    assert rows_of(client) == rows_of(fresh)
    assert rows_of(client)["todos", "t1"] == {"title": "new 1", "n": 7}
    assert ("todos", "mine") not in rows_of(client)
    world.close()


@pytest.mark.law("K14")
def test_reading_a_snapshot_resumes_after_a_crash_at_any_statement(tmp_path: Path) -> None:
    for number in range(1, 200):
        folder = tmp_path / str(number)
        folder.mkdir()
        world = World(folder, "real")
        client = world.client(page_deltas=1)
        client.insert("todos", "mine", {"title": "old"}).unwrap()
        client.sync().unwrap()
        client.close()
        trimmed_under(world)
        crashed = crashes_pulling(world, number)
        client = world.client(page_deltas=1)
        check_sound(client)
        client.sync().unwrap()
        fresh = world.client("fresh")
        fresh.sync().unwrap()
        assert rows_of(client) == rows_of(fresh), number
        world.close()
        if not crashed:
            return
    pytest.fail("a snapshot takes more statements than this test allows")
