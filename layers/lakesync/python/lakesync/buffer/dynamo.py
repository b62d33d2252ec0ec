"""The buffer on DynamoDB: one table, one ``TransactWriteItems`` for each commit.

A commit of n small rows in one shard costs ``2 * (head + entry KB + n)`` write units and one round
trip; without the entry's as long as it fits into the head. A read of n rows costs n read units and
``n / 100`` round trips. Laws: ``docs/spec/commit.md``.

`DynamoBuffer` is all of it. It is written in layers: heads of lanes, reads of the log, the rarer
operations on a whole gateway, and what a push reads and writes.
"""

from __future__ import annotations

import json
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from lakesync.buffer import item_format, requests
from lakesync.buffer.caller import Refusal
from lakesync.buffer.item_format import PAGE_BYTES_MAX
from lakesync.buffer.requests import Places, encode, register, transact
from lakesync.buffer.requests import number as number_of
from lakesync.buffer.table_calls import (
    BATCH_MAX,
    TableCalls,
    cancelled,
    data,
    entries_of,
    head_of,
    mark_places,
    marks_of,
    number,
    reason,
    row_of,
    row_places,
    rows_of,
    text,
)
from lakesync.core.config import GatewayConfig
from lakesync.core.destinations import NO_DESTINATIONS
from lakesync.core.layout import MAIN_LANE, ONE_LANE, lane_number
from lakesync.errors import Contention
from lakesync.ports import (
    ROW_PARTS,
    ConfigMoved,
    FlushState,
    GatewaySlice,
    HeadMoved,
    LogSlice,
    RowSlice,
    StoredRow,
)
from lakesync.wire.log_entries import inflate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from lakesync.buffer.caller import DynamoCaller
    from lakesync.buffer.table_calls import InParallel
    from lakesync.core.clock import Stamp
    from lakesync.core.destinations import Destinations
    from lakesync.core.layout import Lanes
    from lakesync.ports import Commit, DeliveryState, Head, LogEntry, MarkKey, RowKey, StoredMark

# --- heads of lanes -------------------------------------------------------------------------------


GATEWAYS_REMEMBERED_MAX: Final = 1_000
"""Gateways of which one process remembers the lanes."""


class Heads(TableCalls):
    """The heads of lanes."""

    def __init__(
        self,
        table: str,
        caller: DynamoCaller,
        *,
        sleep_s: Callable[[float], None] = time.sleep,
        in_parallel: InParallel | None = None,
    ) -> None:
        super().__init__(table, caller, sleep_s=sleep_s, in_parallel=in_parallel)
        self._lanes: dict[str, Lanes] = {}
        """By gateway, the lanes that were open at the last read."""
        self._configs: dict[str, GatewayConfig] = {}

    def heads(self, gateway: str, since: Stamp = 0, *, at_once: bool = False) -> dict[str, Head]:
        """Return the heads of open lanes, and of those with an entry above ``since``.

        One read unit while only the main lane is open; another for each 4 KB of other heads. Those
        take one more round trip, unless ``at_once`` is set and this process read them before.
        """
        guess = self._lanes.get(gateway, ONE_LANE) if at_once else ONE_LANE
        early = _groups_of(guess.open()) if since >= guess.quiet else range(0)
        reads = [partial(self._group, gateway, group) for group in early]
        first, *others = self.in_parallel([partial(self._main, gateway), *reads])
        main = first.get(MAIN_LANE)
        if main is None:
            return {}
        self._remember(gateway, main.lanes)
        wanted = main.lanes.open()
        if since < main.lanes.quiet:
            # A closed lane is only complete for a reader that reads it after the list.
            wanted, early = main.lanes.used(), range(0)
        late = _groups_of(wanted)[len(early) :]
        read = {lane: head for heads in others for lane, head in heads.items()}
        read |= self._groups(gateway, late)
        return {MAIN_LANE: main, **{lane: read[lane] for lane in wanted if lane in read}}

    def lane_heads(self, gateway: str, lanes: Sequence[str]) -> dict[str, Head]:
        """Return the existing heads of some lanes; one read unit each."""
        if list(lanes) == [MAIN_LANE]:
            return self._main(gateway)
        items = self._batch(item_format.head_key(gateway, lane) for lane in lanes)
        return {text(item, "sk"): head_of(item) for item in items}

    def epoch(self, gateway: str) -> str:
        """Return a gateway's epoch; one read unit. Nothing else of the head is read."""
        item = self._get(*item_format.head_key(gateway, MAIN_LANE), "e")
        return text(item, "e") if "e" in item else ""

    def all_heads(self, gateway: str) -> dict[str, Head]:
        """Return all existing heads; a read unit for each group, and for each 4 KB."""
        return self._main(gateway) | self._groups(gateway, item_format.GROUPS)

    def raise_head(self, gateway: str, lane: str, seen: Head | None, to: Stamp, main: Head) -> bool:
        """Move a lane's head up; False if it was not as seen. One write unit."""
        body = requests.raise_head(self._table, gateway, lane, seen, to, main)
        return self._conditionally("UpdateItem", body)

    def change_lanes(self, gateway: str, seen: Head | None, lanes: Lanes, to: Stamp = 0) -> bool:
        """Change which lanes are open; False if they were not as seen. One write unit."""
        if seen is None:
            self._call("PutItem", register(self._table, gateway))
        changes = requests.lanes_attribute(lanes)
        if to:
            changes["c"] = number_of(to)
        body = encode(requests.main_head(self._table, gateway, seen, changes))
        return self._conditionally("UpdateItem", body)

    def close_lane(self, gateway: str, lane: str, seen: Head | None, to: Stamp) -> bool:
        """Close a lane; False if its head was not as seen. One write unit."""
        body = requests.close_lane(self._table, gateway, lane, seen, to)
        return self._conditionally("UpdateItem", body)

    def _remember(self, gateway: str, lanes: Lanes) -> None:
        if len(self._lanes) >= GATEWAYS_REMEMBERED_MAX:
            self._lanes.clear()
        self._lanes[gateway] = lanes

    def _main(self, gateway: str) -> dict[str, Head]:
        item = self._get(*item_format.head_key(gateway, MAIN_LANE))
        return {MAIN_LANE: head_of(item)} if item else {}

    def _groups(self, gateway: str, groups: Sequence[int]) -> dict[str, Head]:
        reads = [partial(self._group, gateway, group) for group in groups]
        return {lane: head for heads in self.in_parallel(reads) for lane, head in heads.items()}

    def _group(self, gateway: str, group: int) -> dict[str, Head]:
        items = self._query_all(item_format.heads_pk(gateway, group))
        return {text(item, "sk"): head_of(item) for item in items}


