"""The buffer behind all processes: the real `MemoryBuffer`, watched, and torn where DynamoDB is.

A transaction happens at one moment for those who write. Those who read meanwhile may see one of its
items and not yet another: each becomes visible by itself, all of them before the commit is
answered. So reads here leave out what is still hidden, or show what was there before.
"""

from __future__ import annotations

import functools
import json
from collections import defaultdict, deque
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

from lakesync.buffer.memory_buffer import MemoryBuffer
from lakesync.core.clock import stamp_ms
from lakesync.core.layout import MAIN_LANE
from lakesync.errors import Contention
from lakesync.log.read import CLOCKS_APART_MS, RAISED_EVERY_MS, SEEN_APART_MS
from lakesync.ports import NO_HEAD
from tests.simulation.history import Violation

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from lakesync.core.config import GatewayConfig
    from lakesync.core.layout import Lanes
    from lakesync.core.messages import Push
    from lakesync.ports import (
        Commit,
        FlushState,
        Head,
        LogEntry,
        LogSlice,
        MarkKey,
        RowKey,
        RowSlice,
        StoredMark,
        StoredRow,
    )
    from tests.simulation.world import World

Item: TypeAlias = "tuple[str, object]"
"""``("head", lane)``, ``("row", key)``, ``("mark", key)``, ``("chunk", (lane, stamp))``."""
WINDOWS_MS = [20, 400, 400, 4_000]
SEEN_AGAIN_MS = 2 * RAISED_EVERY_MS + SEEN_APART_MS
"""A process whose clock is behind sees within this time that nothing happens any more."""
QUIET_LOOK = 20
"""The newest log entries that tell whether all is quiet; all of one commit are among them."""


