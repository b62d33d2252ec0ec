"""A table of many gateways: a view over a table of each, against one table partitioned by gateway.

Both are Iceberg tables in a folder, in a catalogue of SQLite. Each file that is read or written
waits for what S3 takes, and each call of the catalogue for what Glue takes: a figure is that of the
layout, not of this machine's disk. Read is as ``lakesync query --shared`` reads, with PyIceberg and
DuckDB; the view itself is asked in Spark, whose plan grows with its branches as Athena's does.
Written is as the function of small batches writes: a gateway's file is replaced, in one commit.
Decided by these figures: ``docs/adr/0033-shared-tables.md``.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import chain, cycle
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import duckdb
import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO
from pyiceberg.partitioning import (
    UNPARTITIONED_PARTITION_SPEC,
    PartitionField,
    PartitionSpec,
)
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import BooleanType, LongType, NestedField, StringType, TimestampType

from benchmarks.entries import at_least, at_most, sized
from lakesync.analysis.shared_lake import LOOKS
from lakesync.cli.cost.counts import S3_MS
from lakesync.errors import Conflict
from lakesync.materialise.iceberg_table import IcebergTable, data_files
from lakesync.materialise.lake_schema import COMMIT, LakeColumn
from lakesync.materialise.sharing import GATEWAY_COLUMN, Member, Share, shared_views

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from pyiceberg.manifest import DataFile
    from pyiceberg.table import FileScanTask, Table

    from benchmarks.entries import Entry
    from lakesync.materialise.iceberg_table import Part

MEASURES: Final = (
    "layers/lakesync/python/lakesync/analysis/shared_lake.py",
    "layers/lakesync/python/lakesync/materialise/iceberg_table.py",
    "layers/lakesync/python/lakesync/materialise/iceberg_table.py",
    "layers/lakesync/python/lakesync/materialise/iceberg_table.py",
    "layers/lakesync/python/lakesync/materialise/sharing.py",
)
# With 480, PyIceberg at times refuses a gathered write: "Missing required files to delete".
SIZES: Final = sized((10, 100), (3,))
"""Gateways."""
VIEW_MAX: Final = 480
"""Gateways of ten columns for which a view has room."""
PLANNED: Final = sized((100,), ())
"""Gateways of which Spark is asked; to start it would take a quick run a minute."""
TRIES: Final = sized(3, 1)
ROWS: Final = sized(100, 10)
"""Of each gateway."""
WRITERS: Final = sized(8, 2)
"""Functions that bring batches in at once."""
WRITE_S: Final = sized(10.0, 0.3)
COLUMNS: Final = 10
CATALOGUE_MS: Final = 40.0
"""GetTable or UpdateTable of Glue; an assumption, as `S3_MS` is."""
DATABASE: Final = "ls"
ALL: Final = "shared"
ONE_TARGET: Final = 1.25
ALL_TARGET: Final = 30.0
PLAN_TARGET: Final = 30.0
WRITES_TARGET: Final = 2.0
_QUESTION: Final = f"select {GATEWAY_COLUMN}, count(*), sum(c0) from {ALL} group by 1"  # noqa: S608 - our own words


class Waits:
    """What is read, written and asked, and how long each takes."""

    def __init__(self) -> None:
        self._waiting = False
        self.requests = 0
        self._lock = Lock()

    def request(self, ms: float) -> None:
        """Be a request."""
        with self._lock:
            self.requests += 1
        if self._waiting:
            time.sleep(ms / 1_000)

    @contextmanager
    def far_away(self) -> Iterator[None]:
        """Let requests take their time."""
        self._waiting = True
        yield
        self._waiting = False


WAITS: Final = Waits()


class DistantFileIO(PyArrowFileIO):
    """PyIceberg's files, as far away as S3's."""

    def new_input(self, location: str) -> PyArrowFile:
        """Return a file to read: one request."""
        WAITS.request(S3_MS)
        return super().new_input(location)

    def new_output(self, location: str) -> PyArrowFile:
        """Return a file to write: one request."""
        WAITS.request(S3_MS)
        return super().new_output(location)


class DistantCatalogue(SqlCatalog):
    """A catalogue as far away as Glue's."""

    def load_table(self, identifier: Any) -> Table:
        """Read a table."""
        WAITS.request(CATALOGUE_MS)
        return super().load_table(identifier)

    def commit_table(self, *given: Any) -> Any:
        """Change a table, if it has not changed."""
        WAITS.request(CATALOGUE_MS)
        return super().commit_table(*given)


