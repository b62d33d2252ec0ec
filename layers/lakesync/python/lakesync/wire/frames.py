"""WebSocket frames: text ⇄ a tag and a protobuf message. API Gateway only carries text.

A frame is the base64 of one tag byte and one message. A request has an id, which its answer repeats
under the same tag; a broadcast has none. A keep-alive is no frame, but JSON: API Gateway chooses a
route by it, and answers it without a function. Law W8: ``docs/spec/wire.md``.
"""

from __future__ import annotations

import binascii
from base64 import b64decode, b64encode
from enum import IntEnum
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from google.protobuf.message import DecodeError

from lakesync.errors import BY_CODE, BodyTooLarge, InternalError, LakeSyncError, ValidationFailed
from lakesync.wire import lakesync_pb2 as pb
from lakesync.wire import proto

if TYPE_CHECKING:
    from lakesync.core.messages import Pull, PullPage, Push, PushReceipt

FRAME_CHARS_MAX: Final = 131_072
"""Characters of one frame: API Gateway's limit for a message."""
FRAME_BYTES_MAX: Final = FRAME_CHARS_MAX // 4 * 3 - 1
"""Bytes of one frame's message: base64 is a third longer, and the tag takes one byte."""
PAGE_REST_BYTES_MAX: Final = 5_000
"""Bytes of a page besides its deltas: mostly its scope."""
FRAME_DELTA_BYTES_MAX: Final = FRAME_BYTES_MAX - PAGE_REST_BYTES_MAX
"""Bytes of deltas of a page in one frame."""
_SENTENCE_CHARS_MAX: Final = 2_000


_Numbered: TypeAlias = (
    "pb.SyncPush | pb.SyncPull | pb.ActionPush | pb.PushReceipt | pb.SyncResponse "
    "| pb.ActionResponse"
)


class Tag(IntEnum):
    """The content of a frame; an answer has the tag of its request, except for actions."""

    PUSH = 1
    PULL = 2
    BROADCAST = 3
    ACTION = 4
    ACTION_RESPONSE = 5
    REFUSAL = 6
    KEEP_ALIVE = 7


KEEP_ALIVE: Final = '{"action":"ping"}'
"""What a client sends over a silent connection. The route's key is the action."""
KEEP_ALIVE_ANSWER: Final = b64encode(bytes([Tag.KEEP_ALIVE])).decode()
"""What API Gateway answers: the template's copy of it."""


class Refused(NamedTuple):
    """The reason why a request, or the connection, was refused."""

    request_id: int
    error: LakeSyncError
    closes: bool


def encode_frame(tag: Tag, message: bytes) -> str:
    """Write a frame.

    Raises:
        BodyTooLarge: it would be over `FRAME_CHARS_MAX`.
    """
    if len(message) > FRAME_BYTES_MAX:
        raise BodyTooLarge("this does not fit a WebSocket message; ask for it over HTTPS")
    return b64encode(bytes([tag]) + message).decode()


def decode_frame(frame: str) -> tuple[Tag, bytes]:
    """Read a frame's tag and message.

    Raises:
        ValidationFailed: it is not base64, is empty, or has an unknown tag.
        BodyTooLarge: it is over `FRAME_CHARS_MAX`.
    """
    if len(frame) > FRAME_CHARS_MAX:
        raise BodyTooLarge(f"a frame has at most {FRAME_CHARS_MAX} characters; send it over HTTPS")
    try:
        content = b64decode(frame, validate=True)
    except (binascii.Error, ValueError) as exc:
        raise ValidationFailed("a frame is base64 text: a tag byte and a message") from exc
    try:
        return Tag(content[0]), content[1:]
    except (IndexError, ValueError) as exc:
        raise ValidationFailed("a frame begins with a tag: 1 push, 2 pull, 4 action") from exc


def encode_push_frame(push: Push, request_id: int) -> str:
    """Write the frame of a push."""
    numbered = pb.SyncPush(request_id=request_id).SerializeToString()
    return encode_frame(Tag.PUSH, proto.encode_push(push) + numbered)


