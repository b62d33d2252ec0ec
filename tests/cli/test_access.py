"""`lakesync access` against a real gateway: who is revoked, and whose a client is."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

import jwt
import pytest

from lakesync.cli.commands import access
from lakesync.core.gateway_identity import gateway_secret
from lakesync.ports import Connection
from tests.cli.test_declaring import gateway
from tests.support.command_lines import run
from tests.support.local_gateway import GATEWAY, SECRET

if TYPE_CHECKING:
    from tests.support.local_gateway import LocalGateway


__all__ = ["gateway"]  # the fixture

ROW = json.dumps(
    {"op": "UPDATE", "table": "flights", "rowId": "UA1", "columns": {"carrier": "UA", "delay": 9}}
)


def pushes(gateway: LocalGateway, user: str, client: str) -> str:
    """Push as a user's client; give the sentence it is refused with, if it is."""
    words = ("--url", gateway.url, "--gateway", GATEWAY, "--client", client)
    done = run("push", "-", *words, "--token", gateway.token(user), text=ROW)
    assert (done.exit_code == 0) != bool(done.stderr)
    return done.stderr


@pytest.mark.law("U1")
def test_access_show_names_a_clients_user_and_release_unbinds_it(gateway: LocalGateway) -> None:
    assert "nobody" in run("access", "show", "phone-1").stdout
    assert pushes(gateway, "ann", "phone-1") == ""
    assert "belongs to another user" in pushes(gateway, "bob", "phone-1")
    assert run("access", "show", "phone-1").stdout == "user: ann\n"
    assert run("access", "release", "phone-1").exit_code == 0
    assert pushes(gateway, "bob", "phone-1") == ""
    assert json.loads(run("access", "show", "phone-1", "--json").stdout)["user"] == "bob"


@pytest.mark.law("U2")
def test_revoked_users_and_clients_are_listed_until_restored(gateway: LocalGateway) -> None:
    pushes(gateway, "ann", "phone|1")
    for kind, name in (("user", "auth0|ann"), ("client", "phone|1")):
        assert "within a minute" in run("access", "revoke", kind, name).stdout
    listed = [json.loads(line) for line in run("access", "list", "--json").stdout.splitlines()]
    assert [each | {"at": ""} for each in listed] == [
        {"client": "phone|1", "at": "", "by": "cli"},
        {"user": "auth0|ann", "at": "", "by": "cli"},
    ]
    assert "auth0|ann" in run("access", "list").stdout
    assert "revoked: client phone|1" in run("access", "show", "phone|1").stdout

    for each in ("user", "auth0|ann"), ("client", "phone|1"):
        assert run("access", "restore", *each).exit_code == 0
    assert run("access", "list", "--json").stdout == ""


def test_revoking_an_unknown_user_or_client_succeeds_with_a_warning(gateway: LocalGateway) -> None:
    assert pushes(gateway, "ann", "phone-1") == ""
    for kind, known, misspelt in (("user", "ann", "anne"), ("client", "phone-1", "phone-l")):
        done = run("access", "revoke", kind, misspelt)
        assert done.exit_code == 0
        assert f"no {kind} {misspelt} was ever seen at {GATEWAY}: check the name" in done.stderr
        assert json.loads(run("access", "revoke", kind, misspelt, "--json").stdout) == {
            "revoked": {kind: misspelt}, "known": False,
        }  # fmt: skip
        seen = run("access", "revoke", kind, known, "--json")
        assert (json.loads(seen.stdout)["known"], seen.stderr) == (True, "")
    listed = run("access", "list", "--json").stdout
    assert listed.count("\n") == 4
    assert "no client tv was ever seen" in run("clients", "revoke", GATEWAY, "tv").stderr


