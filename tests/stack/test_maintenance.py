"""Maintenance on the deployed stack: the job by hand and by its state machine, with their roles."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from lakesync.cli.app import app
from lakesync.core.delta import Op
from tests.support.deployed import Tenant, executed

if TYPE_CHECKING:
    from lakesync.cli.aws import Aws
    from tests.support.deployed import Glue
    from tools.local_stack.stack import Stack

EXECUTION_S_MAX = 600
MATERIALISED_S_MAX = 400


def materialised(tenant: Tenant) -> None:
    tenant.flush()
    deadline = time.monotonic() + MATERIALISED_S_MAX
    while tenant.waiting():
        assert time.monotonic() < deadline
        time.sleep(0.5)


def reports(stack: Stack, tenant: Tenant, *words: str) -> list[Any]:
    options = ["--gateway", tenant.gateway, "--stack", stack.stack, "--json"]
    environment = {
        "AWS_ENDPOINT_URL": stack.endpoint,
        "AWS_REGION": stack.region,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
    }
    done = CliRunner().invoke(app, ["lake", *words, *options], env=environment)
    assert done.exit_code == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.law("L17")
def test_dead_rows_are_written_away_and_the_lake_goes_on(
    stack: Stack, aws: Aws, glue: Glue
) -> None:
    tenant = Tenant(stack)
    tenant.push(tenant.make(Op.INSERT, f"r{n}", {"n": n}) for n in range(60))
    materialised(tenant)
    tenant.push(tenant.make(Op.UPDATE, f"r{n}", {"n": -n}) for n in range(20))
    materialised(tenant)
    glue.settle()
    [plan, _] = reports(stack, tenant, "maintain", "--dry-run")
    assert plan["pays"] == ["rewrite files"]

    [report] = reports(stack, tenant, "maintain", "--table", "todos")

    assert [each["outcome"] for each in report["each"]] == ["done", "done"]
    assert report["each"][0]["before"]["dead_rows"] == 20
    [rows, _] = reports(stack, tenant, "status")
    assert (rows["files"], rows["delete files"], rows["dead rows"]) == (1, 0, 0)
    assert tenant.lake_rows() == tenant.expected()

    tenant.push([tenant.make(Op.DELETE, "r59")])
    materialised(tenant)
    assert executed(aws, "MaintainStateMachineArn", EXECUTION_S_MAX)["status"] == "SUCCEEDED"
    assert tenant.lake_rows() == tenant.expected()
