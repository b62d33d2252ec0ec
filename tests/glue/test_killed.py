"""The job's process is killed, JVM and all, at each of its steps; the next run is as if it had not.

What the lake holds then is held against the simulation's naive model, which shares no code with it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.glue.support.spark import CATALOG
from tests.simulation.model import row_of, stored_row
from tests.support.builders import delete, insert, update

if TYPE_CHECKING:
    from pathlib import Path

    from lakesync.core.delta import Delta
    from tests.glue.support.lake import Lake

pytestmark = pytest.mark.spark

STEPS = [
    ("prepare", 1, "after"),
    ("append_changes", 1, "before"),
    ("append_changes", 1, "after"),
    ("merge_state", 1, "before"),
    ("merge_state", 1, "after"),
    ("forget", 1, "before"),
    ("forget", 1, "after"),
]
"""As `lakesync_spark.iceberg.apply` numbers them; while 2 or 3 dies, the other is on its way."""

FIRST = [insert("r1", at=5, n=1, s="a"), insert("r2", at=6, n=1)]
SECOND = [
    update("r1", at=4, n=0, s="late"),
    update("r1", at=7, n=2),
    delete("r2", at=8),
    insert("r3", at=9, m=True),
]


def killed_run(lake: Lake, folder: Path, step: str, call: int, when: str) -> int:
    """Let another process do a run until it is killed; returns what it ended with."""
    program = [sys.executable, "-m", "tests.glue.support.child"]
    warehouse = lake.spark.conf.get(f"spark.sql.catalog.{CATALOG}.warehouse") or ""
    place = [warehouse.removesuffix("/warehouse"), str(folder), lake.gateway]
    ran = subprocess.run(
        [*program, *place, step, str(call), when],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True, timeout=180, check=False, start_new_session=True,
    )  # fmt: skip
    return ran.returncode


def once(deltas: list[Delta]) -> list[tuple[str, str]]:
    return [(delta.row_id, delta.delta_id) for delta in deltas]


@pytest.mark.law("L6")
@pytest.mark.parametrize(("step", "call", "when"), STEPS, ids=str)
def test_work_of_a_killed_process_is_finished_by_the_next_run(
    lake: Lake, tmp_path: Path, step: str, call: int, when: str
) -> None:
    lake.put(FIRST)
    assert lake.run().problem() == ""
    lake.put(SECOND)
    assert killed_run(lake, tmp_path, step, call, when) == -signal.SIGKILL
    everything = [*FIRST, *SECOND]
    model = {
        row_id: row_of(delta for delta in everything if delta.row_id == row_id)
        for row_id in ("r1", "r2", "r3")
    }

    assert lake.run().problem() == ""
    states = lake.states()
    assert {
        row_id: stored_row(s.alive, s.deleted, s.columns) for row_id, s in states.items()
    } == model
    assert [(row["_id"], row["_delta_id"]) for row in lake.changes()] == once(everything)
    assert {mark.commit for mark in lake.marks().values()} == {len(everything)}
    assert lake.pending() == []
