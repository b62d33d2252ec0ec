"""Every route by which administrators change something leaves a record; who may ask each route."""

from __future__ import annotations

import json
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest
from starlette.responses import Response

from lakesync.errors import Unavailable
from lakesync.log.declare import Declare, admitting
from lakesync.ports import AuditQuery
from lakesync.runtime.api import audited, guarded_router
from lakesync.runtime.api.document import Description
from lakesync.runtime.api.open import open_routes
from lakesync.runtime.auth import ALLOWED, ROLES
from tests.compat.requests import row
from tests.support.acting import use_memory_outside
from tests.support.builders import insert
from tests.support.gateways import SeededChance
from tests.support.sources import use_memory_source

if TYPE_CHECKING:
    from starlette.requests import Request

    from lakesync.buffer.admin_stores import ItemAudit
    from lakesync.ports import AuditRecord
    from tests.compat.requests import Asker

HUSH = "a secret that no record may hold"
SCHEMA = {"table": "todos", "columns": [{"name": "title", "type": "string"}]}
RULES = {"buckets": [{"name": "all", "tables": ["todos"], "filters": []}]}
SHOP = {"type": "memory", "name": "shop", "configuration": {"token": HUSH}}
MAIL = {"type": "memory", "name": "mail", "configuration": {"token": HUSH}}
WAREHOUSE = {"kind": "postgres", "secret": "warehouse", "tables": ["todos"]}
ITEMS = {
    "name": "items",
    "source": {"connector": "memory", "configuration": {"token": HUSH}},
    "destination": "gateway",
}
CLOSE = {"disconnect": {"client": "p1"}}
CHANGES: list[tuple[str, str, str, Any, str]] = [
    ("registerSchema", "POST", "/admin/schema/{}", SCHEMA, "todos"),
    ("saveSyncRules", "POST", "/admin/sync-rules/{}", RULES, ""),
    ("placeTable", "POST", "/admin/tables/{}", {"table": "todos", "shard": "s2"}, "todos"),
    ("removeTable", "DELETE", "/admin/tables/{}/scratch", None, "scratch"),
    ("changeAccess", "POST", "/admin/access/{}", {"revoke": {"client": "p1"}}, "client p1"),
    (
        "disconnectClient",
        "POST",
        "/admin/clients/{}",
        {"disconnect": {"client": "p1"}},
        "client p1",
    ),
    ("registerConnector", "POST", "/admin/connectors/{}", SHOP, "shop"),
    ("changeConnector", "POST", "/admin/connectors/{}/shop", {"do": "pause"}, "shop"),
    ("removeConnector", "DELETE", "/admin/connectors/{}/shop", None, "shop"),
    ("registerActionHandler", "POST", "/admin/actions/{}", MAIL, "mail"),
    ("removeActionHandler", "DELETE", "/admin/actions/{}/mail", None, "mail"),
    ("declareDestination", "POST", "/admin/destinations/{}/wh", WAREHOUSE, "wh"),
    ("changeDestination", "POST", "/admin/destinations/{}/wh/pause", {}, "wh pause"),
    ("removeDestination", "DELETE", "/admin/destinations/{}/wh", None, "wh"),
    ("declareFlow", "POST", "/admin/flows/{}", ITEMS, "items"),
    ("changeFlow", "POST", "/admin/flows/{}/items/pause", {}, "items pause"),
    ("removeFlow", "DELETE", "/admin/flows/{}/items", None, "items"),
    ("flush", "POST", "/admin/flush/{}", {}, ""),
    ("saveFlushing", "POST", "/admin/flushing/{}", {"everyS": 600}, ""),
    ("deleteGateway", "DELETE", "/admin/gateways/{}", None, ""),
]
"""One good request for each route that changes something, in an order in which each is."""
STATELESS = {"flush", "disconnectClient"}
"""What has nothing to show before or after: nothing was pushed, nobody is connected."""


@pytest.fixture(autouse=True)
def outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the connector and the action handler of these tests reach."""
    use_memory_source(monkeypatch)
    use_memory_outside(monkeypatch)


@cache
def operations() -> dict[str, tuple[str, str]]:
    """Return every operation that the API's description names: its method and its address."""
    document = Description(open_routes("wss://sockets.example/live")).document
    return {
        str(about["operationId"]): (method.upper(), path)
        for path, methods in document["paths"].items()
        for method, about in methods.items()
    }


def store(gateway: Asker) -> ItemAudit:
    return gateway.served.audit


def records(gateway: Asker, **query: Any) -> list[AuditRecord]:
    return store(gateway).records(gateway.id, AuditQuery(**query))[0]


