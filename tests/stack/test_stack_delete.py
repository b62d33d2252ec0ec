"""`lakesync stack delete` of the deployed stack itself, with all that the tests before it made.

It comes after everything else, and whoever tests here again deploys anew.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from lakesync.cli import removal
from tests.support.deployed import aws_of
from tools.local_stack.stack import forget

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from lakesync.analysis.connection import Aws
    from tools.local_stack.stack import Stack


def things(aws: Aws) -> dict[str, list[str]]:
    """Return what the account has of the stack, by its kind."""
    name, prefix = aws.stack, aws.output("DatabasePrefix")
    functions = aws.client("lambda").get_paginator("list_functions").paginate()
    secrets = aws.client("secretsmanager").get_paginator("list_secrets").paginate()
    databases = aws.client("glue").get_paginator("get_databases").paginate()
    groups = aws.client("logs").get_paginator("describe_log_groups").paginate()
    every = {
        "functions": [one["FunctionName"] for page in functions for one in page["Functions"]],
        "secrets": [one["Name"] for page in secrets for one in page["SecretList"]],
        "buckets": [one["Name"] for one in aws.client("s3").list_buckets()["Buckets"]],
        "tables": aws.client("dynamodb").list_tables()["TableNames"],
        "log groups": [
            one["logGroupName"].removeprefix("/aws-glue/")
            for page in groups
            for one in page["logGroups"]
        ],
    }
    own = {kind: [one for one in names if one.startswith(name)] for kind, names in every.items()}
    own["databases"] = [
        one["Name"]
        for page in databases
        for one in page["DatabaseList"]
        if one["Name"].startswith(f"{prefix}_")
    ]
    return own


def test_stack_delete_removes_the_stack_and_everything_made_in_it(
    stack: Stack,
    aws: Aws,
    stack_folder: Path,
    lakesync: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = things(aws)
    assert all(before[kind] for kind in ("functions", "buckets", "tables", "log groups"))
    monkeypatch.setattr(removal, "_POLL_S", 0.5)

    lakesync("stack", "delete", stack.stack, "--yes", stack.stack)

    assert things(aws) == {kind: [] for kind in before}
    with pytest.raises(aws.client("cloudformation").exceptions.ClientError, match="not exist"):
        aws.client("cloudformation").describe_stacks(StackName=stack.stack)
    forget(stack_folder)
    aws_of.cache_clear()
