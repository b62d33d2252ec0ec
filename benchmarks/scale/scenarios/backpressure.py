"""1,000 gateways whose data waited too long refuse pushes at once; then flushing works again."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final
from unittest.mock import patch

from benchmarks.entries import at_most, sized
from benchmarks.scale.devices import Device, push_function, push_once
from benchmarks.scale.measures import Answers
from benchmarks.scale.scenarios.gateways import TICK_MS, Flushes, Lags
from benchmarks.scale.services import Objects, Queue
from benchmarks.scale.world import World
from lakesync.runtime import wiring
from lakesync.runtime.settings import PushSettings

if TYPE_CHECKING:
    from benchmarks.entries import Entry

GATEWAYS: Final = sized(1_000, 20)
ASKED_AGAIN_MS: Final = 10_000
"""After a refusal, by each device: as long as the answer asks for, and jitter."""
TICKS: Final = 4


def run() -> list[Entry]:
    """Measure, and give the figure."""
    with World(7) as world:
        objects = Objects(world)
        with (
            patch.object(wiring, "objects", lambda *_: objects),
            patch.object(wiring, "queue", lambda *_: Queue(world)),
        ):
            return _run(world)


def _run(world: World) -> list[Entry]:
    lags = Lags(world)
    flushes, pushes = Flushes(world, lags), push_function(world)
    begins_ms = world.settings(PushSettings).backpressure_age_s_max * 1_000.0 + TICK_MS
    _fill(world)
    answers = Answers(world)
    accepted_ms: list[float] = []

    def write(device: Device) -> None:
        push = device.edit("row")

        def request() -> None:
            lags.accepted(device.gateway, push_once(pushes, device.gateway, push))
            accepted_ms.append(world.now_ms() - begins_ms)

        answers.ask(device.number, request, again_after_ms=ASKED_AGAIN_MS)

    for number in range(GATEWAYS):
        device = Device(world, f"g{number}", number)
        early_ms = TICK_MS / 2 - number * ASKED_AGAIN_MS / GATEWAYS
        world.spawn(partial(write, device), after_ms=begins_ms - early_ms)
    world.run_until(begins_ms)
    refused_first = answers.errors["BACKPRESSURE_ERROR"]
    for tick in range(TICKS):
        world.later(tick * TICK_MS, partial(flushes.tick, {}))
    world.run_until(begins_ms + TICKS * TICK_MS)
    waiting = answers.waiting + len(lags.all_s()) - len(lags.lags_s)
    last_s = max(accepted_ms, default=TICKS * TICK_MS) / 1_000
    detail = (
        f"{GATEWAYS:,} gateways refuse every push, {refused_first:,} times by then; from the "
        f"first run of the schedule that works until the last of them accepts one, asked each "
        f"{ASKED_AGAIN_MS / 1000:.0f} s; {answers.count:,} accepted, {waiting} neither accepted "
        "nor flushed at the end"
    )
    entry = at_most("scale_backpressure_ends_s", last_s, "s", 60, detail)
    is_whole = answers.count == GATEWAYS and not waiting and refused_first >= GATEWAYS
    return [entry | {"holds": entry["holds"] and is_whole}]


def _fill(world: World) -> None:
    """Let all gateways be there with a commit that nobody flushed: one is, others are copies."""
    function, device = push_function(world), Device(world, "g0", -1)

    def fill() -> None:
        function.call(lambda service: service.push("g0", device.edit("first")))
        world.dynamo.items.copy("g0", [f"g{number}" for number in range(1, GATEWAYS)])

    world.prepare(fill)
