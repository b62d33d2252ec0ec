"""Run one module in a process of its own, which ends in time or is ended with all that it started.

A module that hangs, leaves threads or changes its process for good so disturbs no other.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks.entries import QUICK

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.entries import Entry

SECONDS_MAX: Final = 1_800.0
"""Of a module: four times what the longest takes here, as other work may take the machine."""
QUICK_SECONDS_MAX: Final = 240.0
"""Of a module that is only to show that it runs: they take 2 to 10 s on a machine at rest."""
_ENDING_S: Final = 20.0
"""How long a process may take to stop its servers when it is told to end."""


class Unmeasured(Exception):
    """A module gave no figures; says why."""


def run_module(name: str, *, quick: bool, seconds_max: float) -> list[Entry]:
    """Return a module's figures.

    Raises:
        Unmeasured: it ended with an error, or not in time.
    """
    with tempfile.TemporaryDirectory(prefix="lakesync-benchmark-") as folder:
        answer = Path(folder) / "entries.json"
        environment = {**os.environ, **({QUICK: "1"} if quick else {})}
        process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.children", name, str(answer)],
            env=environment,
            start_new_session=True,
        )
        with _ended_in_the_end(process):
            try:
                code = process.wait(seconds_max)
            except subprocess.TimeoutExpired:
                raise Unmeasured(f"did not end within {seconds_max:.0f} s") from None
        if code:
            reason = answer.read_text("utf-8") if answer.exists() else f"exit code {code}"
            raise Unmeasured(reason)
        entries: list[Entry] = json.loads(answer.read_text("utf-8"))
        return entries


@contextmanager
def _ended_in_the_end(process: subprocess.Popen[Any]) -> Iterator[None]:
    try:
        yield
    finally:
        if process.poll() is None:
            process.terminate()  # it stops its servers itself, if it can
            with suppress(subprocess.TimeoutExpired):
                process.wait(_ENDING_S)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@contextmanager
def ending_on_sigterm() -> Iterator[None]:
    """Let SIGTERM end this process as Ctrl-C does, so that what it started is stopped."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def main(name: str, answer: Path) -> int:
    """Measure a module in this process; its figures, or why there are none, are in a file."""
    try:
        entries: list[Entry] = importlib.import_module(f"benchmarks.{name}").run()
    except Exception as exc:
        answer.write_text(f"{type(exc).__name__}: {exc}", "utf-8")
        raise
    answer.write_text(json.dumps(entries), "utf-8")
    return 0


if __name__ == "__main__":
    with ending_on_sigterm():
        raise SystemExit(main(sys.argv[1], Path(sys.argv[2])))
