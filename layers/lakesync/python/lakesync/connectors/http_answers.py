"""Interprets answers over HTTP: whether the request may be repeated, and when.

Part of `lakesync.connectors.http`.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from lakesync.errors import (
    AdapterFailed,
    AdapterQuotaExceeded,
    AdapterRefused,
    NotFound,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lakesync.errors import LakeSyncError

REASON_CHARS_MAX: Final = 300
"""What of a source's reason is repeated."""
DEFAULT_WAIT_S: Final = 15
"""The waiting time after a failure of a source that states none."""
CREDENTIALS: Final = "credentials"
"""The field of an error that somebody must mend by other credentials."""
NOT_AS_DESCRIBED: Final = (
    KeyError, TypeError, ValueError, AttributeError, IndexError, ArithmeticError,
)  # fmt: skip
"""Exceptions of reading an answer that does not follow the source's API."""
_OK: Final = range(200, 300)
_TOO_MANY: Final = 429


class Answer(NamedTuple):
    """An answer."""

    status: int
    headers: Mapping[str, str]
    """By names in lower case."""
    body: bytes

    def json(self) -> Any:
        """Return its JSON value; None if it has no body.

        Raises:
            AdapterFailed: it is not JSON, or cut off; the request may be repeated.
        """
        try:
            return json.loads(self.body) if self.body else None
        except (ValueError, RecursionError) as exc:
            raise AdapterFailed(
                "the source's answer was cut off or is not JSON", retry_after_s=DEFAULT_WAIT_S
            ) from exc

    def date(self) -> datetime | None:
        """Return when it was sent by the source's clock; None if it does not say."""
        try:
            return parsedate_to_datetime(self.headers.get("date", "")).astimezone(UTC)
        except ValueError:
            return None

    def wait_s(self) -> int | None:
        """Get for how long the source asks to be left alone, by its headers; None if it does not.

        Reads ``Retry-After`` as seconds or as a date, and ``X-RateLimit-Reset`` as a date.
        """
        for name in ("retry-after", "x-ratelimit-reset"):
            text = self.headers.get(name, "")
            if text.isdecimal() and name == "retry-after":
                return int(text)
            until = _moment(text)
            if until is not None:
                return max(int((until - (self.date() or datetime.now(UTC))).total_seconds()), 1)
        return None


def reason_in(answer: Answer) -> str:
    """Return the reason for a refusal from an answer, as a short line of text."""
    text = answer.body.decode("utf-8", "replace")
    return " ".join(text.split())[:REASON_CHARS_MAX]


def refused(answer: Answer, host: str) -> LakeSyncError | None:
    """Return what an answer means by its status; None if it is one to go on with."""
    status = answer.status
    if status in _OK:
        return None
    wait_s = answer.wait_s()
    if status == _TOO_MANY:
        return AdapterQuotaExceeded(
            f"{host} accepts no more requests for now", retry_after_s=wait_s or 60
        )
    if status >= 500 or status == 408:  # noqa: PLR2004 - as HTTP has them
        return AdapterFailed(f"{host} failed with {status}", retry_after_s=wait_s or DEFAULT_WAIT_S)
    if status == 401:  # noqa: PLR2004
        return AdapterRefused(
            f"{host} refuses the credentials: they are wrong or expired", field=CREDENTIALS
        )
    if status in {404, 410}:
        return NotFound(f"{host} answered {status}: {reason_in(answer)}")
    if status < 400:  # noqa: PLR2004
        return AdapterRefused(f"{host} answered {status}: the redirect is not followed")
    return AdapterRefused(f"{host} refused it with {status}: {reason_in(answer)}")


def _moment(text: str) -> datetime | None:
    for read in (datetime.fromisoformat, parsedate_to_datetime):
        try:
            moment = read(text)
        except ValueError:
            continue
        return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return None