def test_a_user_is_reported_as_neither_known_nor_unknown_beyond_the_search_limit(
    gateway: LocalGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lakesync.cli.commands.access.LOOKED_AT_CLIENTS_MAX", 1)
    for client in ("phone-1", "phone-2"):
        assert pushes(gateway, "ann", client) == ""
    done = run("access", "revoke", "user", "bob", "--json")

    assert json.loads(done.stdout)["known"] is None
    assert f"none of the first 1 clients of {GATEWAY} is of the user bob" in done.stderr


def test_restore_and_release_report_when_nothing_was_revoked_or_bound(
    gateway: LocalGateway,
) -> None:
    assert "user bob was not revoked" in run("access", "restore", "user", "bob").stdout
    assert "belonged to nobody" in run("access", "release", "phone-9").stdout
    assert pushes(gateway, "ann", "phone-1") == ""
    assert run("access", "release", "phone-1").stdout == "released: phone-1, which was ann's\n"


def test_an_administrator_cannot_revoke_their_own_user(gateway: LocalGateway) -> None:
    refused = run("access", "revoke", "user", "cli")

    assert refused.exit_code == 1
    assert "nobody can revoke themselves" in refused.stderr


def test_the_token_command_takes_a_user_as_the_subject(gateway: LocalGateway) -> None:
    token = run("token", "--user", "ann", "--client", "phone-1", "--json")

    assert json.loads(token.stdout)["sub"] == "ann"


@pytest.mark.law("U5")
def test_the_printed_gateway_secret_signs_tokens_of_that_gateway_only(
    gateway: LocalGateway,
) -> None:
    printed = run("secret")
    assert printed.stdout == f"{gateway_secret(SECRET, GATEWAY)}\n"
    claims = {"sub": "ann", "exp": int(time.time()) + 60}

    def pulled(name: str) -> int:
        token = jwt.encode(claims | {"gw": name}, printed.stdout.strip(), "HS256")
        words = ("--url", gateway.url, "--gateway", name, "--token", token)
        return run("pull", *words).exit_code

    assert (pulled(GATEWAY), pulled("g2")) == (0, 4)
    assert json.loads(run("secret", "--json").stdout)["generation"] == 0


# --- clients --------------------------------------------------------------------------------------


@pytest.mark.law("U7")
def test_clients_are_listed_disconnected_and_revoked(gateway: LocalGateway) -> None:
    gateway.access.bind(GATEWAY, "p1", "ann")
    gateway.connections.add(Connection(GATEWAY, "s1", "p1", "ann", time.time() + 60, 0, {}))

    (listed,) = run("clients", "list", GATEWAY, "--connected", "--json").stdout.splitlines()
    assert json.loads(listed)["client"] == "p1"
    assert "ann" in run("clients", "list", GATEWAY).stdout
    assert "closed: 1 connection" in run("clients", "disconnect", GATEWAY, "p1").stdout
    assert "no client" in run("clients", "list", GATEWAY, "--connected").stdout
    assert "revoked within a minute" in run("clients", "revoke", GATEWAY, "p1").stdout
    assert "revoked" in run("clients", "list", GATEWAY).stdout


def test_clients_commands_find_the_gateway_as_others_do(gateway: LocalGateway) -> None:
    gateway.access.bind(GATEWAY, "p1", "ann")
    gateway.connections.add(Connection(GATEWAY, "s1", "p1", "ann", time.time() + 60, 0, {}))

    assert "ann" in run("clients", "list", "--gateway", GATEWAY).stdout
    assert "closed: 1 connection" in run("clients", "disconnect", "p1").stdout
    assert "revoked within a minute: client p1" in run("clients", "revoke", "p1").stdout
    assert run("clients", "revoke", "p1", "--gateway", "nowhere").exit_code == 1
    assert run("clients", "revoke", GATEWAY, "p1", "p2").exit_code == 2


# --- audit ----------------------------------------------------------------------------------------


@pytest.mark.law("J3")
def test_audit_records_are_filtered_by_user_operation_and_time(
    gateway: LocalGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access, "PAGE_RECORDS", 2)
    for name in ("p1", "p2", "p3"):
        run("access", "revoke", "client", name, "--client", "ann")

    listed = run("audit", GATEWAY, "--who", "ann", "--json").stdout.splitlines()
    assert [json.loads(line)["target"] for line in listed] == [
        "client p3", "client p2", "client p1"
    ]  # fmt: skip
    shown = run("audit", "--operation", "registerSchema", "--since", "1h").stdout
    assert "flights" in shown
    assert "done" in shown
    assert "client p1" not in shown
    assert len(run("audit", "--limit", "3", "--json").stdout.splitlines()) == 3
    assert "no change matches" in run("audit", "--until", "2020-01-01").stdout


def test_an_operator_reads_audit_records_and_may_not_revoke(
    gateway: LocalGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAKESYNC_TOKEN", run("token", "--role", "operator").stdout.strip())

    assert "registerSchema" in run("audit").stdout
    refused = run("access", "revoke", "client", "p1")
    assert refused.exit_code != 0
    assert "whose role is admin" in refused.stderr


def test_an_invalid_since_time_is_wrong_usage(gateway: LocalGateway) -> None:
    wrong = run("audit", "--since", "soon")

    assert wrong.exit_code == 2
    assert "--since 'soon' is not a time" in wrong.stderr