class Lake:
    """Tables of so many gateways, in one layout."""

    def __init__(self, folder: Path, gateways: int, *, is_one: bool) -> None:
        self.folder = folder
        self.gateways = [f"g{number:05}" for number in range(gateways)]
        self.is_one = is_one
        is_new = not folder.exists()
        folder.mkdir(exist_ok=True)
        self.catalogue = DistantCatalogue(
            "lake",
            uri=f"sqlite:///{folder}/catalogue.db",
            warehouse=f"file://{folder}",
            **{"py-io-impl": f"{__name__}.{DistantFileIO.__name__}"},
        )
        if is_new:
            self.catalogue.create_namespace(DATABASE)
            for name in [ALL] if is_one else self.gateways:
                self._make(name)

    def _make(self, name: str) -> None:
        columns = [NestedField(n, f"c{n - 8}", LongType()) for n in range(8, 8 + COLUMNS)]
        schema = Schema(
            NestedField(1, "_id", StringType()), NestedField(2, "_updated_at", TimestampType()),
            NestedField(3, "_commit", LongType()), NestedField(4, "_synced_at", TimestampType()),
            NestedField(5, "_is_deleted", BooleanType()), NestedField(6, "_hlc", LongType()),
            NestedField(7, "_client_id", StringType()), *columns,
            *([NestedField(99, GATEWAY_COLUMN, StringType())] if self.is_one else []),
        )  # fmt: skip
        by_gateway = PartitionSpec(PartitionField(99, 1_000, IdentityTransform(), GATEWAY_COLUMN))
        spec = by_gateway if self.is_one else UNPARTITIONED_PARTITION_SPEC
        self.catalogue.create_table((DATABASE, name), schema, partition_spec=spec)
        own = self.gateways if self.is_one else [name]
        table = IcebergTable(self.load(name))
        table.commit(self.parts(table, own, 0), [], {COMMIT: "1"})

    def load(self, gateway: str = "") -> Table:
        """Return the table that has a gateway's rows."""
        return self.catalogue.load_table((DATABASE, ALL if self.is_one else gateway))

    def parts(self, table: IcebergTable, gateways: Iterable[str], number: int) -> list[Part]:
        """Return rows of some gateways."""
        rows = [
            {"_id": f"row{row}", "_commit": 1, "_is_deleted": False, GATEWAY_COLUMN: gateway}
            | {f"c{n}": number + row * n for n in range(COLUMNS)}
            for gateway in gateways
            for row in range(ROWS)
        ]
        return table.parts(table.rows(rows))

    # --- reading

    def read(self, gateway: str, columns: tuple[str, ...] = ("*",)) -> pa.Table:
        """Return a gateway's rows."""
        table = self.load(gateway)
        if not self.is_one:
            return table.scan(selected_fields=columns).to_arrow()
        return table.scan(row_filter=_only(gateway), selected_fields=columns).to_arrow()

    def read_all(self) -> pa.Table:
        """Return what a count over all gateways needs."""
        if self.is_one:
            return self.load().scan(selected_fields=(GATEWAY_COLUMN, "c0")).to_arrow()

        def rows(gateway: str) -> pa.Table:
            part = self.read(gateway, ("c0",))
            return part.append_column(GATEWAY_COLUMN, [[gateway] * part.num_rows])

        with ThreadPoolExecutor(LOOKS) as looks:
            return pa.concat_tables(looks.map(rows, self.gateways))

    # --- writing

    def written(self, gateways: Sequence[str], number: int) -> int:
        """Replace the file of each of some gateways, in one commit; returns how often it was tried.

        The rows are read and written once. Whoever loses the race to the table's next snapshot
        reads the table again and commits the same files: its gateways are leased, so nobody else
        replaces these.
        """
        table, tries = self.load(gateways[0]), 1
        replaced = self._files(table, gateways)
        with ThreadPoolExecutor(WRITERS) as looks:
            list(looks.map(IcebergTable(table).read, replaced))
        parts = self.parts(IcebergTable(table), gateways, number)
        added = list(data_files(table.metadata, parts, table.io))
        while not _committed(table, added, [task.file for task in replaced]):
            table, tries = self.load(gateways[0]), tries + 1
        return tries

    def _files(self, table: Table, gateways: Sequence[str]) -> list[FileScanTask]:
        if not self.is_one or len(gateways) > 1:
            return list(table.scan().plan_files())
        return list(table.scan(row_filter=_only(gateways[0])).plan_files())


