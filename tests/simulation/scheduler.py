"""Time, order and processes: nothing runs at the same time, and the seed decides what runs next.

A task is a greenlet. It runs until it sleeps or waits, and what runs next is the task that is due
first; tasks due at the same moment are drawn. A process owns tasks: when it is killed none of them
goes on, and whatever their clean-up still tries to do is refused.
"""

from __future__ import annotations

import contextlib
import heapq
from typing import TYPE_CHECKING, Final

import greenlet

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from lakesync.core.messages import Push

START_MS: Final = 1_700_000_000_000
"""When every simulation begins."""


class Crashed(BaseException):
    """The process that ran this is gone; it must never be caught and survived."""


class Stuck(Exception):
    """The simulation took more steps than it may: something spins."""


class Process:
    """A program: it has tasks, and may be killed at any moment."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.alive = True
        self.tasks: dict[Task, None] = {}
        self.on_kill: list[Callable[[], None]] = []
        self.pushing: Push | None = None
        """What it works on, for those who watch."""


class Task(greenlet.greenlet):
    """One line of work of a process."""

    name: str
    process: Process
    ticket: int


class Scheduler:
    """Owns time and order."""

    def __init__(self, random: Random, steps_max: int) -> None:
        self.now_ms = START_MS
        self.steps = 0
        self.steps_max = steps_max
        self._random = random.random
        self._queue: list[tuple[int, float, int, Task | Callable[[], object], int]] = []
        self._number = 0
        self._hub = greenlet.getcurrent()
        self._until_ms = 0
        self._done: Callable[[], bool] | None = None

    def current(self) -> Task:
        task = greenlet.getcurrent()
        assert isinstance(task, Task)
        return task

    def spawn(
        self, process: Process, name: str, body: Callable[[], object], after_ms: int = 0
    ) -> Task:
        def run() -> None:
            try:
                body()
            except Crashed:
                if process.alive:
                    raise
            finally:
                process.tasks.pop(task, None)

        task = Task(run, self._hub)
        task.name, task.process, task.ticket = name, process, 0
        if process.alive:
            process.tasks[task] = None
            self.wake(task, after_ms)
        return task

    def wake(self, task: Task, after_ms: int = 0) -> None:
        """Let a task go on after a while; whatever comes first wakes it, and the rest is void."""
        self._number += 1
        entry = (self.now_ms + after_ms, self._random(), self._number, task, task.ticket)
        heapq.heappush(self._queue, entry)

    def call_later(self, name: str, act: Callable[[], object], after_ms: int) -> None:
        """Do something that neither sleeps nor waits after a while."""
        del name
        self._number += 1
        heapq.heappush(self._queue, (self.now_ms + after_ms, self._random(), self._number, act, 0))

    def is_current(self, process: Process) -> bool:
        task = greenlet.getcurrent()
        return isinstance(task, Task) and task.process is process

    @property
    def elapsed_ms(self) -> int:
        """The time since the beginning."""
        return self.now_ms - START_MS

    def drop(self) -> None:
        """Forget everything that waits, so that nothing of it outlives the simulation."""
        waiting, self._queue = self._queue, []
        for _, _, _, act, _ in waiting:
            if isinstance(act, Task):
                self.kill(act.process)

    def sleep(self, ms: float) -> None:
        """Let others run for a while."""
        task = self.current()
        if not task.process.alive:
            raise Crashed
        due_ms = self.now_ms + int(ms)
        if self._is_next(due_ms):
            # The hub would only switch back. The draw keeps the order of all that follows.
            self._random()
            self.steps += 1
            self.now_ms = due_ms
        else:
            self.wake(task, int(ms))
            self.park()

    def park(self) -> None:
        """Stop until something wakes this task."""
        task = self.current()
        if not task.process.alive:
            raise Crashed
        self._hub.switch()
        if not task.process.alive:
            raise Crashed

    def kill(self, process: Process) -> None:
        """End a process here and now; the caller may be part of it, and then must not go on."""
        if not process.alive:
            return
        process.alive = False
        here = greenlet.getcurrent()
        for task in list(process.tasks):
            if task is not here and not task.dead:
                task.parent = here
                with contextlib.suppress(Crashed):  # a task that had not begun has no frame
                    task.throw(Crashed)
        process.tasks.clear()
        for done in process.on_kill:
            done()

    def run(self, until_ms: int, done: Callable[[], bool] | None = None) -> None:
        """Run tasks in order until it is done, nothing is left, or time is up.

        Raises:
            Stuck: it took more steps than it may.
        """
        self._until_ms, self._done = until_ms, done
        while self._queue and not (done and done()):
            due_ms, _, _, act, ticket = self._queue[0]
            if due_ms > until_ms:
                self.now_ms = until_ms
                return
            heapq.heappop(self._queue)
            if isinstance(act, Task) and (act.dead or act.ticket != ticket):
                continue
            self.steps += 1
            if self.steps > self.steps_max:
                raise Stuck(f"{self.steps} steps, and no end")
            self.now_ms = max(self.now_ms, due_ms)
            if isinstance(act, Task):
                act.ticket += 1
                act.switch()
            else:
                act()

    def _is_next(self, due_ms: int) -> bool:
        """Return whether nobody else is due before, and the hub has nothing to decide."""
        return (
            self._done is None
            and due_ms <= self._until_ms
            and self.steps < self.steps_max
            and not (self._queue and self._queue[0][0] <= due_ms)
        )


class Event:
    """`threading.Event` in simulated time."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._set = False
        self._waiting: dict[Task, None] = {}

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True
        waiting, self._waiting = self._waiting, {}
        for task in waiting:
            self._scheduler.wake(task)

    def clear(self) -> None:
        self._set = False

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it happens, at most so many seconds."""
        if not self._set:
            task = self._scheduler.current()
            self._waiting[task] = None
            if timeout is not None:
                self._scheduler.wake(task, int(timeout * 1000))
            self._scheduler.park()
            self._waiting.pop(task, None)
        return self._set


class Clock:
    """A process's wall clock: off by some time, a little fast or slow, and it may step."""

    def __init__(
        self, scheduler: Scheduler, offset_ms: int, drift_ppm: float, coarse_ms: int = 1
    ) -> None:
        self._scheduler = scheduler
        self._coarse_ms = coarse_ms
        self.offset_ms = offset_ms
        self.drift_ppm = drift_ppm

    def __call__(self) -> int:
        """Return the milliseconds since 1970, as this clock has them."""
        elapsed = self._scheduler.now_ms - START_MS
        drift = int(elapsed * self.drift_ppm / 1_000_000)
        shown_ms = self._scheduler.now_ms + self.offset_ms + drift
        return shown_ms - shown_ms % self._coarse_ms
