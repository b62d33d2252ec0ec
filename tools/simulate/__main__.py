"""Runs seeds of ``tests/simulation``: many of them on all cores, or one to look at.

python -m tools.simulate --seeds 100000          progress, then what was exercised
python -m tools.simulate --seed 4711             one seed with its trace
python -m tools.simulate --seed 4711 --shrink    the smallest scenario that still fails
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import time
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from tests.simulation.deliberate import FAULTS, broken
from tests.simulation.replay import run_scenario, run_seed, story
from tests.simulation.scenario import changed, scenario_of
from tests.simulation.shrink import shrunk

if TYPE_CHECKING:
    from collections.abc import Iterator

CHUNK = 50
PROGRESS_S = 10.0
FAILURES_SHOWN_MAX = 10


class Done(NamedTuple):
    """What came of some seeds."""

    seeds: int
    counts: Counter[str]
    simulated_ms: int
    failures: list[tuple[int, str]]


def run_chunk(first_and_last: tuple[int, int]) -> Done:
    """Live through some seeds."""
    counts: Counter[str] = Counter()
    simulated_ms, failures = 0, []
    for seed in range(*first_and_last):
        outcome = run_seed(seed)
        counts += outcome.counts
        simulated_ms += outcome.simulated_ms
        if outcome.failed:
            failures.append((seed, outcome.told))
    return Done(first_and_last[1] - first_and_last[0], counts, simulated_ms, failures)


def run_many(first: int, seeds: int, processes: int) -> int:
    """Live through many seeds; tells the progress, and at the end what was exercised."""
    begun = told = time.monotonic()
    chunks = [(at, min(at + CHUNK, first + seeds)) for at in range(first, first + seeds, CHUNK)]
    done = Done(0, Counter(), 0, [])
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        for part in pool.imap_unordered(run_chunk, chunks):
            done = Done(
                done.seeds + part.seeds, done.counts + part.counts,
                done.simulated_ms + part.simulated_ms, done.failures + part.failures,
            )  # fmt: skip
            for seed, what in part.failures:
                print(f"seed {seed} broke a promise: {what}", flush=True)
            if time.monotonic() - told > PROGRESS_S:
                told = time.monotonic()
                rate = done.seeds / (told - begun)
                print(f"{done.seeds} of {seeds} seeds, {rate:.0f} a second", flush=True)
    print("\n".join(summary(done, time.monotonic() - begun)))
    return 1 if done.failures else 0


def summary(done: Done, seconds: float) -> Iterator[str]:
    """Tell what was exercised."""
    yield ""
    for what, times in sorted(done.counts.items()):
        yield f"{times:>12,}  {what}"
    days = done.simulated_ms / 86_400_000
    yield ""
    yield f"{done.seeds} seeds in {seconds:.0f} s; {days:,.1f} simulated days"
    yield f"{len(done.failures)} broke a promise"
    for seed, _ in sorted(done.failures)[:FAILURES_SHOWN_MAX]:
        yield f"    python -m tools.simulate --seed {seed}"


def run_one(seed: int, changes: dict[str, object], *, shrink: bool) -> int:
    """Show one seed, or the smallest scenario in it that still fails."""
    scenario = changed(scenario_of(seed), changes)
    outcome = run_scenario(scenario)
    if shrink and outcome.failed:
        scenario = shrunk(scenario, outcome.promise, print)
    outcome = run_scenario(scenario, traced=True)
    print("\n".join(outcome.trace))
    print(json.dumps(scenario.to_json()))
    print(story(outcome, 0) if outcome.failed else "every promise held")
    return 1 if outcome.failed else 0


def seeds_to_find(name: str, seeds_max: int) -> tuple[str, int, str]:
    """Give how many seeds a deliberate fault takes to be found, 0 if it is not, and how."""
    (fault,) = [fault for fault in FAULTS if fault.name == name]
    with broken(fault):
        for seed in range(seeds_max):
            outcome = run_seed(seed)
            if outcome.failed:
                return name, seed + 1, outcome.promise
    return name, 0, ""


def run_bite(seeds_max: int, processes: int) -> int:
    """Tell for each deliberate fault how many seeds it takes to find it."""
    tasks = [(fault.name, seeds_max) for fault in FAULTS]
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        found = pool.starmap(seeds_to_find, tasks, chunksize=1)
    for name, seeds, promise in found:
        print(f"{name:<36} {seeds or 'not found':>9}  {promise}")
    numbers = [seeds for _, seeds, _ in found if seeds]
    print(
        f"{len(numbers)} of {len(found)} found, after {sum(numbers) / len(numbers):.0f} on average"
    )
    return 0 if len(numbers) == len(found) else 1


def main() -> int:
    """Do what the arguments ask for."""
    parser = argparse.ArgumentParser(prog="python -m tools.simulate", description=__doc__)
    parser.add_argument("--seeds", type=int, default=2_000, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seed", type=int, help="one seed, with its trace")
    parser.add_argument("--shrink", action="store_true", help="make that seed smaller")
    parser.add_argument("--bite", action="store_true", help="seeds to find each deliberate fault")
    parser.add_argument("--set", type=json.loads, default={}, help="changes to it, as JSON")
    arguments = parser.parse_args()
    if arguments.bite:
        return run_bite(arguments.seeds, arguments.processes)
    if arguments.seed is not None:
        return run_one(arguments.seed, arguments.set, shrink=arguments.shrink)
    return run_many(arguments.first, arguments.seeds, arguments.processes)


if __name__ == "__main__":
    sys.exit(main())