def declare_without_rows(gateway: Asker, table: str) -> None:
    """Declare a table as a push does that dies before its commit."""
    Declare(
        gateway.served.buffer, wall_clock=lambda: 0, sleep_ms=lambda _: None, chance=SeededChance()
    )(gateway.id, lambda config: admitting(config, None, [insert(table=table)]))


@pytest.mark.law("J1")
def test_every_admin_route_that_changes_something_is_in_the_list_of_changes() -> None:
    changing = {
        name
        for name, (method, path) in operations().items()
        if path.startswith("/admin/") and method != "GET"
    }
    assert changing == {name for name, *_ in CHANGES}


@pytest.mark.law("J1", "J2")
def test_each_change_leaves_one_record_with_the_state_before_and_after(gateway: Asker) -> None:
    for name, method, path, body, target in CHANGES:
        if name == "removeTable":
            declare_without_rows(gateway, target)
        answer = gateway.ask(method, path, json=body, role="admin", client="ann")
        assert answer.status_code == 200, (name, answer.text)
        latest = records(gateway)[0]
        assert (latest.operation, latest.target, latest.outcome) == (name, target, "done"), name
        assert (latest.user, latest.role) == ("ann", "admin")
        assert latest.request == answer.headers["x-request-id"]
        assert name in STATELESS or latest.before != latest.after, name
        assert latest.ended_ms >= latest.at_ms > 0
    every = records(gateway)
    assert [each.operation for each in reversed(every)] == [name for name, *_ in CHANGES]
    assert HUSH not in str(every)


@pytest.mark.law("J1")
def test_reads_and_pushes_leave_no_audit_record(gateway: Asker) -> None:
    gateway.push()
    for path in ("metrics", "audit", "schema", "sync-rules", "tables", "access", "connectors"):
        assert gateway.ask("GET", f"/admin/{path}/{{}}", role="admin").status_code == 200
    assert records(gateway) == []


@pytest.mark.law("J1")
def test_change_is_refused_if_its_audit_record_cannot_be_begun(
    gateway: Asker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object) -> None:
        raise Unavailable("the records are away")

    with monkeypatch.context() as patch:
        patch.setattr(store(gateway), "begin", away)
        answer = gateway.administer("schema", SCHEMA)
        assert (answer.status_code, answer.json()["code"]) == (503, "UNAVAILABLE")
    shown = gateway.ask("GET", "/admin/schema/{}", role="admin").json()
    assert (shown["tables"], records(gateway)) == ([], [])


@pytest.mark.law("J1")
def test_change_whose_outcome_could_not_be_recorded_stays_begun(
    gateway: Asker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object) -> None:
        raise Unavailable("the records are away")

    with monkeypatch.context() as patch:
        patch.setattr(store(gateway), "end", away)
        assert gateway.administer("schema", SCHEMA).status_code == 200
    (record,) = records(gateway)
    assert (record.operation, record.outcome, record.after) == ("registerSchema", "begun", "")
    shown = gateway.ask("GET", "/admin/audit/{}", role="operator").json()["records"]
    assert "after" not in shown[0]
    assert gateway.administer("schema", SCHEMA).status_code == 200
    assert [each.outcome.value for each in records(gateway)] == ["done", "begun"]


@pytest.mark.law("J2")
def test_refused_and_dry_run_changes_are_recorded_as_such(gateway: Asker) -> None:
    gateway.administer("schema", {"table": "todos", "columns": "none"})
    gateway.administer("tables", {"table": "todos", "shard": "s2", "dryRun": True})
    gateway.ask("POST", "/admin/sync-rules/{}?dryRun=true", json=RULES, role="admin")
    gateway.ask("DELETE", "/admin/connectors/{}/none", role="admin")
    gateway.ask("DELETE", "/admin/connectors/{}/shop?dryRun=true", role="admin")
    gateway.ask("POST", "/admin/access/{}", content=b"\xff{", role="admin")

    latest = records(gateway)
    assert [(each.operation, each.outcome.value, each.code) for each in reversed(latest)] == [
        ("registerSchema", "refused", "VALIDATION_ERROR"),
        ("placeTable", "tried", ""),
        ("saveSyncRules", "tried", ""),
        ("removeConnector", "refused", "NOT_FOUND"),
        ("removeConnector", "refused", "VALIDATION_ERROR"),
        ("changeAccess", "refused", "VALIDATION_ERROR"),
    ]
    assert all(each.before == each.after for each in latest)


@pytest.mark.law("J2")
def test_large_state_is_recorded_as_its_digest_and_size(gateway: Asker) -> None:
    columns = [{"name": f"column_{n}", "type": "string"} for n in range(200)]
    assert gateway.administer("schema", {"table": "wide", "columns": columns}).status_code == 200

    state = json.loads(records(gateway)[0].after)
    assert state.keys() == {"sha256", "bytes"}
    assert state["bytes"] > 4_096


