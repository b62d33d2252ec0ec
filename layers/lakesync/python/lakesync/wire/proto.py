"""The protobuf encoding: bytes ⇄ messages, both directions, and the frames of WebSockets.

Of actions it has only what a gateway reads and writes; our own client speaks JSON there.

API Gateway only carries text in WebSockets. A frame is the base64 of one tag byte and one message.
A request has an id, which its answer repeats under the same tag; a broadcast has none. A keep-alive
is no frame, but JSON: API Gateway chooses a route by it, and answers it without a function. Law W8:
``docs/spec/wire.md``.
"""

from __future__ import annotations

import binascii
from base64 import b64decode, b64encode
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from google.protobuf.message import DecodeError

from lakesync.core.clock import STAMP_MAX
from lakesync.core.delta import check_client_id, parse, recanonical
from lakesync.core.messages import (
    Action,
    ActionAnswers,
    ActionPush,
    ActionRefused,
    DeltaOutcome,
    OutcomeKind,
    Progress,
    Pull,
    PullPage,
    Push,
    PushReceipt,
    RefusedDelta,
    Resync,
    checked_action,
)
from lakesync.errors import (
    BY_CODE,
    ActionInvalid,
    BodyTooLarge,
    InternalError,
    InvalidInput,
    LakeSyncError,
    ValidationFailed,
)
from lakesync.wire import lakesync_pb2 as pb
from lakesync.wire.incoming import (
    OP_NAMES,
    check_action_count,
    check_count,
    incoming_delta,
    json_text,
    own_action,
    refused_action,
    row_key,
    under,
)
from lakesync.wire.records import encode_records

if TYPE_CHECKING:
    from lakesync.core.clock import Stamp
    from lakesync.core.delta import Delta

# --- the messages inside a page, and the stamps of any message ------------------------------------


def stamp_in(value: int, field: str) -> Stamp:
    """Return a stamp.

    Raises:
        ValidationFailed: it is not a valid stamp.
    """
    if value > STAMP_MAX:
        raise ValidationFailed(f"{field} must be at most 2^63-1", field=field)
    return value


def write_resync(message: pb.Resync, resync: Resync) -> None:
    """Write the tables that are read again."""
    omitted = {table: pb.Columns(names=names) for table, names in resync.omitted.items()}
    message.MergeFrom(pb.Resync(tables=resync.tables, named=resync.named, omitted=omitted))
    message.others = resync.named is not None
    message.tombstone_horizons.update(resync.tombstone_horizons)


def resync_of(message: pb.Resync) -> Resync:
    """Read the tables that are read again; raises as `stamp_in`."""
    named = tuple(message.named) if message.others else None
    known = message.tombstone_horizons.items()
    horizons = {table: stamp_in(at, "tombstoneHorizons") for table, at in known}
    omitted = {table: tuple(columns.names) for table, columns in message.omitted.items()}
    return Resync(tuple(message.tables), named, horizons, omitted)


def progress_of(message: pb.SyncResponse) -> Progress | None:
    """Read how much of a checkpoint was read; None if the message does not say."""
    of = message.progress
    return Progress(of.read, of.total) if message.HasField("progress") else None


# --- pushes and pulls -----------------------------------------------------------------------------


_OPS = {op.value: op for op in OP_NAMES.values()}


def decode_push(body: bytes) -> Push:
    """Read a ``SyncPush``; a malformed delta is refused alone.

    Raises:
        ValidationFailed: the bytes are no ``SyncPush``, or a field of the push is wrong.
    """
    try:
        message = pb.SyncPush.FromString(body)
    except DecodeError as exc:
        raise ValidationFailed(f"the body is not a SyncPush message: {exc}") from exc
    check_count(len(message.deltas))
    deltas: list[tuple[int, Delta]] = []
    unreadable: list[RefusedDelta] = []
    for index, record in enumerate(message.deltas):
        try:
            deltas.append((index, _incoming(record)))
        except InvalidInput as error:
            fault = under(error, f"deltas[{index}]")
            unreadable.append(RefusedDelta(index, fault, record.delta_id[:64], _row(record)))
    return Push(
        check_client_id(message.client_id),
        tuple(deltas),
        stamp_in(message.last_seen_hlc, "lastSeenHlc"),
        message.atomic,
        tuple(unreadable),
        message.epoch if message.HasField("epoch") else None,
        own_cursor=message.own_cursor,
    )


