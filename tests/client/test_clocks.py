"""Clocks that are wrong, step back, and are corrected by the server's."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from lakesync.client.memory_transport import Fault
from lakesync.core.clock import stamp_ms
from lakesync.core.delta import Op, make_delta
from lakesync.core.messages import Pull, PullPage, Push, PushReceipt
from lakesync.result import Err
from lakesync.wire.records import encode_records
from tests.client.support.world import check_sound, reopened, rows_of, states_of
from tests.support.builders import WALL_MS, at_ms

if TYPE_CHECKING:
    from lakesync.client import Client
    from lakesync.client.upload import PushSummary
    from lakesync.errors import LakeSyncError
    from lakesync.result import Result
    from tests.client.support.world import World

HOUR_MS = 3_600_000


class Device:
    """A device's clock: the world's, with an error."""

    def __init__(self, world: World, error_ms: int) -> None:
        self.world = world
        self.error_ms = error_ms

    def __call__(self) -> int:
        """Return the time that the device believes."""
        return self.world.clock.ms + self.error_ms


def offset_of(client: Client) -> int:
    (row,) = client.query("SELECT offset_ms FROM _lakesync_sync").unwrap()
    offset: int = row["offset_ms"]
    return offset


@pytest.mark.law("K4")
def test_stamps_increase_across_restarts_and_wall_clocks_that_jump_back(world: World) -> None:
    client = world.client()
    stamps = [client.insert("todos", f"a{n}", {"n": n}).unwrap().hlc for n in range(3)]
    world.clock.ms -= HOUR_MS
    client = reopened(world, client)
    stamps += [client.insert("todos", f"b{n}", {"n": n}).unwrap().hlc for n in range(3)]

    assert stamps == sorted(set(stamps))


@pytest.mark.law("K4")
def test_stamps_increase_after_the_outbox_was_emptied_and_the_clock_set_back(both: World) -> None:
    device = Device(both, 0)
    client = both.client(wall_clock=device)
    first = client.insert("todos", "t1", {"n": 1}).unwrap()
    client.push().unwrap()
    device.error_ms = -HOUR_MS
    client = reopened(both, client, wall_clock=device)

    assert client.pending().unwrap() == []
    assert client.update("todos", "t1", {"n": 2}).unwrap().hlc > first.hlc


@pytest.mark.law("K10")
def test_edits_stamped_by_a_clock_ahead_are_restamped_and_accepted(both: World) -> None:
    client, other = both.client(wall_clock=Device(both, HOUR_MS)), both.client("other")
    other.insert("todos", "t1", {"title": "theirs", "n": 0, "done": True}).unwrap()
    other.sync().unwrap()
    client.pull().unwrap()
    before = client.update("todos", "t1", {"title": "mine", "n": 1}).unwrap()
    client.update("todos", "t1", {"n": 2}).unwrap()
    client.insert("todos", "t2", {"title": "new"}).unwrap()
    client.delete("todos", "t2").unwrap()
    with client.transaction() as edits:
        edits.insert("todos", "t3", {"n": 1}).unwrap()
        edits.insert("todos", "t4", {"n": 1}).unwrap()

    summary = client.push().unwrap()

    assert summary.accepted == 6
    assert summary.restamped >= 6
    assert client.pending().unwrap() == []
    assert offset_of(client) == -HOUR_MS
    stamps = [delta.hlc for delta in both.deltas()]
    assert all(stamp_ms(hlc) <= both.clock.ms + 5_000 for hlc in stamps)
    assert before.hlc not in stamps
    expected = {
        ("todos", "t1"): {"title": "mine", "n": 2, "done": True},
        ("todos", "t3"): {"n": 1},
        ("todos", "t4"): {"n": 1},
    }
    assert rows_of(client) == both.rows() == expected
    check_sound(client)
    other.sync().unwrap()
    client.sync().unwrap()
    assert rows_of(other) == rows_of(client) == expected
    check_sound(client)


@pytest.mark.law("K8", "K10")
def test_a_transaction_during_which_the_clock_jumps_is_pushed_whole(both: World) -> None:
    device = Device(both, 0)
    client = both.client(wall_clock=device)
    client.insert("todos", "before", {"n": 0}).unwrap()
    with client.transaction() as edits:
        edits.insert("todos", "t1", {"n": 1}).unwrap()
        device.error_ms = HOUR_MS
        edits.insert("todos", "t2", {"n": 2}).unwrap()

    client.push().unwrap()

    shape = [(push.atomic, len(push.deltas)) for push in both.gateway.pushes]
    assert shape == [(False, 1), (True, 2), (True, 2)]
    assert rows_of(client) == both.rows()
    check_sound(client)


@pytest.mark.law("K10")
def test_row_states_after_restamping_equal_the_gateways_byte_for_byte(world: World) -> None:
    client = world.client(wall_clock=Device(world, HOUR_MS))
    client.insert("todos", "t1", {"title": "x", "n": 1}).unwrap()
    client.update("todos", "t1", {"n": 2}).unwrap()
    client.push().unwrap()
    fresh = world.client("fresh")
    fresh.pull().unwrap()

    assert states_of(client) == states_of(fresh)


@pytest.mark.law("K10")
def test_after_restamping_a_later_edit_of_another_client_wins(both: World) -> None:
    ahead, other = both.client("ahead", wall_clock=Device(both, HOUR_MS)), both.client("other")
    ahead.insert("todos", "t1", {"title": "made with a wrong clock"}).unwrap()
    ahead.sync().unwrap()
    both.clock.ms += 60_000
    other.sync().unwrap()
    other.update("todos", "t1", {"title": "made a minute later"}).unwrap()
    other.sync().unwrap()
    ahead.sync().unwrap()

    assert ahead.get("todos", "t1").unwrap() == {"title": "made a minute later"}


@pytest.mark.law("K10")
def test_the_clock_correction_survives_a_restart_and_later_edits_need_no_restamping(
    both: World,
) -> None:
    device = Device(both, HOUR_MS)
    client = both.client(wall_clock=device)
    client.insert("todos", "t1", {"n": 1}).unwrap()
    client.push().unwrap()
    client = reopened(both, client, wall_clock=device)
    both.clock.ms += 1_000

    client.insert("todos", "t2", {"n": 2}).unwrap()

    assert client.push().unwrap().restamped == 0
    assert abs(stamp_ms(both.deltas()[-1].hlc) - both.clock.ms) < 5_000


@pytest.mark.law("K10")
def test_a_clock_that_is_behind_is_corrected_by_a_push(both: World) -> None:
    client = both.client(wall_clock=Device(both, -HOUR_MS))
    client.insert("todos", "t1", {"n": 1}).unwrap()
    client.push().unwrap()

    assert offset_of(client) == HOUR_MS
    assert stamp_ms(client.update("todos", "t1", {"n": 2}).unwrap().hlc) == both.clock.ms


@pytest.mark.law("K10")
def test_a_clock_set_right_by_hand_is_trusted_again_after_one_push(both: World) -> None:
    device = Device(both, HOUR_MS)
    client = both.client(wall_clock=device)
    client.insert("todos", "t1", {"n": 1}).unwrap()
    client.push().unwrap()
    device.error_ms = 0

    client.update("todos", "t1", {"n": 2}).unwrap()
    client.push().unwrap()

    assert offset_of(client) == 0
    both.clock.ms += 1_000
    assert stamp_ms(client.update("todos", "t1", {"n": 3}).unwrap().hlc) == both.clock.ms


class _Timed:
    """A transport that takes its time: to the gateway, there, and back."""

    def __init__(self, world: World, there_ms: int, back_ms: int) -> None:
        self.world, self.there_ms, self.back_ms = world, there_ms, back_ms

    def push(self, push: Push) -> PushReceipt:
        """Accept everything."""
        self.world.clock.ms += self.there_ms
        receipt = PushReceipt(1, len(push.deltas), (), self.world.clock.ms)
        self.world.clock.ms += self.back_ms
        return receipt

    def pull(self, _pull: Pull) -> PullPage:
        """Return nothing."""
        return PullPage((), 0, 0, has_more=False)


@pytest.mark.law("K10")
@pytest.mark.parametrize(
    ("error_ms", "there_ms", "back_ms", "offsets"),
    [
        (0, 0, 9_000, range(1)),  # a right clock stays, however slow the network
        (0, 9_000, 0, range(1)),
        (0, 0, 0, range(1)),
        (60_000, 100, 900, range(-60_900, -59_099)),
        (-60_000, 900, 100, range(59_100, 60_901)),
    ],
)
def test_the_clock_offset_is_accurate_within_the_round_trip_time(
    world: World, error_ms: int, there_ms: int, back_ms: int, offsets: range
) -> None:
    timed = _Timed(world, there_ms, back_ms)
    client = world.client(transport=timed, wall_clock=Device(world, error_ms))
    client.insert("todos", "t1", {"n": 1}).unwrap()
    client.push().unwrap()

    assert offset_of(client) in offsets


def test_a_device_clock_set_back_during_a_push_leaves_the_offset_unchanged(world: World) -> None:
    client = world.client(transport=_Timed(world, 0, -50))
    client.insert("todos", "t1", {"n": 1}).unwrap()
    client.push().unwrap()

    assert offset_of(client) == 0


class _Rewriting:
    """The world's transport with receipts rewritten."""

    def __init__(self, world: World, **changes: Any) -> None:
        self.inner, self.changes = world.transport(), changes
        self.pushes = 0

    def push(self, push: Push) -> PushReceipt:
        """Push, and change the receipt."""
        self.pushes += 1
        return replace(self.inner.push(push), **self.changes)

    def pull(self, pull: Pull) -> PullPage:
        """Pull."""
        return self.inner.pull(pull)


