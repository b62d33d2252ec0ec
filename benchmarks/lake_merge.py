"""Merges of the lake that do not grow with the table: the same batch into tables of two sizes.

A third each of inserts, updates and deletes, of row ids that are spread over the whole table. A
fresh JVM for each table: its first merge is cold, its last one warm. Deltas for each second of a
core, by processor time, of which others on the machine take nothing away; the changes table is
left out. Beside it, into a table of the smaller one's rows without stamps: Spark's own ``MERGE``,
and PyIceberg's ``upsert`` of fewer whole rows.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

# Glue puts the job's packages on the path; here this does.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "glue_jobs"))

from benchmarks import lake_upsert, spark_merge
from benchmarks.entries import at_least, at_most, sized
from benchmarks.spark_merge import cpu_s, spark_session
from lakesync.core.clock import stamp
from lakesync.core.schema import Column, TableSchema
from lakesync.maintenance.flush import Batch
from tests.glue.support.files import FileStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame, SparkSession

    from benchmarks.entries import Entry
    from lakesync_spark.iceberg.tables import TableName
    from lakesync_spark.iceberg.workbench import Workbench

MEASURES: Final = spark_merge.MEASURES
ROWS: Final = sized((1_000_000, 10_000_000), (2_000, 2_000))
DELTAS: Final = sized(1_000_000, 200)
OBJECTS: Final = sized(20, 1)
MERGES: Final = 2
UPSERTED: Final = sized(100_000, 200)
"""Rows of an upsert: it holds the table's rows that may match in memory, and looks for each."""
WARM_TARGET: Final = 26_000.0
COLD_TARGET: Final = 18_000.0
GROWTH_TARGET: Final = 1.5
GATEWAY: Final = "bench"
TABLE: Final = "orders"
STACK: Final = "benchmark"
VALUES: Final = {
    "customer": ("string", "concat('customer ', {n} % 50000)"),
    "article": ("string", "concat('A-', {n} % 997, '-', {n} % 89)"),
    "amount": ("number", "({n} % 100000) / 100"),
    "pieces": ("integer", "{n} % 12"),
    "due": ("date", "date_add(DATE'2024-01-01', CAST({n} % 700 AS INT))"),
    "placed": ("timestamp", "timestamp_seconds(1700000000 + {n} * 101 % 31536000)"),
    "paid": ("boolean", "{n} % 3 = 0"),
    "remark": ("string", "concat('remark ', {n} * 7919 % 1000003)"),
}
"""The type of each column, and its value for a number."""
SCHEMA: Final = TableSchema(TABLE, tuple(Column(name, kind) for name, (kind, _) in VALUES.items()))
_WALL_MS: Final = 1_700_000_000_000


def run() -> list[Entry]:
    """Measure, and give three entries."""
    measured = {rows: _measured(rows) for rows in ROWS}
    small, large = (measured[rows] for rows in ROWS)
    return entries(small, large, lake_upsert.measured(ROWS[0], UPSERTED))


def entries(
    small: dict[str, float], large: dict[str, float], upsert: dict[str, float]
) -> list[Entry]:
    """Return what was measured of the two tables as entries, and of an upsert beside them."""
    detail = (
        f"{DELTAS:,} deltas into {ROWS[1]:,} rows: cold {large['cold_cpu_s']:.0f} s of a core"
        f" ({large['cold_s']:.0f} s on 2), warm {large['warm_cpu_s']:.0f} ({large['warm_s']:.0f});"
        f" into {ROWS[0]:,}: {small['cold_cpu_s']:.0f} and {small['warm_cpu_s']:.0f}. A plain MERGE"
        f" of typed rows into the latter, warm: {small['plain_cpu_s']:.0f};"
        f" PyIceberg's upsert of {UPSERTED:,} whole rows into {ROWS[0]:,}:"
        f" {upsert['cpu_s']:.1f} s of a core"
    )
    growth = large["warm_cpu_s"] / small["warm_cpu_s"]
    warm, cold = (DELTAS / large[f"{kind}_cpu_s"] for kind in ("warm", "cold"))
    return [
        at_least("lake_merge_deltas_per_s_core", warm, "1/s", WARM_TARGET, detail),
        at_least("lake_merge_cold_deltas_per_s_core", cold, "1/s", COLD_TARGET, detail),
        at_most("lake_merge_10m_over_1m", growth, "ratio", GROWTH_TARGET, detail),
    ]


def _measured(rows: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="lakesync-spark-") as folder:
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.lake_merge", str(rows), folder],
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode:
        raise RuntimeError(done.stderr.strip()[-300:])
    measured: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return measured


