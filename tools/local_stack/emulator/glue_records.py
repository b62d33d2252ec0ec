"""What is known of a Glue run: its record in the API's words, and the end of what it wrote."""

from __future__ import annotations

import secrets
import threading
import time
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import subprocess

ACTIVE = frozenset({"STARTING", "RUNNING", "STOPPING"})
ERROR_CHARACTERS = 2000

Run = dict[str, Any]
Job = dict[str, Any]


def new_run(job: Job, data: dict[str, Any]) -> Run:
    """The record that GetJobRun shows."""
    now = time.time()
    return {
        "Id": f"jr_{secrets.token_hex(32)}",
        "Attempt": 0,
        "JobName": job["Name"],
        "StartedOn": now,
        "LastModifiedOn": now,
        "JobRunState": "STARTING",
        "Arguments": data.get("Arguments", {}),
        "ErrorMessage": "",
        "PredecessorRuns": [],
        "ExecutionTime": 0,
        "Timeout": data.get("Timeout") or job.get("Timeout") or 480,
        "WorkerType": data.get("WorkerType") or job.get("WorkerType", "G.1X"),
        "NumberOfWorkers": data.get("NumberOfWorkers") or job.get("NumberOfWorkers", 2),
        "GlueVersion": job.get("GlueVersion", "5.1"),
    }


def why_not_stopped(run_id: str, state: str | None) -> dict[str, str]:
    """The error of BatchStopJobRun for a run that is not active, or is not."""
    if state is None:
        return {
            "ErrorCode": "EntityNotFoundException",
            "ErrorMessage": f"Job run {run_id} not found",
        }
    return {
        "ErrorCode": "InvalidInputException",
        "ErrorMessage": f"Job run {run_id} is in state {state}",
    }


class ErrorTail(threading.Thread):
    """Copies a process's standard error into the run's log, and remembers its end."""

    def __init__(self, process: subprocess.Popen[str], log: str) -> None:
        super().__init__(daemon=True)
        self._stream = process.stderr
        self._log = log
        self._last: deque[str] = deque(maxlen=200)
        self.start()

    def run(self) -> None:
        """Copy until the process closes its standard error."""
        with Path(self._log).open("a") as output:
            for line in self._stream or ():
                output.write(line)
                output.flush()
                self._last.append(line)

    def text(self) -> str:
        """The last characters written, once the process has ended."""
        self.join(timeout=5)
        return "".join(self._last)[-ERROR_CHARACTERS:].strip()
