"""Tables that gateways share: their columns, and their views in real engines."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import permutations
from typing import TYPE_CHECKING

import duckdb
import pytest
import sqlglot
from hypothesis import given
from hypothesis import strategies as st

from lakesync.core.column_types import widens
from lakesync.errors import ValidationFailed
from lakesync.materialise.lake_schema import LakeColumn
from lakesync.materialise.sharing import (
    QUERY_BYTES_MAX,
    Member,
    Share,
    as_viewed,
    check_share,
    common_type,
    share_key,
    share_of,
    shared_database,
    shared_views,
    size_fault,
    without_live,
)
from lakesync.materialise.views import DIALECTS, table_input, views_of
from tests.support.athena import read_document
from tests.support.some import some
from tests.support.strategies import column_types

if TYPE_CHECKING:
    from lakesync.materialise.views import View

TYPES = ("string", "number", "boolean", "json", "null", "integer", "timestamp", "date", "bytes")


def column(name: str, kind: str, written: str = "") -> LakeColumn:
    return LakeColumn(name, kind, written or name)


def member(gateway: str, *columns: LakeColumn, kind: str = "state") -> Member:
    return Member(f"ls_{gateway}", "flights", kind, columns)


FLIGHTS = Share(
    "flights",
    "flights",
    members={
        "blue": member("blue", column("delay", "integer"), column("note", "string")),
        "acme": member("acme", column("delay", "number"), column("at", "timestamp")),
        "cargo": member("cargo", column("delay", "integer"), kind="events"),
    },
)


@pytest.mark.law("L24")
def test_shared_columns_are_the_union_in_order_of_arrival() -> None:
    columns = FLIGHTS.columns()
    assert [(one.name, one.type) for one in columns] == [
        ("delay", "string"), ("note", "string"), ("at", "timestamp")
    ]  # fmt: skip
    assert [one.is_text_of_others for one in columns] == [True, False, False]
    later = FLIGHTS.with_member("a-first", member("a-first", column("new", "date")))
    assert [one.name for one in later.columns()] == ["delay", "note", "at", "new"]


def test_shared_columns_are_matched_by_their_original_names() -> None:
    share = Share(
        "t",
        "t",
        members={
            "a": member("a", column("due_date", "date", "dueDate"), column("x", "date", "x")),
            "b": member("b", column("duedate", "date", "duedate"), column("c_x_1", "date", "X")),
            "c": member("c", column("due_date", "date", "due_date")),
        },
    )
    names = [(one.name, one.written, sorted(one.types)) for one in share.columns()]
    assert names == [
        ("due_date", "dueDate", ["a", "b"]),
        ("x", "x", ["a", "b"]),
        ("due_date_2", "due_date", ["c"]),
    ]


@pytest.mark.parametrize(
    ("types", "common"),
    [
        (["integer", "integer"], "integer"),
        (["null", "date", "null"], "date"),
        (["decimal(10,2)", "decimal(12,2)"], "decimal(12,2)"),
        (["decimal(10,2)", "decimal(12,3)"], "string"),
        (["integer", "number"], "string"),
        (["json", "string"], "string"),
        (["bytes", "boolean"], "string"),
    ],
)
def test_differing_types_are_widened_as_in_iceberg_or_become_text(
    types: list[str], common: str
) -> None:
    for order in permutations(types):
        assert common_type(order) == common


@given(st.lists(column_types, min_size=1, max_size=5))
def test_common_type_is_text_or_wider_than_each_type(types: list[str]) -> None:
    common = common_type(types)
    assert common == "string" or all(widens(one, common) for one in types)


def test_share_is_unchanged_after_storing_and_unknown_fields_are_ignored() -> None:
    assert share_of(share_key("flights"), FLIGHTS.as_json()) == FLIGHTS
    more = FLIGHTS.as_json().replace(b'{"table"', b'{"later":1,"table"', 1)
    assert share_of(share_key("flights"), more) == FLIGHTS


def test_share_includes_tables_by_name_and_gateway_pattern() -> None:
    share = Share("eu", "Flights", "*-eu")
    assert share.wants("acme-eu", "flights")
    assert not share.wants("acme-us", "flights")
    assert not share.wants("ACME-EU", "flights")
    assert not share.wants("acme-eu", "planes")


def test_all_faults_of_a_share_are_reported_at_once() -> None:
    check_share(Share("flights", "flights"))
    with pytest.raises(ValidationFailed) as refused:
        check_share(Share("Flights__rows", "flights", ""))
    for part in ("'Flights__rows' is not of a-z", "ends with one of", "pattern of gateways"):
        assert part in str(refused.value)


@pytest.mark.parametrize("engine", DIALECTS)
def test_shared_view_statements_parse_in_every_engine(engine: str) -> None:
    place = shared_database("ls")
    views = list(shared_views(FLIGHTS, engine))
    assert [view.name for view in views] == ["flights", "flights__rows", "flights__live"]
    for view in views:
        (parsed,) = sqlglot.parse(view.statement(place, engine), read=engine)
        assert isinstance(parsed, sqlglot.exp.Create)
        assert (parsed.this.db, parsed.this.name) == (place, view.name)
        names = [name for name, _ in view.columns]
        assert names[:2] == ["_gateway", "_id"]
        branches = list(parsed.expression.find_all(sqlglot.exp.Select))
        assert len(branches) == 3
        assert all(branch.named_selects == names for branch in branches)
    assert list(shared_views(Share("t", "t"), engine)) == []


def test_shared_live_view_uses_the_rows_view_of_append_tables() -> None:
    *_, live = shared_views(FLIGHTS, "trino")
    assert '"ls_cargo"."flights__rows"' in live.select
    assert '"ls_acme"."flights__live"' in live.select


_OWN = """_updated_at TIMESTAMPTZ, _commit BIGINT, _synced_at TIMESTAMPTZ, _is_deleted BOOLEAN,
    _hlc BIGINT, _client_id VARCHAR, _stamps VARCHAR, _texts VARCHAR"""
_DELTA = """_commit BIGINT, _ordinal INT, _op VARCHAR, _id VARCHAR, _client_id VARCHAR, _hlc BIGINT,
    _delta_id VARCHAR"""
_TAIL = "_columns VARCHAR[], _synced_at TIMESTAMPTZ, _texts MAP(VARCHAR, VARCHAR)"
TABLES = f"""
    SET TimeZone = 'UTC';
    CREATE SCHEMA ls_acme; CREATE SCHEMA ls_blue; CREATE SCHEMA ls_cargo; CREATE SCHEMA ls__shared;
    CREATE TABLE ls_blue.flights (_id VARCHAR, delay BIGINT, note VARCHAR, {_OWN});
    CREATE TABLE ls_blue.flights__changes ({_DELTA}, delay BIGINT, note VARCHAR, {_TAIL});
    CREATE TABLE ls_acme.flights (_id VARCHAR, delay DOUBLE, "at" TIMESTAMPTZ, {_OWN});
    CREATE TABLE ls_acme.flights__changes ({_DELTA}, delay DOUBLE, "at" TIMESTAMPTZ, {_TAIL});
    CREATE TABLE ls_cargo.flights ({_DELTA}, delay BIGINT, {_TAIL});
    INSERT INTO ls_blue.flights VALUES
        ('f1', 7, 'late', now(), 1, now(), false, 1, 'c', NULL, NULL),
        ('f2', 8, '', now(), 1, now(), true, 1, 'c', NULL, NULL);
    INSERT INTO ls_blue.flights__changes VALUES
        (2, 0, 'INSERT', 'f3', 'c', 2, 'd', 9, NULL, ['delay'], now(), NULL);
    INSERT INTO ls_acme.flights VALUES
        ('f1', 1.5, '2013-01-01 00:00:00Z', now(), 1, now(), false, 1, 'c', NULL, NULL);
    INSERT INTO ls_cargo.flights VALUES (1, 0, NULL, 'f9', 'c', 1, 'd', 3, NULL, now(), NULL);