def _only(gateway: str) -> str:
    return f"{GATEWAY_COLUMN} = '{gateway}'"


def _committed(table: Table, added: Iterable[DataFile], replaced: Iterable[DataFile]) -> bool:
    """Commit files; returns False if another was first."""
    try:
        IcebergTable(table).commit_files(added, replaced, {COMMIT: "2"})
    except Conflict:
        return False
    return True


class Rate(NamedTuple):
    """How fast batches come in."""

    a_minute: float
    """Gateways' batches."""
    tries: float
    """Of each commit."""
    requests: float
    """Of each batch, of S3 and of the catalogue."""

    def __str__(self) -> str:
        return f"{self.a_minute:,.0f} a minute ({self.requests:.0f} requests each)"


class Read(NamedTuple):
    """How long questions take, and with how many requests."""

    one_s: float
    all_s: float
    requests: int
    """Of the one about all gateways."""


def read_lake(lake: Lake) -> Read:
    """Ask for a gateway's rows, and for a count of all gateways'."""
    one_s = min(_timed(lambda: lake.read(lake.gateways[-1])) for _ in range(TRIES))
    before = WAITS.requests
    all_s = _timed(lambda: _counted(lake.read_all()))
    return Read(one_s, all_s, WAITS.requests - before)


def _counted(shared: pa.Table) -> None:
    with duckdb.connect() as connection:
        connection.register(ALL, shared)
        rows = connection.execute(_QUESTION).fetchall()
    if any(count != ROWS for _, count, _ in rows):
        raise RuntimeError("rows are missing")


def _timed(work: Callable[[], object]) -> float:
    begun = time.monotonic()
    work()
    return time.monotonic() - begun


def rate_alone(lake: Lake) -> Rate:
    """Let writers commit, each the batches of gateways of its own, one after another."""
    turns = [lake.gateways[place::WRITERS] for place in range(WRITERS)]
    begun, before = time.monotonic(), WAITS.requests

    def write(own: Sequence[str]) -> list[int]:
        tries = []
        for number, gateway in enumerate(cycle(own), 1):
            tries.append(lake.written([gateway], number))
            if time.monotonic() - begun > WRITE_S:
                break
        return tries

    with ThreadPoolExecutor(WRITERS) as writers:
        tries = list(chain.from_iterable(writers.map(write, filter(None, turns))))
    return _rate(len(tries), sum(tries) / len(tries), begun, before)


def rate_gathered(lake: Lake) -> Rate:
    """Let one writer commit the batches of all gateways at once."""
    begun, before = time.monotonic(), WAITS.requests
    tries = lake.written(lake.gateways, 1)
    return _rate(len(lake.gateways), tries, begun, before)


def _rate(batches: int, tries: float, begun: float, before: int) -> Rate:
    a_minute = 60 * batches / (time.monotonic() - begun)
    return Rate(a_minute, tries, (WAITS.requests - before) / batches)


def measured(folder: Path, gateways: int, *, is_one: bool) -> tuple[Read, Rate, Rate | None]:
    """Read a lake and write to it: batch by batch, and one table's batches all at once too."""
    lake = Lake(folder / f"{gateways}-{is_one}", gateways, is_one=is_one)
    with WAITS.far_away():
        read, alone = read_lake(lake), rate_alone(lake)
        gathered = rate_gathered(lake) if is_one else None
    if is_one and len(IcebergTable(lake.load()).files()) != gateways:
        raise RuntimeError("a gateway has not exactly one file")
    return read, alone, gathered


# --- the view in Spark, in a process of its own


def planned(folder: Path, gateways: int) -> dict[str, float]:
    """Ask Spark about one gateway and about all, by the view and in one table."""
    with tempfile.TemporaryDirectory(prefix="lakesync-spark-") as scratch:
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.shared_tables", str(folder), scratch, str(gateways)],
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode:
        raise RuntimeError(done.stderr.strip()[-300:])
    seconds: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return seconds


