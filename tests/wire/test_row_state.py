"""lakesync.wire.records: rows stay small where few clients wrote them."""

from __future__ import annotations

from lakesync.core.merge import EMPTY, fold
from lakesync.wire.records import decode_row_state, encode_row_state
from tests.support.builders import insert, update


def test_empty_row_state_is_encoded_as_no_bytes() -> None:
    assert decode_row_state(None) is EMPTY
    assert encode_row_state(EMPTY) == b""
    assert decode_row_state(b"") == EMPTY


def test_client_id_is_stored_once_however_many_columns_its_client_wrote() -> None:
    client = "a client id of some length"
    wide = fold([insert(client=client, a=1, b=2, c=3, d=4)])

    assert encode_row_state(wide).count(client.encode()) == 1


def test_writes_of_one_client_keep_their_own_stamps() -> None:
    state = fold([insert(at=1, a=1, b=1), update(at=2, b=2)])

    assert decode_row_state(encode_row_state(state)) == state
    assert {name: register[0] for name, register in state.columns.items()} == {"a": 1, "b": 2}
