"""Who may sign tokens, as one document: the stack's secrets, and exceptions of single gateways.

It is the text of one secret of Secrets Manager. All of it is optional, except what the stack's own
way of signing needs::

    {"current": "…", "previous": "…",
     "generations": {"acme": [1, 0]},
     "issuers": [{"gateways": ["blue"], "issuer": "https://…", "audience": "…",
                  "jwksUrl": "https://…", "algorithms": ["RS256"]}]}

``generations``: the generations of a gateway's own secret that are in force, the signing one first;
`[0]` if left out. ``issuers``: identity providers of some gateways. Their tokens are valid for
these gateways alone, and these gateways accept no others.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from lakesync.core.gateway_secret import gateway_secret
from lakesync.runtime.auth import is_gateway
from lakesync.runtime.tokens import TokenRules

if TYPE_CHECKING:
    from collections.abc import Mapping

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
