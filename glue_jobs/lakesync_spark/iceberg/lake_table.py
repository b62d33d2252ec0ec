"""One Iceberg table as the job needs it: its snapshot, its mark, its columns. Reads metadata only.

It uses Iceberg's Java table directly: each query of a metadata table would start a Spark job.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

from lakesync.errors import Conflict
from lakesync.materialise.lake_schema import (
    COLUMNS,
    COMMIT,
    EPOCH,
    GATEWAY,
    KIND,
    KINDS,
    MARK_TAG,
    STACK,
    WRITTEN,
    BatchMark,
    delete_wins,
    described,
)
from lakesync_spark.common.java import java_class
from lakesync_spark.iceberg.branches import MOVE_TRIES, main_touched, move_tag
from lakesync_spark.iceberg.fields import fields_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import SparkSession

    from lakesync.materialise.lake_schema import Kind, LakeColumn
    from lakesync_spark.iceberg.fields import Field


class Owner(NamedTuple):
    """Whose a table is; all empty if LakeSync did not make it."""

    stack: str
    gateway: str
    table: str
    """Its name on the wire."""


class Records(NamedTuple):
    """What the files of a table hold."""

    live: int
    """Rows, tombstones too."""
    dead: int
    """Rows that delete files take away: readers go through them all the same."""


class LakeTable:
    """An existing Iceberg table. Call `refresh` before reading what others may have changed."""

    def __init__(self, spark: SparkSession, name: str) -> None:
        self.name = name
        """As SQL writes it."""
        self._session = spark
        # PySpark keeps it private; Glue runs classic Spark, where they exist.
        self._spark: Any = spark._jsparkSession  # noqa: SLF001
        loader = java_class(spark, "org.apache.iceberg.spark.Spark3Util")
        self._table = loader.loadIcebergTable(self._spark, name)
        self.java = self._table
        """Iceberg's own object."""
        self.refresh()

    def refresh(self) -> None:
        """Forget what is cached, in this session too."""
        self._table.refresh()

    @property
    def snapshot_id(self) -> int | None:
        """The current snapshot; None if nothing was ever committed."""
        snapshot = self._table.currentSnapshot()
        return None if snapshot is None else int(snapshot.snapshotId())

    @property
    def kind(self) -> Kind:
        """The kind of table that it was created as.

        Raises:
            Conflict: LakeSync did not create it.
        """
        kind = KINDS.get(self._table.properties().get(KIND) or "")
        if kind is None:
            raise Conflict(f"{self.name} exists and is not LakeSync's; move it out of the way")
        return kind

    @property
    def written(self) -> str:
        """The table that it tells of, on the wire; empty if it does not say."""
        return self.owner.table

    @property
    def delete_wins(self) -> bool:
        """Whether no update brings a deleted row back."""
        return delete_wins(self._table.properties())

    @property
    def owner(self) -> Owner:
        properties = self._table.properties()
        return Owner(*(str(properties.get(name) or "") for name in (STACK, GATEWAY, WRITTEN)))

    def check_stack(self, stack: str) -> None:
        """Make sure that a stack created the table.

        Raises:
            Conflict: another or an unknown stack did.
        """
        owner = self._table.properties().get(STACK)
        if owner != stack:
            raise Conflict(
                f"{self.name} belongs to {owner or 'no stack'}, and this is {stack}; give one"
                " of the two another DatabasePrefix, or hand the table over (docs/operations.md)"
            )

    @property
    def deletes_files(self) -> bool:
        """Whether unreferenced files may be deleted.

        Not where the catalogue has a history of its own, as Nessie does, which references them.
        """
        return bool(self._table.properties().get("gc.enabled") != "false")

    def columns(self) -> tuple[LakeColumn, ...]:
        """Return the table's own columns, without LakeSync's."""
        recorded = json.loads(self._table.properties().get(COLUMNS) or "{}")
        columns = (
            described(field.name, recorded.get(str(field.number)), field.comment)
            for field in self.fields()
        )
        return tuple(column for column in columns if column is not None)

    def fields(self) -> tuple[Field, ...]:
        return fields_of(self._session, self._table.schema())

    def record_columns(self, columns: Sequence[LakeColumn]) -> None:
        """Store the columns' descriptions, by field id, unless they are stored. Safe to repeat."""
        operations = self._table.operations()
        base = operations.refresh()
        ids = {field.name: field.number for field in fields_of(self._session, base.schema())}
        recorded = {str(ids[column.name]): (column.type, column.written) for column in columns}
        text = json.dumps(recorded, ensure_ascii=False, separators=(",", ":"))
        if base.properties().get(COLUMNS) != text:
            properties = java_class(self._session, "java.util.HashMap")(base.properties())
            properties.put(COLUMNS, text)
            operations.commit(base, base.replaceProperties(properties))
        self.refresh()

    def has_field(self, name: str) -> bool:
        return self._table.schema().findField(name) is not None

    def batch_mark(self) -> BatchMark:
        """Return the table's mark: the greatest among the snapshots that led to the current one.

        Raises:
            Conflict: the table has snapshots, and none that carries a mark is left.
        """
        summaries = [snapshot.summary() for snapshot in self._marked()]
        if self.snapshot_id is not None and not summaries:
            raise Conflict(
                f"the snapshots of {self.name} that carry its mark are gone, and so is its tag"
                f" {MARK_TAG}; set the mark again by `lakesync lake repair`"
            )
        return BatchMark(
            max((int(summary[COMMIT]) for summary in summaries), default=0),
            max((int(summary[EPOCH]) for summary in summaries), default=0),
        )

    def keep_mark(self) -> None:
        """Move the tag to the snapshot that carries the mark: expiry spares what is tagged.

        Safe to repeat, and to run concurrently; after a crash the next access to the table
        completes it.
        """
        for _ in range(MOVE_TRIES):
            marked = max(self._marked(), key=lambda one: int(one.summary()[COMMIT]), default=None)
            tagged = self._table.snapshot(MARK_TAG)
            if marked is None or (tagged and tagged.snapshotId() == marked.snapshotId()):
                return
            is_moved = move_tag(self._table, MARK_TAG, marked.snapshotId(), is_new=tagged is None)
            self.refresh()
            if is_moved:
                return
        raise Conflict(f"{self.name} was written to all the time while its tag was to be moved")

    def records(self) -> Records:
        """Count what a reader has to go through."""
        snapshot = self._table.currentSnapshot()
        summary = {} if snapshot is None else snapshot.summary()
        dead = int(summary.get("total-position-deletes") or 0)
        return Records(int(summary.get("total-records") or 0) - dead, dead)

    def swap_columns(self, pairs: Sequence[tuple[str, str]], expected: int | None) -> None:
        """Drop columns and give their names to others, atomically in one commit.

        Args:
            pairs: the dropped column, and the one that gets its name.

        Raises:
            Conflict: the table has changed; nothing took effect.
        """
        operations = self._table.operations()
        base = operations.refresh()
        snapshot = base.currentSnapshot()
        if (None if snapshot is None else snapshot.snapshotId()) != expected:
            raise Conflict(f"{self.name} was changed while its columns were converted")
        update = self._table.updateSchema()
        for old, new in pairs:
            update = update.deleteColumn(old).renameColumn(new, old)
        # Committed against `base` itself: Iceberg's own schema update would silently retry on top
        # of what another run has written meanwhile.
        new = base.updateSchema(update.apply())
        operations.commit(base, new if snapshot is None else main_touched(self._session, new))
        self.refresh()

    def _marked(self) -> Iterator[Any]:
        """Yield the ancestors of the current snapshot that carry a mark, the latest first.

        It stops at the tagged snapshot, which was tagged because its mark was the greatest so far:
        a history may be long.
        """
        snapshot = self._table.currentSnapshot()
        tagged = self._table.snapshot(MARK_TAG)
        tagged_id = None if tagged is None else tagged.snapshotId()
        oldest, is_marked = snapshot, False
        while snapshot is not None:
            if COMMIT in snapshot.summary():
                is_marked = True
                yield snapshot
                if snapshot.snapshotId() == tagged_id:
                    return
            oldest, parent = snapshot, snapshot.parentId()
            snapshot = None if parent is None else self._table.snapshot(parent)
        if is_marked or tagged is None or oldest is None:
            return
        # A tagged snapshot later than the remaining ones was rolled back.
        if tagged.sequenceNumber() <= oldest.sequenceNumber():
            yield tagged