def _row(record: pb.RowDelta) -> tuple[str, str] | None:
    try:
        return row_key(record.table, record.row_id)
    except ValidationFailed:
        return None


def _incoming(record: pb.RowDelta) -> Delta:
    op = _OPS.get(record.op)
    if op is None:
        raise ValidationFailed("op must be INSERT, UPDATE or DELETE", field="op")
    columns = []
    for column in record.columns:
        name = column.column
        try:
            columns.append((name, recanonical(column.value)))
        except ValidationFailed as error:
            error.field = f"columns.{name[:64]}"
            raise
    return incoming_delta(
        op,
        record.table,
        record.row_id,
        record.client_id,
        record.hlc,
        tuple(columns),
        record.delta_id,
    )


def encode_push(push: Push) -> bytes:
    """Write a ``SyncPush``."""
    run = pb.SyncResponse.FromString(encode_records(delta for _, delta in push.deltas))
    return pb.SyncPush(
        client_id=push.client_id,
        deltas=run.deltas,
        last_seen_hlc=push.last_seen_hlc,
        atomic=push.atomic,
        epoch=push.epoch,
        own_cursor=push.own_cursor,
    ).SerializeToString()


def encode_receipt(receipt: PushReceipt) -> bytes:
    """Write a ``PushReceipt``."""
    message = pb.PushReceipt(
        server_hlc=receipt.server_hlc,
        accepted=receipt.accepted,
        server_time_ms=receipt.server_time_ms,
        epoch=receipt.epoch,
    )
    for outcome in receipt.outcomes:
        error = outcome.error
        message.results.add(
            index=outcome.index,
            delta_id=outcome.delta_id,
            outcome=outcome.kind.value,
            code=error.code if error else "",
            message=error.message if error else "",
            field=(error.field or "") if error else "",
        )
    return message.SerializeToString()


def decode_receipt(body: bytes) -> PushReceipt:
    """Read a ``PushReceipt``.

    Raises:
        ValidationFailed: the bytes are malformed.
    """
    try:
        message = pb.PushReceipt.FromString(body)
        outcomes = tuple(
            DeltaOutcome(
                result.index, result.delta_id, OutcomeKind(result.outcome), _error_of(result)
            )
            for result in message.results
        )
    except (DecodeError, ValueError) as exc:
        raise ValidationFailed(f"the answer is not a PushReceipt message: {exc}") from exc
    return PushReceipt(
        message.server_hlc, message.accepted, outcomes, message.server_time_ms, message.epoch
    )


def _error_of(result: pb.DeltaOutcome) -> LakeSyncError | None:
    kind = BY_CODE.get(result.code, InternalError)
    return kind(result.message, field=result.field or None) if result.code else None


def decode_pull(body: bytes) -> Pull:
    """Read a ``SyncPull``; the gateway checks the limits.

    Raises:
        ValidationFailed: the bytes are malformed, or a field is out of range.
    """
    try:
        message = pb.SyncPull.FromString(body)
    except DecodeError as exc:
        raise ValidationFailed(f"the body is not a SyncPull message: {exc}") from exc
    return Pull(
        check_client_id(message.client_id),
        stamp_in(message.since_hlc, "sinceHlc"),
        message.max_deltas or 100,
        message.epoch,
        message.snapshot,
        removes=message.removes,
        scope=message.scope,
        own_cursor=message.own_cursor,
        at_least=STAMP_MAX if message.fresh else stamp_in(message.at_least, "atLeast"),
        quarantined=message.quarantined if message.HasField("quarantined") else None,
    )


