"""What arrives of a database is the value: every type, its extremes, by every way of reading."""

# ruff: noqa: S608 - statements of an application, on names of these tests

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from lakesync.connectors.port import Change
from lakesync.result import Err
from lakesync.systems.sql.sql_source import SqlConnector
from lakesync.systems.sql.table_plan import asking, plan_of
from lakesync.testing.connector_contract import Reader
from tests.support.capturing import CaptureWorld
from tests.support.sources import SqlSource

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tools.local_stack.databases import Database

pytestmark = pytest.mark.emulator

ROOT: Final = Path(__file__).parents[3]
INSTANTS: Final = ["-infinity", "infinity", "0044-03-15 00:00:00 BC", "10000-01-01 00:00:00",
                   "2026-05-17 08:00:00", "2026-05-17 08:00:00.1", "0001-01-01 00:00:00",
                   "9999-12-31 23:59:59.999999"]  # fmt: skip
DAYS: Final = ["-infinity", "infinity", "0044-03-15 BC", "10000-01-01", "2026-05-17"]
WHOLE: Final = ["0", "-1", "9007199254740991", "9007199254740992", "-9223372036854775808",
                "9223372036854775807"]  # fmt: skip
POSTGRES: Final[dict[str, list[str]]] = {
    "bool": ["true", "false"],
    "bytea": ["", "\\x00ff", "\\x5c78"],
    '"char"': ["a", ""],
    "name": ["", "Straße"],
    "int8": WHOLE,
    "int2": ["-32768", "32767"],
    "int4": ["-2147483648", "2147483647"],
    "regproc": ["now", "-"],
    "regprocedure": ["now()", "-"],
    "regoper": ["0", "||/"],
    "regoperator": ["0"],
    "regclass": ["pg_type", "-"],
    "regcollation": ['"C"'],
    "regtype": ["integer", "-"],
    "regrole": ["-"],
    "regnamespace": ["public", "-"],
    "regconfig": ["simple"],
    "regdictionary": ["simple"],
    "text": ["", " ", "NULL", "null", '"', "\\", "{}", "[1]", "007", "1.10", "line\nend", "é😀",
             "infinity", "a,b", "{a,b}"],
    "oid": ["0", "4294967295"],
    "tid": ["(0,1)"],
    "xid": ["1"],
    "xid8": ["18446744073709551615"],
    "cid": ["1"],
    "json": ['"123"', '"null"', "null", '"x"', "{}", "[]", '{"a": [1, "2", null, true]}', "1.5"],
    "jsonb": ['"123"', '"null"', "null", '"x"', "{}", "[]", '{"a": [1, "2", null, true]}', "1.5"],
    "xml": ["<a>1</a>"],
    "jsonpath": ["$.a[*]"],
    "point": ["(1,2)", "(-1e+300,0.1)"],
    "lseg": ["[(1,2),(3,4)]"],
    "path": ["((1,2),(3,4))", "[(1,2)]"],
    "box": ["(3,4),(1,2)"],
    "polygon": ["((1,2),(3,4))"],
    "line": ["{1,2,3}"],
    "circle": ["<(1,2),3>"],
    "float4": ["0", "-0", "1e-38", "3.4e+38", "0.1"],
    "float8": ["0", "1e-300", "1.7976931348623157e+308", "0.1"],
    "money": ["-92233720368547758.08", "1"],
    "macaddr": ["08:00:2b:01:02:03"],
    "macaddr8": ["08:00:2b:01:02:03:04:05"],
    "inet": ["10.0.0.1", "10.0.0.0/8", "::1"],
    "cidr": ["10.0.0.0/8"],
    "aclitem": ["=r/lakesync"],
    "bpchar": ["", "ab  "],
    "varchar": ["", " "],
    "date": DAYS,
    "time": ["00:00:00", "24:00:00", "08:00:00.1"],
    "timestamp": INSTANTS,
    "timestamptz": INSTANTS,
    "interval": ["1 mon", "-1 days +02:03:00", "30 days", "00:00:00", "178000000 years"],
    "timetz": ["24:00:00-15:59", "08:00:00+01"],
    "bit": ["1", "0"],
    "varbit": ["", "0101"],
    "numeric": ["NaN", "1.10", "-0.000", "1e+100", "12345678901234567890.123456789"],
    "refcursor": ["c"],
    "uuid": ["00000000-0000-0000-0000-000000000000"],
    "pg_lsn": ["0/0", "FFFFFFFF/FFFFFFFF"],
    "tsvector": ["", "'a':1 'b''c'"],
    "tsquery": ["'a' & 'b'"],
    "txid_snapshot": ["10:20:10,14"],
    "pg_snapshot": ["10:20:10,14"],
    "int4range": ["empty", "[1,10)", "(,)"],
    "int8range": ["empty", "[1,)"],
    "numrange": ["[1.10,2)"],
    "tsrange": ['["2026-05-17 08:00:00",infinity]', "empty"],
    "tstzrange": ['["2026-05-17 08:00:00+00",infinity]', "(,)"],
    "daterange": ["[2026-05-17,infinity)", "[-infinity,2026-05-17)", "empty"],
    "int2vector": ["1 2 3", ""],
    "oidvector": ["1 2"],
    "{schema}.mood": ["sad", "so, so", 'a "b"', "{}"],
    "{schema}.pair": ['(1,"a b")', "(,)"],
    "{schema}.cents": ["-1", "9007199254740993"],
    "{schema}.label": ["", "é"],
    "{schema}.day": DAYS,
    "{schema}.moods": ["{sad,NULL}", "{}"],
    "numeric(10,2)": ["1.1", "-99999999.99"],
    "varchar(5)": ["abc"],
    "timestamptz(3)": ["2026-05-17 08:00:00.12"],
}  # fmt: skip
"""Values of every type that a column may have: the least, the greatest, and what is special."""
MULTIRANGES: Final = {
    f"{kind}multirange": ["{}", f"{{{value}}}"]
    for kind, value in {
        "int4": "[1,2)", "int8": "[1,2)", "num": "[1,2)", "ts": "(,)", "tstz": "(,)",
        "date": "[2026-05-17,infinity)",
    }.items()
}  # fmt: skip
NO_COLUMNS: Final = {
    "pg_node_tree", "pg_ndistinct", "pg_dependencies", "pg_mcv_list", "pg_brin_bloom_summary",
    "pg_brin_minmax_multi_summary", "pg_ddl_command", "gtsvector", "anyarray",
}  # fmt: skip
"""Types of the server's own, whose values nobody can enter."""
DEFINED: Final = (
    "CREATE TYPE {schema}.mood AS ENUM ('sad', 'so, so', 'a \"b\"', '{{}}')",
    "CREATE TYPE {schema}.pair AS (a int, b text)",
    "CREATE DOMAIN {schema}.cents AS bigint",
    "CREATE DOMAIN {schema}.label AS text",
    "CREATE DOMAIN {schema}.day AS date",
    "CREATE DOMAIN {schema}.moods AS {schema}.mood[]",
)
INTEGERS: Final = {"int2", "int4", "int8", "{schema}.cents"}
FLOATS: Final = {"float4", "float8"}


