"""The items of the buffer in memory, its heads, and the upkeep of a whole gateway."""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from lakesync.buffer import conditions, pack
from lakesync.buffer.keys import check_gateway, gateway_of
from lakesync.core.config import GatewayConfig
from lakesync.core.destinations import NO_DESTINATIONS, Destinations
from lakesync.core.layout import MAIN_LANE
from lakesync.ports import NO_HEAD, FlushState, GatewaySlice, Head, HeadMoved

if TYPE_CHECKING:
    from lakesync.core.clock import Stamp
    from lakesync.core.layout import Lanes
    from lakesync.ports import (
        DeliveryState,
        LogEntry,
        MarkKey,
        RowKey,
        StoredMark,
        StoredRow,
    )


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
        """Move a lane's head up; False if it was not as seen."""
        with self._lock:
            heads = self._of(gateway).heads
            head = heads.get(lane)
            if conditions.moved(head, seen):
                return False
            new = Head(config_version=main.config_version)
            heads[lane] = replace(head or new, commit=to)
            return True

    def change_lanes(self, gateway: str, seen: Head | None, lanes: Lanes, to: Stamp = 0) -> bool:
        """Change which lanes are open; False if they were not as seen."""
        with self._lock:
            heads = self._of(gateway).heads
            try:
                conditions.check_lanes(heads.get(MAIN_LANE), seen, to)
            except HeadMoved:
                return False
            main = heads.get(MAIN_LANE, NO_HEAD)
            heads[MAIN_LANE] = replace(main, lanes=lanes, commit=to or main.commit)
            return True

    def close_lane(self, gateway: str, lane: str, seen: Head | None, to: Stamp) -> bool:
        """Close a lane; False if its head was not as seen."""
        with self._lock:
            heads = self._of(gateway).heads
            if conditions.moved(heads.get(lane), seen):
                return False
            heads[lane] = replace(heads.get(lane, NO_HEAD), commit=to, is_closed=True)
            return True

    def forget_row(self, gateway: str, table: str, row_id: str, seen: Stamp) -> bool:
        """Remove a row's state, if it is as it was seen."""
        with self._lock:
            rows, key = self._of(gateway).rows, (table, row_id)
            if key not in rows or rows[key].commit != seen:
                return False
            del rows[key]
            self._places.pop((gateway, table), None)
            return True

    def destinations(self, gateway: str) -> Destinations:
        """Return the declared destinations."""
        with self._lock:
            return self._of(gateway).destinations

    def save_destinations(self, gateway: str, destinations: Destinations) -> bool:
        """Put a list of destinations in force; False if its predecessor is not in force."""
        pack.pack_destinations(destinations)
        with self._lock:
            items = self._of(gateway)
            if is_next := items.destinations.version == destinations.version - 1:
                items.destinations = destinations
            return is_next

    def delivery_states(self, gateway: str, destination: str) -> dict[str, DeliveryState]:
        """Return the stored state of a destination, by table."""
        with self._lock:
            noted = self._of(gateway).delivered.items()
            return {table: state for (name, table), state in noted if name == destination}

    def save_delivery_state(
        self, gateway: str, destination: str, table: str, state: DeliveryState | None
    ) -> None:
        """Store the state, or that there is nothing to report any more."""
        with self._lock:
            delivered = self._of(gateway).delivered
            delivered.pop((destination, table), None)
            if state is not None:
                delivered[destination, table] = state

    def unflushed(self, place: str, heads_max: int) -> GatewaySlice:
        """Return gateways with unflushed data, in order of name."""
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
        """Return all existing heads."""
        with self._lock:
            return dict(self._of(gateway).heads)

    def raise_horizon(self, gateway: str, to: Stamp) -> None:
        """Void every cursor below ``to``; never lowers a horizon."""
        with self._lock:
            heads = self._of(gateway).heads
            if MAIN_LANE in heads and heads[MAIN_LANE].trimmed < to:
                heads[MAIN_LANE] = replace(heads[MAIN_LANE], trimmed=to)

    def drop_entries(self, gateway: str, lane: str, until: Stamp, entries_max: int) -> bool:
        """Delete the log's items at or below ``until``; True if none is left."""
        with self._lock:
            log = self._of(gateway).logs[lane]
            below = bisect_right(log, until, key=lambda chunk: chunk[-1].stamp)
            del log[: min(below, entries_max)]
            return below <= entries_max

    def empty_head(self, gateway: str, lane: str, seen: Head) -> bool:
        """Remove the entries in a lane's head, and move it up by one; False if it moved."""
        with self._lock:
            heads = self._of(gateway).heads
            head = heads.get(lane, NO_HEAD)
            if conditions.moved(head, seen):
                return False
            heads[lane] = replace(head, commit=seen.commit + 1, recent=())
            return True

    def begin_epoch(
        self, gateway: str, seen: Head | None, lanes: Lanes, to: Stamp, config_version: int,
        epoch: str,
    ) -> None:  # fmt: skip
        """Put a new epoch into the main lane; see `lakesync.ports.Buffer.begin_epoch`."""
        with self._lock:
            heads = self._of(gateway).heads
            conditions.check_lanes(heads.get(MAIN_LANE), seen, to)
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
                "heads": sum(map(conditions.is_used, items.heads.values())),
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
                items.heads = {lane: conditions.emptied(head) for lane, head in items.heads.items()}
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
