"""Polls bring everything once, whoever is killed, and what cannot be moved is listed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakesync.buffer.memory_buffer import MemoryBuffer
from lakesync.connectors import Change, SourcePage, Storage, Unreadable
from lakesync.connectors.pages import AHEAD_MS_MAX, refused_in
from lakesync.connectors.poll import BACKOFF_S_MAX, PAGE_ROWS_MAX, Poll, Polled, Route
from lakesync.connectors.state import (
    CONNECTOR_DEAD_LETTERS_MAX,
    CURSOR_BYTES_MAX,
    DeadLetters,
    Deletions,
    PollState,
    check_cursor,
    state_from,
)
from lakesync.core.clock import stamp
from lakesync.core.delta import parse
from lakesync.core.merge import view
from lakesync.core.messages import DeltaOutcome, OutcomeKind, PushReceipt
from lakesync.errors import (
    AdapterFailed,
    AdapterRefused,
    AdapterTimedOut,
    AdapterUnreachable,
    Backpressure,
    ClockDrift,
    Conflict,
    ConstraintViolated,
    GatewayDeleted,
    LakeSyncError,
    RateLimited,
    Retry,
    Unavailable,
    ValidationFailed,
)
from lakesync.result import Err, Ok
from lakesync.wire.records import decode_row_state
from tests.support.builders import insert
from tests.support.gateways import GivenTime, administrator, pulled, pusher
from tests.support.lake import Killed, Objects
from tests.support.sources import MemorySource

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from lakesync.core.messages import Push
    from lakesync.result import Result

GATEWAY = "g"
NOW_MS = 1_800_000_000_000


@dataclass
class World:
    """A gateway, a source, and polls that may be killed at any step."""

    source: MemorySource = field(default_factory=MemorySource)
    buffer: MemoryBuffer = field(default_factory=MemoryBuffer)
    objects: Objects = field(default_factory=Objects)
    time: GivenTime = field(default_factory=lambda: GivenTime(NOW_MS))
    saved: bytes = b""
    steps_left: int = 1_000_000
    pushed: list[Push] = field(default_factory=list)
    push_fails: list[LakeSyncError] = field(default_factory=list)
    tables: dict[str, str] = field(default_factory=lambda: {"items": "things"})

    def __post_init__(self) -> None:
        self.pusher = pusher(self.buffer, time_=self.time)

    @property
    def state(self) -> PollState:
        """What was saved last."""
        return state_from(self.saved)

    def letters(self) -> DeadLetters:
        """Return the dead letters."""
        return DeadLetters(Storage(self.objects, GATEWAY, "c"))

    def deletions(self) -> Deletions:
        """Return the deletions that were found by comparing."""
        return Deletions(Storage(self.objects, GATEWAY, "c"))

    def step(self) -> None:
        """Die here, if it is time."""
        self.steps_left -= 1
        if self.steps_left <= 0:
            raise Killed

    def push(self, push: Push) -> PushReceipt:
        """Push, and perhaps die before or after."""
        self.step()
        if self.push_fails:
            raise self.push_fails.pop(0)
        self.pushed.append(push)
        receipt = self.pusher.push(GATEWAY, push)
        self.step()
        return receipt

    def save(self, state: PollState, *, ends: bool = False) -> None:  # noqa: ARG002
        """Save, and perhaps die before."""
        self.step()
        self.saved = state.to_json()

    def poll(self, has_time: Callable[[], bool] = lambda: True) -> Polled:
        """Go on as a new process."""
        poll = Poll(
            "c", Route(self.source, self.tables, self.push), letters=self.letters(),
            deletions=self.deletions(), save=self.save, wall_clock=self.time.wall_clock,
        )  # fmt: skip
        self.time.sleep_ms(5)
        return poll.run(self.state, has_time)

    def rows(self, table: str = "things") -> dict[str, object]:
        """Return the rows that a client has."""
        rows: dict[str, object] = {}
        for delta in pulled(self.buffer, GATEWAY):
            if delta.table == table:
                if delta.columns:
                    rows[delta.row_id] = parse(delta.columns[0][1])
                else:
                    rows.pop(delta.row_id, None)
        return rows


CHANGES = st.lists(
    st.tuples(st.sampled_from("abcd"), st.none() | st.integers(0, 5)), min_size=1, max_size=20
)


FAULTS: tuple[tuple[LakeSyncError | None, LakeSyncError | None], ...] = (
    (None, None),
    (AdapterRefused("the password is wrong"), None),
    (AdapterTimedOut("it took too long"), None),
    (AdapterUnreachable("away"), None),
    (None, Backpressure("full")),
    (None, ConstraintViolated("no")),
)
"""What a read and a push fail with."""


class KeepingSource(MemorySource):
    """A source that writes down what it gives, and gives it again only in the same poll."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: dict[str, tuple[int, tuple[Change, ...]]] = {}
        self.at = 0

    def read(
        self, table: str, cursor: str, *, rows_max: int, poll_ms: int
    ) -> Result[SourcePage, LakeSyncError]:
        """Return what is new since the last writing, or what was written in this poll."""
        if self.fails:
            return super().read(table, cursor, rows_max=rows_max, poll_ms=poll_ms)
        written_ms, changes = self.kept.get(table, (0, ()))
        if written_ms != poll_ms:
            some = self.log[self.at :]
            changes = tuple(each for each in some if isinstance(each, Change))
            self.kept[table], self.at = (poll_ms, changes), len(self.log)
        return Ok(SourcePage(changes, "read", has_more=False))


