"""Columns that are left out of a table from now on: none of their data stays on the device.

A page that lacks a column says nothing about it, and merging would keep the old values. So these
are removed at once, with the page that names the table. Law K33: ``docs/spec/client.md``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakesync.client.recovery.journal import Journal
from lakesync.core.omission import state_without

if TYPE_CHECKING:
    from lakesync.client.storage.file import ClientFile
    from lakesync.client.storage.rows import LocalKey
    from lakesync.core.merge import RowState
    from lakesync.core.omission import Omitted


def leave_out(file: ClientFile, table_id: int, omitted: Omitted) -> None:
    """Remove the contents of columns of a table, except own waiting or lost edits; safe to repeat.

    Used within the caller's transaction. Cost: each row of the table is read, and written if it has
    one of the columns.
    """
    if not omitted:
        return
    rest: dict[LocalKey, RowState] = {}
    for row_id, row in file.rows.of_table(table_id):
        left = state_without(row.known, omitted)
        if left is not row.known:
            rest[table_id, row_id] = left
    file.rows.refold(rest)
    file.conflicts.omit(table_id, omitted)
    Journal(file).leave_out(table_id, omitted)
