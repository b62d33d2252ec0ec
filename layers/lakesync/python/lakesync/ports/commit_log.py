"""The log of a gateway: its heads, its entries, and how a commit is written."""

from __future__ import annotations

from typing import (
    TYPE_CHECKING,
    Protocol,
    TypeVar,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from lakesync.core.clock import Stamp
    from lakesync.core.layout import Lanes
    from lakesync.ports.common import MarkKey
    from lakesync.ports.entries import (
        Commit,
        Head,
        LogEntry,
        LogSlice,
        StoredMark,
    )

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
        ``previous`` shows it (`lakesync.log.final_log.read`).

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
