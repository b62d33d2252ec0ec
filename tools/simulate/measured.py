"""What the simulation alone reaches of the code that it is there to prove: lines and branches.

It runs as a process of its own, `python -m tools.simulate.measured SEEDS`: what is imported before
the measuring begins would count as never reached.
"""

from __future__ import annotations

import sys
from typing import Final

import coverage

from tests.support.repository import ROOT

LIBRARY: Final = ROOT / "layers" / "lakesync" / "python" / "lakesync"
MEASURED: Final = ("core", "wire", "log", "gateway", "checkpoint", "maintenance")
NOT_MEASURED: Final = (
    "*_pb2.py",
    "*/gateway/admin.py",
    "*/gateway/admin_changes.py",
)
"""What is generated, and administration."""


def run_measured(seeds: int) -> int:
    """Live through seeds in this process, and print what was reached and what was not."""
    measure = coverage.Coverage(
        branch=True,
        concurrency="greenlet",
        data_file=None,
        source=[str(LIBRARY / part) for part in MEASURED],
        omit=list(NOT_MEASURED),
        config_file=False,
    )
    measure.config.exclude_list += [r"if TYPE_CHECKING:", r"^\s*\.\.\.$"]
    measure.start()
    try:
        from tools.simulate.runs import run_chunk  # noqa: PLC0415

        done = run_chunk((0, seeds), {})
    finally:
        measure.stop()
    share = measure.report(show_missing=True, skip_covered=True)
    print(f"{share:.1f} % of lines and branches, by {seeds} seeds")
    return 1 if done.failures else 0


if __name__ == "__main__":
    sys.exit(run_measured(int(sys.argv[1])))