@pytest.mark.law("N1", "N2", "N3")
@given(
    CHANGES,
    st.lists(st.tuples(st.integers(1, 12), st.sampled_from(FAULTS)), max_size=6),
    st.sampled_from([3, 999]),
)
def test_every_row_arrives_once_wherever_polls_are_killed(
    changes: list[tuple[str, int | None]],
    kills: list[tuple[int, tuple[LakeSyncError | None, LakeSyncError | None]]],
    pages: int,
) -> None:
    world = World(source=KeepingSource())
    expected: dict[str, object] = {}
    for row_id, value in changes:
        if value is None:
            world.source.delete(row_id)
            expected.pop(row_id, None)
        else:
            world.source.put({row_id: value})
            expected[row_id] = value
    for steps, (read_fails, push_fails) in kills:
        world.steps_left = steps
        world.source.fails = [read_fails] if read_fails else []
        world.push_fails = [push_fails] if push_fails else []
        try:
            world.poll(iter([True] * pages + [False]).__next__)
        except Killed:
            continue
    world.steps_left, world.source.fails, world.push_fails = 1_000_000, [], []
    while world.poll().status != "done":
        pass

    assert world.rows() == expected
    given_ids = [delta.delta_id for delta in pulled(world.buffer, GATEWAY)]
    assert len(given_ids) == len(set(given_ids)) <= len(changes)


@pytest.mark.law("N1", "N2", "N3")
@given(CHANGES, st.randoms(use_true_random=False), st.integers(1, 4))
def test_duplicate_and_unordered_changes_are_resolved_by_their_times(
    changes: list[tuple[str, int | None]], chance: Random, pages: int
) -> None:
    world = World()
    for row_id, value in changes:
        if value is None:
            world.source.delete(row_id)
        else:
            world.source.put({row_id: value})
    expected = {each.row_id: each.columns for each in world.source.log if isinstance(each, Change)}
    world.source.log += chance.choices(world.source.log, k=len(changes))
    chance.shuffle(world.source.log)
    for _ in range(pages):
        world.poll(iter([True, False]).__next__)
        world.source.log += chance.choices(world.source.log, k=2)
    while world.poll().status != "done":
        pass

    stored = world.buffer.scan_rows(GATEWAY, "things", "", 99).rows
    rows = {row_id: view(decode_row_state(one.state)) for row_id, one in stored}
    assert {
        row_id: row and {"value": parse(row["value"])} for row_id, row in rows.items()
    } == expected
    given_ids = [delta.delta_id for delta in pulled(world.buffer, GATEWAY)]
    assert len(given_ids) == len(set(given_ids)) <= len(changes)


@pytest.mark.law("N1")
def test_a_cursor_is_saved_after_its_page_was_accepted() -> None:
    world = World()
    world.source.put({"a": 1})
    world.steps_left = 2  # the poll's beginning is saved; then it dies, before the push
    with pytest.raises(Killed):
        world.poll()
    assert world.state.cursors == {}
    assert world.state.poll_ms

    world.steps_left = 1_000_000
    assert world.poll().status == "done"
    assert world.rows() == {"a": 1}
    assert world.state.cursors == {"items": "1"}


