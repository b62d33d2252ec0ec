"""Reading a gateway's log: made final by the read barrier, then read without gaps.

The read barrier makes one 64-bit cursor exact for any number of lanes. A commit is conditional on
its lane's head and stamped above it. So once a head is at a stamp, no commit can appear at or below
it in that lane. Everything up to the lowest head of all open lanes is complete and final; heads
that lag behind are raised first. A lane is opened above the main lane's head, which is read in one
item with the list of open lanes.

A reader that does not request a fresh page raises only idle heads. Which are idle is decided by
what this process saw of them a moment ago, measured by its own clock alone. Stamps come from the
writers' clocks. If these differ from the reader's clock, stamps do not show how long ago something
happened: a burst of writes would seem to last as long as the clocks differ.

Final does not mean visible: while a commit is written, its head may be visible before its log
entry. So a log is read only by `read`, which follows the chain of entries back from the head and
does not accept a gap. Laws B7, B8, B15, B17: ``docs/spec/commit.md``.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeAlias

from lakesync.core.clock import STAMP_MAX, stamp_ms
from lakesync.core.layout import MAIN_LANE
from lakesync.errors import Contention
from lakesync.ports import NO_HEAD, HeadMoved, LogSlice
from lakesync.wire.records import raw_records

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from lakesync.core.clock import Stamp
    from lakesync.core.config import GatewayConfig
    from lakesync.ports import Buffer, Head, LogEntry, WallClock

# --- a final log ----------------------------------------------------------------------------------


_GAP_TRIES_MAX: Final = 10


@dataclass(frozen=True, slots=True)
class FinalLog:
    """A gateway's log, final up to ``top``."""

    gateway: str
    config: GatewayConfig
    heads: Mapping[str, Head]
    """By lane, the heads of the lanes that may have an entry above the requested stamp."""
    top: Stamp
    newest: Stamp = 0
    """The newest commit that was seen; above ``top`` if a lagging lane was not raised."""

    @property
    def epoch(self) -> str:
        """The gateway's epoch; empty before its first commit."""
        return self.heads.get(MAIN_LANE, NO_HEAD).epoch

    @property
    def trimmed(self) -> Stamp:
        """The horizon: cursors below it are void."""
        return self.heads.get(MAIN_LANE, NO_HEAD).trimmed

    @property
    def behind_ms(self) -> int:
        """How far the newest commit is ahead of the end of this log; 0 if it is the end."""
        if self.newest <= self.top:
            return 0
        return stamp_ms(self.newest) - stamp_ms(self.top) + 1


class Entries(Protocol):
    """The source of entries: `lakesync.ports.Buffer`, or a cache in front of it."""

    def entries(
        self, gateway: str, lane: str, after: Stamp, until: Stamp, count_max: int
    ) -> LogSlice:
        """Return entries as `lakesync.ports.Buffer.entries` does."""
        ...

    def pause(self, tries: int) -> None:
        """Wait, as `lakesync.ports.Buffer.pause` does."""
        ...


def read(
    source: Entries, log: FinalLog, lane: str, span: tuple[Stamp, Stamp], count_max: int
) -> LogSlice:
    """Return a lane's entries in ``span``, which ends at ``log.top`` at the latest; without gaps.

    Ends early as `lakesync.ports.Buffer.entries` does, and says so.

    Raises:
        Contention: an entry that must exist stayed invisible; try again in a moment.
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
    """Return entries that are not in the head, up to the last of them; without gaps."""
    for tries in range(1, _GAP_TRIES_MAX):
        # Only the last entry of the chain proves that none is missing before it.
        read_slice = source.entries(gateway, lane, after, last, count_max)
        if read_slice.is_chain(after, last):
            return read_slice
        source.pause(tries)
    raise Contention("a commit is becoming visible; try again in a moment")


def read_all(
    source: Entries, log: FinalLog, span: tuple[Stamp, Stamp], count_max: int
) -> Iterator[LogEntry]:
    """Yield all entries of all lanes in ``span``, lane by lane, in parts, as `read` does."""
    for lane in log.heads:
        after, until = span
        while after < until:
            part = read(source, log, lane, (after, until), count_max)
            yield from part.entries
            after = part.until


# --- the read barrier -----------------------------------------------------------------------------


CONFIGS_REMEMBERED_MAX: Final = 64
"""Gateways whose configuration one process caches; each may take 350 KB."""
_TRIES_MAX: Final = 20
_RACES_MAX: Final = 3
"""Races for an idle head, all lost to other readers."""


class ReadBarrier:
    """Makes logs final before they are read, and caches configurations. One for each process.

    Args:
        buffer: the store of the logs.
        history: what the process has seen of their heads, if it reads repeatedly.
    """

    def __init__(self, buffer: Buffer, history: HeadHistory | None = None) -> None:
        self._buffer = buffer
        self._history = history
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
            read_at = self._history.now() if self._history else NEVER
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
        open_heads = {lane: log.heads.get(lane) for lane in main.lanes.open()}
        newest = max(main.lanes.quiet, *(head.commit for head in open_heads.values() if head))
        seen = self._history.moment_ago(log.gateway) if self._history else NOTHING_SEEN
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
        if self._history:
            self._history.note(log.gateway, SeenHeads(final, newest), read_at)
        return FinalLog(log.gateway, log.config, heads, min(final.values()), newest)

    def _present_ms(self, gateway: str, clock_ms: int, newest_ms: int) -> int:
        """Return the time by which stamps show which lanes are in use."""
        is_watched = self._history is not None and self._history.is_watched(gateway)
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


# --- which heads are raised -----------------------------------------------------------------------


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


# --- what was seen of heads a moment ago ----------------------------------------------------------


GATEWAYS_REMEMBERED_MAX: Final = 64
"""Gateways whose heads one process remembers; with 64 lanes each takes about 50 KB."""
SEEN_APART_MS: Final = 25
"""Of heads seen at shorter intervals only the latest are kept."""


class SeenHeads(NamedTuple):
    """The state of the heads of a gateway's open lanes, after they were raised."""

    commits: Mapping[str, Stamp]
    """By lane."""
    newest: Stamp


