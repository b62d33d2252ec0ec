"""Commits the next snapshot of a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyiceberg.table.update.snapshot import ManageSnapshots

from lakesync.materialise.database.sweeping import expired, remove
from lakesync.materialise.iceberg_table import commit_once
from lakesync.materialise.shape import FOR_EVER_MS, MARK_TAG

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table, Transaction


def commit(
    table: Table,
    transaction: Transaction,
    added: Iterable[DataFile],
    replaced: Iterable[DataFile],
    said: Mapping[str, str],
) -> int:
    """Put files in the place of others, with what the snapshot says; returns the snapshot.

    Raises:
        Conflict: the table is another than it was; nothing was done.
    """
    replaced = list(replaced)
    old = expired(table)
    update = transaction.update_snapshot(snapshot_properties=dict(said))
    producer: Any = update.overwrite() if replaced else update.fast_append()
    for file in added:
        producer.append_data_file(file)
    for file in replaced:
        producer.delete_data_file(file)
    producer.commit()
    snapshot_id: int = producer.snapshot_id
    with ManageSnapshots(transaction) as refs:
        refs.create_tag(snapshot_id, MARK_TAG, FOR_EVER_MS)
    old.stage(transaction)
    commit_once(table, transaction)
    remove(table, old)
    return snapshot_id
