"""Verification of tokens: what is genuine, complete and valid now passes; nothing else does."""

from __future__ import annotations

import base64
import json
import time
from functools import cache
from typing import TYPE_CHECKING, Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from hypothesis import given
from hypothesis import strategies as st

from lakesync.errors import AuthFailed
from lakesync.runtime.authoriser import (
    TOKEN_BYTES_MAX,
    Authorities,
    PublicKeys,
    TokenRules,
    bearer_token,
    verify,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from lakesync.runtime.authoriser import Keys

NOW = 1_700_000_000.0
CURRENT = "current-secret-0123456789-0123456789"
PREVIOUS = "previous-secret-0123456789-0123456789"
HS256 = TokenRules(("HS256",))
CLAIMS = {"sub": "c1", "gw": "g1", "exp": NOW + 60}


def shared(fetch: Callable[[], object], clock: Callable[[], float] = time.monotonic) -> Authorities:
    """Return who may sign, where there is a shared secret."""
    return Authorities(HS256, "", fetch, lambda _: PublicKeys(dict), clock)


def secrets(**given: str) -> Keys:
    store = given or {"current": CURRENT, "previous": PREVIOUS}
    _, keys = shared(lambda: store).of("g1")
    return keys


def signed(secret: str = CURRENT, algorithm: str = "HS256", **claims: object) -> str:
    kept = {name: value for name, value in (CLAIMS | claims).items() if value is not None}
    return jwt.encode(kept, secret, algorithm)


def segment(value: object) -> str:
    text = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(text).rstrip(b"=").decode()


def test_a_genuine_token_gives_its_claims() -> None:
    claims = verify(signed(role="admin", team="blue"), HS256, secrets(), NOW)

    assert (claims.user, claims.gateway, claims.role) == ("c1", "g1", "admin")
    assert claims.all["team"] == "blue"


def test_the_role_is_client_by_default() -> None:
    assert verify(signed(), HS256, secrets(), NOW).role == "client"


def test_the_previous_secret_verifies_and_an_unknown_secret_does_not() -> None:
    assert verify(signed(PREVIOUS), HS256, secrets(), NOW).user == "c1"
    with pytest.raises(AuthFailed, match="no key"):
        verify(signed("another-secret-0123456789-0123456789"), HS256, secrets(), NOW)


def test_an_empty_previous_secret_verifies_no_token() -> None:
    with pytest.raises(AuthFailed):
        verify(signed(PREVIOUS), HS256, secrets(current=CURRENT, previous=""), NOW)


def test_a_secret_shorter_than_32_bytes_is_refused() -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        verify(signed(), HS256, secrets(current="short"), NOW)


@pytest.mark.parametrize(
    ("claims", "sentence"),
    [
        ({"exp": NOW - 6}, "expired"),
        ({"exp": None}, "exp"),
        ({"exp": "tomorrow"}, "exp"),
        ({"exp": True}, "exp"),
        ({"exp": 10**400}, "exp"),
        ({"exp": -1}, "exp"),
        ({"nbf": NOW + 6}, "not valid yet"),
        ({"nbf": "now"}, "nbf"),
        ({"sub": None}, "sub"),
        ({"sub": ""}, "sub"),
        ({"sub": "x" * 256}, "sub"),
        ({"gw": None}, "gw"),
        ({"gw": 7}, "gw"),
        ({"gw": ""}, "gw"),
        ({"gw": "a/b"}, "gw"),
        ({"gw": "a|b"}, "gw"),
        ({"gw": ["g1"]}, "gw"),
        ({"role": "root"}, "role"),
        ({"role": ["admin"]}, "role"),
        ({"role": 1}, "role"),
    ],
)
def test_a_token_with_a_missing_or_invalid_claim_is_refused_with_the_reason(
    claims: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(AuthFailed, match=sentence):
        verify(signed(**claims), HS256, secrets(), NOW)


def test_a_token_whose_subject_is_not_text_is_refused() -> None:
    token = jwt.PyJWT().encode({"gw": "g1", "exp": NOW + 60}, CURRENT, "HS256")
    head, _, _ = token.split(".")
    body = segment({"sub": 7, "gw": "g1", "exp": NOW + 60})
    signature = jwt.get_algorithm_by_name("HS256").sign(f"{head}.{body}".encode(), CURRENT.encode())
    with pytest.raises(AuthFailed):
        verify(f"{head}.{body}.{segment(signature)}", HS256, secrets(), NOW)


def test_expiry_and_not_before_tolerate_a_few_seconds_of_clock_skew() -> None:
    assert verify(signed(exp=NOW - 4, nbf=NOW + 4), HS256, secrets(), NOW).user == "c1"


def test_an_unsigned_token_is_refused() -> None:
    for header in ({"alg": "none"}, {"alg": "None"}, {"typ": "JWT"}, {"alg": None}):
        token = f"{segment(header)}.{segment(CLAIMS)}."
        with pytest.raises(AuthFailed):
            verify(token, HS256, secrets(), NOW)


@pytest.mark.parametrize("algorithm", ["HS384", "HS512"])
def test_a_token_signed_with_another_algorithm_is_refused(algorithm: str) -> None:
    token = signed(CURRENT * 2, algorithm)
    with pytest.raises(AuthFailed, match="signed with HS256"):
        verify(token, HS256, secrets(current=CURRENT * 2), NOW)


@pytest.mark.parametrize("part", [0, 1, 2])
def test_a_tampered_token_is_refused(part: int) -> None:
    parts = signed().split(".")
    parts[part] = ("A" if parts[part][0] != "A" else "B") + parts[part][1:]
    with pytest.raises(AuthFailed):
        verify(".".join(parts), HS256, secrets(), NOW)


def test_a_token_with_the_claims_of_another_token_is_refused() -> None:
    mine, other = signed().split("."), signed(gw="g2").split(".")
    with pytest.raises(AuthFailed):
        verify(".".join([mine[0], other[1], mine[2]]), HS256, secrets(), NOW)


def test_an_oversized_token_is_refused() -> None:
    with pytest.raises(AuthFailed, match="bytes"):
        verify(signed(padding="x" * TOKEN_BYTES_MAX), HS256, secrets(), NOW)


@given(st.text(max_size=200) | st.binary(max_size=200).map(lambda raw: raw.decode("latin-1")))
def test_arbitrary_text_is_refused_as_a_token_and_not_repeated(token: str) -> None:
    with pytest.raises(AuthFailed) as caught:
        verify(token, HS256, secrets(), NOW)

    assert len(token) < 8 or token not in str(caught.value)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=5,
    )
)
def test_a_signed_token_with_an_invalid_payload_is_refused(payload: object) -> None:
    head = segment({"alg": "HS256", "typ": "JWT"})
    body = segment(payload)
    signature = jwt.get_algorithm_by_name("HS256").sign(f"{head}.{body}".encode(), CURRENT.encode())
    with pytest.raises(AuthFailed):
        verify(f"{head}.{body}.{segment(signature)}", HS256, secrets(), NOW)