"""  # noqa: S608 - no input
ALL = '_gateway, _id, delay, note, "at"'
SHARED = {name: f"ls__shared.{name}" for name in ("flights", "flights__rows", "flights__live")}


def in_duckdb() -> duckdb.DuckDBPyConnection:
    """Return a database with the tables of `FLIGHTS`, their views, and those of the share."""
    database = duckdb.connect()
    database.execute(TABLES)
    for one in FLIGHTS.members.values():
        for view in views_of(one.viewed(), "duckdb"):
            database.execute(view.statement(one.database, "duckdb"))
    for view in shared_views(FLIGHTS, "duckdb"):
        database.execute(view.statement("ls__shared", "duckdb"))
    return database


@pytest.mark.law("L24")
def test_shared_views_have_the_rows_of_every_gateway() -> None:
    database = in_duckdb()

    def rows(view: str, columns: str = ALL) -> list[tuple[object, ...]]:
        return database.table(SHARED[view]).order("_gateway, _id").project(columns).fetchall()

    moment = datetime(2013, 1, 1, tzinfo=UTC)
    acme, cargo = ("acme", "f1", "1.5", None, moment), ("cargo", "f9", "3", None, None)
    blue = ("blue", "f1", "7", "late", None)
    assert rows("flights__rows") == [acme, blue, cargo]
    assert rows("flights__live") == [acme, blue, ("blue", "f3", "9", None, None), cargo]
    assert rows("flights", "_gateway, _id, _is_deleted, _commit") == [
        ("acme", "f1", False, 1), ("blue", "f1", False, 1), ("blue", "f2", True, 1),
        ("cargo", "f9", False, 1),
    ]  # fmt: skip
    shown = database.sql("SELECT * FROM ls__shared.flights").types
    view = next(iter(shared_views(FLIGHTS, "duckdb")))
    names = [DIALECTS["duckdb"].type_name(kind).upper() for _, kind in view.columns]
    assert [str(one) for one in shown] == names


@pytest.mark.law("L24")
@pytest.mark.parametrize("view", SHARED)
def test_filter_on_one_gateway_reads_only_its_tables(view: str) -> None:
    rows = in_duckdb().table(SHARED[view]).project("_gateway, delay")

    assert all(f"ls_{gateway}" in rows.explain() for gateway in FLIGHTS.members)
    one = rows.filter("_gateway = 'acme'").explain()
    assert "ls_acme" in one
    assert "ls_blue" not in one
    assert "ls_cargo" not in one


@pytest.mark.parametrize("kind", TYPES)
def test_columns_of_different_types_become_text_in_a_shared_view(kind: str) -> None:
    database = duckdb.connect()
    other = "date" if kind != "date" else "integer"
    members = {"a": member("a", column("v", kind)), "b": member("b", column("v", other))}
    for gateway, one in members.items():
        type_name = DIALECTS["duckdb"].type_name(one.columns[0].type)
        database.execute(f"CREATE SCHEMA ls_{gateway}")
        database.execute(f"CREATE TABLE ls_{gateway}.flights__rows (_id VARCHAR, v {type_name})")
    _, view, _ = shared_views(Share("t", "flights", members=members), "duckdb")
    wanted = other if kind == "null" else "string"
    assert str(database.sql(view.select).types[2]) == DIALECTS["duckdb"].type_name(wanted).upper()


def document_of(view: View) -> dict[str, object]:
    kept = table_input(as_viewed(FLIGHTS, "ls__shared", "arn:stack"), view)
    return read_document(kept["ViewOriginalText"])


def test_shared_views_of_athena_have_no_column_with_a_time_zone() -> None:
    for view in some(shared_views(FLIGHTS, "athena")):
        document = document_of(view)
        assert (document["originalSql"], document["schema"]) == (view.select, "ls__shared")
        columns = document["columns"]
        assert isinstance(columns, list)
        assert [one["name"] for one in columns] == [name for name, _ in view.columns]
        assert not any("zone" in one["type"] for one in columns)
        sqlglot.parse_one(view.select, read="athena")


def many(gateways: int, columns: int) -> Share:
    wide = tuple(column(f"column_{n:03}", "timestamp") for n in range(columns))
    names = [f"gateway-{n:04}" for n in range(gateways)]
    return Share("t", "t", members={name: member(name, *wide) for name in names})


@pytest.mark.parametrize(("columns", "fit", "too_many"), [(10, 200, 500), (100, 25, 60)])
def test_share_of_too_many_gateways_is_refused_with_the_number_that_fits(
    columns: int, fit: int, too_many: int
) -> None:
    assert size_fault(many(fit, columns)) == ""
    fault = size_fault(many(too_many, columns))
    assert f"over {too_many} gateways of {columns} columns" in fault
    assert f"may have {QUERY_BYTES_MAX:,}" in fault
    said = int(fault.partition("about ")[2].partition(" ")[0])
    assert size_fault(many(said - 1, columns)) == ""
    assert size_fault(many(said + said // 20 + 2, columns)) != ""


def test_gateway_with_a_table_too_wide_for_a_live_view_is_named() -> None:
    share = many(1, 400).with_member("narrow", member("narrow", column("n", "date")))
    assert without_live(share) == ("gateway-0000",)
