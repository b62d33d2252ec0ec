"""The rows that the log folds into."""

from __future__ import annotations

from typing import (
    TYPE_CHECKING,
    Protocol,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lakesync.core.clock import Stamp
    from lakesync.ports.common import RowKey
    from lakesync.ports.entries import RowSlice, StoredRow


class Rows(Protocol):
    """Row states."""

    def rows(self, gateway: str, wanted: Iterable[RowKey]) -> dict[RowKey, StoredRow]:
        """Give the states of the rows that exist."""
        ...

    def rows_within(
        self, gateway: str, wanted: Iterable[RowKey], bytes_max: int
    ) -> tuple[dict[RowKey, StoredRow], list[RowKey]]:
        """Give the states of rows in their order until they hold so many bytes; and what is left.

        At least one row is read, however large it is.
        """
        ...

    def scan_rows(self, gateway: str, table: str, place: str, count_max: int) -> RowSlice:
        """Give a table's rows from a place on: every row that is there all the while, once.

        Args:
            gateway: whose.
            table: the table.
            place: `RowSlice.place` of the slice before; empty for the first.
            count_max: rows at the most. It may give fewer: about 1 MB ends it too.
        """
        ...

    def scan_part(
        self, gateway: str, table: str, part: int, after: str, count_max: int
    ) -> RowSlice:
        """Give rows of one of a table's `ROW_PARTS` parts, in the order of their ids.

        Args:
            gateway: whose.
            table: the table.
            part: the part's number, from 0.
            after: the row id behind which to begin; empty for the first. `RowSlice.place` of what
                is given is the next.
            count_max: rows at the most. It may give fewer: about 1 MB ends it too.
        """
        ...

    def forget_row(self, gateway: str, table: str, row_id: str, seen: Stamp) -> bool:
        """Remove a row's state, if the commit that wrote it is still the one that was seen.

        Returns:
            False if it is not, or the row is gone already; nothing was removed.
        """
        ...