@pytest.mark.law("N2")
def test_change_without_a_time_gets_the_start_time_of_the_poll_also_after_a_crash() -> None:
    world = World()
    world.source.log = [Change("a", {"value": 1}, None)]
    world.steps_left = 3  # dies behind the push
    with pytest.raises(Killed):
        world.poll()
    begun = world.state.poll_ms
    world.time.sleep_ms(60_000)
    world.steps_left = 1_000_000
    world.poll()

    (delta,) = pulled(world.buffer, GATEWAY)
    assert delta.hlc >> 16 == begun


@pytest.mark.law("N3")
def test_hlc_is_the_change_time_of_the_source_in_microseconds() -> None:
    world = World()
    world.source.log = [Change("a", {"value": 1}, 1_700_000_000_123_456)]
    world.poll()

    (delta,) = pulled(world.buffer, GATEWAY)
    assert (delta.hlc >> 16, delta.hlc & 0xFFFF) == (1_700_000_000_123, 456)


@pytest.mark.law("N3")
def test_change_dated_ahead_of_our_clock_is_stamped_with_the_poll_time() -> None:
    world = World()
    ahead_us = (NOW_MS + 3_600_000) * 1000
    world.source.log = [Change("a", {"value": 1}, ahead_us)]

    assert world.poll().status == "done"
    assert world.state.fault is None
    (delta,) = pulled(world.buffer, GATEWAY)
    assert delta.hlc >> 16 == world.state.polled_ms


@pytest.mark.law("N4")
def test_refused_row_is_a_dead_letter_and_the_other_rows_are_pushed() -> None:
    world = World()
    administrator(world.buffer, time_=world.time).register_schema(
        GATEWAY, {"table": "things", "columns": [{"name": "value", "type": "integer"}]}
    )
    world.source.put({"a": 1, "b": "no number", "c": 3})
    world.source.log.append(Unreadable("d", "a column holds NaN"))
    world.source.log.append(Change("", {"value": 4}))
    world.poll()

    assert world.rows() == {"a": 1, "c": 3}
    letters = {letter["rowId"]: letter for letter in world.letters().first(10)}
    assert letters.keys() == {"b", "d", ""}
    assert letters["b"]["code"] == "SCHEMA_ERROR"
    assert letters["b"]["columns"] == {"value": "no number"}
    assert letters["d"]["reason"] == "a column holds NaN"
    assert world.state.dead_letters == 3


@pytest.mark.law("N4")
def test_a_dead_letter_is_taken_back_when_its_row_is_accepted() -> None:
    world = World()
    world.source.log = [Unreadable("a", "broken")]
    world.poll()
    assert world.state.dead_letters == 1
    world.source.put({"a": 1})
    world.poll()

    assert world.state.dead_letters == 0
    assert len(world.letters()) == 0


@pytest.mark.law("N4")
def test_more_dead_letters_than_can_be_kept_stop_the_poll_and_lose_nothing() -> None:
    world = World()
    world.source.log = [
        Unreadable(f"{number}", "broken") for number in range(CONNECTOR_DEAD_LETTERS_MAX + 1)
    ]

    assert world.poll().status == "done"
    assert world.state.fault is not None
    assert "reset" in world.state.fault.message
    assert world.state.begun == {"items": world.state.polled_ms}, "the table is not at its end"
    assert world.state.cursors == {"items": str(CONNECTOR_DEAD_LETTERS_MAX)}


@pytest.mark.law("N4")
def test_table_that_cannot_be_read_does_not_stop_other_tables() -> None:
    world = World(tables={"gone": "gone", "items": "things"})
    world.source.fails = [AdapterRefused("there is no table gone")]
    world.source.put({"a": 1})

    assert world.poll() == Polled("done")
    assert world.rows() == {"a": 1}
    assert world.state.fault is not None
    assert (world.state.fault.table, world.state.fault.code) == ("gone", "ADAPTER_REFUSED")
    world.time.sleep_ms(1_000)
    world.poll()
    assert world.state.fault is None, "the table is there again"