@pytest.mark.parametrize("header", [None, "", "Bearer", "Bearer ", "Basic abc", "token"])
def test_a_missing_bearer_token_is_refused_with_the_expected_header(header: str | None) -> None:
    with pytest.raises(AuthFailed, match="Authorization: Bearer"):
        bearer_token(header)


def test_the_bearer_scheme_is_case_insensitive() -> None:
    assert bearer_token("bearer  abc") == "abc"


# --- public keys ----------------------------------------------------------------------------------


@cache
def rsa_key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


@cache
def ec_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def key_set() -> dict[str, Any]:
    """Return the set of keys that a provider publishes."""
    keys = {
        "r1": jwt.algorithms.RSAAlgorithm.to_jwk(rsa_key().public_key(), as_dict=True)
        | {"alg": "RS256"},
        "e1": jwt.algorithms.ECAlgorithm.to_jwk(ec_key().public_key(), as_dict=True)
        | {"alg": "ES256"},
        "o1": {"kty": "oct", "k": segment(CURRENT.encode()), "alg": "HS256"},
    }
    return {"keys": [key | {"kid": kid, "use": "sig"} for kid, key in keys.items()]}


BOTH = TokenRules(("RS256", "ES256"))


def by_key(key: Any, algorithm: str, kid: str | None, **claims: object) -> str:
    return jwt.encode(CLAIMS | claims, key, algorithm, headers={"kid": kid} if kid else None)


@pytest.mark.parametrize(
    ("key", "algorithm", "kid"), [(rsa_key, "RS256", "r1"), (ec_key, "ES256", "e1")]
)
def test_tokens_are_verified_by_public_keys(
    key: Callable[[], Any], algorithm: str, kid: str
) -> None:
    token = by_key(key(), algorithm, kid)

    assert verify(token, BOTH, PublicKeys(key_set), NOW).user == "c1"


@pytest.mark.parametrize("kid", ["unknown", None])
def test_an_unknown_key_id_is_refused(kid: str | None) -> None:
    with pytest.raises(AuthFailed):
        verify(by_key(rsa_key(), "RS256", kid), BOTH, PublicKeys(key_set), NOW)


def test_a_key_id_of_another_key_type_is_refused() -> None:
    with pytest.raises(AuthFailed):
        verify(by_key(ec_key(), "ES256", "r1"), BOTH, PublicKeys(key_set), NOW)


def test_a_public_key_is_never_taken_for_a_shared_secret() -> None:
    """The classic confusion: HS256 with the public key's own text as the secret."""
    text = (
        rsa_key()
        .public_key()
        .public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    )
    head, body = segment({"alg": "HS256", "typ": "JWT", "kid": "r1"}), segment(CLAIMS)
    signature = jwt.get_algorithm_by_name("HS256").sign(f"{head}.{body}".encode(), text)
    with pytest.raises(AuthFailed, match="RS256 or ES256"):
        verify(f"{head}.{body}.{segment(signature)}", BOTH, PublicKeys(key_set), NOW)


def test_a_symmetric_key_in_the_key_set_verifies_no_token() -> None:
    with pytest.raises(AuthFailed):
        verify(by_key(CURRENT, "HS256", "o1"), BOTH, PublicKeys(key_set), NOW)


def test_issuer_and_audience_are_checked_where_they_are_configured() -> None:
    rules = TokenRules(("RS256",), issuer="https://id.example", audience="lakesync")
    keys = PublicKeys(key_set)
    good = by_key(rsa_key(), "RS256", "r1", iss="https://id.example", aud="lakesync")

    assert verify(good, rules, keys, NOW).user == "c1"
    for wrong in (
        {},
        {"iss": "https://id.example", "aud": "other"},
        {"iss": "x", "aud": "lakesync"},
    ):
        with pytest.raises(AuthFailed):
            verify(by_key(rsa_key(), "RS256", "r1", **wrong), rules, keys, NOW)
