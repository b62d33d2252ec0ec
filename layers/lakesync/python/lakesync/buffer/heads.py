"""Heads of lanes on DynamoDB: how they are read, raised, opened and closed."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from lakesync.buffer import head_requests, keys, upkeep_requests
from lakesync.buffer.answers import head_of, text
from lakesync.buffer.calls import TableCalls
from lakesync.buffer.requests import encode, number, register
from lakesync.core.layout import MAIN_LANE, lane_number

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lakesync.core.clock import Stamp
    from lakesync.core.layout import Lanes
    from lakesync.ports import Head

_HEADS_MAX: Final = 1_000


class Heads(TableCalls):
    """The heads of lanes."""

    def heads(self, gateway: str, since: Stamp = 0) -> dict[str, Head]:
        """Give the heads of open lanes, and of those with an entry above ``since``.

        One read unit while only the main lane is open; another for each 4 KB of other heads, and
        one round trip.
        """
        item = self._get(*keys.head_key(gateway, MAIN_LANE))
        if not item:
            return {}
        main = head_of(item)
        wanted = main.lanes.open() if since >= main.lanes.quiet else main.lanes.used()
        others = set(wanted) - {MAIN_LANE}
        groups = keys.groups(map(lane_number, others)) if others else range(0)
        read = self._groups(gateway, groups)
        return {MAIN_LANE: main, **{lane: read[lane] for lane in wanted if lane in read}}

    def lane_heads(self, gateway: str, lanes: Sequence[str]) -> dict[str, Head]:
        """Give the heads that exist of some lanes; one read unit each."""
        items = self._batch(keys.head_key(gateway, lane) for lane in lanes)
        return {text(item, "sk"): head_of(item) for item in items}

    def all_heads(self, gateway: str) -> dict[str, Head]:
        """Give all heads that exist; a read unit for each group, and for each 4 KB."""
        main = self._get(*keys.head_key(gateway, MAIN_LANE))
        first = {MAIN_LANE: head_of(main)} if main else {}
        return first | self._groups(gateway, keys.GROUPS)

    def raise_head(self, gateway: str, lane: str, seen: Head | None, to: Stamp, main: Head) -> bool:
        """Move a lane's head up; False if it was not as seen. One write unit."""
        body = head_requests.raise_head(self._table, gateway, lane, seen, to, main)
        return self._conditionally("UpdateItem", body)

    def change_lanes(self, gateway: str, seen: Head | None, lanes: Lanes, to: Stamp = 0) -> bool:
        """Change which lanes are open; False if they were not as seen. One write unit."""
        if seen is None:
            self._call("PutItem", register(self._table, gateway))
        changes = head_requests.lanes_attribute(lanes)
        if to:
            changes["c"] = number(to)
        body = encode(head_requests.main_head(self._table, gateway, seen, changes))
        return self._conditionally("UpdateItem", body)

    def close_lane(self, gateway: str, lane: str, seen: Head | None, to: Stamp) -> bool:
        """Close a lane; False if its head was not as seen. One write unit."""
        body = head_requests.close_lane(self._table, gateway, lane, seen, to)
        return self._conditionally("UpdateItem", body)

    def _groups(self, gateway: str, groups: Sequence[int]) -> dict[str, Head]:
        """Give the heads in groups of lanes."""
        reads = [partial(self._group, gateway, group) for group in groups]
        return {lane: head for heads in self.in_parallel(reads) for lane, head in heads.items()}

    def _group(self, gateway: str, group: int) -> dict[str, Head]:
        heads: dict[str, Head] = {}
        after = ""
        while True:
            body = upkeep_requests.query_after(
                self._table, keys.heads_pk(gateway, group), after, _HEADS_MAX
            )
            answer = self._read("Query", body)
            heads |= {text(item, "sk"): head_of(item) for item in answer["Items"]}
            if "LastEvaluatedKey" not in answer:
                return heads
            after = text(answer["LastEvaluatedKey"], "sk")
