"""The encoded deltas of a page, and the rows that a commit's deltas still need."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from lakesync.core.clock import Stamp
    from lakesync.ports import RowKey


ROWS_READ_AT_ONCE: Final = 100
"""Rows of several commits that become visible are read together once there are so many: one request
to DynamoDB takes as many. One commit more may be added."""


class Records(NamedTuple):
    """Deltas as they are sent."""

    runs: tuple[bytes, ...] = ()
    deltas: int = 0

    @property
    def size_bytes(self) -> int:
        """The bytes of the runs."""
        return sum(map(len, self.runs))

    def followed_by(self, *others: Records) -> Records:
        """Return these deltas, followed by others."""
        runs = [run for each in (self, *others) for run in each.runs]
        return Records(tuple(runs), sum(each.deltas for each in (self, *others)))


NO_RECORDS: Final = Records()


class FilteredCommit(NamedTuple):
    """The visible part of one commit."""

    stamp: Stamp
    records: Records
    rows: Sequence[RowKey]
    """Rows to read, which are sent as they are now if they are visible."""
    rows_sent: int = 0
    """How many of the commit's rows, from the first on, the client was already sent."""


@dataclass(slots=True)
class RowsToRead:
    """Collects the rows of `FilteredCommit.rows`."""

    wanted: dict[RowKey, None] = field(default_factory=dict)
    removed: set[RowKey] = field(default_factory=set)
    """Rows that the commit also removes: they are sent after their removals, never before."""

    def want(self, key: RowKey) -> None:
        """Note that a row has to be read."""
        self.wanted[key] = None

    def removed_last(self) -> list[RowKey]:
        """Return the rows, with those that the commit also removes at the end."""
        return sorted(self.wanted, key=self.removed.__contains__)


def batch_of(
    commits: Iterator[FilteredCommit], deltas_max: int, bytes_max: int
) -> list[FilteredCommit]:
    """Take commits that may fill a page, or whose rows are read together; at least one, if any."""
    batch: list[FilteredCommit] = []
    rows = deltas = size = 0
    for commit in commits:
        batch.append(commit)
        rows += len(commit.rows)
        deltas += commit.records.deltas + len(commit.rows)
        size += commit.records.size_bytes
        if rows >= ROWS_READ_AT_ONCE or deltas >= deltas_max or size >= bytes_max:
            break
    return batch
