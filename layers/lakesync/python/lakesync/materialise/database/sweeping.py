"""Expires old snapshots of a table in the commit of a new one, and removes their files afterwards.

The last `SNAPSHOTS_KEPT` stay, and those of the last hour, so that readers of them can continue.
The content of the removed files is then gone from the store too, as deleted data should be.
"""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pyiceberg.manifest import ManifestEntryStatus
from pyiceberg.table.update.snapshot import ExpireSnapshots

if TYPE_CHECKING:
    from pyiceberg.table import Table, Transaction

SNAPSHOTS_KEPT: Final = 16
"""Newest snapshots that stay; as many more may exist until they are removed together."""
KEPT_MS: Final = 3_600_000
"""The age up to which a snapshot stays, whatever their number."""


class Expired(NamedTuple):
    """Snapshots to expire, and the files that only they name."""

    snapshots: tuple[int, ...]
    files: tuple[str, ...]

    def stage(self, transaction: Transaction) -> None:
        """Have a transaction expire the snapshots."""
        if self.snapshots:
            ExpireSnapshots(transaction).by_ids(list(self.snapshots)).commit()


def expired(table: Table, now_ms: int | None = None) -> Expired:
    """Return what of a table may expire with its next commit."""
    now_ms = int(time.time() * 1_000) if now_ms is None else now_ms
    snapshots = sorted(table.snapshots(), key=lambda one: one.sequence_number or 0)
    named = {ref.snapshot_id for ref in table.metadata.refs.values()}
    old = [one for one in snapshots[:-SNAPSHOTS_KEPT] if one.timestamp_ms < now_ms - KEPT_MS]
    gone = {one.snapshot_id for one in old} - named
    if len(gone) < SNAPSHOTS_KEPT:  # several at once: finding their files takes requests
        return Expired((), ())
    kept = [one for one in snapshots if one.snapshot_id not in gone]
    manifests = {one.manifest_path: one for each in kept for one in each.manifests(table.io)}
    files: set[str] = set()
    for snapshot in snapshots:
        lists: list[Any] = snapshot.manifests(table.io)
        if snapshot.parent_snapshot_id in gone:  # no remaining snapshot names what it removed
            files |= {
                entry.data_file.file_path
                for manifest in lists
                if manifest.added_snapshot_id == snapshot.snapshot_id
                for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=False)
                if entry.status == ManifestEntryStatus.DELETED
            }
        if snapshot.snapshot_id in gone:
            files |= {one.manifest_path for one in lists} - manifests.keys()
            files.add(snapshot.manifest_list)
    files -= {  # files that a killed writer removed were restored
        entry.data_file.file_path
        for one in manifests.values()
        for entry in one.fetch_manifest_entry(table.io, discard_deleted=True)
    }
    return Expired(tuple(gone), tuple(sorted(files)))


def remove(table: Table, old: Expired) -> None:
    """Remove the files of expired snapshots; missing files, and those that must stay, are skipped.

    A file that is not removed takes space, and nothing names it.
    """
    for path in old.files:
        with suppress(OSError, FileNotFoundError):
            table.io.delete(path)
