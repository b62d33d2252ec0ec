"""Erases rows from the lake: no file, referenced or not, and no old version has their values.

The rows must be deleted, and their deletions be in the lake. The steps for each table, in this
order, under the lease of its gateway's group; whoever is killed is followed by one that repeats:

    1. deltas of the rows are deleted        of the changes table all but deletions, of events all
    2. files are written anew                all that hold a row which is taken away: by 1, or by a
                                             merge before, which leaves what it replaced
    3. manifests are written anew            they say the least and greatest value of each column
    4. a snapshot is made that adds nothing  it bears the mark, wherever that was
    5. the past expires                      branches of merges that were killed, all snapshots but
                                             that one, and files that nothing names
    6. old versions of objects go            of the table's files, its batches, checkpoints,
                                             attachments, and what connectors and deliveries
                                             wrote
    7. what is left is counted               in the files themselves, whoever names them

The request is removed last, which distinguishes a killed run from a completed one. Laws E6 to
E8: ``docs/spec/erasure.md``.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from pyspark.sql import functions as sf

from lakesync.core.names import folded
from lakesync.errors import Conflict, NotFound, ValidationFailed
from lakesync.materialise.lake_schema import (
    BATCH,
    CHANGES_TABLE,
    COMMIT,
    EPOCH,
    EVENTS_TABLE,
    FOR_EVER_MS,
    ID,
    IS_DELETED,
    STAMPS,
    STATE_TABLE,
)
from lakesync.materialise.work_queue import Lease, group_of
from lakesync_spark.common.report import say
from lakesync_spark.iceberg.branch_write import PREFIX as BRANCH_PREFIX
from lakesync_spark.iceberg.branches import branch_names, drop_branch
from lakesync_spark.iceberg.erasure_report import ErasedTable, ErasureReport
from lakesync_spark.iceberg.lake_table import LakeTable
from lakesync_spark.iceberg.maintenance import BUSY_S_MAX, LOOK_S, table_names
from lakesync_spark.iceberg.table_files import TableFiles
from lakesync_spark.iceberg.writing import execute

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame, SparkSession

    from lakesync.materialise.work_queue import LakeStore
    from lakesync_spark.common.arguments import MaintenanceArguments

UNNAMED_AGE_MS_MIN: Final = 3 * 3_600_000
"""The minimum age of an unreferenced file: a run ends after two hours at the latest, and until then
may reference what it has written."""
_BEARS_VALUES: Final = {
    # Where deletes win, a row that is not seen may hold updates: only then it says stamps.
    STATE_TABLE.name: f"(NOT {IS_DELETED} OR {STAMPS} IS NOT NULL)",
    CHANGES_TABLE.name: "_op <> 'DELETE'",
    EVENTS_TABLE.name: "true",
}
"""By the kind of a table, which rows of a row id bear values."""
_VERSIONED: Final = ("checkpoints", "connectors", "deliveries", "attachments")
"""A gateway's objects whose old versions may have rows' values, or name rows."""
_READ: Final = f"{ID} STRING, {IS_DELETED} BOOLEAN, {STAMPS} STRING, _op STRING"


def erase(
    spark: SparkSession, store: LakeStore, arguments: MaintenanceArguments, run_id: str
) -> ErasureReport:
    """Erase the rows that a request names from one table of a gateway. Safe to repeat, and to kill.

    Raises:
        NotFound: there is no such request.
        ValidationFailed: the request cannot be read, or names no table.
        Conflict: a row has values still, or merges were at work all the time; nothing is lost.
    """
    gateway, _, table = arguments.only.partition("/")
    if not table:
        raise ValidationFailed("an erasure is of one table: --only gateway/table", field="--only")
    rows = _request(store, arguments.erase_key)
    report = ErasureReport(arguments.stack)
    with wait_for_lease(store, group_of(gateway), run_id) as lease:
        for name in table_names(spark, arguments):
            lake_table = LakeTable(spark, name)
            owner = lake_table.owner
            if owner.stack == arguments.stack and folded(owner.table) == folded(table):
                erased = _TableErasure(spark, store, lease, lake_table, rows).go()
                report.tables.append(erased)
                say("erased", **erased.as_dict())
    prefixes = [f"{kind}/{gateway}/" for kind in _VERSIONED]
    prefixes += [f"staging/{gateway}/{table}/"]
    prefixes += [one.prefix for one in report.tables]
    for prefix in prefixes:
        report.versions_removed += store.remove_old_versions(prefix)
    report.versions_left = sum(1 for prefix in prefixes for _ in store.old_versions(prefix))
    report.searched = prefixes
    if any(one.left for one in report.tables):
        report.again_ms = _ms(store) + UNNAMED_AGE_MS_MIN
    store.forget(arguments.erase_key)
    return report


class _TableErasure:
    """The erasure of rows from one lake table."""

    def __init__(
        self,
        spark: SparkSession,
        store: LakeStore,
        lease: Lease,
        table: LakeTable,
        rows: Sequence[str],
    ) -> None:
        self._spark = spark
        self._store = store
        self._lease = lease
        self._table = table
        self._kind = table.kind.name
        self._rows = rows

    def go(self) -> ErasedTable:
        """Do all of it, and count what is left."""
        table = self._table
        erased = ErasedTable(table.name, self._kind, self._prefix())
        table.keep_mark()
        mark = table.batch_mark()
        self._lease.rise_above(mark.epoch)
        properties = {
            COMMIT: str(mark.commit),
            BATCH: "erasure",
            EPOCH: str(self._lease.epoch),
        }
        self._lease.check()
        erased.removed = self._delete(properties)
        files = TableFiles(self._spark, table.name)
        for step in (files.rewrite_dead, files.rewrite_manifests, files.add_nothing):
            self._lease.check()
            step(properties)
        table.refresh()
        table.keep_mark()
        self._forget_past(files)
        erased.files, erased.left = self._left()
        erased.kept_by = files.other_names()
        return erased

    def _delete(self, properties: dict[str, str]) -> int:
        """Delete the rows' deltas; of a state table a deletion has left nothing but its stamp."""
        bearing = self._spark.table(self._table.name).where(self._bears())
        number = bearing.count()
        if number and self._kind == STATE_TABLE.name:
            raise Conflict(
                f"{number} of the rows have values in {self._table.name}: their deletion is not in"
                " the lake yet, or was undone; delete them, and wait for lakesync flush --wait"
            )
        if number:
            view = f"lakesync_erased_{uuid4().hex}"  # a session has one name space
            self._ids().createOrReplaceTempView(view)
            try:
                execute(
                    self._spark,
                    f"DELETE FROM {self._table.name} WHERE {_BEARS_VALUES[self._kind]}"  # noqa: S608 - ours
                    f" AND {ID} IN (SELECT {ID} FROM {view})",
                    properties,
                )
            finally:
                self._spark.catalog.dropTempView(view)
        return number

    def _forget_past(self, files: TableFiles) -> None:
        for branch in branch_names(self._table, BRANCH_PREFIX):
            drop_branch(self._table, branch)
        files.expire(FOR_EVER_MS)
        files.remove_orphans(_ms(self._store) - UNNAMED_AGE_MS_MIN)

    def _left(self) -> tuple[int, int]:
        """Count the files at the table's location, and their rows with values."""
        reader = self._spark.read.schema(_READ).option("recursiveFileLookup", "true")
        rows = reader.option("pathGlobFilter", "*.parquet").parquet(self._location())
        return len(rows.inputFiles()), rows.where(self._bears()).count()

    def _bears(self) -> Column:
        return sf.col(ID).isin(list(self._rows)) & sf.expr(_BEARS_VALUES[self._kind])

    def _ids(self) -> DataFrame:
        return self._spark.createDataFrame([(row,) for row in self._rows], f"{ID} STRING")

    def _location(self) -> str:
        return str(self._table.java.location())

    def _prefix(self) -> str:
        location = self._location()
        if not location.startswith(f"{self._store.root}/"):
            raise Conflict(f"{self._table.name} was moved out of the bucket; erase the rows there")
        return location.removeprefix(f"{self._store.root}/").strip("/") + "/"


def _request(store: LakeStore, key: str) -> list[str]:
    request = store.read(key)
    if request is None:
        raise NotFound(
            f"there is no request {key}: it was done; lakesync gateways erase repeats it"
        )
    try:
        rows: Any = json.loads(request.body)["rows"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValidationFailed(f"the request {key} cannot be read", field="--erase_key") from error
    if not isinstance(rows, list) or not rows:
        raise ValidationFailed(f"the request {key} names no rows", field="--erase_key")
    return [str(row) for row in rows]


def wait_for_lease(store: LakeStore, group: int, run_id: str) -> Lease:
    """Take the lease of a group as soon as it is free.

    Raises:
        Conflict: merges were running all the time.
    """
    ends = time.monotonic() + BUSY_S_MAX
    while (lease := Lease.acquire_if_free(store, group, run_id)) is None:
        if time.monotonic() > ends:
            raise Conflict(
                "merging runs were in progress all the time; repeat the command to continue"
            )
        store.pause(LOOK_S)
    return lease


def _ms(store: LakeStore) -> int:
    return int(store.now.timestamp() * 1000)
