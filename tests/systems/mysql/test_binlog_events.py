"""MySQL's binary log, written by these tests: what MariaDB's, which is real elsewhere, has not."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakesync.connectors.port import Change
from lakesync.systems.mysql import binlog
from lakesync.systems.mysql import binlog_events as tm
from lakesync.systems.mysql.binlog import Position, status_statement
from lakesync.systems.mysql.binlog_events import Decoder, tables_in
from lakesync.systems.mysql.binlog_rows import json_from, reader_of
from lakesync.systems.mysql.binlog_tables import TableLook, captured_table
from lakesync.systems.mysql.mysql_capture import Described, Parts
from lakesync.systems.sql.log_changes import GapError
from lakesync.systems.sql.sql_settings import PolledTable
from tests.support import mysql_log as written

if TYPE_CHECKING:
    from lakesync.systems.mysql.binlog_events import LoggedTable
    from lakesync.systems.sql.log_changes import Part

SERVER = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
SECOND = 1_700_000_000
COMMIT_US = SECOND * 1_000_000 + 123_456
LOOK = TableLook(
    "shop", "items", {"id": "int", "v": "varchar(300)", "j": "json"}, ("id",), {}, frozenset()
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1)
    | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=200),
    lambda inner: st.lists(inner, max_size=5)
    | st.dictionaries(st.text(max_size=5), inner, max_size=5),
    max_leaves=15,
)  # fmt: skip


def described(logged: LoggedTable) -> Described:
    """Return how rows of the one table are told."""
    table = captured_table(logged, LOOK, PolledTable.model_validate({"name": "items"}))
    return Described(table, tuple(map(reader_of, logged.columns)))


def read(
    *events: bytes, start: Position | None = None, rows_max: int = 100
) -> tuple[list[Part], list[tuple[str, int]]]:
    """Read a log; returns parts, and which tables are to be read again, and when."""
    again: list[tuple[str, int]] = []
    parts = Parts(
        start or Position("binlog.000001", 4, f"{SERVER}:1-5", is_by_gtid=True),
        rows_max,
        COMMIT_US * 2,
        described,
        lambda name, us: again.append((name, us)),
        lambda each: tables_in(each.sql, each.schema, {"items": ("shop", "items")}),
    )
    decoder = Decoder(is_checked=False, is_mariadb=False, wanted=lambda *_: True)
    rotate = written.event(written.ROTATE, struct.pack("<Q", 4) + b"binlog.000001")
    return list(parts.of(decoder, [rotate, *events])), again


def transaction(number: int, *inner: bytes, end: bytes | None = None) -> list[bytes]:
    """Return a transaction of MySQL."""
    begin = written.gtid(SERVER, number, COMMIT_US)
    return [
        written.event(written.GTID, begin, seconds=SECOND, pos=100 * number),
        written.event(written.QUERY, written.query("BEGIN")),
        written.event(
            written.TABLE_MAP,
            written.table_map(
                "items",
                [(tm.LONG, b""), (tm.VARCHAR, b"\x2c\x01"), (tm.JSON, b"\4")],
                ["id", "v", "j"],
            ),
        ),
        *inner,
        end or written.event(written.XID, struct.pack("<Q", number), pos=100 * number + 50),
    ]


def row(id_: int, v: str, j: Any) -> bytes:
    """Return a row of the table."""
    text, document = v.encode(), written.document(j, is_large=False)
    sizes = struct.pack("<H", len(text)) + text + struct.pack("<I", len(document)) + document
    return b"\0" + struct.pack("<i", id_) + sizes


def insert(*rows: bytes) -> bytes:
    """Insert rows, all of their columns."""
    return written.event(written.WRITE, written.rows(3, b"".join(rows), [b"\7"]))


@pytest.mark.law("N12")
def test_mysql_transaction_is_read_with_its_commit_time_in_microseconds() -> None:
    parts, again = read(*transaction(6, insert(row(1, "é", {"a": [False]}), row(2, "", False))))

    (part,) = parts
    assert part.changes == (
        Change("1", {"id": 1, "v": "é", "j": {"a": [False]}}, COMMIT_US, "items"),
        Change("2", {"id": 2, "v": "", "j": False}, COMMIT_US, "items"),
    )
    assert part.end == Position(
        "binlog.000001", 650, f"{SERVER}:1-6", us=COMMIT_US, is_by_gtid=True
    )
    assert again == []


@pytest.mark.law("N12")
def test_minimal_row_image_gives_only_the_logged_columns() -> None:
    data = b"\0" + struct.pack("<i", 1) + b"\0" + struct.pack("<H", 1) + b"y"
    update = written.event(written.UPDATE, written.rows(3, data, [b"\1", b"\2"]))
    ((part,), _) = read(*transaction(6, update))

    assert part.changes == (Change("1", {"id": 1, "v": "y"}, COMMIT_US, "items"),)
    assert part.omitted == ()


@pytest.mark.law("N2", "N12")
@given(st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=5), min_size=1, max_size=4))
def test_reading_again_from_any_position_gives_the_same_parts(events: list[list[int]]) -> None:
    log = [
        *transaction(6, *(insert(*(row(id_, "x", None) for id_ in ids)) for ids in events)),
        *transaction(7, insert(row(77, "z", None))),
    ]
    parts, _ = read(*log, rows_max=3)
    for number, part in enumerate(parts):
        # A server sends whole transactions.
        rest = log if part.end.gtid.endswith("-5") else log[-5:]
        if part.end.gtid.endswith("-7"):
            continue
        assert read(*rest, start=part.end, rows_max=3)[0] == parts[number + 1 :]


@pytest.mark.law("N12", "N13")
def test_statements_and_prepared_transactions_trigger_a_table_re_read() -> None:
    begin = written.event(written.GTID, written.gtid(SERVER, 6, COMMIT_US), pos=600)
    ddl = written.event(written.QUERY, written.query("/* x */ TRUNCATE `items`"), pos=700)
    parts, again = read(begin, ddl)
    assert again == [("items", COMMIT_US)]
    assert (parts[0].end.gtid, parts[0].end.pos) == (f"{SERVER}:1-6", 700)

    prepared = transaction(6, insert(row(1, "x", None)), end=written.event(
        written.XA_PREPARE, b"\0" * 13, pos=650))  # fmt: skip
    prepared[1] = written.event(written.QUERY, written.query("XA START X'61',X'',1"))
    begin = written.event(written.GTID, written.gtid(SERVER, 7, COMMIT_US), pos=700)
    commit = written.event(written.QUERY, written.query("XA COMMIT X'61',X'',1"), pos=800)
    parts, again = read(*prepared, begin, commit)
    assert [part.changes for part in parts] == [(), ()]
    assert [name for name, _ in again] == ["items"]


@pytest.mark.law("N13")
def test_compressed_transaction_raises_a_gap_that_names_the_setting() -> None:
    with pytest.raises(GapError, match="binlog_transaction_compression must be OFF"):
        read(written.event(written.PAYLOAD, b"zstd"))


@given(JSON, st.booleans())
def test_json_is_read_as_it_was_written(value: Any, is_large: bool) -> None:  # noqa: FBT001
    assert json_from(written.document(value, is_large=is_large)) == value


def test_times_and_decimals_within_json_are_as_the_source_prints_them() -> None:
    when = ((2024 * 13 + 2) << 5 | 3) << 17 | 4 << 12 | 5 << 6 | 6
    for kind, data, expected in (
        (12, struct.pack("<q", when << 24 | 7), "2024-02-03 04:05:06.000007"),
        (10, struct.pack("<q", (when >> 17 << 17) << 24), "2024-02-03"),
        (11, struct.pack("<q", -((12 << 12 | 13 << 6 | 14) << 24 | 500_000)), "-12:13:14.500000"),
        (246, bytes([4, 2, 0x80 | 12, 50]), 12.5),
        (252, b"\xff", "base64:type252:/w=="),
    ):
        assert json_from(bytes([15, kind, len(data)]) + data) == expected


@pytest.mark.law("N12")
@given(st.lists(st.integers(1, 40), min_size=1, unique=True))
def test_gtids_are_merged_into_ranges_in_any_order(numbers: list[int]) -> None:
    position = "c80aa942-9562-11e1-9e33-3e11fa4771ca:1-3:5"
    for number in numbers:
        position = binlog.mysql_grown(position, f"{SERVER}:{number}")
    ranges = binlog.mysql_ranges(position)
    gathered = {n for first, last in ranges[SERVER] for n in range(first, last + 1)}

    assert gathered == set(numbers)
    assert all(
        b + 1 < c for (_, b), (c, _) in zip(ranges[SERVER], ranges[SERVER][1:], strict=False)
    )
    data = binlog.mysql_bytes(position)
    assert struct.unpack_from("<Q", data) == (2,)
    assert len(data) == 8 + 2 * 24 + 16 * sum(map(len, ranges.values()))


def test_mariadb_position_grows_by_domain_and_tagged_gtids_are_refused() -> None:
    assert binlog.mariadb_grown("0-1-5,2-1-7", "0-3-6") == "0-3-6,2-1-7"
    assert binlog.mariadb_grown("", "0-1-1") == "0-1-1"
    with pytest.raises(ValueError, match="invalid literal"):
        binlog.mysql_ranges(f"{SERVER}:tag:1-5")
    assert status_statement("8.0.36") == "SHOW MASTER STATUS"
    assert status_statement("8.4.1-log") == "SHOW BINARY LOG STATUS"


@pytest.mark.parametrize(
    ("sql", "schema", "is_named"),
    [
        ("ALTER TABLE items ADD x int", "shop", True),
        ("alter online table `shop`.`items` drop partition p1", "other", True),
        ("ALTER TABLE other.items ADD x int", "other", False),
        ("RENAME TABLE items_new TO items", "shop", True),
        ("ALTER TABLE items_new ADD x int", "shop", False),
        ("TRUNCATE items", "shop", True),
        ("/* from a tool */ /*!40000 ALTER TABLE `items` DISABLE KEYS */", "shop", True),
        ("DROP DATABASE shop", "other", True),
        ("UPDATE items SET v = 1", "shop", True),
        ("CREATE INDEX i ON items (v)", "shop", False),
        ("CREATE VIEW w AS SELECT * FROM items", "shop", False),
        ("DROP TEMPORARY TABLE items", "shop", False),
        ("GRANT SELECT ON items TO u", "shop", False),
    ],
)
def test_only_changing_statements_trigger_a_re_read(sql: str, schema: str, is_named: bool) -> None:  # noqa: FBT001
    assert bool(tables_in(sql, schema, {"items": ("shop", "items")})) is is_named