@pytest.mark.law("J3")
def test_audit_records_are_paged_and_filtered_over_http(gateway: Asker) -> None:
    for number in range(5):
        user = "ann" if number % 2 else "bob"
        body = {"revoke": {"client": f"p{number}"}}
        gateway.ask("POST", "/admin/access/{}", json=body, role="admin", client=user)
    gateway.administer("flush", {})

    targets, cursor = [], ""
    while True:
        asked = {"operation": "changeAccess", "limit": "2"} | ({"cursor": cursor} if cursor else {})
        page = gateway.ask("GET", "/admin/audit/{}", params=asked, role="operator").json()
        targets += [each["target"] for each in page["records"]]
        cursor = page.get("next")
        if not cursor:
            break
    assert targets == [f"client p{number}" for number in (4, 3, 2, 1, 0)]
    asked = {"who": "ann", "since": "2020-01-01"}
    by_ann = gateway.ask("GET", "/admin/audit/{}", params=asked, role="admin").json()["records"]
    assert [each["target"] for each in by_ann] == ["client p3", "client p1"]
    past = gateway.ask("GET", "/admin/audit/{}", params={"until": "2020-01-01"}, role="admin")
    assert past.json() == {"records": []}


@pytest.mark.parametrize(
    ("name", "value"),
    [("since", "soon"), ("until", "1900-01-01"), ("cursor", "%%"), ("cursor", "bm9uZQ=="),
     ("limit", "0"), ("limit", "201"), ("since", "9999-12-31T23:59:59+00:00")],
)  # fmt: skip
def test_malformed_audit_query_is_a_400_with_the_name_of_the_parameter(
    gateway: Asker, name: str, value: str
) -> None:
    answer = gateway.ask("GET", "/admin/audit/{}", params={name: value}, role="admin")
    assert (answer.status_code, answer.json()["code"]) == (400, "VALIDATION_ERROR")
    assert answer.json()["field"] == name


@pytest.mark.law("J3")
def test_audit_records_outlive_their_gateway(gateway: Asker) -> None:
    gateway.push(row())
    gateway.ask("DELETE", "/admin/gateways/{}", role="admin", client="ann")

    answer = gateway.ask("GET", "/admin/audit/{}", role="admin")
    (record,) = answer.json()["records"]
    assert (record["operation"], record["who"]) == ("deleteGateway", "ann")
    assert (record["before"], record["after"]) == ({"deleted": False}, {"deleted": True})


# --- roles ----------------------------------------------------------------------------------------

OPEN = {"health", "connectorTypes", "takeWebhook"}
"""What needs no token; a webhook is signed."""
FILLED = {"{gateway}": "{}", "{name}": "none", "{action}": "pause"}


@pytest.mark.law("U6")
def test_every_route_declares_its_roles() -> None:
    assert set(operations()) - OPEN == set(ALLOWED) - {"connect"}
    for name, (method, path) in operations().items():
        if name in OPEN:
            continue
        assert "admin" in ALLOWED[name]
        if path.startswith("/sync/"):
            assert ALLOWED[name] == ("client", "admin"), name
        if path.startswith("/admin/"):
            assert "client" not in ALLOWED[name], name
            assert method == "GET" or ALLOWED[name] == ("admin",), name


@pytest.mark.law("U6")
@pytest.mark.parametrize("role", ROLES)
def test_each_role_may_ask_only_its_own_routes(gateway: Asker, role: str) -> None:
    for name, (method, path) in operations().items():
        if name in OPEN:
            continue
        address = path
        for part, text in FILLED.items():
            address = address.replace(part, text)
        answer = gateway.ask(method, address, role=role, json={} if method == "POST" else None)
        is_refused = answer.status_code == 403 and answer.json()["code"] == "FORBIDDEN"
        assert is_refused == (role not in ALLOWED[name]), (name, answer.text)
        if is_refused:
            assert " or ".join(ALLOWED[name]) in answer.json()["error"]
    if role != "admin":
        assert records(gateway) == []


@pytest.mark.law("U6", "J1")
def test_route_without_roles_or_an_audit_record_cannot_be_registered() -> None:
    async def route(request: Request) -> Response:
        return Response(str(request.url))

    router = guarded_router()
    with pytest.raises(TypeError, match="does not say who may ask"):
        router.get("/sync/{gateway}/new", operation_id="new")(route)
    with pytest.raises(TypeError, match="mark it `audited`"):
        router.post("/admin/flush/{gateway}", operation_id="flush")(route)
    router.post("/admin/flush/{gateway}", operation_id="flush")(
        audited(lambda _: ("", None))(route)
    )
