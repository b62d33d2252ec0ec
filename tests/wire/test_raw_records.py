"""Records as they came: whichever way they are read, they are the same deltas."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from lakesync.core.delta import GATEWAY_CLIENT, Op, make_delta, removal
from lakesync.wire import lakesync_pb2 as pb
from lakesync.wire.records import (
    columns_of,
    decode_records,
    delta_of,
    encode_records,
    raw_records,
    values_alike,
)
from tests.support import strategies

if TYPE_CHECKING:
    from lakesync.core.delta import Delta

SIZES = (0, 1, 125, 126, 127, 128, 129, 130, 16_381, 16_382, 16_383, 16_384, 70_000)
"""Lengths of text about those from which the size of a value takes another byte."""


@given(st.lists(strategies.deltas(), max_size=6))
def test_raw_records_are_the_deltas_of_their_run(deltas: list[Delta]) -> None:
    run = encode_records(deltas)

    assert list(map(delta_of, raw_records(run))) == decode_records(run) == deltas


def test_removal_is_read_as_a_raw_record() -> None:
    gone = removal("todos", "r1", 7)

    (record,) = raw_records(encode_records([gone]))

    assert delta_of(record) == gone
    assert record.client_id == GATEWAY_CLIENT


def test_values_of_any_size_are_read_singly_and_together() -> None:
    deltas = [
        make_delta(Op.INSERT, "t", f"r{size}", {"c": "x" * size}, client_id="c", hlc=1)
        for size in SIZES
    ]
    records = raw_records(encode_records(deltas))

    assert list(map(delta_of, records)) == deltas
    together = values_alike([record.columns[0] for record in records])
    assert together == ("c", [delta.columns[0][1] for delta in deltas])


@given(st.lists(st.sampled_from(["a", "b", "ab", "a" * 64]), min_size=1, max_size=4))
def test_columns_with_different_names_are_not_read_together(names: list[str]) -> None:
    column = [pb.ColumnDelta(column=name, value=b"1").SerializeToString() for name in names]

    expected = (names[0], [b"1"] * len(names)) if len(set(names)) == 1 else None
    assert values_alike(column) == expected
    read = [columns_of([raw]) for raw in column]
    assert read == [((name,), (b"1",)) for name in names]


def test_column_with_an_unusual_encoding_is_read_by_protobuf() -> None:
    usual = pb.ColumnDelta(column="c", value=b"17").SerializeToString()
    turned = b"\x12\x0217\x0a\x01c"
    unknown = usual + b"\x98\x06\x01"  # a field of a later release
    longer = b"\x0a\x01c\x12\x82\x0017"  # a size that takes more bytes than it needs

    nothing = pb.ColumnDelta().SerializeToString()
    nameless = pb.ColumnDelta(value=b"17").SerializeToString()
    bare = pb.ColumnDelta(column="c").SerializeToString()
    assert [columns_of([raw]) for raw in (nothing, nameless, bare)] == [
        (("",), (b"",)),
        (("",), (b"17",)),
        (("c",), (b"",)),
    ]
    assert [values_alike([raw]) for raw in (nothing, nameless, bare)] == [None] * 3

    for raws in ([usual, unknown], [usual, longer], [unknown, usual]):
        assert values_alike(raws) == ("c", [b"17", b"17"])
    assert values_alike([usual, turned]) is None
    assert values_alike([turned, usual]) is None
    for raw in (usual, turned, unknown, longer):
        assert columns_of([raw]) == (("c",), (b"17",))
