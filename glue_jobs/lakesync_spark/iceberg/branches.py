"""References of an Iceberg table: creates, drops and publishes branches, moves tags."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from lakesync.errors import Conflict
from lakesync.materialise.lake_schema import FOR_EVER_MS, MARK_TAG
from lakesync_spark.common.java import is_java_error, java_class, java_items

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lakesync_spark.iceberg.lake_table import LakeTable

_MAIN: Final = "main"
BRANCH_AGE_MS_MAX: Final = 86_400_000
"""After how long a branch that is forgotten expires, when snapshots do."""
MOVE_TRIES: Final = 5
"""How often a tag is to be moved where others commit meanwhile: a run of before, mostly, which ends
as soon as it looks at its lease."""
_COMMIT_FAILED: Final = "org.apache.iceberg.exceptions.CommitFailedException"


def branch_names(table: LakeTable, prefix: str) -> list[str]:
    refs = table.java.refs()
    names = [str(name) for name in java_items(refs.keySet())]
    return [name for name in names if name.startswith(prefix) and refs.get(name).isBranch()]


def make_branch(table: LakeTable, name: str, start: int | None) -> None:
    change = table.java.manageSnapshots().createBranch(name, start)
    change.setMaxRefAgeMs(name, BRANCH_AGE_MS_MAX).commit()
    table.refresh()


def drop_branch(table: LakeTable, name: str) -> None:
    table.java.manageSnapshots().removeBranch(name).commit()
    table.refresh()


def move_tag(java_table: Any, name: str, snapshot_id: int, *, is_new: bool) -> bool:
    """Move or create a tag without expiry; False if another writer committed meanwhile."""
    change = java_table.manageSnapshots()
    move = change.createTag if is_new else change.replaceTag
    try:
        move(name, snapshot_id).setMaxRefAgeMs(name, FOR_EVER_MS).commit()
    except Exception as error:
        if is_java_error(error, _COMMIT_FAILED):
            return False
        raise
    return True


def fast_forward(spark: SparkSession, table: LakeTable, branch: str, start: int | None) -> None:
    """Move the main branch and the tag to the end of a branch, and drop it, in one commit.

    Raises:
        Conflict: another one is, or the branch is gone; nothing took effect.
    """
    operations = table.java.operations()
    base = operations.refresh()
    end, now = base.ref(branch), base.currentSnapshot().snapshotId()
    if end is None or now != start:
        raise Conflict(f"{table.name} was changed while rows were merged; they are merged again")
    refs = java_class(spark, "org.apache.iceberg.SnapshotRef")
    metadata = java_class(spark, "org.apache.iceberg.TableMetadata")
    main, tip = base.ref(_MAIN), end.snapshotId()
    tag = refs.tagBuilder(tip).maxRefAgeMs(FOR_EVER_MS).build()
    update = metadata.buildFrom(base).setRef(MARK_TAG, tag)
    update = update.setRef(_MAIN, refs.builderFrom(main, tip).build())
    # Against `base` itself, as in `LakeTable.swap_columns`.
    operations.commit(base, update.removeRef(branch).build())
    table.refresh()


def main_touched(spark: SparkSession, changed: Any) -> Any:
    """Return a table's changed metadata with the unmoved main branch among the changes.

    A REST catalogue checks only what a commit changes: a commit of columns alone would not detect a
    new snapshot. To make a change, the branch's number of retained snapshots, one by default, is
    set or unset.
    """
    main = changed.ref(_MAIN)
    keeps = 1 if main.minSnapshotsToKeep() is None else None
    refs = java_class(spark, "org.apache.iceberg.SnapshotRef")
    touched = refs.builderFrom(main).minSnapshotsToKeep(keeps).build()
    metadata = java_class(spark, "org.apache.iceberg.TableMetadata")
    return metadata.buildFrom(changed).setRef(_MAIN, touched).build()