def encode_pull(pull: Pull) -> bytes:
    """Write a ``SyncPull``."""
    message = pb.SyncPull(
        client_id=pull.client_id,
        since_hlc=pull.since,
        max_deltas=pull.deltas_max,
        epoch=pull.epoch,
        snapshot=pull.snapshot,
        scope=pull.scope,
        removes=pull.removes,
        own_cursor=pull.own_cursor,
        fresh=pull.at_least == STAMP_MAX,
        at_least=0 if pull.at_least == STAMP_MAX else pull.at_least,
        quarantined=pull.quarantined,
    )
    return message.SerializeToString()


def encode_page(page: PullPage) -> bytes:
    """Write a ``SyncResponse``: the stored runs unchanged, followed by the cursor."""
    tail = pb.SyncResponse(
        server_hlc=page.cursor,
        has_more=page.has_more,
        epoch=page.epoch,
        snapshot=page.snapshot,
        scope=page.scope,
        schema_version=page.schema_version,
        behind_ms=page.behind_ms,
    )
    if page.previous is not None:
        tail.previous_hlc, tail.first_hlc = page.previous, page.first
    if page.progress is not None:
        tail.progress.read, tail.progress.total = page.progress
    if page.resync is not None:
        write_resync(tail.resync, page.resync)
    return b"".join((*page.records, tail.SerializeToString()))


def decode_page(body: bytes) -> PullPage:
    """Read a ``SyncResponse``; its deltas stay one run, which `lakesync.wire.records` reads.

    Raises:
        ValidationFailed: the bytes are malformed.
    """
    try:
        message = pb.SyncResponse.FromString(body)
    except DecodeError as exc:
        raise ValidationFailed(f"the answer is not a SyncResponse message: {exc}") from exc
    return PullPage(
        (body,),
        len(message.deltas),
        stamp_in(message.server_hlc, "serverHlc"),
        message.has_more,
        message.epoch,
        message.snapshot,
        message.scope,
        resync_of(message.resync) if message.HasField("resync") else None,
        message.schema_version,
        message.behind_ms,
        stamp_in(message.first_hlc, "firstHlc"),
        stamp_in(message.previous_hlc, "previousHlc") if message.first_hlc else None,
        progress_of(message),
    )


# --- actions --------------------------------------------------------------------------------------


def decode_action_push(body: bytes) -> ActionPush:
    """Read an ``ActionPush``.

    Raises:
        ValidationFailed: the bytes are malformed.
    """
    try:
        message = pb.ActionPush.FromString(body)
    except DecodeError as exc:
        raise ValidationFailed(f"the body is not an ActionPush message: {exc}") from exc
    check_action_count(len(message.actions))
    client_id = check_client_id(message.client_id)
    actions = tuple(_read_action(item, client_id) for item in message.actions)
    return ActionPush(client_id, actions, message.epoch)


def _read_action(item: pb.Action, client_id: str) -> Action | ActionRefused:
    try:
        if item.hlc > STAMP_MAX:
            raise ActionInvalid("hlc must be at most 2^63-1", field="hlc")
        action = Action(
            item.action_id,
            item.client_id or client_id,
            item.hlc,
            item.connector,
            item.action_type,
            parse(item.params) if item.params else {},
            item.idempotency_key,
        )
        return own_action(checked_action(action), client_id)
    except InvalidInput as error:
        return refused_action(item.action_id, error)


def encode_answers(answers: ActionAnswers) -> bytes:
    """Write an ``ActionResponse``."""
    message = pb.ActionResponse(server_hlc=answers.server_hlc)
    for outcome in answers.results:
        result = message.results.add()
        if outcome.is_done:
            result.success.action_id = outcome.action_id
            result.success.data = json_text(outcome.data)
            result.success.server_hlc = outcome.server_hlc
        else:
            result.error.action_id = outcome.action_id
            result.error.code = outcome.code
            result.error.message = outcome.message
            result.error.retryable = outcome.retryable
    return message.SerializeToString()


# --- frames ---------------------------------------------------------------------------------------


