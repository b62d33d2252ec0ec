"""Figures of a gateway's Iceberg tables, read from their metadata by PyIceberg.

They are the figures that `glue_jobs/lakesync_spark/iceberg/table_files.py` computes for the job, so
the command line shows the maintenance that the job would do.
"""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from lakesync.maintenance.lake_plan import SMALL_FILE_BYTES_MAX, SMALL_FILES_MAX, TableFigures

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lakesync.cli.session import Session

_DATA: Final = 0


def lake_figures(session: Session, table: str | None) -> dict[str, dict[str, Any]]:
    """Return the figures of one table and its history, or of all; every unnamed snapshot is old."""
    from lakesync.cli.lake import Lake

    lake = Lake(session.aws, session.connection.gateway)
    now_ms = time.time_ns() // 1_000_000
    return {name: figures(lake.table(name), now_ms)._asdict() for name in lake.names_of(table)}


def figures(table: Any, older_than_ms: int) -> TableFigures:
    """Return a table's figures; single files are read only if there are enough of them.

    Args:
        table: the table, loaded by PyIceberg.
        older_than_ms: earlier snapshots are old.
    """
    snapshot = table.current_snapshot()
    if snapshot is None:
        return TableFigures()
    summary = snapshot.summary.additional_properties if snapshot.summary else {}

    def total(name: str) -> int:
        return int(summary.get(f"total-{name}") or 0)

    named = {ref.snapshot_id for ref in table.metadata.refs.values()}
    snapshots = table.snapshots()
    old = [one for one in snapshots if one.snapshot_id not in named]
    files, dead = total("data-files"), total("position-deletes")
    return TableFigures(
        files=files,
        delete_files=total("delete-files"),
        rows=total("records") - dead,
        dead_rows=dead,
        bytes=total("files-size"),
        snapshots=len(snapshots),
        old_snapshots=sum(one.timestamp_ms < older_than_ms for one in old),
        manifests=len(snapshot.manifests(table.io)),
        small_files=_small_files(table, snapshot) if files > SMALL_FILES_MAX else files,
    )


def _small_files(table: Any, snapshot: Any) -> int:
    counts = Counter(
        (file.spec_id, repr(file.partition))
        for file in _files(table, snapshot)
        if file.content == _DATA and file.file_size_in_bytes < SMALL_FILE_BYTES_MAX
    )
    return max(counts.values(), default=0)


def _files(table: Any, snapshot: Any) -> Iterator[Any]:
    for manifest in snapshot.manifests(table.io):
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
            yield entry.data_file
