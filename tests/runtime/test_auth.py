"""What a caller may do with the authoriser's answer."""

from __future__ import annotations

from typing import Any

import pytest

from lakesync.buffer import keys
from lakesync.errors import AuthFailed, Forbidden, ValidationFailed
from lakesync.runtime.auth import GATEWAY_ID, caller_of, refused, token_claims, verified

NOW = 1_700_000_000.0


def claims(**changed: Any) -> dict[str, Any]:
    return {"sub": "c1", "gw": "g1", "exp": NOW + 60} | changed


def test_the_answer_carries_every_claim_there_and_back() -> None:
    context = verified(token_claims(claims(role="admin", team="blue", levels=[1, 2])))
    caller = caller_of(context, "g1", NOW)

    assert caller.token.role == "admin"
    assert dict(caller.token.all) == claims(role="admin", team="blue", levels=[1, 2])


def test_an_answer_is_one_text_and_so_fits_any_context() -> None:
    assert all(isinstance(value, str) for value in verified(token_claims(claims())).values())


def test_claims_that_json_cannot_say_are_refused() -> None:
    with pytest.raises(AuthFailed):
        verified(token_claims(claims(level=float("nan"))))


def test_a_refusal_keeps_its_sentence() -> None:
    with pytest.raises(AuthFailed, match="the token has expired"):
        caller_of(refused(AuthFailed("the token has expired")), "g1", NOW)


def test_another_gateway_is_forbidden() -> None:
    with pytest.raises(Forbidden):
        caller_of(verified(token_claims(claims())), "g2", NOW)


def test_an_expired_answer_is_refused() -> None:
    context = verified(token_claims(claims()))

    assert caller_of(context, "g1", NOW + 65).token.gateway == "g1"
    with pytest.raises(AuthFailed, match="expired"):
        caller_of(context, "g1", NOW + 65.1)


@pytest.mark.parametrize("context", [None, "", 7, [], {}, {"claims": "{"}, {"claims": "7"}])
def test_anything_but_an_answer_is_refused(context: object) -> None:
    with pytest.raises(AuthFailed):
        caller_of(context, "g1", NOW)


def test_a_client_speaks_for_itself_only() -> None:
    caller = caller_of(verified(token_claims(claims())), "g1", NOW)
    caller.must_be("c1")
    with pytest.raises(Forbidden) as caught:
        caller.must_be("c2")

    assert caught.value.field == "clientId"


def test_administration_needs_the_role() -> None:
    caller_of(verified(token_claims(claims(role="admin"))), "g1", NOW).must_administer()
    with pytest.raises(Forbidden):
        caller_of(verified(token_claims(claims())), "g1", NOW).must_administer()


@pytest.mark.parametrize("gateway", ["g", "G-1_x", "a" * 64, "a" * 65, "", "a|b", "a/b", "-a", "ü"])
def test_a_gateway_id_is_what_the_buffer_takes_for_one(gateway: str) -> None:
    def taken_by_buffer() -> bool:
        try:
            keys.check_gateway(gateway)
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
