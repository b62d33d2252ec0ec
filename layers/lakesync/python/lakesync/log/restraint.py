"""How a process raises heads for readers that ask for no fresh page: with restraint.

Whether a head is in use is told by its stamps, which come from the clocks of those who wrote. Where
these are apart from this process's clock, a burst looks as if it went on for as long. So a head
that this process has itself seen standing for a while is raised whatever any clock says: nobody can
have used it meanwhile. Law B7: ``docs/spec/commit.md``.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from lakesync.core.clock import stamp_ms
from lakesync.log.raising import RAISED_EVERY_MS, commit_of, heads_to_raise

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lakesync.core.clock import Stamp
    from lakesync.log.ages import Ages, Moment
    from lakesync.ports import Head

GATEWAYS_REMEMBERED_MAX: Final = 64
"""Gateways of which one process remembers since when each lane's head stands."""


class Restraint:
    """Chooses which heads are raised, and remembers how they stood. One for each process.

    Args:
        ages: the clocks; without them all heads that lag behind are raised.
    """

    def __init__(self, ages: Ages | None) -> None:
        self._ages = ages
        self._seen: OrderedDict[str, dict[str, tuple[Stamp, Moment]]] = OrderedDict()

    def heads_to_raise(
        self, gateway: str, heads: Mapping[str, Head | None], newest: Stamp, wanted: Stamp
    ) -> dict[str, Head | None]:
        """Give the heads that are raised, as `lakesync.log.raising.heads_to_raise` does.

        Args:
            gateway: whose.
            heads: the heads of all its open lanes, as they were just read.
            newest: the newest commit of all.
            wanted: the stamp that has to be final.
        """
        if self._ages is None:
            return heads_to_raise(heads, newest, newest, 0)
        standing = self._standing(gateway, heads, self._ages)
        wall_ms, _ = self._ages.now()
        return heads_to_raise(heads, newest, wanted, max(wall_ms, stamp_ms(newest)), standing)

    def _standing(
        self, gateway: str, heads: Mapping[str, Head | None], ages: Ages
    ) -> frozenset[str]:
        """Give the lanes whose heads stood for a while already, and remember all of them."""
        before = self._seen.pop(gateway, {})
        if len(heads) == 1:
            return frozenset()
        now = ages.now()
        seen = self._seen[gateway] = {}
        for lane, head in heads.items():
            commit, since = before.get(lane, (-1, now))
            seen[lane] = (commit, since) if commit == commit_of(head) else (commit_of(head), now)
        while len(self._seen) > GATEWAYS_REMEMBERED_MAX:
            self._seen.popitem(last=False)
        return frozenset(
            lane for lane, (_, since) in seen.items()
            if ages.ms_since(since) >= RAISED_EVERY_MS
        )  # fmt: skip


NO_RESTRAINT: Final = Restraint(None)
"""For who reads all that there is."""
