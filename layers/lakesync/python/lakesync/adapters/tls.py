"""How connections to databases are encrypted: one word for all of them.

- ``verify``: the server's certificate is valid, for the host that was named.
- ``encrypt``: nobody else can read it, but whoever answers may not be the server.
- ``off``: in the clear. MySQL's driver uses TLS, as with ``encrypt``, if the server offers it.
"""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING, Final

from lakesync.errors import ValidationFailed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MODES: Final = ("verify", "encrypt", "off")
_SSLMODES: Final = {"verify": "verify-full", "encrypt": "require", "off": "disable"}


def read_tls(options: Mapping[str, Sequence[str]]) -> str:
    """Return the word that the query of a database's URL has; empty if it has none.

    Raises:
        ValidationFailed: it is another word.
    """
    mode = options.get("tls", [""])[0]
    if "tls" in options and mode not in MODES:
        raise ValidationFailed(f"tls in a database's URL is {', '.join(MODES)}", field="url")
    return mode


def context_of(mode: str, ca: str | None = None) -> ssl.SSLContext | None:
    """Return the context of a connection; None if TLS is not demanded.

    Args:
        mode: one of `MODES`.
        ca: the file with the authorities' certificates; None for the system's.

    Raises:
        ValidationFailed: there is no such file.
    """
    if mode == "off":
        return None
    try:
        context = ssl.create_default_context(cafile=ca)
    except OSError as exc:
        raise ValidationFailed("ca in a database's URL is no file of certificates") from exc
    if mode == "encrypt":
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def libpq_options(mode: str, *, has_ca: bool) -> dict[str, str]:
    """Return the same for PostgreSQL's own library; nothing if no mode was named.

    Args:
        mode: one of `MODES`, or empty.
        has_ca: whether the connection string names the authorities itself.
    """
    if not mode:
        return {}
    # The library's build may look for the system's authorities elsewhere than the system does.
    roots = ssl.get_default_verify_paths().cafile or "system"
    is_systems = mode == "verify" and not has_ca
    return {"sslmode": _SSLMODES[mode]} | ({"sslrootcert": roots} if is_systems else {})
