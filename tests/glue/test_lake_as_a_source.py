"""The lake as a flow's source: what Spark and the function wrote, read as a database.

Laws P1, P3, P14: ``docs/spec/databases.md``.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

from lakesync.adapters.database import ORDINAL_END, Position
from lakesync.adapters.ledger_database import values_of
from lakesync.connectors.port import BroughtRows
from lakesync.core.merge import fold
from lakesync.flows.database_sources import LedgerSource
from lakesync.materialise.lake_catalogue import LakePlace
from lakesync.systems.iceberg.iceberg_database import IcebergDatabase
from lakesync.testing.database_contract import schema
from tests.glue.support.folder_catalogue import FolderCatalogue
from tests.glue.support.lake import PREFIX
from tests.glue.test_small_batches import begun, change, gone, put, take

if TYPE_CHECKING:
    from lakesync.core.delta import Delta
    from tests.glue.support.lake import Lake

pytestmark = pytest.mark.spark


def database_of(lake: Lake) -> IcebergDatabase:
    warehouse = Path(urlsplit(str(lake.spark.conf.get("spark.sql.catalog.lake.warehouse"))).path)
    return IcebergDatabase(LakePlace(lambda: FolderCatalogue(warehouse), PREFIX), lake.gateway)


def expected(deltas: list[Delta]) -> dict[str, Any]:
    by_row: dict[str, list[Delta]] = {}
    for one in deltas:
        by_row.setdefault(one.row_id, []).append(one)
    rows = {row_id: values_of(fold(some)) for row_id, some in by_row.items()}
    return {row_id: values for row_id, values in rows.items() if values is not None}


def shown(database: IcebergDatabase) -> dict[str, Any]:
    """Return the rows that there are."""
    page = database.rows_after("todos", "", 100).unwrap()
    rows = {row_id: values_of(state) for row_id, state in page.rows.items()}
    return {row_id: values for row_id, values in rows.items() if values is not None}


@pytest.mark.law("P1", "P3", "P14")
def test_lake_as_a_source_has_the_rows_history_and_columns_of_the_gateway(lake: Lake) -> None:
    deltas = begun(lake)
    first = database_of(lake).mark("todos").unwrap()
    more = [change("r1", 20, title="new", dueDate="2026-01-02"), gone("r2", 21),
            put("todos", "r9", 22, title="t9", done=True, big="x" * 40)]  # fmt: skip
    kinds = {"title": "string", "done": "boolean", "dueDate": "date"}
    lake.put(more, schema=schema("todos", kinds))
    lake.run()
    last = [change("r3", 30, done=True), gone("r4", 31)]
    lake.put(last, schema=schema("todos", kinds))
    assert take(lake).deltas == 2, "by the function"
    database = database_of(lake)

    assert shown(database) == expected([*deltas, *more, *last])
    assert database.mark("todos").unwrap() == lake.batches[-1].last
    history = database.query_deltas_since("todos", Position(first, ORDINAL_END), 99).unwrap()
    assert [placed.delta.row_id for placed in history.deltas] == ["r1", "r2", "r9", "r3", "r4"]
    [(name, columns)] = database.tables().unwrap().items()
    assert name == "todos"
    assert columns is not None
    assert {one.name: one.type for one in columns.columns} == {**kinds, "big": "json"}


@pytest.mark.law("P14")
def test_a_flow_follows_the_lake_by_its_commits(lake: Lake) -> None:
    """What is in the changes table alone, as its merge is left to Spark, comes with the merge."""
    deltas = begun(lake)
    source = LedgerSource(database_of(lake), ["todos"], lambda *_: BroughtRows((), ""))
    read, cursor = dict[str, Any](), ""

    def follow() -> None:
        nonlocal cursor
        more = True
        while more:
            page = source.read("todos", cursor, rows_max=2, poll_ms=1).unwrap()
            for one in page.changes:
                read[one.row_id] = one.columns
            cursor, more = page.cursor, page.has_more

    follow()
    assert read == expected(deltas)
    some = [change("r1", 20, title="new"), gone("r2", 21)]
    lake.put(some)
    lake.run()
    follow()
    assert {row_id: one for row_id, one in read.items() if one} == expected([*deltas, *some])
    assert read["r2"] is None
