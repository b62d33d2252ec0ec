"""lakesync.wire.records: the bytes of deltas are those that protobuf makes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis.strategies import lists

from lakesync.wire import lakesync_pb2 as pb
from lakesync.wire.records import encode_record, encode_records
from tests.support import strategies
from tests.support.builders import insert

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lakesync.core.delta import Delta


@given(lists(strategies.deltas(), max_size=4))
def test_encoded_deltas_have_the_bytes_that_protobuf_writes(deltas: list[Delta]) -> None:
    assert encode_records(deltas) == _by_protobuf(deltas)


@given(strategies.deltas())
def test_deltas_with_empty_fields_have_the_bytes_that_protobuf_writes(delta: Delta) -> None:
    empty = delta._replace(client_id="", row_id="", delta_id="", hlc=0)

    assert encode_record(empty) == _by_protobuf([empty])


def test_values_of_any_size_have_the_bytes_that_protobuf_writes() -> None:
    delta = insert(a="x" * 44, b="y" * 45, c="z" * 46, d="w" * 125, e="v" * 126, f="u" * 70_000)

    assert encode_record(delta) == _by_protobuf([delta])


def _by_protobuf(deltas: Iterable[Delta]) -> bytes:
    run = pb.SyncResponse()
    for op, table, row_id, client_id, hlc, columns, delta_id in deltas:
        run.deltas.add(
            op=pb.DeltaOp.ValueType(op),
            table=table,
            row_id=row_id,
            client_id=client_id,
            hlc=hlc,
            columns=[pb.ColumnDelta(column=name, value=value) for name, value in columns],
            delta_id=delta_id,
        )
    return run.SerializeToString()