@pytest.mark.law("N4")
@pytest.mark.parametrize(
    "given",
    [
        KeyError("missing"),
        None,
        Ok(None),
        Ok(SourcePage((Change("a", {"value": 1}, None, "nobody asked"),), "1", has_more=False)),
        Ok(SourcePage((), "1", False, (Unreadable("a", "broken", "nobody asked"),))),
        Ok(SourcePage((Change(7, {"value": 1}),), "1", has_more=False)),  # type: ignore[arg-type]
        Ok(SourcePage((Change("a", [1]),), "1", has_more=False)),  # type: ignore[arg-type]
        Ok(SourcePage((Change("a", {"value": 1}, "now"),), "1", False)),  # type: ignore[arg-type]
        Ok(SourcePage((), None, has_more=False)),  # type: ignore[arg-type]
        Ok(SourcePage((), "x" * (CURSOR_BYTES_MAX + 1), has_more=False)),
    ],
    ids=repr,
)
def test_misbehaving_connector_is_reported_and_does_not_stop_other_tables(
    given: object,
) -> None:
    class Broken(MemorySource):
        def read(self, table: str, cursor: str, *, rows_max: int, poll_ms: int) -> Any:
            if table == "items":
                return super().read(table, cursor, rows_max=rows_max, poll_ms=poll_ms)
            if isinstance(given, Exception):
                raise given
            return given

    world = World(source=Broken(), tables={"broken": "broken", "items": "things"})
    world.source.put({"a": 1})

    assert world.poll().status == "done"
    assert world.rows() == {"a": 1}
    assert world.rows("broken") == {}
    assert world.state.fault is not None
    assert world.state.fault.table == "broken"
    assert "broken" not in world.state.cursors


@pytest.mark.law("N1")
@pytest.mark.parametrize("first", [Backpressure("full"), Killed()], ids=["backpressure", "kill"])
def test_recorded_page_is_pushed_after_a_poll_in_between_was_refused(
    first: Exception,
) -> None:
    world = World(source=KeepingSource())
    world.source.put({"a": 1})
    if isinstance(first, LakeSyncError):
        world.push_fails = [first]
        world.poll()
    else:
        world.steps_left = 2  # the poll's beginning is saved, the page written; it dies
        with pytest.raises(Killed):
            world.poll()
        world.steps_left = 1_000_000
    begun = world.state.poll_ms
    world.source.fails = [AdapterRefused("the password is wrong")] * 2
    assert [world.poll().status, world.poll().status] == ["done", "done"]
    assert world.state.begun == {"items": begun}
    world.poll()

    assert world.rows() == {"a": 1}
    assert world.state.begun == {}


def test_table_refused_at_first_read_is_dated_by_the_poll_that_reads_it() -> None:
    world = World()
    world.source.log = [Change("a", {"value": 1})]
    world.source.fails = [AdapterRefused("the password is wrong")]
    world.poll()
    assert world.state.begun == {}
    world.time.sleep_ms(3_600_000)
    world.poll()

    (delta,) = pulled(world.buffer, GATEWAY)
    assert delta.hlc >> 16 == world.state.polled_ms


@pytest.mark.law("N4")
@pytest.mark.parametrize("where", ["read", "push"])
@pytest.mark.parametrize(
    "error", [AdapterFailed("a page is broken"), AdapterTimedOut("slow"), ConstraintViolated("no")]
)
def test_permanently_failing_table_does_not_stop_other_tables(
    where: str, error: LakeSyncError
) -> None:
    world = World(tables={"broken": "broken", "items": "things"})
    read, pushed = world.source.read, world.pusher.push

    def reads(table: str, cursor: str, **more: Any) -> Any:
        return Err(error) if where == "read" and table == "broken" else read(table, cursor, **more)

    def pushes(gateway: str, push: Push) -> PushReceipt:
        if where == "push" and any(delta.table == "broken" for _, delta in push.deltas):
            raise error
        return pushed(gateway, push)

    world.source.read = reads  # type: ignore[method-assign]
    world.pusher.push = pushes  # type: ignore[method-assign]
    for number in range(3):
        world.source.put({"a": number})
        assert world.poll().status == ("wait" if error.retry is Retry.LATER else "done")
        assert world.rows() == {"a": number}, "every poll reads what can be read"
        assert world.state.fault is not None
        assert world.state.fault.table == "broken"
        world.time.sleep_ms(60_000)
    del world.source.read, world.pusher.push
    assert world.poll().status == "done"
    assert world.rows("broken") == world.rows() == {"a": 2}
    assert world.state.begun == {}


@pytest.mark.law("N6")
def test_repeated_failures_double_the_wait_up_to_the_maximum() -> None:
    world = World()
    world.source.put({str(number): number for number in range(PAGE_ROWS_MAX + 1)})
    world.source.fails = [AdapterFailed("broken") for _ in range(12)]
    waits = [world.poll().wait_s for _ in range(12)]
    assert waits == [1, 2, 4, 8, 16, 32, 64, 128, 256, *[BACKOFF_S_MAX] * 3]
    assert world.poll() == Polled("done")
    world.source.fails = [AdapterFailed("broken")]
    assert world.poll().wait_s == 1, "what came of it begins anew"


