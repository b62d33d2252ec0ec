"""Row states as deltas again: right, few, and none larger than a delta that is pushed may be."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakesync.core import merge as module
from lakesync.core.delta import COLUMNS_MAX, DELTA_BYTES_MAX, checked_delta
from lakesync.core.merge import RowState, deltas_of, fold
from tests.support.builders import CLIENT, ROW, TABLE, delete, insert, update
from tests.support.strategies import row_deltas

if TYPE_CHECKING:
    from lakesync.core.delta import Delta

HALF = "x" * 150_000
"""Two of these are more than one delta may carry."""
MANY: dict[str, Any] = {f"c{number}": number for number in range(COLUMNS_MAX)}
ONCE_MORE: dict[str, Any] = {f"d{number}": number for number in range(COLUMNS_MAX)}
LARGE = {
    "two edits": [insert(at=1, a=HALF), update(at=2, b=HALF)],
    "one stamp used twice": [insert(at=1, a=HALF), update(at=1, b=HALF)],
    "the same, of a row that was deleted once": [
        delete(at=1), insert(at=2, a=HALF), update(at=2, b=HALF),
    ],
    "more columns than one delta may carry": [insert(at=1, **MANY), update(at=2, **ONCE_MORE)],
    "the same with one stamp": [insert(at=1, **MANY), update(at=1, **ONCE_MORE)],
    "the same, of a row that was deleted once, as it was made anew": [
        delete(at=1), insert(at=2, **MANY), update(at=2, **ONCE_MORE),
    ],
}  # fmt: skip


def check_each(made: list[Delta]) -> None:
    """Hold each delta against what its readers check of a delta."""
    for delta in made:
        assert delta == checked_delta(*delta[:6])


@pytest.mark.law("M9")
@pytest.mark.parametrize("deltas", LARGE.values(), ids=LARGE)
def test_no_delta_of_a_row_exceeds_the_delta_limits(deltas: list[Delta]) -> None:
    state = fold(deltas)
    made = deltas_of(TABLE, ROW, state)

    check_each(made)
    assert fold(made) == fold(reversed(made)) == state
    assert len(made) <= len(deltas) + 1


@given(deltas=row_deltas, bytes_max=st.integers(1, 40), columns_max=st.integers(1, 3))
def test_deltas_of_a_row_merge_to_it_whatever_the_limits_of_a_delta(
    deltas: list[Delta], bytes_max: int, columns_max: int
) -> None:
    state = fold(deltas)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "DELTA_BYTES_MAX", bytes_max)
        patch.setattr(module, "COLUMNS_MAX", columns_max)
        made = deltas_of(TABLE, ROW, state)

    assert fold(made) == fold(reversed(made)) == state
    for delta in made:
        assert len(delta.columns) <= columns_max
        size = sum(len(value) for _, value in delta.columns)
        assert size <= bytes_max or len(delta.columns) == 1


def test_row_of_the_largest_delta_is_one_delta() -> None:
    whole = insert(at=1, a="x" * (DELTA_BYTES_MAX - 2))

    assert deltas_of(TABLE, ROW, fold([whole])) == [whole]


def test_deltas_of_a_stored_row_are_not_validated_again() -> None:
    """Whatever a later release refuses, rows that are there can be sent."""
    odd = RowState(1, 0, {"no name": (1, CLIENT, b"1")})

    assert [delta.columns for delta in deltas_of(TABLE, ROW, odd)] == [(("no name", b"1"),)]
