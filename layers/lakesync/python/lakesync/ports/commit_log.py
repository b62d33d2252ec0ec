"""The log of a gateway and the rows it is folded into: what is kept, how a commit is written.

A gateway's log has heads and entries. A commit writes heads, entries, rows and marks in one
conditional transaction.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeAlias, TypeVar

from lakesync.core.layout import MAIN_LANE, ONE_LANE, Lanes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from lakesync.core.clock import Stamp
    from lakesync.core.merge import AppendMark

# --- names of rows and marks, the time, and chance ------------------------------------------------


RowKey: TypeAlias = tuple[str, str]


"""``(table, row_id)``."""


MarkKey: TypeAlias = tuple[str, str]


"""``(shard, client_id)``."""


class WallClock(Protocol):
    """The wall clock."""

    def __call__(self) -> int:
        """Return the milliseconds since 1970."""
        ...


class Chance(Protocol):
    """Randomness, passed in: it spreads retries and names commits."""

    def jitter(self) -> float:
        """Return a number in [0, 1)."""
        ...

    def token(self) -> str:
        """Return a unique name of at most 36 characters."""
        ...


# --- what the buffer keeps, and what a commit writes into it --------------------------------------


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
    """The columns that sync rules read, of each delta's row; see `lakesync.wire.log_entries`. Empty
    where there were no rules."""


@dataclass(frozen=True, slots=True)
class Head:
    """A lane's head: its last commit, and what every commit or page must know of the lane."""

    commit: Stamp = 0
    config_version: int = 0
    epoch: str = ""
    """Of the main lane's head only: which gateway this is, and its last restore from a backup; see
    `lakesync.core.gateway_identity`. Empty before the first commit."""
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
    """Encoded; see `lakesync.wire.records`."""
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


# --- the log --------------------------------------------------------------------------------------


T = TypeVar("T")


class CommitLog(Protocol):
    """Heads, commits, and the log of a gateway."""

    def heads(self, gateway: str, since: Stamp = 0, *, at_once: bool = False) -> dict[str, Head]:
        """Return the existing heads of open lanes, and of those with an entry above ``since``.

        The main lane's head is the first, and was read before the others. So each of them is as it
        was when the list of open lanes was read, or later.

        Args:
            gateway: whose.
            since: the stamp.
            at_once: the list may be read in parallel with the heads: the head of an open lane is
                then as it was at any moment of the call, or missing. This is enough for readers;
                closing lanes needs the order.
        """
        ...

    def lane_heads(self, gateway: str, lanes: Sequence[str]) -> dict[str, Head]:
        """Return the existing heads of some lanes."""
        ...

    def epoch(self, gateway: str) -> str:
        """Return a gateway's epoch; empty before its first commit."""
        ...

    def marks(self, gateway: str, wanted: Iterable[MarkKey]) -> dict[MarkKey, StoredMark]:
        """Return the existing append marks."""
        ...

    def read_marks_serializable(
        self, gateway: str, wanted: Iterable[MarkKey]
    ) -> dict[MarkKey, StoredMark]:
        """Return the existing append marks, none older than a commit that has completed.

        For decisions that no condition protects: the marks of shards that a commit does not write
        to.

        Raises:
            Contention: a commit that writes one of them is in progress; try again in a moment.
        """
        ...

    def commit(self, commit: Commit) -> None:
        """Write everything, or nothing.

        Raises:
            HeadMoved: a head is not as seen.
            HeadBusy: another transaction is writing to a head.
            StaleRead: the heads are as seen, but a row or mark is not.
            lakesync.errors.Unavailable: refused for the moment; or the answer was lost, in which
                case the same commit (same token) may be tried again.
        """
        ...

    def raise_head(self, gateway: str, lane: str, seen: Head | None, to: Stamp, main: Head) -> bool:
        """Advance a lane's head, so that no commit can appear at or below ``to``.

        Args:
            gateway: whose.
            lane: the lane.
            seen: its head as it was read; None if there is none: then it is made, open.
            to: the stamp.
            main: the main lane's head, from which a new one takes the version of the
                configuration.

        Returns:
            False if the head was not as seen, or a commit is moving it: read it again.
        """
        ...

    def change_lanes(self, gateway: str, seen: Head | None, lanes: Lanes, to: Stamp = 0) -> bool:
        """Change which lanes are open, and raise the main lane's head to ``to``.

        Args:
            gateway: whose.
            seen: the main lane's head, as it was read; None if there is none.
            lanes: the new lanes.
            to: above the main lane's head; 0 to leave the head unchanged.

        Returns:
            False if the lanes were not as seen, or the head is at ``to`` or above.
        """
        ...

    def close_lane(self, gateway: str, lane: str, seen: Head | None, to: Stamp) -> bool:
        """Close a lane, or move the head of a closed one; the head is made if there is none.

        Args:
            gateway: whose.
            lane: the lane.
            seen: its head, as it was read.
            to: above that head, which moves there, so that no commit in flight succeeds.

        Returns:
            False if the head was not as seen, or a commit is moving it.
        """
        ...

    def entries(
        self, gateway: str, lane: str, after: Stamp, until: Stamp, count_max: int
    ) -> LogSlice:
        """Return entries in ``(after, until]`` in order, without those that are in the head.

        Ends early after ``count_max`` deltas or about 1 MB, and says so; is never empty while the
        range contains an entry. An entry of a commit in progress may be missing: the chain of
        ``previous`` shows it (`lakesync.log.read.read`).

        Args:
            gateway: whose.
            lane: the lane.
            after: the stamp behind which to begin.
            until: a `Head.stored_until`.
            count_max: the most deltas; entries in one item with others may exceed it.
        """
        ...

    def log_items(
        self, gateway: str, wanted: Mapping[str, Stamp]
    ) -> dict[str, tuple[LogEntry, ...]]:
        """Return by lane the entries of one item of its log, for all lanes in one request.

        Args:
            gateway: whose.
            wanted: by lane, the last entry of the item. Items that do not exist, or are not visible
                yet, are missing from the answer.
        """
        ...

    def pause(self, tries: int) -> None:
        """Wait a random time before a retry, longer with each try."""
        ...

    def in_parallel(self, calls: Sequence[Callable[[], T]]) -> list[T]:
        """Make independent calls of this port, in parallel if possible."""
        ...


# --- the rows -------------------------------------------------------------------------------------


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
