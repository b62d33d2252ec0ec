"""The example notebook runs from its first cell to its last, on a lake as the job leaves it."""

from __future__ import annotations

import ast
import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import BooleanType, LongType, NestedField, StringType

from lakesync.adapters.database import PlacedDelta, Position
from lakesync.core.names import lake_database
from tests.support.builders import insert, update
from tests.support.lake_tables import PREFIX, FolderLake
from tests.support.repository import ROOT
from tests.support.some import some

if TYPE_CHECKING:
    from pathlib import Path

NOTEBOOK = ROOT / "examples" / "analysis.ipynb"
TABLE = "flights"
TEXTS, NUMBERS = ("carrier", "origin", "dest"), ("dep_delay", "arr_delay")
TIMETABLE, LANDED = 100, 200
"""The last commits of both batches."""
KNOWN: dict[str, dict[str, Any]] = {
    "f1": {"carrier": "UA", "origin": "EWR", "dest": "ORD"},
    "f2": {"carrier": "UA", "origin": "EWR", "dest": "SFO"},
    "f3": {"carrier": "DL", "origin": "JFK", "dest": "ATL"},
}
DELAYS: dict[str, dict[str, Any]] = {
    "f1": {"dep_delay": 10, "arr_delay": 70},
    "f2": {"dep_delay": 20, "arr_delay": 30},
}


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FolderLake:
    """A timetable, then delays: rows and changes, as `open_lake` gives them."""
    folder = FolderLake(tmp_path, "acme")
    schema = Schema(
        NestedField(1, "_id", StringType()),
        *(NestedField(2 + n, name, StringType()) for n, name in enumerate(TEXTS)),
        *(NestedField(5 + n, name, LongType()) for n, name in enumerate(NUMBERS)),
        NestedField(7, "_is_deleted", BooleanType()),
    )
    table = folder.catalog.make(
        f"file://{tmp_path}/{TABLE}",
        (lake_database(PREFIX, "acme"), TABLE),
        schema,
        {"lakesync.kind": "state", "lakesync.table": TABLE},
    )
    known = [{"_id": row, "_is_deleted": False, **values} for row, values in KNOWN.items()]
    landed = [row | DELAYS.get(row["_id"], {}) for row in known]
    for mark, rows, write in ((TIMETABLE, known, table.append), (LANDED, landed, table.overwrite)):
        write(
            pa.Table.from_pylist(rows, schema.as_arrow()),
            snapshot_properties={"lakesync.commit": str(mark)},
        )
    inserts = [insert(row, client="feed", table=TABLE, **values) for row, values in KNOWN.items()]
    updates = [
        update(row, at=5, client="airport", table=TABLE, **values) for row, values in DELAYS.items()
    ]
    types = dict.fromkeys(TEXTS, "string") | dict.fromkeys(NUMBERS, "integer")
    for commit, deltas in ((TIMETABLE, inserts), (LANDED, updates)):
        placed = [PlacedDelta(Position(commit, n), delta) for n, delta in enumerate(deltas)]
        folder.put_changes(TABLE, placed, types)
    monkeypatch.setattr("lakesync.analysis.lake.Lake", lambda *_: folder.of())
    monkeypatch.setenv("LAKESYNC_STACK", "demo")
    monkeypatch.setenv("LAKESYNC_GATEWAY", "acme")
    return folder


def code_cells() -> dict[str, str]:
    """Return the code of the notebook by the ids of its cells, in order."""
    cells = json.loads(NOTEBOOK.read_text("utf-8"))["cells"]
    return {cell["id"]: "".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"}


def shown_by(cells: dict[str, str]) -> dict[str, Any]:
    """Run cells as a kernel does: of each, its last expression is shown."""
    names: dict[str, Any] = {}
    shown: dict[str, Any] = {}
    for cell, source in cells.items():
        parsed = ast.parse(source)
        *_, last = parsed.body
        assert isinstance(last, ast.Expr), f"cell {cell} shows nothing"
        parsed.body.pop()
        exec(compile(parsed, cell, "exec"), names)  # noqa: S102 - our own notebook
        shown[cell] = eval(compile(ast.Expression(last.value), cell, "eval"), names)  # noqa: S307
    return shown


@pytest.mark.usefixtures("lake")
def test_the_notebook_runs_from_top_to_bottom() -> None:
    shown = shown_by(code_cells())

    assert shown["open"] == ["flights", "flights__changes"]
    assert shown["delays"].loc["UA"].to_dict() == {"dep_delay": 15.0, "arr_delay": 50.0}
    assert shown["writers"].to_dict("records") == [
        {"_client_id": "airport", "_op": "UPDATE", "deltas": 2},
        {"_client_id": "feed", "_op": "INSERT", "deltas": 3},
    ]
    assert shown["late"].to_dict("records") == [
        {"carrier": "UA", "origin": "EWR", "dest": "ORD", "arr_delay": 70}
    ]
    assert shown["asof"] == [{"flights": 3, "landed": 0}, {"flights": 3, "landed": 2}]
    assert "tables: flights" in shown["wrong"]


def test_the_notebook_has_a_valid_format_and_no_outputs() -> None:
    notebook = json.loads(NOTEBOOK.read_text("utf-8"))

    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    assert len({cell["id"] for cell in notebook["cells"]}) == len(notebook["cells"])
    for cell in some(notebook["cells"]):
        kind = cell["cell_type"]
        fields = {"cell_type", "id", "metadata", "source"}
        assert set(cell) == fields | ({"execution_count", "outputs"} if kind == "code" else set())
        assert not cell.get("outputs"), "results are of whoever ran it"
        assert cell.get("execution_count") is None