class _Noted(NamedTuple):
    read_at: Moment
    """Before the heads were read. A request may take long from there until they are raised."""
    at: Moment
    heads: SeenHeads


NOTHING_SEEN: Final = SeenHeads({}, 0)
NEVER: Final[Moment] = (0, 0)


class HeadHistory:
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

    def moment_ago(self, gateway: str) -> SeenHeads:
        """Return the latest heads seen `RAISED_EVERY_MS` ago; `NOTHING_SEEN` if there are none."""
        kept = self._kept.get(gateway)
        if not kept:
            return NOTHING_SEEN
        while len(kept) > 1 and self._is_aged(kept[1].at):
            kept.popleft()
        return kept[0].heads if self._is_aged(kept[0].at) else NOTHING_SEEN

    def is_watched(self, gateway: str) -> bool:
        """Return whether the process has read the heads within `RAISED_EVERY_MS`."""
        kept = self._kept.get(gateway)
        return kept is not None and self._ages.is_within(RAISED_EVERY_MS, kept[-1].read_at)

    def note(self, gateway: str, heads: SeenHeads, read_at: Moment) -> None:
        """Remember the current heads, which were read at a moment and then raised."""
        kept = self._kept.pop(gateway, None) or deque()
        if len(heads.commits) == 1:
            return
        if len(kept) > 1 and self._ages.is_within(SEEN_APART_MS, kept[-2].at):
            kept.pop()
        kept.append(_Noted(read_at, self._ages.now(), heads))
        self._kept[gateway] = kept
        while len(self._kept) > GATEWAYS_REMEMBERED_MAX:
            self._kept.popitem(last=False)

    def _is_aged(self, seen_at: Moment) -> bool:
        return self._ages.ms_since(seen_at) >= RAISED_EVERY_MS


# --- ages, by both clocks of a process ------------------------------------------------------------


Moment: TypeAlias = tuple[int, int]
"""The milliseconds of the wall clock and of the monotonic clock."""


class Ages:
    """Determines ages by two clocks.

    One clock alone could understate an age: the wall clock may be set back, and the monotonic clock
    may stop while the process is frozen.

    Args:
        wall_clock: the time.
        monotonic_ms: a clock that never steps; the wall clock if left out.
    """

    def __init__(
        self, wall_clock: WallClock, monotonic_ms: Callable[[], int] | None = None
    ) -> None:
        self._wall_clock = wall_clock
        self._monotonic_ms = monotonic_ms or wall_clock

    def now(self) -> Moment:
        """Return the present, from which the age of what happens now is measured."""
        return self._wall_clock(), self._monotonic_ms()

    def is_within(self, ms: int, then: Moment) -> bool:
        """Return whether something is younger than ``ms``; False if a clock went back."""
        return all(0 <= now - before < ms for now, before in zip(self.now(), then, strict=True))

    def ms_since(self, then: Moment) -> int:
        """Return how old something is, by the clock that shows the greater age."""
        return max(now - before for now, before in zip(self.now(), then, strict=True))


# --- how much of each table waits to be flushed ---------------------------------------------------


_SLICE_DELTAS_MAX: Final = 10_000


class Waiting(NamedTuple):
    """The deltas of one table that are in no announced batch."""

    bytes: int = 0
    """As the log has them, without what an entry adds to them."""
    deltas: int = 0


def waiting_tables(
    buffer: Buffer, log: FinalLog, deltas_max: int | None = None
) -> tuple[dict[str, Waiting], bool]:
    """Return what waits by table, and whether it is all: not if more than ``deltas_max`` wait.

    Cost: the unflushed log is read; an entry with several tables is decoded.
    """
    # In this order: what is flushed meanwhile is counted once more, never left out.
    flushed = buffer.flushed_tables(log.gateway)
    after = max(buffer.flush_state(log.gateway).watermark, log.trimmed)
    waiting: dict[str, Waiting] = {}
    seen = 0
    for entry in read_all(buffer, log, (after, log.top), _SLICE_DELTAS_MAX):
        if deltas_max is not None and seen >= deltas_max:
            return waiting, False
        seen += entry.count
        for table, size, deltas in _parts(entry):
            if entry.stamp > flushed.get(table, 0):
                before = waiting.get(table, Waiting())
                waiting[table] = Waiting(before.bytes + size, before.deltas + deltas)
    return waiting, True


def over_budget(waiting: Mapping[str, Waiting], budgets: Mapping[str, int]) -> list[str]:
    """Return the tables that have used up their budgets, in order of name."""
    return sorted(
        table for table, budget in budgets.items()
        if waiting.get(table, Waiting()).bytes >= budget
    )  # fmt: skip


def _parts(entry: LogEntry) -> Iterator[tuple[str, int, int]]:
    """Yield the tables of an entry, each with bytes and deltas; a table may come several times."""
    if len(entry.tables) == 1:
        [table] = entry.tables
        yield table, len(entry.records), entry.count
        return
    for record in raw_records(entry.records):
        yield record.table, record.ByteSize(), 1
