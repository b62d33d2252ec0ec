"""Messages of pgoutput are read as they were written, and become the same changes again."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakesync.connectors.port import Change, SourceColumn
from lakesync.systems.postgres.pgoutput import (
    Begin,
    Commit,
    Delete,
    Insert,
    Message,
    Other,
    Relation,
    RelationColumn,
    Truncate,
    Update,
    decode,
)
from lakesync.systems.postgres.postgres_capture import Parts, Position
from lakesync.systems.postgres.postgres_source import PostgresValues
from lakesync.systems.sql.captured_tables import UNCHANGED, CapturedTable
from lakesync.systems.sql.sql_settings import PolledTable
from lakesync.systems.sql.table_plan import Plan
from tests.support.pgoutput import EPOCH_US, encode

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lakesync.systems.sql.log_changes import Part

U32 = st.integers(0, 2**32 - 1)
LSN = st.integers(0, 2**64 - 1)
TIME = st.integers(EPOCH_US - 2**50, EPOCH_US + 2**50)
NAME = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=8)
ROW = st.lists(st.none() | st.just(UNCHANGED) | st.binary(max_size=20), max_size=6).map(tuple)
COLUMN = st.builds(RelationColumn, NAME, U32, st.integers(-1, 2**31 - 1), st.booleans())
MESSAGES: st.SearchStrategy[Message] = st.one_of(
    st.builds(Begin, LSN, TIME, U32),
    st.builds(Commit, LSN, LSN, TIME),
    st.builds(
        Relation, U32, NAME, NAME, st.sampled_from("dnfi"), st.lists(COLUMN, max_size=4).map(tuple)
    ),
    st.builds(Insert, U32, ROW),
    st.builds(Update, U32, ROW, st.none(), st.just(False)),
    st.builds(Update, U32, ROW, ROW, st.booleans()),
    st.builds(Delete, U32, ROW, st.booleans()),
    st.builds(Truncate, st.lists(U32, max_size=4).map(tuple)),
    st.builds(Other, st.sampled_from(["origin", "type", "message"])),
)
TABLE = Relation(
    1, "s", "t", "d",
    (RelationColumn("id", 23, -1, True), RelationColumn("v", 25, -1, False)),
)  # fmt: skip
PLAN = Plan(
    PolledTable.model_validate({"name": "t"}),
    (
        SourceColumn("id", "integer", source_type="integer"),
        SourceColumn("v", "string", source_type="text"),
    ),
    ("id", "v"),
    ("id",),
    PostgresValues(),
)
CAPTURED = CapturedTable(PLAN, (0, 1), PLAN.converts, (0,))


@pytest.mark.law("N12")
@given(MESSAGES)
def test_encoded_message_decodes_to_itself(message: Message) -> None:
    assert decode(encode(message)) == message


@given(MESSAGES, st.integers(0, 40))
def test_truncated_message_raises_value_error_or_decodes_to_another_message(
    message: Message, cut: int
) -> None:
    with suppress(ValueError):
        decode(encode(message)[:cut])


def parts_of(
    messages: Iterable[Message], start: Position, rows_max: int = 3, until_us: int = 2**60
) -> list[Part]:
    """Return the parts behind a position."""
    parts = Parts(start, rows_max, until_us, lambda *_: CAPTURED, lambda *_: None)
    return list(parts.of(encode(message) for message in messages))


ACTIONS = st.lists(
    st.tuples(st.sampled_from("iud"), st.integers(1, 4), st.integers(0, 9)), max_size=8
)


def possible(log: list[tuple[list[tuple[str, int, int]], int]]) -> Any:
    """Return a log without what cannot be: rows that come twice, or go without having come."""
    there: set[int] = set()
    transactions = []
    for actions, at in log:
        kept = []
        for kind, key, value in actions:
            if kind == "d" and key not in there:
                continue
            kept.append((kind if kind == "d" else "u" if key in there else "i", key, value))
            (there.discard if kind == "d" else there.add)(key)
        transactions.append((kept, at))
    return transactions


LOGS = st.lists(st.tuples(ACTIONS, st.integers(0, 10**9)), min_size=1, max_size=6).map(possible)


def log_of(transactions: list[tuple[list[tuple[str, int, int]], int]]) -> list[Message]:
    """Return the messages of transactions, with commit times in any order."""
    messages: list[Message] = []
    for number, (actions, at) in enumerate(transactions):
        lsn = 100 * number + 100
        messages += [Begin(lsn, EPOCH_US + at, number), TABLE]
        for kind, key, value in actions:
            row = (str(key).encode(), str(value).encode())
            said: dict[str, Message] = {
                "i": Insert(1, row),
                "u": Update(1, row),
                "d": Delete(1, (row[0], None)),
            }
            messages.append(said[kind])
        messages.append(Commit(lsn, lsn + 90, EPOCH_US + at))
    return messages


def applied(log: list[tuple[list[tuple[str, int, int]], int]]) -> dict[str, Any]:
    """Return the rows that actions leave."""
    rows: dict[str, Any] = {}
    for actions, _ in log:
        for kind, key, value in actions:
            rows[str(key)] = None if kind == "d" else str(value)
    return {key: value for key, value in rows.items() if value is not None}


@pytest.mark.law("N2", "N12")
@given(LOGS)
def test_change_times_follow_the_commit_order_whatever_the_clock(log: Any) -> None:
    latest: dict[str, Change] = {}
    times: list[int] = []
    for part in parts_of(log_of(log), Position(0)):
        times += [part.end.us] if part.changes else []
        for change in part.changes:
            before = latest.get(change.row_id)
            assert before is None or (change.changed_us or 0) > (before.changed_us or 0)
            latest[change.row_id] = change
    assert times == sorted(set(times))
    assert applied(log) == {key: each.columns["v"] for key, each in latest.items() if each.columns}


@pytest.mark.law("N2", "N12")
@given(LOGS, st.integers(1, 5))
def test_reading_again_from_any_position_gives_the_same_parts(log: Any, rows_max: int) -> None:
    messages = log_of(log)
    whole = parts_of(messages, Position(0), rows_max)
    for number, part in enumerate(whole):
        assert parts_of(messages, part.end, rows_max) == whole[number + 1 :]


def test_change_time_is_the_commit_time_in_microseconds_capped_at_the_limit() -> None:
    log = log_of([([("i", 1, 1)], 5_000), ([("i", 2, 1)], 9_000), ([("i", 3, 1)], 9_500)])
    times = [
        part.end.us - EPOCH_US for part in parts_of(log, Position(0), until_us=EPOCH_US + 6_000)
    ]

    assert times == [5_000, 6_000, 6_001]


def test_large_transaction_is_split_into_parts_with_distinct_times() -> None:
    log = log_of([([("i", number, 0) for number in range(7)] + [("u", 0, 9)], 1)])
    parts = parts_of(log, Position(0), rows_max=3)

    assert [part.rows for part in parts] == [3, 3, 2]
    assert [part.end.lsn for part in parts] == [0, 0, 190]
    assert parts[2].changes[-1] == Change("0", {"id": 0, "v": "9"}, EPOCH_US + 3, "t")


def test_row_with_an_unreadable_key_is_listed_and_the_next_row_is_read() -> None:
    log: list[Message] = [
        Begin(1, EPOCH_US, 1), TABLE, Insert(1, (b"no number", b"x")), Insert(1, (b"2", b"y")),
        Commit(1, 2, EPOCH_US),
    ]  # fmt: skip
    (part,) = parts_of(log, Position(0))

    assert [change.row_id for change in part.changes] == ["2"]
    assert len(part.unreadable) == 1