@pytest.fixture
def world(postgres: Database) -> Iterator[CaptureWorld]:
    """A PostgreSQL with one of each type."""
    world = CaptureWorld(postgres, {"other": "id int PRIMARY KEY"})
    yield world
    world.close()


def expected(world: CaptureWorld, kind: str, value: str) -> Any:
    """Return a value as the server prints it, in the JSON that the documentation states."""
    full = kind.format(schema=world.schema)
    text = world.ask(f"SELECT ({quoted(value)}::{full})::text")
    if kind in INTEGERS:
        number = int(text)
        return number if abs(number) < 2**53 else text
    if kind in FLOATS:
        return float(text)
    if kind in {"bool", "json", "jsonb"}:
        return json.loads(text)
    if kind == "bytea":
        return world.ask(f"SELECT encode({quoted(value)}::bytea, 'base64')").replace("\n", "")
    if kind in {"bpchar", "inet"}:
        return value  # a cast to text takes blanks away, and gives a prefix
    if (
        kind.startswith("timestamp")
        and text[:4].isdigit()
        and text[4:5] == "-"
        and "BC" not in text
    ):
        clock = text[11:].removesuffix("+00")
        clock = clock if "." not in clock else clock.ljust(15, "0")
        return f"{text[:10]}T{clock}{'Z' if kind.startswith('timestamptz') else ''}"
    if kind.endswith("moods"):
        return json.loads(world.ask(f"SELECT array_to_json({quoted(value)}::{full})::text"))
    return text


