"""The engine at scale: the real code in simulated time, on a model of DynamoDB and Lambda.

What is modelled, what is assumed and where that comes from: ``docs/testing.md``.
"""

from __future__ import annotations

import importlib
import multiprocessing
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from benchmarks.entries import Entry

MEASURES: Final = (
    "layers/lakesync/python/lakesync/buffer",
    "layers/lakesync/python/lakesync/core",
    "layers/lakesync/python/lakesync/gateway",
    "layers/lakesync/python/lakesync/log",
    "layers/lakesync/python/lakesync/maintenance",
    "layers/lakesync/python/lakesync/runtime/tasks.py",
    "layers/lakesync/python/lakesync/runtime/tasks.py",
    "layers/lakesync/python/lakesync/runtime/wiring.py",
    "layers/lakesync/python/lakesync/wire",
)
SCENARIOS: Final = (
    "writers", "readers", "same_row", "devices", "gateways", "backpressure", "lake", "single",
)  # fmt: skip
AT_ONCE: Final = 2


def run() -> list[Entry]:
    """Measure, and give one entry for each figure.

    Two scenarios run at once: time is simulated, so none disturbs another's figures.
    """
    with ProcessPoolExecutor(AT_ONCE, multiprocessing.get_context("spawn")) as pool:
        return [entry for entries in pool.map(_measured, SCENARIOS) for entry in entries]


def _measured(name: str) -> list[Entry]:
    begun = time.monotonic()
    scenario = importlib.import_module(f"benchmarks.scale.scenarios.{name}")
    entries: list[Entry] = scenario.run()
    print(f"  {name}: {time.monotonic() - begun:.0f} s", file=sys.stderr, flush=True)
    return entries
