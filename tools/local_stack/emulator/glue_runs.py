"""Glue jobs that really run: start, watch, time out, stop; the truth about how each one ended."""

# The emulator's own names are private; names.py watches over them.
# ruff: noqa: SLF001

from __future__ import annotations

import contextvars
import os
import shutil
import signal
import subprocess
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import boto3

from tools.local_stack.clients import REGION
from tools.local_stack.emulator.glue_command import command, environment
from tools.local_stack.emulator.glue_files import fetch, role_credentials
from tools.local_stack.emulator.glue_records import (
    ACTIVE,
    ErrorTail,
    Job,
    Run,
    new_run,
    why_not_stopped,
)
from tools.local_stack.emulator.names import emulator_module
from tools.local_stack.spark import local_machine
from tools.local_stack.spark_versions import spark_of

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True)
class GlueSettings:
    """Where runs keep their files and logs, and what they talk to."""

    folder: Path
    endpoint: str


class GlueRuns:
    """The runs of one emulator. The records are the emulator's own; the processes are kept here."""

    def __init__(self, settings: GlueSettings) -> None:
        self._settings = settings
        self._processes: dict[str, subprocess.Popen[str]] = {}
        self._lock = threading.Lock()

    def start(self, data: dict[str, Any]) -> Any:
        """StartJobRun: refused above the job's MaxConcurrentRuns, else run in the background."""
        glue = emulator_module("ministack.services.glue")
        responses = emulator_module("ministack.core.responses")
        name = data.get("JobName", "")
        job = glue._jobs.get(name)
        if job is None:
            return responses.error_response_json(
                "EntityNotFoundException", f"Job {name} not found", 400
            )
        with self._lock:
            runs = glue._job_runs.setdefault(name, [])
            # A template's numbers are the text that parameters are.
            limit = int((job.get("ExecutionProperty") or {}).get("MaxConcurrentRuns", 1))
            if sum(run["JobRunState"] in ACTIVE for run in runs) >= limit:
                return responses.error_response_json(
                    "ConcurrentRunsExceededException", f"Concurrent runs exceeded for {name}", 400
                )
            run = new_run(job, data)
            runs.append(run)
        arguments = {
            **job.get("DefaultArguments", {}),
            "--JOB_NAME": name,
            "--JOB_RUN_ID": run["Id"],
            **data.get("Arguments", {}),
            **job.get("NonOverridableArguments", {}),
        }
        # The thread reads S3 as the account and region of this request.
        context = contextvars.copy_context()
        threading.Thread(
            target=context.run, args=(self._execute, job, run, arguments), daemon=True
        ).start()
        return responses.json_response({"JobRunId": run["Id"]})

    def stop(self, data: dict[str, Any]) -> Any:
        """BatchStopJobRun: running processes are killed, and their runs become STOPPED."""
        glue = emulator_module("ministack.services.glue")
        responses = emulator_module("ministack.core.responses")
        name = data.get("JobName", "")
        stopped, errors = [], []
        for run_id in data.get("JobRunIds", []):
            runs = glue._job_runs.get(name, [])
            run = next((run for run in runs if run["Id"] == run_id), None)
            entry = {"JobName": name, "JobRunId": run_id}
            if run is not None and run["JobRunState"] in ACTIVE:
                self._stop_one(run)
                stopped.append(entry)
            else:
                state = run["JobRunState"] if run else None
                errors.append({**entry, "ErrorDetail": why_not_stopped(run_id, state)})
        return responses.json_response({"SuccessfulSubmissions": stopped, "Errors": errors})

    def stop_all(self) -> None:
        """Leave no process behind when the emulator ends."""
        for process in list(self._processes.values()):
            _kill(process)

    def _stop_one(self, run: Run) -> None:
        with self._lock:
            run["JobRunState"] = "STOPPING"
            process = self._processes.get(run["Id"])
        if process is not None:
            _kill(process)

    def _execute(self, job: Job, run: Run, arguments: dict[str, str]) -> None:
        """One run from its files to its end; whatever goes wrong here is the run's failure."""
        folder = self._settings.folder / "glue" / run["Id"]
        try:
            state, message = self._run(job, run, arguments, folder)
        except Exception as error:  # noqa: BLE001 - a thread that died would leave it RUNNING
            state, message = "FAILED", str(error)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        ended = time.time()
        run.update(
            ErrorMessage=message,
            CompletedOn=ended,
            LastModifiedOn=ended,
            ExecutionTime=round(ended - run["StartedOn"]),
        )
        # Last, since whoever polls may read the record the moment the state is final.
        run["JobRunState"] = state

    def _run(self, job: Job, run: Run, arguments: dict[str, str], folder: Path) -> tuple[str, str]:
        credentials = role_credentials(job)
        s3 = boto3.client(
            "s3",
            endpoint_url=self._settings.endpoint,
            region_name=REGION,
            aws_access_key_id=credentials.access_key,
            aws_secret_access_key=credentials.secret_key,
            aws_session_token=credentials.session_token or None,
        )
        submission = fetch(job, {k: str(v) for k, v in arguments.items()}, folder, s3)
        machine = local_machine(self._settings.endpoint, spark_of(run["GlueVersion"]))
        log = self._settings.folder / "logs" / "glue" / f"{run['Id']}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("w") as output:
            process = subprocess.Popen(
                command(submission, machine),
                cwd=folder,
                env=environment(submission, machine, credentials),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                # A group of its own: Java and Python of the run are killed together.
                start_new_session=True,
            )
            (folder / "pid").write_text(str(process.pid))
            return self._watch(run, process, output.name)

    def _watch(self, run: Run, process: subprocess.Popen[str], log: str) -> tuple[str, str]:
        with self._lock:
            self._processes[run["Id"]] = process
            stopping = run["JobRunState"] == "STOPPING"
            if not stopping:
                run["JobRunState"] = "RUNNING"
        if stopping:
            _kill(process)
        errors = ErrorTail(process, log)
        try:
            code = process.wait(timeout=run["Timeout"] * 60)
        except subprocess.TimeoutExpired:
            _kill(process)
            process.wait()
            return "TIMEOUT", f"Job run exceeded its timeout of {run['Timeout']} minutes"
        finally:
            self._processes.pop(run["Id"], None)
            _kill(process)  # what the driver left behind in its group
        if code == 0:
            return "SUCCEEDED", ""
        if run["JobRunState"] == "STOPPING":
            return "STOPPED", ""
        return "FAILED", errors.text() or f"The script ended with exit code {code}"


def _kill(process: subprocess.Popen[str]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