def encode_pull_frame(pull: Pull, request_id: int) -> str:
    """Write the frame of a pull."""
    numbered = pb.SyncPull(request_id=request_id).SerializeToString()
    return encode_frame(Tag.PULL, proto.encode_pull(pull) + numbered)


def encode_receipt_frame(receipt: PushReceipt, request_id: int) -> str:
    """Write the frame that answers a push."""
    numbered = pb.PushReceipt(request_id=request_id).SerializeToString()
    return encode_frame(Tag.PUSH, proto.encode_receipt(receipt) + numbered)


def encode_page_frame(page: PullPage, request_id: int) -> str:
    """Write the frame that answers a pull."""
    numbered = pb.SyncResponse(request_id=request_id).SerializeToString()
    return encode_frame(Tag.PULL, proto.encode_page(page) + numbered)


def encode_action_frame(body: bytes, request_id: int) -> str:
    """Write the frame of a request for actions, an encoded ``ActionPush``."""
    return encode_frame(Tag.ACTION, body + pb.ActionPush(request_id=request_id).SerializeToString())


def encode_action_response_frame(body: bytes, request_id: int) -> str:
    """Write the frame that answers a request for actions, an encoded ``ActionResponse``."""
    numbered = pb.ActionResponse(request_id=request_id).SerializeToString()
    return encode_frame(Tag.ACTION_RESPONSE, body + numbered)


def encode_broadcast(page: PullPage) -> str:
    """Write the frame of a broadcast, or of a poke."""
    return encode_frame(Tag.BROADCAST, proto.encode_page(page))


def encode_refusal(error: LakeSyncError, request_id: int, *, closes: bool) -> str:
    """Write the frame that refuses a request, or the connection."""
    sentence = error.public_message or error.message
    message = pb.Refusal(
        request_id=request_id,
        code=error.code,
        message=sentence[:_SENTENCE_CHARS_MAX],
        field=(error.field or "")[:_SENTENCE_CHARS_MAX],
        retry_after_s=error.retry_after_s,
        closes=closes,
    )
    return encode_frame(Tag.REFUSAL, message.SerializeToString())


def decode_refusal(message: bytes) -> Refused:
    """Read the reason of a refusal.

    Raises:
        ValidationFailed: the bytes are no ``Refusal``.
    """
    try:
        read = pb.Refusal.FromString(message)
    except DecodeError as exc:
        raise ValidationFailed(f"the message is not a Refusal: {exc}") from exc
    kind = BY_CODE.get(read.code, InternalError)
    error = kind(read.message, field=read.field or None, retry_after_s=read.retry_after_s or None)
    return Refused(read.request_id, error, read.closes)


def request_id_of(tag: Tag, message: bytes) -> int:
    """Return the id of a request or answer; 0 if it has none.

    Raises:
        ValidationFailed: the bytes are not a message of the tag's type.
    """
    kinds: dict[Tag, type[pb.SyncPush | pb.SyncPull | pb.ActionPush]] = {
        Tag.PUSH: pb.SyncPush,
        Tag.PULL: pb.SyncPull,
        Tag.ACTION: pb.ActionPush,
    }
    return _request_id(kinds[tag], message) if tag in kinds else 0


def answered_id_of(tag: Tag, message: bytes) -> int:
    """Return the id of the request that an answer is for; 0 if it has none.

    Raises:
        ValidationFailed: the bytes are not a message of the tag's type.
    """
    kinds: dict[Tag, type[pb.PushReceipt | pb.ActionResponse]] = {
        Tag.PUSH: pb.PushReceipt,
        Tag.ACTION_RESPONSE: pb.ActionResponse,
    }
    return _request_id(kinds.get(tag, pb.SyncResponse), message)


def _request_id(kind: type[_Numbered], message: bytes) -> int:
    try:
        return kind.FromString(message).request_id
    except DecodeError as exc:
        raise ValidationFailed(f"the message is not a {kind.DESCRIPTOR.name}: {exc}") from exc
