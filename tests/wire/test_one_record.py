"""lakesync.wire.one_record: the bytes of an edit are those that protobuf makes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given

from lakesync.wire.one_record import encode_record
from lakesync.wire.records import encode_records
from tests.support import strategies
from tests.support.builders import insert

if TYPE_CHECKING:
    from lakesync.core.delta import Delta


@given(strategies.deltas())
def test_one_delta_is_the_same_bytes_as_protobuf_makes(delta: Delta) -> None:
    assert encode_record(delta) == encode_records((delta,))


def test_so_it_is_with_values_of_any_size() -> None:
    delta = insert(a="x" * 44, b="y" * 45, c="z" * 46, d="w" * 125, e="v" * 126, f="u" * 70_000)

    assert encode_record(delta) == encode_records((delta,))
