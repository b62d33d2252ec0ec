"""The token that a transport sends: given once, or requested when it is needed."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from lakesync.errors import AuthFailed, LakeSyncError

if TYPE_CHECKING:
    from collections.abc import Callable

_TOKEN: Final = re.compile(r"[A-Za-z0-9._~+/-]+=*")  # RFC 6750, "b64token"


class Token:
    """A token, or a function that returns one. No error repeats it."""

    def __init__(self, token: str | Callable[[], str]) -> None:
        self._source: Callable[[], str] = (lambda: token) if isinstance(token, str) else token
        self._token = checked_token(token) if isinstance(token, str) else None

    def forget(self) -> None:
        """Ask for another one the next time."""
        self._token = None

    def give(self) -> str:
        """Return a token that may be sent: the last one, until it is forgotten."""
        if self._token is None:
            try:
                self._token = checked_token(self._source())
            except LakeSyncError:
                raise
            except Exception as exc:
                # Its message is not repeated, because it may contain a secret.
                raise AuthFailed(
                    f"the function that gives the token raised {type(exc).__name__}",
                    field="token",
                ) from exc
        return self._token


def checked_token(token: object) -> str:
    """Return a token if a header may carry it; the error does not repeat it."""
    if isinstance(token, str) and _TOKEN.fullmatch(token):
        return token
    raise AuthFailed(
        "the token is malformed: it must be text of letters, digits and -._~+/= alone, without "
        "'Bearer', spaces or a line feed at its end",
        field="token",
    )
