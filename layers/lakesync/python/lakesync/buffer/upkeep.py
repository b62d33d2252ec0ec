"""The rare operations of the buffer on DynamoDB: scanning rows, trimming the log, a new epoch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from lakesync.buffer import keys, requests, upkeep_requests
from lakesync.buffer.answers import cancelled, data, number, text
from lakesync.buffer.caller import Refusal
from lakesync.buffer.calls import TableCalls
from lakesync.buffer.conditions import PAGE_BYTES_MAX
from lakesync.errors import Contention
from lakesync.ports import ROW_PARTS, RowSlice, StoredRow, epoch_at

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lakesync.core.clock import Stamp

_DELETES_MAX: Final = 25


class Upkeep(TableCalls):
    """Operations on a whole gateway."""

    def scan_rows(self, gateway: str, table: str, place: str, count_max: int) -> RowSlice:
        """Give a table's rows from a place on; one read unit for each 4 KB, and for each part."""
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
        """Give rows of one part behind a row id; one read unit for each 4 KB."""
        pk = keys.row_pks(gateway, table)[part]
        stored: list[tuple[str, StoredRow]] = []
        size = 0
        while len(stored) < count_max and size < PAGE_BYTES_MAX:
            body = upkeep_requests.query_after(self._table, pk, after, count_max - len(stored))
            answer = self._read("Query", body)
            for item in answer["Items"]:
                row = StoredRow(data(item, "d"), number(item, "c"))
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

    def raise_horizon(self, gateway: str, shard: str, to: Stamp) -> None:
        """Void every cursor below ``to``; one write unit."""
        body = upkeep_requests.raise_horizon(self._table, gateway, shard, to)
        if self._conditionally("UpdateItem", body):
            return
        head = self._get(keys.head_pk(gateway, shard), keys.HEAD)
        if head and number(head, "t") < to:
            raise Contention("a commit is just moving the head; try again in a moment")

    def drop_entries(self, gateway: str, shard: str, entries_max: int) -> bool:
        """Delete entries at or below the shard's horizon; a write unit for each KB of them."""
        trimmed = number(self._get(keys.head_pk(gateway, shard), keys.HEAD), "t")
        pk = keys.log_pk(gateway, shard)
        between = (keys.stamp_sk(0), keys.stamp_sk(trimmed))
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

    def _delete(self, item_keys: list[tuple[str, str]]) -> None:
        """Delete items, asking again for those that DynamoDB has left unprocessed."""
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

    def begin_epoch(self, gateway: str, shards: Sequence[str], to: Stamp) -> None:
        """Put an epoch that begins at ``to`` into all heads; two write units each."""
        body, heads = upkeep_requests.begin_epoch(self._table, gateway, shards, to, epoch_at(to))
        self._call("PutItem", requests.register(self._table, gateway))
        try:
            self._call("TransactWriteItems", body)
        except Refusal as refusal:
            raise cancelled(refusal, heads) from refusal
