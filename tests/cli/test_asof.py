"""`--as-of`: what the text means, and which snapshot it chooses."""

from __future__ import annotations

import pytest

from lakesync.cli.input_output import UsageFault
from lakesync.cli.past import AtNumber, AtTime, Moment, as_of, chosen, pinned

TODOS = [Moment(71, 1_000, 10), Moment(72, 2_000, 20), Moment(73, 3_000, 30)]
NOTES = [Moment(81, 1_500, 15), Moment(82, 2_500, 25)]


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("1970-01-01T00:00:01Z", 1_000),
        ("1970-01-01T00:00:01", 1_000),
        ("1970-01-01 01:00:01.5+01:00", 1_500),
        ("1970-01-02", 86_400_000),
    ],
)
def test_a_time_is_iso_8601_and_utc_without_an_offset(text: str, ms: int) -> None:
    assert as_of(text) == AtTime(ms)


@pytest.mark.parametrize("text", ["yesterday", "", "-1", "12x", "२"])
def test_an_invalid_point_in_time_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(UsageFault, match="give an ISO-8601 time such as"):
        as_of(text)


def test_a_time_selects_the_latest_snapshot_at_or_before_it() -> None:
    assert chosen(AtTime(2_999), TODOS) == TODOS[1]
    assert chosen(AtTime(3_000), TODOS) == TODOS[2]
    assert chosen(AtTime(999), TODOS) is None


def test_a_commit_stamp_selects_the_latest_snapshot_at_or_below_it() -> None:
    assert chosen(AtNumber(29), TODOS) == TODOS[1]
    assert chosen(AtNumber(30), TODOS) == TODOS[2]
    assert chosen(AtNumber(9), TODOS) is None


def test_a_snapshot_id_of_one_table_selects_other_tables_by_its_time() -> None:
    wanted = pinned(as_of("72"), [TODOS, NOTES])
    assert chosen(wanted, TODOS) == TODOS[1]
    assert chosen(wanted, NOTES) == NOTES[0]


def test_a_number_that_is_no_snapshot_id_is_a_commit_stamp() -> None:
    assert pinned(as_of("20"), [TODOS, NOTES]) == AtNumber(20)
    assert pinned(AtTime(5), [TODOS]) == AtTime(5)
