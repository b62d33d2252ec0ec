"""Own writes that the gateway accepted and rules hide: the device keeps them where no app reads.

A page that passes the commit of an own write without showing it proves that rules hide its row. The
write then leaves the rows of the file, and every query with it. It may still be lost by a restored
buffer, and perhaps this is the only device that has it. So it stays here for as long as a backup
may reach back. After a restore it returns to the outbox like any other own write. Laws K13 and
K15: ``docs/spec/client.md``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lakesync.client.storage.rows import TOMBSTONE_KEPT_DAYS
from lakesync.client.upload.entries import Status
from lakesync.core.clock import stamp
from lakesync.core.delta import known_delta
from lakesync.core.omission import delta_without
from lakesync.core.row_deltas import deltas_of
from lakesync.wire.records import decode_records, encode_records

if TYPE_CHECKING:
    from collections.abc import Collection

    from lakesync.client.storage.file import ClientFile
    from lakesync.client.storage.rows import LocalKey
    from lakesync.core.clock import Stamp
    from lakesync.core.merge import RowState
    from lakesync.core.omission import Omitted


@dataclass(frozen=True)
class Journal:
    """The journal of one file. Used within the caller's transaction."""

    file: ClientFile

    def keep(self, key: LocalKey, state: RowState, writes: Collection[Stamp], at: Stamp) -> None:
        """Keep this client's own writes of some stamps, out of a row that has them.

        ``at``: the commit up to which the page is complete that shows them to be hidden.
        """
        me, (table_id, row_id) = self.file.client_id, key
        table = self.file.catalogue.by_id(table_id).name
        self.file.connection.executemany(
            "INSERT OR IGNORE INTO _lakesync_journal VALUES (?, ?, ?, ?, ?)",
            [
                (delta.hlc, table_id, row_id, at, encode_records((delta,)))
                for delta in deltas_of(table, row_id, state, nobody=me)
                if delta.client_id == me and delta.hlc in writes
            ],
        )

    def give_back(self) -> None:
        """Hold all of it back in the outbox: the buffer was restored, and may have lost it."""
        execute = self.file.connection.execute
        rows = execute("SELECT hlc, table_id, row_id, run FROM _lakesync_journal").fetchall()
        execute("DELETE FROM _lakesync_journal")
        for hlc, table_id, row_id, run in rows:
            table = self.file.catalogue.by_id(table_id)  # its spelling may be another by now
            (old,) = decode_records(run)
            delta = known_delta(old.op, table.name, row_id, old.client_id, hlc, old.columns)
            self.file.outbox.add(delta, table_id, Status.HELD_BACK)
        self.file.rows.refold(
            dict.fromkeys([(table_id, row_id) for _, table_id, row_id, _ in rows])
        )

    def leave_out(self, table_id: int, omitted: Omitted) -> None:
        """Remove the contents of columns of a table."""
        select = "SELECT hlc, row_id, run FROM _lakesync_journal WHERE table_id = ?"
        for hlc, row_id, run in self.file.connection.execute(select, (table_id,)).fetchall():
            (old,) = decode_records(run)
            left = delta_without(old, omitted)
            if left is not old:
                self.file.connection.execute(
                    "UPDATE _lakesync_journal SET run = ? WHERE (hlc, table_id, row_id) = (?, ?, ?)"
                    if left
                    else "DELETE FROM _lakesync_journal "
                    "WHERE ? IS NULL AND (hlc, table_id, row_id) = (?, ?, ?)",
                    (left and encode_records((left,)), hlc, table_id, row_id),
                )

    def clear(self) -> None:
        """Forget all of it: the file goes to another gateway, which this is no business of."""
        self.file.connection.execute("DELETE FROM _lakesync_journal")

    def expire(self, cursor: Stamp) -> None:
        """Forget what no backup can have lost by now."""
        until = cursor - stamp(TOMBSTONE_KEPT_DAYS * 86_400_000)
        self.file.connection.execute("DELETE FROM _lakesync_journal WHERE hidden_at <= ?", (until,))
