"""The authoriser with Secrets Manager behind it, and the whole path from token to answer."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import boto3
import jwt
import pytest
from botocore.exceptions import ClientError
from moto import mock_aws

from lakesync.buffer.connections import ItemConnections, ItemTickets
from lakesync.buffer.memory_items import MemoryItemStore
from lakesync.core.gateway_identity import gateway_secret
from lakesync.runtime import websockets
from lakesync.runtime.websockets import TICKET_S_MAX
from tests.functions.conftest import Context, event

if TYPE_CHECKING:
    import io
    from collections.abc import Callable, Iterator

    from tests.functions.conftest import Functions

    Ask = Callable[[dict[str, Any]], dict[str, Any]]
    AskSocket = Callable[..., dict[str, Any]]

SECRET = "sample-secret-of-the-events-folder-0123456789"
OLD = "the-secret-before-the-sample-secret-0123456789"


@pytest.fixture
def secret() -> Iterator[None]:
    """The secret of tokens, in Secrets Manager."""
    with mock_aws():
        text = json.dumps({"current": SECRET, "previous": OLD})
        boto3.client("secretsmanager").create_secret(Name="jwt", SecretString=text)
        yield


@pytest.fixture
def authorise(functions: Functions, secret: None) -> Ask:
    """The authoriser's context for an event."""
    handler = functions.load("authorise")

    def ask(sent: dict[str, Any]) -> dict[str, Any]:
        answer = handler(sent, Context())
        assert answer["isAuthorized"] is True
        context: dict[str, Any] = answer["context"]
        return context

    return ask


def with_token(token: str) -> dict[str, Any]:
    sent = event("authorise_valid")
    sent["headers"]["authorization"] = f"Bearer {token}"
    return sent


def token(secret: str = SECRET, **claims: object) -> str:
    payload = {"sub": "phone-1", "gw": "demo", "exp": int(time.time()) + 600} | claims
    return jwt.encode(payload, secret, "HS256")


def test_the_authoriser_returns_the_claims_of_a_valid_token(authorise: Ask) -> None:
    context = authorise(event("authorise_valid"))

    assert json.loads(context["claims"])["sub"] == "phone-1"


@pytest.mark.parametrize("name", ["authorise_expired", "authorise_unsigned"])
def test_the_authoriser_returns_only_a_refusal_for_an_invalid_token(
    authorise: Ask, name: str
) -> None:
    assert set(authorise(event(name))) == {"refused"}


def test_the_previous_secret_still_verifies(authorise: Ask) -> None:
    assert "claims" in authorise(with_token(token(OLD)))


def test_a_token_signed_with_a_new_secret_is_accepted_at_once(authorise: Ask) -> None:
    authorise(with_token(token()))
    new = "the-secret-after-the-sample-secret-0123456789"
    boto3.client("secretsmanager").put_secret_value(
        SecretId="jwt", SecretString=json.dumps({"current": new, "previous": SECRET})
    )

    assert "claims" in authorise(with_token(token(new)))


@pytest.mark.law("U5")
def test_a_gateways_secret_signs_only_tokens_of_that_gateway(authorise: Ask) -> None:
    own = gateway_secret(SECRET, "demo")

    assert "claims" in authorise(with_token(token(own)))
    assert set(authorise(with_token(token(own, gw="other", role="admin")))) == {"refused"}


def test_the_authoriser_fails_when_the_secret_is_missing(functions: Functions) -> None:
    with mock_aws(), pytest.raises(ClientError):
        functions.load("authorise")(with_token(token()), Context())


def _answer(functions: Functions, context: dict[str, Any], gateway: str = "demo") -> int:
    sent = event("pull_first_page")
    sent["requestContext"]["authorizer"] = {"lambda": context}
    sent["rawPath"] = f"/sync/{gateway}/pull"
    sent["requestContext"]["http"]["path"] = sent["rawPath"]
    return functions.http("pull", sent).status