def _groups_of(lanes: Sequence[str]) -> range:
    """Return the groups that contain the heads of lanes; the main lane's is in none."""
    return item_format.groups(lane_number(lane) for lane in lanes if lane != MAIN_LANE)


# --- reads of the log -----------------------------------------------------------------------------


_FIRST_ITEMS: Final = 8
_ITEMS_MAX: Final = 1000


class LogReads(Heads):
    """The entries that are not in heads."""

    def entries(
        self, gateway: str, lane: str, after: Stamp, until: Stamp, count_max: int
    ) -> LogSlice:
        """Return entries in ``(after, until]`` in order, up to a bound, without gaps.

        The first request asks for a few items; each later one for as many as should fit, estimated
        from the size of those read so far.
        """
        entries: list[LogEntry] = []
        count = size = items = 0
        limit = _FIRST_ITEMS
        pk = item_format.log_pk(gateway, lane)
        at = after
        while at < until:
            between = (item_format.stamp_sk(at + 1), item_format.stamp_sk(until))
            answer = self._read("Query", requests.query(self._table, pk, between, limit))
            for item in answer["Items"]:
                if count >= count_max or size >= PAGE_BYTES_MAX:
                    return LogSlice(tuple(entries), at)
                news = [entry for entry in entries_of(item) if entry.stamp > after]
                entries += news
                count += sum(entry.count for entry in news)
                size += sum(len(entry.records) for entry in news)
                items += 1
                at = int(text(item, "sk"), 16)
            if "LastEvaluatedKey" not in answer:
                break
            at = int(text(answer["LastEvaluatedKey"], "sk"), 16)
            if count >= count_max or size >= PAGE_BYTES_MAX:
                return LogSlice(tuple(entries), at)
            room = min((count_max - count) / (count + 1), (PAGE_BYTES_MAX - size) / (size + 1))
            limit = max(1, min(int(room * items) + 1, _ITEMS_MAX))
        return LogSlice(tuple(entries), until)

    def log_items(
        self, gateway: str, wanted: Mapping[str, Stamp]
    ) -> dict[str, tuple[LogEntry, ...]]:
        """Return items of the log by their last entries; a read unit each, and for each 4 KB."""
        places = {
            (item_format.log_pk(gateway, lane), item_format.stamp_sk(last)): lane
            for lane, last in wanted.items()
        }
        items = self._batch(places)
        return {places[text(item, "pk"), text(item, "sk")]: entries_of(item) for item in items}


