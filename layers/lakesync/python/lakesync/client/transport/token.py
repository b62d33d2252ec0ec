"""The token that a client shows: asked for when it is needed, checked before it is used."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from lakesync.errors import AuthFailed, LakeSyncError

if TYPE_CHECKING:
    from collections.abc import Callable

_TOKEN: Final = re.compile(r"[A-Za-z0-9._~+/-]+=*")  # RFC 6750, "b64token"


class Token:
    """A token, or what gives one. No error repeats it."""

    def __init__(self, token: str | Callable[[], str]) -> None:
        if isinstance(token, str):
            checked_token(token)
        self._source = token
        self._token: str | None = None

    def forget(self) -> None:
        """Ask for another one the next time."""
        self._token = None

    def give(self) -> str:
        """Give a token that may be sent: the last one, until it is forgotten."""
        if self._token is None:
            self._token = self._new()
        return self._token

    def _new(self) -> str:
        if isinstance(self._source, str):
            return self._source
        try:
            token = self._source()
        except LakeSyncError:
            raise
        except Exception as exc:
            # What it says is not repeated: it may tell a secret.
            raise AuthFailed(
                f"no token could be had: what gives it raised {type(exc).__name__}", field="token"
            ) from exc
        return checked_token(token)


def checked_token(token: object) -> str:
    """Give a token if a header may carry it; the error does not repeat it."""
    if isinstance(token, str) and _TOKEN.fullmatch(token):
        return token
    raise AuthFailed(
        "the token is malformed: it must be text of letters, digits and -._~+/= alone, without "
        "'Bearer', spaces or a line feed at its end",
        field="token",
    )
