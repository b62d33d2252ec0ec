"""Bodies over HTTP: their encoding, and gzip in both directions, always bounded.

API Gateway hands a body over as text or as base64 (``isBase64Encoded``), as it judges by the
content type. Both are read. As text, bytes that are not UTF-8 cannot arrive: they are dropped or
replaced on the way, so that what is compressed is lost, and anything else may be changed. What
shows this is refused; see `check_whole`.
"""

from __future__ import annotations

import base64
import gzip
import zlib
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from lakesync.errors import BodyTooLarge, ValidationFailed

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

GZIP_BYTES_MIN: Final = 1024
"""Smaller answers are sent as they are: compressing them saves no packet."""
GZIP_MEMBERS_MAX: Final = 100
"""Members of one compressed body; senders write one. Each costs a copy of the bytes after it."""
_REPLACED: Final = "\N{REPLACEMENT CHARACTER}".encode()
"""What stands in text for bytes that are not UTF-8; also a character like any other."""
_GZIP_LEVEL: Final = 1
_GZIP_WINDOW: Final = 31


class Encoding(Enum):
    """The two encodings of the protocol's messages."""

    JSON = "application/json"
    PROTOBUF = "application/x-protobuf"


_KNOWN: Final = {encoding.value: encoding for encoding in Encoding}


def request_encoding(content_type: str | None) -> Encoding:
    """Return the encoding of a request's body; JSON if it does not say.

    Raises:
        ValidationFailed: it says something else.
    """
    if not content_type:
        return Encoding.JSON
    kind = content_type.partition(";")[0].strip().lower()
    if kind not in _KNOWN:
        raise ValidationFailed(
            f"send {' or '.join(_KNOWN)}, not {kind[:60]!r}", field="Content-Type"
        )
    return _KNOWN[kind]


def answer_encoding(accept: str | None, otherwise: Encoding) -> Encoding:
    """Return the encoding that the caller prefers; ``otherwise`` if any is acceptable."""
    liked = [
        (quality, encoding)
        for kind, quality in _preferences(accept)
        if quality > 0 and (encoding := _KNOWN.get(kind))
    ]
    if not liked:
        return otherwise
    return max(liked, key=lambda choice: choice[0])[1]


def accepts_gzip(accept_encoding: str | None) -> bool:
    """Return whether the caller can read gzip."""
    wishes = dict(_preferences(accept_encoding))
    return wishes.get("gzip", wishes.get("*", 0)) > 0


def _preferences(header: str | None) -> Iterator[tuple[str, float]]:
    for part in (header or "").split(","):
        kind, *parameters = part.split(";")
        quality = 1.0
        for parameter in parameters:
            name, _, value = parameter.partition("=")
            if name.strip().lower() == "q":
                quality = _quality(value)
        yield kind.strip().lower(), quality


def _quality(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0


def encodable(event: dict[str, Any]) -> dict[str, Any]:
    """Return a request's event with a body that has bytes: halves of surrogate pairs have none.

    They stay what they are, which is not UTF-8, so that whoever reads the body refuses it.
    """
    body = event.get("body")
    if not isinstance(body, str) or event.get("isBase64Encoded") or body.isascii():
        return event
    try:
        body.encode()
    except UnicodeEncodeError:
        raw = body.encode("utf-8", "surrogatepass")
        return {**event, "body": base64.b64encode(raw).decode(), "isBase64Encoded": True}
    return event


def check_whole(event: Mapping[str, Any], body: bytes, headers: Mapping[str, str]) -> None:
    """Check that a body that was handed over as text is the one that was sent, where that shows.

    A replacement character may be one that somebody wrote. It stands for lost bytes if the body is
    not as long as its sender says, which it nearly always is not.

    Raises:
        ValidationFailed: it is another.
    """
    if event.get("isBase64Encoded") or not body:
        return
    if headers.get("content-encoding", "identity").strip().lower() not in {"identity", ""}:
        raise ValidationFailed(
            "the compressed body was read as text on its way, and is lost: send it uncompressed, "
            f"or as {Encoding.PROTOBUF.value}",
            field="Content-Encoding",
        )
    length = headers.get("content-length", "")
    if _REPLACED in body and length.isdecimal() and int(length) != len(body):
        raise ValidationFailed("text is not valid UTF-8, and was changed on its way; send UTF-8")


def read_body(body: bytes, content_encoding: str | None, bytes_max: int) -> bytes:
    """Return a request's body, decompressed; never more than ``bytes_max``, whatever it claims.

    Raises:
        BodyTooLarge: it is larger, or would be once decompressed.
        ValidationFailed: its compression is not supported, or it is damaged.
    """
    coding = (content_encoding or "identity").strip().lower()
    if coding not in {"identity", "gzip"}:
        raise ValidationFailed("send the body plain or as gzip", field="Content-Encoding")
    plain = _inflate(body, bytes_max) if coding == "gzip" else body
    if len(plain) > bytes_max:
        raise BodyTooLarge(f"the body may hold {bytes_max} bytes, decompressed; push fewer deltas")
    return plain


def _inflate(body: bytes, bytes_max: int) -> bytes:
    """Decompress, stopping one byte past the limit: a bomb costs no more than an honest body."""
    inflated: list[bytes] = []
    room = bytes_max + 1
    rest = body
    try:
        while rest and room > 0:
            if len(inflated) == GZIP_MEMBERS_MAX:
                raise ValidationFailed(
                    f"the gzip body has over {GZIP_MEMBERS_MAX} members; compress it as one",
                    field="Content-Encoding",
                )
            member = zlib.decompressobj(_GZIP_WINDOW)
            inflated.append(member.decompress(rest, room))
            room -= len(inflated[-1])
            if not member.eof and room > 0:
                raise ValidationFailed("the gzip body ends too early")
            rest = member.unused_data
    except zlib.error as exc:
        raise ValidationFailed(f"the body is not gzip: {exc}", field="Content-Encoding") from exc
    return b"".join(inflated)


def compressed(body: bytes) -> bytes:
    """Compress an answer, for speed rather than size, as the function's time is the cost."""
    return gzip.compress(body, _GZIP_LEVEL, mtime=0)
