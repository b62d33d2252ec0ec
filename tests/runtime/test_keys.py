"""Keys of tokens: fetched seldom, whatever anyone sends, and never lost because a fetch fails."""

from __future__ import annotations

import json
from typing import Any

import jwt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakesync.errors import AuthFailed
from lakesync.runtime import authoriser, observe, settings, wiring
from lakesync.runtime.authoriser import (
    FETCH_PAUSE_S,
    FIRST_FETCH_PAUSE_S,
    KEYS_AGE_S_MAX,
    Authorities,
    PublicKeys,
    verify,
)
from tests.runtime.test_tokens import (
    BOTH,
    CURRENT,
    NOW,
    PREVIOUS,
    by_key,
    ec_key,
    key_set,
    rsa_key,
    shared,
    signed,
)
from tests.support.logs import logged

NEW = "new-secret-0123456789-0123456789-0123456789"


class Store:
    """A secret store or an identity provider, with a clock; it may be away."""

    def __init__(self, document: Any) -> None:
        self.document = document
        self.now_s = 1_000.0
        self.is_away = False
        self.fetched_s: list[float] = []

    def fetch(self) -> Any:
        self.fetched_s.append(self.now_s)
        if self.is_away:
            raise ConnectionError("nobody answers")
        return self.document

    def clock(self) -> float:
        return self.now_s


class Kind:
    """One of the two kinds of keys, with tokens for it."""

    def __init__(self, name: str) -> None:
        self.shares_secret = name == "shared"
        self.good = signed() if self.shares_secret else by_key(rsa_key(), "RS256", "r1")
        self.store = Store({"current": CURRENT} if self.shares_secret else key_set())
        self.authorities = (
            shared(self.store.fetch, self.store.clock)
            if self.shares_secret
            else Authorities(
                BOTH, "https://keys", dict, lambda _: PublicKeys(self.store.fetch, self.store.clock)
            )
        )

    def bad(self, number: int) -> str:
        if self.shares_secret:
            return signed(f"another-secret-{number:020}")
        return by_key(rsa_key(), "RS256", f"k{number}")

    def is_good(self, token: str) -> bool:
        try:
            return verify(token, *self.authorities.of("g1"), NOW).user == "c1"
        except AuthFailed:
            return False


@pytest.fixture(params=["shared", "public"])
def kind(request: pytest.FixtureRequest) -> Kind:
    return Kind(request.param)


def test_tokens_of_unknown_keys_cause_few_fetches(kind: Kind) -> None:
    assert kind.is_good(kind.good)
    for number in range(5):
        assert not kind.is_good(kind.bad(number))
        kind.store.now_s += FETCH_PAUSE_S / 5

    assert len(kind.store.fetched_s) == 2
    assert not kind.is_good(kind.bad(5))
    assert len(kind.store.fetched_s) == 3


