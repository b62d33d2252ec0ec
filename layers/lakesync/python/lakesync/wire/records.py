"""Runs of deltas: the one form in which a delta is stored, paged and sent.

A run is a protobuf ``SyncResponse`` that holds nothing but deltas. Protobuf messages concatenate,
so the answer to a pull is the stored runs joined, with the cursor behind them: nothing is decoded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakesync.core.delta import Delta, Op
from lakesync.wire import lakesync_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Iterable

    from google.protobuf.internal.containers import RepeatedCompositeFieldContainer

    RowDeltas = RepeatedCompositeFieldContainer[pb.RowDelta]

_OPS = (None, Op.INSERT, Op.UPDATE, Op.DELETE, Op.REMOVE)


def encode_records(deltas: Iterable[Delta]) -> bytes:
    """Give the run of some deltas."""
    run = pb.SyncResponse()
    add_records(run.deltas, deltas)
    return run.SerializeToString()


def decode_records(run: bytes) -> list[Delta]:
    """Give the deltas of a run that `encode_records` made. Never for bytes from outside."""
    return [trusted_delta(record) for record in pb.SyncResponse.FromString(run).deltas]


def add_records(target: RowDeltas, deltas: Iterable[Delta]) -> None:
    """Append deltas to a message's repeated field."""
    for op, table, row_id, client_id, hlc, columns, delta_id in deltas:
        record = target.add()
        # Plain assignments and `add` are twice as fast as a constructor with keywords.
        record.op = op  # type: ignore[assignment]  # to protobuf an enum is a plain integer
        record.table = table
        record.row_id = row_id
        record.client_id = client_id
        record.hlc = hlc
        record.delta_id = delta_id
        add = record.columns.add
        for name, value in columns:
            add(column=name, value=value)


def trusted_delta(record: pb.RowDelta) -> Delta:
    """Give the delta of a record that this system wrote itself."""
    return Delta(
        _OPS[record.op],  # type: ignore[arg-type]  # our own records always have an op
        record.table,
        record.row_id,
        record.client_id,
        record.hlc,
        tuple([(column.column, column.value) for column in record.columns]),
        record.delta_id,
    )
