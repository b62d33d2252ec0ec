"""Instants of outside systems: parsed, as text, as microseconds. Pure."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_NO_OFFSET: Final = "+00:00"


def instant(text: str) -> datetime:
    """Parse a vendor's ISO 8601 text as an instant in UTC; without a zone it is in UTC.

    Raises:
        ValueError: it is not one.
    """
    moment = datetime.fromisoformat(text)
    return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)


def utc_text(moment: datetime, timespec: str = "auto") -> str:
    """Return an instant as text in UTC, with a final ``Z`` unless it has no zone."""
    text = moment.isoformat(timespec=timespec)
    if moment.tzinfo is None:
        return text
    if not text.endswith(_NO_OFFSET):
        text = moment.astimezone(UTC).isoformat(timespec=timespec)
    return f"{text.removesuffix(_NO_OFFSET)}Z"


def microseconds(moment: datetime) -> int:
    """Return an instant in microseconds since 1970, exactly; one without a zone is in UTC."""
    known = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return (known - _EPOCH) // _MICROSECOND
