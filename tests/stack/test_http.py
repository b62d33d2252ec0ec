"""The API from outside: who may, what is malformed, how much fits, and that repeating is safe."""

from __future__ import annotations

import base64
import json
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import jwt
import pytest

from lakesync.core.delta import Op
from lakesync.core.messages import OutcomeKind
from tests.support.deployed import Tenant

if TYPE_CHECKING:
    import httpx

    from tools.local_stack.stack import Stack


@pytest.fixture(scope="module")
def shared(stack: Stack) -> Tenant:
    """A tenant for requests that are refused: they leave nothing behind."""
    return Tenant(stack)


def refused(answer: httpx.Response, status: int, code: str) -> str:
    """Check that an answer is an error in our words; returns its sentence."""
    body = answer.json()
    assert (answer.status_code, body.get("code")) == (status, code), answer.text
    assert body["error"]
    assert body["requestId"]
    sentence: str = body["error"]
    return sentence


# --- who may --------------------------------------------------------------------------------------


def _unsigned(tenant: Tenant) -> str:
    parts = [{"alg": "none"}, {"sub": "c1", "gw": tenant.gateway, "exp": 2**40}]
    return ".".join(
        base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode() for part in parts
    ) + "."  # fmt: skip


@pytest.mark.parametrize("route", ["/sync/{}/pull", "/v1/sync/{}/pull", "/admin/metrics/{}"])
@pytest.mark.parametrize("kind", ["garbage", "unsigned", "forged", "expired"])
def test_request_with_an_invalid_token_is_answered_401(
    shared: Tenant, kind: str, route: str
) -> None:
    claims = {"sub": "c1", "gw": shared.gateway, "exp": 2**40}
    token = {
        "garbage": "not-a-token",
        "unsigned": _unsigned(shared),
        "forged": jwt.encode(claims, "x" * 40, algorithm="HS256"),
        "expired": shared.token(ttl_s=-60),
    }[kind]
    sentence = refused(
        shared.call("GET", route.format(shared.gateway), token=token), 401, "AUTH_ERROR"
    )
    assert token not in sentence


def test_request_without_a_token_is_answered_401_by_api_gateway(shared: Tenant) -> None:
    answer = shared.call("GET", f"/sync/{shared.gateway}/pull")
    assert (answer.status_code, answer.json()) == (401, {"message": "Unauthorized"})


def test_token_of_another_gateway_is_answered_403_even_with_a_cached_authorisation(
    stack: Stack,
) -> None:
    mine, theirs = Tenant(stack), Tenant(stack)
    token = mine.token()
    assert mine.call("GET", f"/sync/{mine.gateway}/pull", token=token).status_code == 200
    # The authoriser's answer for this token is cached by now.
    answer = theirs.call("GET", f"/sync/{theirs.gateway}/pull", token=token)
    assert "another gateway" in refused(answer, 403, "FORBIDDEN")


def test_client_may_not_administer_or_push_as_another_client(shared: Tenant) -> None:
    token = shared.token("c1")
    flush = shared.call("POST", f"/admin/flush/{shared.gateway}", token=token)
    assert "role is admin" in refused(flush, 403, "FORBIDDEN")
    path, body = f"/sync/{shared.gateway}/push", {"clientId": "c2", "deltas": []}
    assert shared.call("POST", path, token=shared.token("c2"), json=body).status_code == 200
    refused(shared.call("POST", path, token=token, json=body), 403, "CLIENT_TAKEN")


