"""Frames of WebSockets as JSON text: text ⇄ messages, for who speaks `JSON_SUB_PROTOCOL`.

A frame is ``{"tag", "requestId", "body"}``. The tags are those of `lakesync.wire.proto`, and the
body is the JSON of the same message over HTTP, by `lakesync.wire.jsonish`. A refusal is
``{"code", "error", "field"?, "retryAfterS"?, "closes"}``. Other members are ignored. Law W8:
``docs/spec/wire.md``.

API Gateway counts the bytes of a message, and JSON is not ASCII alone. So the limit, which is in
characters for base64, is one of UTF-8 bytes here. A run of deltas is up to
`JSON_GROWTH_TIMES_MAX` times as long in JSON.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from lakesync.core.delta import parse
from lakesync.errors import BodyTooLarge, ValidationFailed
from lakesync.wire import jsonish
from lakesync.wire.incoming import json_text
from lakesync.wire.jsonish import JSON_GROWTH_TIMES_MAX, object_of
from lakesync.wire.proto import (
    FRAME_CHARS_MAX,
    KEEP_ALIVE_ANSWER,
    PAGE_REST_BYTES_MAX,
    TOO_LARGE,
    Request,
    Tag,
    refusal_texts,
)

if TYPE_CHECKING:
    from lakesync.core.messages import PullPage, PushReceipt
    from lakesync.errors import LakeSyncError

MEDIA_TYPE: Final = "application/json"
FRAME_DELTA_BYTES_MAX: Final = (FRAME_CHARS_MAX - PAGE_REST_BYTES_MAX) // JSON_GROWTH_TIMES_MAX
"""Bytes of a run of deltas that fit a frame whatever they contain."""
REQUEST_ID_MAX: Final = 2**32 - 1
"""The greatest number of a request: as in protobuf, ``uint32``."""
_TAGS: Final = frozenset(map(int, Tag))
_OBJECT: Final = 'a JSON frame is {"tag", "requestId", "body"}'


def encode_frame(tag: Tag, body: bytes, request_id: int | None) -> str:
    """Write a frame; None if it answers nothing.

    Raises:
        BodyTooLarge: it would be over `FRAME_CHARS_MAX` bytes.
    """
    number = b"" if request_id is None else b',"requestId":%d' % request_id
    frame = b'{"tag":%d%b,"body":%b}' % (tag, number, body)
    if len(frame) > FRAME_CHARS_MAX:
        raise BodyTooLarge(TOO_LARGE)
    return frame.decode()


def decode_frame(frame: str) -> Request:
    """Read a frame; API Gateway's own answer to a keep-alive too.

    Raises:
        ValidationFailed: it is not such an object, or has an unknown tag.
        BodyTooLarge: it is over `FRAME_CHARS_MAX` bytes.
    """
    if frame == KEEP_ALIVE_ANSWER:
        return Request(Tag.KEEP_ALIVE, 0, None, len(frame))
    try:
        sent = frame.encode()
    except UnicodeEncodeError as exc:
        raise ValidationFailed("a frame holds half of a surrogate pair") from exc
    if len(sent) > FRAME_CHARS_MAX:
        raise BodyTooLarge(f"a frame has at most {FRAME_CHARS_MAX} bytes; send it over HTTPS")
    fields = object_of(parse(sent), _OBJECT)
    tag, number = fields.get("tag"), fields.get("requestId", 0)
    if type(tag) is not int or tag not in _TAGS:
        raise ValidationFailed(f"{_OBJECT}; the tags: 1 push, 2 pull, 4 action", field="tag")
    if type(number) is not int or not 0 <= number <= REQUEST_ID_MAX:
        raise ValidationFailed("requestId must be a number from 0 to 2^32-1", field="requestId")
    return Request(Tag(tag), number, fields.get("body"), len(sent))


read_request = decode_frame
decode_push = jsonish.push_of
decode_pull = jsonish.pull_of
decode_action_push = jsonish.action_push_of


def action_body(message: object) -> bytes:
    """Return what is sent to ``functions/actions``; only ASCII, whatever text it holds.

    Raises:
        ValidationFailed: it nests too deeply.
    """
    try:
        return json.dumps(message).encode()
    except RecursionError as exc:
        raise ValidationFailed("not JSON that can be read: it nests too deeply") from exc


def encode_receipt_frame(receipt: PushReceipt, request_id: int) -> str:
    """Write the frame that answers a push."""
    return encode_frame(Tag.PUSH, jsonish.encode_receipt(receipt), request_id)


def encode_page_frame(page: PullPage, request_id: int) -> str:
    """Write the frame that answers a pull."""
    return encode_frame(Tag.PULL, jsonish.encode_page(page), request_id)


def encode_action_response_frame(body: bytes, request_id: int) -> str:
    """Write the frame that answers a request for actions, by encoded answers."""
    return encode_frame(Tag.ACTION_RESPONSE, body, request_id)


def encode_broadcast(page: PullPage) -> str:
    """Write the frame of a broadcast, or of a poke.

    Raises:
        BodyTooLarge: it would be over `FRAME_CHARS_MAX` bytes; a poke never is.
    """
    return encode_frame(Tag.BROADCAST, jsonish.encode_page(page), None)


def encode_refusal(error: LakeSyncError, request_id: int, *, closes: bool) -> str:
    """Write the frame that refuses a request, or the connection."""
    sentence, field = refusal_texts(error)
    body: dict[str, Any] = {"code": error.code, "error": sentence}
    body |= {"field": field} if field else {}
    body |= {"retryAfterS": error.retry_after_s} if error.retry_after_s else {}
    return encode_frame(Tag.REFUSAL, json_text(body | {"closes": closes}), request_id)
