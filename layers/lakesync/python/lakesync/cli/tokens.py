"""Signs tokens, and reads their subject. The gateway verifies them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from lakesync.cli.faults import UsageFault

if TYPE_CHECKING:
    from collections.abc import Mapping

_UNITS_S: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_TTL: Final = re.compile(r"([0-9]{1,6})([smhd])")


def sign(claims: Mapping[str, object], ttl_s: int, secret: str, now_s: int) -> str:
    """Return an HS256 token that is valid for ``ttl_s`` seconds from ``now_s``."""
    import jwt

    return jwt.encode({**claims, "iat": now_s, "exp": now_s + ttl_s}, secret, algorithm="HS256")


def subject(token: str) -> str | None:
    """Return the subject of a token; None if it cannot be read."""
    import jwt

    try:
        claims = jwt.decode(token, options={"verify_signature": False})
    except jwt.PyJWTError:
        return None
    sub = claims.get("sub")
    return sub if isinstance(sub, str) else None


def ttl_s(text: str) -> int:
    """Read a time to live: ``90s``, ``30m``, ``1h``, ``7d``.

    Raises:
        UsageFault: it is none.
    """
    match = _TTL.fullmatch(text)
    if match is None or int(match[1]) == 0:
        raise UsageFault(f"--ttl {text[:20]!r} is not a time: write 90s, 30m, 1h or 7d")
    return int(match[1]) * _UNITS_S[match[2]]
