"""lakesync.wire.proto: the numbers of its fields, the name of each fault, room for newer peers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from lakesync.core.clock import STAMP_MAX
from lakesync.core.messages import Pull
from lakesync.errors import BY_CODE, InternalError, ValidationFailed
from lakesync.wire import lakesync_pb2 as pb
from lakesync.wire import proto
from lakesync.wire.incoming import PUSH_DELTAS_MAX
from tests.support.builders import insert, push

if TYPE_CHECKING:
    from lakesync.core.messages import Push

STRING, BYTES, BOOL = (
    FieldDescriptor.TYPE_STRING,
    FieldDescriptor.TYPE_BYTES,
    FieldDescriptor.TYPE_BOOL,
)
FIXED64, UINT32, ENUM = (
    FieldDescriptor.TYPE_FIXED64,
    FieldDescriptor.TYPE_UINT32,
    FieldDescriptor.TYPE_ENUM,
)
MESSAGE = FieldDescriptor.TYPE_MESSAGE

SHARED: dict[str, dict[str, tuple[int, int]]] = {
    "ColumnDelta": {"column": (1, STRING), "value": (2, BYTES)},
    "RowDelta": {
        "op": (1, ENUM),
        "table": (2, STRING),
        "row_id": (3, STRING),
        "columns": (4, MESSAGE),
        "hlc": (5, FIXED64),
        "client_id": (6, STRING),
        "delta_id": (7, STRING),
    },
    "SyncPush": {"client_id": (1, STRING), "deltas": (2, MESSAGE), "last_seen_hlc": (3, FIXED64)},
    "SyncPull": {"client_id": (1, STRING), "since_hlc": (2, FIXED64), "max_deltas": (3, UINT32)},
    "SyncResponse": {"deltas": (1, MESSAGE), "server_hlc": (2, FIXED64), "has_more": (3, BOOL)},
    "Action": {
        "action_id": (1, STRING),
        "client_id": (2, STRING),
        "hlc": (3, FIXED64),
        "connector": (4, STRING),
        "action_type": (5, STRING),
        "params": (6, BYTES),
        "idempotency_key": (7, STRING),
    },
    "ActionPush": {"client_id": (1, STRING), "actions": (2, MESSAGE)},
    "ActionResponse": {"results": (1, MESSAGE), "server_hlc": (2, FIXED64)},
    "ActionResult": {"success": (1, MESSAGE), "error": (2, MESSAGE)},
    "ActionSuccess": {"action_id": (1, STRING), "data": (2, BYTES), "server_hlc": (3, FIXED64)},
    "ActionError": {
        "action_id": (1, STRING),
        "code": (2, STRING),
        "message": (3, STRING),
        "retryable": (4, BOOL),
    },
}
"""The fields of existing clients: what they may never find changed."""

OURS_FROM = 16


@pytest.mark.law("W5")
@pytest.mark.parametrize("name", SHARED)
def test_the_fields_of_existing_clients_keep_their_numbers_and_types(name: str) -> None:
    message: Descriptor = pb.DESCRIPTOR.message_types_by_name[name]
    fields = {field.name: (field.number, field.type) for field in message.fields}

    assert {shared: fields.pop(shared, None) for shared in SHARED[name]} == SHARED[name]
    assert all(number >= OURS_FROM for number, _ in fields.values())


@pytest.mark.law("W5")
def test_protobuf_package_and_numbers_of_operations_do_not_change() -> None:
    ops = pb.DESCRIPTOR.enum_types_by_name["DeltaOp"].values_by_number

    assert pb.DESCRIPTOR.package == "lakesync.v1"
    assert {number: op.name for number, op in ops.items()} == {
        0: "DELTA_OP_UNSPECIFIED",
        1: "DELTA_OP_INSERT",
        2: "DELTA_OP_UPDATE",
        3: "DELTA_OP_DELETE",
        4: "DELTA_OP_REMOVE",
    }


FIELD_999 = bytes.fromhex("ba3e03") + b"new"


@pytest.mark.law("W5")
def test_fields_of_a_newer_peer_are_ignored() -> None:
    made = push(insert(title="x"))
    message = pb.SyncPush.FromString(proto.encode_push(made))
    message.deltas[0].MergeFromString(FIELD_999)
    message.deltas[0].columns[0].MergeFromString(FIELD_999)

    assert proto.decode_push(message.SerializeToString() + FIELD_999) == made


@pytest.mark.law("W5")
def test_unknown_error_code_is_decoded_as_an_internal_error() -> None:
    result = pb.DeltaOutcome(outcome="refused", code="FROM_THE_FUTURE", message="do this")
    receipt = proto.decode_receipt(pb.PushReceipt(results=[result]).SerializeToString())
    error = receipt.outcomes[0].error

    assert isinstance(error, InternalError)
    assert error.message == "do this"


def record(**fields: Any) -> pb.RowDelta:
    """Return a valid record with other fields."""
    valid: dict[str, Any] = {
        "op": pb.DELTA_OP_INSERT,
        "table": "todos",
        "row_id": "r1",
        "client_id": "c1",
        "hlc": 1,
    }
    return pb.RowDelta(**(valid | fields))


def decoded(*deltas: pb.RowDelta, **fields: Any) -> Push:
    """Decode a push of these records."""
    valid: dict[str, Any] = {"client_id": "c1", "deltas": deltas}
    return proto.decode_push(pb.SyncPush(**(valid | fields)).SerializeToString())


def column(name: str, value: bytes) -> pb.ColumnDelta:
    """Return one column."""
    return pb.ColumnDelta(column=name, value=value)


@pytest.mark.law("W2")
@pytest.mark.parametrize(
    ("fields", "code", "field"),
    [
        ({"op": pb.DELTA_OP_UNSPECIFIED}, "VALIDATION_ERROR", "op"),
        ({"op": 9}, "VALIDATION_ERROR", "op"),
        ({"table": ""}, "VALIDATION_ERROR", "table"),
        ({"table": "a b"}, "VALIDATION_ERROR", "table"),
        ({"row_id": ""}, "VALIDATION_ERROR", "rowId"),
        ({"row_id": "r" * 513}, "VALIDATION_ERROR", "rowId"),
        ({"client_id": ""}, "VALIDATION_ERROR", "clientId"),
        ({"hlc": 0}, "VALIDATION_ERROR", "hlc"),
        ({"hlc": STAMP_MAX + 1}, "VALIDATION_ERROR", "hlc"),
        ({"columns": [column("a", b"")]}, "VALIDATION_ERROR", "columns.a"),
        ({"columns": [column("a", b"nul")]}, "VALIDATION_ERROR", "columns.a"),
        ({"columns": [column("a", b'"\xff"')]}, "VALIDATION_ERROR", "columns.a"),
        ({"columns": [column("a", b"1e400")]}, "VALIDATION_ERROR", "columns.a"),
        ({"columns": [column("a b", b"1")]}, "VALIDATION_ERROR", "columns.column"),
        ({"columns": [column("a", b"1")] * 2}, "VALIDATION_ERROR", "columns"),
        ({"columns": [column("a", b"1" * 2**19)]}, "VALIDATION_ERROR", "columns.a"),
        ({"columns": [column("a", b'"%b"' % (b"x" * 2**19))]}, "DELTA_TOO_LARGE", "columns"),
        ({"op": 3, "columns": [column("a", b"1")]}, "VALIDATION_ERROR", "columns"),
        ({"delta_id": "00" * 32}, "VALIDATION_ERROR", "deltaId"),
    ],
)
def test_invalid_delta_is_refused_by_its_field_and_its_neighbours_are_read(
    fields: dict[str, Any], code: str, field: str
) -> None:
    read = decoded(record(), record(**fields), record())
    (refused,) = read.unreadable

    assert [index for index, _ in read.deltas] == [0, 2]
    assert (refused.index, type(refused.error)) == (1, BY_CODE[code])
    assert refused.error.field == f"deltas[1].{field}"


@pytest.mark.law("W2")
@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"client_id": ""}, "clientId"),
        ({"client_id": "c" * 129}, "clientId"),
        ({"last_seen_hlc": STAMP_MAX + 1}, "lastSeenHlc"),
        ({"deltas": [pb.RowDelta()] * (PUSH_DELTAS_MAX + 1)}, "deltas"),
    ],
)
def test_invalid_field_of_a_push_is_refused_by_name(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(ValidationFailed) as refused:
        decoded(**fields)

    assert refused.value.field == field


@pytest.mark.law("W2")
@pytest.mark.parametrize(
    ("message", "field"),
    [
        (pb.SyncPull(client_id=""), "clientId"),
        (pb.SyncPull(client_id="c1", since_hlc=STAMP_MAX + 1), "sinceHlc"),
    ],
)
def test_invalid_field_of_a_pull_is_refused_by_name(message: pb.SyncPull, field: str) -> None:
    with pytest.raises(ValidationFailed) as refused:
        proto.decode_pull(message.SerializeToString())

    assert refused.value.field == field


@pytest.mark.law("W2")
def test_page_with_a_cursor_out_of_range_is_refused() -> None:
    body = pb.SyncResponse(server_hlc=STAMP_MAX + 1).SerializeToString()
    with pytest.raises(ValidationFailed) as refused:
        proto.decode_page(body)

    assert refused.value.field == "serverHlc"


TRUNCATED = b"\x0a\x09cut"


@pytest.mark.law("W2")
@pytest.mark.parametrize(
    ("decode", "name"),
    [
        (proto.decode_push, "SyncPush"),
        (proto.decode_pull, "SyncPull"),
        (proto.decode_page, "SyncResponse"),
        (proto.decode_receipt, "PushReceipt"),
    ],
)
def test_truncated_message_is_refused_by_the_name_of_the_message(decode: Any, name: str) -> None:
    with pytest.raises(ValidationFailed, match=f"not a {name} message"):
        decode(TRUNCATED)


@pytest.mark.law("W2")
def test_unknown_outcome_is_refused() -> None:
    body = pb.PushReceipt(results=[pb.DeltaOutcome(outcome="maybe")]).SerializeToString()
    with pytest.raises(ValidationFailed, match="not a PushReceipt message"):
        proto.decode_receipt(body)


def test_pull_without_a_limit_has_the_default_limit() -> None:
    assert proto.decode_pull(pb.SyncPull(client_id="c1").SerializeToString()).deltas_max == 100


def test_non_canonical_values_become_canonical() -> None:
    read = decoded(record(columns=[column("a", b' {"b": 1.0, "a": "\\u00e9"} ')]))

    assert read.deltas[0][1].columns == (("a", '{"a":"é","b":1}'.encode()),)


@pytest.mark.law("W5")
@pytest.mark.parametrize("quarantined", [None, 0, 1, (1 << 32) - 1])
def test_pull_carries_the_number_of_quarantined_edits_or_none(
    quarantined: int | None,
) -> None:
    pull = Pull("c1", 7, quarantined=quarantined)

    assert proto.decode_pull(proto.encode_pull(pull)).quarantined == quarantined