def main(rows: int, folder: Path) -> None:
    """Measure a table of a size, in this fresh process."""
    spark = spark_session(folder)
    from lakesync.materialise.work_queue import Lease  # noqa: PLC0415
    from lakesync_spark.common.session import apply_settings  # noqa: PLC0415
    from lakesync_spark.iceberg.workbench import Workbench  # noqa: PLC0415

    apply_settings(spark)
    store: Any = FileStore(folder)
    lease = Lease.acquire(store, 0, "benchmark")
    assert lease
    figures: dict[str, float] = {}
    with lease:
        bench = Workbench(spark, store, lease, STACK)
        make_table(bench, lake_name(), rows)
        for number in range(MERGES):
            stage_batch(spark, folder, rows, number)
        for number in range(MERGES):
            kind = "cold" if number == 0 else "warm"
            wall, cpu = _timed(spark, partial(_merge, bench, folder, number))
            figures |= {f"{kind}_s": wall, f"{kind}_cpu_s": cpu}
        if rows == ROWS[0]:
            _make_plain(spark, rows)
            for number in range(MERGES):
                _, cpu = _timed(spark, partial(_merge_plain, spark, folder, number))
                figures["plain_cpu_s"] = cpu
    print(json.dumps(figures))
    spark.stop()


def _timed(spark: SparkSession, work: Callable[[], None]) -> tuple[float, float]:
    began, used = time.perf_counter(), cpu_s(spark)["all"]
    work()
    return time.perf_counter() - began, cpu_s(spark)["all"] - used


def lake_name(table: str = TABLE) -> TableName:
    """Name a table of the benchmark's gateway."""
    from lakesync_spark.iceberg.tables import TableName  # noqa: PLC0415

    return TableName("lake", "ls", GATEWAY, table, table)


def _ids(number: str) -> str:
    return f"substr(md5(CAST({number} AS STRING)), 1, 20) AS _id"


def _typed(n: str) -> list[str]:
    return [f"{value.format(n=n)} AS {name}" for name, (_, value) in VALUES.items()]


def make_table(
    bench: Workbench, name: TableName, rows: int, *, partition: tuple[str, ...] = ()
) -> None:
    """Write a state table of rows that were inserted once, with a mark."""
    from pyspark.sql import functions as sf  # noqa: PLC0415

    from lakesync.core.schema import PartitionField  # noqa: PLC0415
    from lakesync.materialise.lake_schema import (  # noqa: PLC0415
        STATE_TABLE,
        LakeColumn,
        LayoutField,
        TableLayout,
    )
    from lakesync_spark.common.queries import asked  # noqa: PLC0415
    from lakesync_spark.iceberg.layout import keep_layout  # noqa: PLC0415
    from lakesync_spark.iceberg.state import AT, KEPT, closed  # noqa: PLC0415
    from lakesync_spark.iceberg.tables import create_table, evolve_table  # noqa: PLC0415
    from lakesync_spark.iceberg.writing import overwrite  # noqa: PLC0415

    columns = [LakeColumn(name, kind, name) for name, (kind, _) in VALUES.items()]
    table = create_table(bench.spark, name, STATE_TABLE, columns, STACK)
    evolve_table(bench.spark, table, columns, (), {})
    fields = tuple(
        LayoutField(one, PartitionField(one).transform_of(VALUES[one][0]), 0) for one in partition
    )
    keep_layout(bench.spark, table, TableLayout(fields))
    hlc = f"({_WALL_MS} + id) * 65536"
    at = f"named_struct('hlc', {hlc}, 'client_id', concat('c', id % 7))"
    made = bench.spark.range(rows).selectExpr(
        _ids("id"),
        *_typed("id"),
        "0L AS _commit",
        f"{bench.now} AS _synced_at",
        f"{hlc} AS _alive",
        "0L AS _deleted",
        *(f"{at} AS {AT}{name}" for name in VALUES),
        *(f"CAST(NULL AS STRING) AS {KEPT}{name}" for name in VALUES),
    )
    states = asked(made, lambda view: closed(view, columns))
    overwrite(states, table, sf.lit(True), bench.properties(0, "made"))


def _make_plain(spark: SparkSession, rows: int) -> None:
    """Write a table of the same rows without stamps."""
    spark.range(rows).selectExpr(_ids("id"), *_typed("id")).writeTo("lake.ls_bench.plain").using(
        "iceberg"
    ).tableProperty("format-version", "2").tableProperty(
        "write.merge.mode", "merge-on-read"
    ).create()


def _numbers(rows: int, number: int, deltas: int) -> tuple[str, str, str]:
    """Return for a delta its row's number, its kind, and a number that its values come of."""
    kind = "id % 3"
    there = f"pmod(xxhash64(id, {number}), {rows})"
    row = f"if({kind} = 0, {rows} + {number * deltas} + id, {there})"
    return row, kind, f"(id * 31 + {number + 1} * 7)"


