"""The buffer in memory: the reference implementation, also used by simulations.

It has the same conditions and limits as the DynamoDB one, under one lock.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import defaultdict
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

from lakesync.buffer import item_format
from lakesync.buffer.item_format import check_gateway, gateway_of, row_place
from lakesync.core.config import GatewayConfig
from lakesync.core.destinations import NO_DESTINATIONS, Destinations
from lakesync.core.layout import MAIN_LANE
from lakesync.ports import (
    NO_HEAD,
    ConfigMoved,
    FlushState,
    GatewaySlice,
    Head,
    HeadMoved,
    LogEntry,
    LogSlice,
    RowSlice,
    StoredMark,
    StoredRow,
    head_after,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from lakesync.core.clock import Stamp
    from lakesync.core.layout import Lanes
    from lakesync.ports import Commit, DeliveryState, MarkKey, RowKey

# --- items, heads, and a whole gateway ------------------------------------------------------------


@dataclass(slots=True)
class GatewayItems:
    """The items of one gateway, of each kind by key."""

    heads: dict[str, Head] = field(default_factory=dict)
    logs: dict[str, list[tuple[LogEntry, ...]]] = field(default_factory=lambda: defaultdict(list))
    """The chunks of each lane."""
    rows: dict[RowKey, StoredRow] = field(default_factory=dict)
    marks: dict[MarkKey, StoredMark] = field(default_factory=dict)
    config: GatewayConfig = field(default_factory=GatewayConfig)
    destinations: Destinations = NO_DESTINATIONS
    delivered: dict[tuple[str, str], DeliveryState] = field(default_factory=dict)
    flush: FlushState = field(default_factory=FlushState)
    flushed: dict[str, Stamp] = field(default_factory=dict)
    clients: dict[str, bytes] = field(default_factory=dict)
    tokens: set[str] = field(default_factory=set)
    """The tokens of the commits that were written."""


class MemoryUpkeep:
    """`lakesync.ports.Upkeep` in one process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._gateways: dict[str, GatewayItems] = defaultdict(GatewayItems)
        self._places: dict[tuple[str, str], list[str]] = {}
        """By gateway and table: the sorted places of its rows. Dropped when rows are added or
        removed."""

    def raise_head(self, gateway: str, lane: str, seen: Head | None, to: Stamp, main: Head) -> bool:
        with self._lock:
            heads = self._of(gateway).heads
            head = heads.get(lane)
            if item_format.moved(head, seen):
                return False
            new = Head(config_version=main.config_version)
            heads[lane] = replace(head or new, commit=to)
            return True

    def change_lanes(self, gateway: str, seen: Head | None, lanes: Lanes, to: Stamp = 0) -> bool:
        with self._lock:
            heads = self._of(gateway).heads
            try:
                item_format.check_lanes(heads.get(MAIN_LANE), seen, to)
            except HeadMoved:
                return False
            main = heads.get(MAIN_LANE, NO_HEAD)
            heads[MAIN_LANE] = replace(main, lanes=lanes, commit=to or main.commit)
            return True

    def close_lane(self, gateway: str, lane: str, seen: Head | None, to: Stamp) -> bool:
        with self._lock:
            heads = self._of(gateway).heads
            if item_format.moved(heads.get(lane), seen):
                return False
            heads[lane] = replace(heads.get(lane, NO_HEAD), commit=to, is_closed=True)
            return True

    def forget_row(self, gateway: str, table: str, row_id: str, seen: Stamp) -> bool:
        with self._lock:
            rows, key = self._of(gateway).rows, (table, row_id)
            if key not in rows or rows[key].commit != seen:
                return False
            del rows[key]
            self._places.pop((gateway, table), None)
            return True

    def destinations(self, gateway: str) -> Destinations:
        with self._lock:
            return self._of(gateway).destinations

    def save_destinations(self, gateway: str, destinations: Destinations) -> bool:
        item_format.pack_destinations(destinations)
        with self._lock:
            items = self._of(gateway)
            if is_next := items.destinations.version == destinations.version - 1:
                items.destinations = destinations
            return is_next

    def delivery_states(self, gateway: str, destination: str) -> dict[str, DeliveryState]:
        with self._lock:
            noted = self._of(gateway).delivered.items()
            return {table: state for (name, table), state in noted if name == destination}

    def save_delivery_state(
        self, gateway: str, destination: str, table: str, state: DeliveryState | None
    ) -> None:
        with self._lock:
            delivered = self._of(gateway).delivered
            delivered.pop((destination, table), None)
            if state is not None:
                delivered[destination, table] = state

    def unflushed(self, place: str, heads_max: int) -> GatewaySlice:
        with self._lock:
            waiting = sorted(
                (f"{name}|{lane}", head.oldest_unflushed)
                for name, items in self._gateways.items()
                for lane, head in items.heads.items()
                if head.oldest_unflushed
            )
        begin = bisect_right(waiting, place, key=lambda pair: pair[0])
        some = waiting[begin : begin + heads_max]
        gateways = dict.fromkeys(gateway_of(head) for head, _ in some)
        oldest = min((stamp for _, stamp in some), default=0)
        is_last = begin + heads_max >= len(waiting)
        return GatewaySlice(tuple(gateways), "" if is_last else some[-1][0], oldest)

    def all_heads(self, gateway: str) -> dict[str, Head]:
        with self._lock:
            return dict(self._of(gateway).heads)

    def raise_horizon(self, gateway: str, to: Stamp) -> None:
        with self._lock:
            heads = self._of(gateway).heads
            if MAIN_LANE in heads and heads[MAIN_LANE].trimmed < to:
                heads[MAIN_LANE] = replace(heads[MAIN_LANE], trimmed=to)

    def drop_entries(self, gateway: str, lane: str, until: Stamp, entries_max: int) -> bool:
        with self._lock:
            log = self._of(gateway).logs[lane]
            below = bisect_right(log, until, key=lambda chunk: chunk[-1].stamp)
            del log[: min(below, entries_max)]
            return below <= entries_max

    def empty_head(self, gateway: str, lane: str, seen: Head) -> bool:
        with self._lock:
            heads = self._of(gateway).heads
            head = heads.get(lane, NO_HEAD)
            if item_format.moved(head, seen):
                return False
            heads[lane] = replace(head, commit=seen.commit + 1, recent=())
            return True

    def begin_epoch(
        self, gateway: str, seen: Head | None, lanes: Lanes, to: Stamp, config_version: int,
        epoch: str,
    ) -> None:  # fmt: skip
        with self._lock:
            heads = self._of(gateway).heads
            item_format.check_lanes(heads.get(MAIN_LANE), seen, to)
            head = heads.get(MAIN_LANE, NO_HEAD)
            if head.config_version != (seen or NO_HEAD).config_version:
                raise HeadMoved({MAIN_LANE: head})
            heads[MAIN_LANE] = replace(
                head, commit=to, epoch=epoch, lanes=lanes, config_version=config_version
            )

    def count_items(self, gateway: str) -> dict[str, int]:
        """Count what is stored of a gateway, by kind; see `lakesync.ports.GatewayItems`."""
        with self._lock:
            items = self._of(gateway)
            return {
                "heads": sum(map(item_format.is_used, items.heads.values())),
                "registry": int(bool(items.heads) and not items.config.deleted_ms),
                "log": sum(map(len, items.logs.values())),
                "rows": len(items.rows),
                "marks": len(items.marks),
                "destinations": int(items.destinations != NO_DESTINATIONS) + len(items.delivered),
                "flush": int(items.flush != FlushState()) + len(items.flushed),
                "clients": len(items.clients),
            }

    def remove_items(self, gateway: str, kind: str) -> None:
        """Remove what is stored of a gateway of one kind; the heads stay, without entries."""
        with self._lock:
            items = self._of(gateway)
            if kind == "heads":
                items.heads = {
                    lane: item_format.emptied(head) for lane, head in items.heads.items()
                }
            elif kind == "log":
                items.logs.clear()
            elif kind == "rows":
                items.rows.clear()
                for place in [place for place in self._places if place[0] == gateway]:
                    del self._places[place]
            elif kind == "marks":
                items.marks.clear()
            elif kind == "destinations":
                items.destinations = NO_DESTINATIONS
                items.delivered.clear()
            elif kind == "flush":
                items.flush = FlushState()
                items.flushed.clear()
            elif kind == "clients":
                items.clients.clear()

    def _of(self, gateway: str) -> GatewayItems:
        return self._gateways[check_gateway(gateway)]


