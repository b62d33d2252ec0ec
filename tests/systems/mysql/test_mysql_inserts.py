"""Inserts of many rows in MySQL's words: PyMySQL's own text, and every value as it was."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pymysql.connections import Connection

from lakesync.adapters.sql.standard import lists
from lakesync.systems.mysql.mysql_dialect import STATEMENT_BYTES_MAX, inserts
from tests.support.destinations import SqlDestination, mariadb_dialect

if TYPE_CHECKING:
    from tools.local_stack.databases import Database

VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False),
    st.text(st.characters(codec="utf-8")), st.binary(), st.dates(), st.datetimes(),
    st.decimals(allow_nan=False, allow_infinity=False),
)  # fmt: skip
TEXT = 'it\'s \\ "%s" \0\n\r\x1a ☃ 🙂'
CONNECTION = Connection(defer_connect=True)
vars(CONNECTION)["server_status"] = 0  # as of a session in which a backslash escapes


@given(st.lists(st.lists(VALUES, min_size=3, max_size=3), min_size=1, max_size=5))
def test_insert_text_equals_that_of_pymysql(rows: list[list[object]]) -> None:
    places = ",".join(["(%s,%s,%s)"] * len(rows))
    values = [value for row in rows for value in row]
    (statement,) = inserts("VALUES", rows, CONNECTION.escape, " END")
    assert statement.decode() == CONNECTION.cursor().mogrify(f"VALUES {places} END", values)


@given(st.lists(st.text("ab'\\", max_size=30), max_size=20), st.integers(30, 200))
def test_insert_statements_stay_within_the_size_limit_unless_one_row_exceeds_it(
    texts: list[str], bytes_max: int
) -> None:
    statements = list(inserts("I", [(text,) for text in texts], CONNECTION.escape, " E", bytes_max))
    rows = [f"({CONNECTION.escape(text)})" for text in texts]
    written = [each.removeprefix(b"I ").removesuffix(b" E").decode() for each in statements]
    assert ",".join(written) == ",".join(rows)
    assert all(len(each) <= bytes_max or each[2:-2].decode() in rows for each in statements)


def test_in_lists_are_split_by_statement_size() -> None:
    short, wide = [b"%d" % number for number in range(45_000)], [b"x" * 512] * 10_000
    counts = [[len(each) for _, each in lists("c", values)] for values in (short, wide, [])]
    assert counts[0] == [20_000, 20_000, 5_000]
    assert sum(counts[1]) == 10_000
    assert max(counts[1]) * 1_024 <= STATEMENT_BYTES_MAX + 1_024
    assert counts[2] == []
    assert [*lists("c", [1, 2])] == [("c IN (%s, %s)", [1, 2])]


@pytest.mark.emulator
def test_bulk_insert_preserves_every_value(mariadb: Database) -> None:
    destination = SqlDestination(mariadb_dialect(mariadb))
    moment = datetime(2026, 2, 3, 4, 5, 6, 789, tzinfo=UTC).replace(tzinfo=None)
    rows: list[list[object]] = [
        [TEXT, bytes(range(256)), 2**62, 0.1, True, Decimal("1.20"), moment],
        ["", b"", -1, 1e300, False, Decimal(0), date(2026, 2, 3)],
        [None] * 7,
    ]  # fmt: skip
    destination.run(
        "CREATE TABLE inserted (t longtext, b longblob, i bigint, f double, o boolean, "
        "d decimal(9,2), m datetime(6), n INTEGER AUTO_INCREMENT PRIMARY KEY)"
    )
    connection = destination.dialect.connect()
    try:
        cursor = connection.cursor()
        columns = dict.fromkeys("tbifodm", "")
        destination.dialect.load(cursor, "inserted", columns, iter(rows))
        connection.commit()
    finally:
        connection.close()
    read = destination.run("SELECT t, b, i, f, o, d, m FROM inserted ORDER BY n")
    midnight = datetime(2026, 2, 3, tzinfo=UTC).replace(tzinfo=None)
    assert [list(row) for row in read] == [rows[0], [*rows[1][:-1], midnight], rows[2]]
