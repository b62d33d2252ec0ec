"""Verification of tokens: compact JWT → claims. Only the authoriser imports this.

The algorithms are fixed by configuration, never by the token (RFC 8725 § 2.1), and shared secrets
and public keys are never tried on the same token.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

import jwt

from lakesync.errors import AuthFailed
from lakesync.runtime.auth import LEEWAY_S, NO_TOKEN, check_expiry, is_time, token_claims

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from lakesync.runtime.auth import TokenClaims

TOKEN_BYTES_MAX: Final = 6 * 1024
"""API Gateway allows 10 KB for all headers; verifying something huge is work for nothing."""
SECRET_BYTES_MIN: Final = 32
"""RFC 7518 § 3.2: an HS256 key is at least as long as its hash."""
REREAD_S: Final = 30
"""How often at most the secrets are read again because no known one fits."""


class Keys(Protocol):
    """Where verification keys come from."""

    def candidates(self, header: Mapping[str, Any]) -> Sequence[Any]:
        """Give the keys that may have signed a token with this header; none if there is none."""
        ...

    def refreshed(self, header: Mapping[str, Any]) -> Sequence[Any]:
        """Give keys that were not among the candidates before: after a rotation, for instance."""
        ...


@dataclass(frozen=True, slots=True)
class TokenRules:
    """What a token must satisfy, by configuration."""

    algorithms: tuple[str, ...]
    issuer: str = ""
    """The ``iss`` that is required; empty if any will do."""
    audience: str = ""
    """The ``aud`` that is required; empty if any will do."""


def bearer_token(header: str | None) -> str:
    """Give the token of an ``Authorization`` header.

    Raises:
        AuthFailed: there is none.
    """
    scheme, _, token = (header or "").strip().partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise AuthFailed(NO_TOKEN)
    return token.strip()


def verify(token: str, rules: TokenRules, keys: Keys, now_s: float) -> TokenClaims:
    """Give the claims of a token that is genuine, valid now and complete.

    Raises:
        AuthFailed: it is not; the sentence never repeats any of the token.
    """
    if len(token) > TOKEN_BYTES_MAX:
        raise AuthFailed(f"the token is over {TOKEN_BYTES_MAX} bytes; leave claims out")
    header = _header(token)
    if header.get("alg") not in rules.algorithms:
        raise AuthFailed(f"the token must be signed with {' or '.join(rules.algorithms)}")
    payload = _payload(token, keys.candidates(header), rules)
    if payload is None:
        payload = _payload(token, keys.refreshed(header), rules)
    if payload is None:
        raise AuthFailed("the token's signature fits no key that is in force")
    claims = token_claims(payload)
    check_expiry(claims, now_s)
    _check_start(payload, now_s)
    return claims


def _header(token: str) -> Mapping[str, Any]:
    try:
        return jwt.get_unverified_header(token)
    except (jwt.PyJWTError, ValueError) as exc:
        raise AuthFailed("the token is not a JWT") from exc


def _payload(token: str, keys: Sequence[Any], rules: TokenRules) -> Mapping[str, Any] | None:
    # Times are judged here, by a clock that is passed in; the library's own is not asked.
    options: Any = {
        "require": ["exp", "sub", "gw"],
        "verify_exp": False,
        "verify_nbf": False,
        "verify_iat": False,
        "verify_aud": bool(rules.audience),
        "verify_iss": bool(rules.issuer),
    }
    for key in keys:
        try:
            return jwt.decode(
                token,
                key,
                algorithms=list(rules.algorithms),
                options=options,
                audience=rules.audience or None,
                issuer=rules.issuer or None,
            )
        except (jwt.InvalidSignatureError, jwt.InvalidKeyError):
            continue
        except jwt.MissingRequiredClaimError as exc:
            raise AuthFailed(f"the token needs the claim {exc.claim}") from exc
        except (jwt.InvalidAudienceError, jwt.InvalidIssuerError) as exc:
            raise AuthFailed("the token was made for something else: check aud and iss") from exc
        except (jwt.PyJWTError, ValueError, TypeError, RecursionError) as exc:
            raise AuthFailed("the token is malformed") from exc
    return None


def _check_start(payload: Mapping[str, Any], now_s: float) -> None:
    starts = payload.get("nbf", 0)
    if not is_time(starts):
        raise AuthFailed("the token's nbf is not a time")
    if now_s < starts - LEEWAY_S:
        raise AuthFailed("the token is not valid yet; check the clock of whoever made it")


class SharedSecrets:
    """The current and the previous HS256 secret, as the secret store has them.

    Args:
        read: gives ``{"current": …, "previous": …?}``; ``read(fresh=True)`` passes by any cache.
        clock: seconds since any moment; it only goes forward.
    """

    def __init__(
        self,
        read: Callable[..., Mapping[str, Any]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._read = read
        self._clock = clock
        self._reread_after = 0.0

    def candidates(self, header: Mapping[str, Any]) -> Sequence[str]:  # noqa: ARG002 - any token
        """Give the current secret, then the previous one."""
        return _secrets(self._read(fresh=False))

    def refreshed(self, header: Mapping[str, Any]) -> Sequence[str]:
        """Give the secrets again, fresh: they may have been rotated a moment ago."""
        if self._clock() < self._reread_after:
            return ()
        # Tokens with a wrong signature must not become a way to call the secret store at will.
        self._reread_after = self._clock() + REREAD_S
        known = self.candidates(header)
        return [secret for secret in _secrets(self._read(fresh=True)) if secret not in known]


def _secrets(held: Mapping[str, Any]) -> list[str]:
    secrets = [held.get("current"), held.get("previous")]
    usable = [
        secret
        for secret in secrets
        if isinstance(secret, str) and len(secret.encode()) >= SECRET_BYTES_MIN
    ]
    if not usable:
        raise ValueError(f"the secret needs current, text of at least {SECRET_BYTES_MIN} bytes")
    return usable


class PublicKeys:
    """The public keys of a JWKS address, by key id; unknown ids are looked up again, rarely."""

    def __init__(self, client: jwt.PyJWKClient) -> None:
        self._client = client

    def candidates(self, header: Mapping[str, Any]) -> Sequence[Any]:
        """Give the key that the token names; the client fetches the set again if it must."""
        key_id = header.get("kid")
        if not isinstance(key_id, str):
            return ()
        try:
            return (self._client.get_signing_key(key_id),)
        except jwt.PyJWKClientConnectionError:
            raise
        except jwt.PyJWKClientError:
            return ()

    def refreshed(self, header: Mapping[str, Any]) -> Sequence[Any]:  # noqa: ARG002 - see above
        """Give none: `candidates` has looked already."""
        return ()
