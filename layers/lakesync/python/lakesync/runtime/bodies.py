"""Bodies over HTTP: their encoding, and gzip in both directions, always bounded."""

from __future__ import annotations

import gzip
import zlib
from enum import Enum
from typing import TYPE_CHECKING, Final

from lakesync.errors import BodyTooLarge, ValidationFailed

if TYPE_CHECKING:
    from collections.abc import Iterator

GZIP_BYTES_MIN: Final = 1024
"""Smaller answers are sent as they are: compressing them saves no packet."""
GZIP_MEMBERS_MAX: Final = 100
"""Members of one compressed body; senders write one. Each costs a copy of the bytes after it."""
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
