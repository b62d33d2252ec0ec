"""Append marks: how a repeated push of events is recognised without a state for each event.

A client pushes its append deltas in stamp order. Its mark in a shard is its last accepted stamp,
with the latest deltas before it. That is enough to tell a repeat of an accepted delta from a delta
that arrived late. Laws A1-A5: ``docs/spec/append.md``.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from lakesync.core.clock import Stamp
    from lakesync.core.delta import Delta

REMEMBERED_MIN: Final = 64
"""The least number of deltas that a mark remembers, once there were as many. The whole last push of
its client is always remembered, however large it is."""
REMEMBERED_MAX: Final = 20_000
"""Deltas that a mark may remember: twice the largest push. Only deltas that all have the same stamp
can reach this number; the next of them is refused."""
_ID_DIGITS: Final = 12

Seen: TypeAlias = tuple[int, int]
"""A delta as a mark remembers it: its stamp, and 48 bits of its id."""


class AppendMark(NamedTuple):
    """The state of one client in one shard."""

    last: Stamp = 0
    recent: tuple[Seen, ...] = ()
    """The latest accepted deltas, in stamp order; all that have the stamp ``last`` are among them.
    """
    moves: int = 0
    """`lakesync.core.layout.Layout.moves` when the mark was written."""


class Admission(Enum):
    """What an append delta is, according to its client's mark."""

    NEW = "new"
    DUPLICATE = "duplicate"
    LATE = "late"


class Gate:
    """Decides on one client's deltas of one commit. It must be asked about them in stamp order."""

    def __init__(self, mark: AppendMark) -> None:
        self._last = mark.last
        self._known = set(mark.recent)
        self._fresh: set[str] = set()
        self._room = REMEMBERED_MAX - sum(1 for stamp, _ in mark.recent if stamp == mark.last)

    def knows(self, delta: Delta) -> bool:
        """Return whether a delta is a repeat."""
        # Within one push whole ids are compared; a mark has room for a part of each id.
        return delta.delta_id in self._fresh or seen(delta) in self._known

    def admit(self, delta: Delta) -> Admission:
        """Return whether a delta is new, a repeat, or older than its client's earlier pushes."""
        if self.knows(delta):
            return Admission.DUPLICATE
        if delta.hlc < self._last or (delta.hlc == self._last and len(self._fresh) >= self._room):
            return Admission.LATE
        self._fresh.add(delta.delta_id)
        return Admission.NEW


def seen(delta: Delta) -> Seen:
    """Return a delta as a mark remembers it."""
    return delta.hlc, int(delta.delta_id[:_ID_DIGITS], 16)


def advanced(mark: AppendMark, accepted: Sequence[Delta], since: Stamp) -> AppendMark:
    """Return the mark after new deltas, in stamp order, were accepted in one commit.

    Args:
        mark: the mark before.
        accepted: at least one delta.
        since: the oldest stamp of the push. Everything from there on is remembered, so that the
            whole push may be repeated after only some of its commits were acknowledged.
    """
    remembered = (*mark.recent, *map(seen, accepted))
    first = max(len(remembered) - REMEMBERED_MIN, 0)
    while first and remembered[first - 1][0] >= since:
        first -= 1
    return AppendMark(accepted[-1].hlc, remembered[first:], mark.moves)


def joined(marks: Iterable[AppendMark], moves: int) -> AppendMark:
    """Return the mark that combines the marks of several shards, after tables moved."""
    every = list(marks)
    remembered = tuple(sorted({delta for mark in every for delta in mark.recent}))
    return AppendMark(max((mark.last for mark in every), default=0), remembered, moves)
