"""1,000 busy gateways of three tables each come into the lake every quarter of an hour.

The real function decides how many runs of the Glue job there are, and the real hash which group a
gateway is in. The runs themselves are modelled: they lease groups, work on some tables at once, and
a merge takes what `benchmarks.small_merges` measured, or in a quick run what it may take at most.
"""

from __future__ import annotations

from collections import Counter, deque
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from benchmarks import small_merges
from benchmarks.entries import at_most, is_quick, sized
from benchmarks.scale import latency
from benchmarks.scale.measures import percentile
from benchmarks.scale.world import World
from benchmarks.sources import figure_on_record
from lakesync.materialise.work_queue import group_of_table
from lakesync.runtime.materialise import materialise_handler
from lakesync_spark.iceberg.run import TABLES_AT_ONCE_MAX

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from benchmarks.entries import Entry

GATEWAYS: Final = sized(1_000, 20)
TABLES: Final = 3
INTERVAL_S: Final = 900
FLUSHED_WITHIN_S: Final = 16
"""How long the flush of all takes: `scale_gateways_flush_lag_s` beside its minute."""
INTERVALS: Final = 4
# As template.yaml deploys them.
RUNS_MAX: Final = 4
WORKERS: Final = 2
ANNOUNCED_AFTER_S: Final = 30
AGAIN_AFTER_S: Final = 100
CORES_OF_WORKER: Final = 4
DPU_HOUR_USD: Final = 0.44
_DAYS: Final = 30


class Cores:
    """The executors of one run: what is computed there shares them."""

    def __init__(self, world: World, cores: int) -> None:
        self._world = world
        self._free_ms = [0.0] * cores

    def compute(self, seconds: float) -> None:
        """Let something be computed on the core that is free first."""
        place = min(range(len(self._free_ms)), key=self._free_ms.__getitem__)
        now_ms = self._world.now_ms()
        self._free_ms[place] = max(self._free_ms[place], now_ms) + seconds * 1000
        self._world.sleep_ms(self._free_ms[place] - now_ms)


@dataclass
class Lake:
    """Claims that wait, runs at work, and what has come into the lake."""

    world: World
    merge_cpu_s: float
    claims: dict[str, float] = field(default_factory=dict)
    """By table, since when its oldest commit waits."""
    groups: Counter[int] = field(default_factory=Counter)
    """Tables of each group that a run has leased and not brought in yet."""
    running: int = 0
    lags_s: list[float] = field(default_factory=list)
    run_s: list[float] = field(default_factory=list)

    # --- what ``functions/materialise`` asks

    def waiting(self, enough: int) -> int:
        """Count the claims that wait."""
        return min(len(self.claims), enough)

    def oldest(self) -> dict[str, float]:
        """Say that nothing is behind: no schedule asks here."""
        return {}

    def alone(self) -> AbstractContextManager[bool]:
        """Say that nobody else starts runs."""
        return nullcontext(True)

    def at_work(self) -> int:
        """Count the runs at work."""
        return self.running

    def start(self) -> bool:
        """Start a run, if there may be one more."""
        if self.running >= RUNS_MAX:
            return False
        self.running += 1
        self.world.spawn(self._run)
        return True

    # --- a run

    def _run(self) -> None:
        world = self.world
        begun_ms = world.now_ms()
        world.sleep_ms(latency.GLUE_START.draw_ms(world.stream(f"glue {begun_ms}")))
        begun_ms = world.now_ms()  # the start is not billed
        world.sleep_ms(latency.SPARK_SESSION_S * 1000)
        cores = Cores(world, (WORKERS - 1) * CORES_OF_WORKER)
        ready: deque[str] = deque()
        at_work = [0] * TABLES_AT_ONCE_MAX
        for place in range(TABLES_AT_ONCE_MAX):
            at_work[place] = 1
            world.spawn(partial(self._thread, cores, ready, at_work, place))
        while any(at_work):
            world.sleep_ms(1_000)
        self.running -= 1
        self.run_s.append((world.now_ms() - begun_ms) / 1000)

    def _thread(self, cores: Cores, ready: deque[str], at_work: list[int], place: int) -> None:
        while ready or self._lease(ready):
            table = ready.popleft()
            since_ms = self.claims[table]
            self.world.sleep_ms(latency.MERGE_WAITS_S * 1000)
            cores.compute(self.merge_cpu_s)
            del self.claims[table]
            self.lags_s.append((self.world.now_ms() - since_ms) / 1000)
            self.groups[group_of_table(table)] -= 1
        at_work[place] = 0

    def _lease(self, ready: deque[str]) -> bool:
        """Make the tables of a free group ready; returns whether there was one."""
        for table in self.claims:
            group = group_of_table(table)
            if not self.groups[group]:
                tables = [other for other in self.claims if group_of_table(other) == group]
                self.groups[group] = len(tables)
                ready += tables
                return True
        return False


