"""What the buffer keeps, and what a commit writes into it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import (
    TYPE_CHECKING,
    Final,
    NamedTuple,
)

from lakesync.core.layout import MAIN_LANE, ONE_LANE, Lanes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lakesync.core.append import AppendMark
    from lakesync.core.clock import Stamp
    from lakesync.ports.common import MarkKey, RowKey


@dataclass(frozen=True, slots=True)
class LogEntry:
    """One commit's effective deltas in one lane. Immutable, so it may be cached for ever."""

    stamp: Stamp
    records: bytes
    """A wire-ready run of deltas; see `lakesync.wire.records`."""
    count: int
    tables: frozenset[str]
    logged_bytes: int
    """Bytes of all entries of this lane, up to and including this one. It is a running total, so
    that the amount that waits to be flushed can be set and not counted, and a repeated flush
    changes nothing."""
    previous: Stamp
    """The lane's entry before this one, 0 for the first. The log is a chain, in which a reader
    notices an entry that is not visible yet."""
    rule_rows: bytes = b""
    """The columns that sync rules read, of each delta's row; see `lakesync.wire.rule_rows`. Empty
    where there were no rules."""


@dataclass(frozen=True, slots=True)
class Head:
    """A lane's head: its last commit, and what every commit or page must know of the lane."""

    commit: Stamp = 0
    config_version: int = 0
    epoch: str = ""
    """Of the main lane's head only: which gateway this is, and its last restore from a backup; see
    `lakesync.core.epoch`. Empty before the first commit."""
    logged_bytes: int = 0
    """Bytes of all entries ever logged in this lane."""
    flushed_bytes: int = 0
    """Of those, the bytes that the flush watermark has passed."""
    oldest_unflushed: Stamp = 0
    """The first commit that may wait to be flushed; 0 if none does."""
    last_logged: Stamp = 0
    """The lane's last log entry. ``commit`` is above it after a read barrier raised the head."""
    recent: tuple[LogEntry, ...] = ()
    """The last log entries, while they are small. They are stored in the head, and move into the
    log together, as one item costs the same for one entry as for several."""
    is_closed: bool = False
    """No commit is made to it until it is opened again."""

    trimmed: Stamp = 0
    """Of the main lane's head only: entries of any lane up to here may be deleted; cursors below
    are void."""
    lanes: Lanes = ONE_LANE
    """Of the main lane's head only: which lanes are open."""

    @property
    def stored_until(self) -> Stamp:
        """The last entry that is not in the head."""
        return self.recent[0].previous if self.recent else self.last_logged


NO_HEAD = Head()


"""The head of a lane that was never written."""


@dataclass(frozen=True, slots=True)
class LogSlice:
    """Entries of one lane, and the stamp up to which they are complete."""

    entries: tuple[LogEntry, ...]
    until: Stamp
    """There is no other entry up to here; less than requested if the read ended early."""

    def is_chain(self, after: Stamp, last: Stamp) -> bool:
        """Return whether no entry is missing.

        Args:
            after: the last stamp that was read before.
            last: the last entry that exists.
        """
        for entry in self.entries:
            if entry.previous > after:
                return False
            after = entry.stamp
        return after >= min(last, self.until)


class StoredRow(NamedTuple):
    """A row state as the buffer stores it."""

    state: bytes
    """Encoded; see `lakesync.wire.row_state`."""
    commit: Stamp
    """The commit that wrote it."""


@dataclass(frozen=True, slots=True)
class RowSlice:
    """Some rows of one table, and where the next ones begin."""

    rows: tuple[tuple[str, StoredRow], ...]
    """Row ids with their rows, in the buffer's own order."""
    place: str
    """Where to continue; empty at the end."""


ROW_PARTS: Final = 16


"""Parts over which the rows of a table are spread, by a hash of their ids; for ever the same."""


class StoredMark(NamedTuple):
    """An append mark as the buffer stores it."""

    mark: AppendMark
    commit: Stamp
    """The commit that wrote it."""


class RowPut(NamedTuple):
    """A row state to be written."""

    state: bytes
    seen: Stamp
    """The commit that wrote the state that this one replaces; 0 if there was none."""


class MarkPut(NamedTuple):
    """An append mark to be written."""

    mark: AppendMark
    seen: Stamp
    """The commit that wrote the mark that this one replaces; 0 if there was none."""


@dataclass(frozen=True, slots=True)
class LaneCommit:
    """One lane's part of a commit."""

    seen: Head | None
    """The head that was read; the commit succeeds only if it is unchanged. None: no head yet."""
    entry: LogEntry
    chunk: tuple[LogEntry, ...] = ()
    """The item that moves into the log: the entries that were in the head, and the new one as the
    last. Empty if the new entry joins those in the head."""


@dataclass(frozen=True, slots=True)
class Commit:
    """Everything that becomes visible at one stamp, in one transaction or not at all."""

    gateway: str
    stamp: Stamp
    config_version: int
    lanes: Mapping[str, LaneCommit]
    rows: Mapping[RowKey, RowPut]
    """The merged row states."""
    token: str
    """The same for each try of the same commit, at most 36 characters. A repeated commit whose
    answer was lost succeeds and changes nothing."""
    marks: Mapping[MarkKey, MarkPut] = field(default_factory=lambda: MappingProxyType({}))
    """The append marks."""
    epoch: str = ""
    """The gateway's epoch: the main lane's head gets it with its first commit."""

    def first_epoch(self, lane: str, seen: Head | None) -> str:
        """Return the epoch that a lane's head gets with this commit; empty if it gets none."""
        return self.epoch if lane == MAIN_LANE and not (seen and seen.epoch) else ""


def head_after(before: Head, commit: Commit, lane: str) -> Head:
    """Return a lane's head after a commit."""
    lane_commit = commit.lanes[lane]
    entry = lane_commit.entry
    return replace(
        before,
        commit=commit.stamp,
        config_version=commit.config_version,
        epoch=before.epoch or commit.first_epoch(lane, before),
        logged_bytes=entry.logged_bytes,
        oldest_unflushed=before.oldest_unflushed or commit.stamp,
        last_logged=entry.stamp,
        recent=() if lane_commit.chunk else (*before.recent, entry),
        is_closed=False,
    )


class HeadMoved(Exception):
    """A head was not as seen; nothing was written."""

    def __init__(self, heads: Mapping[str, Head]) -> None:
        super().__init__(f"moved: {', '.join(heads)}")
        self.heads = heads
        """The conflicting heads, as they are now."""


class ConfigMoved(Exception):
    """The configuration in force is not the one that was changed; nothing was written."""


class HeadBusy(Exception):
    """Another transaction was writing to a head; nothing was written."""


class StaleRead(Exception):
    """The heads are unchanged, but a row or mark is not as seen; nothing was written."""

    def __init__(self, message: str, rows: Mapping[RowKey, StoredRow | None] | None = None) -> None:
        super().__init__(message)
        self.rows = rows or {}
        """The rows that are not as seen, in their present state."""