FRAME_CHARS_MAX: Final = 131_072
"""Characters of one frame: API Gateway's limit for a message."""
FRAME_BYTES_MAX: Final = FRAME_CHARS_MAX // 4 * 3 - 1
"""Bytes of one frame's message: base64 is a third longer, and the tag takes one byte."""
PAGE_REST_BYTES_MAX: Final = 5_000
"""Bytes of a page besides its deltas: mostly its scope."""
FRAME_DELTA_BYTES_MAX: Final = FRAME_BYTES_MAX - PAGE_REST_BYTES_MAX
"""Bytes of deltas of a page in one frame."""
TOO_LARGE: Final = "this does not fit a WebSocket message; ask for it over HTTPS"
MEDIA_TYPE: Final = "application/x-protobuf"
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


class Request(NamedTuple):
    """What one frame asks for."""

    tag: Tag
    id: int
    """The id that the answer repeats; 0 if it has none."""
    message: Any
    """What the decoders of its encoding read."""
    size_bytes: int


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
        raise BodyTooLarge(TOO_LARGE)
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


def read_request(frame: str) -> Request:
    """Read a frame of a client.

    Raises:
        ValidationFailed: it is no frame, or no message of its tag's type.
        BodyTooLarge: it is over `FRAME_CHARS_MAX`.
    """
    tag, message = decode_frame(frame)
    return Request(tag, request_id_of(tag, message), message, len(message))


def action_body(message: bytes) -> bytes:
    """Return what is sent to ``functions/actions``."""
    return message


def encode_push_frame(push: Push, request_id: int) -> str:
    """Write the frame of a push."""
    numbered = pb.SyncPush(request_id=request_id).SerializeToString()
    return encode_frame(Tag.PUSH, encode_push(push) + numbered)


def encode_pull_frame(pull: Pull, request_id: int) -> str:
    """Write the frame of a pull."""
    numbered = pb.SyncPull(request_id=request_id).SerializeToString()
    return encode_frame(Tag.PULL, encode_pull(pull) + numbered)


def encode_receipt_frame(receipt: PushReceipt, request_id: int) -> str:
    """Write the frame that answers a push."""
    numbered = pb.PushReceipt(request_id=request_id).SerializeToString()
    return encode_frame(Tag.PUSH, encode_receipt(receipt) + numbered)


def encode_page_frame(page: PullPage, request_id: int) -> str:
    """Write the frame that answers a pull."""
    numbered = pb.SyncResponse(request_id=request_id).SerializeToString()
    return encode_frame(Tag.PULL, encode_page(page) + numbered)


def encode_action_frame(body: bytes, request_id: int) -> str:
    """Write the frame of a request for actions, an encoded ``ActionPush``."""
    return encode_frame(Tag.ACTION, body + pb.ActionPush(request_id=request_id).SerializeToString())


def encode_action_response_frame(body: bytes, request_id: int) -> str:
    """Write the frame that answers a request for actions, an encoded ``ActionResponse``."""
    numbered = pb.ActionResponse(request_id=request_id).SerializeToString()
    return encode_frame(Tag.ACTION_RESPONSE, body + numbered)


def encode_broadcast(page: PullPage) -> str:
    """Write the frame of a broadcast, or of a poke."""
    return encode_frame(Tag.BROADCAST, encode_page(page))


def encode_refusal(error: LakeSyncError, request_id: int, *, closes: bool) -> str:
    """Write the frame that refuses a request, or the connection."""
    sentence, field = refusal_texts(error)
    message = pb.Refusal(
        request_id=request_id,
        code=error.code,
        message=sentence,
        field=field,
        retry_after_s=error.retry_after_s,
        closes=closes,
    )
    return encode_frame(Tag.REFUSAL, message.SerializeToString())


def refusal_texts(error: LakeSyncError) -> tuple[str, str]:
    """Return the sentence and the field of a refusal, as much of them as a frame has room for."""
    sentence = error.public_message or error.message
    return sentence[:_SENTENCE_CHARS_MAX], (error.field or "")[:_SENTENCE_CHARS_MAX]


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
