"""A buffer that shows a commit's head before the rest of it, as DynamoDB may.

"If a non-transactional read is made on items that are part of an in-flight transaction, it may read
the new state of some of them and the old state of others": no emulator does that.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from lakesync.buffer.memory_buffer import MemoryBuffer
from lakesync.errors import Contention

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from lakesync.core.clock import Stamp
    from lakesync.ports import (
        Commit,
        LogEntry,
        LogSlice,
        MarkKey,
        RowKey,
        RowSlice,
        StoredMark,
        StoredRow,
    )


class LaggingBuffer(MemoryBuffer):
    """Hides the latest commit's entries, rows and marks from so many reads."""

    def __init__(self) -> None:
        super().__init__()
        self.lag = 0
        """Reads that do not see the latest commit yet."""
        self.hidden: Stamp = 0
        self._old_rows: dict[RowKey, StoredRow] = {}
        self._old_marks: dict[MarkKey, StoredMark] = {}
        self._stored: dict[Stamp, set[Stamp]] = {}
        """By commit, the entries that it put into the log."""

    def commit(self, commit: Commit) -> None:
        rows = super().rows(commit.gateway, commit.rows)
        marks = super().marks(commit.gateway, commit.marks)
        super().commit(commit)
        self._old_rows, self._old_marks, self.hidden = rows, marks, commit.stamp
        chunks = [part.chunk for part in commit.lanes.values()]
        self._stored[commit.stamp] = {entry.stamp for chunk in chunks for entry in chunk}

    def rows(self, gateway: str, wanted: Iterable[RowKey]) -> dict[RowKey, StoredRow]:
        """Return rows, maybe as they were before the latest commit."""
        rows = super().rows(gateway, wanted)
        if not self._lagging():
            return rows
        seen = {key: row for key, row in rows.items() if row.commit != self.hidden}
        return seen | {key: row for key, row in self._old_rows.items() if key in rows}

    def marks(self, gateway: str, wanted: Iterable[MarkKey]) -> dict[MarkKey, StoredMark]:
        """Return marks, maybe as they were before the latest commit."""
        marks = super().marks(gateway, wanted)
        if not marks or not self._lagging():
            return marks
        seen = {key: mark for key, mark in marks.items() if mark.commit != self.hidden}
        return seen | {key: mark for key, mark in self._old_marks.items() if key in marks}

    def scan_rows(self, gateway: str, table: str, place: str, count_max: int) -> RowSlice:
        """Return a part of a table's rows, maybe as they were before the latest commit."""
        scan = super().scan_rows(gateway, table, place, count_max)
        if not self._lagging():
            return scan
        rows = [
            (row_id, self._old_rows.get((table, row_id)) if row.commit == self.hidden else row)
            for row_id, row in scan.rows
        ]
        return replace(scan, rows=tuple((row_id, row) for row_id, row in rows if row))

    def read_marks_serializable(
        self, gateway: str, wanted: Iterable[MarkKey]
    ) -> dict[MarkKey, StoredMark]:
        """Return marks, or refuse while the latest commit is not visible."""
        if self._lagging():
            raise Contention("a commit is becoming visible")
        return super().marks(gateway, wanted)

    def entries(
        self, gateway: str, lane: str, after: Stamp, until: Stamp, count_max: int
    ) -> LogSlice:
        """Return entries, maybe without those that the latest commit put into the log."""
        log = super().entries(gateway, lane, after, until, count_max)
        if not self._lagging():
            return log
        hidden = self._stored.get(self.hidden, set())
        entries = tuple(entry for entry in log.entries if entry.stamp not in hidden)
        return replace(log, entries=entries)

    def log_items(
        self, gateway: str, wanted: Mapping[str, Stamp]
    ) -> dict[str, tuple[LogEntry, ...]]:
        """Return items of the log, maybe without those that the latest commit put there."""
        items = super().log_items(gateway, wanted)
        if not self._lagging():
            return items
        return {lane: chunk for lane, chunk in items.items() if chunk[-1].stamp != self.hidden}

    def _lagging(self) -> bool:
        self.lag -= 1
        return self.lag >= 0
