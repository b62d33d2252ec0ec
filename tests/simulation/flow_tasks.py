"""What reads the stretches of a job: tasks side by side, or one writer where a write is dear."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from lakesync.connectors.large_polls import read_stretch
from lakesync.errors import AdapterFailed, Conflict, LakeSyncError
from tests.simulation.scheduler import Event

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lakesync.connectors.large_polls import StretchRead, Work
    from lakesync.connectors.poll import Route
    from lakesync.connectors.port import Stretch
    from lakesync.ports import WallClock
    from tests.simulation.flow_runs import Runs
    from tests.simulation.scheduler import Process, Scheduler

KEEP_S: Final = 15


class Tasks:
    """`lakesync.connectors.large_polls.ReadsStretches` as Spark does it."""

    def __init__(self, runs: Runs, job: Process) -> None:
        self._runs = runs
        self._job = job

    def __call__(
        self, work: Work, stretches: Sequence[Stretch], keep: Callable[[], None]
    ) -> list[StretchRead]:
        """Read stretches side by side, while the lease is kept."""
        scheduler = self._runs.world.scheduler
        read: dict[int, Any] = {}
        all_ended = Event(scheduler)

        def ended(place: int, answer: Any) -> None:
            read.setdefault(place, answer)
            if len(read) == len(stretches):
                all_ended.set()

        for place, stretch in enumerate(stretches):
            act = self._runs.read_stretch(work, stretch)
            self._runs.task(self._job, act, partial(ended, place))
        while not all_ended.wait(KEEP_S):
            keep()
        if any(one is None or isinstance(one, LakeSyncError) for one in read.values()):
            raise AdapterFailed("a stretch was not read: its task died")
        return [read[place] for place in range(len(stretches))]


class Writer:
    """`lakesync.connectors.large_polls.OneWriter`, whose thread is a task of the same process."""

    def __init__(self, scheduler: Scheduler, route: Route, wall_clock: WallClock) -> None:
        self._scheduler = scheduler
        self._route = route
        self._wall_clock = wall_clock

    def __call__(
        self, work: Work, stretches: Sequence[Stretch], keep: Callable[[], None]
    ) -> Sequence[StretchRead]:
        """Read stretches one after another; whoever loses the lease waits for nobody any more."""
        scheduler, read = self._scheduler, list[Any]()
        ended, lost = Event(scheduler), Event(scheduler)

        def sleep(seconds: float) -> None:
            if lost.wait(seconds):
                raise Conflict("another process polls this flow")

        def read_all() -> None:
            try:
                for one in stretches:
                    read.append(read_stretch(self._route, work, one, self._wall_clock, sleep))
            finally:
                ended.set()

        process = scheduler.current().process
        scheduler.spawn(process, f"{process.name} writes", read_all)
        try:
            while not ended.wait(KEEP_S):
                keep()
        except Conflict:
            lost.set()
            ended.wait()
            raise
        return read
