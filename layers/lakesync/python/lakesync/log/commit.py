"""The commit loop: cut, merge, then one conditional transaction, until success or the deadline.

Why a commit is exact
    1. The transaction is conditional on the head of every lane that it writes to, which orders the
       lane. It writes head, log entry, rows and marks atomically.
    2. It is conditional on each row and mark being the one that was merged into. This orders the
       commits to a row, whatever lanes they use.
    3. A delta that changes no register is a duplicate, however old the state it was compared with:
       registers only grow. So a repeated push writes nothing.
    4. A lost answer is requested again with the same token, which the store recognises. If it no
       longer does, the head has moved, and merging again finds duplicates.
    5. No condition protects a refusal. It is decided from rows read during this very push.

Laws B1-B9: ``docs/spec/commit.md``.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from lakesync.core.clock import VISIBLE_MS_MAX, HybridLogicalClock, doubled, stamp, stamp_ms
from lakesync.core.gateway_identity import new_epoch
from lakesync.core.layout import MAIN_LANE
from lakesync.errors import AtomicPushTooLarge, Backpressure, Contention, LakeSyncError, Unavailable
from lakesync.log.lanes import LaneChoice, check_epoch, check_room, may_commit, unflushed_bytes
from lakesync.log.push_parts import Admitted, Outcome, cut, lane_commit, merge_part
from lakesync.log.row_cache import RowCache
from lakesync.ports import NO_HEAD, Commit, HeadBusy, HeadMoved, StaleRead, head_after

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from lakesync.core.config import GatewayConfig
    from lakesync.core.visibility import Viewer
    from lakesync.log.lanes import Limits
    from lakesync.log.push_parts import Part
    from lakesync.log.row_cache import CachedGateway
    from lakesync.ports import Buffer, Chance, MarkKey, RowKey, WallClock

__all__ = ["Admitted", "Committer", "ConfigChanged", "Outcome", "cut"]

_BACK_OFF_MS = 8
_BACK_OFF_MS_MAX = 400
_LOST_MS = 4
_CONFLICT_MS = 60
_TOO_MANY_WRITERS = "other writers won every race until the deadline; push again in a moment"
_TOO_LATE = "the store did not accept the commit in time; push again"
_ROWS_TOO_LARGE = "the rows an atomic push touches do not fit one commit; make it smaller"


class ConfigChanged(Exception):
    """The configuration has changed since the push was checked by it."""


class Committer:
    """Makes commits. Holds the warm memory, so one for each process; one request at a time."""

    def __init__(
        self,
        buffer: Buffer,
        *,
        wall_clock: WallClock,
        sleep_ms: Callable[[float], None],
        chance: Chance,
        limits: Limits,
        on_threshold: Callable[[str], None],
    ) -> None:
        self._buffer = buffer
        self._row_cache = RowCache(buffer, wall_clock)
        self._wall_clock = wall_clock
        self._sleep_ms = sleep_ms
        self._chance = chance
        self._limits = limits
        self._on_threshold = on_threshold
        self._clock = HybridLogicalClock()
        self._lanes = LaneChoice(
            buffer, self._row_cache, wall_clock=wall_clock, jitter=chance.jitter
        )

    def config(self, gateway: str) -> GatewayConfig:
        """Return the configuration by which pushes are checked; it may be an old one."""
        return self._row_cache.gateway(gateway).config

    def check_config(self, gateway: str) -> None:
        """Check that the configuration is in force; one read unit.

        Raises:
            ConfigChanged: it is not.
        """
        if not self._row_cache.is_current(gateway):
            self.forget(gateway)
            raise ConfigChanged

    def forget(self, gateway: str) -> None:
        """Read a gateway's configuration again: it changed."""
        self._row_cache.forget(gateway)

    def make_room(self) -> None:
        """Forget rows that are too many to remember; between pushes."""
        self._row_cache.make_room()

    def epoch(self, gateway: str) -> str:
        """Return the gateway's epoch, as the last push met it; empty before its first commit."""
        main = self._row_cache.gateway(gateway).heads.get(MAIN_LANE)
        return main.head.epoch if main and main.head else ""

    def check_gateway(
        self, gateway: str, epoch: str | None, tables: Iterable[str], *, deadline_ms: int
    ) -> None:
        """Refuse a push that is meant for another gateway, before anything is decided about it.

        The heads that a push to these tables needs are read in one request, unless they were read
        just now.

        Raises:
            AnotherGateway, CursorExpired: the client has read another epoch.
            Unavailable: the heads cannot be read now.
        """
        cached = self._row_cache.gateway(gateway)
        shards = dict.fromkeys(map(cached.config.layout.shard_of, tables))
        lanes = [MAIN_LANE, *(cached.lanes.get(shard, shard) for shard in shards)]
        attempt = 0
        while True:
            try:
                self._row_cache.load_heads(gateway, lanes)
                check_epoch(self._row_cache, gateway, epoch)
            except Unavailable as error:
                attempt = self.wait(attempt, deadline_ms, error)
            else:
                break

    def prepare(self, gateway: str, parts: Iterable[Part], *, deadline_ms: int) -> None:
        """Read the marks of all events of a push, before the first of its parts advances any.

        A mark joined from several shards' marks must not be advanced by this push itself, or the
        push's other events would seem late.

        Raises:
            Unavailable: the marks cannot be read now; nothing was written.
        """
        marks = {key for part in parts if part.since for key in part.marks}
        attempt = 0
        while marks:
            try:
                self._row_cache.load_marks(gateway, marks)
            except Contention as error:
                attempt = self.wait(attempt, deadline_ms, error)
            else:
                break

    def commit(
        self, gateway: str, part: Part, viewer: Viewer, *, deadline_ms: int, atomic: bool
    ) -> Outcome:
        """Make one part durable, or as much of it as fits; returns the outcome of each delta.

        Raises:
            ConfigChanged: check the push again by the new configuration.
            Backpressure: too much waits to be flushed; nothing was written.
            AtomicPushTooLarge: an atomic part touches more than one commit can hold.
            AnotherGateway, CursorExpired: the client has read another epoch.
            Unavailable: lost races or the store's refusals continued until the deadline.
        """
        attempt = 0
        read: set[RowKey] = set()
        read_marks: set[MarkKey] = set()
        lanes: dict[str, str] = {}
        while True:
            try:
                lanes = {shard: self._lanes.open_lane(gateway, shard) for shard in part.shards}
                cached = self._checked(gateway, part, lanes)
                read |= self._row_cache.load_rows(
                    gateway, part.row_keys(cached.config.appends), whole=atomic
                )
                read_marks |= self._row_cache.load_marks(gateway, part.marks)
                outcome = self._merge(part, cached, lanes, viewer)
                stale = outcome.unproved - read, outcome.unproved_marks - read_marks
                if any(stale):
                    self._row_cache.forget_rows(gateway, *stale)
                    continue
                if atomic and outcome.rest and not outcome.refused:
                    raise AtomicPushTooLarge(_ROWS_TOO_LARGE)
                if outcome.effective and not (atomic and outcome.refused):
                    self._write(gateway, outcome, cached, lanes, deadline_ms)
            except (HeadMoved, HeadBusy, StaleRead) as race:
                self._lost(gateway, part, lanes, race)
                error: Unavailable = Contention(_TOO_MANY_WRITERS)
                # A failed condition on a row returns the current row: a short wait is enough.
                wait_ms: int | None = _LOST_MS if isinstance(race, StaleRead) else None
            except Backpressure:
                raise
            except Unavailable as unavailable:
                error, wait_ms = unavailable, None
            else:
                return outcome
            attempt = self.wait(attempt, deadline_ms, error, wait_ms)

    def _checked(self, gateway: str, part: Part, lanes: Mapping[str, str]) -> CachedGateway:
        """Return the cached state of a gateway, unless its heads forbid the push."""
        cached = self._row_cache.gateway(gateway)
        heads = {lane: cached.head(lane) for lane in lanes.values()}
        current = [head for head in heads.values() if head and not head.is_closed] or [cached.main]
        if any(head.config_version != cached.config.version for head in current):
            self._row_cache.forget(gateway)
            raise ConfigChanged
        for lane, head in heads.items():
            if head is not None:
                check_room(self._row_cache, gateway, lane, self._wall_clock(), self._limits)
        check_epoch(self._row_cache, gateway, part.epoch)
        if not all(may_commit(cached, lane) for lane in lanes.values()):
            raise Contention(_TOO_MANY_WRITERS)  # the lane is closed by now, as its head showed
        return cached

    def _merge(
        self, part: Part, cached: CachedGateway, lanes: Mapping[str, str], viewer: Viewer
    ) -> Outcome:
        # An older duplicate counts only if its row, read now, says so; deletions are kept longer.
        old = stamp(max(self._wall_clock() - VISIBLE_MS_MAX, 0))
        outcome = merge_part(part, cached, self._limits, viewer, old)
        heads = [cached.main, *(cached.head(lane) or NO_HEAD for lane in lanes.values())]
        outcome.stamp = max(outcome.stamp, *(head.commit for head in heads))
        return outcome

    def _lost(self, gateway: str, part: Part, lanes: Mapping[str, str], race: Exception) -> None:
        """Remember the result of a lost race, and change lanes if the race was for a head."""
        if isinstance(race, StaleRead):
            self._row_cache.forget_rows(gateway, (), part.marks)
            self._row_cache.save_rows(gateway, race.rows)
            return
        lost = list(lanes.values())
        if isinstance(race, HeadMoved):
            moved = {lane: head if head != NO_HEAD else None for lane, head in race.heads.items()}
            lost = self._row_cache.save_heads(gateway, moved)
        for lane in lost:
            # A failed move costs nothing: the next attempt finds the lane unchanged.
            with suppress(Unavailable):
                self._lanes.lost(gateway, lane)

    def _write(
        self, gateway: str, outcome: Outcome, cached: CachedGateway, lanes: Mapping[str, str],
        deadline_ms: int,
    ) -> None:  # fmt: skip
        # The stamp must be above every head that it commits to, and above all that it replaces.
        self._clock.last = max(self._clock.last, outcome.stamp, outcome.seen())
        outcome.stamp = self._clock.now(self._wall_clock())
        used = [lanes[shard] for shard in outcome.effective]
        parts = {lane: lane_commit(gateway, cached, lane, outcome) for lane in used}
        token = self._chance.token()
        commit = Commit(
            gateway, outcome.stamp, cached.config.version, parts, outcome.puts, token,
            outcome.marks, cached.main.epoch or new_epoch(token),
        )  # fmt: skip
        self._write_once(commit, deadline_ms)
        heads = {lane: head_after(cached.head(lane) or NO_HEAD, commit, lane) for lane in parts}
        self._row_cache.committed(commit, heads, outcome.rows)
        if [lane for lane in parts if self._due(cached, lane)]:
            self._on_threshold(commit.gateway)

    def _write_once(self, commit: Commit, deadline_ms: int) -> None:
        """Try the same commit until it succeeded or lost a race; the token makes it idempotent."""
        attempt = 0
        while True:
            if self._wall_clock() > stamp_ms(commit.stamp) + VISIBLE_MS_MAX // 2:
                # Readers rely on commits being visible by then, so this one needs a current stamp.
                raise Contention(_TOO_LATE)
            try:
                self._buffer.commit(commit)
            except Contention as error:
                self.wait(attempt, deadline_ms, error, _CONFLICT_MS)  # equal waits: none starves
            except Unavailable as error:
                attempt = self.wait(attempt, deadline_ms, error)
            else:
                return

    def _due(self, cached: CachedGateway, lane: str) -> bool:
        """Return whether to request a flush: past the threshold, and each time as much is added."""
        head = cached.head(lane) or NO_HEAD
        threshold = cached.config.flushing.bytes or self._limits.flush_threshold_bytes
        since = head.logged_bytes - cached.asked_at_bytes.get(lane, 0)
        if unflushed_bytes(head) < threshold or since < threshold:
            return False
        cached.asked_at_bytes[lane] = head.logged_bytes
        return True

    def wait(
        self, attempt: int, deadline_ms: int, error: LakeSyncError, bound_ms: int | None = None
    ) -> int:
        """Sleep a random time, longer with each attempt; raise the error past the deadline."""
        if self._wall_clock() >= deadline_ms:
            raise error
        bound_ms = bound_ms or doubled(_BACK_OFF_MS, _BACK_OFF_MS_MAX, attempt)
        self._sleep_ms(self._chance.jitter() * bound_ms)
        return attempt + 1
