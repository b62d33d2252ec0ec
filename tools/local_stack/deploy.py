"""`sam build` and `sam deploy`, the same commands that a user runs against AWS."""

from __future__ import annotations

import contextlib
import fcntl
import os
import platform
import subprocess
import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import boto3
from botocore.exceptions import ClientError

from tools.local_stack import paths
from tools.local_stack.errors import LocalStackError
from tools.local_stack.processes import read_record, write_record
from tools.local_stack.sources import build_outputs, declared_parameters, fingerprint

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from tools.local_stack.aws_emulator import Emulator

_DEPLOYED = frozenset({"CREATE_COMPLETE", "UPDATE_COMPLETE", "UPDATE_ROLLBACK_COMPLETE"})
# A change set was made and not carried out: the next deployment goes on from there.
_NOT_THERE = frozenset({"", "REVIEW_IN_PROGRESS"})
# The others are of the deployment alone: the template that is built keeps references to them.
_READ_BY_THE_BUILD = frozenset({"PythonRuntime", "Architecture", "GlueVersion"})
_LOG_LINES_SHOWN = 25
# Variables that would lead the SAM command line away from the emulator.
_FOREIGN_VARIABLES = ("AWS_PROFILE", "AWS_SESSION_TOKEN", "VIRTUAL_ENV", "PYTHONPATH")


@dataclass(frozen=True)
class Deployment:
    """What is deployed where, under which name and with which parameters."""

    emulator: Emulator
    stack: str
    parameters: Mapping[str, str]
    project: Path = field(default=paths.ROOT)

    @property
    def logs(self) -> Path:
        """The folder of the logs of `sam`."""
        return self.emulator.folder / "logs"


def python_runtime() -> str:
    """The Lambda runtime of this interpreter, for which packages are built."""
    return f"python{sys.version_info.major}.{sys.version_info.minor}"


def architecture() -> str:
    """This machine's processors, as Lambda calls them."""
    return "arm64" if platform.machine() in {"aarch64", "arm64"} else "x86_64"


def deploy(deployment: Deployment) -> dict[str, str]:
    """Build and deploy what changed; the outputs of the stack.

    Safe to repeat: with nothing changed it asks the stack for its outputs and does nothing else.

    Raises:
        LocalStackError: the build or the deployment failed; the sentence names its log.
    """
    record_path = deployment.emulator.folder / "deployed.json"
    sources = fingerprint(deployment.project)
    wanted = {
        "sources": sources,
        "parameters": dict(deployment.parameters),
        "emulator": deployment.emulator.pid,
        "stack": deployment.stack,
    }
    status, outputs = describe(deployment)
    if status in _DEPLOYED and read_record(record_path) == wanted:
        return outputs
    if status not in _DEPLOYED | _NOT_THERE:
        _cloudformation(deployment).delete_stack(StackName=deployment.stack)
    _sam(
        deployment,
        "deploy",
        "--template-file", str(package(deployment, build(deployment, sources))),
        "--use-json",
        "--stack-name", deployment.stack,
        "--resolve-s3",
        "--capabilities", "CAPABILITY_IAM", "CAPABILITY_NAMED_IAM", "CAPABILITY_AUTO_EXPAND",
        "--no-confirm-changeset",
        "--no-fail-on-empty-changeset",
        "--no-progressbar",
        *_overrides(deployment),
    )  # fmt: skip
    status, outputs = describe(deployment)
    if status not in _DEPLOYED:
        raise LocalStackError(f"read {deployment.logs}/sam-deploy.log: the stack is {status}.")
    write_record(record_path, wanted)
    return outputs


def build(deployment: Deployment, sources: str) -> dict[str, Any]:
    """Run `sam build` if sources or parameters changed since the last build; return both."""
    folder = deployment.project / ".aws-sam"
    folder.mkdir(exist_ok=True)
    stamp = folder / "lakesync-build.json"
    read = {k: v for k, v in deployment.parameters.items() if k in _READ_BY_THE_BUILD}
    wanted = {"sources": sources, "parameters": read}
    with _taking_turns(folder / "lakesync-build.lock"):
        if read_record(stamp) == wanted and all(
            p.exists() for p in build_outputs(deployment.project)
        ):
            return wanted
        stamp.unlink(missing_ok=True)
        _sam(deployment, "build", "--no-cached", "--parallel", *_overrides(deployment))
        write_record(stamp, wanted)
    return wanted


def package(deployment: Deployment, built: dict[str, Any]) -> Path:
    """Run `sam package`, unless this emulator has that build; return the packaged template.

    `sam deploy` does it too, but compresses every layer anew to find it uploaded already.
    """
    template = deployment.emulator.folder / "packaged-template.json"
    stamp = deployment.emulator.folder / "packaged.json"
    wanted = {**built, "emulator": deployment.emulator.pid}
    if read_record(stamp) != wanted or not template.exists():
        stamp.unlink(missing_ok=True)
        # As JSON, which `sam` reads in a hundredth of the time.
        _sam(
            deployment, "package", "--resolve-s3", "--no-progressbar",
            "--use-json", "--output-template-file", str(template),
        )  # fmt: skip
        write_record(stamp, wanted)
    return template


def describe(deployment: Deployment) -> tuple[str, dict[str, str]]:
    """The stack's status, empty when there is none, and its outputs."""
    try:
        answer = _cloudformation(deployment).describe_stacks(StackName=deployment.stack)
    except ClientError:
        return "", {}
    stack = answer["Stacks"][0]
    outputs = {output["OutputKey"]: output["OutputValue"] for output in stack.get("Outputs", [])}
    return stack["StackStatus"], outputs


def _cloudformation(deployment: Deployment) -> Any:
    return boto3.client("cloudformation", **deployment.emulator.client_options())


def _overrides(deployment: Deployment) -> list[str]:
    """The parameters that the template declares, as the SAM command line wants them."""
    declared = declared_parameters((deployment.project / "template.yaml").read_text())
    known = {k: v for k, v in deployment.parameters.items() if k in declared}
    # An empty value is two quotation marks: SAM's command line refuses one that is not there.
    pairs = [f"{k}={v}" if v else f'{k}=""' for k, v in known.items()]
    return ["--parameter-overrides", *pairs] if known else []


def _sam(deployment: Deployment, verb: str, *arguments: str) -> None:
    """Run one `sam` command, its output into a log; the end of the log on failure."""
    started = time.monotonic()
    print(f"sam {verb} …", flush=True)
    log = deployment.logs / f"sam-{verb}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    environment = {k: v for k, v in os.environ.items() if k not in _FOREIGN_VARIABLES}
    environment |= deployment.emulator.environment()
    # First on the path: the interpreter, with pip, that the build packages functions for.
    environment["PATH"] = f"{paths.SAM.parent}:{environment.get('PATH', '/usr/bin:/bin')}"
    environment["SAM_CLI_TELEMETRY"] = "0"
    # AWS is asked every five seconds how a deployment goes; the emulator may be asked more often.
    environment["SAM_CLI_POLL_DELAY"] = "0.3"
    with log.open("w") as output:
        answer = subprocess.run(
            [paths.SAM, verb, *arguments],
            cwd=deployment.project,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            check=False,
        )
    if answer.returncode:
        print("\n".join(log.read_text().splitlines()[-_LOG_LINES_SHOWN:]), file=sys.stderr)
        raise LocalStackError(f"read {log}: sam {verb} failed, its last lines are above.")
    print(f"sam {verb}: done after {time.monotonic() - started:.1f} s", flush=True)


@contextlib.contextmanager
def _taking_turns(path: Path) -> Iterator[None]:
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
