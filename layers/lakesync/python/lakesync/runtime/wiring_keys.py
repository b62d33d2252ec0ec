"""Where the authoriser finds its keys, as its settings say. Part of `lakesync.runtime.wiring`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lakesync.runtime.settings import AuthoriseSettings
    from lakesync.runtime.tokens import Keys

SECRET_AGE_S_MAX: Final = 300
"""How long a rotated secret may go unnoticed by a warm authoriser."""
JWKS_TIMEOUT_S: Final = 5


def keys(settings: AuthoriseSettings) -> Keys:
    """Give where the authoriser finds its keys."""
    from lakesync.runtime.tokens import PublicKeys, SharedSecrets  # noqa: PLC0415

    if settings.shares_secret:
        return SharedSecrets(_secret_reader(settings.secret_arn))
    from jwt import PyJWKClient  # noqa: PLC0415

    return PublicKeys(PyJWKClient(settings.jwks_url, timeout=JWKS_TIMEOUT_S))


def _secret_reader(arn: str) -> Callable[..., Mapping[str, Any]]:
    from aws_lambda_powertools.utilities import parameters  # noqa: PLC0415

    def read(*, fresh: bool) -> Mapping[str, Any]:
        held: Mapping[str, Any] = parameters.get_secret(
            arn, max_age=SECRET_AGE_S_MAX, transform="json", force_fetch=fresh
        )
        return held

    return read
