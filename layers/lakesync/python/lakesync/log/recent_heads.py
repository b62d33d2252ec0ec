"""Heads that a process has just read, used again for pulls whose cursor is below them.

Rules of this module
    1. The main lane's head is read for every page. It shows which lanes are open, the version of
       the rules, the epoch, the horizon and whether the gateway is deleted; if any of it changed,
       no earlier read is used. Heads only rise, so earlier heads of lanes that are still open are
       lower bounds, and everything up to the lowest of them is complete (law B7).
    2. A page that is not the last says that there is more, so it may end anywhere below.
    3. A last page may end at the lowest of them only while the gateway is under load, which means
       that the page that they were read for also ended before the newest commit. Their age must
       also be less than `RAISED_EVERY_MS`. The heads of a quiet gateway are always read again.

Law B15: ``docs/spec/commit.md``.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, NamedTuple

from lakesync.core.clock import stamp, stamp_ms
from lakesync.core.layout import MAIN_LANE
from lakesync.log.raising import RAISED_EVERY_MS
from lakesync.ports import NO_HEAD

if TYPE_CHECKING:
    from collections.abc import Callable

    from lakesync.core.clock import Stamp
    from lakesync.log.ages import Ages, Moment
    from lakesync.log.final_log import FinalLog
    from lakesync.ports import Buffer, Head

GATEWAYS_REMEMBERED_MAX: Final = 64
"""Gateways whose heads one process remembers; with 64 lanes each takes about 100 KB."""


class RecentLog(NamedTuple):
    """A log that was made final a moment ago."""

    log: FinalLog
    may_end: bool
    """A last page may end at the end of this log."""


@dataclass(slots=True)
class _Recent:
    log: FinalLog
    since: Stamp
    """Closed lanes were read only if they had entries behind this stamp."""
    read_at: Moment
    read_on: Stamp
    """The furthest end of a page that was not the last; -1 if there was none."""

    @property
    def main(self) -> Head:
        return self.log.heads.get(MAIN_LANE, NO_HEAD)

    def suffices(self, since: Stamp, at_least: Stamp) -> bool:
        """Return whether this log is enough for a page from a cursor, as far as it reaches."""
        return (
            since < self.log.top
            and at_least <= self.log.top
            and since >= min(self.since, self.main.lanes.quiet)
        )

    def is_still_so(self, main: Head | None) -> bool:
        """Return by the main lane's head whether nothing but commits changed since."""
        was = self.main
        return main is not None and (
            main.lanes, main.config_version, main.epoch, main.trimmed,
        ) == (was.lanes, was.config_version, was.epoch, was.trimmed)  # fmt: skip

    def end_age_ms(self) -> int:
        """Return how old the end of the log was when it was read."""
        wall_ms, _ = self.read_at
        return max(wall_ms, stamp_ms(self.log.newest)) - stamp_ms(self.log.top)


class RecentHeads:
    """The heads of gateways with several lanes that a process has just read.

    One for each process; one request at a time.
    """

    def __init__(self, buffer: Buffer, ages: Ages) -> None:
        self._buffer = buffer
        self._ages = ages
        self._recent: OrderedDict[str, _Recent] = OrderedDict()

    def now(self) -> Moment:
        """Return the present, before heads are read."""
        return self._ages.now()

    def keep(self, log: FinalLog, since: Stamp, read_at: Moment) -> None:
        """Remember the heads of a log.

        Args:
            log: the log.
            since: the stamp behind which it was read.
            read_at: a moment before its heads were read.
        """
        self._recent.pop(log.gateway, None)
        if len(log.heads.get(MAIN_LANE, NO_HEAD).lanes.open()) == 1:
            return
        self._recent[log.gateway] = _Recent(log, since, read_at, -1)
        while len(self._recent) > GATEWAYS_REMEMBERED_MAX:
            self._recent.popitem(last=False)

    def read_on(self, gateway: str, cursor: Stamp) -> None:
        """Note the end of a page that is not the last: its reader asks again at once."""
        if recent := self._recent.get(gateway):
            recent.read_on = max(recent.read_on, cursor)

    def log(
        self,
        gateway: str,
        since: Stamp,
        at_least: Stamp,
        beside: Callable[[FinalLog], list[Callable[[], None]]],
    ) -> RecentLog | None:
        """Return a log whose heads were read a moment ago; None if they have to be read now.

        Cost: a read unit, of the main lane's head, if there is such a log.

        Args:
            gateway: the gateway's id.
            since: the cursor.
            at_least: the stamp that has to be final.
            beside: gives calls to make in parallel with that read, from the log.
        """
        recent = self._recent.get(gateway)
        if recent is None or not self._ages.is_within(RAISED_EVERY_MS, recent.read_at):
            return None
        may_end = self._may_end(recent)
        if not recent.suffices(since, at_least) or not (may_end or since <= recent.read_on):
            return None
        heads: dict[str, Head] = {}

        def read_main() -> None:
            heads.update(self._buffer.lane_heads(gateway, [MAIN_LANE]))

        self._buffer.in_parallel([read_main, *beside(recent.log)])
        main = heads.get(MAIN_LANE)
        if main is None or not recent.is_still_so(main):
            del self._recent[gateway]
            return None
        # A writer may have advanced its stamp by as much time as has passed.
        passed = stamp(self._ages.ms_since(recent.read_at))
        newest = max(main.commit, recent.log.newest + passed)
        return RecentLog(replace(recent.log, newest=newest), may_end and self._may_end(recent))

    def _may_end(self, recent: _Recent) -> bool:
        if recent.log.newest <= recent.log.top:
            return False
        return recent.end_age_ms() + self._ages.ms_since(recent.read_at) < RAISED_EVERY_MS
