"""The commit loop: merge, then one conditional transaction, until it happens or the deadline.

Why it is exact
    1. The transaction is conditional on every touched head, which serialises a shard, and puts
       head, log entry, rows and marks together; it happens whole or not at all.
    2. It is conditional on each row and mark being the one that was merged into. Heads alone do
       not prove that: who reads while a commit happens may see its head and not yet its rows.
    3. A delta that changes no register is a duplicate, whatever the age of the state it was held
       against: registers only grow. So a repeated push writes nothing.
    4. A lost answer is asked for again under the same token, which the store recognises; if it no
       longer does, the head has moved, and merging again finds duplicates.

Laws B1-B9: ``docs/spec/commit.md``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from lakesync.core.clock import VISIBLE_MS_MAX, HybridLogicalClock, stamp, stamp_ms
from lakesync.errors import (
    AtomicPushTooLarge,
    Backpressure,
    Contention,
    LakeSyncError,
    Unavailable,
)
from lakesync.log.head_checks import check_epoch, check_room, unflushed_bytes
from lakesync.log.merge_batch import Outcome, merge_part, shard_commit
from lakesync.ports import (
    NO_HEAD,
    Commit,
    HeadMoved,
    StaleRead,
    head_after,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from lakesync.core.visibility import Viewer
    from lakesync.log.limits import Limits
    from lakesync.log.plan import Part
    from lakesync.log.row_cache import CachedShard, RowCache
    from lakesync.ports import Buffer, WallClock

_BACK_OFF_MS = 8
_BACK_OFF_MS_MAX = 400
_DOUBLINGS_MAX = 8
_TOO_MANY_WRITERS = (
    "other writers won every race until the deadline; push again, or split the table into lanes"
)
_TOO_LATE = "the store did not take the commit in time; push again"
_ROWS_TOO_LARGE = "the rows an atomic push touches do not fit one commit; make it smaller"


class Chance(Protocol):
    """Randomness, passed in: it spreads retries and names commits."""

    def jitter(self) -> float:
        """Give a number in [0, 1)."""
        ...

    def token(self) -> str:
        """Give a name that is never given again, at most 36 characters."""
        ...


class ConfigChanged(Exception):
    """The gateway's configuration is not the one that the push was checked by."""


