"""``functions/ingest``, and the state machine that calls it again."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from lakesync.connectors.polls import Step
from lakesync.errors import Unavailable, ValidationFailed
from lakesync.runtime.polls import (
    EXECUTION_S_MAX,
    POLLS_BEHIND,
    POLLS_FAULTY,
    SOURCE_CHANGES,
    WAIT_IN_MACHINE_S_MAX,
    ingest_handler,
)
from tests.functions.conftest import Context
from tests.support.repository import ROOT

if TYPE_CHECKING:
    from tests.functions.conftest import Functions

EVENT = {"gateway": "demo", "name": "shop"}


class Polling:
    """`lakesync.connectors.polls.Polls` that does as it is told, and takes its time."""

    def __init__(self, *steps: Step, takes_s: float = 0.0) -> None:
        self.steps = list(steps)
        self.takes_s = takes_s
        self.now_s = 0.0
        self.leases: list[int] = []

    def poll(self, gateway: str, name: str, lease: int, has_time: Any) -> Step:
        """Take one step."""
        assert (gateway, name) == ("demo", "shop")
        assert has_time()
        self.leases.append(lease)
        self.now_s += self.takes_s
        return self.steps.pop(0)

    def handle(self, sent: dict[str, Any]) -> dict[str, Any]:
        """Call the function."""
        handler = ingest_handler(self, lambda: self.now_s)  # type: ignore[arg-type]
        answer: Any = handler(sent, Context(29_000))
        return json.loads(json.dumps(answer))  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("step", "following"),
    [
        (Step("done"), "end"),
        (Step("busy"), "end"),
        (Step("paused"), "end"),
        (Step("gone"), "end"),
        (Step("more", 0, 7), "again"),
        (Step("wait", WAIT_IN_MACHINE_S_MAX), "wait"),
        (Step("wait", WAIT_IN_MACHINE_S_MAX + 1), "end"),
        (Step("wait", 0), "end"),
    ],
)
def test_the_answer_of_a_poll_step_names_the_next_state(step: Step, following: str) -> None:
    answer = Polling(step).handle(EVENT)

    assert answer["next"] == following
    assert (answer["lease"], answer["waitS"]) == (step.lease, step.wait_s)


def test_delayed_polls_faulty_polls_and_schema_changes_are_counted(
    capsys: pytest.CaptureFixture[str],
) -> None:
    steps = (Step("done"), Step("more", 0, 7, behind=9), Step("done", has_fault=True))
    for step in (*steps, Step("done", schema_changes=2)):
        Polling(step).handle(EVENT)
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    assert [line[POLLS_BEHIND] for line in lines if POLLS_BEHIND in line] == [[9.0]]
    assert [line[POLLS_FAULTY] for line in lines if POLLS_FAULTY in line] == [[1.0]]
    assert [line[SOURCE_CHANGES] for line in lines if SOURCE_CHANGES in line] == [[2.0]]


def test_a_poll_execution_begins_no_step_that_would_exceed_its_timeout() -> None:
    machine = json.loads((ROOT / "stepfunctions" / "poll_connector.asl.json").read_text())
    longest_s = 29 * 3  # one call, tried three times
    polling = Polling(*[Step("more", 0, 7)] * 20, takes_s=17)
    sent: dict[str, Any] = dict(EVENT)
    while sent.get("next") in {None, "again"}:
        sent = polling.handle(sent)

    assert sent["next"] == "goOn"
    assert polling.now_s <= EXECUTION_S_MAX + 17
    assert EXECUTION_S_MAX + longest_s <= machine["TimeoutSeconds"] < 300
    assert polling.leases[1:] == [7] * (len(polling.leases) - 1)


def test_a_poll_moves_to_the_function_that_polls_the_flow_and_stays_there() -> None:
    polling = Polling(Step("elsewhere", place="databases"), Step("more", 0, 7), Step("done"))
    sent: dict[str, Any] = dict(EVENT)
    places = []
    while sent.get("next") in {None, "again"}:
        sent = polling.handle(sent)
        places.append((sent["place"], sent["next"]))

    assert places == [("databases", "again"), ("databases", "again"), ("databases", "end")]
    states = json.loads((ROOT / "stepfunctions" / "poll_connector.asl.json").read_text())["States"]
    chosen = states["Poll"]["Arguments"]["FunctionName"]
    assert chosen == (
        "{% $states.input.place = 'databases' ? '${FlowFunction}' : "
        "$states.input.place = 'lakes' ? '${LakeFlowFunction}' : '${IngestFunction}' %}"
    )
    assert "place" in states["GoOn"]["Arguments"]["Input"]


@pytest.mark.parametrize(
    "sent",
    [
        {},
        {"gateway": 5, "name": "x"},
        {"gateway": "g"},
        EVENT | {"lease": "1"},
        EVENT | {"spentS": None},
        EVENT | {"place": 7},
    ],
)
def test_a_malformed_poll_event_is_refused(sent: dict[str, Any]) -> None:
    with pytest.raises(ValidationFailed):
        Polling().handle(sent)


def test_an_unavailable_connector_store_is_raised_to_the_state_machine(
    functions: Functions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "lakesync.buffer.admin_stores.ItemConnectors.connector",
        lambda *_: (_ for _ in ()).throw(Unavailable("away")),
    )

    with pytest.raises(Unavailable):
        functions.call("ingest", "ingest_poll")


def test_a_poll_of_a_removed_connector_ends(functions: Functions) -> None:
    answer = functions.call("ingest", "ingest_poll")
    assert (answer["status"], answer["next"]) == ("gone", "end")
