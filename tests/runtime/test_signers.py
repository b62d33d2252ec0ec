"""Who may sign for which gateway: a tenant that signs its own tokens is only itself."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import jwt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakesync.core.gateway_identity import gateway_secret
from lakesync.errors import AuthFailed
from lakesync.runtime.authoriser import (
    FETCH_PAUSE_S,
    GENERATIONS_MAX,
    KEYS_AGE_S_MAX,
    TOKEN_BYTES_MAX,
    Authorities,
    PublicKeys,
    claimed_gateway,
    read_signers,
    verify,
)
from tests.runtime.test_keys import Store
from tests.runtime.test_tokens import (
    BOTH,
    CLAIMS,
    CURRENT,
    HS256,
    NOW,
    PREVIOUS,
    by_key,
    ec_key,
    key_set,
    rsa_key,
    signed,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

GATEWAYS = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_-]{0,8}", fullmatch=True)
ACME = {
    "gateways": ["acme", "acme-test"],
    "issuer": "https://acme.example",
    "audience": "acme-lakesync",
    "jwksUrl": "https://acme.example/jwks.json",
}


class World:
    """A stack, its secret store, and the identity providers that it may ask."""

    def __init__(self, document: Mapping[str, Any], *, jwks_url: str = "") -> None:
        self.store = Store(document)
        self.sets = {"https://acme.example/jwks.json": [0], "https://stack.example/jwks.json": [1]}
        self.fetched: list[str] = []
        rules = BOTH if jwks_url else HS256
        self.authorities = Authorities(
            rules, jwks_url, self.store.fetch, self._public_keys, self.store.clock
        )

    def _public_keys(self, url: str) -> PublicKeys:
        def fetch() -> Any:
            self.fetched.append(url)
            return {"keys": [key_set()["keys"][place] for place in self.sets[url]]}

        return PublicKeys(fetch, self.store.clock)

    def accepts(self, token: str) -> bool:
        try:
            verify(token, *self.authorities.of(claimed_gateway(token)), NOW)
        except AuthFailed:
            return False
        return True


def by_acme(**claims: object) -> str:
    kept = {"gw": "acme", "iss": ACME["issuer"], "aud": ACME["audience"]} | claims
    return by_key(rsa_key(), "RS256", "r1", **kept)


def by_stack(**claims: object) -> str:
    return by_key(ec_key(), "ES256", "e1", **claims)


# --- a secret for each gateway --------------------------------------------------------------------


@pytest.mark.law("U5")
@given(GATEWAYS, GATEWAYS, st.sampled_from(["client", "admin"]))
def test_a_gateways_secret_signs_tokens_of_that_gateway_only(
    own: str, other: str, role: str
) -> None:
    world = World({"current": CURRENT})
    secret = gateway_secret(CURRENT, own)

    assert world.accepts(signed(secret, gw=own, role=role))
    assert world.accepts(signed(secret, gw=other, role=role)) == (own == other)
    for gateway in (own, other):
        assert world.accepts(signed(CURRENT, gw=gateway, role=role))


@pytest.mark.law("U5")
@given(GATEWAYS, GATEWAYS, st.integers(0, 99), st.integers(0, 99))
def test_gateway_secrets_differ_by_gateway_and_generation(
    one: str, two: str, first: int, second: int
) -> None:
    same = (one, first) == (two, second)

    assert (gateway_secret(CURRENT, one, first) == gateway_secret(CURRENT, two, second)) == same
    assert gateway_secret(CURRENT, one) != gateway_secret(PREVIOUS, one)


def test_the_derivation_of_a_gateway_secret_is_pinned() -> None:
    """Tenants have it: whatever changes it locks them out."""
    assert gateway_secret(CURRENT, "acme", 1) == (
        "182d5805c24e31a74920f02b49aa918f1b9bea3dc60be3137a0a04290f1e5749"
    )


@pytest.mark.law("U5")
def test_rotating_one_gateways_secret_does_not_affect_other_gateways() -> None:
    world = World({"current": CURRENT, "generations": {"acme": [1, 0]}})

    def accepted(gateway: str) -> list[int]:
        secrets = [gateway_secret(CURRENT, gateway, n) for n in range(3)]
        return [n for n in range(3) if world.accepts(signed(secrets[n], gw=gateway))]

    assert (accepted("acme"), accepted("blue")) == ([0, 1], [0])
    world.store.document = {"current": CURRENT, "generations": {"acme": [1]}}
    world.store.now_s += KEYS_AGE_S_MAX
    assert (accepted("acme"), accepted("blue")) == ([1], [0])
    world.store.document = {"current": CURRENT, "generations": {"acme": [2]}}
    world.store.now_s += FETCH_PAUSE_S
    assert 2 in accepted("acme")


@pytest.mark.law("U5")
def test_gateway_secrets_derived_from_the_previous_stack_secret_expire_with_it() -> None:
    world = World({"current": CURRENT, "previous": PREVIOUS})

    assert world.accepts(signed(gateway_secret(PREVIOUS, "acme"), gw="acme"))
    world.store.document = {"current": CURRENT, "previous": ""}
    world.store.now_s += KEYS_AGE_S_MAX
    assert not world.accepts(signed(gateway_secret(PREVIOUS, "acme"), gw="acme"))


# --- an identity provider for some gateways -------------------------------------------------------


@pytest.mark.law("U5")
@pytest.mark.parametrize("jwks_url", ["", "https://stack.example/jwks.json"])
def test_an_issuer_signs_only_for_its_gateways_and_alone_for_them(jwks_url: str) -> None:
    world = World({"current": CURRENT, "issuers": [ACME]}, jwks_url=jwks_url)
    by_operator = by_stack if jwks_url else signed

    assert world.accepts(by_acme())
    assert world.accepts(by_acme(gw="acme-test", role="admin"))
    assert not world.accepts(by_acme(gw="blue"))
    assert not world.accepts(by_acme(gw=["acme"]))
    assert world.accepts(by_operator(gw="blue"))
    # These gateways take no tokens but their issuer's.
    assert not world.accepts(by_operator(gw="acme"))
    assert not world.accepts(signed(gateway_secret(CURRENT, "acme"), gw="acme"))


@pytest.mark.law("U5")
@pytest.mark.parametrize(
    "claims",
    [
        {"iss": "https://blue.example"}, {"iss": None}, {"aud": "other"}, {"aud": None},
        {"iss": "", "aud": ""},
    ],
)  # fmt: skip
def test_a_token_of_the_issuers_keys_with_other_issuer_or_audience_is_refused(
    claims: dict[str, object],
) -> None:
    world = World({"current": CURRENT, "issuers": [ACME]})
    kept = {"iss": ACME["issuer"], "aud": ACME["audience"]} | claims
    token = by_key(rsa_key(), "RS256", "r1", gw="acme", **{n: v for n, v in kept.items() if v})

    assert not world.accepts(token)


def test_an_algorithm_that_the_issuer_does_not_use_is_refused() -> None:
    world = World({"current": CURRENT, "issuers": [ACME]})
    world.sets["https://acme.example/jwks.json"] = [0, 1]
    kept = {"gw": "acme", "iss": ACME["issuer"], "aud": ACME["audience"]}

    assert not world.accepts(by_key(ec_key(), "ES256", "e1", **kept))
    assert not world.accepts(jwt.encode(CLAIMS | kept, CURRENT, "HS256"))


def test_an_issuers_keys_are_fetched_at_the_first_token_of_its_gateways() -> None:
    document = {"current": CURRENT, "issuers": [ACME]}
    world = World(document, jwks_url="https://stack.example/jwks.json")
    for _ in range(3):
        assert world.accepts(by_stack(gw="blue"))
    assert world.fetched == ["https://stack.example/jwks.json"]
    for _ in range(3):
        assert world.accepts(by_acme())

    assert world.fetched[1:] == ["https://acme.example/jwks.json"]


def test_tokens_naming_arbitrary_gateways_cause_no_key_set_fetch() -> None:
    world = World({"current": CURRENT, "issuers": [ACME]})
    for number in range(50):
        assert not world.accepts(signed("another-secret-0123456789-0123456789", gw=f"g{number}"))

    assert len(world.store.fetched_s) == 2
    assert world.fetched == []


# --- the document ---------------------------------------------------------------------------------

BROKEN: list[Any] = [
    {"generations": []}, {"generations": {"acme": []}}, {"generations": {"acme": 1}},
    {"generations": {"acme": [-1]}}, {"generations": {"acme": [True]}},
    {"generations": {"a|b": [1]}}, {"generations": {"acme": list(range(GENERATIONS_MAX + 1))}},
    {"generations": {"acme": [1 << 31]}}, {"issuers": {}}, {"issuers": [7]}, {"issuers": [{}]},
    {"issuers": [ACME | {"gateways": []}]}, {"issuers": [ACME | {"gateways": "acme"}]},
    {"issuers": [ACME | {"gateways": ["a|b"]}]}, {"issuers": [ACME, ACME]},
    {"issuers": [ACME | {"issuer": ""}]}, {"issuers": [ACME | {"audience": ""}]},
    {"issuers": [ACME | {"audience": None}]}, {"issuers": [ACME | {"jwksUrl": "http://acme"}]},
    {"issuers": [ACME | {"algorithms": ["HS256"]}]}, {"issuers": [ACME | {"algorithms": []}]},
    {"issuers": [ACME | {"algorithms": ["RS256", "none"]}]},
    {"issuers": [ACME | {"algorithms": "RS256"}]},
]  # fmt: skip


@pytest.mark.parametrize("broken", BROKEN, ids=json.dumps)
def test_a_malformed_signers_document_is_refused_and_the_earlier_one_kept(
    broken: dict[str, Any],
) -> None:
    document = {"current": CURRENT} | broken
    with pytest.raises(ValueError, match=r"generations|issuers") as caught:
        read_signers(document, shares_secret=True)
    assert CURRENT not in str(caught.value)

    world = World({"current": CURRENT, "issuers": [ACME]})
    assert world.accepts(by_acme())
    world.store.document = document
    world.store.now_s += KEYS_AGE_S_MAX
    assert world.accepts(by_acme())
    assert not world.accepts(signed(gw="acme"))


def test_the_repr_of_signers_contains_no_secret() -> None:
    signers = read_signers({"current": CURRENT, "previous": PREVIOUS}, shares_secret=True)

    assert signers.secrets == (CURRENT, PREVIOUS)
    assert CURRENT not in repr(signers)


@pytest.mark.parametrize(
    "token", ["", "a", "a.b.c", "...", "é.é.é", "x" * (TOKEN_BYTES_MAX + 1), signed(gw=7)]
)
def test_a_token_without_a_gateway_is_refused(token: str) -> None:
    assert claimed_gateway(token) == ""
    assert not World({"current": CURRENT}).accepts(token)
