"""What a process keeps of logs between pulls: the heads it has just read, the newest entries.

Rules for heads, which are used again for pulls whose cursor is below them
    1. The main lane's head is read for every page. It shows which lanes are open, the version of
       the rules, the epoch, the horizon and whether the gateway is deleted; if any of it changed,
       no earlier read is used. Heads only rise, so earlier heads of lanes that are still open are
       lower bounds, and everything up to the lowest of them is complete (law B7).
    2. A page that is not the last says that there is more, so it may end anywhere below.
    3. A last page may end at the lowest of them only while the gateway is under load, which means
       that the page that they were read for also ended before the newest commit. Their age must
       also be less than `RAISED_EVERY_MS`. The heads of a quiet gateway are always read again.

Entries are immutable, so a cached one stays valid within an epoch of the buffer. A tail is a chain
without gaps: an entry joins it only if it names the tail's last entry as its predecessor. Any other
entry is returned and not cached.

Law B15: ``docs/spec/commit.md``.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from dataclasses import dataclass, field, replace
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from lakesync.core.clock import stamp, stamp_ms
from lakesync.core.layout import MAIN_LANE
from lakesync.log.read import RAISED_EVERY_MS, Ages, HeadHistory, ReadBarrier, read
from lakesync.ports import NO_HEAD, LogSlice

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from lakesync.core.clock import Stamp
    from lakesync.log.read import FinalLog, Moment
    from lakesync.ports import Buffer, Head, LogEntry, WallClock

# --- heads ----------------------------------------------------------------------------------------


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


# --- entries --------------------------------------------------------------------------------------


TAIL_BYTES_MAX: Final = 32 * 1024 * 1024
"""Entries that one process caches, over all gateways and lanes."""
SLICE_BYTES_MAX: Final = 1024 * 1024
"""Entries that one read returns from memory; it ends early there, as the buffer's reads do."""
_ENTRY_BYTES: Final = 400


class _Key(NamedTuple):
    gateway: str
    epoch: str
    lane: str


@dataclass(slots=True)
class _Chain:
    """A lane's entries above ``start``, without gaps."""

    start: Stamp
    entries: list[LogEntry] = field(default_factory=list)
    stamps: list[Stamp] = field(default_factory=list)
    size_bytes: int = 0

    @property
    def end(self) -> Stamp:
        """The cache holds everything up to here."""
        return self.stamps[-1] if self.stamps else self.start

    def join(self, entries: Iterable[LogEntry]) -> None:
        """Add entries that follow; stops at the first that does not."""
        for entry in entries:
            if entry.stamp <= self.end or entry.previous > self.end:
                return
            if self.stamps and entry.previous != self.end:
                return
            self.entries.append(entry)
            self.stamps.append(entry.stamp)
            self.size_bytes += _size(entry)

    def shorten(self) -> None:
        """Drop the older half."""
        half = (len(self.entries) + 1) // 2
        self.start = self.stamps[half - 1]
        self.size_bytes -= sum(map(_size, self.entries[:half]))
        del self.entries[:half], self.stamps[:half]


