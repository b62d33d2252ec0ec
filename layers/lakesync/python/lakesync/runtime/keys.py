"""The keys that verify tokens: fetched, cached, and refreshed at a limited rate.

Anyone may send a token that matches no key, so neither a wrong signature nor an unknown key id may
trigger a call to the secret store or the identity provider each time. A failed fetch removes
nothing: the previous keys stay in force until newer ones arrive.
"""

from __future__ import annotations

import time
from copy import copy
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import jwt

from lakesync.runtime import observe
from lakesync.runtime.signers import read_signers

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from lakesync.runtime.signers import Signers
    from lakesync.runtime.tokens import Keys as TokenKeys
    from lakesync.runtime.tokens import TokenRules

Keys = TypeVar("Keys")

KEYS_AGE_S_MAX: Final = 300
"""How long a warm authoriser may continue to accept a key that was taken out of force."""
FETCH_PAUSE_S: Final = 30
"""The least time between two fetches because of a token that matches no key, or after one that
failed: how long a new key may be unknown.
"""
FIRST_FETCH_PAUSE_S: Final = 2
"""The same while there are no keys: then nobody is admitted, and the next try may succeed."""


class Kept(Generic[Keys]):
    """Keys, fetched when they are first needed, when they are old, and when one is unknown."""

    def __init__(self, fetch: Callable[[], Keys], clock: Callable[[], float]) -> None:
        self._fetch = fetch
        self._clock = clock
        self._keys: Keys | None = None
        self._failure: Exception | None = None
        self._fetch_after = self._old_after = clock()

    def keys(self) -> Keys:
        """Return the keys, not older than `KEYS_AGE_S_MAX` unless newer ones cannot be fetched."""
        if self._clock() >= max(self._old_after, self._fetch_after):
            self._renew()
        if self._keys is None:
            assert self._failure is not None  # noqa: S101 - no fetch has succeeded, so one failed
            raise copy(self._failure) from self._failure
        return self._keys

    def renewed(self) -> Keys:
        """Return the keys, fetched anew unless that was done a moment ago."""
        if self._clock() >= self._fetch_after:
            self._fetch_after = self._clock() + FETCH_PAUSE_S
            self._renew()
        return self.keys()

    def _renew(self) -> None:
        try:
            self._keys = self._fetch()
            self._old_after = self._clock() + KEYS_AGE_S_MAX
        except Exception as failure:
            if self._keys is None:
                self._failure = failure
                self._fetch_after = self._clock() + FIRST_FETCH_PAUSE_S
                raise
            self._fetch_after = self._clock() + FETCH_PAUSE_S
            observe.logger.warning("keys not fetched; those of before stay", exc_info=failure)
            observe.count(observe.DEPENDENCIES_FAILED)


class SharedSecrets:
    """The HS256 secrets that may sign for one gateway: the stack's, and the gateway's own.

    Args:
        signers: who may sign, cached.
        gateway: for which gateway.
    """

    def __init__(self, signers: Kept[Signers], gateway: str) -> None:
        self._signers = signers
        self._gateway = gateway

    def candidates(self, header: Mapping[str, Any]) -> Sequence[str]:  # noqa: ARG002 - any token
        """Return the secrets in force."""
        return self._signers.keys().secrets_for(self._gateway)

    def refreshed(self, header: Mapping[str, Any]) -> Sequence[str]:
        """Return secrets that were not known before: they may have just been rotated."""
        known = self.candidates(header)
        renewed = self._signers.renewed().secrets_for(self._gateway)
        return [secret for secret in renewed if secret not in known]


class PublicKeys:
    """The public keys of an identity provider, by key id.

    Args:
        fetch: gives the set of keys (RFC 7517) as the provider publishes it now.
        clock: seconds since any moment; it only goes forward.
    """

    def __init__(
        self, fetch: Callable[[], Any], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._kept = Kept(lambda: _public_keys(fetch()), clock)

    def candidates(self, header: Mapping[str, Any]) -> Sequence[jwt.PyJWK]:
        """Return the key that the token names; none if it is not known."""
        return _named(self._kept.keys(), header)

    def refreshed(self, header: Mapping[str, Any]) -> Sequence[jwt.PyJWK]:
        """Return the key that the token names, if it was not known before."""
        if self.candidates(header):
            return ()
        return _named(self._kept.renewed(), header)


def _public_keys(document: Any) -> list[jwt.PyJWK]:
    usable = [
        key
        for key in jwt.PyJWKSet.from_dict(document).keys
        if key.key_id and key.public_key_use in {"sig", None}
    ]
    if not usable:
        raise ValueError("the set of public keys holds none that signs and has a kid")
    return usable


def _named(keys: Sequence[jwt.PyJWK], header: Mapping[str, Any]) -> Sequence[jwt.PyJWK]:
    return [key for key in keys if key.key_id == header.get("kid")]


class Authorities:
    """Who may sign for which gateway: the rules and keys by which a token is verified.

    Args:
        rules: of gateways that have no issuer of their own.
        jwks_url: where their keys are; empty if a shared secret signs.
        fetch: gives the document of `lakesync.runtime.signers` as the secret store has it now.
        public_keys: gives the keys at an address.
        clock: seconds since any moment; it only goes forward.
    """

    def __init__(
        self,
        rules: TokenRules,
        jwks_url: str,
        fetch: Callable[[], object],
        public_keys: Callable[[str], PublicKeys],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._rules = rules
        self._jwks_url = jwks_url
        self._signers = Kept(lambda: read_signers(fetch(), shares_secret=not jwks_url), clock)
        self._public_keys = public_keys
        self._by_url: dict[str, PublicKeys] = {}

    def of(self, gateway: str) -> tuple[TokenRules, TokenKeys]:
        """Return the rules and keys of a gateway's tokens; if it names none, those of any other."""
        issuer = self._signers.keys().issuers.get(gateway)
        if issuer is None and not self._jwks_url:
            return self._rules, SharedSecrets(self._signers, gateway)
        rules, url = (issuer.rules, issuer.jwks_url) if issuer else (self._rules, self._jwks_url)
        if url not in self._by_url:
            self._by_url[url] = self._public_keys(url)
        return rules, self._by_url[url]