@pytest.mark.law("U2")
def test_revoked_user_is_refused_within_a_minute_and_accepted_after_restoration(
    stack: Stack,
) -> None:
    # Two gateways, so that their minutes pass at once.
    leaves, returns = Tenant(stack), Tenant(stack)

    def change(tenant: Tenant, action: str) -> float:
        """Change Ann's access; returns when it must be in force."""
        path, body = f"/admin/access/{tenant.gateway}", {action: {"user": "ann"}}
        ops = tenant.token("ops", role="admin")
        assert tenant.call("POST", path, token=ops, json=body).json() == {"saved": True}
        return time.monotonic() + 60

    def revoked(tenant: Tenant) -> list[str]:
        path, ops = f"/admin/access/{tenant.gateway}", tenant.token("ops", role="admin")
        return [each["user"] for each in tenant.call("GET", path, token=ops).json()["revoked"]]

    def status(tenant: Tenant) -> int:
        path = f"/sync/{tenant.gateway}/pull"
        return tenant.call("GET", path, token=tenant.token("ann")).status_code

    def until(tenant: Tenant, wanted: int, ends_s: float) -> None:
        """Ask again; who asks after that moment must be answered as wanted."""
        asked_s = time.monotonic()
        while status(tenant) != wanted:
            assert asked_s < ends_s
            time.sleep(2)
            asked_s = time.monotonic()

    assert status(leaves) == 200
    refused_s = change(leaves, "revoke")
    until(returns, 403, change(returns, "revoke"))  # at once: nobody has asked for it before
    assert revoked(returns) == ["ann"]
    let_in_s = change(returns, "restore")
    until(leaves, 403, refused_s)
    until(returns, 200, let_in_s)
    assert revoked(leaves) == ["ann"]
    change(leaves, "restore")
    assert revoked(leaves) == revoked(returns) == []


def test_health_and_descriptions_of_the_api_require_no_token(shared: Tenant) -> None:
    assert shared.call("GET", "/health").json() == {"status": "ok"}
    assert shared.call("GET", "/v1/health").status_code == 200
    assert shared.call("GET", "/openapi.json").json()["openapi"].startswith("3.")
    assert "message SyncPush" in shared.call("GET", "/lakesync.proto").text


# --- what is malformed ----------------------------------------------------------------------------

GOOD = {"op": "INSERT", "table": "todos", "rowId": "r", "clientId": "c1", "hlc": "1"}


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", "VALIDATION_ERROR"),
        (b"{", "VALIDATION_ERROR"),
        (b"[]", "VALIDATION_ERROR"),
        (b"null", "VALIDATION_ERROR"),
        (b'{"clientId":"c1"}', "VALIDATION_ERROR"),
        (b'{"clientId":"c1","deltas":{}}', "VALIDATION_ERROR"),
        (b'{"clientId":7,"deltas":[]}', "VALIDATION_ERROR"),
        (b'{"clientId":"c1","deltas":[],"lastSeenHlc":"x"}', "VALIDATION_ERROR"),
        (b'{"clientId":"c1","deltas":[],"atomic":"yes"}', "VALIDATION_ERROR"),
        (b"\xff\xfe\x00", "VALIDATION_ERROR"),
        (b"[" * 100_000, "VALIDATION_ERROR"),
    ],
)
def test_malformed_push_is_answered_400_with_a_message(
    shared: Tenant, body: bytes, code: str
) -> None:
    for kind in ("application/json", "application/x-protobuf"):
        if kind.endswith("protobuf") and not body:
            continue  # an empty message is a message
        answer = shared.call(
            "POST",
            f"/sync/{shared.gateway}/push",
            token=shared.token(),
            content=body,
            headers={"Content-Type": kind},
        )
        refused(answer, 400, code)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"op": "UPSERT"}, "op"),
        ({"table": "a b"}, "table"),
        ({"rowId": ""}, "rowId"),
        ({"hlc": "-1"}, "hlc"),
        ({"hlc": 1.5}, "hlc"),
        ({"columns": [{"column": "a"}]}, "columns"),
        ({"columns": [{"column": "1a", "value": 1}]}, "columns"),
        ({"deltaId": "0" * 64}, "deltaId"),
    ],
)
def test_malformed_delta_is_refused_and_other_deltas_of_the_push_are_accepted(
    stack: Stack, change: dict[str, object], field: str
) -> None:
    tenant = Tenant(stack)
    deltas = [GOOD | change, GOOD]
    body = {"clientId": "c1", "deltas": deltas, "lastSeenHlc": "0", "ownCursor": True}
    answer = tenant.call("POST", f"/sync/{tenant.gateway}/push", token=tenant.token(), json=body)
    assert answer.status_code == 200, answer.text
    receipt = answer.json()
    assert receipt["accepted"] == 1
    [outcome] = receipt["results"]
    assert (outcome["index"], outcome["outcome"]) == (0, "refused")
    assert outcome["field"].startswith(f"deltas[0].{field}")


