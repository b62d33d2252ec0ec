"""Which heads are raised for a reader that does not request a fresh page: idle ones. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lakesync.core.clock import stamp_ms

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lakesync.core.clock import Stamp
    from lakesync.ports import Head

RAISED_EVERY_MS: Final = 250
"""The shortest interval between two raises of a head, for readers that need no fresh page."""
CLOCKS_APART_MS: Final = 100
"""A stamp that is so far ahead of the reader's clock shows that clocks differ."""
BUSY_LANES: Final = 4
"""So many open lanes show that many processes write: lanes open by twos, and close when idle."""


def commit_of(head: Head | None) -> Stamp:
    """Return a head's last commit; 0 if there is no head yet."""
    return head.commit if head else 0


def heads_to_raise(
    heads: Mapping[str, Head | None], newest: Stamp, wanted: Stamp, now_ms: int,
    seen: Mapping[str, Stamp], shards: int = 1,
) -> dict[str, Head | None]:  # fmt: skip
    """Return the heads to raise: all below ``wanted``, and others below ``newest`` if idle.

    A head that has not moved since it was ``seen`` a moment ago is idle, whatever its stamps are.
    """
    lanes = max(len(heads), shards)

    def is_idle(lane: str, head: Head | None) -> bool:
        return seen.get(lane) == commit_of(head) or may_raise(head, now_ms, lanes)

    return {
        lane: head
        for lane, head in heads.items()
        if commit_of(head) < wanted or (commit_of(head) < newest and is_idle(lane, head))
    }


def may_raise(head: Head | None, now_ms: int, lanes: int) -> bool:
    """Return whether a head may be raised: it is not in use, and was not raised a moment ago.

    Two commits within a moment show a lane in use, and a raise would make its writer lose a race
    for nothing. After its entries moved into the log, a head shows only one commit. Then the number
    of open ``lanes`` decides, or that of shards: where these are many, heads have no room for
    entries.
    """
    if head is None or head.is_closed or now_ms - stamp_ms(head.commit) >= RAISED_EVERY_MS:
        return True
    is_raised = head.commit > head.last_logged
    if is_raised:
        return False
    if not head.recent:
        return lanes < BUSY_LANES
    return now_ms - stamp_ms(head.recent[-1].previous) >= RAISED_EVERY_MS


def may_end_at(head: Head | None, wanted: Stamp) -> bool:
    """Return whether a page may end at a head: no page before it ended above."""
    return head is not None and not head.is_closed and head.commit >= wanted
