"""Verification of tokens: compact JWT → claims. Only the authoriser imports this.

The algorithms are fixed by configuration, never by the token (RFC 8725 § 2.1), and shared secrets
and public keys are never tried on the same token.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

import jwt

from lakesync.errors import AuthFailed
from lakesync.runtime.auth import (
    LEEWAY_S,
    NO_TOKEN,
    check_expiry,
    is_gateway,
    is_time,
    token_claims,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lakesync.runtime.auth import TokenClaims

TOKEN_BYTES_MAX: Final = 6 * 1024
"""API Gateway allows 10 KB for all headers; verifying a larger token would be wasted work."""


class Keys(Protocol):
    """Where verification keys come from; see `lakesync.runtime.keys`."""

    def candidates(self, header: Mapping[str, Any]) -> Sequence[Any]:
        """Return the keys that may have signed a token with this header; none if there is none."""
        ...

    def refreshed(self, header: Mapping[str, Any]) -> Sequence[Any]:
        """Return keys that were not among the candidates before: after a rotation, for instance."""
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
    """Return the token of an ``Authorization`` header.

    Raises:
        AuthFailed: there is none.
    """
    scheme, _, token = (header or "").strip().partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise AuthFailed(NO_TOKEN)
    return token.strip()


def claimed_gateway(token: str) -> str:
    """Return the gateway that a token claims, to choose the keys by which it is verified.

    Nothing is proved by it; it is empty where the token names none.
    """
    if len(token) > TOKEN_BYTES_MAX:
        return ""
    try:
        gateway = jwt.decode(token, options={"verify_signature": False}).get("gw")
    except (jwt.PyJWTError, ValueError, TypeError, RecursionError):
        return ""
    return str(gateway) if is_gateway(gateway) else ""


def verify(token: str, rules: TokenRules, keys: Keys, now_s: float) -> TokenClaims:
    """Return the claims of a token that is genuine, valid now and complete.

    Raises:
        AuthFailed: it is invalid; the message never repeats any of the token.
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
        raise AuthFailed("the token's signature matches no key in force")
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
    # Times are compared here, with an injected clock; the library's own clock is not used.
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
            raise AuthFailed(
                "the token is for another audience or issuer: check aud and iss"
            ) from exc
        except (jwt.PyJWTError, ValueError, TypeError, RecursionError) as exc:
            raise AuthFailed("the token is malformed") from exc
    return None


def _check_start(payload: Mapping[str, Any], now_s: float) -> None:
    starts = payload.get("nbf", 0)
    if not is_time(starts):
        raise AuthFailed("the token's nbf is not a time")
    if now_s < starts - LEEWAY_S:
        raise AuthFailed("the token is not valid yet; check the clock of the token's issuer")
