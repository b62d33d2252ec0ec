"""The read barrier makes one 64-bit cursor exact for any number of lanes.

A commit is conditional on its lane's head and stamped above it, so once a head stands at a stamp
none can appear at or below that in its lane. What is read up to the lowest head of all open lanes
is complete and final; heads that lag behind are raised first. A lane that is not open yet is opened
above the main lane's head, which is read in one item with the list of open lanes.

Final is not yet visible: while a commit happens, its head may show before its log entry does. So a
log is read only by `read`, which follows the chain of entries back from the head and does not
accept a gap. Laws B7-B8: ``docs/spec/commit.md``.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from lakesync.core.clock import STAMP_MAX, stamp_ms
from lakesync.core.layout import MAIN_LANE
from lakesync.errors import Contention
from lakesync.log.looks import NOTHING_SEEN, Look
from lakesync.log.raising import commit_of, heads_to_raise, may_end_at
from lakesync.ports import NO_HEAD, HeadMoved, LogSlice

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from lakesync.core.clock import Stamp
    from lakesync.core.config import GatewayConfig
    from lakesync.log.looks import Looks
    from lakesync.ports import Buffer, Head, LogEntry, WallClock

CONFIGS_REMEMBERED_MAX: Final = 64
"""Gateways whose configuration one process remembers; each may hold 350 KB."""
_TRIES_MAX: Final = 20
_GAP_TRIES_MAX: Final = 10


@dataclass(frozen=True, slots=True)
class FinalLog:
    """A gateway's log, final up to ``top``."""

    gateway: str
    config: GatewayConfig
    heads: Mapping[str, Head]
    """By lane, the heads of those that may have an entry above the stamp that was asked for."""
    top: Stamp
    newest: Stamp = 0
    """The newest commit that was seen; above ``top`` if a lane lags behind that was not raised."""

    @property
    def epoch(self) -> str:
        """The epoch of the buffer; empty unless it was restored from a backup."""
        return self.heads.get(MAIN_LANE, NO_HEAD).epoch

    @property
    def trimmed(self) -> Stamp:
        """The horizon: cursors below it are void."""
        return self.heads.get(MAIN_LANE, NO_HEAD).trimmed

    @property
    def behind_ms(self) -> int:
        """How far the newest commit is ahead of the end of this; 0 if it is the end."""
        if self.newest <= self.top:
            return 0
        return stamp_ms(self.newest) - stamp_ms(self.top) + 1


