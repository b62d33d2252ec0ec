"""Instants as the HTTP API shows them: ISO 8601 in UTC, ending in `Z`."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final, Literal

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