# --- a whole gateway ------------------------------------------------------------------------------


_DELETES_MAX: Final = 25
_STATES_READ: Final = 1_000


class Upkeep(LogReads):
    """Operations on a whole gateway."""

    def destinations(self, gateway: str) -> Destinations:
        """Return the declared destinations; usually a read unit."""
        item = self._get(item_format.destinations_pk(gateway), item_format.DESTINATIONS)
        return item_format.unpack_destinations(data(item, "d")) if item else NO_DESTINATIONS

    def save_destinations(self, gateway: str, destinations: Destinations) -> bool:
        packed = item_format.pack_destinations(destinations)
        body = requests.save_destinations(self._table, gateway, destinations.version, packed)
        return self._conditionally("PutItem", body)

    def delivery_states(self, gateway: str, destination: str) -> dict[str, DeliveryState]:
        """Return the stored state of a destination; a read unit for about thirty tables."""
        states: dict[str, DeliveryState] = {}
        pk, first = item_format.delivered_pk(gateway), item_format.delivered_sk(destination, "")
        between = (first, f"{first}\x7f")
        while True:
            body = requests.query(self._table, pk, between, _STATES_READ)
            answer = self._read("Query", body)
            for item in answer["Items"]:
                name = text(item, "sk").removeprefix(first)
                states[name] = item_format.unpack_delivery_state(data(item, "d"))
            if "LastEvaluatedKey" not in answer:
                return states
            between = (f"{text(answer['LastEvaluatedKey'], 'sk')}\x01", between[1])

    def save_delivery_state(
        self, gateway: str, destination: str, table: str, state: DeliveryState | None
    ) -> None:
        """Store the state; a write unit."""
        pk, sk = item_format.delivered_pk(gateway), item_format.delivered_sk(destination, table)
        if state is None:
            body = {"TableName": self._table, "Key": requests.key(pk, sk)}
            self._call("DeleteItem", requests.encode(body))
            return
        packed = {"d": requests.binary(item_format.pack_delivery_state(state))}
        item = {**requests.key(pk, sk), **packed}
        self._call("PutItem", requests.encode({"TableName": self._table, "Item": item}))

    def scan_rows(self, gateway: str, table: str, place: str, count_max: int) -> RowSlice:
        """Return a table's rows from a place on; one read unit for each 4 KB, and for each part."""
        stored: list[tuple[str, StoredRow]] = []
        size = 0
        first, after = (int(place[0], 16), place[1:]) if place else (0, "")
        for part in range(first, ROW_PARTS):
            if len(stored) >= count_max or size >= PAGE_BYTES_MAX:
                return RowSlice(tuple(stored), item_format.row_place(stored[-1][0]))
            page = self.scan_part(gateway, table, part, after, count_max - len(stored))
            stored += page.rows
            if page.place:
                return RowSlice(tuple(stored), item_format.row_place(page.place))
            size += sum(len(row.state) for _, row in page.rows)
            after = ""
        return RowSlice(tuple(stored), "")

    def scan_part(
        self, gateway: str, table: str, part: int, after: str, count_max: int
    ) -> RowSlice:
        """Return rows of one part behind a row id; one read unit for each 4 KB."""
        pk = item_format.row_pks(gateway, table)[part]
        stored: list[tuple[str, StoredRow]] = []
        size = 0
        while len(stored) < count_max and size < PAGE_BYTES_MAX:
            body = requests.query_after(self._table, pk, after, count_max - len(stored))
            answer = self._read("Query", body)
            for item in answer["Items"]:
                row = row_of(item)
                stored.append((text(item, "sk"), row))
                size += len(row.state)
            if "LastEvaluatedKey" not in answer:
                return RowSlice(tuple(stored), "")
            after = text(answer["LastEvaluatedKey"], "sk")
        return RowSlice(tuple(stored), after)

    def forget_row(self, gateway: str, table: str, row_id: str, seen: Stamp) -> bool:
        """Remove a row's state, if it is as it was seen; a write unit for each KB of it."""
        body = requests.delete_row(self._table, gateway, table, row_id, seen)
        return self._conditionally("DeleteItem", body)

    def unflushed(self, place: str, heads_max: int) -> GatewaySlice:
        """Return gateways with unflushed data; half a read unit for about 40 heads with any."""
        answer = self._read("Scan", requests.scan_unflushed(self._table, place, heads_max))
        gateways = {item_format.gateway_of(text(item, "pk")): None for item in answer["Items"]}
        last = answer.get("LastEvaluatedKey")
        oldest = min((number(item, "o") for item in answer["Items"]), default=0)
        return GatewaySlice(tuple(gateways), json.dumps(last) if last else "", oldest)

    def raise_horizon(self, gateway: str, to: Stamp) -> None:
        """Void every cursor below ``to``; one write unit."""
        body = requests.raise_horizon(self._table, gateway, to)
        if self._conditionally("UpdateItem", body):
            return
        head = self._get(*item_format.head_key(gateway, MAIN_LANE))
        if head and number(head, "t") < to:
            raise Contention("a commit is moving the head; try again in a moment")

    def drop_entries(self, gateway: str, lane: str, until: Stamp, entries_max: int) -> bool:
        """Delete the log's items at or below ``until``; a write unit for each KB of them."""
        pk = item_format.log_pk(gateway, lane)
        between = (item_format.stamp_sk(0), item_format.stamp_sk(until))
        left = entries_max
        while True:
            limit = min(left, _DELETES_MAX)
            if not limit:
                return False
            answer = self._read("Query", requests.query_keys(self._table, pk, between, limit))
            self._delete([(pk, text(item, "sk")) for item in answer["Items"]])
            left -= len(answer["Items"])
            if "LastEvaluatedKey" not in answer:
                return True

    def empty_head(self, gateway: str, lane: str, seen: Head) -> bool:
        """Remove the entries in a lane's head; False if it moved. A write unit for each KB."""
        body = requests.without_entries(self._table, gateway, lane, seen)
        return self._conditionally("UpdateItem", body)

    def _delete(self, item_keys: list[tuple[str, str]]) -> None:
        """Delete items, repeating the request for those that DynamoDB left unprocessed."""
        tries = 0
        while item_keys:
            body = requests.delete_all(self._table, item_keys)
            answer: dict[str, Any] = self._read("BatchWriteItem", body)
            left = answer.get("UnprocessedItems", {}).get(self._table, [])
            kept_keys = [request["DeleteRequest"]["Key"] for request in left]
            item_keys = [(text(key, "pk"), text(key, "sk")) for key in kept_keys]
            if item_keys:
                tries += 1
                self._pause(tries)

    def begin_epoch(
        self, gateway: str, seen: Head | None, lanes: Lanes, to: Stamp, config_version: int,
        epoch: str,
    ) -> None:  # fmt: skip
        """Put an epoch that begins at ``to`` into the main lane's head; one write unit."""
        changes = {
            "c": requests.number(to),
            "v": requests.number(config_version),
        }
        if epoch:
            changes["e"] = requests.text(epoch)
        changes |= requests.lanes_attribute(lanes)
        body = requests.begin_epoch(self._table, gateway, seen, changes)
        self._call("PutItem", requests.register(self._table, gateway))
        if not self._conditionally("UpdateItem", body):
            raise HeadMoved(self.all_heads(gateway))


