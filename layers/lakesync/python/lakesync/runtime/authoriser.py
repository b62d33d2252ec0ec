"""The Lambda authorizer: verifies a token by its signer's keys, and returns its claims or a reason.

API Gateway answers a refusal by an authorizer with a body of its own. So a bad token is answered
with a context that contains the reason, and every function refuses it with our error body, as it
refuses any context other than that of a good token: see `lakesync.runtime.auth`. Only
``functions/authorise`` imports this.

Tokens: the algorithms are fixed by configuration, never by the token (RFC 8725 § 2.1), and shared
secrets and public keys are never tried on the same token.

Signers are described by one document, the text of one secret of Secrets Manager. All of it is
optional, except what the stack's own way of signing needs::

    {"current": "…", "previous": "…",
     "generations": {"acme": [1, 0]},
     "issuers": [{"gateways": ["blue"], "issuer": "https://…", "audience": "…",
                  "jwksUrl": "https://…", "algorithms": ["RS256"]}]}

``generations``: the generations of a gateway's own secret that are in force, the signing one first;
`[0]` if left out. ``issuers``: identity providers of some gateways. Their tokens are valid for
these gateways alone, and these gateways accept no others.

Keys: anyone may send a token that matches no key, so neither a wrong signature nor an unknown key
id may trigger a call to the secret store or the identity provider each time. A failed fetch removes
nothing: the previous keys stay in force until newer ones arrive.
"""

from __future__ import annotations

import json
import time
from copy import copy
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar

import jwt
from jwt import PyJWKClient

from lakesync.core.gateway_identity import gateway_secret
from lakesync.errors import AuthFailed
from lakesync.runtime import observe, wiring
from lakesync.runtime.auth import (
    LEEWAY_S,
    NO_TOKEN,
    check_expiry,
    is_gateway,
    is_time,
    refused,
    token_claims,
    verified,
)
from lakesync.runtime.websockets import socket_ticket, socket_token

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from lakesync.runtime.auth import TokenClaims
    from lakesync.runtime.settings import AuthoriseSettings

    Redeem = Callable[[str], TokenClaims]

# --- tokens ---------------------------------------------------------------------------------------


TOKEN_BYTES_MAX: Final = 6 * 1024
"""API Gateway allows 10 KB for all headers; verifying a larger token would be wasted work."""


class Keys(Protocol):
    """Where verification keys come from; see `lakesync.runtime.authoriser`."""

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


# --- signers --------------------------------------------------------------------------------------


SECRET_BYTES_MIN: Final = 32
"""RFC 7518 § 3.2: an HS256 key is at least as long as its hash."""
GENERATIONS_MAX: Final = 4
"""Generations of one gateway's secret that are in force at once; a rotation needs two."""
PUBLIC_ALGORITHMS: Final = ("RS256", "ES256")
_FIRST: Final = (0,)


@dataclass(frozen=True, slots=True)
class Issuer:
    """An identity provider of some gateways."""

    rules: TokenRules
    jwks_url: str


@dataclass(frozen=True, slots=True)
class Signers:
    """Who may sign tokens. Made by `read_signers`, and valid."""

    secrets: tuple[str, ...] = field(repr=False)
    """The stack's, the one that signs first."""
    generations: Mapping[str, tuple[int, ...]]
    issuers: Mapping[str, Issuer]
    """By gateway."""

    def secrets_for(self, gateway: str) -> list[str]:
        """Return the secrets that may sign for a gateway: the stack's, and its own."""
        generations = self.generations.get(gateway, _FIRST)
        own = [gateway_secret(each, gateway, n) for each in self.secrets for n in generations]
        return [*self.secrets, *own]


