"""Who uses a gateway: listed, paged, disconnected; over HTTP and by the command line."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

from lakesync.ports import AuditQuery, Connection, Revocation
from tests.compat.requests import row

if TYPE_CHECKING:
    from tests.compat.requests import Asker


def connect(gateway: Asker, client_id: str, name: str, expires_s: float | None = None) -> None:
    """Note an open WebSocket of a client, by a token that expires in ten minutes or as said."""
    expires_s = time.time() + 600 if expires_s is None else expires_s
    connection = Connection(gateway.id, name, client_id, "ann", expires_s, 1_000_000_000_000, {})
    gateway.served.connections.add(connection)


def listed(gateway: Asker, limit: int = 50) -> dict[str, dict[str, Any]]:
    """Return all clients by their ids, read page by page as an operator."""
    clients: list[dict[str, Any]] = []
    cursor = ""
    while True:
        asked = {"limit": str(limit)} | ({"cursor": cursor} if cursor else {})
        answer = gateway.ask("GET", "/admin/clients/{}", params=asked, role="operator")
        assert answer.status_code == 200, answer.text
        page = answer.json()
        clients += page["clients"]
        cursor = page.get("next", "")
        if not cursor:
            by_id = {each["client"]: each for each in clients}
            assert len(by_id) == len(clients)
            return by_id


@pytest.mark.law("U7")
def test_clients_are_listed_with_user_connections_and_revocation(gateway: Asker) -> None:
    for name in ("p1", "p2", "p3"):
        gateway.served.access.bind(gateway.id, name, "ann" if name != "p3" else "bob")
    for number in range(2):
        connect(gateway, "p1", f"socket-{gateway.id}-{number}")
    gateway.served.access.revoke(gateway.id, Revocation("user", "bob", 0, "ops"))

    clients = listed(gateway)
    assert [len(clients[name]["connections"]) for name in ("p1", "p2", "p3")] == [2, 0, 0]
    assert clients["p1"]["connections"][0]["openedAt"] == "2001-09-09T01:46:40Z"
    assert (clients["p2"]["user"], clients["p3"]["user"]) == ("ann", "bob")
    assert [clients[name]["revoked"] for name in ("p1", "p2", "p3")] == [False, False, True]
    assert {each["behindMs"] for each in clients.values()} == {None}


def test_token_expiry_beyond_the_calendar_is_listed_as_the_last_time(gateway: Asker) -> None:
    gateway.served.access.bind(gateway.id, "p1", "ann")
    connect(gateway, "p1", f"socket-{gateway.id}", expires_s=float(1 << 40))

    (connection,) = listed(gateway)["p1"]["connections"]

    assert connection["expiresAt"] == "9999-12-31T23:59:59Z"


@pytest.mark.law("U7")
def test_existing_client_is_listed_as_far_behind_as_its_cursor(gateway: Asker) -> None:
    gateway.push(row("row-1"), clientId="client-1")
    cursor = gateway.pull(client="client-2").json()["serverHlc"]
    gateway.pull(since=cursor, client="client-2")
    assert listed(gateway)["client-2"]["behindMs"] == 0
    time.sleep(0.02)
    gateway.push(row("row-2"), clientId="client-1")

    assert 0 < listed(gateway)["client-2"]["behindMs"] < 60_000


@pytest.mark.law("U7")
def test_client_is_listed_with_its_recorded_lag_and_number_of_refused_edits(
    gateway: Asker,
) -> None:
    gateway.push(row("row-1"), clientId="client-1")
    own = {"ownCursor": "true", "quarantined": "2"}
    cursor = gateway.pull(client="client-3", **own).json()["serverHlc"]
    assert listed(gateway)["client-3"]["behindMs"] is None, "it has read nothing yet"
    gateway.pull(since=cursor, client="client-2", **own)
    time.sleep(0.02)
    gateway.push(row("row-2"), clientId="client-1")
    client = listed(gateway)["client-2"]

    assert 0 < client["behindMs"] < 60_000
    assert client["quarantined"] == 2
    assert client["notedAt"].startswith("20")
    assert listed(gateway)["client-1"]["notedAt"] is None
    gateway.pull(since=cursor, client="client-4", ownCursor="true")
    assert listed(gateway)["client-4"]["quarantined"] is None


@pytest.mark.parametrize("quarantined", ["-1", "x", "1e3", "9" * 30])
def test_invalid_number_of_refused_edits_is_a_400(gateway: Asker, quarantined: str) -> None:
    answer = gateway.pull(client="client-1", ownCursor="true", quarantined=quarantined)
    assert answer.status_code == 400


@pytest.mark.law("U7")
def test_pages_of_clients_list_each_client_once(gateway: Asker) -> None:
    names = [f"p{number}|\U0001f600" for number in range(7)]
    for name in names:
        gateway.served.access.bind(gateway.id, name, "ann")

    assert sorted(listed(gateway, limit=2)) == names


@pytest.mark.law("U7", "J1")
def test_disconnecting_a_client_notifies_it_and_leaves_an_audit_record(gateway: Asker) -> None:
    mine, other = f"socket-{gateway.id}-mine", f"socket-{gateway.id}-other"
    connect(gateway, "p1", mine)
    connect(gateway, "p2", other)
    body = {"disconnect": {"client": "p1"}}
    answer = gateway.ask("POST", "/admin/clients/{}", json=body, role="admin", client="ops")

    assert answer.json() == {"disconnected": 1}
    assert gateway.served.sockets.closed.count(mine) == 1
    assert other not in gateway.served.sockets.closed
    assert gateway.served.sockets.sent[mine]
    left, _ = gateway.served.connections.of_gateway(gateway.id)
    assert [each.id for each in left] == [other]
    (record,), _ = gateway.served.audit.records(gateway.id, AuditQuery())
    assert (record.operation, record.target, record.user) == (
        "disconnectClient",
        "client p1",
        "ops",
    )
    assert (record.before, record.after) == ('{"connections":1}', '{"connections":0}')
    again = gateway.ask("POST", "/admin/clients/{}", json=body, role="admin")
    assert again.json() == {"disconnected": 0}


@pytest.mark.parametrize(
    "body",
    [{}, [], {"disconnect": "p1"}, {"disconnect": {"client": 7}}, {"disconnect": {"client": ""}}],
)
def test_disconnect_without_a_valid_client_is_a_400(gateway: Asker, body: Any) -> None:
    answer = gateway.ask("POST", "/admin/clients/{}", json=body, role="admin")
    assert (answer.status_code, answer.json()["code"]) == (400, "VALIDATION_ERROR")


@pytest.mark.parametrize("cursor", ["%%", "bm9uZQ==", "_w=="])
def test_invalid_cursor_of_the_list_of_clients_is_a_400(gateway: Asker, cursor: str) -> None:
    answer = gateway.ask("GET", "/admin/clients/{}", params={"cursor": cursor}, role="admin")
    assert (answer.status_code, answer.json()["field"]) == (400, "cursor")
