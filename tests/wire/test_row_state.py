"""lakesync.wire.row_state: rows stay small where few clients wrote them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given

from lakesync.core.delta import Op
from lakesync.core.merge import EMPTY, fold
from lakesync.wire.row_state import decode_row_state, encode_insert, encode_row_state
from tests.support import strategies
from tests.support.builders import insert, update

if TYPE_CHECKING:
    from lakesync.core.delta import Delta


def test_no_bytes_are_the_empty_row_and_the_empty_row_is_no_bytes() -> None:
    assert decode_row_state(None) is EMPTY
    assert encode_row_state(EMPTY) == b""
    assert decode_row_state(b"") == EMPTY


def test_a_writer_is_stored_once_however_many_columns_it_wrote() -> None:
    client = "a client id of some length"
    wide = fold([insert(client=client, a=1, b=2, c=3, d=4)])

    assert encode_row_state(wide).count(client.encode()) == 1


def test_two_writes_of_one_client_keep_their_own_stamps() -> None:
    state = fold([insert(at=1, a=1, b=1), update(at=2, b=2)])

    assert decode_row_state(encode_row_state(state)) == state
    assert {name: register[0] for name, register in state.columns.items()} == {"a": 1, "b": 2}


@given(strategies.deltas())
def test_the_state_of_one_insert_is_the_same_bytes_as_merging_it(delta: Delta) -> None:
    columns = () if delta.op is Op.DELETE else delta.columns
    merged = fold([delta._replace(op=Op.INSERT, columns=columns)])

    assert encode_insert(delta.hlc, delta.client_id, columns) == encode_row_state(merged)


def test_columns_in_any_order_and_values_of_any_size_are_the_same_state() -> None:
    one = insert(z=1, a="x" * 44, m="y" * 45, n="z" * 46, o="w" * 127, p="v" * 5_000)
    columns = tuple(sorted(one.columns, reverse=True))

    assert encode_insert(one.hlc, one.client_id, columns) == encode_row_state(fold([one]))
