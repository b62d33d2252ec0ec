"""Many seeds on all cores, and what was exercised in them; each chunk runs in a worker process."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.simulation import node
from tests.simulation.deliberate import FAULTS
from tests.simulation.replay import run_scenario
from tests.simulation.scenario import changed, scenario_of
from tests.simulation.search import seeds_to_find

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

CHUNK = 50
PROGRESS_S = 10.0
FAILURES_SHOWN_MAX = 10
SEARCHES = 5
"""Searches for each deliberate fault, each in seeds of its own."""


class Done(NamedTuple):
    """What came of some seeds."""

    seeds: int
    counts: Counter[str]
    simulated_ms: int
    failures: list[tuple[int, str]]


def run_chunk(first_and_last: tuple[int, int], changes: Mapping[str, object]) -> Done:
    """Live through some seeds, with changes to the scenario of each."""
    counts: Counter[str] = Counter()
    simulated_ms, failures = 0, []
    for seed in range(*first_and_last):
        outcome = run_scenario(changed(scenario_of(seed), changes))
        counts += outcome.counts
        simulated_ms += outcome.simulated_ms
        if outcome.failed:
            failures.append((seed, outcome.message))
    return Done(first_and_last[1] - first_and_last[0], counts, simulated_ms, failures)


def workers(processes: int) -> ProcessPoolExecutor:
    """Return worker processes: Ctrl-C is for this process to answer, and they end with it."""
    return ProcessPoolExecutor(
        processes, multiprocessing.get_context("spawn"), initializer=_end_with_the_parent
    )


def _end_with_the_parent() -> None:
    """Leave Ctrl-C to the parent, and end this worker as soon as it is gone, however it went."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(
        target=_exit_after, args=[multiprocessing.parent_process()], daemon=True
    ).start()


def _exit_after(parent: Any) -> None:
    parent.join()
    os._exit(1)


def run_many(first: int, seeds: int, processes: int, changes: Mapping[str, object]) -> int:
    """Run many seeds, with changes to each; shows the progress, and at the end what was exercised.

    Raises:
        KeyboardInterrupt: it was interrupted; what was exercised until then is shown.
    """
    begun = reported_at = time.monotonic()
    chunks = [(at, min(at + CHUNK, first + seeds)) for at in range(first, first + seeds, CHUNK)]
    done = Done(0, Counter(), 0, [])
    with workers(processes) as pool:
        try:
            runs = [pool.submit(run_chunk, chunk, changes) for chunk in chunks]
            for future in as_completed(runs):
                part = future.result()
                done = Done(
                    done.seeds + part.seeds, done.counts + part.counts,
                    done.simulated_ms + part.simulated_ms, done.failures + part.failures,
                )  # fmt: skip
                for seed, what in part.failures:
                    print(f"seed {seed} broke a promise: {what}", flush=True)
                if time.monotonic() - reported_at > PROGRESS_S:
                    reported_at = time.monotonic()
                    rate = done.seeds / (reported_at - begun)
                    print(f"{done.seeds} of {seeds} seeds, {rate:.0f} a second", flush=True)
        finally:
            pool.shutdown(cancel_futures=True)
            print("\n".join(summary(done, time.monotonic() - begun)), flush=True)
    return 1 if done.failures else 0


def summary(done: Done, seconds: float) -> Iterator[str]:
    """Show what was exercised."""
    yield ""
    for what, times in sorted(done.counts.items()):
        yield f"{times:>12,}  {what}"
    days = done.simulated_ms / 86_400_000
    yield ""
    yield f"{done.seeds} seeds in {seconds:.0f} s; {days:,.1f} simulated days"
    yield f"{len(done.failures)} broke a promise"
    for seed, _ in sorted(done.failures)[:FAILURES_SHOWN_MAX]:
        yield f"    python -m tools.simulate --seed {seed}"


def search(fault_name: str, first: int, seeds_max: int) -> tuple[int, str]:
    """Look for a deliberate fault, in a worker process, which takes it by name."""
    (fault,) = [fault for fault in FAULTS if fault.name == fault_name]
    return seeds_to_find(fault, first, seeds_max)


def run_bite(first: int, seeds_max: int, processes: int) -> int:
    """Show for each deliberate fault how many seeds it takes to find it, by several searches."""
    means, missed = [], 0
    faults = [fault for fault in FAULTS if node.is_there() or not fault.is_in_node]
    print(f"{'fault':<36} {'mean':>6} {'most':>6}  results by")
    with workers(processes) as pool:
        searches = {
            fault.name: [
                pool.submit(search, fault.name, first + number * seeds_max, seeds_max)
                for number in range(SEARCHES)
            ]
            for fault in faults
        }
        for name, futures in searches.items():
            results = [future.result() for future in futures]
            numbers = [seeds for seeds, _ in results if seeds]
            missed += SEARCHES - len(numbers)
            # A search that found nothing counts as one that found it behind its last seed.
            mean = sum(seeds or seeds_max for seeds, _ in results) / SEARCHES
            means.append(mean)
            most = max(numbers) if len(numbers) == SEARCHES else f">{seeds_max}"
            promises = sorted({promise for _, promise in results if promise})
            print(f"{name:<36} {mean:>6.1f} {most:>6}  {', '.join(promises)}", flush=True)
    print(
        f"{len(faults)} faults, each looked for {SEARCHES} times in {seeds_max} seeds: "
        f"{sum(means) / len(means):.1f} seeds on average, {missed} searches without a find"
    )
    return 1 if missed else 0
