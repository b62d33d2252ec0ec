"""Rows in place of deltas: to fill a table, and for rows that newly pass a filter.

Law P11: ``docs/spec/databases.md``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from lakesync.adapters.database import DatabaseAdapter, Materialisable
from lakesync.core.forgetting import newer_than
from lakesync.core.merge import EMPTY, join, view
from lakesync.result import Ok

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lakesync.adapters.database import DeadLetter, Inserted
    from lakesync.core.clock import Stamp
    from lakesync.core.merge import RowState
    from lakesync.core.schema import TableSchema
    from lakesync.errors import LakeSyncError
    from lakesync.result import Result


@dataclass(frozen=True, slots=True)
class RowImages:
    """Current rows of one table, in place of the deltas that led to them."""

    table: str
    after: Stamp
    """How far the table must have come already; 0 for any."""
    last: Stamp
    """The rows include all commits up to here, and maybe later ones; a table whose mark is here
    takes none of them."""
    rows: Mapping[str, RowState | None]
    """By id; None where what is there of the row is to be removed."""
    schema: TableSchema | None = None
    is_last: bool = True
    """Whether the mark moves to ``last``; else more rows follow."""
    horizon: Stamp = 0
    """Up to here the rows may lack deletions that were forgotten: of what is stored up to here,
    only what a row still has is certain (`lakesync.core.forgetting`)."""


@runtime_checkable
class Fillable(Protocol):
    """A `DatabaseAdapter` that also takes rows in place of deltas: the target of deliveries."""

    def put_rows(self, images: RowImages) -> Result[Inserted, LakeSyncError]:
        """Merge rows into the stored ones and remove others, in one transaction with the mark.

        A deleted row is merged only if it was stored before. The history up to the mark is
        forgotten, as it does not contain the deltas behind these rows. Once the mark is at
        ``last``, the call has no effect.

        Errors: Conflict, if the table has not come as far as ``after``.
        """
        ...

    def restart(self, table: str) -> Result[None, LakeSyncError]:
        """Reset a table: its rows stay, its history and mark are removed.

        Filling it anew begins with this.
        """
        ...

    def retry_dead_letters(self, table: str) -> Result[tuple[DeadLetter, ...], LakeSyncError]:
        """Try again the rows that are refused; returns what is refused still."""
        ...


@runtime_checkable
class DestinationDatabase(DatabaseAdapter, Materialisable, Fillable, Protocol):
    """What batches are delivered to: all of the above."""

    def answers(self) -> Result[None, LakeSyncError]:
        """Have the database answer with these credentials; nothing is created."""
        ...


class NothingToQuery:
    """The part of a `DestinationDatabase` that concerns tables to query, of one that has none.

    It keeps row states alone, so that it refuses no row.
    """

    def rewrite(self, table: str) -> Result[int, LakeSyncError]:
        """Do nothing; see `Materialisable`."""
        del table
        return Ok(0)

    def dead_letters(self, table: str) -> Result[tuple[DeadLetter, ...], LakeSyncError]:
        """Return none."""
        del table
        return Ok(())

    def retry_dead_letters(self, table: str) -> Result[tuple[DeadLetter, ...], LakeSyncError]:
        """Return none; see `Fillable`."""
        return self.dead_letters(table)


def merged_images(
    images: RowImages, stored: Mapping[str, RowState]
) -> tuple[dict[str, RowState], list[str]]:
    """Return the states that rows get from images of them, and the rows to be removed.

    Args:
        images: the current rows.
        stored: the states of those that are stored.
    """
    changed: dict[str, RowState] = {}
    for row_id, state in images.rows.items():
        before = stored.get(row_id)
        if state is None or (before is None and view(state) is None):
            continue
        after = join(newer_than(before, images.horizon) if before else EMPTY, state)
        if after != before:
            changed[row_id] = after
    gone = [row_id for row_id, state in images.rows.items() if state is None and row_id in stored]
    return changed, gone
