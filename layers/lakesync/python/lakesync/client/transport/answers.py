"""The meaning of an unsuccessful HTTP answer: our error tree, whichever server sent it.

The gateway writes ``{"error", "code", "requestId"}``. API Gateway and other servers in between
write bodies of their own, without a code: then the status decides.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from lakesync import errors
from lakesync.errors import Fault, FaultsNamed, LakeSyncError

if TYPE_CHECKING:
    from collections.abc import Mapping

_BY_STATUS: Final[dict[int, type[LakeSyncError]]] = {
    400: errors.ValidationFailed,
    401: errors.AuthFailed,
    403: errors.Forbidden,
    404: errors.NotFound,
    405: errors.NotOffered,
    408: errors.Unavailable,
    409: errors.Conflict,
    410: errors.CursorExpired,
    413: errors.BodyTooLarge,
    429: errors.RateLimited,
}
_SERVER_ERROR: Final = 500
_REFUSED: Final = 400
_RETRY_AFTER_S_MAX: Final = 3_600
_TEXT_SHOWN_MAX: Final = 200


def error_of(status: int, headers: Mapping[str, str], body: bytes) -> LakeSyncError:
    """Return the error that an answer with an unsuccessful status stands for."""
    fields = _object(body)
    code = fields.get("code")
    kind = errors.BY_CODE.get(code) if isinstance(code, str) else None
    if kind is None:
        kind = _BY_STATUS.get(status) or _of_class(status)
    sentence = fields.get("error") or fields.get("message") or fields.get("Message")
    if not isinstance(sentence, str):
        shown = body[:_TEXT_SHOWN_MAX].decode(errors="replace").strip()
        sentence = shown or "no reason was given"
    request_id = fields.get("requestId") or headers.get("x-request-id")
    field = fields.get("field")
    error = kind(
        f"{sentence} [HTTP {status}{f', request {request_id}' if request_id else ''}]",
        field=field if isinstance(field, str) else None,
        retry_after_s=_seconds(headers.get("retry-after")),
    )
    if isinstance(error, FaultsNamed):
        error.faults = _faults(fields.get("faults"))
    return error


def _of_class(status: int) -> type[LakeSyncError]:
    """Return what a status means that no code explains."""
    if status >= _SERVER_ERROR:
        # A function crashed, timed out or is being replaced: repeating the request is safe.
        return errors.Unavailable
    return errors.ValidationFailed if status >= _REFUSED else errors.InternalError


def _object(body: bytes) -> dict[str, object]:
    try:
        parsed = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return parsed if isinstance(parsed, dict) else {}


def _faults(faults: object) -> tuple[Fault, ...]:
    items = faults if isinstance(faults, list) else []
    return tuple(
        Fault(str(item.get("path")), str(item.get("error")))
        for item in items
        if isinstance(item, dict)
    )


def _seconds(text: str | None) -> int | None:
    """Read ``Retry-After`` in seconds; its other form, a date, would require a correct clock."""
    if text is None or not text.strip().isdecimal():
        return None
    return min(int(text), _RETRY_AFTER_S_MAX)
