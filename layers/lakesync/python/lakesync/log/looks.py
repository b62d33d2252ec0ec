"""What a process saw of a gateway's heads a moment ago, by no clock but its own.

Stamps come from the clocks of those who write. Where these are apart from the clock of who reads,
stamps do not tell how long ago something happened: a burst seems to go on for as long as the clocks
are apart. Of what a process has seen itself it knows the age. Law B17: ``docs/spec/commit.md``.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import TYPE_CHECKING, Final, NamedTuple

from lakesync.log.raising import RAISED_EVERY_MS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lakesync.core.clock import Stamp
    from lakesync.log.ages import Ages, Moment

GATEWAYS_REMEMBERED_MAX: Final = 64
"""Gateways of which one process remembers how their heads stood; of 64 lanes each, some 50 KB."""
LOOKS_APART_MS: Final = 25
"""Of looks that follow each other more quickly only the latest is kept."""


class Look(NamedTuple):
    """How the heads of a gateway's open lanes stood."""

    commits: Mapping[str, Stamp]
    """By lane."""
    newest: Stamp


NOTHING_SEEN: Final = Look({}, 0)


class Looks:
    """What a process has seen of gateways with several lanes. One for each process.

    Args:
        ages: tells how long ago something was seen.
    """

    def __init__(self, ages: Ages) -> None:
        self._ages = ages
        self._kept: OrderedDict[str, deque[tuple[Moment, Look]]] = OrderedDict()

    def moment_ago(self, gateway: str) -> Look:
        """Give the latest look that is `RAISED_EVERY_MS` old; nothing seen if there is none."""
        kept = self._kept.get(gateway)
        if not kept:
            return NOTHING_SEEN
        while len(kept) > 1 and self._is_aged(kept[1][0]):
            kept.popleft()
        seen_at, look = kept[0]
        return look if self._is_aged(seen_at) else NOTHING_SEEN

    def is_watched(self, gateway: str) -> bool:
        """Tell whether the process has looked within `RAISED_EVERY_MS`."""
        kept = self._kept.get(gateway)
        return kept is not None and self._ages.is_within(RAISED_EVERY_MS, kept[-1][0])

    def note(self, gateway: str, look: Look) -> None:
        """Remember how the heads stand now, after they were raised."""
        kept = self._kept.pop(gateway, None) or deque()
        if len(look.commits) == 1:
            return
        if len(kept) > 1 and self._ages.is_within(LOOKS_APART_MS, kept[-2][0]):
            kept.pop()
        kept.append((self._ages.now(), look))
        self._kept[gateway] = kept
        while len(self._kept) > GATEWAYS_REMEMBERED_MAX:
            self._kept.popitem(last=False)

    def _is_aged(self, seen_at: Moment) -> bool:
        return self._ages.ms_since(seen_at) >= RAISED_EVERY_MS
