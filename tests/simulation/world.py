"""One simulation: everything that a seed stands for, put together and run to its end."""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING
from unittest.mock import patch

from lakesync.core import delta, merge
from lakesync.errors import LakeSyncError
from lakesync.log.lanes import Limits
from lakesync.maintenance import flush
from lakesync.maintenance.horizons import begin_epoch
from lakesync.runtime import observe
from lakesync.wire import records
from tests.simulation import checkers, declarations, flows
from tests.simulation.chaos import Chaos
from tests.simulation.clients import Device
from tests.simulation.deletion import Deletion
from tests.simulation.destinations import Destinations
from tests.simulation.functions import Functions
from tests.simulation.gate import Gate
from tests.simulation.history import History, Violation
from tests.simulation.javascript import NodeDevice, begin_in_node, lives_in_node
from tests.simulation.lake import Lake
from tests.simulation.losses import Losses
from tests.simulation.network import GATEWAY, Front
from tests.simulation.ports import Messages
from tests.simulation.pushes import Pushes
from tests.simulation.rulings import Rulings, schema
from tests.simulation.scenario import Faults, Scenario
from tests.simulation.scheduler import START_MS, Clock, Crashed, Process, Scheduler
from tests.simulation.sockets import Sockets
from tests.simulation.store import Store
from tests.simulation.upkeep import Upkeep
from tests.simulation.workload import Workload
from tests.support.gateways import Administrator

if TYPE_CHECKING:
    from collections.abc import Callable

    from lakesync.core.schema import Schemas
    from tests.simulation.oracle import Claims

STEPS_MAX = 400_000
CALM_MS_MAX = 6 * 3_600_000
"""How long after the last fault everything may take to become quiet."""
CALM_STEPS_MAX = 60_000
MEMORY = Path("/dev/shm")  # noqa: S108 - where files cost no disk, if there is such a place