class Store(MemoryBuffer):
    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world
        self._random = world.stream("torn")
        self._hidden: dict[Item, Any] = {}
        """Items that are not visible yet, by whom and with what was there before, or None."""
        self._visible_ms: dict[str, int] = {}
        """When each torn commit, by its token, is visible as a whole."""
        self._lanes_changed = 0
        """The stamp at which lanes were opened or closed last, which the main head may not show."""
        self._committed_ms = self._opened_ms = 0
        """When a commit happened last, and when lanes were opened last."""
        self._happened_ms: deque[int] = deque(maxlen=2)
        """When the latest commits or changes of lanes happened, in real time."""
        self._is_lost = False
        """Another one was restored in its place; what still reaches this one concerns nobody."""

    # --- backups ----------------------------------------------------------------------------------

    def backup(self) -> Any:
        """Return everything as it is at this moment."""
        return _copied(self._of("g1"))

    def replaced_by(self, backup: Any) -> Store:
        self._is_lost = True
        restored = Store(self._world)
        restored._gateways["g1"] = _copied(backup)
        self._world.rulings.saved(backup.config.rules)
        return restored

    def emptied(self) -> Store:
        """Return the buffer of a new gateway in place of this one."""
        self._is_lost = True
        return Store(self._world)

    def lanes(self) -> tuple[Any, ...]:
        heads = self._of("g1").heads
        closed = {lane for lane, head in heads.items() if head.is_closed}
        return closed, heads.get(MAIN_LANE, NO_HEAD).lanes, len(self._world.history.log)

    def leaves_lanes_open(self) -> bool:
        """Return whether lanes are open that a flush has to close, or has to have closed later.

        Those that were opened in vain are closed by the next flush: calm begins with one.
        """
        main = self._of("g1").heads.get(MAIN_LANE, NO_HEAD)
        flushed_ms = max(self._committed_ms, self._world.calm_ms)
        return len(main.lanes.open()) > 1 and self._opened_ms < flushed_ms

    @property
    def is_deleted(self) -> bool:
        """Return whether the gateway's deletion has begun."""
        return bool(self._of("g1").config.deleted_ms)

    def void(self, gateway: str) -> tuple[int, str]:
        main = self._of(gateway).heads.get(MAIN_LANE, NO_HEAD)
        return main.trimmed, main.epoch

    def is_quiet(self, now_ms: int, *, is_watched: bool) -> bool:
        """Get whether at most one commit, or change of lanes, is of the last moment, and visible.

        Stamps tell that, unless they are ahead of the clock of who asks: then real time does.

        Args:
            now_ms: the time, by the clock of who asks.
            is_watched: who asks has read the heads within `RAISED_EVERY_MS`. If stamps are ahead,
                one young commit may then be a lane in use.
        """
        if self._hidden:
            return False
        heads = self._of("g1").heads.values()
        stamps = {head.commit for head in heads} | {self._lanes_changed}
        stamps |= {item.stamp for item in self._world.history.log[-QUIET_LOOK:]}
        newest_ms = max(map(stamp_ms, stamps))
        if newest_ms >= now_ms + CLOCKS_APART_MS:
            since_ms = self._world.scheduler.elapsed_ms - SEEN_AGAIN_MS
            young = sum(happened_ms > since_ms for happened_ms in self._happened_ms)
            return young <= (0 if is_watched else 1)
        since_ms = max(now_ms, newest_ms) - RAISED_EVERY_MS
        return sum(stamp_ms(stamp) > since_ms for stamp in stamps) <= 1

    # --- writes -----------------------------------------------------------------------------------

    def commit(self, commit: Commit) -> None:
        self.take(commit, None)

    def take(self, commit: Commit, push: Push | None) -> int:
        """Commit, and hold it against the history if it happened.

        Returns:
            After how many milliseconds all of it is visible.
        """
        stored = self._of(commit.gateway)
        known = commit.token in stored.tokens
        before = self._before(commit)
        super().commit(commit)
        self._written(before)
        world = self._world
        if self._is_lost:
            return 0
        if self._of(commit.gateway).config.deleted_ms and not known:
            raise Violation("nothing happens after a deletion", f"{commit.stamp}")
        if known:
            return max(0, self._visible_ms.get(commit.token, 0) - world.scheduler.now_ms)
        world.count("commit")
        self._committed_ms = world.scheduler.now_ms
        self._happened_ms.append(world.scheduler.elapsed_ms)
        world.history.committed(commit, push)
        world.sockets.notifier.committed(commit.stamp)
        if self._random.random() >= world.faults.torn_commit:
            world.history.settle(commit.stamp, world.scheduler.now_ms)
            return 0
        world.count("torn commit")
        window_ms = self._random.randint(1, self._random.choice(WINDOWS_MS))
        # One later than the last item: what happens at the same moment happens in any order.
        whole_ms = window_ms + 1
        self._visible_ms[commit.token] = world.scheduler.now_ms + whole_ms
        for item, was in before.items():
            self._hidden[item] = (commit.token, was)
            reveal = functools.partial(self._reveal, item, commit.token)
            # Log entries come last more often: whoever reads a log sees most of a commit before.
            least_ms = window_ms // 2 if item[0] == "chunk" else 0
            world.later("visible", reveal, self._random.randint(least_ms, window_ms))
        whole_at_ms = self._visible_ms[commit.token]
        world.later("settled", lambda: world.history.settle(commit.stamp, whole_at_ms), whole_ms)
        return whole_ms

    def _reveal(self, item: Item, token: str) -> None:
        if item in self._hidden and self._hidden[item][0] == token:
            del self._hidden[item]

    def _written(self, items: Iterable[Item]) -> None:
        """Show items that were written again: each item's own writes happen one after the other."""
        for item in items:
            self._hidden.pop(item, None)

    def _before(self, commit: Commit) -> dict[Item, Any]:
        stored = self._of(commit.gateway)
        items: dict[Item, Any] = {("row", key): stored.rows.get(key) for key in commit.rows}
        items |= {("mark", key): stored.marks.get(key) for key in commit.marks}
        for lane, part in commit.lanes.items():
            items["head", lane] = stored.heads.get(lane)
            if part.chunk:
                items["chunk", (lane, commit.stamp)] = None
        return items

    def raise_head(self, gateway: str, lane: str, seen: Head | None, to: int, main: Head) -> bool:
        raised = super().raise_head(gateway, lane, seen, to, main)
        if raised:
            self._written([("head", lane)])
        return raised

    def change_lanes(self, gateway: str, seen: Head | None, lanes: Lanes, to: int = 0) -> bool:
        before = (seen or NO_HEAD).lanes.open()
        changed = super().change_lanes(gateway, seen, lanes, to)
        if changed:
            self._lanes_changed = self._of(gateway).heads[MAIN_LANE].commit
            self._happened_ms.append(self._world.scheduler.elapsed_ms)
            self._written([("head", MAIN_LANE)])
            is_opened = len(lanes.open()) > len(before)
            self._world.count("lanes opened" if is_opened else "lanes closed")
            self._opened_ms = self._world.scheduler.now_ms if is_opened else self._opened_ms
        return changed

    def close_lane(self, gateway: str, lane: str, seen: Head | None, to: int) -> bool:
        closed = super().close_lane(gateway, lane, seen, to)
        if closed:
            self._written([("head", lane)])
        return closed

    def save_config(
        self, gateway: str, config: GatewayConfig, seen: Head | None, lanes: Lanes, to: int,
        *, epoch: str = "",
    ) -> None:  # fmt: skip
        """Put a configuration in force."""
        super().save_config(gateway, config, seen, lanes, to, epoch=epoch)
        if not self._is_lost:
            self._world.rulings.saved(config.rules)
            self._world.sockets.notifier.configured()
            history = self._world.history
            for table, horizon in config.tombstone_horizons.items():
                history.horizons[table] = max(history.horizons.get(table, 0), horizon)
        self._written([("head", MAIN_LANE)])

    def note_flushed(self, gateway: str, lane: str, until: int, logged_bytes: int) -> None:
        super().note_flushed(gateway, lane, until, logged_bytes)
        self._written([("head", lane)])

    def save_flush_state(self, gateway: str, seen: FlushState, state: FlushState) -> bool:
        """Move the flush state on, and hold it against the lake if it moved."""
        before = self.flush_state(gateway)
        moved = super().save_flush_state(gateway, seen, state)
        if moved and state.watermark > before.watermark and not self._is_lost:
            self._world.watch.flushed(before.watermark, state)
        return moved

    def raise_horizon(self, gateway: str, to: int) -> None:
        """Void every cursor below a stamp."""
        super().raise_horizon(gateway, to)
        self._written([("head", MAIN_LANE)])

    def drop_entries(self, gateway: str, lane: str, until: int, entries_max: int) -> bool:
        """Delete entries below the horizon, and hold that against what may go."""
        stored = self._of(gateway)
        before = list(stored.logs[lane])
        finished = super().drop_entries(gateway, lane, until, entries_max)
        left = len(stored.logs[lane])
        gone = before[: len(before) - left]
        self.check_gone(gateway, [entry for chunk in gone for entry in chunk])
        return finished

    def empty_head(self, gateway: str, lane: str, seen: Head) -> bool:
        """Delete the entries in a head, and hold that against what may go."""
        is_done = super().empty_head(gateway, lane, seen)
        if is_done:
            self.check_gone(gateway, list(seen.recent))
            self._written([("head", lane)])
        return is_done

    def check_gone(self, gateway: str, gone: list[LogEntry]) -> None:
        """Hold entries that are no longer there against the horizon and the watermark."""
        world, watermark = self._world, self._of(gateway).flush.watermark
        trimmed, _ = self.void(gateway)
        for entry in gone:
            self._world.count("trimmed entry")
            # What was below the horizon when a backup was made may go in what is restored from it,
            # though the checkpoints that covered it were of another epoch, and are gone.
            by_checkpoints = world.scenario.retain_every_s and not world.scenario.trim_every_s
            if by_checkpoints and not world.counts["restored"]:
                trimmed = min(trimmed, self._covered())
            if entry.stamp > min(trimmed, watermark):
                message = f"{entry.stamp}: the horizon is {trimmed}, the watermark {watermark}"
                raise Violation("nothing is trimmed too early", message)

    def _covered(self) -> int:
        """Return up to where some checkpoint holds what was in the log."""
        epoch = self.void("g1")[1]
        manifests = [
            json.loads(body)
            for key, body in self._world.objects.items()
            if key.startswith("checkpoints/g1/manifests/")
        ]
        return max((int(each["since"]) for each in manifests if each["epoch"] == epoch), default=0)

    def begin_epoch(
        self, gateway: str, seen: Head | None, lanes: Lanes, to: int, config_version: int,
        epoch: str,
    ) -> None:  # fmt: skip
        super().begin_epoch(gateway, seen, lanes, to, config_version, epoch)
        self._written([("head", MAIN_LANE)])

    # --- reads ------------------------------------------------------------------------------------

    def heads(self, gateway: str, since: int = 0, *, at_once: bool = False) -> dict[str, Head]:
        return self._seen("head", super().heads(gateway, since, at_once=at_once))

    def lane_heads(self, gateway: str, lanes: Sequence[str]) -> dict[str, Head]:
        return self._seen("head", super().lane_heads(gateway, lanes))

    def epoch(self, gateway: str) -> str:
        """Return a gateway's epoch, if its head is visible."""
        return self.lane_heads(gateway, [MAIN_LANE]).get(MAIN_LANE, NO_HEAD).epoch

    def all_heads(self, gateway: str) -> dict[str, Head]:
        return self._seen("head", super().all_heads(gateway))

    def rows(self, gateway: str, wanted: Iterable[RowKey]) -> dict[RowKey, StoredRow]:
        return self._seen("row", super().rows(gateway, wanted))

    def marks(self, gateway: str, wanted: Iterable[MarkKey]) -> dict[MarkKey, StoredMark]:
        return self._seen("mark", super().marks(gateway, wanted))

    def read_marks_serializable(
        self, gateway: str, wanted: Iterable[MarkKey]
    ) -> dict[MarkKey, StoredMark]:
        """Return the append marks that exist, or refuse while one of them is not visible."""
        keys = list(wanted)
        if any(("mark", key) in self._hidden for key in keys):
            raise Contention("a commit is becoming visible")
        return super().marks(gateway, keys)

    def scan_rows(self, gateway: str, table: str, place: str, count_max: int) -> RowSlice:
        """Return a part of a table's rows, as far as they are visible."""
        scan = super().scan_rows(gateway, table, place, count_max)
        if not self._hidden:
            return scan
        rows = {(table, row_id): row for row_id, row in scan.rows}
        seen = tuple((row_id, row) for (_, row_id), row in self._seen("row", rows).items())
        return replace(scan, rows=seen)

    def _seen(self, kind: str, items: dict[Any, Any]) -> dict[Any, Any]:
        if not self._hidden:
            return items
        seen = {}
        for key, item in items.items():
            _, was = self._hidden.get((kind, key), ("", item))
            if was is not None:
                seen[key] = was
        return seen

    def entries(self, gateway: str, lane: str, after: int, until: int, count_max: int) -> LogSlice:
        log = super().entries(gateway, lane, after, until, count_max)
        if not self._hidden:
            return log
        hidden = {
            entry.stamp
            for chunk in self._of(gateway).logs[lane]
            if ("chunk", (lane, chunk[-1].stamp)) in self._hidden
            for entry in chunk
        }
        visible = [entry for entry in log.entries if entry.stamp not in hidden]
        return replace(log, entries=tuple(visible))

    def log_items(self, gateway: str, wanted: Mapping[str, int]) -> dict[str, tuple[LogEntry, ...]]:
        items = super().log_items(gateway, wanted)
        hidden = {place for kind, place in self._hidden if kind == "chunk"}
        return {
            lane: chunk for lane, chunk in items.items() if (lane, chunk[-1].stamp) not in hidden
        }

    def all_of(self, gateway: str) -> Any:
        return self._of(gateway)


def _copied(items: Any) -> Any:
    """Return a gateway's items once more: what is in them never changes."""
    logs = defaultdict(list, {lane: list(log) for lane, log in items.logs.items()})
    return replace(
        items, heads=dict(items.heads), logs=logs, rows=dict(items.rows), marks=dict(items.marks),
        flushed=dict(items.flushed), tokens=set(items.tokens), delivered=dict(items.delivered),
    )  # fmt: skip
