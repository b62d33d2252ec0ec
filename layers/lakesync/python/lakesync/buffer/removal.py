"""Counts and removes all items of one gateway in the DynamoDB table, without scanning the table.

The partitions that a gateway can have follow from its tables and its heads, so the cost depends on
what the gateway stored: half a read unit for each partition that is empty (39, one for each lane
and shard, 16 for each table), plus reading and deleting the items.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from lakesync.buffer import item_format, requests
from lakesync.buffer.dynamo import Upkeep
from lakesync.buffer.item_format import Partition, side_partitions
from lakesync.buffer.table_calls import THREADS_MAX, text
from lakesync.core.layout import lane_shard

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from lakesync.ports import Head

_COUNTED_MAX: Final = 1_000
"""Items of one partition that are counted."""
_DELETES_MAX: Final = 25
"""Deletions of one request: DynamoDB's limit."""


class DynamoRemoval(Upkeep):
    """`lakesync.ports.GatewayItems` in the buffer's DynamoDB table."""

    def count(self, gateway: str, tables: Iterable[str]) -> dict[str, int]:
        heads = self.all_heads(gateway)
        partitions = _partitions(gateway, tables, heads)
        numbers = self.in_parallel([partial(self._count, each) for each in partitions])
        counts = {
            "heads": sum(map(item_format.is_used, heads.values())),
            "registry": int(bool(self._get(item_format.GATEWAYS, gateway))),
        }
        for each, number in zip(partitions, numbers, strict=True):
            counts[each.kind] = counts.get(each.kind, 0) + number
        return counts

    def remove(self, gateway: str, tables: Iterable[str], has_time: Callable[[], bool]) -> bool:
        heads = self.all_heads(gateway)
        for lane in (lane for lane, head in heads.items() if item_format.is_used(head)):
            body = requests.empty_head(self._table, gateway, lane)
            self._conditionally("UpdateItem", body)
        partitions = _partitions(gateway, tables, heads)
        for at in range(0, len(partitions), THREADS_MAX):
            some = partitions[at : at + THREADS_MAX]
            if not all(self.in_parallel([partial(self._empty, each, has_time) for each in some])):
                return False
        self._delete([(item_format.GATEWAYS, gateway)])
        return True

    def _count(self, partition: Partition) -> int:
        return len(self._keys(partition, _COUNTED_MAX))

    def _empty(self, partition: Partition, has_time: Callable[[], bool]) -> bool:
        """Delete a partition's items, some at a time; False if time ran out."""
        while has_time():
            # One more than the kept item, so that none is left behind it.
            doomed = self._keys(partition, _DELETES_MAX + 1)
            if not doomed:
                return True
            self._delete([(partition.pk, sk) for sk in doomed[:_DELETES_MAX]])
        return False

    def _keys(self, partition: Partition, limit: int) -> list[str]:
        body = requests.query_after(self._table, partition.pk, "", limit, keys_only=True)
        items = self._read("Query", body)["Items"]
        return [sk for item in items if (sk := text(item, "sk")) != partition.kept]


def _partitions(gateway: str, tables: Iterable[str], heads: Mapping[str, Head]) -> list[Partition]:
    """Return all partitions that items of a gateway can be in, except its tombstone's."""
    shards = sorted({lane_shard(lane) for lane in heads})
    return [
        *(Partition("log", item_format.log_pk(gateway, lane)) for lane in heads),
        *(Partition("rows", pk) for name in tables for pk in item_format.row_pks(gateway, name)),
        *(Partition("marks", item_format.mark_pk(gateway, shard)) for shard in shards),
        Partition("destinations", item_format.destinations_pk(gateway)),
        Partition("destinations", item_format.delivered_pk(gateway)),
        Partition("flush", item_format.flush_pk(gateway)),
        Partition("flush", item_format.flushed_pk(gateway)),
        *(Partition("clients", pk) for pk in item_format.client_pks(gateway)),
        *side_partitions(gateway),
    ]