class World:
    """All that one seed stands for."""

    def __init__(self, scenario: Scenario, trace: list[str] | None = None) -> None:
        self.scenario = scenario
        self.faults = scenario.faults
        self.counts: Counter[str] = Counter()
        self._trace = trace
        self._streams: dict[str, Random] = {}
        self.scheduler = Scheduler(self.stream("order"), STEPS_MAX)
        self._number = 0
        self._clocks: list[tuple[Clock, int]] = []
        self._clock_random = self.stream("clocks")
        self.limits = Limits(
            commit_items_max=scenario.commit_items_max,
            commit_entries_bytes_max=scenario.commit_bytes_max,
            entry_bytes_max=min(380_000, scenario.commit_bytes_max),
            row_state_bytes_max=scenario.row_state_bytes_max,
            backpressure_bytes_max=scenario.backpressure_bytes_max,
            flush_threshold_bytes=scenario.flush_threshold_bytes,
            page_bytes_max=scenario.page_bytes_max,
        )
        appends = {table.name for table in scenario.tables if table.append}
        self.rulings = Rulings(self)
        self.history = History(appends.__contains__, self.rulings)
        self.losses = Losses()
        self.pushes = Pushes()
        self.declarations = declarations.Declarations(self)
        self.watch = checkers.Watch(self)
        self.store = Store(self)
        self.gate = Gate(self)
        self.objects: dict[str, bytes] = {}
        self.lake = Lake()
        self.flush_is_broken = False
        self.run_is_on = False
        self.is_calm = False
        self.calm_ms = 0
        """When it became so."""
        self.flush_requests = Messages("flush requests")
        self.announcements = Messages("announcements")
        self.deliveries = Messages("deliveries")
        self.functions = Functions(self)
        self.front = Front(self)
        self.sockets = Sockets(self)
        self.upkeep = Upkeep(self)
        self.deletion = Deletion(self)
        self.destinations = Destinations(self)
        self.flows = flows.Flows(self)
        self.devices: list[Device] = []

    # --- what everybody uses ----------------------------------------------------------------------

    def stream(self, name: str) -> Random:
        """Return a stream of chance of its own, so that leaving one part out changes no other."""
        stream = self._streams.get(name)
        if stream is None:
            stream = self._streams[name] = Random(f"{self.scenario.seed}/{name}")
        return stream

    def number(self) -> int:
        """Return a number that is never given again."""
        self._number += 1
        return self._number

    def unique(self) -> str:
        """Return a name that is never given again."""
        return f"n{self.number()}"

    def count(self, what: str) -> None:
        self.counts[what] += 1
        if self._trace is not None:
            self.note("·", what)

    def note(self, who: str, text: str, *values: object) -> None:
        """Write a line of the trace, if there is one."""
        if self._trace is not None:
            seconds = (self.scheduler.now_ms - START_MS) / 1000
            self._trace.append(f"{seconds:12.3f}  {who:<16} {text % values if values else text}")

    def new_clock(self, skew_ms: int, coarse_ms: int = 1) -> Clock:
        random = self._clock_random
        offset_ms, drift_ppm = int(random.uniform(-1, 1) * skew_ms), random.uniform(-1, 1) * 50
        clock = Clock(self.scheduler, offset_ms, drift_ppm, coarse_ms)
        self._clocks.append((clock, skew_ms))
        return clock

    def clocks(self) -> list[tuple[Clock, int]]:
        """Return all clocks, with how far each may be off."""
        return self._clocks

    def later(self, name: str, act: Callable[[], object], after_ms: int) -> None:
        """Do something after a while, whoever is alive then."""
        self.scheduler.call_later(name, act, after_ms)

    def crash(self, process: Process, when: str) -> None:
        """Kill a process; does not return if it is the caller's own."""
        if not process.alive:
            return
        self.count("function crashed" if "#" in process.name else "app killed")
        self.note(process.name, "crash: %s", when)
        self.scheduler.kill(process)
        if self.scheduler.is_current(process):
            raise Crashed

    def may_crash(self, process: Process, chance: float, when: str) -> None:
        """Kill a process, perhaps."""
        if chance and self.stream_of_crashes.random() < chance:
            self.crash(process, when)

    def deliver(self, messages: Messages, body: str) -> None:
        self.functions.deliver(messages, body)

    # --- the run ----------------------------------------------------------------------------------

    def run(self) -> None:
        """Live through the seed.

        Raises:
            Violation: a promise was broken.
        """
        with ExitStack() as stack:
            for owner, name, value in [*bounds(self.scenario), *flows.bounds(self.flows)]:
                stack.enter_context(patch.object(owner, name, value))
            for name, observed in self.sockets.observed():
                stack.enter_context(patch.object(observe, name, observed))
            self._run()

    def _run(self) -> None:
        self.stream_of_crashes = self.stream("crashes")
        folder = Path(tempfile.mkdtemp(dir=MEMORY if MEMORY.is_dir() else None))
        try:
            self.declare()
            begin_in_node(self.scenario)
            self._begin(folder)
            span_ms = START_MS + self.scenario.span_ms
            self.scheduler.run(span_ms)
            self._calm()
            self._finish()
        finally:
            for device in self.devices:
                device.process.on_kill.clear()
                self.scheduler.kill(device.process)
                device.shut()
            self.scheduler.drop()
            shutil.rmtree(folder, ignore_errors=True)

    def schemas_for(self, claims: Claims) -> Schemas:
        """Return the schemas that a client with these claims is told."""
        return self._service().schemas_for(GATEWAY, claims)

    def _service(self) -> Administrator:
        return Administrator(
            self.store,
            wall_clock=lambda: START_MS,
            sleep_ms=lambda _: None,
            chance=_NoChance(f"setup {self.counts['set up anew']}"),
        )

    def declare(self) -> None:
        service = self._service()
        for table in self.scenario.tables:
            if table.typed:
                body = schema(table.name, [], append=table.append)
                service.register_schema(GATEWAY, body)
            if table.shard != "main":
                service.place_table(GATEWAY, table.name, table.shard)
        for number in range(self.scenario.shards_besides):
            service.place_table(GATEWAY, f"besides{number}", f"besides{number}")
        self.rulings.first(service)
        if self.scenario.restores and self.scenario.seed % 2:
            # It was restored before, so that clients have an epoch to name.
            long_ago = START_MS - 86_400_000
            begin_epoch(self.store, GATEWAY, wall_clock=lambda: long_ago)

    def _begin(self, folder: Path) -> None:
        for number in range(self.scenario.clients):
            kind = NodeDevice if lives_in_node(self.scenario, number) else Device
            device = kind(self, number, folder, Workload(self, number))
            self.devices.append(device)
            device.boot()
        Chaos(self).plan()
        self.upkeep.plan()
        if self.scenario.deleted:
            self.deletion.plan()
        self.rulings.plan()
        self.declarations.plan()
        self.functions.plan()
        self.sockets.plan()
        self.destinations.plan()
        self.flows.plan()
        self.every(self.scenario.flush_every_s * 1000, self.functions.schedule)
        self.every(2 * self.scenario.flush_every_s * 1000, self.functions.sweep)

    def every(self, ms: int, act: Callable[[], None]) -> None:
        """Do something again and again."""

        def tick() -> None:
            act()
            self.later("schedule", tick, ms)

        self.later("schedule", tick, ms)

    def _calm(self) -> None:
        """End all faults: the network is back and functions' clocks are right."""
        self.faults = Faults()
        self.is_calm = True
        self.flush_is_broken = False
        for device in self.devices:
            device.link.down_until_ms = 0
            device.link.requests = 0
        for clock, skew_ms in self._clocks:
            if skew_ms <= self.scenario.function_skew_ms:
                clock.offset_ms = clock.offset_ms % 100
        self.scheduler.steps = 0
        self.scheduler.steps_max = CALM_STEPS_MAX
        self.note("·", "all is calm")
        self.destinations.calm()
        self.flows.calm()
        self.calm_ms = self.scheduler.now_ms
        self.functions.flush()
        self.every(20_000, self.functions.schedule)
        self.every(30_000, self.functions.sweep)

    def _finish(self) -> None:
        until_ms = self.scheduler.now_ms + CALM_MS_MAX
        if self.scenario.deleted:
            self.deletion.finish(until_ms)
            return
        quiet = checkers.Quiet(self)
        self.scheduler.run(until_ms, quiet)
        if why := quiet.why():
            raise Violation("liveness", why)
        for device in self.devices:
            device.workload.settle(device, take_back=True)
        checkers.check_end(self)


def bounds(scenario: Scenario) -> list[tuple[object, str, int]]:
    """Return the bounds of the product that are other than they are there, by where they stand."""
    large = scenario.delta_bytes_max
    return [
        (flush, "RANGE_BYTES_MAX", scenario.range_bytes_max),
        (flush, "RANGE_TABLES_MAX", scenario.range_tables_max),
        *declarations.bounds(scenario),
        *((module, "DELTA_BYTES_MAX", large) for module in (delta, merge, records)),
    ]


class _NoChance:
    def __init__(self, token: str) -> None:
        self._token = token

    def jitter(self) -> float:
        return 0.0

    def token(self) -> str:
        return self._token


__all__ = ["LakeSyncError", "World"]
