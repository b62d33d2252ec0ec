"""The rows into which the log is folded."""

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
        """Return the states of those rows that exist."""
        ...

    def rows_within(
        self, gateway: str, wanted: Iterable[RowKey], bytes_max: int
    ) -> tuple[dict[RowKey, StoredRow], list[RowKey]]:
        """Return the states of rows in order, up to so many bytes, and the rows that are left.

        At least one row is read, however large it is.
        """
        ...

    def scan_rows(self, gateway: str, table: str, place: str, count_max: int) -> RowSlice:
        """Return a table's rows from a place on: every row that exists throughout the scan, once.

        Args:
            gateway: whose.
            table: the table.
            place: `RowSlice.place` of the slice before; empty for the first.
            count_max: the most rows. There may be fewer: a slice also ends at about 1 MB.
        """
        ...

    def scan_part(
        self, gateway: str, table: str, part: int, after: str, count_max: int
    ) -> RowSlice:
        """Return rows of one of a table's `ROW_PARTS` parts, in the order of their ids.

        Args:
            gateway: whose.
            table: the table.
            part: the part's number, from 0.
            after: the row id behind which to begin; empty for the first. `RowSlice.place` of the
                result is the next one.
            count_max: the most rows. There may be fewer: a slice also ends at about 1 MB.
        """
        ...

    def forget_row(self, gateway: str, table: str, row_id: str, seen: Stamp) -> bool:
        """Remove a row's state, if its last commit is still the one that was seen.

        Returns:
            False, and nothing removed, if it is not, or the row is gone already.
        """
        ...
