"""Makes a failing scenario smaller while it still breaks the same promise."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING

from tests.simulation.replay import run_scenario
from tests.simulation.scenario import Faults, Scenario, changed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PLAIN = Scenario(0)
"""What every field is when nothing is asked of it."""
NUMBERS = ("clients", "bursts", "burst_edits_max", "rows", "functions", "flows", "flow_writes")
LEFT_OUT = (
    "restores",
    "anew",
    "rulings",
    "reclaims",
    "widenings",
    "trim_every_s",
    "retain_every_s",
    "reinstalls",
    "relanings",
    "shards_besides",
    "rogue",
    "offline",
    "eager",
    "flow_changes",
    "flow_large_rows",
    "flows_away",
    "storms",
    "ghosts",
    "token_s",
    "sockets",
    "client_skew_ms",
    "function_skew_ms",
    "commit_items_max",
    "row_state_bytes_max",
    "backpressure_bytes_max",
    "flush_threshold_bytes",
    "page_bytes_max",
)


def shrunk(scenario: Scenario, promise: str, tell: Callable[[str], None]) -> Scenario:
    """Return a scenario from which nothing more can be left out.

    Args:
        scenario: one that breaks the promise.
        promise: which.
        tell: hears what was left out.
    """
    again = True
    while again:
        again = False
        for what, smaller in _smaller(scenario):
            if run_scenario(smaller).promise == promise:
                tell(what)
                scenario, again = smaller, True
                break
    return scenario


def _smaller(scenario: Scenario) -> Iterator[tuple[str, Scenario]]:
    """Yield scenarios with one thing left out, the largest things first."""
    for item in fields(Faults):
        if getattr(scenario.faults, item.name):
            faults = replace(scenario.faults, **{item.name: 0.0})
            yield f"no {item.name}", replace(scenario, faults=faults)
    if len(scenario.tables) > 1:
        for place, table in enumerate(scenario.tables):
            left = scenario.tables[:place] + scenario.tables[place + 1 :]
            yield f"without {table.name}", replace(scenario, tables=left)
    yield from _fewer(scenario)
    for name in LEFT_OUT:
        if getattr(scenario, name) != getattr(PLAIN, name):
            yield f"plain {name}", changed(scenario, {name: getattr(PLAIN, name)})


def _fewer(scenario: Scenario) -> Iterator[tuple[str, Scenario]]:
    for name in NUMBERS:
        value = getattr(scenario, name)
        for fewer in sorted({1, value // 2, value - 1}):
            if 1 <= fewer < value:
                yield f"{name}: {fewer}", changed(scenario, {name: fewer})
