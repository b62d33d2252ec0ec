"""How counts and instants are written for people and in the HTTP API."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final, Literal


def plural(count: int, noun: str) -> str:
    """Return a count with its noun: ``1 delta``, ``2,000 deltas``."""
    if count == 1:
        return f"1 {noun}"
    if noun.endswith("y") and noun[-2] not in "aeiou":
        return f"{count:,} {noun[:-1]}ies"
    return f"{count:,} {noun}{'es' if noun.endswith('h') else 's'}"


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LAST_MS: Final = 253_402_300_799_999
"""The last millisecond of the year 9999, the end of `datetime`'s range."""


def utc_text(ms: int, timespec: Literal["seconds", "milliseconds"] = "seconds") -> str:
    """Return a time in milliseconds since 1970 as text, by default cut to whole seconds.

    A time beyond the year 9999, such as a token's expiry may be, is shown as the last moment of
    that year.
    """
    at = _EPOCH + timedelta(milliseconds=min(ms, _LAST_MS))
    return at.isoformat(timespec=timespec).replace("+00:00", "Z")