def quoted(value: str) -> str:
    """Return SQL's literal for a text."""
    return "E'{}'".format(value.replace("\\", "\\\\").replace("'", "''"))


def kinds_of(world: CaptureWorld) -> dict[str, list[str]]:
    """Return the values of each of the server's types."""
    world.run(*(statement.format(schema=world.schema) for statement in DEFINED))
    connection = world.source.connect()
    cursor = connection.cursor()
    cursor.execute(
        "SELECT format_type(oid, NULL), typname FROM pg_type WHERE typtype IN ('b', 'r', 'm')"
        " AND typoutput <> 'array_out'::regproc AND typnamespace = 'pg_catalog'::regnamespace"
    )
    known = {**POSTGRES, **MULTIRANGES}
    there = {name for _, name in cursor.fetchall()} - NO_COLUMNS
    connection.close()
    named = {kind.strip('"') for kind in known}
    assert there - named == set(), "a type of this server has no values in this test"
    multiranges = set(MULTIRANGES) - there  # of PostgreSQL 14 and newer
    return {kind: values for kind, values in known.items() if kind not in multiranges}


def without_times(rows: dict[str, Any]) -> dict[str, Any]:
    """Return rows without the column of their change times."""
    return {
        row_id: {name: value for name, value in row.items() if name != "changed"}
        for row_id, row in rows.items()
    }


def read_all(world: CaptureWorld, table: str) -> tuple[dict[str, Any], list[Any]]:
    """Read a table through a connector that polls, two rows to a page."""
    connector = SqlConnector(world.source, world.settings, world.storage())
    rows: dict[str, Any] = {}
    letters: list[Any] = []
    cursor, has_more = "", True
    while has_more:
        page = connector.read(table, cursor, rows_max=2, poll_ms=1).unwrap()
        for change in page.changes:
            assert isinstance(change, Change)
            rows[change.row_id] = change.columns
        letters += page.unreadable
        cursor, has_more = page.cursor, page.has_more
    connector.close()
    return rows, letters


