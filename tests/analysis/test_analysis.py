"""`lakesync.analysis`: the lake's tables in a notebook; and the page that tells how."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import BooleanType, LongType, NestedField, StringType

from lakesync import analysis
from lakesync.analysis import OpenedLake, open_lake
from lakesync.core.names import lake_database
from lakesync.errors import NotFound, Unavailable, ValidationFailed
from lakesync.result import Err
from tests.support.lake_tables import PREFIX, FolderLake
from tests.support.markdown import PYTHON_BLOCK
from tests.support.repository import ROOT

if TYPE_CHECKING:
    from pathlib import Path

PAGE = ROOT / "docs" / "analysis.md"
SCHEMA = Schema(
    NestedField(1, "_id", StringType()),
    NestedField(2, "carrier", StringType()),
    NestedField(3, "delay", LongType()),
    NestedField(4, "due_date", StringType()),
    NestedField(5, "_is_deleted", BooleanType()),
)
FIRST = [("f1", "UA", 70, "soon", False), ("f2", "DL", None, None, False)]
SECOND = [("f3", "UA", 10, None, False), ("f4", "DL", 1, None, True)]


@pytest.fixture
def folder(tmp_path: Path) -> FolderLake:
    """A state table of two commits, as the Glue job makes them."""
    folder = FolderLake(tmp_path, "acme")
    written = {"2": ("string", "carrier"), "3": ("integer", "delay"), "4": ("string", "dueDate")}
    table = folder.catalog.make(
        f"file://{tmp_path}/flights",
        (lake_database(PREFIX, "acme"), "flights"),
        SCHEMA,
        {"lakesync.kind": "state", "lakesync.table": "flights"},
    )
    with table.transaction() as transaction:
        transaction.set_properties({"lakesync.columns": json.dumps(written)})
    for mark, rows in ((100, FIRST), (200, SECOND)):
        columns = dict(zip(SCHEMA.column_names, zip(*rows, strict=True), strict=True))
        table.append(
            pa.table(columns, schema=SCHEMA.as_arrow()),
            snapshot_properties={"lakesync.commit": str(mark)},
        )
    return folder


@pytest.fixture
def lake(folder: FolderLake) -> OpenedLake:
    return OpenedLake(folder.of())


def test_a_lake_table_is_read_by_arrow_pandas_polars_duckdb_and_sql(lake: OpenedLake) -> None:
    assert lake.tables().unwrap() == ["flights"]
    rows = lake.arrow("flights").unwrap()
    assert rows.column_names == ["_id", "carrier", "delay", "dueDate"]
    assert sorted(rows["_id"].to_pylist()) == ["f1", "f2", "f3"]
    assert lake.arrow("flights", all_columns=True).unwrap().num_rows == 4

    some = lake.arrow("flights", columns=["dueDate", "delay"], as_of="100").unwrap()
    assert some.column_names == ["dueDate", "delay"]
    assert some.num_rows == 2
    frame = lake.pandas("flights", columns=["carrier", "delay"]).unwrap()
    assert str(frame["delay"].dtype) == "int64[pyarrow]"
    assert frame.groupby("carrier")["delay"].sum().to_dict() == {"DL": 0, "UA": 80}
    by_carrier = lake.polars("flights", columns=["carrier", "delay"]).unwrap().group_by("carrier")
    assert sorted(by_carrier.sum().rows()) == [("DL", 0), ("UA", 80)]
    late = lake.duckdb("flights").unwrap().filter("delay > 60").project("_id").fetchall()
    assert late == [("f1",)]
    assert lake.sql("select count(*) as c from flights").unwrap().to_pylist() == [{"c": 3}]


def test_a_failed_read_returns_an_error_with_its_reason(
    lake: OpenedLake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def reason(result: Any, kind: type[Exception] = ValidationFailed) -> str:
        assert isinstance(result, Err)
        assert isinstance(result.error, kind)
        return str(result.error)

    assert "tables: flights" in reason(lake.arrow("flight"), NotFound)
    assert "has no column due_date" in reason(lake.arrow("flights", columns=["due_date"]))
    assert "as_of 'soon' is not a point in time" in reason(lake.pandas("flights", as_of="soon"))
    assert "there was nothing in flights" in reason(lake.arrow("flights", as_of="99"))
    assert "the query was refused" in reason(lake.sql("selec 1"))
    for name in ("LAKESYNC_STACK", "LAKESYNC_GATEWAY", "LAKESYNC_URL", "LAKESYNC_STACK_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    assert "which gateway" in reason(open_lake())

    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    stack = {"stack": "s", "gateway": "g", "region": "us-east-1", "endpoint": "http://127.0.0.1:9"}
    (tmp_path / "stack.json").write_text(json.dumps(stack))
    away = open_lake(stack_file="stack.json").and_then(OpenedLake.tables)
    assert reason(away, Unavailable).startswith("AWS cannot be reached")


def test_the_code_of_the_analysis_page_runs(
    folder: FolderLake, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("lakesync.analysis.lake.Lake", lambda *_: folder.of())
    text = PAGE.read_text("utf-8")
    blocks = PYTHON_BLOCK.findall(text)
    assert len(blocks) == 2
    exec(compile("\n".join(blocks), str(PAGE), "exec"), {})  # noqa: S102 - our own page

    printed = capsys.readouterr().out
    assert "['flights']" in printed
    assert printed.endswith(
        "[{'carrier': 'DL', 'delay': None}, {'carrier': 'UA', 'delay': 40.0}] "
        "[{'carrier': 'DL', 'delay': None}, {'carrier': 'UA', 'delay': 70.0}]\n"
    )


@pytest.mark.parametrize("module", ["boto3", "pyarrow", "pyiceberg", "duckdb"])
@pytest.mark.parametrize("opens", ["open_lake", "open_shared"])
def test_opening_without_the_analysis_extra_names_the_command_to_install(
    module: str, opens: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    wanted = rf"lakesync.analysis needs {module}: run pip install .*\[analysis\]"

    with pytest.raises(ImportError, match=wanted) as missing:
        getattr(analysis, opens)()
    assert missing.value.__suppress_context__