def _deltas(spark: SparkSession, rows: int, number: int, deltas: int, objects: int) -> DataFrame:
    """Return a batch as text, as the flush writes it: updates carry two columns."""
    row, kind, value = _numbers(rows, number, deltas)
    texts = {name: f"to_json(struct({v.format(n=value)} AS v))" for name, (_, v) in VALUES.items()}
    cut = {name: f"substr({text}, 6, length({text}) - 6)" for name, text in texts.items()}
    placed = VALUES["placed"][1].format(n=value)
    cut["placed"] = f"concat(char(34), replace(CAST({placed} AS STRING), ' ', 'T'), 'Z', char(34))"
    cut["amount"] = f"regexp_replace({cut['amount']}, '[.]0$', '')"
    carried = {
        name: f"{kind} = 0" + (f" OR {kind} = 1" if name in {"amount", "paid"} else "")
        for name in VALUES
    }
    first = _WALL_MS + 100_000_000 * (number + 1)
    return spark.range(0, deltas, 1, objects).selectExpr(
        f"({first} + id) * 65536 AS _commit",
        "0 AS _ordinal",
        f"CASE {kind} WHEN 0 THEN 'INSERT' WHEN 1 THEN 'UPDATE' ELSE 'DELETE' END AS _op",
        _ids(row).replace(" AS _id", " AS _row_id"),
        f"concat('d', {number}) AS _client_id",
        f"({first} + id) * 65536 AS _hlc",
        "sha2(CAST(id AS STRING), 256) AS _delta_id",
        *(f"if({carried[name]}, {text}, NULL) AS {name}" for name, text in cut.items()),
    )


def stage_batch(
    spark: SparkSession,
    folder: Path,
    rows: int,
    number: int,
    *,
    deltas: int = DELTAS,
    objects: int = OBJECTS,
) -> None:
    """Write a batch's objects and claims."""
    scratch = folder / f"batch-{number}"
    _deltas(spark, rows, number, deltas, objects).write.option("compression", "zstd").parquet(
        f"file://{scratch}"
    )
    files = sorted(scratch.glob("*.parquet"))
    first = _WALL_MS + 100_000_000 * (number + 1)
    last = stamp(_WALL_MS + 100_000_000 * number + deltas - 1) if number else 0
    for place, file in enumerate(files):
        end = stamp(first + (place + 1) * deltas // len(files) - 1)
        batch = Batch(GATEWAY, TABLE, last, end, (), {name: name for name in VALUES})
        path = folder / batch.object_key
        path.parent.mkdir(parents=True, exist_ok=True)
        file.rename(path)
        claim = json.loads(batch.claim(SCHEMA, 1)) | {"deltas": deltas // len(files)}
        FileStore(folder).put(f"merge-{number}/{batch.claim_key}", json.dumps(claim).encode())
        last = end


def _batches(folder: Path, number: int) -> Iterator[Any]:
    from lakesync.core.deliveries import parse_claim  # noqa: PLC0415

    store = FileStore(folder)
    for key in store.keys(f"merge-{number}"):
        stored = store.read(key)
        assert stored
        yield parse_claim(key.partition("/")[2], stored.body)


def _merge(bench: Workbench, folder: Path, number: int) -> None:
    from lakesync.materialise.lake_schema import STATE_TABLE  # noqa: PLC0415
    from lakesync.materialise.work_queue import next_chain  # noqa: PLC0415
    from lakesync_spark.iceberg.apply import prepare  # noqa: PLC0415
    from lakesync_spark.iceberg.state_merge import merge_state  # noqa: PLC0415

    batches = sorted(_batches(folder, number), key=lambda batch: batch.last)
    target = prepare(bench, lake_name(), STATE_TABLE, batches)
    chain = next_chain(batches, target.batch_mark.commit)
    assert chain.last == batches[-1].last
    merge_state(bench, target, chain)


def _merge_plain(spark: SparkSession, folder: Path, number: int) -> None:
    from lakesync_spark.iceberg.json_text import typed  # noqa: PLC0415

    objects = [f"file://{folder}/{batch.object_key}" for batch in _batches(folder, number)]
    values = [f"{typed(name, kind)} AS {name}" for name, (kind, _) in VALUES.items()]
    # One delta for each row, as MERGE demands: the last.
    latest = spark.read.parquet(*objects).selectExpr(
        "*", "row_number() OVER (PARTITION BY _row_id ORDER BY _hlc DESC) AS _rank"
    )
    latest.where("_rank = 1").selectExpr("_row_id", "_op", *values).createOrReplaceTempView("d")
    names = ", ".join(VALUES)
    given = ", ".join(f"d.{name}" for name in VALUES)
    spark.sql(
        "MERGE INTO lake.ls_bench.plain t USING d ON t._id = d._row_id"  # noqa: S608
        " WHEN MATCHED AND d._op = 'DELETE' THEN DELETE WHEN MATCHED THEN UPDATE SET"
        f" {', '.join(f't.{n} = coalesce(d.{n}, t.{n})' for n in VALUES)}"
        " WHEN NOT MATCHED AND d._op <> 'DELETE' THEN"
        f" INSERT (_id, {names}) VALUES (d._row_id, {given})"
    )


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
