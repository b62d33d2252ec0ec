"""A Glue job as it is deployed: its bundle, and what it needs of the template, on an emulator."""

from __future__ import annotations

import json
import runpy
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import boto3
import pytest

from tests.infrastructure.stack import template
from tests.support import audit
from tests.support.repository import ROOT
from tools.local_stack.aws_emulator import start_emulator

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Mapping, Sequence
    from pathlib import Path

    from tools.local_stack.aws_emulator import Emulator

_ARTEFACTS = "aws-sam-cli-managed-default-jobs"


class JobStack(NamedTuple):
    """What a job needs of the template."""

    name: str
    """The stack's."""
    script: str
    job: str
    """The job's logical id."""
    resources: Sequence[str]
    """Logical ids, the job's among them."""
    parameters: Mapping[str, int | str]
    """Parameters that are other than by default."""
    granted: Container[str] = ()
    """Actions that the test itself allows to the job's role."""

    def template(self) -> dict[str, Any]:
        """Return those resources as they are, with the script where it was put."""
        whole = json.loads(json.dumps(template()))
        resources = {name: whole["Resources"][name] for name in self.resources}
        command = resources[self.job]["Properties"]["Command"]
        command["ScriptLocation"] = f"s3://{_ARTEFACTS}/job.py"
        for name, value in self.parameters.items():
            whole["Parameters"][name]["Default"] = value
        return {
            "Transform": "AWS::LanguageExtensions",  # the whole template has it, and SAM besides
            "Parameters": whole["Parameters"],
            "Conditions": whole["Conditions"],
            "Mappings": whole.get("Mappings", {}),
            "Resources": resources,
        }

    def ids(self) -> dict[str, str]:
        listed = boto3.client("cloudformation").list_stack_resources(StackName=self.name)
        return {
            one["LogicalResourceId"]: one["PhysicalResourceId"]
            for one in listed["StackResourceSummaries"]
        }


@contextmanager
def deployed(stack: JobStack, folder: Path) -> Iterator[Emulator]:
    """Yield an emulator that asks each role what it may, with the stack and the job's bundle."""
    with start_emulator(enforce_iam=True) as running, pytest.MonkeyPatch.context() as patch:
        for name, value in running.environment().items():
            patch.setenv(name, value)
        boto3.client("s3").create_bucket(Bucket=_ARTEFACTS)
        main = runpy.run_path(str(ROOT / "layers" / "bundle_job.py"), run_name="imported")["main"]
        main.__globals__.update(OUTPUT=folder, JOBS=(stack.script,))
        main()
        script = (folder / f"{stack.script}.py").read_bytes()
        boto3.client("s3").put_object(Bucket=_ARTEFACTS, Key="job.py", Body=script)
        client = boto3.client("cloudformation")
        client.create_stack(
            StackName=stack.name,
            TemplateBody=json.dumps(stack.template()),
            Capabilities=["CAPABILITY_IAM", "CAPABILITY_AUTO_EXPAND"],
        )
        client.get_waiter("stack_create_complete").wait(
            StackName=stack.name, WaiterConfig={"Delay": 1, "MaxAttempts": 30}
        )
        yield running
        _audit(stack, running)


def _audit(stack: JobStack, emulator: Emulator) -> None:
    """Put what the job called to its role as the transform leaves it."""
    whole = audit.deployed(boto3.client("cloudformation"), stack.name)
    record = audit.record(emulator.folder)
    asked = list(audit.asked_of_callers(record))
    assert audit.unknown(record) == set()
    ours = [one for one in asked if one.action not in stack.granted]
    assert audit.refused(whole, ours) == []


def rights(stack: JobStack, emulator: Emulator, test: str) -> tuple[set[str], set[str]]:
    """Return the statements of which a test is listed as the user, and those that were used."""
    whole = audit.deployed(boto3.client("cloudformation"), stack.name)
    asked = audit.asked_of_callers(audit.record(emulator.folder))
    listed = audit.listed()["used_by"].items()
    return {where for where, user in listed if user == test}, audit.used(whole, asked)[1]


def ended_run(job: str) -> dict[str, Any]:
    """Wait for the end of a job's latest run, which somebody else started; returns its record."""
    glue: Any = boto3.client("glue")
    while True:
        runs = glue.get_job_runs(JobName=job)["JobRuns"]
        latest: dict[str, Any] = max(runs, key=lambda run: run["StartedOn"], default={})
        if latest and latest["JobRunState"] not in {"STARTING", "RUNNING"}:
            return latest
        time.sleep(0.25)


def printed(emulator: Emulator, run: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return what a run said, in order; Spark says more."""
    log = emulator.folder / "logs" / "glue" / f"{run['Id']}.log"
    return [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]