class Committer:
    """Makes commits. Holds the warm memory, so one for each process; one request at a time."""

    def __init__(
        self,
        buffer: Buffer,
        row_cache: RowCache,
        *,
        wall_clock: WallClock,
        sleep_ms: Callable[[float], None],
        chance: Chance,
        limits: Limits,
        on_threshold: Callable[[str], None],
    ) -> None:
        self._buffer = buffer
        self._row_cache = row_cache
        self._wall_clock = wall_clock
        self._sleep_ms = sleep_ms
        self._chance = chance
        self._limits = limits
        self._on_threshold = on_threshold
        self._clock = HybridLogicalClock()

    def prepare(self, gateway: str, parts: Iterable[Part], *, deadline_ms: int) -> None:
        """Read the marks of all events of a push, before the first of its parts moves any.

        A mark that has to be joined out of several shards' must not learn from this very push that
        its other events are late.

        Raises:
            Unavailable: they cannot be read now; nothing was written.
        """
        events = [part for part in parts if part.since]
        self._row_cache.shards(gateway, {shard for part in events for shard in part.shards})
        attempt = 0
        while events:
            try:
                self._row_cache.load_marks(gateway, {key for part in events for key in part.marks})
            except Contention as error:
                # Often an earlier try of this very push, which is just happening.
                attempt = self.wait(attempt, deadline_ms, error)
            else:
                break

    def commit(
        self, gateway: str, part: Part, viewer: Viewer, *, deadline_ms: int, atomic: bool
    ) -> Outcome:
        """Make one part durable, or as much of it as fits; gives what became of each delta.

        Raises:
            ConfigChanged: check the push again by the new configuration.
            Backpressure: too much waits to be flushed; nothing was written.
            AtomicPushTooLarge: an atomic part touches more than one commit can hold.
            CursorExpired: the client has read another epoch of the buffer.
            Unavailable: the races or the store's refusals lasted to the deadline.
        """
        attempt = 0
        certain = False
        while True:
            try:
                outcome, shards = self._merge(gateway, part, viewer, atomic=atomic)
                if not certain and outcome.must_reread(atomic=atomic):
                    certain = True
                    self._row_cache.forget_shards(gateway, part.shards)
                    continue
                if atomic and outcome.rest and not outcome.refused:
                    raise AtomicPushTooLarge(_ROWS_TOO_LARGE)
                if outcome.effective and not (atomic and outcome.refused):
                    self._write(gateway, outcome, shards, deadline_ms)
            except HeadMoved as moved:
                self._row_cache.moved(gateway, moved.heads)
                error: Unavailable = Contention(_TOO_MANY_WRITERS)
            except StaleRead:
                self._row_cache.forget_shards(gateway, part.shards)
                error = Contention(_TOO_MANY_WRITERS)
            except Backpressure:
                raise
            except Unavailable as unavailable:
                error = unavailable
            else:
                return outcome
            attempt = self.wait(attempt, deadline_ms, error)

    def _merge(
        self, gateway: str, part: Part, viewer: Viewer, *, atomic: bool
    ) -> tuple[Outcome, dict[str, CachedShard]]:
        shards = self._row_cache.shards(gateway, part.shards)
        self._check_heads(gateway, shards)
        check_epoch(self._buffer, gateway, shards, part.epoch)
        config = self._row_cache.gateway(gateway).config
        self._load(gateway, part, config.appends, atomic=atomic)
        # A duplicate that is older is one only if its row says so now; deletions are kept longer.
        old = stamp(max(self._wall_clock() - VISIBLE_MS_MAX, 0))
        outcome = merge_part(part, shards, config, self._limits, viewer, old)
        heads = [shard.head.commit for shard in shards.values() if shard.head]
        outcome.stamp = max(heads, default=0)
        return outcome, shards

    def _check_heads(self, gateway: str, shards: Mapping[str, CachedShard]) -> None:
        version = self._row_cache.gateway(gateway).config.version
        for name, shard in shards.items():
            if shard.head is not None and shard.head.config_version != version:
                self._row_cache.forget(gateway)
                raise ConfigChanged
            check_room(self._buffer, gateway, name, shard, self._wall_clock(), self._limits)

    def _load(
        self, gateway: str, part: Part, appends: Callable[[str], bool], *, atomic: bool
    ) -> None:
        """Read the rows and marks that the part touches and that are not remembered."""
        rows = {
            shard: [
                (delta.table, delta.row_id) for _, delta in admitted if not appends(delta.table)
            ]
            for shard, admitted in part.shards.items()
        }
        self._row_cache.load_rows(gateway, rows, whole=atomic)
        self._row_cache.load_marks(gateway, part.marks)

    def _write(
        self, gateway: str, outcome: Outcome, shards: Mapping[str, CachedShard], deadline_ms: int
    ) -> None:
        # The clock must pass every head it commits to, whichever process moved it there.
        self._clock.last = max(self._clock.last, outcome.stamp)
        outcome.stamp = self._clock.now(self._wall_clock())
        made = outcome.effective
        parts = {name: shard_commit(outcome.stamp, shards[name], name, outcome) for name in made}
        version = self._row_cache.gateway(gateway).config.version
        commit = Commit(gateway, outcome.stamp, version, parts, outcome.puts, self._chance.token())
        self._write_once(commit, deadline_ms)
        self._remember(commit, outcome, shards)

    def _write_once(self, commit: Commit, deadline_ms: int) -> None:
        """Try the same commit until it happened or lost; the token makes trying again safe."""
        attempt = 0
        while True:
            if self._wall_clock() > stamp_ms(commit.stamp) + VISIBLE_MS_MAX // 2:
                # Whoever reads relies on its being visible by then: it gets a stamp of now.
                raise Contention(_TOO_LATE)
            try:
                self._buffer.commit(commit)
            except Unavailable as error:
                attempt = self.wait(attempt, deadline_ms, error)
            else:
                return

    def _remember(
        self, commit: Commit, outcome: Outcome, shards: Mapping[str, CachedShard]
    ) -> None:
        self._row_cache.committed(commit, outcome.rows)
        for name, part in commit.shards.items():
            shards[name].head = head_after(shards[name].head or NO_HEAD, commit, part.entry)
        if [name for name in commit.shards if self._due(shards[name])]:
            self._on_threshold(commit.gateway)

    def _due(self, shard: CachedShard) -> bool:
        """Tell whether to ask for a flush: past the threshold, and again after each as much."""
        head, threshold = shard.head or NO_HEAD, self._limits.flush_threshold_bytes
        since = head.logged_bytes - shard.asked_at_bytes
        if unflushed_bytes(head) < threshold or since < threshold:
            return False
        shard.asked_at_bytes = head.logged_bytes
        return True

    def wait(self, attempt: int, deadline_ms: int, error: LakeSyncError) -> int:
        """Sleep a random while, longer with each attempt; raise the error past the deadline."""
        if self._wall_clock() >= deadline_ms:
            raise error
        bound_ms = min(_BACK_OFF_MS << attempt, _BACK_OFF_MS_MAX)
        self._sleep_ms(self._chance.jitter() * bound_ms)
        return min(attempt + 1, _DOUBLINGS_MAX)
