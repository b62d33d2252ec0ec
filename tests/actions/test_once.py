"""Each action once: whoever dies where, whoever asks how often, whatever answer is lost."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from lakesync.actions.engine import LEASE_MS
from lakesync.actions.service import registration_from
from lakesync.buffer.admin_stores import ItemRuns
from lakesync.buffer.memory_items import MemoryItemStore
from lakesync.core.messages import Action, ActionOutcome, ActionPush
from lakesync.errors import (
    ActionFailed,
    AdapterUnreachable,
    OutcomeUnknown,
    Unavailable,
)
from tests.support.acting import ADMINISTRATOR, Acting, MemoryOutside, use_memory_outside

if TYPE_CHECKING:
    from lakesync.ports import ActionKey, ActionRun

G, CLIENT = "g", "phone-1"


class Killed(BaseException):
    """The process died here."""


class FaultyRuns(ItemRuns):
    """Runs of actions whose process dies, or whose answer is lost, at the next write."""

    def __init__(self) -> None:
        super().__init__(MemoryItemStore())
        self.fault = ""

    def begin(self, key: ActionKey, seen: ActionRun | None, run: ActionRun, now_ms: int) -> bool:
        self._before("begin")
        begun = super().begin(key, seen, run, now_ms)
        self._after("begin")
        return begun

    def end(self, key: ActionKey, run: ActionRun, now_ms: int) -> bool:
        self._before("end")
        ended = super().end(key, run, now_ms)
        self._after("end")
        return ended

    def _before(self, call: str) -> None:
        self._happen(f"killed before {call}", Killed)
        self._happen(f"{call} refused", Unavailable)

    def _after(self, call: str) -> None:
        self._happen(f"killed after {call}", Killed)
        self._happen(f"{call} answer lost", Unavailable)

    def _happen(self, fault: str, kind: type[BaseException]) -> None:
        if self.fault == fault:
            self.fault = ""
            raise kind(fault)


class World:
    """A gateway with one action handler, over an outside system."""

    def __init__(self, outside: MemoryOutside) -> None:
        self.outside = outside
        self.now_ms = 1_800_000_000_000
        self.runs = FaultyRuns()
        self.acting = Acting(runs=self.runs, wall_clock=lambda: self.now_ms)
        self.acting.admin.register(
            G, registration_from({"name": "out", "type": "memory", "perMinute": 6_000})
        )

    def ask(self, action_id: str = "a1", *, key: str = "", **params: Any) -> ActionOutcome:
        """Ask for an action, once."""
        action = Action(action_id, CLIENT, 0, "out", "send", params, key)
        push = ActionPush(CLIENT, (action,))
        return self.acting.service.push(G, ADMINISTRATOR, push, lambda: 30_000).results[0]

    def die(self, fault: str, action_id: str = "a1", **params: Any) -> None:
        """Ask for an action in a process that dies."""
        self.runs.fault = fault
        with pytest.raises(Killed):
            self.ask(action_id, **params)

    def wait(self, ms: int = LEASE_MS) -> None:
        """Let time go by."""
        self.now_ms += ms


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(use_memory_outside(monkeypatch))


@pytest.mark.law("X1")
def test_repeated_action_is_done_once(world: World) -> None:
    first = world.ask(n=1)
    assert first.is_done
    assert [world.ask(n=1) for _ in range(3)] == [first] * 3
    assert len(world.outside.done) == 1
    assert [note.was_run for note in world.acting.notes] == [True, False, False, False]


@pytest.mark.law("X1")
def test_actions_with_one_idempotency_key_are_done_once(world: World) -> None:
    first = world.ask("a1", key="k", n=1)
    second = world.ask("a2", key="k", n=1)

    assert (second.action_id, second.data) == ("a2", first.data)
    assert len(world.outside.done) == 1
    assert world.ask("a2", n=1).is_done  # without the key it is another action
    assert len(world.outside.done) == 2


@pytest.mark.law("X1")
@pytest.mark.parametrize("again", [{"action_id": "a1", "n": 2}, {"action_id": "a9", "n": 2}])
def test_action_id_or_key_reused_with_other_parameters_is_refused(
    world: World, again: dict[str, Any]
) -> None:
    world.ask("a1", key="k", n=1)
    refused = world.ask(key="k", **again)

    assert (refused.code, refused.retryable) == ("ACTION_VALIDATION_ERROR", False)
    assert len(world.outside.done) == 1


@pytest.mark.law("X1")
def test_same_action_id_of_another_client_is_another_action(world: World) -> None:
    world.ask("a1", n=1)
    action = Action("a1", "phone-2", 0, "out", "send", {"n": 2})
    push = ActionPush("phone-2", (action,))

    assert world.acting.service.push(G, ADMINISTRATOR, push, lambda: 30_000).results[0].is_done
    assert len({run_id for run_id, _, _ in world.outside.done}) == 2


@pytest.mark.law("X1")
def test_concurrent_requests_run_an_action_once(world: World) -> None:
    together = Barrier(4)
    world.outside.before = lambda _: None

    def ask(_: int) -> ActionOutcome:
        together.wait()
        return world.ask(n=1)

    with ThreadPoolExecutor(4) as threads:
        outcomes = list(threads.map(ask, range(4)))
    assert len(world.outside.done) == 1
    assert {each.code for each in outcomes} <= {"", "ACTION_RUNNING"}
    assert all(each.is_done or each.retryable for each in outcomes)


@pytest.mark.law("X1")
def test_request_during_a_run_gets_action_running_and_later_the_outcome(world: World) -> None:
    seen: list[ActionOutcome] = []

    def meanwhile(_: object) -> None:
        world.outside.before = None
        seen.append(world.ask(n=1))

    world.outside.before = meanwhile
    done = world.ask(n=1)

    assert [(each.code, each.retryable) for each in seen] == [("ACTION_RUNNING", True)]
    assert world.ask(n=1) == done
    assert len(world.outside.done) == 1


@pytest.mark.law("X2")
def test_final_refusal_is_remembered_and_a_retryable_failure_is_not(
    world: World,
) -> None:
    world.outside.refuses = AdapterUnreachable("away")
    assert world.ask(n=1).retryable
    world.outside.refuses = ActionFailed("no such project")
    refused = world.ask(n=1)
    world.outside.refuses = None

    assert (refused.code, refused.message, refused.retryable) == (
        "ACTION_EXECUTION_ERROR", "no such project", False,
    )  # fmt: skip
    assert world.ask(n=1) == refused
    assert world.outside.done == []
    assert world.ask("a2", n=1).is_done


@pytest.mark.law("X2")
def test_failure_message_hides_internal_addresses(world: World) -> None:
    world.outside.refuses = AdapterUnreachable("10.0.0.7:5432 refuses user root")

    assert "10.0.0.7" not in world.ask(n=1).message


@pytest.mark.law("X3")
@pytest.mark.parametrize("fault", ["killed after begin", "killed before end"])
def test_interrupted_run_is_resolved_by_lookup(world: World, fault: str) -> None:
    world.die(fault, n=1)
    assert world.ask(n=1).code == "ACTION_RUNNING"
    world.wait()

    outcome = world.ask(n=1)
    assert outcome.is_done
    assert outcome.data == ({"looked": True} if fault == "killed before end" else {"n": 1})
    assert len(world.outside.done) == 1


@pytest.mark.law("X3")
@pytest.mark.parametrize("fault", ["killed after begin", "killed before end"])
def test_interrupted_run_without_lookup_has_an_unknown_outcome_for_good(
    world: World, fault: str
) -> None:
    world.outside.can_tell = False
    world.die(fault, n=1)
    world.wait()
    unknown = world.ask(n=1)

    assert (unknown.code, unknown.retryable) == ("UNKNOWN_OUTCOME", False)
    world.outside.can_tell = True
    assert world.ask(n=1) == unknown
    assert len(world.outside.done) <= 1


@pytest.mark.law("X3")
@pytest.mark.parametrize(
    ("was_done", "can_tell", "code"),
    [
        (True, True, ""), (False, True, "UNAVAILABLE"),
        (True, False, "UNKNOWN_OUTCOME"), (False, False, "UNKNOWN_OUTCOME"),
    ],
)  # fmt: skip
def test_lost_answer_triggers_an_immediate_lookup(
    world: World, *, was_done: bool, can_tell: bool, code: str
) -> None:
    def lose(_: object) -> None:
        raise OutcomeUnknown("the answer was lost")

    world.outside.can_tell = can_tell
    world.outside.before, world.outside.after = (None, lose) if was_done else (lose, None)
    assert world.ask(n=1).code == code

    world.outside.before = world.outside.after = None
    if code == "UNAVAILABLE":
        assert world.ask(n=1).is_done
    assert len(world.outside.done) == int(was_done or code == "UNAVAILABLE")


@pytest.mark.law("X3")
def test_failed_lookup_is_repeated_later(world: World) -> None:
    def lose(_: object) -> None:
        raise OutcomeUnknown("the answer was lost")

    world.outside.after, world.outside.lookup_fails = lose, AdapterUnreachable("away")
    assert (world.ask(n=1).code, world.ask(n=1).code) == ("ACTION_RUNNING", "ACTION_RUNNING")
    world.outside.lookup_fails = None

    assert world.ask(n=1).data == {"looked": True}
    assert len(world.outside.done) == 1


@pytest.mark.law("X3")
def test_handler_that_raises_leaves_the_outcome_unknown(world: World) -> None:
    def fail(_: object) -> None:
        raise ZeroDivisionError

    world.outside.after, world.outside.can_tell = fail, False

    assert world.ask(n=1).code == "UNKNOWN_OUTCOME"
    assert [type(bug) for bug in world.acting.bugs] == [ZeroDivisionError]


@pytest.mark.law("X2")
def test_outcome_is_reported_although_the_run_store_fails(world: World) -> None:
    world.runs.fault = "end answer lost"
    assert world.ask(n=1) == world.ask(n=1)
    world.runs.fault = "begin answer lost"
    assert world.ask("a2", n=1).is_done
    world.runs.fault = "begin refused"
    assert world.ask("a3", n=1).retryable
    assert world.ask("a3", n=1).is_done
    assert len(world.outside.done) == 3


FAULTS = ["", *(f"{when} {call}" for when in ("killed before", "killed after")
                for call in ("begin", "end")), "begin refused", "end refused", "begin answer lost",
          "end answer lost"]  # fmt: skip
KEYS = {"a1": "k", "a2": "k", "a3": ""}
"""Each action has its key in all requests: the first two are one."""
OUTSIDE = ["fine", "unreachable", "refused", "lost", "lost before", "broken"]


class Once(RuleBasedStateMachine):
    """Clients ask, processes die, answers get lost; what was done is compared with what is told."""

    monkeypatch: pytest.MonkeyPatch

    @initialize(can_tell=st.booleans(), drops_repeats=st.booleans())
    def begin(self, *, can_tell: bool, drops_repeats: bool) -> None:
        self.world = World(use_memory_outside(self.monkeypatch))
        self.world.outside.can_tell = can_tell
        self.world.outside.drops_repeats = drops_repeats
        self.final: dict[str, ActionOutcome] = {}

    @rule(
        action=st.sampled_from([*KEYS]), fault=st.sampled_from(FAULTS),
        outside=st.sampled_from(OUTSIDE),
    )  # fmt: skip
    def ask(self, action: str, fault: str, outside: str) -> None:
        world = self.world
        world.runs.fault = fault
        self._prepare(outside)
        try:
            outcome = world.ask(action, key=KEYS[action])
        except Killed:
            return
        assert outcome.action_id == action
        if not outcome.retryable:
            before = self.final.setdefault(action, outcome)
            assert before == outcome, "what is final changed"

    def _prepare(self, what: str) -> None:
        def lose(_: object) -> None:
            raise OutcomeUnknown("lost")

        def fail(_: object) -> None:
            raise ZeroDivisionError

        outside = self.world.outside
        outside.before = lose if what == "lost before" else None
        outside.after = {"lost": lose, "broken": fail}.get(what)
        kinds = {"unreachable": AdapterUnreachable("away"), "refused": ActionFailed("no")}
        outside.refuses = kinds.get(what)

    @rule()
    def wait(self) -> None:
        self.world.wait()

    @invariant()
    def nothing_is_done_twice(self) -> None:
        if hasattr(self, "world"):
            ids = [run_id for run_id, _, _ in self.world.outside.done]
            assert len(ids) == len(set(ids))

    def teardown(self) -> None:
        """After all faults each action comes to an end."""
        if not hasattr(self, "world"):
            return
        world = self.world
        world.runs.fault = ""
        self._prepare("fine")
        for action, key in KEYS.items():
            world.wait()
            outcome = world.ask(action, key=key)
            assert not outcome.retryable
            assert self.final.setdefault(action, outcome) == outcome
            if world.outside.can_tell or world.outside.drops_repeats:
                assert outcome.code != "UNKNOWN_OUTCOME"


@pytest.mark.law("X1", "X2", "X3")
def test_no_action_is_done_twice_and_final_outcomes_remain_after_any_kills(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Machine(Once):
        pass

    Machine.monkeypatch = monkeypatch
    run_state_machine_as_test(
        Machine, settings=settings(max_examples=60, stateful_step_count=15, deadline=None)
    )
