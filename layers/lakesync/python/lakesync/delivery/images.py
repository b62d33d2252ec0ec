"""Decides which rows a filtered destination receives, by their current state in the buffer.

A destination with filters receives rows, not deltas: a delta does not show whether its row was
visible before. Each row that a batch touches is read as it is now. If the destination may see it,
it receives the whole row; otherwise its copy of the row is removed. If a row is read too early, the
batch of the missed commit corrects it. If a row is not yet visible as its batch wrote it, delivery
waits. Law D10: ``docs/spec/delivery.md``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lakesync.core.merge import RowState, as_read, view
from lakesync.core.visibility import rule_columns
from lakesync.errors import Contention
from lakesync.wire.row_state import decode_row_state

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lakesync.core.clock import Stamp
    from lakesync.core.delta import Delta
    from lakesync.core.destinations import Destination
    from lakesync.ports import Rows, StoredRow

IMAGES_MAX: Final = 250
"""Rows that are read at a time: nearly always at most 1 MB, although a row may have 380 KB."""


class Images:
    """The rows of one table that one destination may see."""

    def __init__(
        self,
        rows: Rows,
        gateway: str,
        destination: Destination,
        table: str,
        visible_in_ms: Callable[[Stamp], int],
        *,
        delete_wins: bool,
    ) -> None:
        self._rows = rows
        self._visible_in_ms = visible_in_ms
        self._gateway = gateway
        self._table = table
        self._viewer = destination.viewer()
        self._columns = destination.rows.columns(table)
        self.is_filtered = destination.is_filtered(table)
        # Only rows that are sent whole each time may lack columns that a later insert shows again.
        self._delete_wins = delete_wins and self.is_filtered

    def of(self, wanted: Mapping[str, Stamp]) -> dict[str, RowState | None]:
        """Read rows; None for those that do not exist, or that the destination may not see.

        Args:
            wanted: the rows, each with a commit that wrote it; 0 for none.

        Raises:
            Contention: a row is not visible yet; try again after `retry_after_s`.
        """
        stored = self._rows.rows(self._gateway, [(self._table, row_id) for row_id in wanted])
        read = {row_id: row for (_, row_id), row in stored.items()}
        early = [commit for row_id, commit in wanted.items()
                 if row_id not in read or read[row_id].commit < commit]  # fmt: skip
        if wait_ms := self._visible_in_ms(max(early, default=0)):
            raise becoming_visible(wait_ms)
        return dict.fromkeys(wanted) | self.decided(read)

    def decided(self, stored: Mapping[str, StoredRow]) -> dict[str, RowState | None]:
        """Return rows, with None for hidden ones; deleted rows are kept, to be deleted there."""
        states = {
            row_id: as_read(decode_row_state(row.state), delete_wins=self._delete_wins)
            for row_id, row in stored.items()
        }
        return {
            row_id: state if self._is_shown(state) else None for row_id, state in states.items()
        }

    def of_events(self, rows: Mapping[str, RowState]) -> dict[str, RowState | None]:
        """Return rows of an append table, each a complete event, with None for hidden ones."""
        return {row_id: state if self._is_shown(state) else None for row_id, state in rows.items()}

    def shows_event(self, delta: Delta) -> bool:
        """Return whether the destination may see a row of an append table, by its only delta."""
        return not self.is_filtered or self._viewer.sees(
            self._table, rule_columns(delta.columns, self._columns)
        )

    def _is_shown(self, state: RowState) -> bool:
        row = view(state)
        if row is None or not self.is_filtered:
            return True
        return self._viewer.sees(self._table, rule_columns(row.items(), self._columns))


def becoming_visible(wait_ms: int) -> Contention:
    """Return the error for rows that may not be visible yet."""
    return Contention(
        "what was just committed is becoming visible; try again in a moment",
        retry_after_s=-(-wait_ms // 1000),
    )
