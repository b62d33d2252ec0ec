"""Glue as AWS runs it: Spark jobs really run, and state machines can wait for them."""

# The emulator's own names are private; names.py watches over them.
# ruff: noqa: SLF001

from __future__ import annotations

import atexit
import json
import time
from http import HTTPStatus
from typing import Any

from tools.local_stack.emulator.glue_records import ACTIVE
from tools.local_stack.emulator.glue_runs import GlueRuns, GlueSettings
from tools.local_stack.emulator.names import emulator_module

_POLL_SECONDS = 0.1


def run_jobs(settings: GlueSettings) -> None:
    """AWS: a `glueetl` job runs its script on Spark with its arguments, and may fail.

    Without containers the emulator reports SUCCEEDED at once and runs nothing.
    """
    glue = emulator_module("ministack.services.glue")
    runs = GlueRuns(settings)
    glue._start_job_run = runs.start
    glue._batch_stop_job_run = runs.stop
    atexit.register(runs.stop_all)


def keep_execution_property() -> None:
    """AWS: a job remembers its `ExecutionProperty`, one run at a time unless it says otherwise.

    The emulator forgets it, in its API and in CloudFormation.
    """
    glue = emulator_module("ministack.services.glue")
    provisioners = emulator_module("ministack.services.cloudformation.provisioners")
    default = {"MaxConcurrentRuns": 1}
    provisioners._GLUE_JOB_DEFAULTS["ExecutionProperty"] = default
    create, update = glue._create_job, glue._update_job

    def create_job(data: dict[str, Any]) -> Any:
        answer = create(data)
        if answer[0] == HTTPStatus.OK:
            glue._jobs[data["Name"]]["ExecutionProperty"] = data.get("ExecutionProperty", default)
        return answer

    def update_job(data: dict[str, Any]) -> Any:
        answer = update(data)
        given = data.get("JobUpdate", {}).get("ExecutionProperty")
        if given is not None and answer[0] == HTTPStatus.OK:
            glue._jobs[data["JobName"]]["ExecutionProperty"] = given
        return answer

    glue._create_job = create_job
    glue._update_job = update_job


def let_state_machines_start_jobs() -> None:
    """AWS: `arn:aws:states:::glue:startJobRun`, and `.sync`, which waits and fails with the run.

    The emulator knows neither.
    """
    glue = emulator_module("ministack.services.glue")
    step_functions = emulator_module("ministack.services.stepfunctions")

    def start_job_run(resource: str, data: dict[str, Any]) -> Any:
        status, _, body = glue._start_job_run(data)
        answer = json.loads(body)
        if status != HTTPStatus.OK:
            error = f"Glue.{answer.get('__type', 'GlueException')}"
            raise step_functions._ExecutionError(error, answer.get("message", ""))
        if not resource.endswith(".sync"):
            return answer
        runs = glue._job_runs[data["JobName"]]
        run = next(run for run in runs if run["Id"] == answer["JobRunId"])
        while run["JobRunState"] in ACTIVE:
            time.sleep(_POLL_SECONDS)
        if run["JobRunState"] != "SUCCEEDED":
            raise step_functions._ExecutionError("States.TaskFailed", json.dumps(run))
        return run

    step_functions._SERVICE_DISPATCH["arn:aws:states:::glue:startJobRun"] = start_job_run
