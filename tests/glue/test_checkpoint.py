"""Checkpoints out of the lake: the very rows of the gateway, and where its log goes on behind."""

from __future__ import annotations

import functools
import itertools
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.errors import PythonException

from lakesync.adapters.lake.parquet import ParquetEncoder
from lakesync.checkpoint import flushed_of
from lakesync.checkpoint.store import Checkpoints, Tombstones, digest
from lakesync.core.delta import CHANGES, Op, make_delta
from lakesync.errors import AdapterFailed, Conflict
from lakesync.log.read import ReadBarrier
from lakesync.maintenance.checkpoint_upkeep import Builder
from lakesync.maintenance.flush import Flusher
from lakesync.maintenance.horizons import begin_epoch
from lakesync.wire.records import row_runs
from lakesync_spark.common.arguments import Arguments, CheckpointArguments
from lakesync_spark.iceberg.checkpoint import build
from lakesync_spark.iceberg.row_chunks import Destination, write_chunks
from lakesync_spark.iceberg.run import run
from lakesync_spark.iceberg.tables import TableName, find_table, located
from tests.glue.support.files import FileStore
from tests.glue.support.lake import PREFIX, STACK
from tests.glue.support.objects import FolderObjects
from tests.glue.support.spark import CATALOG
from tests.support.builders import TABLE, at_ms, delete, insert, update
from tests.support.checkpoints import Kept, Reader
from tests.support.gateways import GATEWAY
from tests.support.lake import Messages

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from lakesync.checkpoint.store import Manifest
    from lakesync.core.delta import Delta
    from lakesync_spark.iceberg.checkpoint import Built

pytestmark = pytest.mark.spark

_numbers = itertools.count()


class Gateway(Kept):
    """A gateway that is flushed into a lake of its own."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        super().__init__()
        number = next(_numbers)
        self.spark = spark
        self.prefix = f"{PREFIX}c{number}"
        self.stack = STACK
        self.folder = str(folder / f"lake-{number}")
        self.store = FileStore(folder / f"lake-{number}")
        self.lake = FolderObjects(self.folder)
        self.checkpoints = Checkpoints(self.lake)
        self.reader = self.reads(self.checkpoints)

    def name(self, table: str) -> TableName:
        return located(self.spark, CATALOG, self.prefix, GATEWAY, table)

    def flush(self) -> None:
        """Flush all of the log, as the function does."""
        Flusher(self.buffer, self.lake, Messages(), ParquetEncoder(), Messages()).flush(GATEWAY)

    def materialise(self, only: str = "") -> None:
        arguments = Arguments("lake", self.prefix, CATALOG, STACK, only)
        report = run(self.spark, self.store, arguments, "r")  # type: ignore[arg-type]
        assert not report.problem(), report.problem()

    def build_in_spark(self, objects: FolderObjects | None = None) -> Built:
        log = ReadBarrier(self.buffer).raise_heads(GATEWAY)
        flushed = flushed_of(
            log, self.buffer.flush_state(GATEWAY), self.buffer.flushed_tables(GATEWAY)
        )
        arguments = CheckpointArguments(
            "lake", self.prefix, CATALOG, self.stack, flushed, self.chunk_bytes
        )
        folder = objects or self.lake
        opened = functools.partial(FolderObjects, folder.folder, folder.full_behind)
        return build(self.spark, opened, arguments, self.time.wall_clock())

    def runs(self, manifest: Manifest) -> dict[tuple[str, str], bytes]:
        """Return the bytes of each row of a checkpoint in the lake's folder."""
        runs = {
            (table, row.row_id): row.run
            for table, shape in manifest.tables.items()
            for number in range(shape.parts)
            if (place := shape.place(number))
            for row in row_runs(
                self.checkpoints.part(GATEWAY, manifest.id, place), frozenset()
            )
        }  # fmt: skip
        assert len(runs) == sum(shape.rows for shape in manifest.tables.values())
        return runs


@pytest.fixture
def gateway(spark: SparkSession, tmp_path: Path) -> Gateway:
    return Gateway(spark, tmp_path)


