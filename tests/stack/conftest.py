"""One deployed stack for all tests here: its own folder, its own port, IAM enforced.

``make test`` deploys it before; otherwise the first test does. It is left running for the next, but
for the last test of all, which deletes it.
"""

from __future__ import annotations

import json
import os
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import botocore.session
import pytest
from typer.testing import CliRunner

from lakesync.cli.app import app
from tests.support.deployed import Glue, Tenant, aws_of
from tools.local_stack import paths
from tools.local_stack.stack import Stack, socket_address, status, up

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lakesync.analysis.connection import Aws

FOLDER = paths.LOCAL / "test-stack"
PORT = 4576
NAME = "lakesync-test"


FIRST = "test_maintenance.py"
"""It maintains the whole lake, which takes the longer the more tables other tests left there."""
LAST = ("test_calls.py", "test_stack_delete.py")
"""They read the record of the calls that all others caused, and delete the stack."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark everything here, so that `-m "not stack"` leaves it out; what is to come first does."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.stack)
    last = {here / name: place for place, name in enumerate(LAST, 1)}
    items.sort(key=lambda item: (last.get(item.path, 0), item.path != here / FIRST))


@pytest.fixture(scope="session", autouse=True)
def descriptions_of_services() -> Iterator[None]:
    """Read AWS's descriptions of its services once, not for every session of boto3 that is made."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(botocore.session, "create_loader", cache(botocore.session.create_loader))
        yield


@pytest.fixture(scope="session")
def stack_folder() -> Path:
    """Where the deployed stack keeps its records."""
    named = os.environ.get("LAKESYNC_STACK_JSON")
    return Path(named).parent if named else FOLDER


@pytest.fixture(scope="session")
def stack(stack_folder: Path) -> Stack:
    return status(stack_folder) or up(stack_folder, port=PORT, stack=NAME)


@pytest.fixture(scope="session")
def aws(stack: Stack) -> Aws:
    return aws_of(stack)


@pytest.fixture(scope="session")
def socket_url(aws: Aws, stack: Stack) -> str:
    """Where the emulator serves what the stack's output names."""
    return socket_address(stack.endpoint, aws.output("SocketUrl"))


@pytest.fixture(scope="session")
def glue(aws: Aws) -> Glue:
    return Glue(aws)


@pytest.fixture
def tenant(stack: Stack) -> Tenant:
    """A tenant that nobody else uses."""
    return Tenant(stack)


@pytest.fixture
def lakesync(stack: Stack, stack_folder: Path) -> Callable[..., Any]:
    """Run the command line against the stack; returns its JSON."""
    where = ["--json", "--stack-file", str(stack_folder / "stack.json")]

    def run(*words: str) -> Any:
        done = CliRunner().invoke(app, [*words, *where])
        assert done.stdout, done.stderr
        return json.loads(done.stdout)

    return run


@pytest.fixture(scope="session")
def credentials() -> Iterator[None]:
    """What the emulator takes from the deployed code when it runs in this process."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            patch.setenv(name, "test")
        patch.setenv("AWS_REGION", "us-east-1")
        yield


@contextmanager
def paused(aws: Aws, function: str) -> Iterator[None]:
    client = aws.client("lambda")
    listed = client.list_event_source_mappings(FunctionName=aws.output(function))
    mappings = [mapping["UUID"] for mapping in listed["EventSourceMappings"]]
    for mapping in mappings:
        client.update_event_source_mapping(UUID=mapping, Enabled=False)
    try:
        yield
    finally:
        for mapping in mappings:
            client.update_event_source_mapping(UUID=mapping, Enabled=True)


@pytest.fixture(scope="module")
def by_hand(aws: Aws, glue: Glue) -> Iterator[None]:
    """Announcements start no runs meanwhile: the test decides which run sees what."""
    with paused(aws, "MaterialiseFunction"):
        glue.settle()
        yield
        aws.client("sqs").purge_queue(QueueUrl=aws.output("AnnounceQueueUrl"))


@pytest.fixture
def lake_left_alone(aws: Aws) -> Iterator[None]:
    """Let announcements start no runs meanwhile: the next run of all takes what was flushed."""
    with paused(aws, "MaterialiseFunction"):
        yield
        aws.client("sqs").purge_queue(QueueUrl=aws.output("AnnounceQueueUrl"))


@pytest.fixture
def flush_paused(aws: Aws) -> Iterator[None]:
    with paused(aws, "FlushFunction"):
        yield
