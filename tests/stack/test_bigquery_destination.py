"""BigQuery as a destination of the deployed stack, which asks an emulator by the URL's endpoint."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from lakesync.core.delta import Op
from tests.stack.test_destinations import SCHEMA, push, until
from tests.support.bigquery import DATASET, bigquery_destination
from tests.support.deployed import Tenant

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lakesync.analysis.connection import Aws
    from tests.support.bigquery import BigQueryDestination
    from tools.local_stack.bigquery import BigQueryServer
    from tools.local_stack.stack import Stack

LOOKS_EVERY_S = 1.5
"""What is gathered takes a minute, and a look at the emulator a tenth of a second."""


@pytest.fixture
def dataset(bigquery: BigQueryServer) -> Iterator[BigQueryDestination]:
    dataset = bigquery_destination(bigquery)
    yield dataset
    dataset.close()


@pytest.mark.law("D7", "D8", "D15")
@pytest.mark.usefixtures("lake_left_alone")
def test_rows_and_later_changes_arrive_in_bigquery(
    stack: Stack, aws: Aws, bigquery: BigQueryServer, dataset: BigQueryDestination
) -> None:
    tenant = Tenant(stack)
    admin = tenant.token("ops", role="admin")
    typed = SCHEMA | {"sourceTable": f"todos_{tenant.gateway.replace('-', '_')}"}
    secret = f"{aws.output('DestinationSecretPrefix')}{tenant.gateway}/analytics"
    url = f"bigquery://{bigquery.project}/{DATASET}?endpoint={bigquery.endpoint}"
    aws.client("secretsmanager").create_secret(Name=secret, SecretString=json.dumps({"url": url}))
    path = f"/admin/destinations/{tenant.gateway}"

    def ask(method: str, at: str, body: object = None) -> Any:
        answer = tenant.call(method, at, token=admin, json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def rows() -> dict[str, tuple[Any, ...]]:
        table = str(typed["sourceTable"])
        return dataset.rows(table, "n") if dataset.jobs.columns(table) else {}

    ask("POST", f"/admin/schema/{tenant.gateway}", typed)
    tenant.push([tenant.make(Op.INSERT, "before", {"n": 0})])
    ask("POST", f"{path}/analytics", {"kind": "bigquery", "secret": "analytics"})
    push(tenant, {"a": 1})
    until(rows, {"before": (0,), "a": (1,)}, LOOKS_EVERY_S)

    # What follows is gathered, and asked for here: a backfill waits for nothing.
    push(tenant, {"a": 2}, Op.UPDATE)
    push(tenant, {"b": 3})
    [report] = ask("GET", path)["destinations"]
    assert (report["kind"], report["deadLetters"]) == ("bigquery", 0)
    assert not [each["error"] for each in report["tablesDelivered"] if each["error"]]
    ask("POST", f"{path}/analytics/backfill", {})
    until(rows, {"before": (0,), "a": (2,), "b": (3,)}, LOOKS_EVERY_S)
    aws.client("secretsmanager").delete_secret(SecretId=secret, ForceDeleteWithoutRecovery=True)