@st.composite
def _change(draw: st.DrawFn) -> Delta:
    op = draw(st.sampled_from(CHANGES))
    values = st.sampled_from([None, 1, 0.5, "x", "\u00e9\u4e2d", [1, {"b": 2, "a": 1}]])
    columns = {} if op is Op.DELETE else draw(
        st.dictionaries(st.sampled_from(["p", "q", "dueDate"]), values, max_size=3)
    )  # fmt: skip
    return make_delta(
        op,
        draw(st.sampled_from(["notes", "todos"])),
        draw(st.sampled_from([f"r{place}" for place in range(12)])),
        columns,
        client_id=draw(st.sampled_from(["a", "b", "\u00fc"])),
        hlc=at_ms(draw(st.integers(1, 9))),
    )


FINAL = {
    "table": TABLE,
    "columns": [{"name": name, "type": "json"} for name in ("p", "q", "dueDate")],
    "deleteWins": True,
}


@pytest.mark.law("L13")
@pytest.mark.parametrize("final", [False, True], ids=["updates count", "deletes win"])
@settings(
    max_examples=3, phases=[Phase.generate], suppress_health_check=list(HealthCheck), deadline=None
)
@given(first=st.lists(_change(), min_size=40), second=st.lists(_change(), min_size=20))
def test_checkpoint_from_the_lake_equals_the_row_states_byte_for_byte(
    gateway: Gateway, first: list[Delta], second: list[Delta], *, final: bool
) -> None:
    gateway = Gateway(gateway.spark, gateway.store.folder)
    if final:
        gateway.admin.register_schema(GATEWAY, FINAL)
    for deltas in (first, second):
        gateway.push(*deltas)
        gateway.flush()
        gateway.materialise()
    built = gateway.build_in_spark()
    from_lake = gateway.checkpoints.manifest(GATEWAY, built.checkpoint)
    gateway.time.now_ms += 600_000
    builder = Builder(
        gateway.buffer, gateway.lake, Checkpoints(FolderObjects(gateway.folder + "-none")),
        wall_clock=gateway.time.wall_clock,
    )  # fmt: skip
    from_states = gateway.checkpoints.manifest(GATEWAY, builder.build(GATEWAY).checkpoint)

    assert list(gateway.runs(from_lake).items()) == list(gateway.runs(from_states).items())
    assert gateway.runs(from_lake).keys() == gateway.rows().keys()
    assert {name: shape.tombstones for name, shape in from_lake.tables.items()} == {
        name: shape.tombstones for name, shape in from_states.tables.items()
    }
    assert from_lake.since == gateway.buffer.flush_state(GATEWAY).watermark
    assert built.rows == len(gateway.rows())


@pytest.mark.law("L13")
def test_checkpoint_stamp_is_that_of_the_table_that_lags_most(
    gateway: Gateway,
) -> None:
    gateway.push(insert("r1", a=1), insert("n1", a=1, table="notes"))
    gateway.flush()
    gateway.materialise()
    in_lake = gateway.buffer.flushed_tables(GATEWAY)["notes"]
    gateway.push(update("r1", a=2, at=at_ms(20)), insert("n2", a=1, table="notes", at=at_ms(20)))
    gateway.flush()
    gateway.materialise(only=f"{GATEWAY}/{TABLE}")
    gateway.push(delete("n1", table="notes", at=at_ms(30)), insert("r2", a=3, at=at_ms(30)))
    built = gateway.build_in_spark()

    assert built.since == in_lake < gateway.buffer.flushed_tables(GATEWAY)["notes"]
    assert Reader(gateway).read() == gateway.rows()
    gateway.flush()
    gateway.time.now_ms += 600_000
    gateway.trim(covered=built.since)
    assert Reader(gateway).read() == gateway.rows()


@pytest.mark.law("L13")
def test_checkpoint_is_not_rebuilt_when_the_lake_has_not_changed(gateway: Gateway) -> None:
    gateway.push(insert("r1", a=1))
    gateway.flush()
    gateway.materialise()
    first = gateway.build_in_spark()
    before = gateway.lake.list_objects("")
    gateway.time.now_ms += 1

    assert gateway.build_in_spark() == first._replace(rows=0)
    assert gateway.lake.list_objects("") == before