def test_pushes_refused_for_clock_drift_without_a_server_time_end_after_four_attempts(
    world: World,
) -> None:
    transport = _Rewriting(world, server_time_ms=0)
    client = world.client(transport=transport, wall_clock=Device(world, HOUR_MS))
    client.insert("todos", "t1", {"n": 1}).unwrap()

    result = client.push()

    assert isinstance(result, Err)
    assert result.error.code == "CLOCK_DRIFT"
    assert transport.pushes == 4
    assert len(client.pending().unwrap()) == 1
    check_sound(client)


@pytest.mark.law("K10")
def test_restamping_includes_quarantined_edits_and_leaves_them_in_quarantine(
    both: World,
) -> None:
    both.gateway.only_text_in("strict")
    device = Device(both, 0)
    client = both.client(wall_clock=device)
    client.insert("strict", "r1", {"title": "x"}).unwrap()
    device.error_ms = 4_000  # within the bound: judged for what it is
    client.insert("strict", "r1", {"title": 7}).unwrap()
    client.push().unwrap()
    device.error_ms = HOUR_MS
    client.insert("strict", "r2", {"title": "y"}).unwrap()
    client.push().unwrap()

    assert len(client.quarantined().unwrap()) == 1
    check_sound(client)
    assert both.rows()["strict", "r2"] == {"title": "y"}
    client.discard(client.quarantined().unwrap()[0].delta.delta_id).unwrap()
    assert rows_of(client) == both.rows()


