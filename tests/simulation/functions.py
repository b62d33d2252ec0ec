"""The functions that nobody waits for: flush, its schedule, the materialiser's runs, the admin."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING

from lakesync.core.config import FORMATS
from lakesync.errors import LakeSyncError
from lakesync.maintenance.flush import CLOSE_AFTER_S, Flusher, due_gateways
from lakesync.runtime.tasks import CLOSE_SINCE, ask_to_close, flush_request
from tests.simulation.lake import PREFIX, RUN_ENDS, JsonEncoder, Materialiser
from tests.simulation.ports import (
    Messages,
    SimulatedBuffer,
    SimulatedChance,
    SimulatedObjects,
    SimulatedQueue,
    sleeper,
)
from tests.simulation.scheduler import Process
from tests.support.gateways import Administrator

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.simulation.world import World

VISIBILITY_MS = 45_000
"""How long a message stays away after it was handed out."""
RECEIVES_MAX = 8
"""Then it is dead; schedules and sweeps do what it asked for."""
WITHOUT_BUFFER = {"materialise", "restore"}
"""What goes on while the buffer is being restored."""


class Functions:
    """Starts functions, each in a process of its own."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._made = 0
        self._random = world.stream("queues")
        self._tables = world.stream("flushes of tables")
        self._running: dict[Process, None] = {}

    def start(
        self, name: str, body: Callable[[Process], None], ended: Callable[[], None],
        time_out_ms: int = 600_000,
    ) -> None:  # fmt: skip
        """Run a function once; ``ended`` hears that it returned, not that it died."""
        if self._world.upkeep.is_down and name not in WITHOUT_BUFFER:
            return
        self._made += 1
        process = Process(f"{name}#{self._made}")
        if name not in WITHOUT_BUFFER:
            self._running[process] = None

        def run() -> None:
            body(process)
            process.alive = False
            self._running.pop(process, None)
            ended()

        self._world.scheduler.spawn(process, process.name, run)
        self._world.later("time-out", lambda: self._world.crash(process, "time-out"), time_out_ms)

    def stop(self) -> None:
        """End everything that works on the buffer."""
        running, self._running = self._running, {}
        for process in running:
            self._world.scheduler.kill(process)

    # --- queues -----------------------------------------------------------------------------------

    def deliver(self, messages: Messages, body: str, receives: int = 0) -> None:
        """Hand a message out soon, and again until it was handled."""
        handled = False
        world = self._world

        def acknowledge() -> None:
            nonlocal handled
            handled = True

        def receive() -> None:
            if handled or receives >= RECEIVES_MAX:
                return
            self._handle(messages, body, acknowledge)
            world.later("message", again, max(VISIBILITY_MS, world.scenario.span_ms // 40))

        def again() -> None:
            if not handled:
                world.count("redelivered message")
                self.deliver(messages, body, receives + 1)

        world.later("message", receive, int(self._random.random() * 2_000))
        if receives == 0 and self._random.random() < world.faults.duplicate_message:
            world.count("duplicated message")
            later_ms = int(self._random.random() * 60_000)
            world.later("message", lambda: self._handle(messages, body, lambda: None), later_ms)

    def _handle(self, messages: Messages, body: str, acknowledge: Callable[[], None]) -> None:
        if messages is self._world.flush_requests:
            request = json.loads(body)

            def flush(process: Process) -> None:
                self._flush(process, request, acknowledge)

            self.start("flush", flush, _nothing)
        elif messages is self._world.deliveries:
            self._world.destinations.deliver(body, acknowledge)
        elif self._world.run_is_on:
            return  # back to the queue
        else:
            acknowledge()
            self.materialise()

    # --- flush ------------------------------------------------------------------------------------

    def flush(self) -> None:
        self.deliver(self._world.flush_requests, flush_request("g1"))

    def plan(self) -> None:
        """Have objects of batches written in another form in the middle, perhaps."""
        scenario = self._world.scenario
        for number in range(scenario.formats):
            form = FORMATS[(number + 1) % len(FORMATS)]
            at_ms = int(self._tables.random() * scenario.span_ms)
            self._world.later("format", partial(self._write_as, form), at_ms)

    def _write_as(self, form: str) -> None:
        def declare(service: Administrator) -> object:
            return service.save_flushing("g1", {"flushFormat": form})

        self.administer(declare, f"batches are {form}", "form of batches not declared")

    def _one_table(self) -> str:
        """Return a table that is to be flushed by itself; empty for all."""
        scenario = self._world.scenario
        if self._world.is_calm or self._tables.random() >= scenario.table_flushes:
            return ""
        return self._tables.choice([table.name for table in scenario.tables])

    def schedule(self) -> None:
        """Ask for a flush of every gateway that is due, as EventBridge does."""
        self.start("schedule", self._schedule, _nothing)

    def _schedule(self, process: Process) -> None:
        world = self._world
        buffer = SimulatedBuffer(world, process)
        queue = SimulatedQueue(world, process, world.flush_requests)
        try:
            for gateway in due_gateways(buffer):
                queue.send(flush_request(gateway))
        except LakeSyncError:
            world.count("schedule failed")

    def _flush(
        self, process: Process, request: dict[str, str], acknowledge: Callable[[], None]
    ) -> None:
        world = self._world
        later = SimulatedQueue(world, process, world.flush_requests, CLOSE_AFTER_S)
        flusher = Flusher(
            SimulatedBuffer(world, process),
            SimulatedObjects(world, process),
            SimulatedQueue(world, process, world.announcements),
            JsonEncoder(),
            SimulatedQueue(world, process, world.deliveries),
            still_open=ask_to_close(later),
        )
        gateway, since = request["gateway"], request.get(CLOSE_SINCE)
        what = "lanes looked at again" if since else "flush"
        try:
            if since:
                flusher.close_lanes(gateway, int(since))
            else:
                table = self._one_table()
                what = "flush of a table" if table else what
                world.note(process.name, "%s %s", table, flusher.flush(gateway, table=table))
        except LakeSyncError as error:
            world.count(f"{what} failed")
            world.note(process.name, "%s", error)
            return
        world.count(what)
        acknowledge()

    # --- the lake ---------------------------------------------------------------------------------

    def sweep(self) -> None:
        """Start a run if a claim waits, as the schedule does."""
        if any(key.startswith(PREFIX) for key in self._world.objects):
            self.materialise()

    def materialise(self) -> None:
        """Start a run of the job, unless one is known to be at work."""
        world = self._world
        if world.run_is_on:
            return
        world.run_is_on = True

        def run(process: Process) -> None:
            process.on_kill.append(over)
            try:
                Materialiser(world, process).run()
            except (LakeSyncError, *RUN_ENDS) as error:
                world.count("run failed")
                world.note(process.name, "%s", error)

        def over() -> None:
            world.run_is_on = False

        self.start("materialise", run, over)
        # Glue may lose sight of a run that goes on: then two of them are at work.
        if self._random.random() < 0.2:
            world.later("second run", over, int(self._random.random() * 30_000))

    # --- administration ---------------------------------------------------------------------------

    def administer(self, act: Callable[[Administrator], object], done: str, refused: str) -> None:
        """Have the administrator do something, and count how it ended."""

        def run(process: Process) -> None:
            world = self._world
            service = Administrator(
                SimulatedBuffer(world, process),
                wall_clock=world.new_clock(world.scenario.function_skew_ms),
                sleep_ms=sleeper(world, process),
                chance=SimulatedChance(world, process),
            )
            try:
                act(service)
                ended = done
            except LakeSyncError:
                ended = refused
            world.count(ended)
            world.note(process.name, "%s", ended)

        self.start("admin", run, _nothing)


def _nothing() -> None:
    """Hear of the end, and do nothing."""
