"""Views of the lake's tables: SQL that each engine reads, and what Athena finds in Glue."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import boto3
import duckdb
import pyarrow as pa
import pytest
import sqlglot
from hypothesis import given
from hypothesis import strategies as st

from lakesync.materialise.lake_schema import (
    CHANGES_TABLE,
    EVENTS_TABLE,
    STATE_TABLE,
    LakeColumn,
    own_comments,
)
from lakesync.materialise.views import (
    DIALECTS,
    TEXT_CHARACTERS_MAX,
    GlueViews,
    ViewedTable,
    schema_statement,
    table_input,
    views_of,
)
from tests.support.athena import read_document
from tests.support.some import some
from tests.support.strategies import column_types

if TYPE_CHECKING:
    from lakesync.materialise.lake_schema import Kind
    from tools.local_stack.aws_emulator import Emulator

DATABASE = "lakesync_acme"

STACK = "arn:aws:cloudformation:us-east-1:1:stack/one/1"
TYPES = ("string", "number", "boolean", "json", "null", "integer", "timestamp", "date", "bytes")
COLUMNS = (
    *(LakeColumn(f"{name}_of", name, name) for name in TYPES),
    LakeColumn("order", "decimal(10,2)", "order"),
)
OTHERS = "something else has its name"


def viewed(
    kind: Kind = STATE_TABLE, columns: tuple[LakeColumn, ...] = COLUMNS, name: str = "flights"
) -> ViewedTable:
    comments = {column.name: column.comment for column in columns}
    return ViewedTable(DATABASE, name, kind, columns, STACK, comments)


@pytest.mark.parametrize("engine", DIALECTS)
@pytest.mark.parametrize("kind", [STATE_TABLE, EVENTS_TABLE], ids=["state", "events"])
def test_view_statements_parse_in_every_engine(engine: str, kind: Kind) -> None:
    for view in some(views_of(viewed(kind), engine)):
        (parsed,) = sqlglot.parse(view.statement(DATABASE, engine), read=engine)
        assert isinstance(parsed, sqlglot.exp.Create)
        assert parsed.kind == "VIEW"
        assert (parsed.this.db, parsed.this.name) == (DATABASE, view.name)
        assert parsed.expression.named_selects == [name for name, _ in view.columns]
        assert view.columns[0] == ("_id", "string")
        assert not any(name.startswith("_") for name, _ in view.columns[1:])


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        (STATE_TABLE, ["flights__rows", "flights__live"]),
        (EVENTS_TABLE, ["flights__rows"]),
        (CHANGES_TABLE, []),
    ],
)
def test_state_tables_have_two_views_append_tables_one_and_changes_tables_none(
    kind: Kind, names: list[str]
) -> None:
    assert [view.name for view in views_of(viewed(kind), "athena")] == names


def test_rows_view_hides_tombstones_and_shows_all_events() -> None:
    database = duckdb.connect()
    database.execute("CREATE SCHEMA lakesync_acme")
    stored = pa.table({"_id": ["a", "b"], "order": [1, 2], "_is_deleted": [False, True]})
    database.register("stored", stored)
    database.execute("CREATE TABLE lakesync_acme.flights AS FROM stored")
    columns = (LakeColumn("order", "integer", "order"),)
    for kind, shown in ((STATE_TABLE, [("a", 1)]), (EVENTS_TABLE, [("a", 1), ("b", 2)])):
        view = next(iter(views_of(viewed(kind, columns), "duckdb")))
        database.execute(view.statement(DATABASE, "duckdb"))
        assert database.sql("FROM lakesync_acme.flights__rows").fetchall() == shown


def test_duckdb_views_read_an_attached_catalogue() -> None:
    database = duckdb.connect()
    database.execute("ATTACH ':memory:' AS lake")
    database.execute("CREATE SCHEMA lake.lakesync_acme")
    stored = pa.table({"_id": ["a", "b"], "order": [1, 2]})
    database.register("stored", stored)
    database.execute("CREATE TABLE lake.lakesync_acme.flights AS FROM stored")
    columns = (LakeColumn("order", "integer", "order"),)
    (view,) = views_of(viewed(EVENTS_TABLE, columns), "duckdb", "lake")
    database.execute(schema_statement(DATABASE, "duckdb"))
    database.execute(view.statement(DATABASE, "duckdb"))

    assert database.sql("FROM lakesync_acme.flights__rows").fetchall() == [("a", 1), ("b", 2)]


@pytest.mark.parametrize("engine", DIALECTS)
def test_column_names_with_special_characters_are_quoted(engine: str) -> None:
    for name in ('a"; drop', "a`b", "it's", "é 😀", "a.b"):
        for view in some(views_of(viewed(columns=(LakeColumn(name, "string", "n"),)), engine)):
            (tree,) = sqlglot.parse(view.select, read=engine)
            assert isinstance(tree, sqlglot.exp.Query)
            assert tree.named_selects == ["_id", name]


def test_athena_views_have_no_column_with_a_time_zone() -> None:
    """It makes no view that has one: `Unsupported Hive type: timestamp(6) with time zone`."""
    for view in some(views_of(viewed(), "athena")):
        instant = 'CAST("timestamp_of" AT TIME ZONE \'UTC\' AS timestamp(6)) AS "timestamp_of"'
        assert view.select.count(instant) == 1
        sqlglot.parse_one(view.select, read="athena")


@given(st.lists(column_types, max_size=5), st.sampled_from([STATE_TABLE, EVENTS_TABLE]))
def test_athena_view_document_is_read_back_unchanged(types: list[str], kind: Kind) -> None:
    columns = tuple(LakeColumn(f"c{n}", each, f"c{n}") for n, each in enumerate(types))
    table = viewed(kind, columns)
    for view in some(views_of(table, "athena")):
        kept = table_input(table, view)
        document = read_document(kept["ViewOriginalText"])

        assert document["originalSql"] == view.select
        assert (document["catalog"], document["schema"]) == ("awsdatacatalog", DATABASE)
        names = [column["name"] for column in document["columns"]]
        assert names == ["_id", *(column.name for column in columns)]
        assert names == [column["Name"] for column in kept["StorageDescriptor"]["Columns"]]
        for column, (_, kind_name) in zip(document["columns"], view.columns, strict=True):
            sqlglot.exp.DataType.build(column["type"], dialect="athena")
            assert column["type"].startswith("decimal") == kind_name.startswith("decimal")
        assert kept["TableType"] == "VIRTUAL_VIEW"
        assert kept["ViewExpandedText"] == "/* Presto View */"
        assert kept["Parameters"]["presto_view"] == "true"


@pytest.mark.parametrize("text", ["", "SELECT 1", "/* Presto View: ? */", "/* Presto View */"])
def test_malformed_athena_view_document_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        read_document(text)


@pytest.fixture(scope="module")
def glue(emulator: Emulator) -> Any:
    make: Any = boto3.client
    client = make("glue", **emulator.client_options())
    client.create_database(DatabaseInput={"Name": DATABASE})
    return client


def in_catalogue(glue: Any, name: str) -> dict[str, Any]:
    table: dict[str, Any] = glue.get_table(DatabaseName=DATABASE, Name=name)["Table"]
    return table


class Counted:
    """A client of Glue that notes what is changed."""

    def __init__(self, glue: Any) -> None:
        self._glue = glue
        self.changes: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name in {"create_table", "update_table"}:
            self.changes.append(name)
        return getattr(self._glue, name)


@pytest.mark.emulator
def test_views_are_updated_only_when_their_table_changes(glue: Any) -> None:
    counted = Counted(glue)
    views = GlueViews(counted)
    narrow = viewed(columns=COLUMNS[:1])

    assert views.keep(narrow) == views.keep(narrow) == {}
    assert counted.changes == ["create_table"] * 2
    counted.changes.clear()
    assert views.keep(viewed()) == views.keep(viewed()) == {}
    assert counted.changes == ["update_table"] * 2
    said = viewed()._replace(comments={"_id": own_comments(STATE_TABLE)["_id"]})
    assert views.keep(said) == {}
    for view in some(views_of(said, "athena")):
        table = in_catalogue(glue, view.name)
        assert read_document(table["ViewOriginalText"])["originalSql"] == view.select
        assert table["TableType"] == "VIRTUAL_VIEW"
        assert table["StorageDescriptor"]["Columns"][0]["Comment"].startswith("The id of the row")


@pytest.mark.emulator
def test_table_of_others_with_the_name_of_a_view_is_kept_and_faults_are_reported(glue: Any) -> None:
    views, table = GlueViews(glue), viewed(name="theirs")
    other = {"Name": "theirs__live", "TableType": "EXTERNAL_TABLE"}
    glue.create_table(DatabaseName=DATABASE, TableInput=other)

    assert views.keep(table) == {"theirs__live": OTHERS}
    assert in_catalogue(glue, "theirs__live")["TableType"] == "EXTERNAL_TABLE"
    of_another_stack = views.keep(table._replace(stack="arn:another"))
    assert of_another_stack == dict.fromkeys(("theirs__rows", "theirs__live"), OTHERS)
    nowhere = views.keep(table._replace(database="nowhere"))
    assert nowhere.keys() == of_another_stack.keys()
    assert all("EntityNotFound" in fault for fault in nowhere.values())


@pytest.mark.emulator
def test_table_too_wide_for_a_live_view_still_has_the_rows_view(glue: Any) -> None:
    wide = tuple(LakeColumn(f"column_{n:03}", "timestamp", f"c{n}") for n in range(500))

    faults = GlueViews(glue).keep(viewed(columns=wide, name="wide"))

    assert faults == {"wide__live": f"its text is longer than {TEXT_CHARACTERS_MAX} characters"}
    assert len(in_catalogue(glue, "wide__rows")["StorageDescriptor"]["Columns"]) == 501
