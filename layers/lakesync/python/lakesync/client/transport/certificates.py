"""The certificates that are trusted, read once for all connections of a process."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import ssl


@cache
def trusted() -> ssl.SSLContext:
    """Return the certificates that are trusted, ``SSL_CERT_FILE``'s if it is set.

    Reading them takes longer than a request, and httpx would do it for each of its clients.
    """
    import httpx  # noqa: PLC0415 - only who connects needs it

    return httpx.create_ssl_context()
