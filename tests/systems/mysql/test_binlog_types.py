"""Change capture: each type of a column is in the log what it is in the table."""

# ruff: noqa: S608 - statements of an application, on names of these tests

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.support.capturing import BinlogWorld

if TYPE_CHECKING:
    from tools.local_stack.databases import Database

pytestmark = pytest.mark.emulator
TYPES = """
    id bigint unsigned PRIMARY KEY, j json, d decimal(20,5), d9 decimal(9,9), dn decimal(10,0),
    b bit(10), y year, s smallint unsigned, e enum('x','y','é'), st set('a','b','c'),
    dt datetime(6), dt0 datetime, ts timestamp(3) NULL, dd date, ti time(2), ti6 time(6), bl blob,
    bi binary(5), vb varbinary(9), tx text, ch char(6), l1 varchar(10) CHARACTER SET latin1,
    u2 varchar(10) CHARACTER SET ucs2, f float, db double, g point,
    bt boolean, mi mediumint, tb tinyblob, lt longtext, big bigint, vc varchar(300),
    doubled int AS (s * 2) STORED, shown int AS (s * 3) VIRTUAL"""
NAMES = """
    id, j, d, d9, dn, b, y, s, e, st, dt, dt0, ts, dd, ti, ti6, bl, bi, vb, tx, ch, l1, u2, f, db,
    g, bt, mi, tb, lt, big, vc"""
ROWS = (
    """(18446744073709551615, '{"a": [1, 2.50, null]}', -12345.67891, 0.123456789, -7,
    b'1000000011', 2024, 65535, 'é', 'a,c', '2024-02-03 04:05:06.000007', '2024-02-03',
    '2024-01-01 00:00:00.123', '2024-02-29', '-12:13:14.25', '838:59:58.999999', x'00ff', x'0102',
    x'00', 'emoji 😀', 'ab ', 'é€', 'ü', 1.1, 1e300, point(1, 2), true, -8388608, x'e9',
    repeat('ß', 40000), -9223372036854775808, ''""",
    """(2, 'false', 0, 0, 0, b'0', 0, 0, 'x', '', '0000-00-00', '0000-00-00', '0000-00-00',
    '2024-00-10', '00:00:00', '-00:00:00.000001', '', '', '', '', '', '', '', -0.5, -1e-300,
    point(0, 0), false, 8388607, '', '', 9223372036854775807, repeat('v', 300)""",
    f"(3{', NULL' * 31}",
)
MARIADB = (
    "u uuid, i6 inet6, i4 inet4",
    ("'123e4567-e89b-42d3-a456-426655440000', '::ffff:192.0.2.1', '10.0.0.1'",
     "'00000000-0000-0000-0000-000000000000', '::', '0.0.0.0'", "NULL, NULL, NULL"),
)  # fmt: skip
"""Columns of types that only MariaDB has, and their values in each row."""
MYSQL = (
    "ve vector(3), o json, hid int INVISIBLE, ar geometry SRID 4326",
    (
        """STRING_TO_VECTOR('[1,2.5,-3]'), JSON_OBJECT('b', CAST('2.50' AS DECIMAL(9,2)), 'a',
        CAST('2024-01-02 03:04:05.6' AS DATETIME(6)), 'aa', CAST('-11:12:13.25' AS TIME(2)), 'd',
        DATE'2024-02-29', 'long', REPEAT('é', 70000), 'big', 18446744073709551615, 'f', 1e300,
        'e', JSON_ARRAY(), 'o', JSON_OBJECT(), 'bin', CAST(x'00ff' AS BINARY(2)), '', -32769),
        7, ST_GeomFromText('POINT(1 2)', 4326)""",
        "STRING_TO_VECTOR('[0]'), '\"a\\\\u0000b\"', 0, ST_GeomFromText('POINT(0 0)', 4326)",
        "NULL, NULL, NULL, NULL",
    ),
)
"""The same of MySQL's."""
WAYS = {
    "plain": ("binlog_row_image", "FULL", "FULL"),
    "compressed": ("log_bin_compress", "ON", "OFF"),
    "minimal": ("binlog_row_image", "MINIMAL", "FULL"),
    "without blobs": ("binlog_row_image", "NOBLOB", "FULL"),
    "without checksums": ("binlog_checksum", "NONE", "CRC32"),
}

OWN_WAYS = {
    False: ("binlog_row_image = NOBLOB", "binlog_annotate_row_events = ON"),
    True: (
        "binlog_row_image = NOBLOB", "binlog_rows_query_log_events = ON",
        "binlog_row_value_options = PARTIAL_JSON", "binlog_transaction_compression = ON",
    ),
}  # fmt: skip
"""How a session may log otherwise than the server does: MariaDB's, MySQL's."""


def stored(world: BinlogWorld) -> dict[str, Any]:
    """Return the rows of a table, without what is computed when they are read."""
    rows = world.expected("t")
    for row in rows.values():
        del row["shown"]
    return rows


@pytest.mark.law("N12", "N13")
@pytest.mark.parametrize("way", WAYS)
def test_every_type_has_the_same_value_in_the_log_as_in_the_table(
    mariadb: Database, way: str
) -> None:
    own, values = MYSQL if mariadb.is_mysql else MARIADB
    names = ", ".join(column.split()[0] for column in own.split(", "))
    world = BinlogWorld(mariadb, {"t": f"{TYPES}, {own}"})
    setting, value, usual = WAYS["plain" if mariadb.is_mysql and way == "compressed" else way]
    try:
        world.run(f"SET GLOBAL {setting} = {value}")
        world.application.close()
        world.application = world.source.dialect.connect()
        world.poll()
        assert world.rows("t") == {}
        world.run("SET sql_mode = ''")
        for row, more in zip(ROWS, values, strict=True):
            world.run(f"INSERT INTO {world.tables['t']} ({NAMES}, {names}) VALUES {row}, {more})")
        assert world.poll() == "done"
        assert world.state.fault is None
        assert world.rows("t") == stored(world)
        brought = world.rows("t")["18446744073709551615"]
        assert (brought["tx"], brought["st"], brought["bt"], brought["doubled"]) == (
            "emoji 😀", "a,c", True, 131070,
        )  # fmt: skip
        assert "shown" not in brought
        world.run(f"UPDATE {world.tables['t']} SET mi = 5, tx = '😎' WHERE s IS NOT NULL")
        world.poll()
        assert world.rows("t") == stored(world)
    finally:
        world.run(f"SET GLOBAL {setting} = {usual}")
        world.close()


@pytest.mark.law("N12", "N13")
def test_changes_logged_with_session_settings_are_captured(mariadb: Database) -> None:
    world = BinlogWorld(mariadb, {"a": "id int PRIMARY KEY, j json, v text"})
    try:
        ways = list(OWN_WAYS[mariadb.is_mysql])
        if mariadb.is_mysql and world.ask("SELECT @@GLOBAL.gtid_mode") == "ON":
            ways.append("gtid_next = 'AUTOMATIC:tagged'")
        table = world.tables["a"]
        world.poll()
        for number, way in enumerate(ways):
            world.application.close()
            world.application = world.source.dialect.connect()
            world.run(f"SET SESSION {way}")
            world.run(f"INSERT INTO {table} VALUES ({number}, '{{}}', repeat('v', 100))")
            world.run(f"UPDATE {table} SET j = json_set(j, '$.a', {number})")
            assert world.poll() == "done"
            assert world.rows("a") == world.expected("a")
            assert world.state.fault is None
        read_again = world.state.source.get("readAgain", "")
        assert bool(read_again) == any("compression" in way for way in ways)
    finally:
        world.close()
