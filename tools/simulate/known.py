"""Notes for each deliberate fault a seed that shows it, so that tests need not search for one."""

from __future__ import annotations

from concurrent.futures import as_completed
from typing import Final

from tests.simulation import node
from tests.simulation.deliberate import FAULTS
from tests.simulation.search import (
    KEPT,
    draw_that_shows,
    kept_scenario,
    known_seeds,
    remember,
    seed_that_shows,
)
from tools.simulate.runs import workers

_KINDS: Final = {"usual": [fault.name for fault in FAULTS], "kept": [one["fault"] for one in KEPT]}


def find(kind: str, name: str, known: int | None) -> int | None:
    """Look for a seed that shows a fault, in a worker process, which takes it by name."""
    (fault,) = [fault for fault in FAULTS if fault.name == name]
    if kind == "usual":
        return seed_that_shows(fault, known)
    (kept,) = [one for one in KEPT if one["fault"] == name]
    return draw_that_shows(fault, kept_scenario(kept), known)


def run_known(processes: int) -> int:
    """Find a seed for each fault, the known one where it still shows it, and write them down."""
    known = known_seeds()
    out_of_reach = {fault.name for fault in FAULTS if fault.is_in_node and not node.is_there()}
    seeds = {
        kind: {name: known[kind][name] for name in known[kind].keys() & out_of_reach}
        for kind in _KINDS
    }
    missed = 0
    with workers(processes) as pool:
        searches = {
            pool.submit(find, kind, name, known[kind].get(name)): (kind, name)
            for kind, names in _KINDS.items()
            for name in names
            if name not in out_of_reach
        }
        for done, future in enumerate(as_completed(searches), 1):
            kind, name = searches[future]
            seed = future.result()
            print(f"{done} of {len(searches)}: {kind} {name}: {seed}", flush=True)
            if seed is None:
                missed += 1
            else:
                seeds[kind][name] = seed
    remember(seeds)
    return 1 if missed else 0
