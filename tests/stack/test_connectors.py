"""A connector on the deployed stack: a database's rows arrive in a client's pull."""

from __future__ import annotations

import hashlib
import hmac
import json
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import boto3
import httpx
import pytest

from lakesync.runtime.polls import schedule_name
from tests.support.deployed import Tenant, changes_reported, look_again
from tests.support.some import some
from tests.support.sources import SqlSource
from tests.support.vendors.jira import EMAIL, TOKEN, JiraServer
from tests.support.vendors.salesforce import (
    CLIENT_ID,
    CLIENT_SECRET,
    FIELDS,
    SalesforceServer,
)
from tests.support.waiting import PATIENCE_S, answered

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tools.local_stack.databases import Database
    from tools.local_stack.stack import Stack


@pytest.fixture
def source(postgres: Database) -> Iterator[SqlSource]:
    table = SqlSource(postgres, "postgres", by_time=False)
    yield table
    table.close()


def rows_of(tenant: Tenant, table: str, column: str) -> dict[str, Any]:
    """Return one column of a table's rows, as a client has them."""
    pulled = tenant.call(
        "GET", f"/sync/{tenant.gateway}/pull?since=0&limit=1000&fresh=true",
        token=tenant.token("phone"),
    ).json()  # fmt: skip
    values: dict[str, Any] = {}
    for delta in pulled["deltas"]:
        if delta["table"] == table:
            columns = {each["column"]: each["value"] for each in delta["columns"]}
            values[delta["rowId"]] = columns.get(column)
    return {row_id: value for row_id, value in values.items() if value is not None}


def removed(tenant: Tenant, path: str, token: str) -> None:
    """Remove a connector, once it is not being polled."""
    answered(
        lambda: tenant.call("DELETE", path, token=token),
        lambda answer: answer.status_code == 200,
    )


@pytest.mark.law("N1", "N8")
def test_rows_of_a_postgres_connector_are_pulled_by_a_client(
    stack: Stack, source: SqlSource, postgres: Database
) -> None:
    tenant = Tenant(stack)
    admin = tenant.token("ops", role="admin")
    path = f"/admin/connectors/{tenant.gateway}"
    settings = {
        "host": postgres.host, "port": postgres.port, "database": postgres.database,
        "user": postgres.user, "password": postgres.password, "tls": "off",
        "tables": [{"name": source.table, "as": "orders"}],
    }  # fmt: skip
    body = {"type": "postgres", "name": "shop", "configuration": settings, "everyMinutes": 1_440}
    source.put({"1": "one", "2": "two"})

    added = tenant.call("POST", path, token=admin, json=body)
    assert (added.status_code, added.json().get("registered")) == (200, True), added.text
    assert tenant.call("POST", path, token=admin, json=body).status_code == 409
    scheduler: Any = boto3.client(
        "scheduler", endpoint_url=stack.endpoint, region_name=stack.region,
        aws_access_key_id="test", aws_secret_access_key="test",
    )  # fmt: skip
    schedules = [each["Name"] for each in scheduler.list_schedules()["Schedules"]]
    assert schedule_name(tenant.gateway, "shop") in schedules

    def rows() -> dict[str, Any]:
        return rows_of(tenant, "orders", "value")

    def run() -> None:
        done = tenant.call("POST", f"{path}/shop", token=admin, json={"do": "run"})
        assert done.status_code == 200, done.text

    run()
    answered(rows, lambda shown: shown == {"1": "one", "2": "two"})
    source.put({"2": "other", "3": "three"})
    source.delete("1")
    answered(
        lambda: tenant.call("GET", f"{path}/shop", token=admin).json(),
        lambda shown: shown["polls"] >= 1 and not shown["isReading"],
    )
    run()
    answered(rows, lambda shown: shown == {"2": "other", "3": "three"})
    shown = tenant.call("GET", f"{path}/shop", token=admin)
    assert "password" not in shown.json()["configuration"]
    assert "lastError" not in shown.json(), shown.text

    removed(tenant, f"{path}/shop", admin)
    assert tenant.call("GET", f"{path}/shop", token=admin).status_code == 404
    schedules = [each["Name"] for each in scheduler.list_schedules()["Schedules"]]
    assert schedule_name(tenant.gateway, "shop") not in schedules


class Site(JiraServer):
    """Jira, where the stack's connectors may ask."""


class Org(SalesforceServer):
    """Salesforce, where the stack's connectors may ask."""


