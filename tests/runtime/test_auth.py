"""What a caller may do with the authoriser's answer."""

from __future__ import annotations

from typing import Any

import pytest

from lakesync.buffer import item_format
from lakesync.buffer.admission import ItemAccess
from lakesync.buffer.memory_items import MemoryItemStore
from lakesync.connectors.pages import client_id_of
from lakesync.core.delta import CONNECTORS_USER, GATEWAY_CLIENT
from lakesync.errors import AuthFailed, ClientTaken, Forbidden, Revoked, ValidationFailed
from lakesync.gateway.access import Access
from lakesync.ports import Revocation
from lakesync.runtime.auth import GATEWAY_ID, Caller, caller_of, refused, token_claims, verified
from tests.support.some import some

NOW = 1_700_000_000.0


def claims(**changed: Any) -> dict[str, Any]:
    return {"sub": "c1", "gw": "g1", "exp": NOW + 60} | changed


def letting_in(store: ItemAccess | None = None) -> Access:
    return Access(store or ItemAccess(MemoryItemStore()), wall_clock=lambda: int(NOW * 1000))


def test_the_authoriser_context_preserves_every_claim() -> None:
    context = verified(token_claims(claims(role="admin", team="blue", levels=[1, 2])))
    caller = caller_of(context, "g1", NOW, letting_in())

    assert caller.token.role == "admin"
    assert dict(caller.token.all) == claims(role="admin", team="blue", levels=[1, 2])


def test_the_values_of_an_authoriser_context_are_text() -> None:
    answer = some(verified(token_claims(claims())).values())
    assert all(isinstance(value, str) for value in answer)


def test_claims_that_json_cannot_represent_are_refused() -> None:
    with pytest.raises(AuthFailed):
        verified(token_claims(claims(level=float("nan"))))


def test_a_refusal_keeps_its_message() -> None:
    with pytest.raises(AuthFailed, match="the token has expired"):
        caller_of(refused(AuthFailed("the token has expired")), "g1", NOW, letting_in())


def test_a_token_of_another_gateway_is_forbidden() -> None:
    with pytest.raises(Forbidden):
        caller_of(verified(token_claims(claims())), "g2", NOW, letting_in())


def test_an_authoriser_context_is_refused_once_its_token_expired() -> None:
    context = verified(token_claims(claims()))

    assert caller_of(context, "g1", NOW + 65, letting_in()).token.gateway == "g1"
    with pytest.raises(AuthFailed, match="expired"):
        caller_of(context, "g1", NOW + 65.1, letting_in())


@pytest.mark.parametrize("context", [None, "", 7, [], {}, {"claims": "{"}, {"claims": "7"}])
def test_a_malformed_authoriser_context_is_refused(context: object) -> None:
    with pytest.raises(AuthFailed):
        caller_of(context, "g1", NOW, letting_in())


@pytest.mark.law("U1")
def test_a_user_may_use_only_its_own_client_ids() -> None:
    store = ItemAccess(MemoryItemStore())
    ann = caller_of(verified(token_claims(claims(sub="ann"))), "g1", NOW, letting_in(store))
    bob = caller_of(verified(token_claims(claims(sub="bob"))), "g1", NOW, letting_in(store))
    for client_id in ("phone", "tablet", "ann"):
        assert ann.speaks_for(client_id) == client_id
    assert ann.speaks_for(None) == "ann"
    bob.speaks_for("bob")
    with pytest.raises(ClientTaken) as caught:
        bob.speaks_for("phone")

    assert caught.value.field == "clientId"


@pytest.mark.parametrize("client_id", ["", "c" * 129])
def test_an_invalid_client_id_is_refused(client_id: str) -> None:
    caller = caller_of(verified(token_claims(claims())), "g1", NOW, letting_in())
    with pytest.raises(ValidationFailed):
        caller.speaks_for(client_id)


@pytest.mark.law("U8")
@pytest.mark.parametrize("client_id", [GATEWAY_CLIENT, client_id_of("shop"), "connector:"])
@pytest.mark.parametrize("role", ["client", "admin"])
def test_reserved_client_ids_are_refused_to_every_role(client_id: str, role: str) -> None:
    token = claims(sub=client_id, role=role)
    caller = caller_of(verified(token_claims(token)), "g1", NOW, letting_in())
    for named in (client_id, None):
        with pytest.raises(ValidationFailed, match="no client id of an app"):
            caller.speaks_for(named)
    assert caller.speaks_for("_phone") == "_phone"
    assert caller.speaks_for("connector") == "connector"


@pytest.mark.law("U8")
def test_a_token_with_the_reserved_connectors_user_is_refused() -> None:
    with pytest.raises(AuthFailed, match="the user of connectors"):
        token_claims(claims(sub=CONNECTORS_USER))


def test_a_user_whose_name_is_no_valid_client_id_must_state_one() -> None:
    user = "u" * 200
    caller = caller_of(verified(token_claims(claims(sub=user))), "g1", NOW, letting_in())
    assert caller.speaks_for("phone") == "phone"
    with pytest.raises(ValidationFailed):
        caller.speaks_for(None)


@pytest.mark.law("U2")
def test_a_revoked_user_is_refused_even_as_an_administrator() -> None:
    store = ItemAccess(MemoryItemStore())
    store.revoke("g1", Revocation("user", "c1", 0, "ops"))
    context = verified(token_claims(claims(role="admin")))
    with pytest.raises(Revoked):
        caller_of(context, "g1", NOW, letting_in(store))


def test_administration_needs_the_admin_role() -> None:
    def caller(role: str) -> Caller:
        return caller_of(verified(token_claims(claims(role=role))), "g1", NOW, letting_in())

    caller("admin").must_be_one_of(["admin"])
    for role in ("client", "operator"):
        with pytest.raises(Forbidden):
            caller(role).must_be_one_of(["admin"])


@pytest.mark.parametrize("gateway", ["g", "G-1_x", "a" * 64, "a" * 65, "", "a|b", "a/b", "-a", "ü"])
def test_tokens_and_the_buffer_accept_the_same_gateway_ids(gateway: str) -> None:
    def taken_by_buffer() -> bool:
        try:
            item_format.check_gateway(gateway)
        except ValidationFailed:
            return False
        return True

    def taken_here() -> bool:
        try:
            token_claims(claims(gw=gateway))
        except AuthFailed:
            return False
        return True

    assert taken_here() == taken_by_buffer(), GATEWAY_ID
