"""Which hosts may be reached over HTTP: those that the operator lists, no internal ones.

Webhooks of actions and connectors that ask over HTTP go through here.

Rules of this module
    1. An entry is ``*`` (any host), a host, ``*.`` and a domain, or an origin with its scheme. All
       but origins are reached by https, and only at public addresses.
    2. A host is resolved once, all its addresses are looked at, and what was looked at is what is
       connected to: a name that is given another address meanwhile changes nothing.
    3. Redirects are not followed, and no proxy is asked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import urlsplit

from lakesync.adapters.hosts import is_public, resolved_addresses
from lakesync.errors import AdapterRefused, AdapterUnreachable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lakesync.adapters.hosts import Resolve

ANY: Final = "*"
_PORTS: Final = {"https": 443, "http": 80}


class Target(NamedTuple):
    """Where to connect to."""

    scheme: str
    host: str
    port: int
    address: str
    """An IP address of the host."""
    path: str
    """With the query."""

    @property
    def authority(self) -> str:
        """What the header ``Host`` says."""
        named = f"[{self.host}]" if ":" in self.host else self.host
        return named if self.port == _PORTS[self.scheme] else f"{named}:{self.port}"


def target_of(url: str, allowed: Sequence[str], resolve: Resolve = resolved_addresses) -> Target:
    """Return where a URL leads to, if it may be reached.

    Raises:
        AdapterRefused: it may not.
        AdapterUnreachable: its host cannot be resolved.
    """
    try:
        parts = urlsplit(url)
        given = parts.port
    except ValueError as exc:
        raise AdapterRefused(f"this is no URL of a host that can be reached: {exc}") from exc
    host, scheme = (parts.hostname or "").rstrip("."), parts.scheme
    port = given or _PORTS.get(scheme, 0)
    is_origin = f"{scheme}://{parts.netloc}" in allowed
    if not is_listed(url, allowed):
        raise AdapterRefused(
            f"the operator of this stack does not allow requests to {scheme}://{host}; ask for it"
        )
    addresses = resolve(host, port)
    if not is_origin and not all(map(is_public, addresses)):
        raise AdapterRefused(
            f"{host} has a private address; requests may go to public addresses only"
        )
    if not addresses:
        raise AdapterUnreachable(f"{host} has no address")
    path = parts.path or "/"
    return Target(
        scheme, host, port, addresses[0], f"{path}?{parts.query}" if parts.query else path
    )


def is_listed(url: str, allowed: Sequence[str]) -> bool:
    """Return whether the operator allows a URL's host, or its origin."""
    try:
        parts = urlsplit(url)
        host, port = (parts.hostname or "").rstrip("."), parts.port
    except ValueError:
        return False
    if port == 0:
        return False
    if f"{parts.scheme}://{parts.netloc}" in allowed:
        return True
    named = any(
        entry in {ANY, host} or (entry.startswith("*.") and host.endswith(entry[1:]))
        for entry in allowed
    )
    return parts.scheme == "https" and bool(host) and named and "@" not in parts.netloc