def test_a_cached_answer_opens_its_own_gateway_only(functions: Functions, authorise: Ask) -> None:
    """API Gateway repeats an answer on every route: only the path differs, and it decides."""
    cached = authorise(with_token(token(gw="demo")))

    assert _answer(functions, cached, "demo") == 200
    assert _answer(functions, cached, "other") == 403


def test_a_token_that_expires_stops_working_though_its_answer_is_cached(
    functions: Functions,
    authorise: Ask,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cached = authorise(with_token(token()))
    now = time.time()
    monkeypatch.setattr("lakesync.runtime.api.time.time", lambda: now + 601 + 5)

    assert _answer(functions, cached) == 401


@pytest.mark.parametrize(
    "context",
    [
        {},
        {"claims": ""},
        {"claims": "[]"},
        {"claims": "{}"},
        {"claims": None},
        {"claims": '{"sub": "phone-1", "gw": "demo"}'},
        {"claims": '{"sub": "phone-1", "gw": "demo", "exp": "4102444800"}'},
        {"claims": '{"sub": "phone-1", "gw": "demo", "exp": NaN}'},
        {"refused": "", "claims": '{"sub": "phone-1", "gw": "demo", "exp": 4102444800}'},
    ],
)
def test_any_other_context_is_refused(functions: Functions, context: dict[str, Any]) -> None:
    assert _answer(functions, context) == 401


def test_tokens_are_not_logged(
    functions: Functions,
    authorise: Ask,
    log: io.StringIO,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("DEBUG")
    good, bad = token(), token("another-secret-that-is-not-in-force-0123456789")
    for sent in (good, bad, good[:-3], "no.token.atall"):
        context = authorise(with_token(sent))
        pull = event("pull_first_page")
        pull["headers"]["authorization"] = f"Bearer {sent}"
        pull["requestContext"]["authorizer"] = {"lambda": context}
        functions.http("pull", pull)
    written = log.getvalue() + "".join(capfd.readouterr()) + caplog.text

    assert "token refused" in written
    for sent in (good, bad):
        for part in sent.split("."):
            assert part not in written


# --- WebSockets -----------------------------------------------------------------------------------


@pytest.fixture
def authorise_socket(
    functions: Functions, secret: None, monkeypatch: pytest.MonkeyPatch
) -> AskSocket:
    """The authoriser's context for a handshake."""

    def ask(headers: dict[str, str], query: Any = None, in_query: str = "no") -> Any:
        monkeypatch.setenv("SOCKET_TOKEN_IN_QUERY", in_query)
        sent = event("authorise_socket") | {"headers": headers, "queryStringParameters": query}
        answer = functions.call("authorise", sent)
        (statement,) = answer["policyDocument"]["Statement"]
        # Also for a bad token: its function refuses it, in our words.
        assert statement["Effect"] == "Allow"
        assert statement["Resource"] == sent["methodArn"]
        return answer["context"]

    return ask


@pytest.mark.law("T6")
@pytest.mark.parametrize("name", ["Sec-WebSocket-Protocol", "sec-websocket-protocol"])
def test_the_token_of_a_socket_handshake_is_read_from_its_sub_protocols(
    authorise_socket: AskSocket, name: str
) -> None:
    context = authorise_socket({name: f"lakesync.v1, bearer.{token()}"})

    assert json.loads(context["claims"])["sub"] == "phone-1"


@pytest.mark.law("T6")
@pytest.mark.parametrize("offered", ["", "lakesync.v1", "lakesync.v1, bearer.", "bearer.nonsense"])
def test_a_socket_handshake_without_a_valid_token_is_refused(
    authorise_socket: AskSocket, offered: str
) -> None:
    assert set(authorise_socket({"Sec-WebSocket-Protocol": offered})) == {"refused"}


@pytest.mark.law("T6")
def test_a_token_in_the_query_string_is_accepted_only_when_enabled(
    authorise_socket: AskSocket,
) -> None:
    query = {"token": token()}

    assert set(authorise_socket({}, query)) == {"refused"}
    assert set(authorise_socket({}, query, "yes")) == {"claims"}


# --- tickets --------------------------------------------------------------------------------------


@pytest.fixture
def tickets(monkeypatch: pytest.MonkeyPatch) -> ItemTickets:
    kept = ItemTickets(MemoryItemStore())
    monkeypatch.setattr(websockets, "tickets", lambda _: kept)
    monkeypatch.setattr(websockets, "connections", lambda _: ItemConnections(MemoryItemStore()))
    return kept


def issued(functions: Functions) -> str:
    answer = functions.http("pull", "pull_ticket")
    assert answer.status == 200
    assert answer.headers["cache-control"] == "no-store"
    assert answer.json["expiresInS"] == TICKET_S_MAX
    return str(answer.json["ticket"])


@pytest.mark.law("T10")
def test_a_ticket_authorises_one_socket_handshake_with_its_tokens_claims(
    functions: Functions, authorise_socket: AskSocket, tickets: ItemTickets
) -> None:
    ticket, other = issued(functions), issued(functions)
    assert ticket != other
    context = authorise_socket({}, {"ticket": ticket, "clientId": "phone-1"})
    assert json.loads(context["claims"]) == {
        "sub": "ann",
        "gw": "demo",
        "role": "client",
        "exp": 4102444800,
        "team": "blue",
    }
    assert set(authorise_socket({}, {"ticket": ticket})) == {"refused"}
    assert set(authorise_socket({}, {"ticket": other})) == {"claims"}


@pytest.mark.law("T10")
@pytest.mark.parametrize("wrong", ["", "x", "x" * 43, "x" * 9_000, "\u00e9" * 43, "x" * 42 + "\n"])
def test_an_unknown_ticket_is_refused(
    authorise_socket: AskSocket, tickets: ItemTickets, wrong: str
) -> None:
    assert set(authorise_socket({}, {"ticket": wrong})) == {"refused"}


@pytest.mark.law("T10")
def test_an_expired_ticket_is_refused(
    functions: Functions,
    authorise_socket: AskSocket,
    tickets: ItemTickets,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ticket = issued(functions)
    later = time.time_ns() + (TICKET_S_MAX + 1) * 1_000_000_000
    monkeypatch.setattr("lakesync.runtime.wiring.time.time_ns", lambda: later)

    assert set(authorise_socket({}, {"ticket": ticket})) == {"refused"}


@pytest.mark.law("T10")
def test_a_handshake_with_token_and_ticket_does_not_consume_the_ticket(
    functions: Functions, authorise_socket: AskSocket, tickets: ItemTickets
) -> None:
    ticket = issued(functions)
    headers = {"Sec-WebSocket-Protocol": f"lakesync.v1, bearer.{token()}"}

    assert json.loads(authorise_socket(headers, {"ticket": ticket})["claims"])["sub"] == "phone-1"
    assert set(authorise_socket({}, {"ticket": ticket})) == {"claims"}


@pytest.mark.law("T10")
def test_a_ticket_is_refused_over_https(
    functions: Functions,
    authorise: Ask,
    tickets: ItemTickets,
) -> None:
    ticket = issued(functions)
    sent = with_token(ticket) | {"queryStringParameters": {"ticket": ticket}}

    assert set(authorise(sent)) == {"refused"}


@pytest.mark.law("T10", "U6")
def test_an_operator_gets_no_ticket(functions: Functions, tickets: ItemTickets) -> None:
    assert functions.http("pull", event("pull_ticket", role="operator")).status == 403


@pytest.mark.law("T10")
def test_tickets_are_neither_stored_nor_logged(
    functions: Functions,
    authorise_socket: AskSocket,
    tickets: ItemTickets,
    log: io.StringIO,
) -> None:
    ticket = issued(functions)
    assert ticket not in repr(vars(tickets))
    for _ in range(2):
        context = authorise_socket({}, {"ticket": ticket})
        sent = event("connect_sub_protocol") | {"headers": {}}
        sent["queryStringParameters"] = {"ticket": ticket}
        sent["requestContext"]["authorizer"] = context
        functions.call("connect", sent)

    assert "token refused" in log.getvalue()
    assert ticket not in log.getvalue()
