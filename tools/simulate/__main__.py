"""Runs seeds of ``tests/simulation``: many of them on all cores, or one to look at.

python -m tools.simulate --seeds 100000          progress, then what was exercised
python -m tools.simulate --seed 4711             one seed with its trace
python -m tools.simulate --seed 4711 --shrink    the smallest scenario that still fails
python -m tools.simulate --javascript            every second client is the JavaScript one
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys

from tests.simulation import node
from tests.simulation.replay import run_scenario, story
from tests.simulation.scenario import changed, scenario_of
from tests.simulation.search import SEEDS_MAX
from tests.simulation.shrink import shrunk
from tests.support.node import REASON
from tools.simulate.known import run_known
from tools.simulate.runs import run_bite, run_many


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


def main() -> int:
    """Do what the arguments ask for."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.simulate",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seeds", type=int, default=2_000, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seed", type=int, help="one seed, with its trace")
    parser.add_argument("--shrink", action="store_true", help="make that seed smaller")
    parser.add_argument("--bite", action="store_true", help="seeds to find each deliberate fault")
    parser.add_argument("--known", action="store_true", help="note a seed for each of them")
    parser.add_argument("--coverage", action="store_true", help="what they reach of the code")
    parser.add_argument("--javascript", action="store_true", help="every second client in Node.js")
    parser.add_argument("--set", type=json.loads, default={}, help="changes to each, as JSON")
    arguments = parser.parse_args()
    if arguments.javascript:
        if not node.is_there():
            print(f"without Node.js: {os.environ[REASON]}")
            return 0
        arguments.set = {"javascript": True, **arguments.set}
    try:
        if arguments.coverage:
            command = [sys.executable, "-m", "tools.simulate.measured", str(arguments.seeds)]
            return subprocess.call(command)
        if arguments.bite:
            return run_bite(arguments.first, min(arguments.seeds, SEEDS_MAX), arguments.processes)
        if arguments.known:
            return run_known(arguments.processes)
        if arguments.seed is not None:
            return run_one(arguments.seed, arguments.set, shrink=arguments.shrink)
        return run_many(arguments.first, arguments.seeds, arguments.processes, arguments.set)
    except KeyboardInterrupt:
        print("interrupted; --first goes on from a seed", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