@pytest.mark.law("N5", "N12", "N13")
def test_every_value_of_every_postgres_type_is_read_by_every_read_mode(world: CaptureWorld) -> None:
    kinds = kinds_of(world)
    columns: list[str] = []
    rows_of_values: dict[int, dict[str, str]] = {}
    wanted: dict[str, dict[str, Any]] = {}
    for number, (kind, values) in enumerate(kinds.items()):
        columns.append(f"c{number} {kind.format(schema=world.schema)}")
        columns.append(f"a{number} {kind.format(schema=world.schema)}[]")
        for place, value in enumerate([*values, None]):
            row = rows_of_values.setdefault(place, {})
            row[f"c{number}"] = "NULL" if value is None else quoted(value)
            full = kind.format(schema=world.schema)
            others = [value, None, values[0]]
            literals = ", ".join("NULL" if one is None else quoted(one) for one in others)
            row[f"a{number}"] = f"ARRAY[{literals}]::{full}[]" if value is not None else "'{}'"
            want = wanted.setdefault(str(place), {})
            want[f"c{number}"] = None if value is None else expected(world, kind, value)
            first = expected(world, kind, values[0])
            want[f"a{number}"] = [] if value is None else [want[f"c{number}"], None, first]
    name = f"{world.schema}.t"
    world.tables["t"] = name
    moment = "timestamptz NOT NULL DEFAULT clock_timestamp() - interval '1 minute'"
    world.run(f"CREATE TABLE {name} (id int PRIMARY KEY, {', '.join(columns)}, changed {moment})")
    inserts = [
        f"INSERT INTO {name} (id, {', '.join(row)}) VALUES ({place}, {', '.join(row.values())})"
        for place, row in rows_of_values.items()
    ]
    every = {f"{letter}{number}" for number in range(len(kinds)) for letter in "ca"}
    nothing = dict.fromkeys(every)
    wanted = {place: nothing | want | {"id": int(place)} for place, want in wanted.items()}

    world.configure(only=("t",))
    assert world.poll() == "done"  # the empty table
    world.run(*inserts)
    assert world.poll() == "done"
    by_feed = world.rows("t")
    by_feed_alone = without_times(by_feed)
    differing = {
        (place, list(kinds)[int(column[1:])]): (by_feed_alone[place].get(column), value)
        for place, row in wanted.items()
        for column, value in row.items()
        if column != "id" and by_feed_alone[place].get(column) != value
    }
    assert differing == {}
    assert by_feed_alone.keys() == wanted.keys()
    fresh = CaptureWorld(world.database, {"other": "id int PRIMARY KEY"})
    fresh.tables["t"] = name
    fresh.configure(only=("t",))
    assert fresh.poll() == "done"
    ways: dict[str, Any] = {"snapshot": (fresh.rows("t"), [])}
    fresh.close()
    world.configure(only=("t",), changes=False)
    ways["difference"] = read_all(world, name)
    polled = [{"name": name, "cursorColumn": "changed"}]
    world.configure(changes=False, tables=polled, settleS=0)
    ways["time"] = read_all(world, name)
    for way, (rows, letters) in ways.items():
        assert letters == [], way
        assert rows == by_feed, way


KEYS: Final[dict[str, dict[str, tuple[str, str]]]] = {
    "postgres": {
        "numeric": ("numeric", "(n * 0.1)::numeric"),
        "numeric(30,10)": ("numeric(30,10)", "n + 12345678901234567890.0000000001"),
        "double precision": ("float8", "n / 3.0"),
        "real": ("real", "(n / 3.0)::real"),
        "time": ("time", "time '00:00' + n * interval '1 second'"),
        "inet": ("inet", "inet '10.0.0.0' + n"),
        "bytea": ("bytea", "decode(lpad(to_hex(n), 8, '0'), 'hex')"),
        "interval": ("interval", "n * interval '1 hour'"),
        "bit": ("bit(12)", "n::bit(12)"),
        "timestamptz": ("timestamptz", "'2026-05-17'::timestamptz + n * interval '1 us'"),
        "infinite": (
            "timestamptz",
            "(ARRAY['-infinity', 'infinity', '0044-03-15 BC', '10000-01-01'])[n]::timestamptz",
        ),
        "text": ("text", "chr(40 + n)"),
        "uuid": ("uuid", "md5(n::text)::uuid"),
        "boolean": ("boolean", "n = 2"),
        "enum": ("mood", "(ARRAY['sad', 'ok', 'happy'])[n]::mood"),
    },
    "mariadb": {
        "enum": ("ENUM('z', 'm', 'a', '10', '9')", "n"),
        "set": ("SET('z', 'm', 'a', 'q', 'b', 'c')", "n"),
        "bit": ("BIT(12)", "n"),
        "binary": ("BINARY(4)", "UNHEX(LPAD(HEX(n), 8, '0'))"),
        "varbinary": ("VARBINARY(20)", "UNHEX(LPAD(HEX(n), 8, '0'))"),
        "decimal": ("DECIMAL(30,10)", "n + 12345678901234567890.0000000001"),
        "double": ("DOUBLE", "n / 3"),
        "time": ("TIME(6)", "SEC_TO_TIME(n / 7 - 2)"),
        "datetime": ("DATETIME(6)", "'2026-05-17 00:00:00.000001' + INTERVAL n SECOND"),
        "year": ("YEAR", "2000 + n"),
        "text": ("VARCHAR(20) COLLATE utf8mb4_general_ci", "CONCAT(CHAR(64 + n), 'é')"),
        "bigint": ("BIGINT UNSIGNED", "18446744073709551615 - n"),
        "uuid": ("UUID", "CONCAT(LPAD(HEX(n * 7919), 8, '0'), '-0000-4000-8000-000000000009')"),
    },
}  # fmt: skip
"""Keys by which a table is read page by page: their types, and the values of rows."""
ROWS: Final = {"enum": 3, "set": 60, "boolean": 2, "infinite": 4, "year": 50, "text": 20}


