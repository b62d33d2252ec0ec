"""What `lakesync status` shows to people: figures say of which gateways they are."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from lakesync.cli.commands.backlog import _show
from lakesync.cli.input_output import Output

if TYPE_CHECKING:
    import pytest


def shown(*, batches: int, of_all: int, messages: int) -> None:
    """Show a stack of one queue."""
    session: Any = SimpleNamespace(out=Output(json_lines=False))
    buffer = {"gateway": "acme", "unflushedBytes": 0, "unflushedAgeMs": 0}
    deployed = {
        "sockets": "ws://here",
        "waitingBatches": batches,
        "waitingBatchesOfAll": of_all,
        "queues": [{"queue": "announce", "messages": messages, "dead": 0}],
        "alarms": [],
        "glueRuns": [],
        "claimsSetAside": [],
    }
    _show(session, buffer, deployed)


def test_status_counts_waiting_batches_of_the_gateway_and_of_all_gateways(
    capsys: pytest.CaptureFixture[str],
) -> None:
    shown(batches=0, of_all=500, messages=500)

    printed = capsys.readouterr()
    assert "lake: 0 batches of acme wait for the Glue job, 500 of all gateways" in printed.out
    assert "queue, of all gateways" in printed.out
    assert "sockets: ws://here" in printed.out
    assert printed.err == ""


def test_status_explains_messages_without_waiting_batches(
    capsys: pytest.CaptureFixture[str],
) -> None:
    shown(batches=0, of_all=0, messages=500)

    said = "announce: 500 messages for 0 batches that wait: the others are of batches that the lake"
    assert said in capsys.readouterr().err
