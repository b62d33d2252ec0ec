"""The engine at scale: the real code in simulated time, on a model of DynamoDB and Lambda.

What is modelled, what is assumed and where that comes from: ``docs/testing.md``.
"""

from __future__ import annotations

import importlib
import sys
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from benchmarks.entries import Entry

MEASURES: Final = (
    "layers/lakesync/python/lakesync/buffer",
    "layers/lakesync/python/lakesync/core",
    "layers/lakesync/python/lakesync/gateway",
    "layers/lakesync/python/lakesync/log",
    "layers/lakesync/python/lakesync/maintenance",
    "layers/lakesync/python/lakesync/runtime/schedule.py",
    "layers/lakesync/python/lakesync/runtime/tasks.py",
    "layers/lakesync/python/lakesync/runtime/wiring.py",
    "layers/lakesync/python/lakesync/wire",
)
SCENARIOS: Final = (
    "writers", "readers", "same_row", "devices", "gateways", "backpressure", "lake", "single",
)  # fmt: skip


def run() -> list[Entry]:
    """Measure, and give one entry for each figure."""
    entries: list[Entry] = []
    for name in SCENARIOS:
        begun = time.monotonic()
        entries += importlib.import_module(f"benchmarks.scale.scenarios.{name}").run()
        seconds = time.monotonic() - begun
        print(f"  {name}: {seconds:.0f} s", file=sys.stderr, flush=True)
    return entries
