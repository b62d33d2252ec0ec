"""The ports, with everything between a function and its stores that can go wrong.

Each call of a port is a point at which others may run, the store may refuse, the answer may be
lost, the write may come later, or the process may die. Behind stand the real in-memory buffer and
plain dictionaries.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from lakesync.errors import Contention, NotFound, Unavailable, Unreachable
from lakesync.ports import HeadBusy, HeadMoved
from tests.simulation.scheduler import Crashed
from tests.support.steps import with_earlier

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from random import Random

    from lakesync.core.clock import Stamp
    from lakesync.core.config import GatewayConfig
    from lakesync.ports import Commit, Head
    from tests.simulation.scheduler import Clock, Process
    from tests.simulation.world import World

T = TypeVar("T")


class Gate:
    """What a process goes through at each port call."""

    def __init__(self, world: World, process: Process) -> None:
        self._world = world
        self.process = process
        self._random: Random = world.stream("ports")

    def call(
        self, name: str, act: Callable[[], T], *, writes: bool = False,
        conflict: Callable[[], T] | None = None,
    ) -> T:  # fmt: skip
        """Call a port: maybe late, maybe refused, maybe without an answer.

        Args:
            name: what is called.
            act: the call.
            writes: it changes something.
            conflict: what the port answers while somebody else's write is at the same item.
        """
        world, faults = self._world, self._world.faults
        process, chance = self.process, self._random.random
        if not process.alive:
            raise Crashed
        if chance() < world.scenario.switch:
            world.scheduler.sleep(1 + chance() * 20)
        if chance() < faults.slow_port:
            world.count("slow port call")
            world.scheduler.sleep(1_000 + chance() * 20_000)
        if chance() < faults.crash_function:
            world.crash(process, f"before {name}")
        self._throttle(name)
        if conflict and self._conflicts(name):
            return conflict()
        if writes and chance() < faults.late_write:
            world.count("late write")
            world.later(name, lambda: _at_last(act), int(chance() * 10_000))
            raise Unreachable(f"{name} took too long")
        answer = act()
        world.note(process.name, name)
        if chance() < faults.crash_function:
            world.crash(process, f"after {name}")
        if writes and chance() < faults.lose_port_answer:
            world.count("lost port answer")
            raise Unreachable(f"the answer of {name} was lost")
        if chance() < world.scenario.switch:
            world.scheduler.sleep(1 + chance() * 20)
        return answer

    def _throttle(self, name: str) -> None:
        if self._random.random() < self._world.faults.throttle:
            self._world.count("throttled")
            raise Unavailable(f"{name} was throttled")

    def _conflicts(self, name: str) -> bool:
        most = self._world.faults.conflict
        if not most or self._random.random() >= most:
            return False
        self._world.count(f"conflict: {name}")
        return True


def _at_last(act: Callable[[], object]) -> None:
    """Do what somebody has given up on; whether it still can be done concerns nobody."""
    try:
        act()
    except Exception:  # noqa: BLE001 - a refusal of the store, which has no one to tell
        return


class SimulatedBuffer:
    """`lakesync.ports.Buffer` as one process meets it."""

    def __init__(self, world: World, process: Process) -> None:
        self._world = world
        self._gate = Gate(world, process)
        self.heads_read = 0
        """How often all heads were asked for."""

    def __getattr__(self, name: str) -> Any:
        act = getattr(self._world.store, name)
        gate, writes = self._gate, name in WRITES
        conflict = functools.partial(self._conflict, name) if name in CONFLICTS else None

        def call(*given: Any, **named: Any) -> Any:
            return gate.call(name, lambda: act(*given, **named), writes=writes, conflict=conflict)

        self.__dict__[name] = call
        return call

    def _conflict(self, name: str) -> Any:
        """Answer as DynamoDB's buffer does while another transaction is at an item of the call."""
        answer = CONFLICTS[name]
        if answer is HeadMoved:
            raise HeadMoved(self._world.store.all_heads("g1"))
        if isinstance(answer, list):
            raise self._world.stream("conflicts").choice(answer)(f"conflict in {name}")
        return answer

    def pause(self, tries: int) -> None:
        """Let others run for a while."""
        self._world.scheduler.sleep(1 + self._world.stream("pause").random() * 2 ** min(tries, 7))

    def heads(self, gateway: str, since: Stamp = 0, *, at_once: bool = False) -> dict[str, Head]:
        """Return heads; where there are several, others may run before the list of them is read."""
        self.heads_read += 1
        store = self._world.store
        before = store.all_heads(gateway) if at_once else {}
        if len(before) > 1:
            before = self._gate.call("heads", lambda: store.all_heads(gateway))
        heads = self._gate.call("heads", lambda: store.heads(gateway, since))
        return with_earlier(heads, before, since) if len(before) > 1 else heads

    def in_parallel(self, calls: Sequence[Callable[[], T]]) -> list[T]:
        """Make calls one after the other: between any two of them others may run."""
        return [call() for call in calls]

    def commit(self, commit: Commit) -> None:
        push = self._gate.process.pushing
        store = self._world.store
        window_ms = self._gate.call(
            "commit", lambda: store.take(commit, push), writes=True,
            conflict=functools.partial(self._conflict, "commit"),
        )  # fmt: skip
        if window_ms:
            self._world.scheduler.sleep(window_ms + 1)

    def save_config(self, gateway: str, config: GatewayConfig, *given: Any, **named: Any) -> None:
        """Put a configuration in force, and have what it declares watched."""
        push = self._gate.process.pushing
        store, declarations = self._world.store, self._world.declarations

        def save() -> None:
            before = store.config(gateway)
            store.save_config(gateway, config, *given, **named)
            declarations.saved(before, config, push)

        conflict = functools.partial(self._conflict, "save_config")
        self._gate.call("save_config", save, writes=True, conflict=conflict)


