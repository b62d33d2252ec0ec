"""The runbook of docs/operations.md § Restoring from a backup, step by step.

The emulator restores a table as it is and not as it was: so the copy is made first, and what is
pushed after it is what the backup does not hold. Everything else is as it is on AWS.
"""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import httpx
import pytest
from typer.testing import CliRunner

from lakesync.cli.app import app
from lakesync.client import Client
from tests.support.deployed import Tenant, aws_of
from tools.local_stack.stack import up

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from lakesync.analysis.connection import Aws
    from tools.local_stack.stack import Stack


def functions_of(aws: Aws) -> list[str]:
    pages = aws.client("cloudformation").get_paginator("list_stack_resources")
    return [
        resource["PhysicalResourceId"]
        for page in pages.paginate(StackName=aws.stack)
        for resource in page["StackResourceSummaries"]
        if resource["ResourceType"] == "AWS::Lambda::Function"
    ]


@contextmanager
def stopped(aws: Aws) -> Iterator[None]:
    """Steps 1 and 6: no function runs meanwhile."""
    client = aws.client("lambda")
    for name in functions_of(aws):
        client.put_function_concurrency(FunctionName=name, ReservedConcurrentExecutions=0)
    try:
        yield
    finally:
        for name in functions_of(aws):
            client.delete_function_concurrency(FunctionName=name)


@pytest.fixture
def in_use(stack: Stack, stack_folder: Path) -> Iterator[Any]:
    """Step 5: deploy with another table; afterwards the stack has its own again."""

    def use(table: str) -> None:
        up(stack_folder, stack=stack.stack, parameters={"BufferTableName": table})
        aws_of.cache_clear()

    yield use
    use("")


def items_of(aws: Aws, table: str) -> int:
    pages = aws.client("dynamodb").get_paginator("scan").paginate(TableName=table, Select="COUNT")
    return sum(page["Count"] for page in pages)


def rows_of(tenant: Tenant, folder: Path) -> set[str]:
    """Return the rows that a client which begins now reads."""
    name = f"reader-{uuid4().hex[:6]}"
    with (
        tenant.transport(name) as transport,
        Client(folder / f"{name}.db", client_id=name, transport=transport) as reader,
    ):
        reader.sync().unwrap()
        return {str(row["_row_id"]) for row in reader.query("select * from todos").unwrap()}


def restored(table: str, stack_folder: Path) -> list[dict[str, Any]]:
    """Step 3, on the command line."""
    words = ["restored", table, "--json", "--stack-file", str(stack_folder / "stack.json")]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.law("B12")
@pytest.mark.usefixtures("credentials")
def test_restored_table_is_put_in_use_and_clients_push_lost_commits_again(
    tenant: Tenant, stack: Stack, aws: Aws, stack_folder: Path, tmp_path: Path, in_use: Any
) -> None:
    own, table = aws.output("BufferTable"), f"restored-{uuid4().hex[:8]}"
    dynamodb = aws.client("dynamodb")
    with (
        tenant.transport("phone") as transport,
        Client(tmp_path / "phone.db", client_id="phone", transport=transport) as phone,
    ):
        phone.insert("todos", "before", {"n": 1}).unwrap()
        phone.sync().unwrap()
        dynamodb.restore_table_to_point_in_time(
            SourceTableName=own, TargetTableName=table, UseLatestRestorableTime=True
        )
        dynamodb.get_waiter("table_exists").wait(TableName=table)
        phone.insert("todos", "after", {"n": 2}).unwrap()
        phone.sync().unwrap()

        with stopped(aws):
            with pytest.raises(httpx.HTTPStatusError):
                tenant.call("GET", "/health").raise_for_status()
            protected, *begun = restored(table, stack_folder)
            in_use(table)

        assert protected["switchedOn"] == [
            "point-in-time recovery",
            "deletion protection",
            "stream",
        ]
        assert tenant.gateway in {line["gateway"] for line in begun}
        assert aws_of(stack).output("BufferTable") == table
        left_alone = items_of(aws, own)
        assert rows_of(tenant, tmp_path) == {"before"}
        for _ in range(2):
            phone.sync().unwrap()
        assert rows_of(tenant, tmp_path) == {"before", "after"}
    assert items_of(aws, own) == left_alone
    with pytest.raises(dynamodb.exceptions.ClientError, match="protect"):
        dynamodb.delete_table(TableName=table)