@pytest.mark.law("N10", "N11", "N12")
def test_rows_of_jira_salesforce_and_capture_connectors_are_pulled_by_a_client(
    stack: Stack, source: SqlSource, postgres: Database
) -> None:
    Site.port = (urlsplit(stack.endpoint).port or 0) + 1
    Org.port = Site.port + 1
    tenant = Tenant(stack)
    admin = tenant.token("ops", role="admin")
    path = f"/admin/connectors/{tenant.gateway}"
    source.put({"1": "one", "2": "two"})
    with Site() as site, Org() as org:
        site.put({"10001": "broken"})
        org.put({"1": "Acme"})
        registered = {
            "tickets": ("jira", {
                "site": site.url, "email": EMAIL, "apiToken": TOKEN, "reconcileMinutes": 0,
                "tables": [{"name": "issues", "as": "tickets"}],
            }),
            "crm": ("salesforce", {
                "instance": org.url, "clientId": CLIENT_ID, "clientSecret": CLIENT_SECRET,
                "tables": [{"name": org.table, "as": "accounts"}],
            }),
            "shop": ("postgres", {
                "host": postgres.host, "port": postgres.port, "database": postgres.database,
                "user": postgres.user, "password": postgres.password, "tls": "off",
                "changes": True, "tables": [{"name": source.table, "as": "orders"}],
            }),
        }  # fmt: skip
        try:
            for name, (kind, settings) in some(registered.items()):
                body = {"type": kind, "name": name, "configuration": settings}
                added = tenant.call("POST", path, token=admin, json=body | {"everyMinutes": 1_440})
                assert added.status_code == 200, added.text

            def run() -> None:
                for name in some(registered):
                    done = tenant.call("POST", f"{path}/{name}", token=admin, json={"do": "run"})
                    assert done.status_code == 200, done.text

            def seen() -> dict[str, Any]:
                return {
                    "tickets": rows_of(tenant, "tickets", "summary"),
                    "accounts": rows_of(tenant, "accounts", "Name"),
                    "orders": rows_of(tenant, "orders", "value"),
                }

            def at_rest(name: str) -> dict[str, Any]:
                shown = tenant.call("GET", f"{path}/{name}", token=admin).json()
                assert "lastError" not in shown, shown
                return dict(shown)

            run()
            answered(seen, lambda shown: shown == {
                "tickets": {"10001": "broken"}, "accounts": {"1": "Acme"},
                "orders": {"1": "one", "2": "two"},
            })  # fmt: skip
            for name in registered:
                answered(
                    lambda name=name: at_rest(name),  # type: ignore[misc]
                    lambda shown: shown["polls"] >= 1 and not shown["isReading"],
                )
            site.put({"10001": "mended", "10002": "new"})
            org.delete("1")
            org.put({"2": "Zenith"})
            source.put({"2": "other"})
            source.delete("1")
            org.objects[org.table].fields = {**FIELDS, "Phone": "string"}
            look_again(tenant, "crm")
            run()
            answered(seen, lambda shown: shown == {
                "tickets": {"10001": "mended", "10002": "new"}, "accounts": {"2": "Zenith"},
                "orders": {"2": "other"},
            })  # fmt: skip
            assert changes_reported(tenant) == [("crm", "Phone", "is new: string")]
        finally:
            for name in registered:
                removed(tenant, f"{path}/{name}", admin)


@pytest.mark.law("N14")
def test_signed_webhook_is_applied_once_and_one_with_a_wrong_signature_is_refused(
    stack: Stack,
) -> None:
    tenant = Tenant(stack)
    secret = "a secret of sixteen"
    settings = {
        "site": "https://acme.atlassian.net", "email": "bot@example.com", "apiToken": "t",
        "webhookSecret": secret,
    }  # fmt: skip
    body = {"type": "jira", "name": "tickets", "configuration": settings, "check": False}
    added = tenant.call(
        "POST", f"/admin/connectors/{tenant.gateway}", token=tenant.token("ops", role="admin"),
        json=body | {"everyMinutes": 1_440},
    )  # fmt: skip
    assert added.status_code == 200, added.text
    event = json.dumps({
        "timestamp": time.time_ns() // 1_000_000, "webhookEvent": "jira:issue_deleted",
        "issue": {"id": "10042", "key": "ACME-42"},
    }).encode()  # fmt: skip
    url = f"{stack.http}/connectors/{tenant.gateway}/tickets/webhook"

    def send(key: str) -> httpx.Response:
        digest = hmac.new(key.encode(), event, hashlib.sha256).hexdigest()
        headers = {"x-hub-signature": f"sha256={digest}"}
        return httpx.post(url, content=event, headers=headers, timeout=PATIENCE_S)

    refused = send("another secret of theirs")
    assert (refused.status_code, refused.json()["code"]) == (401, "AUTH_ERROR")
    first, second = send(secret), send(secret)
    assert first.json() == {"accepted": 1, "repeated": False}
    assert second.json() == {"accepted": 0, "repeated": True}
    pulled = tenant.call(
        "GET", f"/sync/{tenant.gateway}/pull?since=0&limit=10&fresh=true",
        token=tenant.token("phone"),
    ).json()  # fmt: skip
    assert [(each["op"], each["rowId"]) for each in pulled["deltas"]] == [("DELETE", "10042")]