@pytest.mark.law("L13")
def test_build_that_dies_leaves_no_checkpoint_and_the_next_build_completes(
    gateway: Gateway,
) -> None:
    gateway.push(insert("r1", a=1), insert("n1", a=1, table="notes"))
    gateway.flush()
    gateway.materialise()
    objects = len(gateway.lake.list_objects(""))
    for room in (0, 1, 2):  # before the first chunk, the second, and the manifest
        with pytest.raises((AdapterFailed, PythonException)):
            gateway.build_in_spark(replace(gateway.lake, full_behind=objects + room))
        assert gateway.checkpoints.ids(GATEWAY) == []
    gateway.build_in_spark()

    assert Reader(gateway).read() == gateway.rows()


@pytest.mark.law("L14")
def test_checkpoint_is_not_built_from_tables_of_another_stack(gateway: Gateway) -> None:
    gateway.push(insert("r1", at=at_ms(1), a=1))
    gateway.flush()
    gateway.materialise()
    gateway.stack = "arn:aws:cloudformation:us-east-1:1:stack/two/2"

    with pytest.raises(Conflict, match="belongs to"):
        gateway.build_in_spark()
    assert gateway.checkpoints.ids(GATEWAY) == []


@pytest.mark.law("L13")
def test_checkpoint_chunks_do_not_exceed_their_size_limit(gateway: Gateway) -> None:
    gateway.push(*(insert(f"r{place}", at=at_ms(place), a="x" * 50) for place in range(40)))
    gateway.flush()
    gateway.materialise()
    table = find_table(gateway.spark, gateway.name(TABLE).rows, STACK)
    assert table is not None
    opened = functools.partial(FolderObjects, gateway.folder)
    to = Destination(opened, GATEWAY, "c", TABLE, chunk_bytes=2_000)
    written = list(write_chunks(gateway.spark.table(table.name), table.columns(), to))

    assert (
        max(each.chunk.size for each in written) <= 2_000 < sum(each.chunk.size for each in written)
    )
    assert sum(part.rows for each in written for part in each.chunk.parts) == 40
    assert len({each.number for each in written}) == len(written)
    for each in written:
        assert digest(gateway.lake.get_object(each.chunk.key)) == each.chunk.sha256


@pytest.mark.law("L13")
def test_checkpoint_is_not_built_from_a_lake_older_than_a_restore(gateway: Gateway) -> None:
    gateway.push(insert("r1", a=1))
    gateway.flush()
    gateway.materialise()
    begin_epoch(gateway.buffer, GATEWAY, wall_clock=gateway.time.wall_clock)

    with pytest.raises(Conflict, match="was restored"):
        gateway.build_in_spark()


@pytest.mark.law("L13")
def test_checkpoint_is_refused_if_the_log_begins_after_the_lake_ends(gateway: Gateway) -> None:
    gateway.push(insert("r1", a=1))
    gateway.flush()
    with pytest.raises(Conflict, match="up to 0"):
        gateway.build_in_spark()
    gateway.materialise()
    gateway.push(update("r1", a=2, at=at_ms(20)))
    gateway.flush()
    gateway.time.now_ms += 600_000
    gateway.trim()

    with pytest.raises(Conflict, match="its log begins at"):
        gateway.build_in_spark()


@pytest.mark.law("L13")
@pytest.mark.parametrize("final", [False, True], ids=["updates count", "deletes win"])
def test_checkpoint_omits_tombstones_below_the_horizon(gateway: Gateway, *, final: bool) -> None:
    """An update behind a delete is none, seen or not: the buffer keeps it too."""
    if final:
        columns = [{"name": "a", "type": "json"}]
        gateway.admin.register_schema(GATEWAY, FINAL | {"columns": columns})
    gateway.push(insert("r1", at=at_ms(1), a=1), insert("r2", at=at_ms(1), a=1))
    gateway.push(delete("r1", at=at_ms(2)), delete("r2", at=at_ms(4)))
    gateway.push(delete("r3", at=at_ms(2)), insert("r3", at=at_ms(3), a=1))
    gateway.push(delete("r4", at=at_ms(2)), update("r4", at=at_ms(3), a=1))
    gateway.flush()
    gateway.materialise()
    stored = gateway.buffer._gateways[GATEWAY]
    stored.config = replace(stored.config, tombstone_horizons={TABLE: at_ms(3)})
    built = gateway.build_in_spark()
    manifest = gateway.checkpoints.manifest(GATEWAY, built.checkpoint)

    assert {row_id for _, row_id in gateway.runs(manifest)} == {"r2", "r3", "r4"}
    assert manifest.tables[TABLE].tombstones == Tombstones(1, at_ms(4))
