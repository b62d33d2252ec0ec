"""A gateway's lake in a test: batches go in as the flush function writes them, rows come out."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lakesync.adapters.lake.parquet import ParquetEncoder
from lakesync.core.config import JSON, PARQUET
from lakesync.core.merge import RowState
from lakesync.core.names import staged_column
from lakesync.maintenance.flush import Batch
from lakesync.ports import BatchRow
from lakesync.wire.batch_json import encode_batch
from lakesync_spark.common.arguments import Arguments
from lakesync_spark.iceberg.run import run
from lakesync_spark.iceberg.tables import find_table, located
from tests.glue.support.spark import BESIDE, CATALOG
from tests.glue.support.texts import text_in_lake

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from pyiceberg.catalog import Catalog
    from pyspark.sql import DataFrame, Row, SparkSession

    from lakesync.core.delta import Delta
    from lakesync.core.schema import TableSchema
    from lakesync.materialise.lake_schema import BatchMark, LakeColumn
    from lakesync_spark.common.report import Report
    from lakesync_spark.iceberg.tables import TableName
    from tests.glue.support.files import FileStore

PREFIX = "ls"
STACK = "arn:aws:cloudformation:us-east-1:1:stack/one/1"


@dataclass
class Lake:
    """One gateway with one table, on a store of its own."""

    spark: SparkSession
    store: FileStore
    gateway: str
    table: str = "todos"
    catalog: str = CATALOG
    beside: str = BESIDE
    """The same catalogue, as another process would see it."""
    opened: Callable[[], Catalog] | None = None
    """Gives the catalogue as PyIceberg has it, where it is not Spark's folder."""
    stack: str = STACK
    runs: int = 0
    batches: list[Batch] = field(default_factory=list)

    @property
    def name(self) -> TableName:
        return located(self.spark, self.catalog, PREFIX, self.gateway, self.table)

    def put(
        self,
        deltas: Iterable[Delta],
        *,
        after: int | None = None,
        schema: TableSchema | None = None,
        commits: Sequence[int] | None = None,
        form: str = PARQUET,
    ) -> Batch:
        """Write a batch and its claim; by default it continues the last one, a commit a delta."""
        start = (self.batches[-1].last if self.batches else 0) if after is None else after
        all_deltas = list(deltas)
        stamps = commits or range(start + 1, start + 1 + len(all_deltas))
        rows = tuple(
            BatchRow(s, place, d.op.name, d.row_id, d.client_id, d.hlc, d.delta_id, d.columns)
            for place, (s, d) in enumerate(zip(stamps, all_deltas, strict=True))
        )
        names = sorted({name for row in rows for name, _ in row.columns})
        columns = {name: staged_column(name) for name in names}
        batch = Batch(self.gateway, self.table, start, stamps[-1], rows, columns, form)
        if form == JSON:
            body = encode_batch(self.gateway, self.table, start, stamps[-1], rows)
        else:
            body = ParquetEncoder().encode(rows, columns)
        self.store.put(batch.object_key, body)
        self.claim(batch, schema)
        self.batches.append(batch)
        return batch

    def claim(self, batch: Batch, schema: TableSchema | None = None) -> None:
        """Write a batch's claim, once more if it is gone."""
        self.store.put(batch.claim_key, batch.claim(schema, 1).encode())

    def run(self) -> Report:
        self.runs += 1
        arguments = Arguments("lake", PREFIX, self.catalog, self.stack)
        return run(self.spark, self.store, arguments, f"run-{self.runs}")  # type: ignore[arg-type]

    def rows(self) -> dict[str, dict[str, Any]]:
        """Return the state table, by row id."""
        rows = self.read(self.name.rows).collect()
        assert len({row["_id"] for row in rows}) == len(rows), "one row for each id"
        return {row["_id"]: row.asDict(recursive=True) for row in rows}

    def visible(self) -> dict[str, dict[str, Any]]:
        """Return the rows that exist, with their own columns only."""
        return {
            row_id: {name: value for name, value in row.items() if not name.startswith("_")}
            for row_id, row in self.rows().items()
            if not row["_is_deleted"]
        }

    def states(self) -> dict[str, RowState]:
        """Return the rows as `lakesync.core.merge` has them."""
        table = find_table(self.spark, self.name.rows, self.stack)
        columns = table.columns() if table else ()
        return {row_id: state_in(row, columns) for row_id, row in self.rows().items()}

    def changes(self) -> list[Row]:
        """Return the changes table in commit order."""
        return self.read(self.name.changes).orderBy("_commit", "_ordinal").collect()

    def read(self, table: str) -> DataFrame:
        """Return a table as it is now, whoever wrote to it."""
        self.spark.catalog.refreshTable(table)
        return self.spark.table(table)

    def marks(self) -> dict[str, BatchMark]:
        """Return the mark of each lake table that there is."""
        names = {"rows": self.name.rows, "changes": self.name.changes}
        tables = {kind: find_table(self.spark, name, self.stack) for kind, name in names.items()}
        return {kind: table.batch_mark() for kind, table in tables.items() if table}

    def pending(self) -> list[str]:
        return [entry.key.rpartition("/")[2] for entry in self.store.claims()]


def state_in(row: dict[str, Any], columns: Iterable[LakeColumn]) -> RowState:
    """Return the row state that a row of a state table holds, read as docs/spec/lake.md has it."""
    said = json.loads(row["_stamps"] or "{}")
    texts = json.loads(row["_texts"] or "{}")

    def stamp_of(part: dict[str, Any]) -> tuple[int, str]:
        ago = (part.get("ago_ms", 0) << 16) + part.get("ago_counter", 0)
        return row["_hlc"] - ago, part.get("client_id", row["_client_id"])

    rest = stamp_of(said.get("_rest", {}))
    registers = {}
    for column in columns:
        value, text = row[column.name], texts.get(column.name)
        if value is None and text is None:
            continue
        json_text = text.encode() if text is not None else text_in_lake(column.type, value)
        stamp = stamp_of(said[column.name]) if column.name in said else rest
        registers[column.name] = (*stamp, json_text)
    if row["_is_deleted"]:
        return RowState(0, said.get("_deleted", row["_hlc"]), registers)
    return RowState(said.get("_alive", rest[0]), said.get("_deleted", 0), registers)
