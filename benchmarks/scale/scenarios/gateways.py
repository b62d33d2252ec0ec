"""10,000 gateways, of which 1,000 are written all the time, are flushed on a schedule."""

from __future__ import annotations

import json
from collections import defaultdict
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from unittest.mock import patch

from benchmarks.entries import at_most, sized
from benchmarks.scale.devices import Device, push_function, push_until_taken
from benchmarks.scale.lambdas import Function
from benchmarks.scale.measures import Answers, percentile
from benchmarks.scale.services import Deliveries, Objects, Queue
from benchmarks.scale.world import World
from lakesync.runtime import wiring
from lakesync.runtime.settings import FlushSettings, ScheduleFlushSettings
from lakesync.runtime.tasks import flush_handler, schedule_handler

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.entries import Entry
    from lakesync.core.clock import Stamp
    from lakesync.maintenance.flush import FlushReport
    from lakesync.runtime.observe import Handler

GATEWAYS: Final = sized(10_000, 50)
BUSY: Final = sized(1_000, 10)
EDIT_EVERY_MS: Final = 10_000
"""Of each busy gateway, one edit."""
TICK_MS: Final = 60_000
TICKS: Final = 4
MEASURED_FROM_MS: Final = TICK_MS
# As template.yaml deploys them.
FLUSH_BATCH_MAX: Final = 10
FLUSH_CONCURRENCY_MAX: Final = 10
FLUSH_TIME_OUT_MS: Final = 300_000
SCHEDULE_TIME_OUT_MS: Final = 60_000


class Context:
    """Lambda's context of an invocation that begins now."""

    invoked_function_arn = "schedule"

    def __init__(self, world: World, time_out_ms: float) -> None:
        self._world = world
        self._ends_ms = world.now_ms() + time_out_ms

    def get_remaining_time_in_millis(self) -> float:
        """Return the time that is left."""
        return self._ends_ms - self._world.now_ms()


class Lags:
    """How old what was accepted is when it is flushed."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._waiting: dict[str, list[tuple[float, Stamp]]] = defaultdict(list)
        self.lags_s: list[float] = []
        self.flushes = 0

    def accepted(self, gateway: str, stamp: Stamp) -> None:
        """Note a push that was just answered."""
        self._waiting[gateway].append((self._world.now_ms(), stamp))

    def flushed(self, gateway: str, report: FlushReport) -> None:
        """Note a flush that just ended."""
        now_ms, waiting = self._world.now_ms(), self._waiting[gateway]
        self.flushes += 1
        done = [(at_ms, stamp) for at_ms, stamp in waiting if stamp <= report.watermark]
        self._waiting[gateway] = [pair for pair in waiting if pair[1] > report.watermark]
        if now_ms >= MEASURED_FROM_MS:
            self.lags_s += [(now_ms - at_ms) / 1000 for at_ms, _ in done]

    def all_s(self) -> list[float]:
        """Return all lags; of what still waits, how long it has waited."""
        now_ms = self._world.now_ms()
        waiting = [pair for pairs in self._waiting.values() for pair in pairs]
        return [*self.lags_s, *((now_ms - at_ms) / 1000 for at_ms, _ in waiting)]


class Flushes:
    """The schedule, its queue and the function that flushes, as they are deployed."""

    def __init__(self, world: World, lags: Lags) -> None:
        self._world = world
        self._lags = lags
        self._flush = Function(world, self._flush_process, FLUSH_CONCURRENCY_MAX)
        deliveries = Deliveries(
            world, self._invoke_flush,
            batch_max=FLUSH_BATCH_MAX, concurrency_max=FLUSH_CONCURRENCY_MAX,
        )  # fmt: skip
        self._queue = Queue(world, deliveries.take)
        self._schedule = Function(world, self._schedule_process)
        self.ticks_ms: list[float] = []
        """How long the schedule's runs took that came to an end."""

    def tick(self, event: dict[str, Any]) -> None:
        """Run the schedule once."""
        world = self._world

        def body() -> None:
            begun_ms = world.now_ms()
            context = Context(world, SCHEDULE_TIME_OUT_MS)
            self._schedule.call(lambda handler: handler(event, context))
            self.ticks_ms.append(world.now_ms() - begun_ms)

        world.start("schedule", body, SCHEDULE_TIME_OUT_MS)

    def flush(self, gateway: str, has_time: Callable[[], bool], flusher: Any) -> FlushReport:
        """Flush a gateway, and note it."""
        report: FlushReport = flusher.flush(gateway, has_time)
        self._lags.flushed(gateway, report)
        return report

    def _seconds(self) -> float:
        return self._world.now_ms() / 1000

    def _schedule_process(self) -> Handler:
        due = wiring.due(self._world.settings(ScheduleFlushSettings))

        def go_on(_: str, event: str) -> None:
            self.tick(json.loads(event))

        return schedule_handler(
            due, self._queue.send_all, go_on, self._seconds, self._world.wall_clock
        )

    def _flush_process(self) -> Handler:
        flusher = wiring.flusher(self._world.settings(FlushSettings))
        flush = partial(self.flush, flusher=flusher)
        return flush_handler(flush, flush, flusher.close_lanes, self._seconds)

    def _invoke_flush(self, bodies: list[str]) -> None:
        records = [
            {"messageId": str(number), "eventSource": "aws:sqs", "body": body}
            for number, body in enumerate(bodies)
        ]
        context = Context(self._world, FLUSH_TIME_OUT_MS)
        answer = self._flush.call(lambda handler: handler({"Records": records}, context))
        assert answer == {"batchItemFailures": []}, answer


