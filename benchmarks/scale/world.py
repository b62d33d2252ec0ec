"""Simulated time, the table, and the deployed functions in it: the real ones, as wiring makes them.

The scheduler is the simulation's, whose unit here is a hundredth of a millisecond. A seed decides
everything; no figure depends on the machine.
"""

from __future__ import annotations

import os
import random
from concurrent import futures
from contextlib import ExitStack
from random import Random
from typing import TYPE_CHECKING, Final, TypeVar
from unittest.mock import patch

from benchmarks.scale import latency
from benchmarks.scale.dynamo import Dynamo
from benchmarks.scale.partitions import Partitions
from benchmarks.scale.services import TaskPool
from lakesync.buffer.caller import DynamoCaller
from lakesync.buffer.dynamo import DynamoBuffer
from lakesync.runtime import observe, tasks, wiring
from lakesync.runtime.settings import load
from tests.simulation.scheduler import START_MS, Process, Scheduler

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

    from lakesync.ports import Buffer
    from tests.simulation.scheduler import Task

T = TypeVar("T")
S = TypeVar("S")
TICKS_PER_MS: Final = 100
_WITH_THREADS: Final = (futures, tasks)
"""Where threads come from that are tasks here: of those modules that import it late, and early."""
_STEPS_MAX: Final = 1_000_000_000
_CREDENTIALS: Final = {"AWS_ACCESS_KEY_ID": "model", "AWS_SECRET_ACCESS_KEY": "model"}
ENVIRONMENT: Final = {
    "AWS_REGION": "us-east-1",
    "BUFFER_TABLE": "lakesync-buffer",
    "FLUSH_QUEUE_URL": "flush",
    "FLUSH_EVERY_MINUTES": "1",
    "ANNOUNCE_QUEUE_URL": "announcements",
    "DELIVER_QUEUE_URL": "deliveries",
    "LAKE_BUCKET": "lake",
    # The template's defaults.
    "FLUSH_THRESHOLD_BYTES": "8388608",
    "BACKPRESSURE_BYTES_MAX": "268435456",
    "BACKPRESSURE_AGE_S_MAX": "21600",
    "QUOTA_PUSHES_PER_S": "0",
    "QUOTA_DELTAS_PER_S": "0",
    "QUOTA_BYTES_PER_S": "0",
}


class World:
    """One run of one scenario.

    Args:
        seed: decides everything.
        split_after_s: see `Partitions`.
    """

    def __init__(self, seed: int, *, split_after_s: float | None = None) -> None:
        self._seed = seed
        self.scheduler = Scheduler(self.stream("order"), _STEPS_MAX)
        self.partitions = Partitions(self.now_ms, split_after_s=split_after_s)
        self.dynamo = Dynamo(self, self.stream("dynamo"), self.partitions)
        self._process = Process("everyone")
        self._patches = ExitStack()
        self._chances = 0

    def stream(self, name: str) -> Random:
        """Return a stream of chance of its own."""
        return Random(f"{self._seed}/{name}")

    # --- time

    def now_ms(self) -> float:
        """Return the time since the beginning, in milliseconds."""
        return self.scheduler.elapsed_ms / TICKS_PER_MS

    def wall_clock(self) -> int:
        """Return the milliseconds since 1970."""
        return START_MS + self.scheduler.elapsed_ms // TICKS_PER_MS

    def sleep_ms(self, milliseconds: float) -> None:
        """Let the caller wait."""
        if not self.dynamo.is_instant:
            self.scheduler.sleep(milliseconds * TICKS_PER_MS)

    def later(self, milliseconds: float, act: Callable[[], object]) -> None:
        """Do something after a while, whatever becomes of the caller."""
        self.scheduler.call_later("", act, int(milliseconds * TICKS_PER_MS))

    def spawn(self, body: Callable[[], object], after_ms: float = 0) -> Task:
        """Let something go on by itself."""
        return self.scheduler.spawn(self._process, "task", body, int(after_ms * TICKS_PER_MS))

    def start(self, name: str, body: Callable[[], object], time_out_ms: float) -> None:
        """Run a function that nobody waits for, and end it when its time is over."""
        process = Process(name)
        self.scheduler.spawn(process, name, body)
        self.later(time_out_ms, lambda: self.scheduler.kill(process))

    def run_until(self, ms: float) -> None:
        """Let everything go on up to a moment."""
        self.scheduler.run(START_MS + int(ms * TICKS_PER_MS))

    def prepare(self, act: Callable[[], object]) -> None:
        """Do something at once, and free of charge."""
        self.dynamo.is_instant = True
        try:
            act()
        finally:
            self.dynamo.is_instant = False

    # --- what functions are made with

    def __enter__(self) -> Self:
        random.seed(self._seed)  # reads of the buffer that are tried again draw from it
        enter = self._patches.enter_context
        enter(patch.dict(os.environ, _CREDENTIALS))
        enter(patch.object(wiring, "buffer", lambda _: self.buffer()))
        enter(patch.object(wiring, "wall_clock", self.wall_clock))
        enter(patch.object(wiring, "monotonic_ms", self.wall_clock))
        enter(patch.object(wiring, "sleep_ms", self.sleep_ms))
        enter(patch.object(wiring, "Randomness", self._chance))
        enter(patch.object(observe, "count", lambda *_: None))
        enter(patch.object(observe, "publish", lambda: None))
        for module in _WITH_THREADS:
            enter(patch.object(module, "ThreadPoolExecutor", self._pool))
        return self

    def __exit__(self, *_: object) -> None:
        self.scheduler.drop()
        self._patches.close()

    def buffer(self) -> Buffer:
        """Return the real buffer as one process has it, on the modelled table."""
        caller = DynamoCaller(ENVIRONMENT["AWS_REGION"], send=self._send)
        return DynamoBuffer(
            ENVIRONMENT["BUFFER_TABLE"], caller, sleep_s=lambda s: self.sleep_ms(s * 1000)
        )

    def _send(self, headers: dict[str, str], body: bytes) -> tuple[int, bytes]:
        self.sleep_ms(latency.CALL_CPU_MS + len(body) / 1024 * latency.KB_CPU_MS)
        status, content = self.dynamo(headers, body)
        self.sleep_ms(len(content) / 1024 * latency.KB_CPU_MS)
        return status, content

    def _pool(self, max_workers: int, _: str = "") -> TaskPool:
        return TaskPool(self, max_workers)

    def _chance(self) -> _Chance:
        self._chances += 1
        return _Chance(self.stream(f"chance {self._chances}"))

    def settings(self, kind: type[S]) -> S:
        """Return a function's settings, as the template deploys it."""
        return load(kind, ENVIRONMENT)


class _Chance:
    """`lakesync.log.commit.Chance` from the seed."""

    def __init__(self, random: Random) -> None:
        self._random = random

    def jitter(self) -> float:
        """Return a number in [0, 1)."""
        return self._random.random()

    def token(self) -> str:
        """Return a name that is never given again."""
        return f"{self._random.getrandbits(128):032x}"
