"""Heads of lanes on DynamoDB: reading, raising, opening and closing them."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Final

from lakesync.buffer import head_requests, keys, upkeep_requests
from lakesync.buffer.answers import head_of, text
from lakesync.buffer.calls import TableCalls
from lakesync.buffer.requests import encode, number, register
from lakesync.core.layout import MAIN_LANE, ONE_LANE, lane_number

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lakesync.buffer.caller import DynamoCaller
    from lakesync.buffer.calls import InParallel
    from lakesync.core.clock import Stamp
    from lakesync.core.layout import Lanes
    from lakesync.ports import Head

GATEWAYS_REMEMBERED_MAX: Final = 1_000
"""Gateways of which one process remembers the lanes."""
_HEADS_MAX: Final = 1_000


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
        items = self._batch(keys.head_key(gateway, lane) for lane in lanes)
        return {text(item, "sk"): head_of(item) for item in items}

    def epoch(self, gateway: str) -> str:
        """Return a gateway's epoch; one read unit. Nothing else of the head is read."""
        item = self._get(*keys.head_key(gateway, MAIN_LANE), "e")
        return text(item, "e") if "e" in item else ""

    def all_heads(self, gateway: str) -> dict[str, Head]:
        """Return all existing heads; a read unit for each group, and for each 4 KB."""
        return self._main(gateway) | self._groups(gateway, keys.GROUPS)

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

    def _remember(self, gateway: str, lanes: Lanes) -> None:
        if len(self._lanes) >= GATEWAYS_REMEMBERED_MAX:
            self._lanes.clear()
        self._lanes[gateway] = lanes

    def _main(self, gateway: str) -> dict[str, Head]:
        """Return the main lane's head, if there is one."""
        item = self._get(*keys.head_key(gateway, MAIN_LANE))
        return {MAIN_LANE: head_of(item)} if item else {}

    def _groups(self, gateway: str, groups: Sequence[int]) -> dict[str, Head]:
        """Return the heads in groups of lanes."""
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


def _groups_of(lanes: Sequence[str]) -> range:
    """Return the groups that contain the heads of lanes; the main lane's is in none."""
    return keys.groups(lane_number(lane) for lane in lanes if lane != MAIN_LANE)
