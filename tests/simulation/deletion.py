"""The gateway is deleted while its clients push and pull, by an operator who asks until it is gone.

From then on there is nothing to converge on. What must hold: nothing is committed any more, nothing
is left, nothing comes back, and every edit that was not accepted before is still on its device.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from lakesync.buffer.admission import ItemAccess
from lakesync.buffer.memory_items import MemoryItemStore, MemoryRemoval
from lakesync.errors import LakeSyncError
from lakesync.log.declare import Declare
from lakesync.maintenance.erasure import OBJECT_KINDS, Deleter
from tests.simulation.history import Violation
from tests.simulation.model import edit_of
from tests.simulation.ports import SimulatedBuffer, SimulatedChance, SimulatedObjects, sleeper
from tests.simulation.stored import stored_of

if TYPE_CHECKING:
    from tests.simulation.clients import Device
    from tests.simulation.scheduler import Clock, Process
    from tests.simulation.world import World

GATEWAY: Final = "g1"
ASKED_EVERY_MS: Final = 30_000
WATCHED_MS: Final = 1_200_000
"""How long it is watched for anything that comes back, once it is proved to be gone."""
HAS_TIME: Final = 0.8


class Deletion:
    """Deletes the gateway, once."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._random = world.stream("deletion")
        self._items = MemoryItemStore()
        self._access = ItemAccess(self._items)
        self._is_proved = False

    def plan(self) -> None:
        world = self._world
        clock = world.new_clock(world.scenario.function_skew_ms)
        after_ms = int((0.2 + 0.6 * self._random.random()) * world.scenario.span_ms)
        world.later("delete", lambda: self._ask(clock), after_ms)

    def _ask(self, clock: Clock) -> None:
        """Ask for it, and again until it is proved."""
        world = self._world
        if self._is_proved:
            return
        world.functions.start("delete", lambda process: self._delete(process, clock), lambda: None)
        world.later("delete", lambda: self._ask(clock), ASKED_EVERY_MS)

    def _delete(self, process: Process, clock: Clock) -> None:
        world = self._world
        buffer, objects = SimulatedBuffer(world, process), SimulatedObjects(world, process)
        chance, sleep_ms = SimulatedChance(world, process), sleeper(world, process)
        declare = Declare(buffer, wall_clock=clock, sleep_ms=sleep_ms, chance=chance)
        items = MemoryRemoval(buffer, self._items)  # type: ignore[arg-type]  # as a process meets it
        deleter = Deleter(buffer, items, self._access, objects, declare, wall_clock=clock)
        try:
            report = deleter.delete(
                GATEWAY, by="ops", has_time=lambda: self._random.random() < HAS_TIME
            )
        except LakeSyncError as error:
            world.count("deletion failed")
            world.note(process.name, "%s", error)
            return
        world.count("deletion finished" if report.finished else "deletion interrupted")
        world.note(process.name, "%s", report)
        self._is_proved = report.is_gone and clock() >= report.final_ms

    def restored(self) -> None:
        """Ask again: what was deleted since the backup is back, and the operator knows it."""
        if self._is_proved:
            self._is_proved = False
            clock = self._world.new_clock(self._world.scenario.function_skew_ms)
            self._ask(clock)

    def finish(self, until_ms: int) -> None:
        """Wait for the proof, and longer; then hold everything against it."""
        world = self._world
        world.scheduler.run(until_ms, self._is_quiet)
        if not self._is_quiet():
            raise Violation("liveness", "the gateway is not deleted, or somebody waits")
        world.scheduler.run(world.scheduler.now_ms + WATCHED_MS)
        world.scheduler.run(until_ms, self._is_quiet)
        counts = MemoryRemoval(world.store, self._items).count(GATEWAY, ())
        counts["objects"] = sum(key.startswith(_PREFIXES) for key in world.objects)
        if any(counts.values()):
            raise Violation("a deleted gateway is gone", f"{counts}")
        for device in world.devices:
            self._check_edits(device)

    def _is_quiet(self) -> bool:
        world = self._world
        up = all(device.client is not None for device in world.devices)
        return self._is_proved and up and not world.front.serving

    def _check_edits(self, device: Device) -> None:
        """Each edit was accepted before, or is on the device still."""
        history, session = self._world.history, device.session
        assert device.client is not None
        left = Counter(session.made)
        left.subtract(session.gone)
        left.subtract(edit_of(delta) for delta in history.deltas.values())
        left.subtract(edit_of(delta) for delta in history.accepted.values())
        left.subtract(edit_of(delta) for _, delta in history.lost)
        left.subtract(edit_of(delta) for delta, _ in stored_of(device.client).outbox())
        if lost := +left:
            raise Violation("no edit is lost", f"{sum(lost.values())}, such as {next(iter(lost))}")


_PREFIXES: Final = tuple(f"{kind}/{GATEWAY}/" for kind in OBJECT_KINDS)
