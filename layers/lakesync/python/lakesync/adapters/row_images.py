"""Rows in place of deltas: for a table that is filled, and for rows that filters let pass.

Law P11: ``docs/spec/databases.md``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from lakesync.adapters.database import DatabaseAdapter, Materialisable
from lakesync.core.merge import EMPTY, join, view

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
    """Rows of one table as they are now, in place of the deltas that led there."""

    table: str
    after: Stamp
    """How far the table must have come already; 0 for any."""
    last: Stamp
    """The rows hold all commits up to here, and maybe later ones; who has come so far takes none
    of them."""
    rows: Mapping[str, RowState | None]
    """By id; None where what is there of the row is to be removed."""
    schema: TableSchema | None = None
    is_last: bool = True
    """Whether the mark moves to ``last``; else more rows follow."""


@runtime_checkable
class Fillable(Protocol):
    """A `DatabaseAdapter` that takes rows in place of deltas: what batches are delivered to."""

    def put_rows(self, images: RowImages) -> Result[Inserted, LakeSyncError]:
        """Merge rows into those that are there and remove others, in one transaction with the mark.

        A deleted row is merged only where it was before. The history up to the mark is forgotten:
        what led to these rows is not in it. Nothing happens once the mark has come to ``last``.

        Errors: Conflict, if the table has not come as far as ``after``.
        """
        ...

    def restart(self, table: str) -> Result[None, LakeSyncError]:
        """Take a table as one that has come nowhere yet: its rows stay, history and mark do not.

        Whoever fills it anew begins so.
        """
        ...

    def retry_dead_letters(self, table: str) -> Result[tuple[DeadLetter, ...], LakeSyncError]:
        """Try again the rows that are refused; gives what is refused still."""
        ...


class DestinationDatabase(DatabaseAdapter, Materialisable, Fillable, Protocol):
    """What batches are delivered to: all of the above."""


def merged_images(
    images: RowImages, stored: Mapping[str, RowState]
) -> tuple[dict[str, RowState], list[str]]:
    """Give the states that rows get by images of them, and the rows that are to be removed.

    Args:
        images: the rows as they are.
        stored: those of them that are there.
    """
    changed: dict[str, RowState] = {}
    for row_id, state in images.rows.items():
        before = stored.get(row_id)
        if state is None or (before is None and view(state) is None):
            continue
        after = join(before or EMPTY, state)
        if after != before:
            changed[row_id] = after
    gone = [row_id for row_id, state in images.rows.items() if state is None and row_id in stored]
    return changed, gone