def run() -> list[Entry]:
    """Measure, and give the figure."""
    merge_cpu_s = _measured_s()
    with World(7) as world:
        lake = Lake(world, merge_cpu_s)
        handler = materialise_handler(lake, RUNS_MAX)

        def announce() -> None:
            while True:
                answer: Any = handler({"Records": [{"messageId": "1", "body": "{}"}]}, None)
                if not answer["batchItemFailures"]:
                    return
                world.sleep_ms(AGAIN_AFTER_S * 1000)

        def flushed(number: int, since_ms: float) -> None:
            for table in range(TABLES):
                lake.claims.setdefault(f"g{number}/t{table}", since_ms)

        for interval in range(1, INTERVALS + 1):
            tick_ms = interval * INTERVAL_S * 1000
            for number in range(GATEWAYS):
                after_ms = tick_ms + number * FLUSHED_WITHIN_S * 1000 / GATEWAYS
                # The oldest commit of a range came right after the flush before.
                since_ms = tick_ms - INTERVAL_S * 1000
                world.later(after_ms, partial(flushed, number, since_ms))
            world.spawn(announce, tick_ms + ANNOUNCED_AFTER_S * 1000)
        world.run_until((INTERVALS + 1) * INTERVAL_S * 1000)
        now_s = world.now_ms() / 1000
        waiting = [now_s - since_ms / 1000 for since_ms in lake.claims.values()]
    return [_entry(lake, [*lake.lags_s, *waiting], merge_cpu_s)]


def _entry(lake: Lake, lags_s: list[float], merge_cpu_s: float) -> Entry:
    billed_s = sum(max(seconds, 60) for seconds in lake.run_s)
    in_month = _DAYS * 86_400 / (INTERVALS * INTERVAL_S)
    usd = billed_s * WORKERS / 3_600 * DPU_HOUR_USD * in_month
    detail = (
        f"{GATEWAYS:,} busy gateways of {TABLES} tables, every {INTERVAL_S // 60} min: age of the "
        f"oldest commit as it is in the lake, the worst there was (half are below "
        f"{percentile(lags_s, 0.5) / 60:.0f} min); at most {RUNS_MAX} runs of {WORKERS} G.1X "
        f"workers, {len(lake.run_s)} in {INTERVALS} intervals of {percentile(lake.run_s, 0.5):.0f} "
        f"s each, Glue ${usd:,.0f} a month; a merge takes {merge_cpu_s:.1f} s of a core, and "
        f"waits {latency.MERGE_WAITS_S:.0f} s"
    )
    return at_most("scale_gateways_lake_lag_min", max(lags_s) / 60, "min", 30, detail)


def _measured_s() -> float:
    """Return what a small merge takes of a core, as it was measured last."""
    if is_quick():
        return small_merges.TARGET
    merge_cpu_s = figure_on_record(small_merges.FIGURE)
    if merge_cpu_s is None:
        raise RuntimeError("measure small merges first: python -m benchmarks --only small_merges")
    return merge_cpu_s
