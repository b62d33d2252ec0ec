"""Rows as runs of deltas: spliced or taken apart, the bytes are the same, and rows again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakesync.core.merge import as_read, deltas_of, fold, view
from lakesync.wire.records import (
    RowRecords,
    decode_records,
    encode_records,
    encode_row_state,
    row_runs,
    varint,
)
from tests.support.builders import delete, insert, update
from tests.support.strategies import deltas, row_deltas, row_states

if TYPE_CHECKING:
    from lakesync.core.delta import Delta
    from lakesync.core.merge import RowState


def check(row_id: str, state: RowState) -> None:
    wanted = deltas_of("todos", row_id, state)

    run, count = RowRecords("todos").encode(row_id, encode_row_state(state))

    assert run == encode_records(wanted)
    assert count == len(wanted)


@given(row=row_deltas)
def test_encoded_row_has_the_bytes_and_number_of_its_deltas(row: list[Delta]) -> None:
    if row:
        check("r1", fold(row))


@given(row=st.lists(deltas(), min_size=1, max_size=3))
def test_rows_with_any_names_and_values_have_the_bytes_of_their_deltas(row: list[Delta]) -> None:
    check(row[0].row_id, fold(row))


def test_rows_with_lengths_of_several_bytes_have_the_bytes_of_their_deltas() -> None:
    for size in (1, 60, 127, 128, 200, 20_000):
        long, client = "\u00e9" * size, "c" * min(size, 128)
        row_id = "r" * min(size, 512)
        one = insert(row_id, title=long, at=5, client=client, n=1)
        for row in (
            [one],
            [one, update(row_id, note=long, at=6)],
            [update(row_id, at=3, n=1)],
        ):
            check(row_id, fold(row))


def test_rows_larger_than_a_delta_have_the_bytes_of_their_deltas() -> None:
    half = "x" * 150_000
    many: dict[str, Any] = {f"c{number}": number for number in range(500)}
    more: dict[str, Any] = {f"d{number}": number for number in range(500)}
    for row in (
        [insert(at=2, a=half), update(at=2, b=half)],
        [insert(at=2, a=half), update(at=2, b=half), update(at=3, c=1)],
        [insert(at=2, **many), update(at=2, **more)],
        [insert(at=2, **many), update(at=2, **more), update(at=3, c=1)],
    ):
        check("r1", fold(row))
        check("r1", fold([delete(at=1), *row]))


def test_tombstone_has_the_bytes_of_its_delta() -> None:
    check("r1", fold([insert(n=1, at=1), delete(at=2)]))


def test_rows_of_a_run_are_returned_singly_with_the_requested_columns() -> None:
    rows = {
        "r1": [insert("r1", at=1, n=1, title="a")],
        "r2": [insert("r2", at=1, n=2), update("r2", at=2, client="d", title="b")],
        "r3": [delete("r3", at=9)],
        "r4": [insert("r4", at=1)],
    }
    records = RowRecords("todos")
    runs = {row_id: records.encode(row_id, encode_row_state(fold(made)))
            for row_id, made in rows.items()}  # fmt: skip

    read = list(row_runs(b"".join(run for run, _ in runs.values()), frozenset({"title"})))

    assert {row.row_id: (row.run, row.deltas) for row in read} == runs
    assert [row.values for row in read] == [{"title": b'"a"'}, {"title": b'"b"'}, None, {}]
    assert [fold(decode_records(row.run)) for row in read] == [fold(x) for x in rows.values()]


@pytest.mark.law("M10")
@given(state=row_states, delete_wins=st.booleans())
def test_row_of_a_run_is_read_by_its_tables_delete_wins(
    state: RowState, *, delete_wins: bool
) -> None:
    run, _ = RowRecords("todos").encode("r1", encode_row_state(state))
    seen = view(as_read(state, delete_wins=delete_wins))

    (values,) = [row.values for row in row_runs(run, frozenset("pq"), delete_wins=delete_wins)] or [
        None
    ]

    assert values == (seen and {name: seen[name] for name in "pq" if name in seen})


def test_varint_writes_seven_bits_per_byte() -> None:
    assert [varint(number) for number in (0, 127, 128, 300)] == [
        b"\x00", b"\x7f", b"\x80\x01", b"\xac\x02",
    ]  # fmt: skip