@pytest.mark.law("N3")
@pytest.mark.parametrize("back_ms", [10_000, 3_600_000])
def test_poll_waits_when_our_clock_steps_back_and_refuses_nothing(back_ms: int) -> None:
    world = World()
    world.source.log = [Change("a", {"value": 1})]
    world.poll()
    world.time.sleep_ms(-back_ms)
    world.source.log += [Change("b", {"value": 2})]
    polled = world.poll()

    assert polled.status == "wait"
    assert 0 < polled.wait_s <= back_ms // 1000
    assert world.rows() == {"a": 1}
    assert len(world.letters()) == 0
    world.time.sleep_ms(1000 * polled.wait_s)
    assert world.poll().status == "done"
    assert world.rows() == {"a": 1, "b": 2}


def test_change_dated_ahead_of_the_drift_limit_is_a_dead_letter() -> None:
    delta = insert("a", at=stamp(NOW_MS + AHEAD_MS_MAX + 1, 0))
    outcome = DeltaOutcome(0, delta.delta_id, OutcomeKind.REFUSED, ClockDrift("ahead"))

    refused = refused_in(PushReceipt(0, 0, (outcome,)), [delta], NOW_MS)
    assert refused == {0: outcome.error}
    with pytest.raises(Unavailable):
        refused_in(PushReceipt(0, 0, (outcome,)), [delta], NOW_MS + 2)


@pytest.mark.law("N6")
@pytest.mark.parametrize("who", ["the source", "the gateway"])
def test_poll_waits_the_requested_retry_time_and_then_continues(who: str) -> None:
    world = World()
    world.source.put({"a": 1})
    fails, error = {
        "the source": (world.source.fails, RateLimited("slower", retry_after_s=42)),
        "the gateway": (world.push_fails, Backpressure("full")),
    }[who]
    fails.append(error)

    wait_s = error.retry_after_s
    assert world.poll() == Polled("wait", wait_s)
    assert world.state.wait_until_ms == world.time.wall_clock() + wait_s * 1000
    begun = world.state.poll_ms
    assert world.poll().status == "done"
    assert world.state.polled_ms == begun
    assert world.rows() == {"a": 1}


@pytest.mark.law("N6")
def test_no_source_makes_a_poll_wait_for_longer_than_an_hour() -> None:
    world = World()
    world.source.fails.append(AdapterUnreachable("later", retry_after_s=10**9))

    assert world.poll() == Polled("wait", 3_600)


def test_source_that_repeats_one_page_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    for number in range(1_001):
        world.source.put({str(number): number})
    read = world.source.read
    monkeypatch.setattr(world.source, "read", lambda table, _, **more: read(table, "0", **more))

    assert world.poll().status == "wait"
    assert world.state.fault is not None
    assert "same page" in world.state.fault.message


def test_poll_that_lost_its_lease_raises_conflict() -> None:
    world = World()
    world.source.put({"a": 1})
    world.push_fails.append(Conflict("somebody else polls"))

    with pytest.raises(Conflict):
        world.poll()


def test_a_deleted_gateway_ends_the_poll_with_its_reason() -> None:
    world = World()
    world.source.put({"a": 1})
    world.push_fails.append(GatewayDeleted(GatewayDeleted.ANSWER))

    assert world.poll().status == "done"
    assert world.state.fault is not None
    assert world.state.fault.code == "GATEWAY_DELETED"
    assert world.state.cursors == {}


def test_sync_rules_do_not_apply_to_rows_of_a_connector() -> None:
    world = World()
    bucket = {
        "name": "all", "tables": ["things"], "filters": [],
        "write": [{"column": "value", "op": "eq", "value": 7}],
    }  # fmt: skip
    rules = {"version": 1, "buckets": [bucket]}
    administrator(world.buffer, time_=world.time).save_rules(GATEWAY, rules)
    world.source.put({"a": 1})
    world.poll()

    assert world.rows() == {"a": 1}
    assert len(world.letters()) == 0


def test_a_cursor_that_is_too_large_is_refused() -> None:
    assert check_cursor("x" * CURSOR_BYTES_MAX)
    with pytest.raises(ValidationFailed):
        check_cursor("x" * (CURSOR_BYTES_MAX + 1))


def test_poll_state_with_unknown_or_missing_members_is_read() -> None:
    body = b'{"rows": 3, "fault": null, "later": 1}'

    assert state_from(body) == PollState(rows=3)
    assert state_from(b"") == PollState()