@pytest.mark.parametrize("query", ["since=x", "since=-1", "limit=0", "limit=many"])
def test_malformed_pull_parameter_is_refused_by_name(shared: Tenant, query: str) -> None:
    path = f"/sync/{shared.gateway}/pull?{query}"
    sentence = refused(shared.call("GET", path, token=shared.token()), 400, "VALIDATION_ERROR")
    assert query.partition("=")[0] in sentence


def test_unknown_path_is_answered_404_and_a_wrong_method_405(shared: Tenant) -> None:
    refused(shared.call("GET", "/nowhere", token=shared.token()), 404, "NOT_FOUND")
    path = f"/sync/{shared.gateway}/push"
    refused(shared.call("GET", path, token=shared.token()), 405, "METHOD_NOT_ALLOWED")


# --- how much fits, and again ---------------------------------------------------------------------


def test_push_of_ten_thousand_deltas_is_accepted_and_repeating_it_gives_duplicates(
    tenant: Tenant,
) -> None:
    deltas = [tenant.make(Op.INSERT, f"r{n}", {"n": n}) for n in range(10_000)]
    first = tenant.push(deltas)
    assert (first.accepted, first.outcomes) == (10_000, ())
    again = tenant.push(deltas)
    assert again.accepted == 10_000
    assert {outcome.kind for outcome in again.outcomes} == {OutcomeKind.DUPLICATE}
    pulled = tenant.pull("c2")
    assert len(pulled) == 10_000
    assert {delta.delta_id for delta in pulled} == {delta.delta_id for delta in deltas}


def test_push_above_the_delta_limit_is_refused_and_names_the_limit(shared: Tenant) -> None:
    body = {"clientId": "c1", "deltas": [GOOD] * 10_001, "lastSeenHlc": "0"}
    answer = shared.call("POST", f"/sync/{shared.gateway}/push", token=shared.token(), json=body)
    assert "10000" in refused(answer, 400, "VALIDATION_ERROR")


def test_json_and_protobuf_and_both_path_prefixes_return_the_same_deltas(tenant: Tenant) -> None:
    tenant.push([tenant.make(Op.INSERT, "r1", {"title": "Milk", "n": 1.5, "tags": ["a"]})])
    body = {
        "clientId": "c1",
        "deltas": [GOOD | {"rowId": "r2", "columns": [{"column": "title", "value": "Brød"}]}],
        "lastSeenHlc": "0",
    }
    for prefix, accepted in (("", 1), ("/v1", 1)):
        path = f"{prefix}/sync/{tenant.gateway}/push"
        answer = tenant.call("POST", path, token=tenant.token(), json=body)
        assert answer.json()["accepted"] == accepted
    by_protobuf = {delta.delta_id: delta for delta in tenant.pull()}
    for prefix in ("", "/v1"):
        path = f"{prefix}/sync/{tenant.gateway}/pull?since=0&ownCursor=true"
        page = tenant.call("GET", path, token=tenant.token()).json()
        assert {delta["deltaId"] for delta in page["deltas"]} == by_protobuf.keys()
        assert not page["hasMore"]
        titles = {
            column["value"]
            for delta in page["deltas"]
            for column in delta["columns"]
            if column["column"] == "title"
        }
        assert titles == {"Milk", "Brød"}


def test_concurrent_pushes_are_all_accepted_and_pulled_once(tenant: Tenant) -> None:
    rounds, clients = 6, [f"c{number}" for number in range(4)]
    made = {
        client: [
            [tenant.make(Op.UPDATE, f"r{row}", {client: turn}, client=client) for row in range(40)]
            for turn in range(rounds)
        ]
        for client in clients
    }

    def push_all(client: str) -> int:
        return sum(tenant.push(batch).accepted for batch in made[client])

    with ThreadPoolExecutor(len(clients)) as threads:
        assert list(threads.map(push_all, clients)) == [rounds * 40] * len(clients)
    pulled = [delta.delta_id for delta in tenant.pull("reader")]
    assert len(pulled) == len(set(pulled)) == rounds * 40 * len(clients)