def run() -> list[Entry]:
    """Measure, and give the figure."""
    with World(5) as world:
        objects = Objects(world)
        with (
            patch.object(wiring, "objects", lambda *_: objects),
            patch.object(wiring, "queue", lambda *_: Queue(world)),
        ):
            return _run(world, objects)


def _run(world: World, objects: Objects) -> list[Entry]:
    lags = Lags(world)
    flushes, pushes = Flushes(world, lags), push_function(world)
    _fill(world, flushes)
    answers = Answers(world)

    def write(device: Device) -> None:
        while True:
            push = device.edit(f"row{device.edits % 5}")
            note = partial(lags.accepted, device.gateway)
            push_until_taken(answers, pushes, device, push, note)
            world.sleep_ms(EDIT_EVERY_MS)

    for number in range(BUSY):
        device = Device(world, f"g{number}", number)
        world.spawn(partial(write, device), after_ms=number * EDIT_EVERY_MS / BUSY)
    for tick in range(1, TICKS + 1):
        world.later(tick * TICK_MS, partial(flushes.tick, {}))
    before = world.dynamo.bill.copy()
    world.run_until((TICKS + 1) * TICK_MS)
    bill = world.dynamo.bill.since(before)
    every_s = lags.all_s()
    worst_s = max(every_s, default=0.0)
    longest = max(flushes.ticks_ms, default=0.0) / 1000
    detail = (
        f"{GATEWAYS:,} gateways, {BUSY:,} of them with an edit every {EDIT_EVERY_MS / 1000:.0f} s; "
        f"asked every minute: age of the oldest commit when its flush ends, the worst there was "
        f"(half are below {percentile(every_s, 0.5):.0f} s); {lags.flushes:,} flushes of "
        f"{objects.puts:,} objects, {len(flushes.ticks_ms)} of {TICKS} runs of the schedule came "
        f"to their end, the longest in {longest:.1f} s; {bill.calls['TransactWriteItems']:,} "
        f"commits, {answers.refused} refused"
    )
    return [at_most("scale_gateways_flush_lag_s", worst_s, "s", 90, detail)]


def _fill(world: World, flushes: Flushes) -> None:
    """Let all gateways be there, written once and flushed: one is, the others are its copies."""
    function = push_function(world)
    device = Device(world, "g0", -1)

    def fill() -> None:
        function.call(lambda service: service.push("g0", device.edit("first")))
        flusher = wiring.flusher(world.settings(FlushSettings))
        flushes.flush("g0", lambda: True, flusher)
        world.dynamo.items.copy("g0", [f"g{number}" for number in range(1, GATEWAYS)])

    world.prepare(fill)