def keyed(source: str) -> list[str]:
    """Return the names of the keys of a kind of database."""
    return [f"{source}:{name}" for name in KEYS[source]]


@pytest.mark.law("N5")
@pytest.mark.parametrize("key", [*keyed("postgres"), *keyed("mariadb")])
def test_all_rows_are_read_in_key_order_and_none_is_deleted(
    request: pytest.FixtureRequest, key: str
) -> None:
    kind, _, name = key.partition(":")
    source = SqlSource(request.getfixturevalue(kind), kind, by_time=False)
    column, value = KEYS[kind][name]
    rows = 5 if key == "mariadb:enum" else ROWS.get(name, 40)
    numbers = f"generate_series(1, {rows}) n" if kind == "postgres" else f"seq_1_to_{rows}"
    counted = value if kind == "postgres" else re.sub(r"\bn\b", "seq", value)
    if name == "enum" and kind == "postgres":
        source.run("CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy')")
    source.run(f"DROP TABLE {source.table}")
    source.run(f"CREATE TABLE {source.table} (id {column} PRIMARY KEY, value text)")
    source.run(f"INSERT INTO {source.table} SELECT {counted}, 'v' FROM {numbers}")
    reader = Reader(source)
    try:
        read = [change for page in reader.poll(rows_max=3) for change in page.changes]
        again = [change for page in reader.poll(rows_max=3) for change in page.changes]
        source.run(f"UPDATE {source.table} SET value = 'w'")
        changed = [change for page in reader.poll(rows_max=3) for change in page.changes]
        found = sought(source, [change.row_id for change in read])
    finally:
        source.close()
        if name == "enum" and kind == "postgres":
            source.run("DROP TYPE mood")

    assert len({change.row_id for change in read}) == len(read) == rows
    assert again == []
    assert sorted(change.row_id for change in changed) == sorted(change.row_id for change in read)
    assert all(change.columns is not None for change in changed)
    assert found == {change.row_id for change in read}, "a row that is there is not taken for gone"


def sought(source: SqlSource, row_ids: list[str]) -> set[str]:
    """Return which rows a search for deletions finds in the table."""
    connection = source.source.connect()
    cursor = connection.cursor()
    described = source.source.described(cursor, source.table)[0]
    plan = plan_of(source.settings.tables[0], described, source.source.values)
    there = asking(cursor, source.source.dialect, plan)(row_ids)
    connection.close()
    return there


@pytest.mark.law("N5")
@pytest.mark.parametrize(
    ("kind", "column"),
    [("postgres", "integer[]"), ("postgres", "jsonb"), ("mariadb", "FLOAT"), ("postgres", "point")],
)
def test_key_without_a_usable_order_is_refused_by_check(
    request: pytest.FixtureRequest, kind: str, column: str
) -> None:
    source = SqlSource(request.getfixturevalue(kind), kind, by_time=False, key=["k"])
    source.run(f"ALTER TABLE {source.table} ADD COLUMN k {column}")
    checked = source.connector().check()
    source.close()

    assert isinstance(checked, Err)
    assert "order" in checked.error.message


