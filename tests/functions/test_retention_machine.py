"""The state machine of retention, walked by its definition, and killed at each of its states."""

from __future__ import annotations

import itertools
import json
from typing import TYPE_CHECKING, Any

import pytest

from lakesync.checkpoint import flushed_from_json
from lakesync.log.read import ReadBarrier
from lakesync.maintenance.checkpoint_upkeep import KEEP_MS, Keeper
from lakesync.maintenance.horizons import Trimmer
from lakesync.runtime.retention import Retention, Slices, retain_handler
from tests.functions.conftest import Context, no_deletion
from tests.support.builders import at_ms, delete, insert, update
from tests.support.checkpoints import Kept, Reader
from tests.support.gateways import GATEWAY
from tests.support.lake import Killed, Life
from tests.support.repository import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable

MACHINE = json.loads((ROOT / "stepfunctions" / "retention.asl.json").read_text())
DAY_MS = 86_400_000


def handler_of(
    gateway: Kept, life: Life | None = None, lake_rows_min: int = 1_000_000
) -> Callable[[Any, Any], Any]:
    """Return the function, as a process that may die has it."""
    buffer = life.of(gateway.buffer) if life else gateway.buffer
    objects = life.of(gateway.objects) if life else gateway.objects
    clock = gateway.time.wall_clock
    retention = Retention(
        buffer,
        ReadBarrier(buffer),
        builder=gateway.builder(life),
        trimmer=Trimmer(buffer, wall_clock=clock, keep_ms=DAY_MS),
        forgetter=gateway.forgetter(2 * DAY_MS, buffer),
        keeper=Keeper(objects, gateway.checkpoints, wall_clock=clock),
        checkpoints=gateway.checkpoints,
        lake_rows_min=lake_rows_min,
    )
    slices = Slices(buffer, retention, wall_clock=clock, every_ms=DAY_MS)
    return retain_handler(retention, slices, no_deletion, lambda: clock() / 1000)


def no_job(flushed: str) -> bool:
    pytest.fail(f"nothing is so large: {flushed}")


def walked(
    handler: Callable[[Any, Any], Any],
    states_max: int = 1_000,
    job: Callable[[str], bool] = no_job,
) -> list[str]:
    """Walk a gateway's own flow; returns the states that were entered, until it is stopped."""
    entered: list[str] = []
    for gateway in handler({"task": "names"}, Context())["gateways"]:
        flow = MACHINE["States"]["Each"]["ItemProcessor"]
        name, place, flushed, answer = flow["StartAt"], "", "", {}
        while len(entered) < states_max:
            state = flow["States"][name]
            entered.append(name)
            if "glue" in state.get("Resource", ""):
                assert state["Arguments"]["Arguments"] == {"--flushed": "{% $flushed %}"}
                name = state["Next"] if job(flushed) else state["Catch"][0]["Next"]
                continue
            if state["Type"] == "Task":
                arguments = {"{% $gateway %}": gateway, "{% $place %}": place}
                payload = state["Arguments"]["Payload"]
                asked = {key: arguments.get(value, value) for key, value in payload.items()}
                answer = handler(asked, Context())
                place = answer["place"]
                flushed = answer.get("flushed", flushed)
            if state.get("End"):
                break
            if state["Type"] == "Choice":
                (choice,) = state["Choices"]
                holds = {
                    "{% $states.input.finished %}": answer.get("finished"),
                    '{% $flushed != "" %}': flushed != "",
                }
                name = choice["Next"] if holds[choice["Condition"]] else state["Default"]
            else:
                name = state["Next"]
    return entered


def due() -> Kept:
    """Return a gateway for which each task has something to do."""
    gateway = Kept(chunk_bytes=300)
    for day in range(4):
        for number in range(4):
            gateway.push(insert(f"r{day}{number}", at=at_ms(10 * day + number), n=number))
        gateway.push(update(f"r{day}1", at=at_ms(10 * day + 5), n=9))
        gateway.push(delete(f"r{day}2", at=at_ms(10 * day + 6)))
        gateway.flushed()
        if day < 3:
            gateway.build()
        gateway.time.now_ms += KEEP_MS
    return gateway


def left(gateway: Kept) -> dict[str, Any]:
    """Return what is left of a gateway."""
    stored = gateway.buffer._gateways[GATEWAY]
    identity = stored.heads["main"].epoch.encode()  # each gateway's own
    return {
        "rows": gateway.rows(),
        "log": [entry.stamp for chunk in stored.logs["main"] for entry in chunk],
        "horizons": (stored.heads["main"].trimmed, *stored.config.tombstone_horizons.values()),
        "objects": {
            key: body.replace(identity, b"") for key, body in gateway.objects.bodies.items()
        },
    }


@pytest.mark.law("R2", "R4", "R5")
def test_the_state_machine_runs_every_retention_task_in_order() -> None:
    gateway = due()
    before = left(gateway)

    entered = walked(handler_of(gateway))

    after = left(gateway)
    assert [name for name in entered if not name.endswith("Done")] == [
        "Take", "Plan", "FromWhere", "Build", "Trim", "Forget", "Clean", "Retained",
    ]  # fmt: skip
    assert len(after["rows"]) < len(before["rows"])
    assert len(after["log"]) < len(before["log"])
    assert min(after["horizons"]) > 0
    assert len(gateway.checkpoints.ids(GATEWAY)) == 2
    reader = Reader(gateway)
    assert {**reader.read(), **gateway.rows()} == reader.bytes()


@pytest.mark.law("L13")
@pytest.mark.parametrize("run", ["SUCCEEDED", "FAILED"])
def test_a_large_checkpoint_is_built_by_the_job_or_else_by_the_function(run: str) -> None:
    gateway = due()
    gateways = []

    def job(flushed: str) -> bool:
        gateways.append(flushed_from_json(flushed).gateway)
        return run == "SUCCEEDED"

    entered = walked(handler_of(gateway, lake_rows_min=1), job=job)

    assert gateways == [GATEWAY]
    assert ("Build" in entered) == (run == "FAILED")
    assert entered[-1] == "Retained"


@pytest.mark.law("R2", "R4", "R5")
def test_retention_stopped_at_any_state_and_restarted_ends_the_same() -> None:
    whole = due()
    count = len(walked(handler_of(whole)))
    for states in range(count):
        gateway = due()
        walked(handler_of(gateway), states)
        walked(handler_of(gateway))
        assert left(gateway) == left(whole)


@pytest.mark.law("R2", "R4", "R5")
def test_retention_killed_at_any_write_and_restarted_ends_the_same() -> None:
    whole = due()
    walked(handler_of(whole))
    for writes, last_happens in itertools.product(range(200), (False, True)):
        gateway = due()
        try:
            walked(handler_of(gateway, Life(writes, last_happens=last_happens)))
        except Killed:
            Reader(gateway).read()
            walked(handler_of(gateway))
        else:
            assert writes > 15
            return
        assert left(gateway) == left(whole)
    pytest.fail("retention takes more writes than this test allows")
