"""The changes table that Spark wrote, read as the command line reads it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from pyiceberg.expressions import AlwaysTrue
from pyiceberg.table import StaticTable

from lakesync.analysis.lake_queries import LakeChanges

if TYPE_CHECKING:
    from lakesync.adapters.database import PlacedDelta
    from tests.glue.support.lake import Lake


def read_back(lake: Lake) -> list[PlacedDelta]:
    """Return every delta of the changes table, in commit order."""
    described = lake.spark.sql(f"DESCRIBE FORMATTED {lake.name.changes}")
    [at] = described.where("col_name = 'Location'").collect()
    metadata = Path(urlsplit(at["data_type"]).path, "metadata")
    newest = max(metadata.glob("*.json"), key=lambda path: path.stat().st_mtime_ns)
    tables = {f"{lake.table}__changes": StaticTable.from_metadata(str(newest))}
    reader: Any = SimpleNamespace(names=lambda: list(tables), table=tables.__getitem__)
    changes = LakeChanges(reader, lake.table)
    placed = [one for batch in changes.scan(AlwaysTrue()) for one in changes.placed(batch)]
    return sorted(placed, key=lambda one: one.position)
