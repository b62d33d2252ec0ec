"""The buffer on DynamoDB: one table, one ``TransactWriteItems`` for each commit.

A commit of n small rows in one shard costs ``2 * (head + entry KB + n)`` write units and one round
trip; without the entry's as long as it fits into the head. A read of n rows costs n read units and
``n / 100`` round trips. Laws: ``docs/spec/commit.md``.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from lakesync.buffer import conditions, head_requests, keys, pack, requests, upkeep_requests
from lakesync.buffer.answers import (
    cancelled,
    data,
    mark_places,
    marks_of,
    number,
    reason,
    row_places,
    rows_of,
    text,
)
from lakesync.buffer.caller import Refusal
from lakesync.buffer.calls import BATCH_MAX
from lakesync.buffer.transaction import Places, transact
from lakesync.buffer.upkeep import Upkeep
from lakesync.core.config import GatewayConfig
from lakesync.core.layout import MAIN_LANE
from lakesync.ports import ConfigMoved, FlushState
from lakesync.wire.log_chunk import inflate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from lakesync.buffer.caller import DynamoCaller
    from lakesync.buffer.calls import InParallel
    from lakesync.core.clock import Stamp
    from lakesync.core.layout import Lanes
    from lakesync.ports import Commit, Head, MarkKey, RowKey, StoredMark, StoredRow

CONFIGS_REMEMBERED_MAX: Final = 64
"""Gateways whose configuration one process caches; each may take 350 KB."""
_ITEMS_MAX: Final = 1000


class DynamoBuffer(Upkeep):
    """`lakesync.ports.Buffer` in one DynamoDB table. Thread-safe."""

    def __init__(
        self,
        table: str,
        caller: DynamoCaller,
        *,
        sleep_s: Callable[[float], None] = time.sleep,
        in_parallel: InParallel | None = None,
    ) -> None:
        super().__init__(table, caller, sleep_s=sleep_s, in_parallel=in_parallel)
        self._configs: dict[str, GatewayConfig] = {}

    # --- what a push reads and writes

    def rows(self, gateway: str, wanted: Iterable[RowKey]) -> dict[RowKey, StoredRow]:
        """Return the states of the existing rows; one read unit for each 4 KB."""
        places = row_places(gateway, wanted)
        return rows_of(self._batch(places), places)

    def rows_within(
        self, gateway: str, wanted: Iterable[RowKey], bytes_max: int
    ) -> tuple[dict[RowKey, StoredRow], list[RowKey]]:
        """Return the states of rows up to so many bytes, and the keys of the rest."""
        asked = list(wanted)
        states: dict[RowKey, StoredRow] = {}
        size = 0
        while asked and size < bytes_max:
            places = row_places(gateway, asked[:BATCH_MAX])
            items, unread = self._batch_once(places)
            left = {places[place] for place in unread}
            read = next((at for at, key in enumerate(asked) if key in left), len(places))
            rows = rows_of(items, places)
            fitting, behind = conditions.within(asked[:read], rows, bytes_max - size)
            states |= fitting
            size += sum(len(row.state) for row in fitting.values())
            asked = behind + asked[read:]
        return states, asked

    def marks(self, gateway: str, wanted: Iterable[MarkKey]) -> dict[MarkKey, StoredMark]:
        """Return the existing append marks."""
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
        """Write everything, or nothing; see `lakesync.ports.Buffer.commit`."""
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
            head = self._get(*keys.head_key(gateway, MAIN_LANE), "v")
            if number(head, "v") == known.version:
                return known
        item = self._get(keys.config_pk(gateway), keys.CONFIG)
        if not item:
            return GatewayConfig()
        if len(self._configs) >= CONFIGS_REMEMBERED_MAX:
            self._configs.clear()
        config = self._configs[gateway] = pack.unpack_config(data(item, "d"))
        return config

    def save_config(
        self, gateway: str, config: GatewayConfig, seen: Head | None, lanes: Lanes, to: Stamp,
        *, epoch: str = "",
    ) -> None:  # fmt: skip
        """Put a configuration in force; see `lakesync.ports.Buffer.save_config`."""
        body = head_requests.save_config(self._table, gateway, config, seen, lanes, to, epoch)
        self._call("PutItem", requests.register(self._table, gateway))
        try:
            self._call("TransactWriteItems", body)
        except Refusal as refusal:
            if reason(refusal, 0) == "ConditionalCheckFailed":
                raise ConfigMoved from refusal
            raise cancelled(refusal, Places({1: MAIN_LANE}, {})) from refusal

    def gateways(self) -> list[str]:
        """Return every gateway that was ever written to."""
        gateways: list[str] = []
        after = ""
        while True:
            between = (after + "\x01", "\x7f")
            body = requests.query(self._table, keys.GATEWAYS, between, _ITEMS_MAX)
            answer = self._read("Query", body)
            gateways += [text(item, "sk") for item in answer["Items"]]
            if "LastEvaluatedKey" not in answer:
                return gateways
            after = text(answer["LastEvaluatedKey"], "sk")

    # --- what is remembered of single clients

    def client_state(self, gateway: str, client_id: str) -> bytes | None:
        """Return the stored state of a client; one read unit for each 4 KB."""
        item = self._get(keys.client_pk(gateway, client_id), client_id)
        return inflate(data(item, "d")) if item else None

    def save_client_state(
        self, gateway: str, client_id: str, seen: bytes | None, state: bytes
    ) -> bool:
        """Store the state of a client; one write unit for each KB; False if not as seen."""
        body = requests.save_client_state(self._table, gateway, client_id, seen, state)
        return self._conditionally("UpdateItem", body)

    # --- flush state

    def flush_state(self, gateway: str) -> FlushState:
        """Return how far the gateway was flushed."""
        item = self._get(keys.flush_pk(gateway), keys.FLUSH)
        return FlushState(number(item, "w"), number(item, "u"))

    def save_flush_state(self, gateway: str, seen: FlushState, state: FlushState) -> bool:
        """Advance the flush state; False if it was not as seen."""
        body = requests.save_flush_state(self._table, gateway, seen, state)
        return self._conditionally("UpdateItem", body)

    def flushed_tables(self, gateway: str, after: str = "") -> dict[str, Stamp]:
        """Get the tables that were ever flushed; one read unit for each 4 KB, about 40 tables."""
        last_flushed: dict[str, Stamp] = {}
        pk = keys.flushed_pk(gateway)
        while True:
            body = upkeep_requests.query_after(self._table, pk, after, _ITEMS_MAX)
            answer = self._read("Query", body)
            last_flushed |= {text(item, "sk"): number(item, "c") for item in answer["Items"]}
            if "LastEvaluatedKey" not in answer:
                return last_flushed
            after = text(answer["LastEvaluatedKey"], "sk")

    def save_flushed_table(self, gateway: str, table: str, last: Stamp) -> None:
        """Set a table's last commit that was announced in a batch; one write unit."""
        body = requests.save_flushed_table(self._table, gateway, table, last)
        self._conditionally("UpdateItem", body)

    def note_flushed(self, gateway: str, lane: str, until: Stamp, logged_bytes: int) -> None:
        """Set how much of a lane is flushed; never lowers it."""
        for request in head_requests.note_flushed(self._table, gateway, lane, until, logged_bytes):
            if self._conditionally("UpdateItem", request):
                return
