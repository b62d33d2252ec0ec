"""Maintenance of lake tables: few files, few snapshots, the same rows, the mark where it was."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from lakesync.core.names import flow_database
from lakesync.maintenance.lake_plan import Step
from lakesync.materialise.lake_schema import BatchMark
from lakesync.materialise.work_queue import Lease, group_of
from lakesync_spark.common.arguments import MaintenanceArguments
from lakesync_spark.iceberg.maintenance import maintain, table_names
from lakesync_spark.iceberg.maintenance_report import MaintenanceOutcome
from lakesync_spark.iceberg.table_files import TableFiles
from tests.glue.support.lake import PREFIX
from tests.support.builders import delete, insert, update

if TYPE_CHECKING:
    from lakesync.maintenance.lake_plan import TableFigures
    from lakesync_spark.iceberg.maintenance_report import MaintenanceReport, TableReport
    from tests.glue.support.lake import Lake

pytestmark = pytest.mark.spark

FLUSHES = 2
WEEK_MS = 7 * 86_400_000


@pytest.fixture(autouse=True)
def two_files_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run of the job takes seconds: few of them have to do."""
    for module in ("lakesync.maintenance.lake_plan", "lakesync_spark.iceberg.table_files"):
        monkeypatch.setattr(f"{module}.SMALL_FILES_MAX", 1)


def maintained(lake: Lake, *, keep_ms: int = WEEK_MS) -> MaintenanceReport:
    arguments = MaintenanceArguments(
        "lake", PREFIX, lake.catalog, lake.stack, keep_ms, only=lake.gateway
    )
    # The store's clock is moved by hand, and snapshots are of today.
    lake.store.now = lake.store.now.fromtimestamp(time.time(), lake.store.now.tzinfo)
    return maintain(lake.spark, lake.store, arguments, "maintenance")  # type: ignore[arg-type]


def flushed(lake: Lake, turns: int = FLUSHES) -> None:
    """Insert rows, and take one of the first away in every turn after that."""
    for turn in range(turns):
        rows = [insert(f"r{turn}-{n}", at=10 * turn + 5, n=turn) for n in range(2 if turn else 12)]
        gone = [delete(f"r0-{turn + 3}", at=10 * turn + 6)] if turn else []
        lake.put([*rows, *gone])
        assert lake.run().problem() == ""


def figures(lake: Lake, table: str) -> TableFigures:
    return TableFiles(lake.spark, table).figures(0)


def report_of(report: MaintenanceReport, table: str) -> TableReport:
    return next(one for one in report.tables if one.name == table)


@pytest.mark.law("L17")
def test_maintenance_excludes_tables_of_flows(lake: Lake) -> None:
    lake.put([insert("r1", at=5, n=1)])
    lake.run()
    of_flow = f"`{lake.catalog}`.`{flow_database(PREFIX, f'{lake.gateway}/in')}`"
    lake.spark.sql(f"CREATE NAMESPACE {of_flow}")
    lake.spark.sql(f"CREATE TABLE {of_flow}.`todos` (_id string) USING iceberg")
    arguments = MaintenanceArguments("lake", PREFIX, lake.catalog, lake.stack, WEEK_MS)
    names = set(table_names(lake.spark, arguments))

    assert {lake.name.rows, lake.name.changes} <= names
    assert f"{of_flow}.`todos`" not in names


@pytest.mark.law("L16", "L17")
def test_maintenance_compacts_small_files_and_changes_no_rows(lake: Lake) -> None:
    flushed(lake)
    rows, changes, marks = lake.rows(), lake.changes(), lake.marks()
    assert figures(lake, lake.name.changes).small_files == FLUSHES

    report = maintained(lake)

    assert report.problem() == ""
    for table in (lake.name.rows, lake.name.changes):
        after = report_of(report, table).after
        assert after is not None
        assert after.files == 1
        assert after.delete_files == 0
        assert after.dead_rows == 0
        assert after.snapshots > FLUSHES, "whoever reads an old snapshot goes on"
    assert lake.rows() == rows
    assert lake.changes() == changes
    assert {kind: mark.commit for kind, mark in lake.marks().items()} == {
        kind: mark.commit for kind, mark in marks.items()
    }
    assert sum(report.sums()[name] for name in ("files", "left")) == 2

    again = maintained(lake)
    assert [one.steps for one in again.tables] == [(Step.ORPHANS,)] * 2, "the rest does not pay"


@pytest.mark.law("L16", "L17")
def test_deleted_deltas_are_removed_from_files_of_tables_with_nested_columns(lake: Lake) -> None:
    """Iceberg 1.10 cannot join delete files there; an erasure that was killed leaves such."""
    flushed(lake, turns=1)
    for row in ("r0-1", "r0-2"):
        lake.spark.sql(f"DELETE FROM {lake.name.changes} WHERE _id = '{row}'")  # noqa: S608
    files = TableFiles(lake.spark, lake.name.changes)
    changes, before = lake.changes(), files.figures(0)
    assert before.delete_files
    assert before.dead_rows == 2

    files.remove_dead_deletes({"by": "nobody"})
    assert files.figures(0) == before, "each still deletes a row"
    files.rewrite_deletes({"by": "test"})

    after = files.figures(0)
    assert (after.delete_files, after.dead_rows, after.rows) == (0, 0, before.rows)
    assert lake.changes() == changes
    summary = lake.read(f"{lake.name.changes}.snapshots").orderBy("committed_at").tail(1)[0]
    assert summary["summary"]["by"] == "test"