class Tails:
    """Caches the tails of logs; the most recently used stay.

    One request at a time, which may read several lanes in parallel.
    """

    def __init__(self, buffer: Buffer) -> None:
        self._buffer = buffer
        self._chains: OrderedDict[_Key, _Chain] = OrderedDict()
        self._ahead: dict[tuple[_Key, Stamp, Stamp, int], LogSlice] = {}
        """Entries that were read ahead, by the arguments of the later call."""
        self._lock = Lock()

    def of(self, epoch: str) -> Tail:
        """Return the logs of one epoch of the buffer."""
        return Tail(self, epoch)

    def pause(self, tries: int) -> None:
        """Wait, as `lakesync.ports.Buffer.pause` does."""
        self._buffer.pause(tries)

    def join(self, key: _Key, entries: Sequence[LogEntry]) -> None:
        """Add entries that came with a head, if they follow the cached ones of its lane."""
        chain = self._chains.get(key)
        if chain is not None and entries and entries[0].previous <= chain.end:
            chain.join(entry for entry in entries if entry.stamp > chain.end)

    def read_ahead(
        self, gateway: str, epoch: str, heads: Mapping[str, Head], after: Stamp, count_max: int
    ) -> list[Callable[[], None]]:
        """Return the calls that read the uncached parts of lanes' logs behind a stamp.

        They may run in parallel. One reads the lanes that lack only their last item; `entries`
        gives what the others read, so none is read twice.
        """
        self._ahead.clear()
        last_items: dict[_Key, Stamp] = {}
        calls: list[Callable[[], None]] = []
        in_heads = {lane: _bytes_of(head.recent) for lane, head in heads.items()}
        # An item is what was in a head; the main lane's head may have room where others have none.
        in_head_max = max((size for lane, size in in_heads.items() if lane != MAIN_LANE), default=0)
        for lane, head in heads.items():
            key = _Key(gateway, epoch, lane)
            missing = self._missing_bytes(key, head, after)
            if missing is None or missing > max(in_head_max, in_heads[lane]):
                calls.append(partial(self._read_ahead, key, after, head.stored_until, count_max))
            elif missing:
                last_items[key] = head.stored_until
        return [partial(self._load_items, gateway, last_items), *calls] if last_items else calls

    def _missing_bytes(self, key: _Key, head: Head, after: Stamp) -> int | None:
        """Return how much of a lane's stored log is not cached; None if that is not known."""
        if head.stored_until <= after:
            return 0
        chain = self._chains.get(key)
        if chain is None or not chain.entries or not chain.start <= after <= chain.end:
            return None
        if head.stored_until <= chain.end:
            return 0
        return head.logged_bytes - _bytes_of(head.recent) - chain.entries[-1].logged_bytes

    def _load_items(self, gateway: str, last_items: Mapping[_Key, Stamp]) -> None:
        wanted = {key.lane: last for key, last in last_items.items()}
        items = self._buffer.log_items(gateway, wanted)
        for key in last_items:
            # A lane read in parallel may have displaced this one: then `entries` reads it.
            if chain := self._chains.get(key):
                chain.join(entry for entry in items.get(key.lane, ()) if entry.stamp > chain.end)
        self._make_room()

    def _read_ahead(self, key: _Key, after: Stamp, until: Stamp, count_max: int) -> None:
        asked = (key, after, until, count_max)
        self._ahead[asked] = self.entries(*asked)

    def entries(self, key: _Key, after: Stamp, until: Stamp, count_max: int) -> LogSlice:
        """Return entries as `lakesync.ports.Buffer.entries` does."""
        if ahead := self._ahead.pop((key, after, until, count_max), None):
            return ahead
        with self._lock:
            chain = self._chains.setdefault(key, _Chain(after))
            self._chains.move_to_end(key)
        if after < chain.start:
            return self._before(key, chain, after, until, count_max)
        if after >= chain.end:
            return self._behind(key, chain, after, until, count_max)
        read_slice = _from_memory(chain, after, until, count_max)
        count = sum(entry.count for entry in read_slice.entries)
        if read_slice.until < chain.end or chain.end >= until or count >= count_max:
            return read_slice
        rest = self._behind(key, chain, chain.end, until, count_max - count)
        return LogSlice(read_slice.entries + rest.entries, rest.until)

    def _before(
        self, key: _Key, chain: _Chain, after: Stamp, until: Stamp, count_max: int
    ) -> LogSlice:
        read_slice = self._buffer.entries(key.gateway, key.lane, after, until, count_max)
        if read_slice.until >= chain.start:
            # It reaches the cached part, so that the cache now begins earlier.
            longer = _Chain(after)
            longer.join(
                [*read_slice.entries, *(e for e in chain.entries if e.stamp > read_slice.until)]
            )
            if longer.end >= chain.end:
                with self._lock:
                    self._chains[key] = longer
                self._make_room()
        return read_slice

    def _behind(
        self, key: _Key, chain: _Chain, after: Stamp, until: Stamp, count_max: int
    ) -> LogSlice:
        read_slice = self._buffer.entries(key.gateway, key.lane, after, until, count_max)
        if after > chain.end:
            chain = _Chain(after)
            with self._lock:
                self._chains[key] = chain
        chain.join(read_slice.entries)
        self._make_room()
        return read_slice

    def _make_room(self) -> None:
        with self._lock:
            while sum(chain.size_bytes for chain in self._chains.values()) > TAIL_BYTES_MAX:
                if len(self._chains) > 1:
                    self._chains.popitem(last=False)
                else:
                    next(iter(self._chains.values())).shorten()


class Tail(NamedTuple):
    """The logs of one epoch, from memory where they are cached."""

    tails: Tails
    epoch: str

    def entries(
        self, gateway: str, lane: str, after: Stamp, until: Stamp, count_max: int
    ) -> LogSlice:
        """Return entries as `lakesync.ports.Buffer.entries` does."""
        return self.tails.entries(_Key(gateway, self.epoch, lane), after, until, count_max)

    def read_ahead(
        self, gateway: str, heads: Mapping[str, Head], after: Stamp, count_max: int
    ) -> list[Callable[[], None]]:
        """Return the calls that read what `entries` will be asked for, given such heads."""
        return self.tails.read_ahead(gateway, self.epoch, heads, after, count_max)

    def pause(self, tries: int) -> None:
        """Wait, as `lakesync.ports.Buffer.pause` does."""
        self.tails.pause(tries)

    def join(self, gateway: str, lane: str, entries: Sequence[LogEntry]) -> None:
        """Add entries that came with a lane's head."""
        self.tails.join(_Key(gateway, self.epoch, lane), entries)


