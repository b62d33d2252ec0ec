"""Who may sign tokens, as the settings say. Part of `lakesync.runtime.wiring`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from jwt import PyJWKClient

from lakesync.runtime import wiring
from lakesync.runtime.keys import Authorities, PublicKeys
from lakesync.runtime.tokens import TokenRules

if TYPE_CHECKING:
    from collections.abc import Callable

    from lakesync.runtime.settings import AuthoriseSettings

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
