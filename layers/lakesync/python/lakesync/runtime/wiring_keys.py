"""Where the authoriser finds its keys, as its settings say. Part of `lakesync.runtime.wiring`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from lakesync.runtime import wiring

if TYPE_CHECKING:
    from collections.abc import Callable

    from lakesync.runtime.settings import AuthoriseSettings
    from lakesync.runtime.tokens import Keys

JWKS_TIMEOUT_S: Final = 5


def keys(settings: AuthoriseSettings) -> Keys:
    """Give where the authoriser finds its keys."""
    from lakesync.runtime.keys import PublicKeys, SharedSecrets  # noqa: PLC0415

    if settings.shares_secret:
        return SharedSecrets(_secret_reader(settings))
    from jwt import PyJWKClient  # noqa: PLC0415

    # Keys are kept by ours alone: this cache would forget good ones when a fetch fails.
    jwks = PyJWKClient(settings.jwks_url, cache_jwk_set=False, timeout=JWKS_TIMEOUT_S)
    return PublicKeys(jwks.fetch_data)


def _secret_reader(settings: AuthoriseSettings) -> Callable[[], Any]:
    store = wiring.client(settings, "secretsmanager", attempts=2)
    return lambda: json.loads(store.get_secret_value(SecretId=settings.secret_arn)["SecretString"])