CONFLICTS: dict[str, Any] = {
    "commit": [HeadBusy, Contention],
    "save_config": [Contention, HeadBusy],
    "read_marks_serializable": [Contention],
    "raise_horizon": [Contention],
    "begin_epoch": HeadMoved,
    "raise_head": False,
    "change_lanes": False,
    "close_lane": False,
    "empty_head": False,
    "forget_row": False,
    "note_flushed": None,
}
"""What each call of an item that transactions write to answers while one is at it: what it raises,
or gives. Where these are two, one is for the first item of a transaction, one for the last."""
WRITES = {
    "raise_head",
    "change_lanes",
    "close_lane",
    "save_config",
    "save_flush_state",
    "save_destinations",
    "save_delivery_state",
    "save_flushed_table",
    "note_flushed",
    "raise_horizon",
    "drop_entries",
    "empty_head",
    "begin_epoch",
    "forget_row",
    "remove_items",
}


class SimulatedObjects:
    """`lakesync.ports.ObjectStore` as one process meets it."""

    def __init__(self, world: World, process: Process) -> None:
        self._world = world
        self._gate = Gate(world, process)

    def put_object(self, key: str, body: bytes, content_type: str) -> None:
        del content_type
        objects = self._world.objects

        def put() -> None:
            if self._world.flush_is_broken:
                self._world.count("lake refused")
                raise Unavailable("the lake is away")
            objects[key] = body

        self._gate.call("put_object", put, writes=True)

    def get_object(self, key: str) -> bytes:
        """Return an object's bytes."""

        def get() -> bytes:
            if key not in self._world.objects:
                raise NotFound(f"there is no {key}")
            return self._world.objects[key]

        return self._gate.call("get_object", get)

    def get_range(self, key: str, start: int, size: int) -> bytes:
        return self.get_object(key)[start : start + size]

    def list_objects(self, prefix: str) -> list[str]:
        """Return the keys under a prefix, in order."""
        objects = self._world.objects
        return self._gate.call(
            "list_objects", lambda: sorted(key for key in objects if key.startswith(prefix))
        )

    def delete_object(self, key: str) -> None:
        self._gate.call("delete_object", lambda: self._world.objects.pop(key, None), writes=True)


@dataclass
class Messages:
    """A queue: messages wait, are handled, and come back unless they were handled."""

    name: str
    waiting: list[str] = field(default_factory=list)


class SimulatedQueue:
    """`lakesync.ports.Queue` as one process meets it."""

    def __init__(
        self, world: World, process: Process, messages: Messages, delay_s: int = 0
    ) -> None:
        self._world = world
        self._gate = Gate(world, process)
        self._messages = messages
        self._delay_ms = delay_s * 1000

    def send(self, body: str) -> None:
        world = self._world

        def put() -> None:
            world.watch.sent(self._messages.name, body)
            if not self._delay_ms:
                world.deliver(self._messages, body)
                return
            world.later("delayed", lambda: world.deliver(self._messages, body), self._delay_ms)

        self._gate.call(f"send to {self._messages.name}", put, writes=True)


class SimulatedChance:
    """`lakesync.log.commit.Chance` from the seed."""

    def __init__(self, world: World, process: Process) -> None:
        self._random = world.stream("chance").random
        self._world = world
        self._name = process.name

    def jitter(self) -> float:
        """Return a number in [0, 1)."""
        return self._random()

    def token(self) -> str:
        """Return a name that is never given again."""
        return self._world.unique()


def sleeper(world: World, process: Process) -> Callable[[float], None]:
    def sleep_ms(ms: float) -> None:
        if not process.alive:
            raise Crashed
        world.scheduler.sleep(ms)

    return sleep_ms


def process_clock(world: World, skew_ms: int) -> Clock:
    """Return a process a clock that is off by as much as its scenario allows."""
    return world.new_clock(skew_ms)
