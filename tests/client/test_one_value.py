"""A value is one value: by every way in, by every way out, under every declaration; see law K34.

Each case writes one hostile value by one way, under one declaration, and reads it by each way out;
then the declaration changes, and it is read again. What is expected comes from the JSON that was
sent alone.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import JSON, Column, MetaData, String, Table, insert, select, update

from lakesync.client import dbapi
from lakesync.client.orm import declare_tables, engine
from lakesync.result import Ok
from tests.client.support.world import World

if TYPE_CHECKING:
    from collections.abc import Callable

    from lakesync.client import Client

pytestmark = pytest.mark.law("K34")

TEXTS = [
    "007", "1.10", "null", "true", "[1", "[1]", "{", '{"a":1}', '"x"', "1e5", " 1", "",
    "nul \0 text", "-0", "9007199254740993", "2026-05-17", "2026-05-17T08:00:00Z", "AP8=", "x",
]  # fmt: skip
OTHERS = [
    0, 1, -1, 2**53 - 1, 2**53, 2**53 + 1, -(2**63), 2**63 - 1, 1e308, -0.0, 1.0, 0.5, 1.1, 1e21,
    math.nan, math.inf, -math.inf, True, False, None, [], [1, "[1]"], {}, {"a": [True, None]},
    b"", b"\0\xff", b"[1]", b"true", Decimal("1E+3"), Decimal("1.10"), Decimal("NaN"),
    Decimal("-0"), date(2026, 5, 17), datetime(2026, 5, 17, 8, tzinfo=UTC),
]  # fmt: skip
PULLED: list[Any] = [*TEXTS, 0, 1, 0.5, 2**53 - 1, 1e21, True, False, None, [1], {}]
KINDS = [
    None, "string", "number", "boolean", "integer", "decimal(38,20)", "timestamp", "date", "bytes",
    "json",
]  # fmt: skip
ROW = "t1"


@dataclass
class Seen:
    """What the ways out gave for one row."""

    got: Any
    queried: Any
    by_interface: Any
    watched: Any


def by_insert(client: Client, row: str, value: Any) -> bool:
    return isinstance(client.insert("t", row, {"c": value}), Ok)


def by_update(client: Client, row: str, value: Any) -> bool:
    client.insert("t", row, {"c": None}).unwrap()
    return isinstance(client.update("t", row, {"c": value}), Ok)


def by_insert_many(client: Client, row: str, value: Any) -> bool:
    return isinstance(client.insert_many("t", {row: {"c": value}}), Ok)


def by_statement(client: Client, row: str, value: Any) -> bool:
    written = client.execute("INSERT INTO t (_row_id, c) VALUES (?, ?)", (row, value))
    return isinstance(written, Ok)


def by_update_statement(client: Client, row: str, value: Any) -> bool:
    client.insert("t", row, {"c": None}).unwrap()
    return isinstance(
        client.execute("UPDATE t SET c = :c WHERE _row_id = :r", {"c": value, "r": row}), Ok
    )


def by_interface(client: Client, row: str, value: Any) -> bool:
    connection = dbapi.connect(client)
    try:
        connection.cursor().execute("INSERT INTO t (_row_id, c) VALUES (?, ?)", (row, value))
        connection.commit()
    except dbapi.Error:
        connection.rollback()
        return False
    return True


WAYS_IN = [
    by_insert, by_update, by_insert_many, by_statement, by_update_statement, by_interface,
]  # fmt: skip


def declared(client: Client, kind: str | None) -> None:
    if kind is None:
        client.insert("t", "t0", {"c": None}).unwrap()
    else:
        client.declare("t", {"c": kind}).unwrap()


def seen(client: Client, row: str = ROW) -> Seen:
    """Return what every way out gives; the row exists."""
    got = client.get("t", row).unwrap()
    sql, given_ = "SELECT c FROM t WHERE _row_id = ?", (row,)
    (queried,) = client.query(sql, given_).unwrap()
    with client.watch(sql, given_) as watch:
        shown = watch.next(5)
    assert shown is not None
    with client.transaction() as tx:
        assert repr(tx.query(sql, given_).unwrap()) == repr([queried])
    connection = dbapi.connect(client)
    fetched = connection.cursor().execute(sql, given_).fetchone()
    assert fetched is not None
    return Seen((got or {}).get("c"), queried["c"], fetched[0], shown[0]["c"])


def sent(client: Client, row: str = ROW) -> str:
    """Return the JSON of the column as the outbox has it; what a row that has it was sent."""
    values = [
        dict(entry.delta.columns)["c"]
        for entry in client.pending().unwrap()
        if entry.delta.row_id == row and "c" in dict(entry.delta.columns)
    ]
    return values[-1].decode() if values else "null"  # SQL inserts no null


def check(one: Seen, raw: str, kind: str | None) -> None:
    """Prove that every way out gives the value that was sent, as its declaration has it."""
    assert repr(one) == repr(Seen(one.got, one.got, one.got, one.got))
    value = json.loads(raw)
    base = (kind or "").partition("(")[0]
    if one.got is None or value is None or isinstance(value, bool):
        assert one.got is value
    elif isinstance(value, str):
        if base not in {"integer", "decimal", "timestamp", "date", "bytes"}:
            assert (one.got, type(one.got)) == (value, str)
        if base == "integer":  # what that text alone says, with nothing added or lost
            assert str(one.got) == value
    elif isinstance(value, int | float):
        is_exact = base == "decimal" and isinstance(one.got, Decimal)
        assert one.got == (Decimal(raw) if is_exact else value)
        assert isinstance(one.got, bool) is (base == "boolean" and value in {0, 1})
    else:
        assert json.dumps(one.got, sort_keys=True) == json.dumps(value, sort_keys=True)


def same_value(one: str, other: str) -> bool:
    """Return whether two JSON texts are one value: of a decimal also its digits as text."""
    if one == other:
        return True
    try:
        return Decimal(one.strip('"')) == Decimal(other.strip('"'))
    except ArithmeticError:
        return False


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return tmp_path_factory


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("way", WAYS_IN, ids=lambda way: way.__name__)
def test_a_value_reads_the_same_by_every_way_of_writing_and_reading(
    kind: str | None, way: Callable[[Client, str, Any], bool], folder: Any
) -> None:
    world = World(folder.mktemp("one"))
    client, plain = world.client("c"), world.client("p")
    for one in (client, plain):
        declared(one, kind)
    for place, value in enumerate([*TEXTS, *OTHERS]):
        row = f"t{place + 1}"
        is_sql = way not in WAYS_IN[:3]
        is_taken, is_same = way(client, row, value), by_insert(plain, row, value)
        # To SQL dates and decimals are text, 1 is true in a boolean column, and text that is a list
        # is one in a json column, as it is where an object or a list was before.
        is_text = isinstance(value, date | Decimal) or (
            isinstance(value, str) and value[:1] in {"[", "{"}
        )
        is_bit = kind == "boolean" and type(value) is int and value in {0, 1}
        if not (is_sql and (is_text or is_bit)):
            assert is_taken is is_same, value
            if is_taken:
                assert same_value(sent(client, row), sent(plain, row)), value
        if is_taken:
            check(seen(client, row), sent(client, row), kind)
    world.close()


@pytest.mark.parametrize("first", KINDS)
@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    values=st.lists(st.sampled_from(PULLED), min_size=1, max_size=6),
    others=st.lists(st.sampled_from(KINDS[1:]), min_size=1, max_size=3),
)
def test_a_pulled_value_stays_the_same_when_its_column_is_declared_anew(
    first: str | None, values: list[Any], others: list[str], folder: Any
) -> None:
    world = World(folder.mktemp("pulled"))
    theirs, mine, device = world.client("theirs"), world.client("mine"), world.client("device")
    raws = []
    for place, value in enumerate(values):
        theirs.insert("t", f"t{place}", {"c": value}).unwrap()
        raws.append(json.dumps(value))
    theirs.sync().unwrap()
    declared(mine, first)
    mine.sync().unwrap()
    for kind in [first, *others]:
        if kind is not None:
            mine.declare("t", {"c": kind}).unwrap()
        for place, raw in enumerate(raws):
            check(seen(mine, f"t{place}"), raw, kind)
        # A statement that changes nothing sends nothing, and one that copies sends the same.
        mine.execute("UPDATE t SET c = c").unwrap()
        assert all(entry.delta.row_id == "t0" for entry in mine.pending().unwrap())
    mine.declare("t", {"c": "json"}).unwrap()
    copies = mine.execute("INSERT INTO t (_row_id, c) SELECT 'copy-' || _row_id, c FROM t").unwrap()
    assert copies >= len(values)
    mine.sync().unwrap()
    device.sync().unwrap()
    for place, raw in enumerate(raws):
        check(seen(mine, f"copy-t{place}"), raw, "json")
        check(seen(device, f"copy-t{place}"), raw, None)
    world.close()


def test_text_of_digits_survives_changes_of_its_columns_declared_type(world: World) -> None:
    theirs, mine = world.client("theirs"), world.client("mine")
    theirs.insert("t", ROW, {"c": "007"}).unwrap()
    theirs.sync().unwrap()
    mine.declare("t", {"c": "integer"}).unwrap()
    mine.sync().unwrap()
    assert mine.query("SELECT c FROM t").unwrap() == [{"c": "007"}]
    mine.declare("t", {"c": "string"}).unwrap()
    assert mine.query("SELECT c FROM t").unwrap() == [{"c": "007"}]
    mine.execute("INSERT INTO t (_row_id, c) SELECT 't2', c FROM t").unwrap()
    assert sent(mine, "t2") == '"007"'


@pytest.mark.parametrize("old", ["[draft", "{x}", '{"a":1}', "[1]"])
@pytest.mark.parametrize("text", ["1.10", "null", "true", "[1", "[2]"])
def test_text_written_by_sql_over_text_that_looks_like_json_stays_text(
    world: World, old: str, text: str
) -> None:
    client = world.client()
    client.insert("t", ROW, {"c": old}).unwrap()
    client.execute("UPDATE t SET c = ?", (text,)).unwrap()
    assert client.get("t", ROW).unwrap() == {"c": text}
    client.execute(f"UPDATE t SET c = '{old}'").unwrap()  # noqa: S608
    assert client.query("SELECT c FROM t").unwrap() == [{"c": old}]


def test_similar_values_of_different_types_are_distinguished_in_one_column(world: World) -> None:
    client = world.client()
    values = {"a": True, "b": [1], "c": 1, "d": "[1]", "e": 0, "f": {}, "g": "{", "h": False}
    for row, value in values.items():
        client.insert("t", row, {"c": value, "d": value}).unwrap()
        for other, known in values.items():
            if (read := client.get("t", other).unwrap()) is not None:
                sql = "SELECT c, d FROM t WHERE _row_id = ?"
                assert repr(client.query(sql, (other,)).unwrap()) == repr([read])
                assert repr(read["c"]) == repr(known)
    client.execute("UPDATE t SET d = NULL").unwrap()
    client.execute("UPDATE t SET d = c").unwrap()
    for row, value in values.items():
        assert repr((client.get("t", row).unwrap() or {})["d"]) == repr(value)


def test_boolean_and_list_parameters_of_sql_keep_their_types(world: World) -> None:
    client = world.client()
    client.insert("t", "t0", dict.fromkeys("abcd")).unwrap()
    sql = "INSERT INTO t (_row_id, a, b, c, d) VALUES (?, ?, 1, ?, ?)"
    client.execute(sql, (ROW, True, [1], "[1]")).unwrap()
    expected = {"a": True, "b": 1, "c": [1], "d": "[1]"}
    assert repr(client.get("t", ROW).unwrap()) == repr(expected)
    client.execute("UPDATE t SET b = ? WHERE a = ?", (False, True)).unwrap()
    assert repr((client.get("t", ROW).unwrap() or {})["b"]) == "False"


@pytest.mark.parametrize("value", [math.nan, math.inf, 2**53 + 1, b"x"])
def test_an_invalid_value_is_refused_as_a_parameter_of_sql(world: World, value: Any) -> None:
    client = world.client()
    client.declare("t", {"c": "number", "d": "string"}).unwrap()
    client.insert("t", ROW, {"c": 1, "d": "x", "e": None}).unwrap()
    for name in "cde":
        refused: Any = client.execute(f"UPDATE t SET {name} = ?", (value,))  # noqa: S608
        assert refused.error.code in {"VALIDATION_ERROR", "SCHEMA_ERROR"}


def test_a_json_column_of_sqlalchemy_stores_every_json_value(world: World) -> None:
    mine, other = world.client("mine"), world.client("other")
    metadata = MetaData()
    table = Table("t", metadata, Column("_row_id", String, primary_key=True), Column("c", JSON))
    engines = []
    for client in (mine, other):
        declare_tables(client, metadata).unwrap()
        engines.append(engine(client))
    values: list[Any] = [*TEXTS, 0, 1, 0.5, 1.1, True, False, [1, "[1]"], {}, {"a": [True]}]
    with engines[0].begin() as connection:
        for place, value in enumerate(values):
            connection.execute(insert(table).values(_row_id=f"t{place}", c=None))
            row = table.c["_row_id"] == f"t{place}"
            connection.execute(update(table).where(row).values(c=value))
        parts = {"text": "[1]", "list": [1], "n": 1.5}
        connection.execute(insert(table).values(_row_id="parts", c=parts))
    mine.sync().unwrap()
    other.sync().unwrap()
    for client, one in zip((mine, other), engines, strict=True):
        with one.connect() as connection:
            for place, value in enumerate(values):
                row = table.c["_row_id"] == f"t{place}"
                read = connection.execute(select(table.c.c).where(row)).scalar_one()
                assert repr(read) == repr(value)
                assert repr((client.get("t", f"t{place}").unwrap() or {})["c"]) == repr(value)
            at = table.c["_row_id"] == "parts"
            for name, value in parts.items():
                part = table.c.c[name]
                assert connection.execute(select(part).where(at)).scalar_one() == value
                assert connection.execute(select(table.c["_row_id"]).where(at, part == value)).all()
