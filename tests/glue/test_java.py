"""What the job asks of Java costs no more than it must."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors.exceptions import captured

from lakesync.core.schema import Column, TableSchema
from lakesync_spark.iceberg import state_merge
from tests.glue.test_maintenance import maintained
from tests.support.builders import insert, update

if TYPE_CHECKING:
    from tests.glue.support.lake import Lake

pytestmark = pytest.mark.spark

NARROW = TableSchema("todos", (Column("n", "number"),))
WIDER = TableSchema("todos", (*NARROW.columns, Column("s", "string")), version=2)


def test_runs_and_maintenance_translate_no_java_exceptions(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To PySpark, the translation of one is as much work as a small query: it searches all jars."""
    monkeypatch.setattr(state_merge, "REWRITE_DELTAS_PER_ROW", math.inf)  # a merge, if it can be
    errors: list[str] = []
    real: Any = captured.convert_exception

    def convert(error: Any) -> Any:
        errors.append(error.toString())
        return real(error)

    monkeypatch.setattr(captured, "convert_exception", convert)
    lake.put([insert("r1", at=5, n=1)], schema=NARROW)
    assert lake.run().problem() == ""
    lake.put([update("r1", at=6, s="a")], schema=WIDER)
    assert lake.run().problem() == ""
    assert maintained(lake).problem() == ""

    assert errors == []