def _from_memory(chain: _Chain, after: Stamp, until: Stamp, count_max: int) -> LogSlice:
    """Return cached entries; another read gives those behind the last one."""
    entries: list[LogEntry] = []
    count = size = 0
    for place in range(bisect_right(chain.stamps, after), len(chain.entries)):
        entry = chain.entries[place]
        if entry.stamp > until:
            return LogSlice(tuple(entries), until)
        if entries and (count >= count_max or size >= SLICE_BYTES_MAX):
            return LogSlice(tuple(entries), entries[-1].stamp)
        entries.append(entry)
        count += entry.count
        size += len(entry.records)
    return LogSlice(tuple(entries), min(chain.end, until))


def _bytes_of(entries: Sequence[LogEntry]) -> int:
    return sum(len(entry.records) for entry in entries)


def _size(entry: LogEntry) -> int:
    return _ENTRY_BYTES + len(entry.records) + len(entry.rule_rows)


# --- reading --------------------------------------------------------------------------------------


Beside: TypeAlias = "Callable[[FinalLog], list[Callable[[], None]]]"
"""Returns the calls that may be made while heads are read or raised."""


class LogReader:
    """Reads logs for pulls. One for each process; one request at a time."""

    def __init__(
        self, buffer: Buffer, wall_clock: WallClock, monotonic_ms: Callable[[], int] | None = None
    ) -> None:
        self._buffer = buffer
        self._wall_clock = wall_clock
        ages = Ages(wall_clock, monotonic_ms)
        self._history, self._recent = HeadHistory(ages), RecentHeads(buffer, ages)
        self._barrier = ReadBarrier(buffer, self._history)
        self.tails = Tails(buffer)

    def recent(
        self, gateway: str, since: Stamp, at_least: Stamp, beside: Beside
    ) -> RecentLog | None:
        """Return a log from heads that were just read; None if they must be read now."""
        at_least = max(at_least, self._history.moment_ago(gateway).newest)
        return self._recent.log(gateway, since, at_least, beside)

    def read_on(self, gateway: str, cursor: Stamp) -> None:
        """Note that a page which was not the last ended at a cursor."""
        self._recent.read_on(gateway, cursor)

    def current(self, gateway: str, since: Stamp, at_least: Stamp, beside: Beside) -> FinalLog:
        """Return a log from heads that are read now, and remember them."""
        read_at = self._recent.now()
        log = self.final(gateway, since, at_least, beside)
        self._recent.keep(log, since, read_at)
        return log

    def final(
        self, gateway: str, since: Stamp, at_least: Stamp, beside: Beside = lambda _: []
    ) -> FinalLog:
        """Return a log behind a stamp, final up to ``at_least`` or further."""
        return self._barrier.raise_heads(
            gateway, since, at_least=at_least, wall_clock=self._wall_clock, beside=beside
        )

    def whole(self, gateway: str) -> FinalLog:
        """Return a log with all of its lanes, final up to now."""
        return self._barrier.raise_heads(gateway)

    def read_ahead(
        self, log: FinalLog, heads: Mapping[str, Head], since: Stamp, count_max: int
    ) -> list[Callable[[], None]]:
        """Return the calls that read what `entries` will need."""
        return self.tails.of(log.epoch).read_ahead(log.gateway, heads, since, count_max)

    def entries(
        self, log: FinalLog, lanes: Iterable[str], since: Stamp, count_max: int
    ) -> tuple[list[LogEntry], Stamp]:
        """Read lanes until each could fill a page; returns the entries in commit order.

        Returns:
            The entries, and the stamp up to which they are complete: the lowest end of any lane.
        """
        source = self.tails.of(log.epoch)
        reads = [partial(read, source, log, lane, (since, log.top), count_max) for lane in lanes]
        slices = self._buffer.in_parallel(reads)
        for lane, head in log.heads.items():
            # The next page then does not have to read entries that have moved into the log by then.
            source.join(log.gateway, lane, head.recent)
        until = min((part.until for part in slices), default=log.top)
        entries = [entry for part in slices for entry in part.entries if entry.stamp <= until]
        return sorted(entries, key=lambda entry: entry.stamp), until
