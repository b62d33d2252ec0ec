"""PyIceberg's own ``upsert``, beside the lake's merge: whole rows, without stamps or deletes.

It is given what such a batch can bring: of a third each of inserts, updates and deletes the first
two, each with every column. One process for each measure; processor time of all its threads.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BooleanType,
    DateType,
    DoubleType,
    LongType,
    NestedField,
    StringType,
    TimestamptzType,
)

from tests.support.lake_tables import FolderCatalog

_CHUNK: Final = 250_000
_SCHEMA: Final = Schema(
    NestedField(1, "_id", StringType(), required=True),
    NestedField(2, "customer", StringType()),
    NestedField(3, "article", StringType()),
    NestedField(4, "amount", DoubleType()),
    NestedField(5, "pieces", LongType()),
    NestedField(6, "due", DateType()),
    NestedField(7, "placed", TimestamptzType()),
    NestedField(8, "paid", BooleanType()),
    NestedField(9, "remark", StringType()),
    identifier_field_ids=[1],
)


def measured(rows: int, deltas: int) -> dict[str, float]:
    """Upsert so many rows into a table of so many, half of which are there, in a fresh process."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.lake_upsert", str(rows), str(deltas)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(done.stderr.strip()[-300:])
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def _rows(start: int, count: int, step: int, seed: int) -> pa.Table:
    """Return rows of numbers; the number decides the id, it and the seed all else."""
    numbers = [start + place * step for place in range(count)]
    values = pa.array([number * 31 + seed for number in numbers], pa.int64())

    def text(prefix: str, factor: int, below: int) -> Any:
        rest = pc.subtract(values, pc.multiply(pc.divide(values, below), below))
        return pc.binary_join_element_wise(
            prefix, pc.cast(pc.multiply(rest, factor), pa.string()), ""
        )

    # Spread over the table, as hashed ids are.
    ids = [f"{number * 2_654_435_761 % 2**40:020d}" for number in numbers]
    rest = pc.subtract(values, pc.multiply(pc.divide(values, 700), 700))
    return pa.table(
        {
            "_id": ids,
            "customer": text("customer ", 1, 50_000),
            "article": text("A-", 7, 997),
            "amount": pc.divide(pc.cast(values, pa.float64()), 100.0),
            "pieces": rest,
            "due": pc.cast(pc.cast(pc.add(rest, 19_000), pa.int32()), pa.date32()),
            "placed": pc.cast(pc.multiply(values, 101_000_000), pa.timestamp("us", "UTC")),
            "paid": pc.equal(rest, 3),
            "remark": text("remark ", 7_919, 1_000_003),
        },
        schema=_SCHEMA.as_arrow(),
    )


def main(rows: int, deltas: int) -> None:
    """Measure, in this fresh process."""
    with tempfile.TemporaryDirectory(prefix="lakesync-upsert-") as folder:
        table = FolderCatalog().make(f"file://{folder}/t", ("bench", "orders"), _SCHEMA, {})
        for start in range(0, rows, _CHUNK):
            table.append(_rows(start, min(_CHUNK, rows - start), 1, 0))
        there, new = deltas // 2, deltas - deltas // 2
        batch = pa.concat_tables(
            [_rows(0, there, max(1, rows // there), 7), _rows(rows, new, 1, 7)]
        )
        began, used = time.perf_counter(), time.process_time()
        result = table.upsert(batch)
        figures = {"s": time.perf_counter() - began, "cpu_s": time.process_time() - used}
        assert (result.rows_updated, result.rows_inserted) == (there, new)
    print(json.dumps(figures))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
