"""Erasure of rows from the lake: no file bears a value of them, whoever names it."""

from __future__ import annotations

import itertools
import json
import os
import time
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lakesync.core.schema import Column, TableSchema
from lakesync.errors import Conflict, NotFound
from lakesync.materialise import work_queue
from lakesync.materialise.work_queue import LEASE_S, group_of
from lakesync_spark.common.arguments import MaintenanceArguments
from lakesync_spark.iceberg import row_erasure
from lakesync_spark.iceberg.row_erasure import UNNAMED_AGE_MS_MIN, erase
from lakesync_spark.iceberg.table_files import TableFiles
from tests.glue.support.files import FileStore
from tests.glue.support.lake import PREFIX, Lake
from tests.support.builders import delete, insert, update

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from pyspark.sql import SparkSession

    from lakesync_spark.iceberg.erasure_report import ErasureReport

pytestmark = pytest.mark.spark

REQUEST = "maintenance/erase-1.json"
SECRET = b"ann@example.org"
_numbers = itertools.count(1)


class Bucket(FileStore):
    """A store whose folder has the warehouse in it, as the lake's bucket has."""

    @property
    def root(self) -> str:
        return str(self.folder)


@pytest.fixture
def lake(spark: SparkSession) -> Lake:
    warehouse = Path(spark.conf.get("spark.sql.catalog.lake.warehouse") or "")
    made = Lake(spark, Bucket(warehouse.parent), f"erasure{next(_numbers)}", "users")
    made.store.now = made.store.now.fromtimestamp(time.time(), made.store.now.tzinfo)
    return made


def filled(lake: Lake, schema: TableSchema | None = None) -> None:
    """Insert ann and others, change some, and delete ann: in three runs, or one of events."""
    mail = SECRET.decode()
    names = ["ann", *(f"c{n}" for n in range(12))]
    batches = [
        [insert(row, at=5, table="users", mail=f"{row}@example.org") for row in names],
        [update("ann", at=7, table="users", mail=mail), update("c1", at=7, table="users", mail="")],
        [delete("ann", at=9, table="users")],
    ]
    for deltas in batches if schema is None else batches[:1]:
        lake.put(deltas, schema=schema)
        assert lake.run().problem() == ""


def erased(lake: Lake, *rows: str) -> ErasureReport:
    lake.store.put(REQUEST, json.dumps({"rows": rows}).encode())
    return erase_what(lake, REQUEST)


def erase_what(lake: Lake, key: str) -> ErasureReport:
    only = f"{lake.gateway}/{lake.table}"
    arguments = MaintenanceArguments(
        "lake", PREFIX, lake.catalog, lake.stack, 0, only=only, erase_key=key
    )
    return erase(lake.spark, lake.store, arguments, "erasure")  # type: ignore[arg-type]


def files_with(lake: Lake, secret: bytes) -> list[str]:
    """Return the files of the gateway's tables in which bytes stand, of data and of metadata."""
    folder = lake.store.folder / "warehouse" / f"{PREFIX}_{lake.gateway}"
    return [
        path.name for path in folder.rglob("*") if path.is_file() and secret in path.read_bytes()
    ]


def counted(report: ErasureReport) -> dict[str, tuple[int, int]]:
    """Return what was removed and what is left, by the kind of table."""
    return {one.kind: (one.removed, one.left) for one in report.tables}


@pytest.mark.law("E6", "E8")
def test_erasure_removes_values_of_a_row_from_all_files_and_changes_no_other_row(
    lake: Lake,
) -> None:
    filled(lake)
    rows, marks = lake.rows(), lake.marks()
    others = [one for one in lake.changes() if one["_id"] != "ann"]
    assert files_with(lake, SECRET), "else there would be nothing to prove"

    report = erased(lake, "ann", "nobody")

    assert counted(report) == {"state": (0, 0), "changes": (2, 0)}
    assert files_with(lake, SECRET) == []
    assert report.again_ms == 0
    assert lake.rows() == rows, "the tombstone, too"
    assert [one for one in lake.changes() if one["_id"] != "ann"] == others
    assert [one["_op"] for one in lake.changes() if one["_id"] == "ann"] == ["DELETE"]
    after = lake.marks()
    assert {kind: one.commit for kind, one in after.items()} == {
        kind: one.commit for kind, one in marks.items()
    }
    for table in (lake.name.rows, lake.name.changes):
        assert TableFiles(lake.spark, table).figures(0).snapshots == 1
    kinds = ("checkpoints", "connectors", "deliveries", "attachments")
    checked = [*(f"{kind}/{lake.gateway}/" for kind in kinds), f"staging/{lake.gateway}/users/"]
    assert report.searched[:5] == checked
    assert len(report.searched) == 7
    assert lake.store.read(REQUEST) is None

    with pytest.raises(NotFound, match="was done"):
        erase_what(lake, "gone")
    lake.put([insert("ann", at=20, table="users", mail="new")])
    assert lake.run().problem() == ""
    assert lake.visible()["ann"] == {"mail": '"new"'}
    with pytest.raises(Conflict, match="1 of the rows have values"):
        erased(lake, "ann")


