"""What `lakesync cost` counts with is what the emulator counted while a hundred devices edited.

``benchmarks/hour.json`` is the record: an hour's edits on the deployed local stack, replayed eight
times as fast (`benchmarks.hour`). Requests are those that reached a function. What
follows real time is not compared: the authoriser, which API Gateway asks once a minute at most, and
schedules.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from benchmarks.hour import RECORD
from lakesync.cli import cost
from lakesync.cli.cost import counts, described

HOUR: dict[str, Any] = json.loads(RECORD.read_text("utf-8"))
COUNTED: dict[str, float] = HOUR["counts"]
WITHIN = 0.10
BUSY_MONTH_H = 24 * 30


def counted(*names: str) -> float:
    """Return the sum of some totals of the record."""
    return sum(COUNTED.get(name, 0) for name in names)


def modelled() -> dict[str, cost.Event]:
    """Return the model's events for the same traffic, of an hour."""
    busy = described({
        "devices": HOUR["devices"], "tenants": HOUR["gateways"], "hours_per_day": 24,
        "edits_per_hour": HOUR["edits"] / HOUR["devices"], "receivers": 9,
    })  # fmt: skip
    return {
        event.what: event._replace(times=event.times / BUSY_MONTH_H)
        for event in cost.events(busy, 472, 6_840)
    }


def used(name: str, *whats: str) -> float:
    """Return how much of a price's thing events use in the hour."""
    events = modelled()
    return sum(events[what].times * events[what].each.uses.get(name, 0) for what in whats)


EDITS = ("pushes", "pulls behind pushes", "broadcasts")


def test_the_recorded_hour_has_100_devices_with_12_edits_each() -> None:
    assert (HOUR["devices"], HOUR["gateways"], HOUR["edits"]) == (100, 10, 1_200)
    assert HOUR["replayed_s"] * HOUR["speed"] == pytest.approx(3_600, rel=0.02)


def _pairs() -> dict[str, tuple[float, float]]:
    """Return of each count what was counted, and what the model says."""
    events = modelled()
    return {
        "pushes": (counted("lambda.requests.PushFunction"), events["pushes"].times),
        "pulls": (counted("lambda.requests.PullFunction"), events["pulls behind pushes"].times),
        "broadcasts": (
            counted("lambda.requests.NotifyFunction"),
            events["broadcasts"].times * counts.NOTIFIES,
        ),
        "messages": (
            counted("socket.messages_out", "socket.messages_in"),
            used("socket_messages", "broadcasts", "keep-alives", "checks for missed broadcasts"),
        ),
        "write units": (
            counted("dynamodb.writes.BufferTable", "dynamodb.writes.ConnectionsTable"),
            used("dynamodb_writes", *EDITS),
        ),
        "read units": (
            counted("dynamodb.reads.BufferTable", "dynamodb.reads.ConnectionsTable"),
            used("dynamodb_reads", *EDITS),
        ),
        "bytes of a message": (
            counted("socket.bytes_out") / counted("socket.messages_out"),
            counts.FRAME_BYTES + counts.FRAME_EDIT_BYTES,
        ),
        "bytes of a line that a push logs": (
            counted("lambda.log_bytes.PushFunction") / counted("lambda.log_lines.PushFunction"),
            counts.PUSH_LOG_BYTES - 26,
        ),
        "bytes of a line that a pull logs": (
            counted("lambda.log_bytes.PullFunction") / counted("lambda.log_lines.PullFunction"),
            counts.PULL_LOG_BYTES - 26,
        ),
    }  # fmt: skip


@pytest.mark.parametrize("name", _pairs())
def test_the_cost_model_agrees_with_the_emulators_counts(name: str) -> None:
    measured, said = _pairs()[name]

    assert abs(said - measured) <= WITHIN * max(said, measured), f"{measured:.4g}, not {said:.4g}"


def test_modelled_push_and_pull_answer_sizes_agree_with_the_measured_mean() -> None:
    answers = counted("lambda.requests.PushFunction", "lambda.requests.PullFunction")
    pushed = counts.PUSH_ANSWER_BYTES
    pulled = counts.PULL_ANSWER_BYTES + counts.FRAME_EDIT_BYTES

    assert counted("http.bytes_out") / answers == pytest.approx((pushed + pulled) / 2, rel=WITHIN)
