"""The meaning of an HTTP answer: our error tree, whichever server sent it.

Rules of this module
    1. The gateway is recognised by the shape of its answers: an error is ``{"error", "code",
       "requestId"}``, anything else has the type that was asked for and decodes. Its authoriser
       never refuses (``docs/adr/0002``), so this holds for 401 and 403 as well.
    2. Every other answer is foreign: API Gateway's own ``{"message"}``, a proxy's page, a login
       page, a redirect. It says nothing about what was sent, and never becomes one of the errors
       that the gateway has for that (``LakeSyncError.is_foreign``).
"""

from __future__ import annotations

import json
import zlib
from typing import TYPE_CHECKING, Final, TypeVar

from lakesync import errors
from lakesync.errors import (
    Fault,
    FaultsNamed,
    InvalidInput,
    LakeSyncError,
    NotTheGateway,
    Unreachable,
)
from lakesync.ports import ConnectorDescription

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

A = TypeVar("A")

ANSWER_BYTES_MAX: Final = 64_000_000
"""The longest answer that is read, decompressed: ten times the longest that a gateway gives."""
FOREIGN_RETRY_AFTER_S_MAX: Final = 60
"""The longest wait that somebody on the way may ask for."""
EMPTY: Final = "the answer says nothing, as if it were not a LakeSync gateway's"
SHAPE: Final = ("error", "code", "requestId")
"""The fields that each error of a gateway has, all of them text."""
_BY_STATUS: Final[dict[int, type[LakeSyncError]]] = {
    400: errors.ValidationFailed,
    401: errors.AuthFailed,
    403: errors.Forbidden,
    404: errors.NotFound,
    405: errors.NotOffered,
    409: errors.Conflict,
    410: errors.CursorExpired,
    413: errors.BodyTooLarge,
    429: errors.RateLimited,
}
_ASKS_TO_WAIT: Final[dict[int, type[LakeSyncError]]] = {
    408: errors.Unavailable,
    429: errors.RateLimited,
    # A function crashed, timed out or is being replaced: repeating the request is safe.
    500: errors.Unavailable,
    502: errors.Unavailable,
    503: errors.Unavailable,
    504: errors.Unavailable,
}
"""What a foreign answer means that says no more than: not now."""
_SERVER_ERROR: Final = 500
_REFUSED: Final = 400
_REDIRECTS: Final = range(300, 400)
_RETRY_AFTER_S_MAX: Final = 3_600
_TEXT_SHOWN_MAX: Final = 200
_GZIP_WINDOW: Final = 31


def error_of(status: int, headers: Mapping[str, str], body: bytes) -> LakeSyncError:
    """Return the error that an answer with an unsuccessful status stands for."""
    fields = _object(body)
    if not all(isinstance(fields.get(name), str) for name in SHAPE):
        return foreign(status, headers, body)
    kind = errors.BY_CODE.get(str(fields["code"])) or _BY_STATUS.get(status) or _of_class(status)
    field = fields.get("field")
    error = kind(
        f"{fields['error']} [HTTP {status}, request {fields['requestId']}]",
        field=field if isinstance(field, str) else None,
        retry_after_s=_seconds(headers.get("retry-after"), _RETRY_AFTER_S_MAX),
    )
    if isinstance(error, FaultsNamed):
        error.faults = _faults(fields.get("faults"))
    return error


def foreign(status: int, headers: Mapping[str, str], body: bytes) -> LakeSyncError:
    """Return the error that an answer stands for which no gateway gave."""
    wait_s = _seconds(headers.get("retry-after"), FOREIGN_RETRY_AFTER_S_MAX)
    kind = _ASKS_TO_WAIT.get(status)
    if kind is not None:
        error = kind(f"{_said(body)} [HTTP {status}]; try again", retry_after_s=wait_s)
    else:
        error = NotTheGateway(
            f"the answer is not a LakeSync gateway's (HTTP {status}{_about(status, headers)}: "
            f"{_said(body)}): check the address, and whether this network wants a login or a "
            f"proxy refuses the request",
            retry_after_s=wait_s,
        )
        error.http_status = status
    error.is_foreign = True
    return error


def read(decode: Callable[[bytes], A], body: bytes) -> A:
    """Decode a successful answer.

    Raises:
        NotTheGateway: it does not decode.
    """
    try:
        return decode(body)
    except InvalidInput as exc:
        raise NotTheGateway(
            f"the answer is of no use, as if it were not a LakeSync gateway's: {exc.message}"
        ) from exc


def plain_body(pieces: Iterable[bytes], headers: Mapping[str, str]) -> bytes:
    """Return a whole answer, decompressed.

    Raises:
        Unreachable: it ended early, or its compression is damaged.
        NotTheGateway: it is longer than any gateway's, or compressed in another way.
    """
    coding = headers.get("content-encoding", "identity").strip().lower()
    if coding not in {"identity", "gzip", ""}:
        raise NotTheGateway("the answer is compressed in a way that was not asked for")
    inflate = zlib.decompressobj(_GZIP_WINDOW) if coding == "gzip" else None
    plain, size = [], 0
    try:
        for piece in pieces:
            room = ANSWER_BYTES_MAX - size + 1
            plain.append(inflate.decompress(piece, room) if inflate else piece)
            size += len(plain[-1])
            if size > ANSWER_BYTES_MAX:
                raise NotTheGateway(f"the answer is over {ANSWER_BYTES_MAX:,} bytes long")
    except zlib.error as exc:
        raise Unreachable(f"the answer arrived damaged ({exc}); try again") from exc
    # A cut page may decode, and would lose what was cut off.
    is_whole = inflate.eof if inflate else _tells_its_end(headers)
    if not is_whole:
        raise Unreachable("the answer ended early; try again")
    return b"".join(plain)


def _tells_its_end(headers: Mapping[str, str]) -> bool:
    return "content-length" in headers or "transfer-encoding" in headers


def _about(status: int, headers: Mapping[str, str]) -> str:
    """Name where a redirect leads, without its query: it is not followed with a token."""
    if status not in _REDIRECTS or not headers.get("location"):
        return ""
    return f", to {headers['location'].partition('?')[0][:_TEXT_SHOWN_MAX]!r}"


def _said(body: bytes) -> str:
    """Return what a foreign answer says, at most a line of it."""
    fields = _object(body)
    text = fields.get("message") or fields.get("Message") or fields.get("error")
    if not isinstance(text, str):
        text = body[:_TEXT_SHOWN_MAX].decode(errors="replace")
    return " ".join(text[:_TEXT_SHOWN_MAX].split()) or "no reason was given"


def _of_class(status: int) -> type[LakeSyncError]:
    """Return what a status means whose code a later release has added."""
    if status >= _SERVER_ERROR:
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


def _seconds(text: str | None, most_s: int) -> int | None:
    """Read ``Retry-After`` in seconds; its other form, a date, would require a correct clock."""
    if text is None or not text.strip().isdecimal():
        return None
    return min(int(text), most_s)


def connector_types_in(body: bytes) -> list[ConnectorDescription]:
    """Read the types of connectors.

    Raises:
        ValidationFailed: it is no list of them.
    """
    try:
        return [
            ConnectorDescription(
                each["type"], each["title"], each.get("configuration", {}), each.get("error", "")
            )
            for each in json.loads(body)
        ]
    except (AttributeError, KeyError, TypeError, ValueError) as exc:
        raise errors.ValidationFailed("it lists no types of connectors") from exc
