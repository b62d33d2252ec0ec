"""Views of the lake's tables: they show what `lakesync query` shows, in SQL that engines read."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa
import pytest
import sqlglot
from pyiceberg.catalog import load_catalog

from lakesync.cli.faults import UsageFault
from lakesync.cli.lake import Lake
from lakesync.cli.view_sql import QUOTES, views

if TYPE_CHECKING:
    from pathlib import Path

ROWS = pa.table(
    {
        "_id": ["a", "b"],
        "order": [1, 2],
        "due_date": ["x", "y"],
        "_updated_at": [1, 2],
        "_commit": [1, 2],
        "_synced_at": [1, 2],
        "_is_deleted": [False, True],
        "_hlc": [1, 2],
        "_client_id": ["c", "c"],
        "_stamps": ["", ""],
        "_texts": ["", ""],
    }
)
EVENTS = pa.table({"_id": ["e"], "kind": ["k"], "_synced_at": [1]})


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """A table of rows, one of events and a history, as real Iceberg tables."""
    catalogue: Any = load_catalog("t", type="in-memory", warehouse=tmp_path.as_uri())
    catalogue.create_namespace("lakesync_acme")
    tables = {}
    for name, rows in (("flights", ROWS), ("events", EVENTS), ("flights__changes", EVENTS)):
        tables[name] = catalogue.create_table(f"lakesync_acme.{name}", rows.schema)
        tables[name].append(rows)
    aws: Any = SimpleNamespace(output=lambda _: "lakesync_")
    opened = Lake(aws, "acme")
    opened.__dict__["_tables"] = tables
    return opened


@pytest.mark.parametrize("engine", QUOTES)
def test_every_engine_reads_the_statements(lake: Lake, engine: str) -> None:
    for view, statement in views(lake, None, engine):
        (parsed,) = sqlglot.parse(statement, read=engine)
        assert isinstance(parsed, sqlglot.exp.Create)
        assert parsed.kind == "VIEW"
        assert parsed.this.name == view
        assert parsed.this.db == "lakesync_acme"


@pytest.mark.parametrize(("table", "count"), [("flights", 1), ("events", 1)])
def test_a_view_shows_what_a_query_shows(lake: Lake, table: str, count: int) -> None:
    database = duckdb.connect()
    database.execute("create schema lakesync_acme")
    stored = lake.table(table).scan().to_arrow()
    database.register("stored", stored)
    database.execute(f"create table lakesync_acme.{table} as select * from stored")  # noqa: S608 - ours
    [(view, statement)] = views(lake, table, "duckdb")
    database.execute(statement)
    shown = database.sql(f"from lakesync_acme.{view}").to_arrow_table()

    assert shown.to_pylist() == lake.read(table).to_pylist()
    assert shown.num_rows == count
    assert shown.column_names == [
        name for name in stored.column_names if name in {"_id", "order", "due_date", "kind"}
    ]


def test_histories_have_no_view_and_one_table_has_its_own(lake: Lake) -> None:
    assert [view for view, _ in views(lake, None, "athena")] == ["events_rows", "flights_rows"]
    assert [view for view, _ in views(lake, "flights", "athena")] == ["flights_rows"]


def test_a_name_that_a_table_has_is_no_views(lake: Lake) -> None:
    tables = lake.__dict__["_tables"]
    tables["flights_rows"] = SimpleNamespace(name=lambda: ("lakesync_acme", "flights_rows"))

    with pytest.raises(UsageFault, match="flights_rows is a table already"):
        list(views(lake, "flights", "athena"))


def test_a_name_that_holds_a_quote_stays_a_name() -> None:
    odd: Any = SimpleNamespace(
        names=lambda: ["t"],
        names_of=lambda _: ["t"],
        columns_of_rows=lambda _: (('a"; drop',), False),
        table=lambda _: SimpleNamespace(name=lambda: ("db", "t")),
    )
    [(_, statement)] = views(odd, None, "athena")

    assert '"a""; drop"' in statement
    assert len(sqlglot.parse(statement, read="athena")) == 1
