"""The rare operations of the buffer on DynamoDB: scanning rows, trimming the log, a new epoch."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from lakesync.buffer import head_requests, keys, pack, requests, upkeep_requests
from lakesync.buffer.answers import data, number, row_of, text
from lakesync.buffer.conditions import PAGE_BYTES_MAX
from lakesync.buffer.log_reads import LogReads
from lakesync.core.destinations import NO_DESTINATIONS
from lakesync.core.layout import MAIN_LANE
from lakesync.errors import Contention
from lakesync.ports import ROW_PARTS, GatewaySlice, HeadMoved, RowSlice, StoredRow

if TYPE_CHECKING:
    from lakesync.core.clock import Stamp
    from lakesync.core.destinations import Destinations
    from lakesync.core.layout import Lanes
    from lakesync.ports import DeliveryState, Head

_DELETES_MAX: Final = 25
_STATES_READ: Final = 1_000


class Upkeep(LogReads):
    """Operations on a whole gateway."""

    def destinations(self, gateway: str) -> Destinations:
        """Return the declared destinations; usually a read unit."""
        item = self._get(keys.destinations_pk(gateway), keys.DESTINATIONS)
        return pack.unpack_destinations(data(item, "d")) if item else NO_DESTINATIONS

    def save_destinations(self, gateway: str, destinations: Destinations) -> bool:
        """Put a list of destinations in force; False if its predecessor is not in force."""
        packed = pack.pack_destinations(destinations)
        body = requests.save_destinations(self._table, gateway, destinations.version, packed)
        return self._conditionally("PutItem", body)

    def delivery_states(self, gateway: str, destination: str) -> dict[str, DeliveryState]:
        """Return the stored state of a destination; a read unit for about thirty tables."""
        states: dict[str, DeliveryState] = {}
        pk, first = keys.delivered_pk(gateway), keys.delivered_sk(destination, "")
        between = (first, f"{first}\x7f")
        while True:
            body = requests.query(self._table, pk, between, _STATES_READ)
            answer = self._read("Query", body)
            for item in answer["Items"]:
                name = text(item, "sk").removeprefix(first)
                states[name] = pack.unpack_delivery_state(data(item, "d"))
            if "LastEvaluatedKey" not in answer:
                return states
            between = (f"{text(answer['LastEvaluatedKey'], 'sk')}\x01", between[1])

    def save_delivery_state(
        self, gateway: str, destination: str, table: str, state: DeliveryState | None
    ) -> None:
        """Store the state; a write unit."""
        pk, sk = keys.delivered_pk(gateway), keys.delivered_sk(destination, table)
        if state is None:
            body = {"TableName": self._table, "Key": requests.key(pk, sk)}
            self._call("DeleteItem", requests.encode(body))
            return
        packed = {"d": requests.binary(pack.pack_delivery_state(state))}
        item = {**requests.key(pk, sk), **packed}
        self._call("PutItem", requests.encode({"TableName": self._table, "Item": item}))

    def scan_rows(self, gateway: str, table: str, place: str, count_max: int) -> RowSlice:
        """Return a table's rows from a place on; one read unit for each 4 KB, and for each part."""
        stored: list[tuple[str, StoredRow]] = []
        size = 0
        first, after = (int(place[0], 16), place[1:]) if place else (0, "")
        for part in range(first, ROW_PARTS):
            if len(stored) >= count_max or size >= PAGE_BYTES_MAX:
                return RowSlice(tuple(stored), keys.row_place(stored[-1][0]))
            page = self.scan_part(gateway, table, part, after, count_max - len(stored))
            stored += page.rows
            if page.place:
                return RowSlice(tuple(stored), keys.row_place(page.place))
            size += sum(len(row.state) for _, row in page.rows)
            after = ""
        return RowSlice(tuple(stored), "")

    def scan_part(
        self, gateway: str, table: str, part: int, after: str, count_max: int
    ) -> RowSlice:
        """Return rows of one part behind a row id; one read unit for each 4 KB."""
        pk = keys.row_pks(gateway, table)[part]
        stored: list[tuple[str, StoredRow]] = []
        size = 0
        while len(stored) < count_max and size < PAGE_BYTES_MAX:
            body = upkeep_requests.query_after(self._table, pk, after, count_max - len(stored))
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
        body = upkeep_requests.delete_row(self._table, gateway, table, row_id, seen)
        return self._conditionally("DeleteItem", body)

    def unflushed(self, place: str, heads_max: int) -> GatewaySlice:
        """Return gateways with unflushed data; half a read unit for about 40 heads with any."""
        answer = self._read("Scan", upkeep_requests.scan_unflushed(self._table, place, heads_max))
        gateways = {keys.gateway_of(text(item, "pk")): None for item in answer["Items"]}
        last = answer.get("LastEvaluatedKey")
        oldest = min((number(item, "o") for item in answer["Items"]), default=0)
        return GatewaySlice(tuple(gateways), json.dumps(last) if last else "", oldest)

    def raise_horizon(self, gateway: str, to: Stamp) -> None:
        """Void every cursor below ``to``; one write unit."""
        body = upkeep_requests.raise_horizon(self._table, gateway, to)
        if self._conditionally("UpdateItem", body):
            return
        head = self._get(*keys.head_key(gateway, MAIN_LANE))
        if head and number(head, "t") < to:
            raise Contention("a commit is moving the head; try again in a moment")

    def drop_entries(self, gateway: str, lane: str, until: Stamp, entries_max: int) -> bool:
        """Delete the log's items at or below ``until``; a write unit for each KB of them."""
        pk = keys.log_pk(gateway, lane)
        between = (keys.stamp_sk(0), keys.stamp_sk(until))
        left = entries_max
        while True:
            limit = min(left, _DELETES_MAX)
            if not limit:
                return False
            answer = self._read(
                "Query", upkeep_requests.query_keys(self._table, pk, between, limit)
            )
            self._delete([(pk, text(item, "sk")) for item in answer["Items"]])
            left -= len(answer["Items"])
            if "LastEvaluatedKey" not in answer:
                return True

    def empty_head(self, gateway: str, lane: str, seen: Head) -> bool:
        """Remove the entries in a lane's head; False if it moved. A write unit for each KB."""
        body = head_requests.without_entries(self._table, gateway, lane, seen)
        return self._conditionally("UpdateItem", body)

    def _delete(self, item_keys: list[tuple[str, str]]) -> None:
        """Delete items, repeating the request for those that DynamoDB left unprocessed."""
        tries = 0
        while item_keys:
            body = upkeep_requests.delete_all(self._table, item_keys)
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
        changes |= head_requests.lanes_attribute(lanes)
        body = head_requests.begin_epoch(self._table, gateway, seen, changes)
        self._call("PutItem", requests.register(self._table, gateway))
        if not self._conditionally("UpdateItem", body):
            raise HeadMoved(self.all_heads(gateway))