class _Lenient:
    """The world's transport to a gateway of larger limits than this client's release has."""

    def __init__(self, world: World, patched: pytest.MonkeyPatch) -> None:
        self.inner, self.patched = world.transport(), patched

    def push(self, push: Push) -> PushReceipt:
        """Push; the client's limits apply to all that it does with the receipt."""
        self.patched.undo()
        receipt = self.inner.push(push)
        self.patched.setattr("lakesync.core.delta.DELTA_BYTES_MAX", 50)
        return receipt

    def pull(self, pull: Pull) -> PullPage:
        """Pull."""
        return self.inner.pull(pull)


@pytest.mark.law("K10")
def test_an_edit_over_the_limits_of_a_later_release_is_restamped_and_accepted(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Limits are of new edits; what the outbox has keeps no receipt from being applied."""
    transport = _Lenient(world, monkeypatch)
    client = world.client(transport=transport, wall_clock=Device(world, HOUR_MS))
    client.insert("todos", "t1", {"title": "x" * 100}).unwrap()
    client.insert("todos", "t2", {"title": "y"}).unwrap()

    summary = client.push().unwrap()

    assert summary.restamped >= 2
    assert client.pending().unwrap() == []
    assert rows_of(client) == world.rows()
    check_sound(client)


def _page(hlc: int, cursor: int) -> PullPage:
    delta = make_delta(Op.INSERT, "todos", "t1", {"n": 1}, client_id="other", hlc=hlc)
    return PullPage((encode_records([delta]),), 1, cursor, has_more=False)


@pytest.mark.law("K4")
def test_an_impossible_remote_stamp_does_not_advance_the_clock(
    world: World,
) -> None:
    transport = _Timed(world, 0, 0)
    transport.pull = lambda _pull: _page(hlc=(1 << 63) - 1, cursor=at_ms(0))  # type: ignore[method-assign]
    client = world.client(transport=transport)
    client.pull().unwrap()

    delta = client.insert("todos", "t2", {"n": 2}).unwrap()

    assert client.get("todos", "t1").unwrap() == {"n": 1}  # the page was applied all the same
    assert stamp_ms(delta.hlc) <= WALL_MS + 5_000


@pytest.mark.law("K1", "K4")
def test_a_row_received_with_a_stamp_past_the_cursor_advances_the_clock(world: World) -> None:
    transport = _Timed(world, 0, 0)
    page = replace(_page(hlc=at_ms(3_600_000), cursor=at_ms(0)), scope="some")
    transport.pull = lambda _pull: page  # type: ignore[method-assign]
    client = world.client(transport=transport)
    client.pull().unwrap()

    client.delete("todos", "t1").unwrap()

    assert client.get("todos", "t1").unwrap() is None
    check_sound(client)


@pytest.mark.law("K11")
def test_an_append_table_edit_that_may_be_stored_is_not_restamped(both: World) -> None:
    """One function took it and did not answer; the next one's clock is behind, and refuses it."""
    both.gateway.append_only("events")
    device = Device(both, 4_000)
    transport = both.transport()
    client = both.client(transport=transport, wall_clock=device)
    client.insert("events", "e1", {"title": "x"}).unwrap()
    transport.faults.append(Fault.LOSE_ANSWER)
    assert isinstance(client.push(), Err)
    both.clock.ms -= 5_000
    device.error_ms += 5_000

    assert code_of(client.push()) == "CLOCK_DRIFT"
    both.clock.ms += 5_000
    client.sync().unwrap()

    assert [delta.row_id for delta in both.deltas()] == ["e1"]
    assert client.pending().unwrap() == []
    check_sound(client)


def code_of(result: Result[PushSummary, LakeSyncError]) -> str:
    assert isinstance(result, Err)
    return result.error.code
