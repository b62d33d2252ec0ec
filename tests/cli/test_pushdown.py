"""What of a table a query needs: never less than it does, and no more than it says."""

from __future__ import annotations

import csv
import operator
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.expressions import parser

from lakesync.analysis.connection import UsageFault
from lakesync.analysis.lake import Comparison as Pushed
from lakesync.analysis.lake import as_expression, comparisons_in, needed
from lakesync.cli.input_output import check_format, write_rows

if TYPE_CHECKING:
    from pathlib import Path

SCHEMA = pa.schema(
    [
        ("_id", pa.string()),
        ("name", pa.string()),
        ("n", pa.int64()),
        ("day", pa.date32()),
        ("made", pa.timestamp("us", "UTC")),
        ("price", pa.decimal128(10, 2)),
        ('a "b"', pa.int64()),
    ]
)


def needs(sql: str) -> Any:
    return needed(duckdb.connect(), sql, {"t": SCHEMA})["t"]


@pytest.mark.parametrize(
    ("where", "tests"),
    [
        ("n > 3", [Pushed("n", ">", (3,))]),
        ("n between 1 and 5", [Pushed("n", ">=", (1,)), Pushed("n", "<=", (5,))]),
        ("name = 'it''s) AND (\"n\" = 1'", [Pushed("name", "=", ('it\'s) AND ("n" = 1',))]),
        ("name in ('a', 'b')", [Pushed("name", "in", ("a", "b"))]),
        ("day = '2013-01-01'", [Pushed("day", "=", ("2013-01-01",))]),
        ("made >= '2013-01-01T00:00:00Z'", [Pushed("made", ">=", ("2013-01-01T00:00:00+00:00",))]),
        ("price < 3.5", [Pushed("price", "<", (Decimal("3.50"),))]),
        ('"a ""b""" = 1', [Pushed('a "b"', "=", (1,))]),
        ("n = 1 or name = 'a'", []),
        ("name like '%a'", []),
        ("n is null", []),
    ],
)
def test_supported_conditions_are_pushed_down_and_others_left_out(
    where: str, tests: list[Pushed]
) -> None:
    database = duckdb.connect()
    database.execute("SET TimeZone = 'UTC'")
    sql = f"select _id from t where {where}"  # noqa: S608 - of the test's own words
    need = needed(database, sql, {"t": SCHEMA})["t"]

    if need.comparisons:  # what is split at an AND inside of a text is not understood
        assert list(need.comparisons) == tests
    else:
        assert not tests or ") AND (" in where
    assert {test.column for test in tests} <= need.columns


def test_a_scan_reads_only_the_columns_that_the_query_names() -> None:
    assert needs("select name, count(*) from t where n > 1 group by 1").columns == {"name", "n"}
    assert needs("select count(*) from t").columns == {"_id"}
    assert needs("select * from t").columns == set(SCHEMA.names)
    joined = needs("select a.name from t a join t b on a._id = b._id where b.n > 1")
    assert (joined.columns, joined.comparisons) == ({"_id", "name", "n"}, ())


def test_a_query_without_a_plan_reads_all_columns() -> None:
    assert needs("select 1; select n from t").columns == set(SCHEMA.names)


def test_pushed_conditions_become_a_scan_filter() -> None:
    made = as_expression((Pushed("N", ">", (3,)), Pushed("s", "in", ("a", "b"))), {"N": "c_n"})
    assert made == parser.parse("c_n > 3 and s in ('a', 'b')")
    assert list(comparisons_in("(((odd)))")) == []


ROWS = st.lists(
    st.tuples(
        st.one_of(st.none(), st.integers(-3, 3)),
        st.one_of(st.none(), st.sampled_from(["", "a", "b", "it's", "AND"])),
    ),
    max_size=12,
)
NUMBER = st.sampled_from(["n > 0", "n = 1", "n in (1, 2)", "n between -1 and 1", "n <> 2"])
TEXT = st.sampled_from(["s = 'a'", "s >= 'b'", "s in ('it''s', 'AND')", "s is null", "s like 'a%'"])
HOLDS: dict[str, Any] = {
    "=": operator.eq,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


@given(rows=ROWS, number=NUMBER, text=TEXT, joint=st.sampled_from(["and", "or"]))
def test_pushdown_does_not_change_the_result_of_a_query(
    rows: list[tuple[int | None, str | None]], number: str, text: str, joint: str
) -> None:
    table = pa.table(
        {"n": pa.array([n for n, _ in rows], pa.int64()), "s": [s for _, s in rows]},
        schema=pa.schema([("n", pa.int64()), ("s", pa.string())]),
    )
    sql = f"select n, s from t where {number} {joint} {text} order by all"  # noqa: S608 - as above
    database = duckdb.connect()
    need = needed(database, sql, {"t": table.schema})["t"]

    def holds(value: Any, test: Pushed) -> bool:
        if value is None:
            return False
        compare = HOLDS.get(test.operator, lambda value, *values: value in values)
        return bool(compare(value, *test.values))

    def passes(row: dict[str, Any]) -> bool:
        return all(holds(row[test.column], test) for test in need.comparisons)

    kept = pa.Table.from_pylist([row for row in table.to_pylist() if passes(row)], table.schema)
    database.register("t", table)
    whole = database.execute(sql).fetchall()
    database.register("t", kept)

    assert database.execute(sql).fetchall() == whole


def test_the_file_name_suffix_selects_the_output_format(tmp_path: Path) -> None:
    moment = datetime(2013, 1, 1, 5, tzinfo=UTC)
    rows = pa.table({"a": [1, None], "b": [["x"], []], "c": [moment, None], "d": [date.min, None]})
    for suffix in ("csv", "json", "parquet", "arrow"):
        path = tmp_path / f"rows.{suffix}"
        path.write_text("before")
        check_format(path)
        write_rows(rows.to_reader(), path)
        assert path.read_bytes() != b"before"
    assert pa.ipc.open_file(tmp_path / "rows.arrow").read_all() == rows
    with (tmp_path / "rows.csv").open() as file:
        assert list(csv.reader(file))[1][:2] == ["1", '["x"]']
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        f"rows.{suffix}" for suffix in ("arrow", "csv", "json", "parquet")
    ]
    with pytest.raises(UsageFault, match="is not a folder"):
        check_format(tmp_path / "nowhere" / "rows.csv")