# --- the buffer -----------------------------------------------------------------------------------


CONFIGS_REMEMBERED_MAX: Final = 64
"""Gateways whose configuration one process caches; each may take 350 KB."""


class DynamoBuffer(Upkeep):
    """`lakesync.ports.Buffer` in one DynamoDB table. Thread-safe."""

    # --- what a push reads and writes

    def rows(self, gateway: str, wanted: Iterable[RowKey]) -> dict[RowKey, StoredRow]:
        """Return the states of the existing rows; one read unit for each 4 KB."""
        places = row_places(gateway, wanted)
        return rows_of(self._batch(places), places)

    def rows_within(
        self, gateway: str, wanted: Iterable[RowKey], bytes_max: int
    ) -> tuple[dict[RowKey, StoredRow], list[RowKey]]:
        asked = list(wanted)
        states: dict[RowKey, StoredRow] = {}
        size = 0
        while asked and size < bytes_max:
            places = row_places(gateway, asked[:BATCH_MAX])
            items, unread = self._batch_once(places)
            left = {places[place] for place in unread}
            read = next((at for at, key in enumerate(asked) if key in left), len(places))
            rows = rows_of(items, places)
            fitting, behind = item_format.within(asked[:read], rows, bytes_max - size)
            states |= fitting
            size += sum(len(row.state) for row in fitting.values())
            asked = behind + asked[read:]
        return states, asked

    def marks(self, gateway: str, wanted: Iterable[MarkKey]) -> dict[MarkKey, StoredMark]:
        places = mark_places(gateway, wanted)
        return marks_of(self._batch(places), places)

    def read_marks_serializable(
        self, gateway: str, wanted: Iterable[MarkKey]
    ) -> dict[MarkKey, StoredMark]:
        """Return the existing append marks, as a transaction; two read units each.

        Only transactional reads are serialisable with commits: a plain read may show an item as it
        was before a transaction that other readers have already seen.
        """
        places = mark_places(gateway, wanted)
        return marks_of(self._transaction(places), places)

    def commit(self, commit: Commit) -> None:
        if MAIN_LANE in commit.lanes and commit.lanes[MAIN_LANE].seen is None:
            self._call("PutItem", requests.register(self._table, commit.gateway))
        body, places = transact(self._table, commit)
        try:
            self._call("TransactWriteItems", body)
        except Refusal as refusal:
            raise cancelled(refusal, places) from refusal

    # --- configuration

    def config(self, gateway: str) -> GatewayConfig:
        """Return the configuration in force; version 0 if nothing was ever declared.

        A process caches it, and reads it again once a head has another version: until then it costs
        one read unit.
        """
        known = self._configs.get(gateway)
        if known is not None:
            # Of the head, that alone: whoever reads what is declared may not read the log in it.
            head = self._get(*item_format.head_key(gateway, MAIN_LANE), "v")
            if number(head, "v") == known.version:
                return known
        item = self._get(item_format.config_pk(gateway), item_format.CONFIG)
        if not item:
            return GatewayConfig()
        if len(self._configs) >= CONFIGS_REMEMBERED_MAX:
            self._configs.clear()
        config = self._configs[gateway] = item_format.unpack_config(data(item, "d"))
        return config

    def save_config(
        self, gateway: str, config: GatewayConfig, seen: Head | None, lanes: Lanes, to: Stamp,
        *, epoch: str = "",
    ) -> None:  # fmt: skip
        body = requests.save_config(self._table, gateway, config, seen, lanes, to, epoch)
        self._call("PutItem", requests.register(self._table, gateway))
        try:
            self._call("TransactWriteItems", body)
        except Refusal as refusal:
            if reason(refusal, 0) == "ConditionalCheckFailed":
                raise ConfigMoved from refusal
            raise cancelled(refusal, Places({1: MAIN_LANE}, {})) from refusal

    def gateways(self) -> list[str]:
        return [text(item, "sk") for item in self._query_all(item_format.GATEWAYS)]

    # --- what is remembered of single clients

    def client_state(self, gateway: str, client_id: str) -> bytes | None:
        """Return the stored state of a client; one read unit for each 4 KB."""
        item = self._get(item_format.client_pk(gateway, client_id), client_id)
        return inflate(data(item, "d")) if item else None

    def save_client_state(
        self, gateway: str, client_id: str, seen: bytes | None, state: bytes
    ) -> bool:
        """Store the state of a client; one write unit for each KB; False if not as seen."""
        body = requests.save_client_state(self._table, gateway, client_id, seen, state)
        return self._conditionally("UpdateItem", body)

    # --- flush state

    def flush_state(self, gateway: str) -> FlushState:
        item = self._get(item_format.flush_pk(gateway), item_format.FLUSH)
        return FlushState(number(item, "w"), number(item, "u"))

    def save_flush_state(self, gateway: str, seen: FlushState, state: FlushState) -> bool:
        body = requests.save_flush_state(self._table, gateway, seen, state)
        return self._conditionally("UpdateItem", body)

    def flushed_tables(self, gateway: str, after: str = "") -> dict[str, Stamp]:
        """Get the tables that were ever flushed; one read unit for each 4 KB, about 40 tables."""
        items = self._query_all(item_format.flushed_pk(gateway), after)
        return {text(item, "sk"): number(item, "c") for item in items}

    def save_flushed_table(self, gateway: str, table: str, last: Stamp) -> None:
        """Set a table's last commit that was announced in a batch; one write unit."""
        body = requests.save_flushed_table(self._table, gateway, table, last)
        self._conditionally("UpdateItem", body)

    def note_flushed(self, gateway: str, lane: str, until: Stamp, logged_bytes: int) -> None:
        for request in requests.note_flushed(self._table, gateway, lane, until, logged_bytes):
            if self._conditionally("UpdateItem", request):
                return
