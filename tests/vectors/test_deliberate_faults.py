"""The traces bite: a client with a fault that is put in on purpose does not do what they say."""

from __future__ import annotations

from queue import Empty

import pytest

from tests.simulation.deliberate import FAULTS, Deliberate, broken
from tests.support.vectors import FOLDER, device
from tests.support.vectors.traces import Played, kept, play

TRACES = kept(FOLDER / "traces.json")
ANSWER_S_MAX = 5
"""A faulty client may never ask: it is not waited for as long as a sound one."""
NOT_NOTICED = {
    "anybody_refuses": "is in the transport, in place of which a trace answers",
    "stopped_edits_are_stamped_again": "takes an edit stopped on the way, and a late event before",
    "limits_keep_edits_from_new_stamps": "takes limits that have become smaller",
    "rows_are_not_read_anew": "takes a table of old rows in which deletes come to win",
    "plain_edits_join_transactions": "takes threads",
    "retries_do_not_wait": "takes waits",
    "functions_are_hidden": "takes SQL of the app's own",
    "triggers_write_synced_tables": "takes SQL of the app's own",
}
"""What the simulation notices, and no trace."""
IN_CLIENT = [fault for fault in FAULTS if fault.patches.__module__.endswith(".in_client")]


@pytest.mark.parametrize(
    "fault",
    [fault for fault in IN_CLIENT if fault.name not in NOT_NOTICED],
    ids=lambda fault: fault.name,
)
def test_a_trace_notices_each_deliberate_fault_of_the_client(
    monkeypatch: pytest.MonkeyPatch, fault: Deliberate
) -> None:
    monkeypatch.setattr(device, "ANSWER_S_MAX", ANSWER_S_MAX)
    with broken(fault):
        assert any(_is_noticed(place) for place in range(len(TRACES))), fault.message


def test_faults_that_no_trace_notices_exist() -> None:
    assert NOT_NOTICED.keys() <= {fault.name for fault in IN_CLIENT}


def _is_noticed(place: int) -> bool:
    try:
        play(TRACES[place])
    except (Played, Empty):  # it did something else, or asked for nothing
        return True
    return False
