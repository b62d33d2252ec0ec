"""The encoded deltas of a page, and the rows that a commit's deltas still need."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lakesync.core.clock import Stamp
    from lakesync.ports import RowKey


class Records(NamedTuple):
    """Deltas as they are sent."""

    runs: tuple[bytes, ...] = ()
    deltas: int = 0

    @property
    def size_bytes(self) -> int:
        """The bytes of the runs."""
        return sum(map(len, self.runs))

    def followed_by(self, *others: Records) -> Records:
        """Give these deltas, and others behind them."""
        runs = [run for each in (self, *others) for run in each.runs]
        return Records(tuple(runs), sum(each.deltas for each in (self, *others)))


NO_RECORDS: Final = Records()


class FilteredCommit(NamedTuple):
    """What a client may see of one commit."""

    stamp: Stamp
    records: Records
    rows: Mapping[RowKey, bool]
    """Rows that have to be read, and are sent as they are now; of each whether the client may hold
    it, so that its removal is sent if it is hidden by now."""
    rows_sent: int = 0
    """Rows before these that the client was sent already."""


@dataclass(slots=True)
class RowsToRead:
    """Collects the rows of `FilteredCommit.rows`."""

    may_be_held: dict[RowKey, bool] = field(default_factory=dict)
    removed: set[RowKey] = field(default_factory=set)
    """Rows of which the commit tells a removal as well: they must not be sent before it."""

    def want(self, key: RowKey, *, may_be_held: bool) -> None:
        """Note that a row has to be read."""
        self.may_be_held[key] = self.may_be_held.get(key, False) or may_be_held

    def in_order(self) -> dict[RowKey, bool]:
        """Give the rows, those that the commit also removes last."""
        in_order = sorted(self.may_be_held, key=self.removed.__contains__)
        return {key: self.may_be_held[key] for key in in_order}