def read_signers(document: object, *, shares_secret: bool) -> Signers:
    """Read the document.

    Args:
        document: as the secret store has it.
        shares_secret: the stack itself signs with a shared secret, so there must be one.

    Raises:
        ValueError: it is malformed; the message repeats no secret.
    """
    fields = document if isinstance(document, dict) else {}
    secrets = tuple(
        secret
        for secret in (fields.get("current"), fields.get("previous"))
        if isinstance(secret, str) and len(secret.encode()) >= SECRET_BYTES_MIN
    )
    if shares_secret and not secrets:
        raise ValueError(f"the secret needs current, text of at least {SECRET_BYTES_MIN} bytes")
    generations, listed = fields.get("generations", {}), fields.get("issuers", [])
    are_read = isinstance(generations, dict) and isinstance(listed, list)
    if not are_read:
        raise ValueError("generations must be a JSON object, issuers a list")
    issuers: dict[str, Issuer] = {}
    for place, item in enumerate(listed):
        gateways, issuer = _issuer(item, f"issuers[{place}]")
        for gateway in gateways:
            if gateway in issuers:
                raise ValueError(f"issuers[{place}]: {gateway} has another issuer already")
            issuers[gateway] = issuer
    return Signers(
        secrets,
        MappingProxyType({name: _generations(name, generations[name]) for name in generations}),
        MappingProxyType(issuers),
    )


def _generations(gateway: str, value: object) -> tuple[int, ...]:
    numbers = value if isinstance(value, list) else []
    good = all(type(number) is int and 0 <= number < 1 << 31 for number in numbers)
    if not is_gateway(gateway) or not good or not 0 < len(numbers) <= GENERATIONS_MAX:
        raise ValueError(
            f"generations.{gateway[:64]}: 1 to {GENERATIONS_MAX} whole numbers of a gateway id"
        )
    return tuple(numbers)


def _issuer(item: object, at: str) -> tuple[list[str], Issuer]:
    """Read one issuer: all of it must be stated, as its keys may sign for other apps too."""
    fields = item if isinstance(item, dict) else {}
    gateways, algorithms = fields.get("gateways"), fields.get("algorithms", ["RS256"])
    texts = [fields.get(name) for name in ("issuer", "audience", "jwksUrl")]
    if not isinstance(gateways, list) or not gateways or not all(map(is_gateway, gateways)):
        raise ValueError(f"{at}.gateways must be a list of gateway ids")
    if not all(isinstance(text, str) and text for text in texts):
        raise ValueError(f"{at} needs issuer, audience and jwksUrl, all text")
    if not str(texts[2]).startswith("https://"):
        raise ValueError(f"{at}.jwksUrl must be an https address")
    if not isinstance(algorithms, list) or not algorithms:
        raise ValueError(f"{at}.algorithms must be a list")
    if not all(name in PUBLIC_ALGORITHMS for name in algorithms):
        # A public key must never be taken for a shared secret (RFC 8725 § 2.1).
        raise ValueError(f"{at}.algorithms must be {' or '.join(PUBLIC_ALGORITHMS)}")
    issuer, audience, url = map(str, texts)
    return gateways, Issuer(TokenRules(tuple(algorithms), issuer, audience), url)


# --- keys -----------------------------------------------------------------------------------------


KeySet = TypeVar("KeySet")

KEYS_AGE_S_MAX: Final = 300
"""How long a warm authoriser may continue to accept a key that was taken out of force."""
FETCH_PAUSE_S: Final = 30
"""The least time between two fetches because of a token that matches no key, or after one that
failed: how long a new key may be unknown.
"""
FIRST_FETCH_PAUSE_S: Final = 2
"""The same while there are no keys: then nobody is admitted, and the next try may succeed."""