def test_a_failed_fetch_keeps_the_known_keys(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    assert kind.is_good(kind.good)
    kind.store.is_away = True
    with logged(monkeypatch) as log:
        for number in range(100):
            kind.store.now_s += KEYS_AGE_S_MAX / 10
            assert not kind.is_good(kind.bad(number))
            assert kind.is_good(kind.good)

    assert "keys not fetched; those of before stay" in log.getvalue()
    kind.store.is_away = False
    kind.store.now_s += FETCH_PAUSE_S
    assert kind.is_good(kind.good)


def test_a_failed_renewal_is_counted(kind: Kind, capsys: pytest.CaptureFixture[str]) -> None:
    kind.is_good(kind.good)
    observe.publish()
    capsys.readouterr()
    kind.store.is_away = True
    kind.store.now_s += KEYS_AGE_S_MAX
    kind.is_good(kind.good)
    observe.publish()

    assert json.loads(capsys.readouterr().out)["DependenciesFailed"] == [1.0]


def test_a_failed_first_fetch_is_raised_and_not_repeated_at_once(kind: Kind) -> None:
    kind.store.is_away = True
    for _ in range(3):
        with pytest.raises(ConnectionError):
            kind.is_good(kind.good)
    assert len(kind.store.fetched_s) == 1

    kind.store.is_away = False
    kind.store.now_s += FIRST_FETCH_PAUSE_S
    assert kind.is_good(kind.good)


def test_a_malformed_key_document_is_refused_and_known_keys_are_kept(kind: Kind) -> None:
    kind.is_good(kind.good)
    documents: list[Any] = [{}, [], None, {"keys": []}, {"keys": [{}]}, {"current": "short"}]
    for document in documents:
        kind.store.document = document
        kind.store.now_s += KEYS_AGE_S_MAX
        assert kind.is_good(kind.good)  # those of before stay

        with pytest.raises((ValueError, TypeError, jwt.PyJWTError, AttributeError)):
            Kind.is_good(_cold(kind), kind.good)


def _cold(kind: Kind) -> Kind:
    cold = Kind("shared" if kind.shares_secret else "public")
    cold.store.document = kind.store.document
    return cold


@pytest.mark.parametrize("is_attacked", [False, True])
def test_a_new_key_is_accepted_at_once_or_after_the_fetch_pause(
    kind: Kind, *, is_attacked: bool
) -> None:
    kind.store.document = (
        {"current": PREVIOUS} if kind.shares_secret else {"keys": key_set()["keys"][1:]}
    )
    other = signed(PREVIOUS) if kind.shares_secret else by_key(ec_key(), "ES256", "e1")
    assert kind.is_good(other)
    if is_attacked:
        assert not kind.is_good(kind.bad(1))
    kind.store.document = {"current": CURRENT} if kind.shares_secret else key_set()

    assert kind.is_good(kind.good) is not is_attacked
    kind.store.now_s += FETCH_PAUSE_S
    assert kind.is_good(kind.good)


def test_a_withdrawn_key_is_refused_after_the_maximum_key_age(kind: Kind) -> None:
    assert kind.is_good(kind.good)
    kind.store.document = (
        {"current": NEW} if kind.shares_secret else {"keys": key_set()["keys"][1:]}
    )
    assert kind.is_good(kind.good)
    kind.store.now_s += KEYS_AGE_S_MAX

    assert not kind.is_good(kind.good)


Step = tuple[float, bool, bool]


@given(st.lists(st.tuples(st.floats(0, 400), st.booleans(), st.booleans()), max_size=60))
def test_valid_tokens_stay_valid_with_few_fetches_whenever_the_store_fails(
    steps: list[Step],
) -> None:
    """Good tokens are good from the first fetch on, and there are never many fetches in a while."""
    kind = Kind("shared")
    assert kind.is_good(kind.good)
    for number, (seconds, is_away, is_bad) in enumerate(steps):
        kind.store.now_s += seconds
        kind.store.is_away = is_away
        assert kind.is_good(kind.bad(number) if is_bad else kind.good) is not is_bad
    fetched_s = kind.store.fetched_s

    # One because the keys are old, one because a token fits none.
    assert all(c - a >= FETCH_PAUSE_S for a, c in zip(fetched_s, fetched_s[2:], strict=False))


def test_the_deployed_authoriser_verifies_tokens_by_public_keys_and_by_secret(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    public = settings.AuthoriseSettings(
        region="eu-central-1",
        algorithms=("RS256",),
        jwks_url="https://keys.example/jwks.json",
        issuer="https://id.example",
        audience="lakesync",
    )
    monkeypatch.setattr(jwt.PyJWKClient, "fetch_data", lambda _: key_set())
    good = by_key(rsa_key(), "RS256", "r1", iss="https://id.example", aud="lakesync")
    assert verify(good, *authoriser.authorities(public).of("g1"), NOW).user == "c1"

    class Secrets:
        def get_secret_value(self, *, SecretId: str) -> dict[str, str]:  # noqa: N803 - AWS's
            return {"SecretString": json.dumps({"current": CURRENT, "arn": SecretId})}

    monkeypatch.setattr(wiring, "client", lambda *_, **__: Secrets())
    hs256 = settings.AuthoriseSettings(
        region="eu-central-1", algorithms=("HS256",), secret_arn="arn"
    )
    assert verify(signed(), *authoriser.authorities(hs256).of("g1"), NOW).user == "c1"
