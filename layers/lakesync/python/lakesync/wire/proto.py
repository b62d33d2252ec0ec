"""The protobuf encoding: bytes ⇄ messages, both directions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from google.protobuf.message import DecodeError

from lakesync.core.clock import STAMP_MAX
from lakesync.core.delta import check_client_id
from lakesync.core.messages import (
    DeltaOutcome,
    OutcomeKind,
    Pull,
    PullPage,
    Push,
    PushReceipt,
    RefusedDelta,
)
from lakesync.core.values import recanonical
from lakesync.errors import BY_CODE, InternalError, InvalidInput, LakeSyncError, ValidationFailed
from lakesync.wire import lakesync_pb2 as pb
from lakesync.wire.incoming import OP_NAMES, check_count, incoming_delta, row_key, under
from lakesync.wire.page_parts import progress_of, resync_of, stamp_in, write_resync
from lakesync.wire.records import encode_records

if TYPE_CHECKING:
    from lakesync.core.delta import Delta

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
