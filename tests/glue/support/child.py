"""A process that does one run of the job, and is killed at a step of it, with its JVM.

``child.py <lake folder> <store folder> <gateway> <step> <call> <before|after>``. Nothing of it is
cleaned up: as when the machine is gone.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from lakesync_spark.iceberg import apply
from tests.glue.support.files import FileStore
from tests.glue.support.lake import Lake
from tests.glue.support.spark import start_spark


def main(lake: str, store: str, gateway: str, step: str, call: str, when: str) -> None:
    """Run, and die."""
    real: Any = getattr(apply, step)
    calls = iter(range(1, int(call)))

    def step_and_die(*arguments: Any) -> Any:
        if next(calls, None) is not None:
            return real(*arguments)
        if when == "after":
            real(*arguments)
        os.killpg(0, signal.SIGKILL)
        raise AssertionError("still alive")

    setattr(apply, step, step_and_die)
    Lake(start_spark(Path(lake)), FileStore(Path(store)), gateway).run()


main(*sys.argv[1:])