class Kept(Generic[KeySet]):
    """Keys, fetched when they are first needed, when they are old, and when one is unknown."""

    def __init__(self, fetch: Callable[[], KeySet], clock: Callable[[], float]) -> None:
        self._fetch = fetch
        self._clock = clock
        self._keys: KeySet | None = None
        self._failure: Exception | None = None
        self._fetch_after = self._old_after = clock()

    def keys(self) -> KeySet:
        """Return the keys, not older than `KEYS_AGE_S_MAX` unless newer ones cannot be fetched."""
        if self._clock() >= max(self._old_after, self._fetch_after):
            self._renew()
        if self._keys is None:
            assert self._failure is not None  # noqa: S101 - no fetch has succeeded, so one failed
            raise copy(self._failure) from self._failure
        return self._keys

    def renewed(self) -> KeySet:
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
    """The HS256 secrets that may sign for one gateway: the stack's, and the gateway's own."""

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
    """The public keys of an identity provider, by key id."""

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

    ``rules`` and ``jwks_url`` are those of gateways without an issuer of their own; the address is
    empty if a shared secret signs.
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

    def of(self, gateway: str) -> tuple[TokenRules, Keys]:
        """Return the rules and keys of a gateway's tokens; if it names none, those of any other."""
        issuer = self._signers.keys().issuers.get(gateway)
        if issuer is None and not self._jwks_url:
            return self._rules, SharedSecrets(self._signers, gateway)
        rules, url = (issuer.rules, issuer.jwks_url) if issuer else (self._rules, self._jwks_url)
        if url not in self._by_url:
            self._by_url[url] = self._public_keys(url)
        return rules, self._by_url[url]


# --- the handler ----------------------------------------------------------------------------------


def lambda_authoriser(
    authorities: Authorities,
    clock: Callable[[], float] = time.time,
    *,
    redeem: Redeem | None = None,
    token_in_query: bool = False,
) -> Callable[[dict[str, Any], Any], dict[str, Any]]:
    """Return the handler of an HTTP API's authorizer (payload 2.0, simple responses).

    Also that of a WebSocket API, whose answer is passed on for as long as the connection lasts.
    Keys that cannot be read raise, so that nothing is cached and the error alarm fires; so does a
    ticket that cannot be looked up. Without ``redeem`` tickets are refused.
    """

    def claims_of(token: str) -> TokenClaims:
        rules, keys = authorities.of(claimed_gateway(token))
        return verify(token, rules, keys, clock())

    def socket_claims(event: dict[str, Any]) -> TokenClaims:
        ticket = socket_ticket(event) if redeem else ""
        if redeem and ticket:
            return redeem(ticket)
        return claims_of(socket_token(event, in_query=token_in_query))

    def handler(event: dict[str, Any], context: object) -> dict[str, Any]:  # noqa: ARG001 - AWS's
        is_socket = "methodArn" in event
        try:
            if is_socket:
                claims = socket_claims(event)
            else:
                claims = claims_of(bearer_token(event.get("headers", {}).get("authorization")))
            answer = verified(claims)
        except AuthFailed as error:
            observe.logger.info("token refused", extra={"reason": error.message})
            observe.count("TokensRefused")
            answer = refused(error)
        observe.publish()
        if is_socket:
            return {
                "principalId": "caller",
                "policyDocument": _may_connect(event["methodArn"]),
                "context": answer,
            }
        return {"isAuthorized": True, "context": answer}

    return handler


def _may_connect(arn: str) -> dict[str, Any]:
    statement = {"Action": "execute-api:Invoke", "Effect": "Allow", "Resource": arn}
    return {"Version": "2012-10-17", "Statement": [statement]}


# --- composition ----------------------------------------------------------------------------------


JWKS_TIMEOUT_S: Final = 5


def authorities(settings: AuthoriseSettings) -> Authorities:
    """Return by which rules and keys the tokens of each gateway are verified."""
    rules = TokenRules(settings.algorithms, settings.issuer, settings.audience)
    url = "" if settings.shares_secret else settings.jwks_url
    return Authorities(rules, url, _document_reader(settings), public_keys)


def public_keys(url: str) -> PublicKeys:
    """Return the keys at an identity provider's address."""
    # Keys are cached only by our code: this cache would forget good ones when a fetch fails.
    jwks = PyJWKClient(url, cache_jwk_set=False, timeout=JWKS_TIMEOUT_S)
    return PublicKeys(jwks.fetch_data)


def _document_reader(settings: AuthoriseSettings) -> Callable[[], Any]:
    if not settings.secret_arn:
        return dict
    store = wiring.client(settings, "secretsmanager", attempts=2)
    return lambda: json.loads(store.get_secret_value(SecretId=settings.secret_arn)["SecretString"])
