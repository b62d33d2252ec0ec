"""Reads the log from DynamoDB: a lane's entries in order, or one item of each lane."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lakesync.buffer import keys, requests
from lakesync.buffer.answers import entries_of, text
from lakesync.buffer.conditions import PAGE_BYTES_MAX
from lakesync.buffer.heads import Heads
from lakesync.ports import LogSlice

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lakesync.core.clock import Stamp
    from lakesync.ports import LogEntry

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
        pk = keys.log_pk(gateway, lane)
        at = after
        while at < until:
            between = (keys.stamp_sk(at + 1), keys.stamp_sk(until))
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
            (keys.log_pk(gateway, lane), keys.stamp_sk(last)): lane for lane, last in wanted.items()
        }
        items = self._batch(places)
        return {places[text(item, "pk"), text(item, "sk")]: entries_of(item) for item in items}
