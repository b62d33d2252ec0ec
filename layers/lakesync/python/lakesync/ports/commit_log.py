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
        """Give the heads that exist of open lanes, and of those with an entry above ``since``.

        The main lane's is the first, and was read before the others: so each of them is as it was
        when the list of open lanes was read, or later.

        Args:
            gateway: whose.
            since: the stamp.
            at_once: the list may be read beside the heads: that of an open lane is then as it was
                at any moment of the call, or missing. For readers; who closes lanes needs the
                order.
        """
        ...

    def lane_heads(self, gateway: str, lanes: Sequence[str]) -> dict[str, Head]:
        """Give the heads that exist of some lanes."""
        ...

    def marks(self, gateway: str, wanted: Iterable[MarkKey]) -> dict[MarkKey, StoredMark]:
        """Give the append marks that exist."""
        ...

    def read_marks_serializable(
        self, gateway: str, wanted: Iterable[MarkKey]
    ) -> dict[MarkKey, StoredMark]:
        """Give the append marks that exist, none as it was before a commit that happened.

        For what no condition will prove: the marks of shards that a commit does not write to.

        Raises:
            Contention: a commit that writes one of them is just happening; try again in a moment.
        """
        ...

    def commit(self, commit: Commit) -> None:
        """Write everything, or nothing.

        Raises:
            HeadMoved: a head is not as seen.
            HeadBusy: a head is just being written to.
            StaleRead: the heads are as seen, but a row or mark is not.
            lakesync.errors.Unavailable: refused for now; or the answer was lost, in which case the
                same commit (same token) may be tried again.
        """
        ...

    def raise_head(self, gateway: str, lane: str, seen: Head | None, to: Stamp, main: Head) -> bool:
        """Move a lane's head up, so that no commit can appear at or below ``to``.

        Args:
            gateway: whose.
            lane: the lane.
            seen: its head as it was read; None if there is none: then it is made, open.
            to: the stamp.
            main: the main lane's head, which a new one takes the configuration and epoch from.

        Returns:
            False if the head was not as seen, or a commit is just moving it: read it again.
        """
        ...

    def change_lanes(self, gateway: str, seen: Head | None, lanes: Lanes, to: Stamp = 0) -> bool:
        """Change which lanes are open, and raise the main lane's head to ``to``.

        Args:
            gateway: whose.
            seen: the main lane's head, as it was read; None if there is none.
            lanes: the lanes as they shall be.
            to: above the main lane's head; 0 to leave that where it is.

        Returns:
            False if the lanes were not as seen, or the head stands at ``to`` or above.
        """
        ...

    def close_lane(self, gateway: str, lane: str, seen: Head | None, to: Stamp) -> bool:
        """Close a lane, or move the head of one that is closed; it is made if there is none.

        Args:
            gateway: whose.
            lane: the lane.
            seen: its head, as it was read.
            to: above that head, which moves there, so that no commit that is on its way happens.

        Returns:
            False if the head was not as seen, or a commit is just moving it.
        """
        ...

    def entries(
        self, gateway: str, lane: str, after: Stamp, until: Stamp, count_max: int
    ) -> LogSlice:
        """Give entries in ``(after, until]`` in order, as far as they do not lie in the head.

        Ends early once they hold ``count_max`` deltas or about 1 MB, and says so; is never empty
        while the range holds an entry. An entry of a commit that is just happening may be missing:
        the chain of ``previous`` shows it (`lakesync.log.final_log.read`).

        Args:
            gateway: whose.
            lane: the lane.
            after: the stamp behind which to begin.
            until: a `Head.stored_until`.
            count_max: deltas at the most, but for those that lie in one item with others.
        """
        ...

    def log_items(
        self, gateway: str, wanted: Mapping[str, Stamp]
    ) -> dict[str, tuple[LogEntry, ...]]:
        """Give by lane the entries of one item of its log, all lanes at once.

        Args:
            gateway: whose.
            wanted: by lane, the last entry of the item. What is not there, or not visible yet, is
                missing from the answer.
        """
        ...

    def pause(self, tries: int) -> None:
        """Wait a random while before something is tried again, longer with each try."""
        ...

    def in_parallel(self, calls: Sequence[Callable[[], T]]) -> list[T]:
        """Make calls of this port that do not depend on each other, side by side if it can."""
        ...