class ReadBarrier:
    """Makes logs final before they are read, and remembers configurations. One for each process.

    Args:
        buffer: where the logs are.
        looks: what the process has seen of their heads, if it is asked again and again.
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
        """Make a gateway's log final up to its highest head. Safe to repeat.

        Cost: one read unit while only the main lane is open, else as `Buffer.heads`; a write unit
        for each head that lags, side by side.

        Args:
            gateway: whose.
            since: nothing at or below is read.
            at_least: the stamp that has to be final, if there is a commit so far. Up to it heads
                are raised at once, and up to the newest that this process saw `RAISED_EVERY_MS`
                ago; above, each at most so often.
            wall_clock: the clock, if not all heads shall be raised.
            beside: gives calls to be made beside the raises, by the log as it is before them.

        Raises:
            Contention: writers kept moving the heads; try again in a moment.
            GatewayDeleted: the gateway was deleted.
        """
        for tries in range(1, _TRIES_MAX):
            config = self._config(gateway)
            heads = self._buffer.heads(gateway, since, at_once=True)
            main = heads.get(MAIN_LANE)
            if main is None:
                return FinalLog(gateway, config, {}, 0)
            if main.config_version == config.version:
                config.check_not_deleted()
                log = FinalLog(gateway, config, heads, 0)
                with suppress(HeadMoved):
                    return self._raised(log, main, at_least, wall_clock, beside(log))
            self._configs.pop(gateway, None)  # it may be declared anew
            self._buffer.pause(tries)
        raise Contention("the gateway's configuration is just changing; try again in a moment")

    def _config(self, gateway: str) -> GatewayConfig:
        config = self._configs.get(gateway)
        if config is None:
            if len(self._configs) >= CONFIGS_REMEMBERED_MAX:
                self._configs.clear()
            config = self._configs[gateway] = self._buffer.config(gateway)
        return config

    def _raised(
        self, log: FinalLog, main: Head, at_least: Stamp, wall_clock: WallClock,
        beside: list[Callable[[], None]],
    ) -> FinalLog:  # fmt: skip
        """Give the log once lagging heads were raised."""
        open_heads = {lane: log.heads.get(lane) for lane in main.lanes.open()}
        newest = max(main.lanes.quiet, *(head.commit for head in open_heads.values() if head))
        seen = self._looks.moment_ago(log.gateway) if self._looks else NOTHING_SEEN
        at_least = max(at_least, seen.newest)
        wanted = min(at_least, newest)
        now_ms = 0 if at_least >= newest else max(wall_clock(), stamp_ms(newest))
        raised: dict[str, tuple[Head, Stamp]] = {}

        def raise_one(lane: str, head: Head | None) -> None:
            act = self._try_raise if may_end_at(head, wanted) else self._raise
            raised[lane] = act(log.gateway, lane, head, newest, main)

        lagging = heads_to_raise(open_heads, newest, wanted, now_ms, seen.commits)
        raises = [partial(raise_one, lane, head) for lane, head in lagging.items()]
        self._buffer.in_parallel(raises + beside)
        heads = {**log.heads, **{lane: head for lane, (head, _) in raised.items()}}
        final = {lane: commit_of(head) for lane, head in open_heads.items()}
        final |= {lane: top for lane, (_, top) in raised.items()}
        if self._looks:
            self._looks.note(log.gateway, Look(final, newest))
        return FinalLog(log.gateway, log.config, heads, min(final.values()), newest)

    def _try_raise(
        self, gateway: str, lane: str, head: Head | None, to: Stamp, main: Head
    ) -> tuple[Head, Stamp]:
        """Raise one head if nobody else just moves it; gives it, and how far it is final."""
        if self._buffer.raise_head(gateway, lane, head, to, main):
            return head or NO_HEAD, to
        seen = head or NO_HEAD
        now = self._buffer.lane_heads(gateway, [lane]).get(lane) or seen
        if lane == MAIN_LANE and now.lanes != main.lanes:
            raise HeadMoved({lane: now})
        now = max(now, seen, key=commit_of)  # what was read later may show less
        return now, now.commit

    def _raise(
        self, gateway: str, lane: str, head: Head | None, to: Stamp, main: Head
    ) -> tuple[Head, Stamp]:
        """Raise one head to ``to`` at the least; gives it as it was, and how far it is final."""
        for tries in range(1, _TRIES_MAX):
            if commit_of(head) >= to or self._buffer.raise_head(gateway, lane, head, to, main):
                return head or NO_HEAD, to
            self._buffer.pause(tries)
            head = self._buffer.lane_heads(gateway, [lane]).get(lane)
            if lane == MAIN_LANE and head and head.lanes != main.lanes:
                # Lanes that were opened, or another configuration, may have commits below.
                raise HeadMoved({lane: head})
        raise Contention("the gateway's heads keep moving; try again in a moment")


class Entries(Protocol):
    """Where entries are read: `lakesync.ports.Buffer`, or what remembers some of it."""

    def entries(
        self, gateway: str, lane: str, after: Stamp, until: Stamp, count_max: int
    ) -> LogSlice:
        """Give entries as `lakesync.ports.Buffer.entries` does."""
        ...

    def pause(self, tries: int) -> None:
        """Wait, as `lakesync.ports.Buffer.pause` does."""
        ...


def read(
    source: Entries, log: FinalLog, lane: str, span: tuple[Stamp, Stamp], count_max: int
) -> LogSlice:
    """Give a lane's entries in ``span``, which ends at ``log.top`` at the latest; without gaps.

    Ends early as `lakesync.ports.Buffer.entries` does, and says so.

    Raises:
        Contention: an entry that must be there stayed invisible; try again in a moment.
    """
    after, until = span
    head = log.heads.get(lane, NO_HEAD)
    stored = LogSlice((), head.stored_until)
    if head.stored_until > after:
        stored = _read_stored(source, log.gateway, lane, after, head.stored_until, count_max)
    if stored.until < head.stored_until:
        entries = stored.entries
        until = min(stored.until, until)
    else:
        entries = (*stored.entries, *head.recent)
    return LogSlice(tuple(entry for entry in entries if after < entry.stamp <= until), until)


def _read_stored(
    source: Entries, gateway: str, lane: str, after: Stamp, last: Stamp, count_max: int
) -> LogSlice:
    """Give entries that do not lie in the head, up to the last of them; without gaps."""
    for tries in range(1, _GAP_TRIES_MAX):
        # The last entry of the chain is the only one that proves that none is missing before it.
        read_slice = source.entries(gateway, lane, after, last, count_max)
        if read_slice.is_chain(after, last):
            return read_slice
        source.pause(tries)
    raise Contention("a commit is just becoming visible; try again in a moment")


def read_all(
    source: Entries, log: FinalLog, span: tuple[Stamp, Stamp], count_max: int
) -> Iterator[LogEntry]:
    """Give all entries of all lanes in ``span``, lane by lane, as `read` does, part by part."""
    for lane in log.heads:
        after, until = span
        while after < until:
            part = read(source, log, lane, (after, until), count_max)
            yield from part.entries
            after = part.until
