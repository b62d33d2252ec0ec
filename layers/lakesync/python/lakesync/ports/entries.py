"""What the buffer keeps, and what a commit writes into it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import (
    TYPE_CHECKING,
    Final,
    NamedTuple,
)

from lakesync.core.layout import ONE_LANE, Lanes

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
    """Bytes of all entries of this lane, up to and with this one: a running total, so that how
    much waits to be flushed can be set, not counted, and a repeated flush changes nothing."""
    previous: Stamp
    """The lane's entry before this one, 0 for the first: the log is a chain, in which a reader
    notices an entry that is not visible yet."""
    rule_rows: bytes = b""
    """What sync rules look at, of each delta's row; see `lakesync.wire.rule_rows`. Empty where
    there were no rules."""


@dataclass(frozen=True, slots=True)
class Head:
    """A lane's head: its last commit, and what every commit or page must know of the lane."""

    commit: Stamp = 0
    config_version: int = 0
    epoch: str = ""
    """Changes when the buffer is restored from a backup (`epoch_at`); cursors of another epoch are
    void."""
    logged_bytes: int = 0
    """Bytes of all entries ever logged in this lane."""
    flushed_bytes: int = 0
    """Of those, the bytes that the flush watermark has passed."""
    oldest_unflushed: Stamp = 0
    """The first commit that may wait to be flushed; 0 if none does."""
    last_logged: Stamp = 0
    """The lane's last log entry. ``commit`` stands above it once a read barrier raised it."""
    recent: tuple[LogEntry, ...] = ()
    """The last log entries, while they are small: they lie in the head, and move into the log
    together, as an item costs the same for one as for several."""
    is_closed: bool = False
    """No commit is made to it before it is opened again."""

    trimmed: Stamp = 0
    """Of the main lane's head alone: entries of any lane up to here may be gone; cursors below are
    void."""
    lanes: Lanes = ONE_LANE
    """Of the main lane's head alone: which lanes are open."""

    @property
    def stored_until(self) -> Stamp:
        """The last entry that does not lie in the head."""
        return self.recent[0].previous if self.recent else self.last_logged


NO_HEAD = Head()


"""The head of a lane that was never written."""


@dataclass(frozen=True, slots=True)
class LogSlice:
    """Entries of one lane, and how far they are all there is."""

    entries: tuple[LogEntry, ...]
    until: Stamp
    """There is no other entry up to here; less than what was asked for if the read ended early."""

    def is_chain(self, after: Stamp, last: Stamp) -> bool:
        """Tell whether no entry is missing.

        Args:
            after: the last stamp that was read before.
            last: the last that there is.
        """
        for entry in self.entries:
            if entry.previous > after:
                return False
            after = entry.stamp
        return after >= min(last, self.until)


def epoch_at(began: Stamp) -> str:
    """Give the name of the epoch that began at a stamp; as text, a later one is the greater."""
    return f"{began:016x}"


class StoredRow(NamedTuple):
    """A row state as the buffer holds it."""

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
    """Where to go on; empty once there are no more."""


ROW_PARTS: Final = 16


"""Parts over which the rows of a table are spread, by a hash of their ids; for ever the same."""


class StoredMark(NamedTuple):
    """An append mark as the buffer holds it."""

    mark: AppendMark
    commit: Stamp
    """The commit that wrote it."""


class RowPut(NamedTuple):
    """A row state as it shall be."""

    state: bytes
    seen: Stamp
    """The commit that wrote the state which this one replaces; 0 if there was none."""


class MarkPut(NamedTuple):
    """An append mark as it shall be."""

    mark: AppendMark
    seen: Stamp
    """The commit that wrote the mark which this one replaces; 0 if there was none."""


@dataclass(frozen=True, slots=True)
class LaneCommit:
    """One lane's part of a commit."""

    seen: Head | None
    """The head that was read; the commit happens only if it still stands. None: no head yet."""
    entry: LogEntry
    chunk: tuple[LogEntry, ...] = ()
    """What moves into the log, as one item: the entries that lay in the head, and the new one as
    the last. Empty if the new entry joins those in the head."""


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
    """The same for each try of the same commit, at most 36 characters: a repeated try of a commit
    that happened, whose answer was lost, succeeds and changes nothing."""
    marks: Mapping[MarkKey, MarkPut] = field(default_factory=lambda: MappingProxyType({}))
    """The append marks."""
    epoch: str = ""
    """The gateway's."""


def head_after(before: Head, commit: Commit, lane_commit: LaneCommit) -> Head:
    """Give a lane's head as a commit leaves it."""
    entry = lane_commit.entry
    return replace(
        before,
        commit=commit.stamp,
        config_version=commit.config_version,
        epoch=commit.epoch,
        logged_bytes=entry.logged_bytes,
        oldest_unflushed=before.oldest_unflushed or commit.stamp,
        last_logged=entry.stamp,
        recent=() if lane_commit.chunk else (*before.recent, entry),
        is_closed=False,
    )


class HeadMoved(Exception):
    """A head was not as it had been seen; nothing was written."""

    def __init__(self, heads: Mapping[str, Head]) -> None:
        super().__init__(f"moved: {', '.join(heads)}")
        self.heads = heads
        """The heads that stood in the way, as they are now."""


class ConfigMoved(Exception):
    """Another configuration is in force than the one that was changed; nothing was written."""


class HeadBusy(Exception):
    """Another transaction was just writing to a head; nothing was written."""


class StaleRead(Exception):
    """The heads stand, but a row or mark is not as it was seen; nothing was written."""

    def __init__(self, message: str, rows: Mapping[RowKey, StoredRow | None] | None = None) -> None:
        super().__init__(message)
        self.rows = rows or {}
        """The rows that are not as they were seen, as they are now."""
