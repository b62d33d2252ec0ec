"""The read barrier makes one 64-bit cursor exact for any number of lanes.

A commit is conditional on its lane's head and stamped above it. So once a head is at a stamp, no
commit can appear at or below it in that lane. Everything up to the lowest head of all open lanes is
complete and final; heads that lag behind are raised first. A lane is opened above the main lane's
head, which is read in one item with the list of open lanes.

How a final log is read: `lakesync.log.final_log`. Laws B7, B8, B15, B17: ``docs/spec/commit.md``.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final

from lakesync.core.clock import STAMP_MAX, stamp_ms
from lakesync.core.layout import MAIN_LANE
from lakesync.errors import Contention
from lakesync.log.final_log import FinalLog
from lakesync.log.looks import NEVER, NOTHING_SEEN, Look
from lakesync.log.raising import (
    CLOCKS_APART_MS,
    RAISED_EVERY_MS,
    commit_of,
    heads_to_raise,
    may_end_at,
)
from lakesync.ports import NO_HEAD, HeadMoved

if TYPE_CHECKING:
    from collections.abc import Callable

    from lakesync.core.clock import Stamp
    from lakesync.core.config import GatewayConfig
    from lakesync.log.ages import Moment
    from lakesync.log.looks import Looks
    from lakesync.ports import Buffer, Head, WallClock

CONFIGS_REMEMBERED_MAX: Final = 64
"""Gateways whose configuration one process caches; each may take 350 KB."""
_TRIES_MAX: Final = 20
_RACES_MAX: Final = 3
"""Races for an idle head, all lost to other readers."""


class ReadBarrier:
    """Makes logs final before they are read, and caches configurations. One for each process.

    Args:
        buffer: the store of the logs.
        looks: what the process has seen of their heads, if it reads repeatedly.
    """

    def __init__(self, buffer: Buffer, looks: Looks | None = None) -> None:
        self._buffer = buffer
        self._looks = looks
        self._configs: dict[str, GatewayConfig] = {}

    def raise_heads(
        self,
        gateway: str,
        since: Stamp = 0,
        *,
        at_least: Stamp = STAMP_MAX,
        wall_clock: WallClock = lambda: 0,
        beside: Callable[[FinalLog], list[Callable[[], None]]] = lambda _: [],
    ) -> FinalLog:
        """Make a gateway's log final up to its highest head. Idempotent.

        Cost: one read unit while only the main lane is open, else as `Buffer.heads`; a write unit
        for each head that lags, in parallel.

        Args:
            gateway: the gateway's id.
            since: nothing at or below is read.
            at_least: the stamp that has to be final, if there is a commit so far. Heads are raised
                at once up to it, and up to the newest commit that this process saw
                `RAISED_EVERY_MS` ago; above, each is raised at most that often.
            wall_clock: the clock, unless all heads shall be raised.
            beside: gives calls to make in parallel with the raises, from the log as it is before.

        Raises:
            Contention: writers kept moving the heads; try again in a moment.
            GatewayDeleted: the gateway was deleted.
        """
        for tries in range(1, _TRIES_MAX):
            config = self._config(gateway)
            read_at = self._looks.now() if self._looks else NEVER
            heads = self._buffer.heads(gateway, since, at_once=True)
            main = heads.get(MAIN_LANE)
            if main is None:
                return FinalLog(gateway, config, {}, 0)
            if main.config_version == config.version:
                config.check_not_deleted()
                log = FinalLog(gateway, config, heads, 0)
                with suppress(HeadMoved):
                    return self._raised(log, main, read_at, at_least, wall_clock, beside(log))
            self._configs.pop(gateway, None)  # it may be declared again
            self._buffer.pause(tries)
        raise Contention("the gateway's configuration is being changed; try again in a moment")

    def _config(self, gateway: str) -> GatewayConfig:
        config = self._configs.get(gateway)
        if config is None:
            if len(self._configs) >= CONFIGS_REMEMBERED_MAX:
                self._configs.clear()
            config = self._configs[gateway] = self._buffer.config(gateway)
        return config

    def _raised(
        self, log: FinalLog, main: Head, read_at: Moment, at_least: Stamp, wall_clock: WallClock,
        beside: list[Callable[[], None]],
    ) -> FinalLog:  # fmt: skip
        """Return the log after lagging heads were raised."""
        open_heads = {lane: log.heads.get(lane) for lane in main.lanes.open()}
        newest = max(main.lanes.quiet, *(head.commit for head in open_heads.values() if head))
        seen = self._looks.moment_ago(log.gateway) if self._looks else NOTHING_SEEN
        at_least = max(at_least, seen.newest)
        wanted = min(at_least, newest)
        now_ms = 0
        if at_least < newest:
            now_ms = self._present_ms(log.gateway, wall_clock(), stamp_ms(newest))
        raised: dict[str, tuple[Head, Stamp]] = {}

        shards = len(log.config.layout.shards())
        lagging = heads_to_raise(open_heads, newest, wanted, now_ms, seen.commits, shards)
        # A page of a quiet gateway is exact; under load a page may end a little before the present.
        left = [head for lane, head in open_heads.items() if lane not in lagging]
        is_quiet = all(commit_of(head) >= newest for head in left)
        races = _RACES_MAX if is_quiet else 1

        def raise_one(lane: str, head: Head | None) -> None:
            if may_end_at(head, wanted):
                raised[lane] = self._try_raise(log.gateway, lane, head, newest, main, races)
            else:
                raised[lane] = self._raise(log.gateway, lane, head, newest, main)

        raises = [partial(raise_one, lane, head) for lane, head in lagging.items()]
        self._buffer.in_parallel(raises + beside)
        heads = {**log.heads, **{lane: head for lane, (head, _) in raised.items()}}
        final = {lane: commit_of(head) for lane, head in open_heads.items()}
        final |= {lane: top for lane, (_, top) in raised.items()}
        if self._looks:
            self._looks.note(log.gateway, Look(final, newest), read_at)
        return FinalLog(log.gateway, log.config, heads, min(final.values()), newest)

    def _present_ms(self, gateway: str, clock_ms: int, newest_ms: int) -> int:
        """Return the time by which stamps show which lanes are in use."""
        is_watched = self._looks is not None and self._looks.is_watched(gateway)
        if newest_ms - clock_ms < CLOCKS_APART_MS or is_watched:
            return max(clock_ms, newest_ms)
        # The clocks differ, so stamps do not show their age, and nothing else does: all lanes may
        # be idle.
        return newest_ms + RAISED_EVERY_MS

    def _try_raise(
        self, gateway: str, lane: str, head: Head | None, to: Stamp, main: Head, races: int
    ) -> tuple[Head, Stamp]:
        """Raise one head unless a commit is writing to it; returns it, and how far it is final."""
        seen = head or NO_HEAD
        for _ in range(races):
            if self._buffer.raise_head(gateway, lane, head, to, main):
                return head or NO_HEAD, to
            head = self._buffer.lane_heads(gateway, [lane]).get(lane) or seen
            if lane == MAIN_LANE and head.lanes != main.lanes:
                raise HeadMoved({lane: head})
            head = max(head, seen, key=commit_of)  # a later read may show an older head
            if head.commit >= to or head.last_logged > seen.last_logged:
                break
            # Another reader raised it, to the newest commit that it knew.
        return head or NO_HEAD, commit_of(head)

    def _raise(
        self, gateway: str, lane: str, head: Head | None, to: Stamp, main: Head
    ) -> tuple[Head, Stamp]:
        """Raise one head to ``to`` at least; returns it as it was, and how far it is final."""
        for tries in range(1, _TRIES_MAX):
            if commit_of(head) >= to or self._buffer.raise_head(gateway, lane, head, to, main):
                return head or NO_HEAD, to
            self._buffer.pause(tries)
            head = self._buffer.lane_heads(gateway, [lane]).get(lane)
            if lane == MAIN_LANE and head and head.lanes != main.lanes:
                # Newly opened lanes, or another configuration, may have commits below.
                raise HeadMoved({lane: head})
        raise Contention("the gateway's heads keep moving; try again in a moment")