# --- the buffer -----------------------------------------------------------------------------------


T = TypeVar("T")


class MemoryBuffer(MemoryUpkeep):
    """`lakesync.ports.Buffer` in one process; thread-safe."""

    def heads(self, gateway: str, since: Stamp = 0, *, at_once: bool = False) -> dict[str, Head]:
        del at_once  # under one lock it makes no difference
        with self._lock:
            stored_heads = self._of(gateway).heads
            lanes = stored_heads.get(MAIN_LANE, NO_HEAD).lanes
            wanted = lanes.open() if since >= lanes.quiet else lanes.used()
            return {lane: stored_heads[lane] for lane in wanted if lane in stored_heads}

    def lane_heads(self, gateway: str, lanes: Sequence[str]) -> dict[str, Head]:
        with self._lock:
            stored_heads = self._of(gateway).heads
            return {lane: stored_heads[lane] for lane in lanes if lane in stored_heads}

    def epoch(self, gateway: str) -> str:
        with self._lock:
            return self._of(gateway).heads.get(MAIN_LANE, NO_HEAD).epoch

    def rows(self, gateway: str, wanted: Iterable[RowKey]) -> dict[RowKey, StoredRow]:
        with self._lock:
            stored_rows = self._of(gateway).rows
            return {key: stored_rows[key] for key in wanted if key in stored_rows}

    def rows_within(
        self, gateway: str, wanted: Iterable[RowKey], bytes_max: int
    ) -> tuple[dict[RowKey, StoredRow], list[RowKey]]:
        keys = list(wanted)
        return item_format.within(keys, self.rows(gateway, keys), bytes_max)

    def pause(self, tries: int) -> None:
        """Continue at once: memory is never busy."""

    def marks(self, gateway: str, wanted: Iterable[MarkKey]) -> dict[MarkKey, StoredMark]:
        with self._lock:
            stored_marks = self._of(gateway).marks
            return {key: stored_marks[key] for key in wanted if key in stored_marks}

    read_marks_serializable = marks  # here every commit is atomic

    def commit(self, commit: Commit) -> None:
        item_format.check_size(commit)
        with self._lock:
            items = self._of(commit.gateway)
            if commit.token in items.tokens:
                return
            item_format.check_heads(items.heads, commit)
            item_format.check_states(items.rows, items.marks, commit)
            for lane, part in commit.lanes.items():
                items.heads[lane] = head_after(items.heads.get(lane, NO_HEAD), commit, lane)
                if part.chunk:
                    items.logs[lane].append(part.chunk)
            for key, put in commit.marks.items():
                items.marks[key] = StoredMark(put.mark, commit.stamp)
            for key, row in commit.rows.items():
                if key not in items.rows:
                    self._places.pop((commit.gateway, key[0]), None)
                items.rows[key] = StoredRow(row.state, commit.stamp)
            items.tokens.add(commit.token)

    def in_parallel(self, calls: Sequence[Callable[[], T]]) -> list[T]:
        return [call() for call in calls]

    def entries(
        self, gateway: str, lane: str, after: Stamp, until: Stamp, count_max: int
    ) -> LogSlice:
        with self._lock:
            log = self._of(gateway).logs[lane]
            entries: list[LogEntry] = []
            count = size = 0
            begin = bisect_right(log, after, key=lambda chunk: chunk[-1].stamp)
            for chunk in islice(log, begin, None):
                if chunk[-1].stamp > until:
                    break
                if count >= count_max or size >= item_format.PAGE_BYTES_MAX:
                    return LogSlice(tuple(entries), entries[-1].stamp)
                news = [entry for entry in chunk if entry.stamp > after]
                entries += news
                count += sum(entry.count for entry in news)
                size += sum(len(entry.records) for entry in news)
            return LogSlice(tuple(entries), until)

    def log_items(
        self, gateway: str, wanted: Mapping[str, Stamp]
    ) -> dict[str, tuple[LogEntry, ...]]:
        with self._lock:
            logs = self._of(gateway).logs
            return {
                lane: chunk
                for lane, last in wanted.items()
                for chunk in reversed(logs[lane])
                if chunk[-1].stamp == last
            }

    def config(self, gateway: str) -> GatewayConfig:
        with self._lock:
            return self._of(gateway).config

    def save_config(
        self, gateway: str, config: GatewayConfig, seen: Head | None, lanes: Lanes, to: Stamp,
        *, epoch: str = "",
    ) -> None:  # fmt: skip
        item_format.pack_config(config)
        with self._lock:
            items = self._of(gateway)
            if items.config.version != config.version - 1:
                raise ConfigMoved
            item_format.check_lanes(items.heads.get(MAIN_LANE), seen, to)
            head = items.heads.get(MAIN_LANE, NO_HEAD)
            version = config.version
            items.heads[MAIN_LANE] = replace(
                head, commit=to, config_version=version, lanes=lanes, epoch=head.epoch or epoch
            )
            items.config = config

    def gateways(self) -> list[str]:
        with self._lock:
            return sorted(
                name for name, items in self._gateways.items()
                if items.heads and not items.config.deleted_ms
            )  # fmt: skip

    def client_state(self, gateway: str, client_id: str) -> bytes | None:
        return self._of(gateway).clients.get(client_id)

    def save_client_state(
        self, gateway: str, client_id: str, seen: bytes | None, state: bytes
    ) -> bool:
        with self._lock:
            if saved := self._of(gateway).clients.get(client_id) == seen:
                self._of(gateway).clients[client_id] = state
            return saved

    def flush_state(self, gateway: str) -> FlushState:
        with self._lock:
            return self._of(gateway).flush

    def save_flush_state(self, gateway: str, seen: FlushState, state: FlushState) -> bool:
        with self._lock:
            items = self._of(gateway)
            if (items.flush.watermark, items.flush.until) != (seen.watermark, seen.until):
                return False
            items.flush = state
            return True

    def flushed_tables(self, gateway: str, after: str = "") -> dict[str, Stamp]:
        with self._lock:
            flushed = sorted(self._of(gateway).flushed.items())
            return {name: last for name, last in flushed if name > after}

    def save_flushed_table(self, gateway: str, table: str, last: Stamp) -> None:
        with self._lock:
            flushed = self._of(gateway).flushed
            flushed[table] = max(flushed.get(table, 0), last)

    def note_flushed(self, gateway: str, lane: str, until: Stamp, logged_bytes: int) -> None:
        with self._lock:
            heads = self._of(gateway).heads
            head = heads.get(lane)
            if head is not None and logged_bytes >= head.flushed_bytes:
                oldest = 0 if logged_bytes == head.logged_bytes else until
                heads[lane] = replace(head, flushed_bytes=logged_bytes, oldest_unflushed=oldest)

    def scan_rows(self, gateway: str, table: str, place: str, count_max: int) -> RowSlice:
        with self._lock:
            stored_rows = self._of(gateway).rows
            places = self._places.get((gateway, table))
            if places is None:
                places = sorted(row_place(row_id) for name, row_id in stored_rows if name == table)
                self._places[gateway, table] = places
            after = bisect_right(places, place)
            rows: list[tuple[str, StoredRow]] = []
            size = 0
            for at in (places[number] for number in range(after, len(places))):
                if len(rows) >= count_max or size >= item_format.PAGE_BYTES_MAX:
                    return RowSlice(tuple(rows), row_place(rows[-1][0]))
                rows.append((at[1:], stored_rows[table, at[1:]]))
                size += len(rows[-1][1].state)
            return RowSlice(tuple(rows), "")

    def scan_part(
        self, gateway: str, table: str, part: int, after: str, count_max: int
    ) -> RowSlice:
        row_slice = self.scan_rows(gateway, table, f"{part:x}{after}", count_max)
        rows = tuple(row for row in row_slice.rows if row_place(row[0])[0] == f"{part:x}")
        return RowSlice(rows, row_slice.place[1:] if row_slice.place[:1] == f"{part:x}" else "")
