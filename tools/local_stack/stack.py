"""The whole stack on this machine: the emulator with LakeSync deployed on it.

`up`, `down` and `status` are safe to repeat. A folder holds one stack: its records, logs and files.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import re
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import boto3

from tools.local_stack import paths
from tools.local_stack.aws_emulator import (
    Emulator,
    find_emulator,
    launch_emulator,
    stop_emulator,
)
from tools.local_stack.class_archive import start_in_background
from tools.local_stack.deploy import Deployment, architecture, deploy, python_runtime
from tools.local_stack.errors import LocalStackError
from tools.local_stack.pages import stop_pages
from tools.local_stack.processes import read_record, write_record
from tools.local_stack.spark_versions import DEFAULT

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

PORT = 4566
STACK = "lakesync-local"
# The tenant that the demo and the command line use unless another is named.
GATEWAY = "demo"
PARAMETERS: Mapping[str, str] = {
    "Stage": "local",
    "PythonRuntime": python_runtime(),
    "Architecture": architecture(),
    # What actions may reach here: queues that a test or a developer makes.
    "ActionTargets": "arn:aws:sqs:*:*:lakesync-action-*",
    # Databases that a test or a developer has on this machine.
    "DatabaseHosts": "127.0.0.1/32,localhost",
    # There is no EventBridge here.
    "SchemaEventBus": "none",
    # From how many rows on a table of a flow is a job's: so few that a developer sees one.
    "JobBounds": "10000,200000,2000",
}


PLAYED = 3
"""Ports behind a stack's own at which a test or a developer may play a source of connectors."""


def connector_hosts(port: int) -> str:
    """Return where connectors may ask: any public host, and what is played beside the stack."""
    played = (f"http://127.0.0.1:{port + number}" for number in range(1, PLAYED + 1))
    return ",".join(("*", *played))


@dataclass(frozen=True)
class Stack:
    """How to reach a deployed stack; what `stack.json` holds."""

    http: str
    endpoint: str
    region: str
    stack: str
    gateway: str
    jwt_secret: str
    sockets: str = ""
    """Where WebSockets are opened; empty if the application has none."""


def up(
    folder: Path = paths.LOCAL,
    *,
    port: int = PORT,
    stack: str = STACK,
    parameters: Mapping[str, str] | None = None,
    project: Path = paths.ROOT,
) -> Stack:
    """Start the emulator unless it runs, deploy what changed, and write `stack.json`.

    Args:
        folder: Where this stack keeps its records, logs and files.
        port: The emulator's; another is chosen, and shown, when it is taken.
        stack: The name of the CloudFormation stack.
        parameters: Template parameters, over those of every local stack.
        project: The folder with `template.yaml`.

    Raises:
        LocalStackError: with one sentence that says what to do.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with _alone(folder):
        DEFAULT.jars()  # fetched here, where it is seen that it takes time
        start_in_background(folder / "logs" / "spark-classes.log")
        emulator = _emulator(folder, port)
        merged = {
            **PARAMETERS,
            "ConnectorHosts": connector_hosts(emulator.port),
            **(parameters or {}),
        }
        deployment = Deployment(emulator, stack, merged, project)
        reached = _reach(emulator, stack, deploy(deployment))
        write_record(folder / "stack.json", asdict(reached))
        return reached


def down(folder: Path = paths.LOCAL) -> bool:
    """Stop the emulator of `folder` with everything in it, and its pages; whether one ran."""
    with _alone(folder):
        stop_pages(folder)
        stopped = stop_emulator(folder)
        forget(folder)
        return stopped


def forget(folder: Path) -> None:
    """Forget what is deployed on the emulator of `folder`: the next `up` deploys all of it."""
    for name in ("stack.json", "deployed.json"):
        (folder / name).unlink(missing_ok=True)


def status(folder: Path = paths.LOCAL) -> Stack | None:
    """The running stack of `folder`, or None."""
    record = read_record(folder / "stack.json")
    return Stack(**record) if record and find_emulator(folder) else None


def _emulator(folder: Path, port: int) -> Emulator:
    """The emulator of `folder`, started if it does not run. Its state died with the old one."""
    running = find_emulator(folder)
    if running:
        return running
    stop_emulator(folder)
    started = time.monotonic()
    emulator = launch_emulator(port, folder=folder, enforce_iam=True)
    if port not in {0, emulator.port}:
        print(f"emulator: port {port} is taken, using {emulator.port}", flush=True)
    print(f"emulator: ready after {time.monotonic() - started:.1f} s at {emulator.endpoint}")
    return emulator


def _reach(emulator: Emulator, stack: str, outputs: Mapping[str, str]) -> Stack:
    sockets = outputs.get("SocketUrl", "")
    return Stack(
        http=_local_url(emulator, _output(outputs, "HttpUrl")),
        endpoint=emulator.endpoint,
        region=emulator.region,
        stack=stack,
        gateway=GATEWAY,
        jwt_secret=_current_secret(emulator, _output(outputs, "JwtSecretArn")),
        sockets=socket_address(emulator.endpoint, sockets) if sockets else "",
    )


def _output(outputs: Mapping[str, str], name: str) -> str:
    if name not in outputs:
        raise LocalStackError(f"add the output {name} to template.yaml: clients are led by it.")
    return outputs[name]


def _local_url(emulator: Emulator, url: str) -> str:
    """The API's URL on this machine: names under `localhost` do not resolve everywhere."""
    parts = urlsplit(url)
    api_id = (parts.hostname or "").split(".")[0]
    stage = parts.path.strip("/") or "$default"
    return f"{emulator.endpoint}/_aws/execute-api/{api_id}/{stage}"


def socket_address(endpoint: str, output: str) -> str:
    """Where the emulator serves what the stack's output ``SocketUrl`` names: a host in AWS."""
    named = re.fullmatch(r"wss?://(\w+)\.execute-api\..+/(\w+)", output)
    if named is None:
        raise LocalStackError(f"mend the output SocketUrl: {output!r} is no address of sockets.")
    host = endpoint.replace("http://", "ws://")
    return f"{host}/_aws/execute-api/{named[1]}/{named[2]}"


def _current_secret(emulator: Emulator, arn: str) -> str:
    """The signing secret: the string itself, or `current` where it is a document."""
    client = boto3.client("secretsmanager", **emulator.client_options())
    value: str = client.get_secret_value(SecretId=arn)["SecretString"]
    with contextlib.suppress(ValueError):
        document = json.loads(value)
        if isinstance(document, dict) and "current" in document:
            return str(document["current"])
    return value


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "stack.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("waiting for another command on this stack …", flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
