"""Makes a page durable: every row is accepted by the destination, or a dead letter."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from lakesync.connectors.deltas import client_id_of, pushes_of
from lakesync.connectors.refusals import refused_in
from lakesync.core.messages import Push

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lakesync.connectors.reading import Read
    from lakesync.core.delta import Delta
    from lakesync.core.messages import PushReceipt
    from lakesync.errors import LakeSyncError
    from lakesync.ports import WallClock


class Letters(Protocol):
    """Where rows go that are refused."""

    def add(self, table: str, row_id: str, error: LakeSyncError, delta: Delta | None) -> None:
        """Store a row with the reason, in place of its former dead letter."""
        ...

    def take_back(self, table: str, row_id: str) -> None:
        """Remove the dead letter of a row, because it was accepted since."""
        ...


class Taking:
    """Pushes the pages of one connector.

    Args:
        name: the connector's, which determines the client that it writes as.
        push: pushes deltas; raises `LakeSyncError`.
        letters: the dead letters, for refused rows.
        wall_clock: the time.
        shape: returns the deltas that are pushed for a page's deltas.
        pages: usual pages that are pushed at a time.
    """

    def __init__(
        self,
        name: str,
        push: Callable[[Push], PushReceipt],
        letters: Letters,
        wall_clock: WallClock,
        shape: Callable[[Sequence[Delta]], Sequence[Delta]],
        pages: int,
    ) -> None:
        self.client_id = client_id_of(name)
        self._push = push
        self._letters = letters
        self._wall_clock = wall_clock
        self._shape = shape
        self._pages = pages

    def take(self, read: Read, *, has_letters: bool) -> int:
        """Make all of a page durable; returns how many rows were pushed.

        Args:
            read: the page.
            has_letters: whether there are dead letters, which may be withdrawn.
        """
        for row_id, error, table in read.refused:
            self._letters.add(table, row_id, error, None)
        rows, shaped = 0, self._shape(read.deltas)
        for part in pushes_of(shaped, self._pages):
            self._hand_over(part, has_letters=has_letters)
            rows += len(part)
        if has_letters:
            # A row that no longer passes the filter lacks nothing at the destination.
            refused = {(table, row_id) for row_id, _, table in read.refused}
            there = refused | {(one.table, one.row_id) for one in shaped}
            for table, row_id in {(one.table, one.row_id): None for one in read.deltas}:
                if (table, row_id) not in there:
                    self._letters.take_back(table, row_id)
        return rows

    def _hand_over(self, deltas: Sequence[Delta], *, has_letters: bool) -> None:
        push = Push(self.client_id, tuple(enumerate(deltas)), trusted=True)
        receipt = self._push(push)
        refused = refused_in(receipt, deltas, self._wall_clock())
        for index, delta in enumerate(deltas):
            if index in refused:
                self._letters.add(delta.table, delta.row_id, refused[index], delta)
            elif has_letters:
                self._letters.take_back(delta.table, delta.row_id)