@pytest.mark.law("E6", "E8")
def test_erasure_removes_invisible_values_behind_a_delete(lake: Lake) -> None:
    """Where deletes win, an update that is newer than the delete is kept, and bears a value."""
    schema = TableSchema("users", (Column("mail", "string"),), version=1, delete_wins=True)
    late = update("ann", at=12, table="users", mail=SECRET.decode())
    for deltas in (
        [insert("ann", at=5, table="users")],
        [delete("ann", at=9, table="users"), late],
    ):
        lake.put(deltas, schema=schema)
        assert lake.run().problem() == ""
    assert lake.visible() == {}
    with pytest.raises(Conflict, match="1 of the rows have values"):
        erased(lake, "ann")

    lake.put([delete("ann", at=20, table="users")], schema=schema)
    assert lake.run().problem() == ""
    report = erased(lake, "ann")

    assert {kind: left for kind, (_, left) in counted(report).items()} == {"state": 0, "changes": 0}
    assert files_with(lake, SECRET) == []


class Killed(BaseException):
    """The process is gone."""


@pytest.mark.law("E6", "E8")
def test_killed_erasure_is_repeated_and_counts_the_files_left(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(lake)
    rows, marks = lake.rows(), {kind: one.commit for kind, one in lake.marks().items()}
    lake.spark.sql(f"ALTER TABLE {lake.name.changes} CREATE TAG audit")
    folder = lake.store.folder / "warehouse" / f"{PREFIX}_{lake.gateway}" / "users" / "data"
    orphan = folder / "left-by-a-run-that-was-killed.parquet"
    orphan.write_bytes(next(p for p in folder.iterdir() if SECRET in p.read_bytes()).read_bytes())

    for step in ("rewrite_dead", "add_nothing", "expire"):
        with monkeypatch.context() as patch:
            dying_after(patch, TableFiles, step)
            with pytest.raises(Killed):
                erased(lake, "ann")
        lake.store.now += timedelta(seconds=LEASE_S + 1)
    by_kind = {one.kind: one for one in erased(lake, "ann").tables}

    assert by_kind["state"].left == 1, "a run that was slow may still name the file"
    assert (by_kind["changes"].left, by_kind["changes"].kept_by) == (2, ["audit"])

    lake.spark.sql(f"ALTER TABLE {lake.name.changes} DROP TAG audit")
    os.utime(orphan, (time.time() - UNNAMED_AGE_MS_MIN / 1000 - 60,) * 2)
    assert [one.left for one in erased(lake, "ann").tables] == [0, 0]
    assert files_with(lake, SECRET) == []
    assert lake.rows() == rows
    assert {kind: one.commit for kind, one in lake.marks().items()} == marks


def dying_after(patch: pytest.MonkeyPatch, owner: Any, step: str) -> None:
    real: Callable[..., Any] = getattr(owner, step)

    def step_and_die(*args: Any, **kwargs: Any) -> Any:
        real(*args, **kwargs)
        raise Killed

    patch.setattr(owner, step, step_and_die)
    patch.setattr(work_queue.Lease, "__exit__", lambda one, *_: one._released.set())


@pytest.mark.law("E6")
def test_erasure_removes_all_events_of_a_row_and_refuses_while_its_group_is_busy(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema = TableSchema("users", (Column("mail", "string"),), version=1, append=True)
    filled(lake, schema)
    monkeypatch.setattr(row_erasure, "BUSY_S_MAX", -1.0)
    busy = work_queue.Lease.acquire_if_free(lake.store, group_of(lake.gateway), "merging")  # type: ignore[arg-type]
    assert busy is not None
    with busy, pytest.raises(Conflict, match="in progress all the time"):
        erased(lake, "ann")

    report = erased(lake, "ann")

    assert counted(report) == {"events": (1, 0)}
    assert files_with(lake, SECRET) == []
    assert len(lake.read(lake.name.rows).collect()) == 12
