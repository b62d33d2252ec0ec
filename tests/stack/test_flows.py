"""Polled flows on the deployed stack: declared by the API, carried out by the state machine."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

from lakesync.runtime.polls import schedule_name
from tests.stack.test_connectors import rows_of
from tests.support.deployed import executed, polls_ended
from tests.support.destinations import (
    SqlDestination,
    mariadb_dialect,
    mariadb_url,
)
from tests.support.sources import SqlSource
from tests.support.waiting import answered

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lakesync.analysis.connection import Aws
    from tests.support.deployed import Tenant
    from tools.local_stack.databases import Database


@dataclass
class Flows:
    """The flows of a tenant, as an administrator sees them."""

    tenant: Tenant
    aws: Aws
    lakesync: Callable[..., Any]

    def ask(self, method: str, path: str = "", body: object = None) -> dict[str, Any]:
        answer = self.tenant.call(
            method, f"/admin/flows/{self.tenant.gateway}{path}",
            token=self.tenant.token("ops", role="admin"), json=body,
        )  # fmt: skip
        assert answer.status_code == 200, answer.text
        answered: dict[str, Any] = answer.json()
        return answered

    def declare(self, body: dict[str, Any]) -> None:
        """Declare a flow, and wait for the end of the poll with which it begins."""
        self.ask("POST", "", body)
        polls_ended(self.tenant, body["name"])

    def status(self, name: str) -> dict[str, Any]:
        """Return how a flow goes, as the command line shows it."""
        words = ("flows", "status", name, "--gateway", self.tenant.gateway)
        shown: dict[str, Any] = self.lakesync(*words)
        assert shown["source"]["configuration"].keys() >= {"host", "tables"}
        assert "password" not in json.dumps(shown)
        return shown

    def schedule(self, name: str) -> str:
        """Return the state of what starts its polls; empty if there is no schedule."""
        schedules = self.aws.client("scheduler").list_schedules()["Schedules"]
        wanted = schedule_name(self.tenant.gateway, name)
        return next((one["State"] for one in schedules if one["Name"] == wanted), "")

    def poll(self, name: str) -> None:
        given = {"gateway": self.tenant.gateway, "name": name}
        done = executed(self.aws, "PollStateMachineArn", given)
        assert done["status"] == "SUCCEEDED", done

    def run(self, name: str) -> None:
        """Have the state machine poll it, and wait for the end of that poll."""
        before = self.status(name)["polls"]
        self.ask("POST", f"/{name}/run", {})
        shown = answered(lambda: self.status(name), lambda shown: shown["polls"] > before)
        assert "lastError" not in shown, shown


@pytest.fixture
def flows(tenant: Tenant, aws: Aws, lakesync: Callable[..., Any]) -> Flows:
    """Flows of a tenant that nobody else uses."""
    return Flows(tenant, aws, lakesync)


@pytest.fixture
def source(postgres: Database) -> Iterator[SqlSource]:
    table = SqlSource(postgres, "postgres", by_time=False)
    yield table
    table.close()


def declared(name: str, source: SqlSource, postgres: Database, to: object) -> dict[str, Any]:
    """Return a flow from the table, read by difference, whose values from n on stay behind."""
    settings = {
        "host": postgres.host, "port": postgres.port, "database": postgres.database,
        "user": postgres.user, "password": postgres.password, "tls": "off",
        "tables": [{"name": source.table, "as": source.table}],
    }  # fmt: skip
    rules = [{"column": "value", "op": "lt", "value": "n"}]
    return {
        "name": name,
        "source": {"connector": "postgres", "configuration": settings},
        "destination": to,
        "filter": [{"name": "some", "tables": [source.table], "filters": rules}],
        "map": {source.table: {"rename": {"value": "label"}}},
        "schedule": {"everyMinutes": 1_440},
    }


def lives(flows: Flows, source: SqlSource, name: str, rows: Any) -> None:
    """Run a flow, pause it, resume it, and end it; ``rows`` gives what is where it goes."""
    assert (flows.status(name)["polls"], flows.schedule(name)) == (1, "ENABLED")
    source.put({"1": "a", "2": "b", "3": "z"})
    flows.run(name)
    answered(rows, lambda shown: shown == {"1": "a", "2": "b"})

    source.put({"2": "x", "3": "c"})
    source.delete("1")
    flows.ask("POST", f"/{name}/pause", {})
    assert flows.schedule(name) == "DISABLED"
    refused = flows.tenant.call(
        "POST", f"/admin/flows/{flows.tenant.gateway}/{name}/run",
        token=flows.tenant.token("ops", role="admin"), json={},
    )  # fmt: skip
    assert refused.status_code == 409, refused.text
    flows.poll(name)
    shown = flows.status(name)
    assert (shown["state"], shown["polls"], shown["rows"]) == ("paused", 2, 2), shown
    assert rows() == {"1": "a", "2": "b"}

    flows.ask("POST", f"/{name}/resume", {})
    flows.poll(name)
    assert rows() == {"3": "c"}
    shown = flows.status(name)
    assert (shown["state"], shown["polls"], shown["deadLetters"]) == ("current", 3, 0), shown
    assert flows.schedule(name) == "ENABLED"

    assert flows.ask("DELETE", f"/{name}")["removed"] == name
    assert (flows.ask("GET")["flows"], flows.schedule(name)) == ([], "")
    assert rows() == {"3": "c"}


@pytest.mark.law("Y1", "Y2", "Y5", "Y7", "Y10")
def test_flow_from_postgres_to_the_gateway_runs_pauses_and_is_deleted(
    flows: Flows, source: SqlSource, postgres: Database
) -> None:
    flows.declare(declared("orders", source, postgres, "gateway"))

    def rows() -> dict[str, Any]:
        return rows_of(flows.tenant, source.table, "label")

    lives(flows, source, "orders", rows)


@pytest.mark.law("Y1", "Y2", "Y5", "Y7", "Y10")
def test_flow_from_postgres_to_mariadb_runs_and_a_second_flow_reads_its_destination(
    flows: Flows, source: SqlSource, postgres: Database, mariadb: Database
) -> None:
    destination, secret = SqlDestination(mariadb_dialect(mariadb)), f"warehouse{uuid4().hex[:6]}"
    gateway, prefix = flows.tenant.gateway, flows.aws.output("DestinationSecretPrefix")
    flows.aws.client("secretsmanager").create_secret(
        Name=f"{prefix}{gateway}/{secret}",
        SecretString=mariadb_url(mariadb),
    )
    to = {"database": "mysql", "secret": secret, "deletes": "hard"}
    flows.declare(declared("orders", source, postgres, to))

    def rows() -> dict[str, Any]:
        if not destination.columns(source.table):
            return {}
        return {
            row_id: value for row_id, (value,) in destination.rows(source.table, "label").items()
        }

    try:
        lives(flows, source, "orders", rows)
    finally:
        destination.close()

    back = {
        "name": "back",
        "source": {"database": "mysql", "secret": secret, "gateway": f"{gateway}/orders"},
        "tables": [source.table],
        "destination": "gateway",
        "continuous": True,
    }
    [counted] = flows.ask("POST", "?dryRun=true", back)["tables"]
    assert (counted["table"], counted["rows"]) == (source.table, 1), counted
    assert flows.ask("GET")["flows"] == [], "a plan saves nothing"
    flows.declare(back)
    assert rows_of(flows.tenant, source.table, "label") == {"3": "c"}
    flows.ask("DELETE", "/back")
