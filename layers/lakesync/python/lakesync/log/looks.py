"""What a process saw of a gateway's heads a moment ago, measured by its own clock alone.

Stamps come from the writers' clocks. If these differ from the reader's clock, stamps do not show
how long ago something happened: a burst of writes would seem to last as long as the clocks differ.
A process knows the age of what it has seen itself. Law B17: ``docs/spec/commit.md``.
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
"""Gateways whose heads one process remembers; with 64 lanes each takes about 50 KB."""
LOOKS_APART_MS: Final = 25
"""Of looks that follow each other more closely, only the latest is kept."""


class Look(NamedTuple):
    """The state of the heads of a gateway's open lanes, after they were raised."""

    commits: Mapping[str, Stamp]
    """By lane."""
    newest: Stamp


class _Noted(NamedTuple):
    read_at: Moment
    """Before the heads were read. A request may take long from there until they are raised."""
    at: Moment
    look: Look


NOTHING_SEEN: Final = Look({}, 0)
NEVER: Final[Moment] = (0, 0)


class Looks:
    """What a process has seen of gateways with several lanes. One for each process.

    Args:
        ages: determines how long ago something was seen.
    """

    def __init__(self, ages: Ages) -> None:
        self._ages = ages
        self._kept: OrderedDict[str, deque[_Noted]] = OrderedDict()

    def now(self) -> Moment:
        """Return the present, before heads are read."""
        return self._ages.now()

    def moment_ago(self, gateway: str) -> Look:
        """Return the latest look that is `RAISED_EVERY_MS` old; an empty one if there is none."""
        kept = self._kept.get(gateway)
        if not kept:
            return NOTHING_SEEN
        while len(kept) > 1 and self._is_aged(kept[1].at):
            kept.popleft()
        return kept[0].look if self._is_aged(kept[0].at) else NOTHING_SEEN

    def is_watched(self, gateway: str) -> bool:
        """Return whether the process has read the heads within `RAISED_EVERY_MS`."""
        kept = self._kept.get(gateway)
        return kept is not None and self._ages.is_within(RAISED_EVERY_MS, kept[-1].read_at)

    def note(self, gateway: str, look: Look, read_at: Moment) -> None:
        """Remember the current heads, which were read at a moment and then raised."""
        kept = self._kept.pop(gateway, None) or deque()
        if len(look.commits) == 1:
            return
        if len(kept) > 1 and self._ages.is_within(LOOKS_APART_MS, kept[-2].at):
            kept.pop()
        kept.append(_Noted(read_at, self._ages.now(), look))
        self._kept[gateway] = kept
        while len(self._kept) > GATEWAYS_REMEMBERED_MAX:
            self._kept.popitem(last=False)

    def _is_aged(self, seen_at: Moment) -> bool:
        return self._ages.ms_since(seen_at) >= RAISED_EVERY_MS
