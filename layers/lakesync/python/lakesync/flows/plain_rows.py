"""The changes between two snapshots of a table: rows that are new, or differ.

Two snapshots are compared by ranges of their keys, so memory is bounded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from zlib import crc32

from lakesync.connectors.port import Change, Unreadable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lakesync.adapters.snapshots import SnapshotTable, Step
    from lakesync.connectors.sql.plan import Plan
    from lakesync.core.clock import Stamp

COMPARED_ROWS_MAX: Final = 500_000
"""Rows whose former values are in memory at a time; larger steps are compared in parts."""


@dataclass(frozen=True)
class Rows:
    """The rows of one step from a snapshot to another."""

    table: SnapshotTable
    plan: Plan
    step: Step
    hlc: Stamp

    def added(self, skipped: int = 0) -> Iterator[Change | Unreadable]:
        """Return all rows of the files that it added."""
        return map(self._change, self.table.rows(self.step, self.plan.columns, skipped=skipped))

    def compared(self) -> Iterator[Change | Unreadable]:
        """Yield the differences between the files that it removed and those that it added."""
        for part, parts in parts_of(self.table.count(self.step, left=True)):
            before: dict[str, int] = {}
            for row in self.table.rows(self.step, self.plan.columns, left=True):
                row_id = self.plan.row_id(row)
                if part_of(row_id, parts) == part:
                    before[row_id] = hash(repr(row))
            for row in self.table.rows(self.step, self.plan.columns):
                row_id = self.plan.row_id(row)
                if part_of(row_id, parts) == part and before.pop(row_id, None) != hash(repr(row)):
                    yield self._change(row)
            for row_id in sorted(before):
                yield Change(row_id, None, hlc=self.hlc)

    def row_ids(self) -> Iterator[str]:
        """Yield the ids of all rows of the added files, except rows with a NULL in the key.

        Rows with an unreadable value are included: they exist.
        """
        for row in self.table.rows(self.step, self.plan.columns):
            if not self._lacks_key(row):
                yield self.plan.row_id(row)

    def _lacks_key(self, row: tuple[Any, ...]) -> bool:
        return any(row[at] is None for at in self.plan.key_places)

    def _change(self, row: tuple[Any, ...]) -> Change | Unreadable:
        row_id = self.plan.row_id(row)
        if self._lacks_key(row):
            named = ", ".join(self.plan.key)
            return Unreadable(row_id, f"a column of its key is NULL: {named}")
        try:
            return Change(row_id, self.plan.values(row), hlc=self.hlc)
        except ValueError as exc:
            return Unreadable(row_id, str(exc))


def parts_of(rows: int) -> Iterator[tuple[int, int]]:
    """Return the number of each part of the rows, and how many parts there are."""
    parts = max(1, -(-rows // COMPARED_ROWS_MAX))
    return ((part, parts) for part in range(parts))


def part_of(row_id: str, parts: int) -> int:
    """Return the number of the part that a row is in."""
    return crc32(row_id.encode()) % parts if parts > 1 else 0
