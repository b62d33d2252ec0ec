"""What operators do to the buffer: its log is trimmed, it is restored, or it is another gateway's.

A restore is what ``docs/operations.md`` says: functions are stopped, the table is put back under
another name, a new epoch begins, and functions start anew. What was under way to the old table
reaches that one still, and nobody.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from lakesync.checkpoint.store import Checkpoints
from lakesync.errors import GatewayDeleted, LakeSyncError
from lakesync.log.declare import Declare
from lakesync.log.read import ReadBarrier
from lakesync.maintenance import horizons
from lakesync.maintenance.checkpoint_upkeep import Builder, Keeper
from lakesync.maintenance.horizons import Forgetter, Trimmer
from tests.simulation.ports import SimulatedBuffer, SimulatedChance, SimulatedObjects, sleeper

if TYPE_CHECKING:
    from tests.simulation.history import Logged
    from tests.simulation.scheduler import Process
    from tests.simulation.world import World

GATEWAY = "g1"
DOWN_MS = 60_000
"""How long a restore takes at the least: no two of them begin their epochs at once."""
TRY_AGAIN_MS = 15_000
CHUNK_BYTES = 400
"""Of one object of a checkpoint, so that there are several."""
HAS_TIME = 0.9
"""How often a build that could go on has time to."""


class Upkeep:
    """Trims and restores one gateway."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._random = world.stream("upkeep")
        self.is_down = False

    def plan(self) -> None:
        world, scenario = self._world, self._world.scenario
        if scenario.trim_every_s:
            clock = world.new_clock(scenario.function_skew_ms)
            world.every(scenario.trim_every_s * 1000, lambda: self._trim(clock))
        if scenario.retain_every_s:
            clock = world.new_clock(scenario.function_skew_ms)
            world.every(scenario.retain_every_s * 1000, lambda: self._retain(clock))
        for _ in range(scenario.restores):
            first, second = sorted(self._random.random() * scenario.span_ms for _ in range(2))
            world.later("backup", partial(self._back_up, second - first), int(first))
        if scenario.anew:
            after_ms = int((0.2 + 0.6 * self._random.random()) * scenario.span_ms)
            world.later("set up anew", self._set_up_anew, after_ms)

    # --- trimming ---------------------------------------------------------------------------------

    def _trim(self, clock: Any) -> None:
        world = self._world

        def run(process: Process) -> None:
            buffer = SimulatedBuffer(world, process)
            trimmer = Trimmer(buffer, wall_clock=clock, keep_ms=world.scenario.keep_ms)
            try:
                report = trimmer.trim(GATEWAY)
            except LakeSyncError as error:
                world.count("trim failed")
                world.note(process.name, "%s", error)
                return
            world.count("trim")
            world.note(process.name, "%s", report)

        world.functions.start("trim", run, lambda: None)

    # --- retention --------------------------------------------------------------------------------

    def _retain(self, clock: Any) -> None:
        """Do what ``stepfunctions/retention.asl.json`` has done, one task after the other."""
        world = self._world
        world.functions.start("retain", lambda process: self._tasks(process, clock), lambda: None)

    def _tasks(self, process: Process, clock: Any) -> None:
        world = self._world
        buffer, objects = SimulatedBuffer(world, process), SimulatedObjects(world, process)
        checkpoints = Checkpoints(objects)
        builder = Builder(buffer, objects, checkpoints, wall_clock=clock, chunk_bytes=CHUNK_BYTES)
        keeper = Keeper(objects, checkpoints, wall_clock=clock)
        trimmer = Trimmer(buffer, wall_clock=clock, keep_ms=world.scenario.keep_ms)

        def has_time() -> bool:
            return self._random.random() < HAS_TIME

        try:
            built = builder.build(GATEWAY, has_time=has_time)
            world.count("checkpoint built" if built.finished else "build interrupted")
            epoch = ReadBarrier(buffer).raise_heads(GATEWAY).epoch
            trimmed = trimmer.trim(GATEWAY, covered=keeper.covered(GATEWAY, epoch))
            if world.scenario.forget_ms:
                self._forget(process, buffer, checkpoints, clock)
            keeper.clean(GATEWAY, epoch)
            world.note(process.name, "%s %s", built, trimmed)
        except LakeSyncError as error:
            world.count("retention failed")
            world.note(process.name, "%s", error)

    def _forget(self, process: Process, buffer: Any, checkpoints: Checkpoints, clock: Any) -> None:
        world = self._world
        chance, sleep_ms = SimulatedChance(world, process), sleeper(world, process)
        declare = Declare(buffer, wall_clock=clock, sleep_ms=sleep_ms, chance=chance)
        keep_ms = world.scenario.forget_ms
        forgetter = Forgetter(buffer, checkpoints, declare, wall_clock=clock, keep_ms=keep_ms)
        for _ in range(forgetter.forget(GATEWAY).rows):
            world.count("forgotten row")

    # --- another gateway under the same name ------------------------------------------------------

    def _set_up_anew(self) -> None:
        world = self._world
        world.count("set up anew")
        world.functions.stop()
        world.front.stop()
        world.store = world.store.emptied()
        world.history.set_up_anew()
        world.declare()

    # --- restoring --------------------------------------------------------------------------------

    def _back_up(self, after_ms: float) -> None:
        world = self._world
        backup, log = world.store.backup(), list(world.history.log)
        epoch = world.store.void(GATEWAY)[1]

        def restore() -> None:
            # Nobody goes back behind a restore: the lake has gone on in the new epoch.
            if world.store.void(GATEWAY)[1] == epoch:
                self._restore(backup, log)

        world.later("restore", restore, int(after_ms))

    def _restore(self, backup: Any, log: list[Logged]) -> None:
        world = self._world
        if self.is_down or world.is_calm:
            return
        world.count("restored")
        self.is_down = True
        world.functions.stop()
        world.front.stop()
        world.sockets.stop()
        world.store = world.store.replaced_by(backup)
        world.history.restored(log)
        clock = world.new_clock(world.scenario.function_skew_ms)
        after_ms = DOWN_MS + int(self._random.random() * DOWN_MS)
        world.later("epoch", lambda: self._begin(clock), after_ms)

    def _begin(self, clock: Any) -> None:
        """Have the operator begin the epoch, and again until that is done."""
        world = self._world
        if not self.is_down:
            return

        def run(process: Process) -> None:
            buffer = SimulatedBuffer(world, process)
            try:
                epoch = horizons.begin_epoch(buffer, GATEWAY, wall_clock=clock)
            except GatewayDeleted:
                epoch = "none: the backup is of a deleted gateway"
            except LakeSyncError as error:
                world.note(process.name, "%s", error)
                return
            world.note(process.name, "epoch %s", epoch)
            self.is_down = False
            world.destinations.restored()
            world.deletion.restored()

        world.functions.start("restore", run, lambda: None)
        world.later("epoch", lambda: self._begin(clock), TRY_AGAIN_MS)