@pytest.mark.law("L16", "L17")
def test_maintenance_expires_snapshots_removes_orphans_and_keeps_the_batch_mark(lake: Lake) -> None:
    flushed(lake)
    place = lake.spark.sql(f"DESCRIBE EXTENDED {lake.name.rows}").where("col_name = 'Location'")
    folder = Path(urlsplit(place.collect()[0]["data_type"]).path) / "data"
    orphans = {age: folder / f"{age}-days-old.parquet" for age in (2, 4)}
    for age, orphan in orphans.items():
        orphan.write_bytes(b"left by a run that was killed")
        os.utime(orphan, (time.time() - age * 86_400,) * 2)
    marks = lake.marks()

    report = maintained(lake, keep_ms=0)

    for table in (lake.name.rows, lake.name.changes):
        after = report_of(report, table).after
        assert after is not None
        assert after.snapshots <= 2, "those that this run made, which carry the mark"
        assert after.old_snapshots == 0
        assert after.bytes < report_of(report, table).before.bytes
    assert report_of(report, lake.name.rows).orphans == 1
    assert [age for age, orphan in orphans.items() if orphan.exists()] == [2]
    assert len(list(folder.glob("*.parquet"))) <= 3, "one file, its deletes, and what is too young"
    before = {kind: mark.commit for kind, mark in marks.items()}
    assert {kind: mark.commit for kind, mark in lake.marks().items()} == before

    lake.put([update("r0-1", at=900, n=7)])
    assert lake.run().problem() == ""
    assert lake.visible()["r0-1"] == {"n": "7"}
    assert lake.marks()["rows"] == BatchMark(before["rows"] + 1, lake.marks()["rows"].epoch)


@pytest.mark.law("L8", "L17")
def test_maintenance_skips_a_table_that_is_being_merged(lake: Lake) -> None:
    flushed(lake)
    before = figures(lake, lake.name.changes)
    lake.store.now = lake.store.now.fromtimestamp(time.time(), lake.store.now.tzinfo)
    lease = Lease.acquire_if_free(lake.store, group_of(lake.gateway), "merging")  # type: ignore[arg-type]
    assert lease is not None
    with lease, pytest.MonkeyPatch.context() as patch:
        patch.setattr("lakesync_spark.iceberg.maintenance.BUSY_S_MAX", -1.0)
        report = maintained(lake)

    assert {one.outcome for one in report.tables} == {MaintenanceOutcome.LEFT}
    assert report.problem() == ""
    assert report.sums()["left"] == 2
    assert figures(lake, lake.name.changes).files == before.files


@pytest.mark.law("L7", "L17")
def test_merge_during_a_rewrite_loses_nothing(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the lease were worth nothing: Iceberg refuses one; its next try is right."""
    flushed(lake)
    real = TableFiles.rewrite

    def rewrite(self: TableFiles, properties: dict[str, str]) -> None:
        if self._name == lake.name.rows:
            lake.put([update("r0-1", at=900, n=70), delete("r0-2", at=900)])
            (lake.store.folder / f"leases/materialise/{group_of(lake.gateway):02}.json").unlink()
            assert lake.run().problem() == ""
        real(self, properties)

    monkeypatch.setattr(TableFiles, "rewrite", rewrite)
    maintained(lake)
    monkeypatch.undo()
    maintained(lake)

    assert lake.visible()["r0-1"] == {"n": "70"}
    assert "r0-2" not in lake.visible()
    last = lake.batches[-1].last
    assert [mark.commit for mark in lake.marks().values()] == [last, last]
    assert len({(one["_commit"], one["_ordinal"]) for one in lake.changes()}) == len(lake.changes())
    assert figures(lake, lake.name.rows).files == 1


@pytest.mark.law("L9", "L14", "L17")
def test_fault_of_a_table_affects_no_other_and_tables_of_other_stacks_are_skipped(
    lake: Lake,
) -> None:
    flushed(lake)
    name = lake.name.changes
    lake.spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ('lakesync.stack' = 'arn:another')")
    report = maintained(lake)
    assert [one.name for one in report.tables] == [lake.name.rows]

    lake.spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ('lakesync.stack' = '{lake.stack}')")
    lake.spark.sql(f"ALTER TABLE {lake.name.rows} DROP TAG lakesync")
    lake.put([update("r1-1", at=900, n=70)])
    real, failing = TableFiles.rewrite, name

    def rewrite(self: TableFiles, properties: dict[str, str]) -> None:
        if self._name == failing:
            raise OSError("S3 is away")
        real(self, properties)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TableFiles, "rewrite", rewrite)
        report = maintained(lake)
    assert report.problem() == f"{name}: OSError: S3 is away"
    assert report_of(report, lake.name.rows).outcome is MaintenanceOutcome.DONE