def main(folder: Path, scratch: Path, gateways: int) -> None:
    """Measure in this fresh process."""
    from benchmarks.spark_merge import spark_session  # noqa: PLC0415

    spark = spark_session(scratch)
    seconds: dict[str, float] = {}
    for is_one in (True, False):
        lake = Lake(folder / f"{gateways}-{is_one}", gateways, is_one=is_one)
        for name in [ALL] if is_one else lake.gateways:
            place = lake.load(name).metadata_location
            spark.read.format("iceberg").load(place).createOrReplaceTempView(name)
        if not is_one:
            spark.sql(_view_of(lake)).createOrReplaceTempView(ALL)
        layout = "table" if is_one else "view"
        questions = {
            "one": f"select sum(c0) from {ALL} where {_only(lake.gateways[-1])}",  # noqa: S608 - our own words
            "all": _QUESTION,
        }
        for what, question in questions.items():
            for turn in range(2 if what == "one" else 1):  # the first compiles
                begun = time.monotonic()
                frame: Any = spark.sql(question)
                frame._jdf.queryExecution().executedPlan()  # noqa: SLF001 - the only way to it
                seconds[f"{layout} {what} plan"] = time.monotonic() - begun
                frame.collect()
                seconds[f"{layout} {what}"] = time.monotonic() - begun
                del turn
    spark.stop()
    print(json.dumps(seconds))


def _view_of(lake: Lake) -> str:
    columns = tuple(LakeColumn(f"c{n}", "integer", f"c{n}") for n in range(COLUMNS))
    members = {each: Member("", each, "state", columns) for each in lake.gateways}
    view = next(iter(shared_views(Share(ALL, ALL, members=members), "spark")))
    return view.select


def run() -> list[Entry]:
    """Measure, and give the figures."""
    one, own = {}, {}
    with tempfile.TemporaryDirectory(prefix="lakesync-tables-") as scratch:
        folder = Path(scratch)
        for gateways in SIZES:
            one[gateways] = measured(folder, gateways, is_one=True)
            own[gateways] = measured(folder, gateways, is_one=False)
        plans = {size: planned(folder, size) for size in PLANNED}
    return [*_reads(one, own), *_plans(plans), _writes(one, own)]


Measured = dict[int, tuple[Read, Rate, "Rate | None"]]


def _reads(one: Measured, own: Measured) -> list[Entry]:
    most = max(size for size in own if size <= VIEW_MAX)
    of_one = ", ".join(
        f"{size:,}: {own[size][0].one_s:.2f} s over {one[size][0].one_s:.2f} s" for size in own
    )
    of_all = ", ".join(
        f"{size:,}: {own[size][0].all_s:.1f} s and {own[size][0].requests:,} requests over "
        f"{one[size][0].all_s:.1f} s and {one[size][0].requests:,}"
        for size in own
    )
    how = (
        f"by PyIceberg and DuckDB, {LOOKS} gateways at once, each request {S3_MS:.0f} ms; a table "
        "of each gateway over one table partitioned by gateway"
    )
    ratio = own[most][0].one_s / one[most][0].one_s
    return [
        at_most("shared_one_gateway_over_table", ratio, "ratio", ONE_TARGET,
                f"the rows of one gateway of so many, {how}: {of_one}"),
        at_most("shared_all_gateways_s", own[most][0].all_s, "s", ALL_TARGET,
                f"a count over all of {most}, {how}: {of_all}"),
    ]  # fmt: skip


def _plans(plans: dict[int, dict[str, float]]) -> list[Entry]:
    if not plans:
        return []
    each = "; ".join(
        f"{size} gateways: one {took['view one']:.1f} s ({took['view one plan']:.1f} of them to "
        f"plan), all {took['view all']:.1f} s, over {took['table one']:.1f} s and "
        f"{took['table all']:.1f} s in one table"
        for size, took in plans.items()
    )
    return [
        at_most("shared_view_spark_plan_s", plans[max(plans)]["view one plan"], "s", PLAN_TARGET,
                f"to plan the question about one gateway, a view of {COLUMNS} columns, on this "
                f"machine: {each}"),
    ]  # fmt: skip


def _writes(one: Measured, own: Measured) -> Entry:
    most = max(size for size in own if size <= VIEW_MAX)
    each = "; ".join(
        f"{size:,} gateways: {own[size][1]} in tables of their own, {one[size][1]} in one table "
        f"({one[size][1].tries:.1f} tries each), {one[size][2]} there by one writer that gathers "
        f"the batches of all in one commit"
        for size in own
    )
    return at_least(
        "shared_writes_over_table", own[most][1].a_minute / one[most][1].a_minute, "ratio",
        WRITES_TARGET, f"batches that {WRITERS} writers bring in, each its gateways': {each}",
    )  # fmt: skip


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
