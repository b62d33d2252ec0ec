"""A lake that stays in order: files after many flushes, scans after compaction, bytes of a query.

Flushes go through the Glue job one by one, as they come every 15 minutes, and maintenance runs
behind them as it does each night. A query is asked as ``lakesync query`` asks it, and counted is
what the process reads, metadata too. Scans are measured by processor time, in turns, and the best
of some rounds counts: a process scans faster the longer it is at it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks.entries import at_most, sized
from benchmarks.lake_merge import GATEWAY, STACK, TABLE, lake_name, make_table, stage_batch
from benchmarks.spark_merge import cpu_s, spark_session
from tests.glue.support.files import FileStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from benchmarks.entries import Entry
    from lakesync_spark.iceberg.workbench import Workbench

MEASURES: Final = (
    "glue_jobs/lakesync_spark/common",
    "glue_jobs/lakesync_spark/iceberg",
    "layers/lakesync/python/lakesync/analysis/lake.py",
    "layers/lakesync/python/lakesync/analysis/lake_queries.py",
    "layers/lakesync/python/lakesync/materialise",
    "layers/lakesync/python/lakesync/maintenance/flush.py",
)
FLUSHES: Final = sized(12, 2)
"""A night's maintenance makes the same one file of any number of them."""
FLUSH_DELTAS: Final = sized(1_000, 100)
ROWS: Final = sized(500_000, 2_000)
PARTITIONED_ROWS: Final = sized(1_000_000, 40_000)
"""From 14 November 2023 on, so that there are rows of the day that is asked for."""
ROUNDS: Final = sized(8, 1)
FILES_TARGET: Final = 10
SCAN_TARGET: Final = 1.2
QUERY_TARGET: Final = 0.02
_DAY_MS: Final = 86_400_000
_PARTITIONED: Final = "orders_by_day"
_QUERY: Final = (
    "select sum(amount) from orders"
    " where placed >= timestamp '2023-12-24' and placed < timestamp '2023-12-25'"
)


def run() -> list[Entry]:
    """Measure, and give three entries."""
    with tempfile.TemporaryDirectory(prefix="lakesync-spark-") as folder:
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.lake_order", folder],
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode:
        raise RuntimeError(done.stderr.strip()[-300:])
    return entries(json.loads(done.stdout.splitlines()[-1]))


def entries(measured: dict[str, float]) -> list[Entry]:
    """Return what was measured as entries."""
    files = measured["data_files"] + measured["delete_files"]
    of_files = (
        f"{FLUSHES} flushes of {FLUSH_DELTAS:,} deltas, each merged alone into {ROWS:,} rows, one"
        f" partition; before maintenance {measured['files_before']:.0f} files, after it"
        f" {measured['data_files']:.0f} of data and {measured['delete_files']:.0f} of deletes."
        f" Maintenance comes each night; until then there are two files for each flush"
    )
    of_scan = (
        f"all columns of {ROWS:,} rows and what the flushes brought, by Spark, best of {ROUNDS}:"
        f" {measured['scan_cpu_s']:.2f} s of a core over {measured['fresh_cpu_s']:.2f} s of the"
        f" same rows written once; {measured['before_cpu_s']:.2f} s before maintenance"
    )
    of_query = (
        f"one day and one column of {PARTITIONED_ROWS:,} rows of a year, partitioned by day:"
        f" {measured['query_bytes'] / 1e6:.2f} MB read, of them the table's own metadata too, over"
        f" {measured['table_bytes'] / 1e6:.1f} MB; PyIceberg and DuckDB, as lakesync query reads"
    )
    scan = measured["scan_cpu_s"] / measured["fresh_cpu_s"]
    query = measured["query_bytes"] / measured["table_bytes"]
    return [
        at_most("lake_files_after_maintenance", files, "files", FILES_TARGET, of_files),
        at_most("lake_scan_after_compaction_over_fresh", scan, "ratio", SCAN_TARGET, of_scan),
        at_most("query_pushdown_bytes", query, "ratio", QUERY_TARGET, of_query),
    ]


def main(folder: Path) -> None:
    """Measure in this fresh process."""
    spark = spark_session(folder)
    from lakesync.materialise.work_queue import Lease  # noqa: PLC0415
    from lakesync_spark.common.session import apply_settings  # noqa: PLC0415
    from lakesync_spark.iceberg.workbench import Workbench  # noqa: PLC0415

    apply_settings(spark)
    store: Any = FileStore(folder)
    lease = Lease.acquire(store, 0, "benchmark")
    assert lease
    with lease:
        bench = Workbench(spark, store, lease, STACK)
        make_table(bench, lake_name(TABLE), ROWS)
        make_table(bench, lake_name(_PARTITIONED), PARTITIONED_ROWS, partition=("placed",))
    figures = _queried(spark, folder)
    _flush(spark, folder)
    rows = lake_name(TABLE).rows
    figures["files_before"] = sum(_files(spark, rows).values())
    [figures["before_cpu_s"]] = _scanned(spark, rows)
    _maintain(spark, folder)
    figures |= _files(spark, rows)
    fresh = _written_once(bench, rows)
    figures["scan_cpu_s"], figures["fresh_cpu_s"] = _scanned(spark, rows, fresh)
    print(json.dumps(figures))
    spark.stop()


