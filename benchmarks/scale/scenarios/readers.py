"""The same 64 writers, and 50 readers that are up to date and ask twice a second."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from benchmarks.entries import at_most, sized
from benchmarks.scale import latency
from benchmarks.scale.devices import declare, pull_function, push_function
from benchmarks.scale.measures import Answers, percentile
from benchmarks.scale.scenarios.writers import GATEWAY, MEASURED_MS, WARM_UP_MS, start_writers
from benchmarks.scale.world import World
from lakesync.core.messages import Pull

if TYPE_CHECKING:
    from benchmarks.entries import Entry
    from benchmarks.scale.lambdas import Function
    from lakesync.compat.follower_pulls import CheckpointService, FollowingPulls
    from lakesync.core.clock import Stamp
    from lakesync.core.messages import PullPage

READERS: Final = sized(50, 5)
EVERY_MS: Final = 500
SECONDS: Final = MEASURED_MS / 1000
APART_MS: Final = 5_000
LOOKED_BACK_MS: Final = 10_000
"""How old an accepted push may be that a page still lacks, to be noticed."""


class Freshness:
    """How far back pages end: by what was accepted, and is not in them."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._accepted: list[tuple[float, Stamp]] = []
        self.behind_ms: list[float] = []

    def accepted(self, stamp: Stamp) -> None:
        """Note a push that was just answered."""
        self._accepted.append((self._world.now_ms(), stamp))

    def read(self, cursor: Stamp) -> None:
        """Note a page that was just answered, and that nothing follows."""
        now_ms, oldest_ms = self._world.now_ms(), self._world.now_ms()
        for at_ms, stamp in reversed(self._accepted):
            if at_ms < now_ms - LOOKED_BACK_MS:
                break
            if stamp > cursor:
                oldest_ms = at_ms
        self.behind_ms.append(now_ms - oldest_ms)


class Reader:
    """Pulls again and again."""

    def __init__(
        self,
        answers: Answers,
        function: Function[tuple[FollowingPulls, CheckpointService]],
        freshness: Freshness,
        number: int,
    ) -> None:
        self._answers = answers
        self._function = function
        self._freshness = freshness
        self._number = number
        self._cursor = 0

    def run(self) -> None:
        """Ask again and again."""
        world = self._answers.world
        while True:
            begun_ms = world.now_ms()
            self._answers.ask(self._number, self._pull)
            world.sleep_ms(max(EVERY_MS - (world.now_ms() - begun_ms), 1))

    def _pull(self) -> None:
        while True:
            page = self._function.over_http(self._serve)
            self._cursor = page.cursor
            if not page.has_more:
                self._freshness.read(page.cursor)
                return

    def _serve(self, services: tuple[FollowingPulls, CheckpointService]) -> PullPage:
        asked = Pull(f"reader{self._number}", since=self._cursor, deltas_max=5_000)
        page = services[0].pull(GATEWAY, asked)
        self._answers.world.sleep_ms(page.count * latency.ENTRY_CPU_MS)
        return page


class Measured:
    """What readers and writers met in one run.

    Args:
        apart_ms: how far the clock of every second process that answers pulls is behind.
    """

    def __init__(self, apart_ms: int) -> None:
        with World(1) as world:
            pushes, pulls = push_function(world), pull_function(world, apart_ms)
            declare(world, pushes, GATEWAY)
            self.pushed, self.pulled = Answers(world, WARM_UP_MS), Answers(world, WARM_UP_MS)
            freshness = Freshness(world)
            start_writers(world, self.pushed, pushes, freshness.accepted)
            for number in range(READERS):
                reader = Reader(self.pulled, pulls, freshness, number)
                world.spawn(partial(reader.run), after_ms=number * EVERY_MS / READERS)
            world.run_until(WARM_UP_MS)
            freshness.behind_ms.clear()
            before, raised = world.dynamo.bill.copy(), world.dynamo.updates.copy()
            world.run_until(WARM_UP_MS + MEASURED_MS)
            self.bill = world.dynamo.bill.since(before)
            self.raises = world.dynamo.updates - raised
            self.behind_ms = freshness.behind_ms

    @property
    def raises_per_s_lane(self) -> float:
        """How often a lane's head was raised, or tried to be."""
        return sum(self.raises.values()) / max(len(self.raises), 1) / SECONDS

    def pushes(self) -> str:
        """Return in words what writers met."""
        return (
            f"pushes: {self.pushed.count / SECONDS:,.0f}/s, p99 "
            f"{self.pushed.percentile_ms(0.99):,.0f} ms, {self.pushed.refused} refused"
        )


def run() -> list[Entry]:
    """Measure, and give the figures."""
    return [*_together(Measured(0)), *_apart(Measured(APART_MS))]


def _together(run: Measured) -> list[Entry]:
    pulled, raises = run.pulled, run.raises
    detail = (
        f"{READERS} readers beside the writers, {pulled.count / SECONDS:.0f} pulls/s, "
        f"{pulled.refused} refused, median {pulled.percentile_ms(0.5):.0f} ms; "
        f"{run.bill.read_units / max(pulled.count, 1):.1f} read units a pull; {run.pushes()}; "
        "of a pull the way to the function may be 20 ms, "
        "and passing half a second's log is 10; the slowest are of processes that Lambda seldom "
        "uses, which read the log of each lane"
    )
    lanes = (
        f"{sum(raises.values()) / SECONDS:.0f} a second over {len(raises)} lanes, tries in vain "
        f"too; the lane that is raised most: {max(raises.values(), default=0) / SECONDS:.0f}"
    )
    behind = (
        "age of the oldest accepted push that a page lacks, as it is answered; median "
        f"{percentile(run.behind_ms, 0.5):.0f} ms"
    )
    p99 = at_most("scale_pull_p99_ms", pulled.percentile_ms(0.99), "ms", 60, detail)
    behind_ms = percentile(run.behind_ms, 0.99)
    return [
        p99 | {"holds": p99["holds"] and not pulled.refused},
        at_most("scale_raises_per_s_lane", run.raises_per_s_lane, "1/s", 5, lanes),
        at_most("scale_freshness_ms_p99", behind_ms, "ms", 400, behind),
    ]


def _apart(run: Measured) -> list[Entry]:
    pulled = run.pulled
    detail = (
        f"the same, but every second process that answers pulls has a clock {APART_MS // 1000} s "
        f"behind; pulls: p99 {pulled.percentile_ms(0.99):.0f} ms, {pulled.refused} refused; "
        f"raises of a lane: {run.raises_per_s_lane:.1f}/s; {run.pushes()}"
    )
    behind_ms = percentile(run.behind_ms, 0.99)
    behind = at_most("scale_clocks_apart_freshness_ms_p99", behind_ms, "ms", 400, detail)
    return [behind | {"holds": behind["holds"] and not pulled.refused + run.pushed.refused}]
