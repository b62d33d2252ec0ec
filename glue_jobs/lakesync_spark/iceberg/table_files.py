"""The files of one Iceberg table: how many there are, and Iceberg's own actions upon them.

Actions are used instead of ``CALL`` statements: they take the table itself, and options as a map,
so no name is written into SQL; and a rewrite can carry the table's mark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as sf

from lakesync.maintenance.lake_plan import (
    DEAD_ROWS_PER_ROW_MAX,
    SMALL_FILE_BYTES_MAX,
    SMALL_FILES_MAX,
    TARGET_FILE_BYTES,
    TableFigures,
)
from lakesync.materialise.lake_schema import MARK_TAG
from lakesync_spark.common.java import java_class, java_items

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

GROUP_BYTES_MAX: Final = 2 << 30
"""Bytes of files that one write rewrites: what the executors compute at a time."""
FILES_REWRITTEN_MAX: Final = 10_000
"""Files of one table that one run rewrites, so that no table delays the others for long."""
_DATA: Final = 0
_CORE: Final = "org.apache.iceberg"
_ICEBERG: Final = f"{_CORE}.spark"


class TableFiles:
    """One table's files, as they are when they are asked for."""

    def __init__(self, spark: SparkSession, name: str) -> None:
        self._spark = spark
        self._name = name
        session: Any = spark._jsparkSession  # noqa: SLF001
        self._table = java_class(spark, f"{_ICEBERG}.Spark3Util").loadIcebergTable(session, name)
        self._actions = java_class(spark, f"{_ICEBERG}.actions.SparkActions").get(session)
        self._refresh()

    def figures(self, older_than_ms: int) -> TableFigures:
        """Count. Reads metadata; a Spark job only where there are enough files to look at each."""
        self._refresh()
        snapshot = self._table.currentSnapshot()
        if snapshot is None:
            return TableFigures()
        summary = snapshot.summary()

        def total(name: str) -> int:
            return int(summary.get(f"total-{name}") or 0)

        snapshots = {int(one.snapshotId()): one for one in java_items(self._table.snapshots())}
        refs = self._table.refs()
        named = {int(refs.get(name).snapshotId()) for name in java_items(refs.keySet())}
        old = [one for key, one in snapshots.items() if key not in named]
        files, dead = total("data-files"), total("position-deletes")
        return TableFigures(
            files=files,
            delete_files=total("delete-files"),
            rows=total("records") - dead,
            dead_rows=dead,
            bytes=total("files-size"),
            snapshots=len(snapshots),
            old_snapshots=sum(int(one.timestampMillis()) < older_than_ms for one in old),
            manifests=snapshot.allManifests(self._table.io()).size(),
            small_files=self._small_files() if files > SMALL_FILES_MAX else files,
        )

    def rewrite(self, properties: Mapping[str, str]) -> None:
        """Join small files, and rewrite files with many dead rows.

        Args:
            properties: the properties of each snapshot: the current mark.
        """
        options = {
            "target-file-size-bytes": TARGET_FILE_BYTES,
            "min-file-size-bytes": SMALL_FILE_BYTES_MAX,
            "min-input-files": SMALL_FILES_MAX + 1,
            "delete-ratio-threshold": DEAD_ROWS_PER_ROW_MAX / (1 + DEAD_ROWS_PER_ROW_MAX),
            "max-file-group-size-bytes": GROUP_BYTES_MAX,
            "max-files-to-rewrite": FILES_REWRITTEN_MAX,
        }
        _with(self._rewrite_action(), options, properties).execute()
        self._refresh()

    def _rewrite_action(self) -> Any:
        """Return the action that writes data files anew, sorted as the table is."""
        action = self._actions.rewriteDataFiles(self._table)
        return action.sort() if self._table.sortOrder().isSorted() else action

    def rewrite_dead(self, properties: Mapping[str, str]) -> None:
        """Rewrite all files with a deleted row: afterwards no file has a dead row.

        Cost: reading and writing them whole; up to a fifth of a file's rows may be dead.

        Args:
            properties: the properties of each snapshot: the current mark.
        """
        options = {
            "target-file-size-bytes": TARGET_FILE_BYTES,
            "max-file-group-size-bytes": GROUP_BYTES_MAX,
            "delete-file-threshold": 1,
        }
        _with(self._rewrite_action(), options, properties).execute()
        self._refresh()
        self.remove_dead_deletes(properties)

    def add_nothing(self, properties: Mapping[str, str]) -> None:
        """Create a snapshot with the same content as the previous one, and with properties."""
        change = self._table.newAppend()
        for name, value in properties.items():
            change = change.set(name, value)
        change.commit()
        self._refresh()

    def other_names(self) -> list[str]:
        """Return the branches and tags that others created: they retain what they name."""
        names = {str(name) for name in java_items(self._table.refs().keySet())}
        return sorted(names - {"main", MARK_TAG})

    def rewrite_deletes(self, properties: Mapping[str, str]) -> None:
        """Join delete files; what they say of files that are gone is left out.

        Iceberg 1.10 cannot read delete files beside columns with parts (apache/iceberg#15080). Only
        tables of deltas have such columns, and only an erasure deletes from them: their files with
        dead rows are rewritten instead.
        """
        columns = java_items(self._table.schema().columns())
        if any(column.type().isNestedType() for column in columns):
            self.rewrite_dead(properties)
            return
        action = self._actions.rewritePositionDeletes(self._table)
        _with(action, {"rewrite-all": "true"}, properties).execute()
        self._refresh()

    def remove_dead_deletes(self, properties: Mapping[str, str]) -> None:
        """Remove the delete files that delete nothing: which no data file is read with."""
        snapshot = self._table.currentSnapshot()
        if snapshot is None:
            return
        io, specs = self._table.io(), self._table.specs()
        manifests = java_items(snapshot.deleteManifests(io))
        if not manifests:
            return
        scanned = self._table.newScan().planFiles()
        used = {
            str(delete.location())
            for task in java_items(scanned)
            for delete in java_items(task.deletes())
        }
        scanned.close()
        change, removed = self._table.newRewrite(), 0
        for manifest in manifests:
            reader = java_class(self._spark, f"{_CORE}.ManifestFiles").readDeleteManifest(
                manifest, io, specs
            )
            for delete in java_items(reader):
                if str(delete.location()) not in used:
                    change = change.deleteFile(delete)
                    removed += 1
            reader.close()
        if removed:
            for name, value in properties.items():
                change = change.set(name, value)
            change.commit()
        self._refresh()

    def rewrite_manifests(self, properties: Mapping[str, str]) -> None:
        _with(self._actions.rewriteManifests(self._table), {}, properties).execute()
        self._refresh()

    def forget_snapshots(self, older_than_ms: int) -> None:
        """Expire old snapshots, and leave their files to the removal of orphans."""
        change = self._table.expireSnapshots().expireOlderThan(older_than_ms).retainLast(1)
        change.cleanExpiredFiles(False).commit()
        self._refresh()

    def expire(self, older_than_ms: int) -> None:
        """Expire old snapshots, and delete files that only they name; tagged ones stay."""
        action = self._actions.expireSnapshots(self._table)
        action.expireOlderThan(older_than_ms).retainLast(1).execute()
        self._refresh()

    def remove_orphans(self, older_than_ms: int) -> int:
        """Delete older files that no snapshot names; returns their number."""
        action = self._actions.deleteOrphanFiles(self._table)
        result = action.usePrefixListing(True).olderThan(older_than_ms).execute()
        return len(java_items(result.orphanFileLocations()))

    def _small_files(self) -> int:
        # Spark's cached table is older than an action's commit.
        self._spark.catalog.refreshTable(self._name)
        files = self._spark.table(f"{self._name}.files")
        partition = [name for name in ("spec_id", "partition") if name in files.columns]
        small = (sf.col("content") == _DATA) & (sf.col("file_size_in_bytes") < SMALL_FILE_BYTES_MAX)
        counts = files.where(small).groupBy(*partition).count()
        most = counts.agg(sf.max("count")).first()
        return int((most and most[0]) or 0)

    def _refresh(self) -> None:
        self._table.refresh()


def _with(action: Any, options: Mapping[str, object], properties: Mapping[str, str]) -> Any:
    for name, value in options.items():
        action = action.option(name, str(value))
    for name, value in properties.items():
        action = action.snapshotProperty(name, value)
    return action