@pytest.mark.law("N5")
def test_mysql_values_are_read_as_the_database_prints_them(mariadb: Database) -> None:
    source = SqlSource(mariadb, "mariadb", by_time=False)
    source.run(
        f"ALTER TABLE {source.table} ADD COLUMN (ti time, ti3 time(3), flag tinyint(1), b bit(9), "
        "d date, dt datetime(3), j json, e enum('a','b'), s set('a','b'), dc decimal(20,5))"
    )
    source.run(
        f"INSERT INTO {source.table} (id, ti, ti3, flag, b, d, dt, j, e, s, dc) VALUES "
        "(1, '-01:30:00', '-00:00:00.25', 2, b'100000001', '2026-05-17', '2026-05-17 08:00:00.1', "
        "'\"1.10\"', 'b', 'a,b', '1.5'), (2, '838:59:59', '00:00:00', 1, b'0', NULL, NULL, NULL, "
        "NULL, '', '-99999999999999.99999'), (3, '24:00:00', NULL, 0, NULL, '9999-12-31', "
        "'1000-01-01', 'null', NULL, NULL, NULL)"
    )
    (page,) = Reader(source).poll()
    source.close()
    rows = {change.row_id: dict(change.columns or {}) for change in page.changes}

    assert rows["1"] | {"changed": None} == {
        "id": 1, "value": None, "changed": None, "ti": "-01:30:00", "ti3": "-00:00:00.250",
        "flag": 2, "b": "AQE=", "d": "2026-05-17", "dt": "2026-05-17T08:00:00.100000",
        "j": '"1.10"', "e": "b", "s": "a,b", "dc": "1.50000",
    }  # fmt: skip
    assert (rows["2"]["ti"], rows["2"]["ti3"], rows["2"]["flag"]) == (
        "838:59:59",
        "00:00:00.000",
        True,
    )
    assert (rows["3"]["ti"], rows["3"]["flag"], rows["3"]["d"]) == ("24:00:00", False, "9999-12-31")


def documented() -> list[tuple[str, str, str, str, str]]:
    """Return the rows of the tables of types in the documentation, each with its SQL database."""
    rows: list[tuple[str, str, str, str, str]] = []
    database = ""
    text = (ROOT / "docs" / "source-values.md").read_text("utf-8")
    for line in text.splitlines():
        database = line.removeprefix("## ") if line.startswith("## ") else database
        cells = re.findall(r"`([^`]*)`", line)
        if line.startswith("| `") and database != "BigQuery":  # of a test of its own
            kind, ours, printed, answer = cells
            rows.append((database, kind, ours, printed, answer))
    return rows


@pytest.mark.law("N5")
@pytest.mark.parametrize("row", documented(), ids=lambda row: f"{row[1]} {row[3]}")
def test_read_source_values_match_the_documentation(
    request: pytest.FixtureRequest, row: tuple[str, str, str, str, str]
) -> None:
    database, sql, ours, printed, answer = row
    kind = "postgres" if database == "PostgreSQL" else "mariadb"
    source = SqlSource(request.getfixturevalue(kind), kind, by_time=False)
    literal = printed if printed.startswith("0x") else quoted(printed)[kind != "postgres" :]
    source.run(f"ALTER TABLE {source.table} ADD COLUMN k {sql}")
    source.run(f"INSERT INTO {source.table} (id, k) VALUES (1, {literal})")
    (page,) = Reader(source).poll()
    tables = source.connector().discover().unwrap()
    source.close()
    table = next(table for table in tables if table.name == source.table)
    values = page.changes[0].columns or {}

    assert json.dumps(values["k"]) == json.dumps(json.loads(answer))
    assert {column.name: column.type for column in table.columns}["k"] == ours