def _flush(spark: SparkSession, folder: Path) -> None:
    """Stage and merge, one flush after the other."""
    from lakesync_spark.common.arguments import Arguments  # noqa: PLC0415
    from lakesync_spark.iceberg.run import run as run_job  # noqa: PLC0415

    store: Any = FileStore(folder)
    for number in range(FLUSHES):
        stage_batch(spark, folder, ROWS, number, deltas=FLUSH_DELTAS, objects=1)
        for key in list(store.keys(f"merge-{number}")):
            store.put(key.partition("/")[2], store.read(key).body)
        report = run_job(spark, store, Arguments("b", "ls", "lake", STACK), f"flush-{number}")
        assert not report.problem(), report.problem()


def _maintain(spark: SparkSession, folder: Path) -> None:
    from lakesync_spark.common.arguments import MaintenanceArguments  # noqa: PLC0415
    from lakesync_spark.iceberg.maintenance import maintain  # noqa: PLC0415

    store: Any = FileStore(folder)
    arguments = MaintenanceArguments("b", "ls", "lake", STACK, 7 * _DAY_MS, only="")
    report = maintain(spark, store, arguments, "maintenance")
    assert not report.problem(), report.problem()


def _files(spark: SparkSession, name: str) -> dict[str, float]:
    [counted] = (
        spark.table(f"{name}.files")
        .selectExpr("count_if(content = 0) AS data_files", "count_if(content > 0) AS delete_files")
        .collect()
    )
    return counted.asDict()


def _scanned(spark: SparkSession, *names: str) -> list[float]:
    """Return for each table the CPU seconds of a look at every value of the rows that exist."""
    for name in names:
        spark.catalog.refreshTable(name)
    spent: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(ROUNDS):
        for name in names:
            before = cpu_s(spark)["all"]
            look = spark.table(name).where("NOT _is_deleted")
            look.write.format("noop").mode("overwrite").save()
            spent[name].append(cpu_s(spark)["all"] - before)
    return [min(rounds) for rounds in spent.values()]


def _written_once(bench: Workbench, name: str) -> str:
    """Write the rows of a table into another one of the same kind, at once."""
    from pyspark.sql import functions as sf  # noqa: PLC0415

    from lakesync.materialise.lake_schema import STATE_TABLE  # noqa: PLC0415
    from lakesync_spark.iceberg.tables import create_table, find_table  # noqa: PLC0415
    from lakesync_spark.iceberg.writing import overwrite  # noqa: PLC0415

    table = find_table(bench.spark, name, STACK)
    assert table is not None
    fresh = create_table(bench.spark, lake_name("fresh"), STATE_TABLE, table.columns(), STACK)
    overwrite(bench.spark.table(name), fresh, sf.lit(True), bench.properties(1, "fresh"))
    return fresh.name


def _queried(spark: SparkSession, folder: Path) -> dict[str, float]:
    """Ask for one day and one column; give what was read, and the bytes of the table's files."""
    from pyiceberg.table import StaticTable  # noqa: PLC0415

    from lakesync.analysis.lake import Lake  # noqa: PLC0415
    from lakesync.analysis.lake_queries import run as ask  # noqa: PLC0415

    name = lake_name(_PARTITIONED)
    database = folder / "warehouse" / f"ls_{GATEWAY}" / _PARTITIONED
    metadata = max(database.glob("metadata/v*.json"), key=lambda path: path.stat().st_mtime)

    def asked() -> int:
        lake: Any = Lake.__new__(Lake)
        before = _read_bytes()
        lake.__dict__["_tables"] = {TABLE: StaticTable.from_metadata(str(metadata))}
        answer = ask(lake, _QUERY)
        assert answer.column(0)[0].as_py()
        return _read_bytes() - before

    asked()  # what Python itself reads, it reads now
    [total] = spark.table(f"{name.rows}.files").selectExpr("sum(file_size_in_bytes)").collect()
    return {"query_bytes": asked(), "table_bytes": total[0]}


def _read_bytes() -> int:
    """Return the bytes that this process has read so far, of whatever file."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("rchar")))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
