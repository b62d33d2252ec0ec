"""What a small merge of the Glue job costs: many tables, a hundred deltas each, several at once.

That is the usual one: nearly all of it is planning and compiling, whatever is in it. It is measured
in one JVM that has merged each table once before, as most of a run's tables find it; by processor
time, of which a machine that others use too takes away nothing. Tables of 50 rows are written anew
by each batch, those of 1,000 are merged into. No two tables have a commit in common.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks import spark_merge
from benchmarks.entries import at_most, sized
from benchmarks.spark_merge import cpu_s, spark_session
from lakesync.core.clock import stamp
from lakesync.core.schema import Column, TableSchema
from lakesync.maintenance.flush import Batch
from tests.glue.support.files import FileStore

if TYPE_CHECKING:
    from benchmarks.entries import Entry

MEASURES: Final = spark_merge.MEASURES
FIGURE: Final = "small_merge_cpu_s"
TARGET: Final = 4.0
TABLES: Final = sized(10, 2)
DELTAS: Final = 100
ROWS: Final = sized({FIGURE: 50, "small_merge_into_larger_cpu_s": 1_000}, {FIGURE: 50})
"""Of the tables before the merge that is measured."""
PHASES: Final = ("load", "again", "merge")
_COLUMNS: Final = ("title", "owner", "done", "rank")
_WALL_MS: Final = 1_700_000_000_000


def run() -> list[Entry]:
    """Measure, and give two entries."""
    return [_entry(name, rows) for name, rows in ROWS.items()]


def _entry(name: str, rows: int) -> Entry:
    with tempfile.TemporaryDirectory(prefix="lakesync-spark-") as folder:
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.small_merges", folder, str(rows)],
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode:
        raise RuntimeError(done.stderr.strip()[-300:])
    measured = json.loads(done.stdout.splitlines()[-1])
    detail = (
        f"{TABLES} tables of {DELTAS} deltas each, into {rows:,} rows, the third merge of each; all"
        f" tables in {measured['wall_s']:.1f} s on 2 cores"
    )
    return at_most(name, measured["cpu_s"] / TABLES, "s", TARGET, detail)


def _stage(folder: Path, rows: int) -> None:
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.parquet as pq  # noqa: PLC0415

    schema = [Column(name, "string") for name in _COLUMNS]
    for number in range(TABLES):
        table = f"table{number}"
        last = 0
        for place, phase in enumerate(PHASES):
            deltas = DELTAS if place else max(DELTAS, rows)
            first = _WALL_MS + 10_000_000 * place + number
            commits = [stamp(first + delta) for delta in range(deltas)]
            columns: dict[str, Any] = {
                "_commit": pa.array(commits, pa.int64()),
                "_ordinal": pa.array([0] * deltas, pa.int32()),
                "_op": pa.array(["INSERT" if not place else "UPDATE"] * deltas),
                "_row_id": pa.array([f"row{delta % rows}" for delta in range(deltas)]),
                "_client_id": pa.array(["c1"] * deltas),
                "_hlc": pa.array(commits, pa.int64()),
                "_delta_id": pa.array(
                    [hashlib.sha256(f"{phase}{delta}".encode()).hexdigest()
                     for delta in range(deltas)]
                ),
                **{
                    name: pa.array([f'"{phase} {delta}"' for delta in range(deltas)])
                    for name in _COLUMNS
                },
            }  # fmt: skip
            names = {name: name for name in _COLUMNS}
            batch = Batch("bench", table, last, commits[-1], (), names)
            path = folder / batch.object_key
            path.parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(pa.table(columns), path, compression="zstd")
            claim = batch.claim(TableSchema(table, tuple(schema)), path.stat().st_size)
            body = json.dumps(json.loads(claim) | {"deltas": deltas})
            FileStore(folder).put(f"{phase}/{batch.claim_key}", body.encode())
            last = commits[-1]


def main(folder: Path, rows: int) -> None:
    """Measure in this fresh process."""
    from lakesync_spark.common.arguments import Arguments  # noqa: PLC0415
    from lakesync_spark.common.session import apply_settings  # noqa: PLC0415
    from lakesync_spark.iceberg.run import run as run_job  # noqa: PLC0415

    _stage(folder, rows)
    with tempfile.TemporaryDirectory(prefix="lakesync-spark-") as scratch:
        spark = spark_session(Path(scratch))
        apply_settings(spark)
        store: Any = FileStore(folder)
        wall_s = used_s = 0.0
        for phase in PHASES:
            for key in store.keys(phase):
                store.put(key.partition("/")[2], store.read(key).body)
            began, before = time.perf_counter(), cpu_s(spark)["all"]
            report = run_job(spark, store, Arguments("b", "ls", "lake", "benchmark"), phase)
            assert not report.problem(), report.problem()
            wall_s, used_s = time.perf_counter() - began, cpu_s(spark)["all"] - before
        print(json.dumps({"wall_s": wall_s, "cpu_s": used_s}))
        spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
