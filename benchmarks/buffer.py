"""What a push costs in DynamoDB's request units, and whether it costs more as the buffer fills.

Write units are those that the emulator's ``ConsumedCapacity`` reports. It reports none for batches
of reads: those are computed by the rule in `benchmarks.units`.
``python -m benchmarks --only buffer`` prints the figures.
"""

from __future__ import annotations

import gc
import os
from collections import Counter
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Final

import boto3

from benchmarks import gateway
from benchmarks.entries import Entry, at_most, cpu_us, sized
from benchmarks.flights import BATCH, DISTINCT, WALL_MS, Chance, batches
from benchmarks.units import batch_read_units, read_units, transaction_units
from lakesync.buffer.caller import DynamoCaller, Network
from lakesync.buffer.dynamo import DynamoBuffer
from lakesync.buffer.memory_buffer import MemoryBuffer
from lakesync.buffer.requests import transact
from lakesync.core.layout import lane_name
from lakesync.core.messages import Pull
from lakesync.declare.schemas import read_schema
from lakesync.gateway.admin import AdminService
from lakesync.gateway.pull import PullService
from lakesync.gateway.push import PushService
from lakesync.log.lanes import Limits
from tools.local_stack.aws_emulator import start_emulator

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from lakesync.core.clock import Stamp
    from lakesync.ports import Buffer, Commit, Head, RowKey, StoredRow

MEASURES: Final = gateway.MEASURES
COST_RATIO_TARGET: Final = 1.2
PUSH_WRU_TARGET: Final = 2.5
APPEND_WRU_TARGET: Final = 0.3
PUSH_RRU_TARGET: Final = 1.0
CURRENT_PULL_RRU_TARGET: Final = 2.0
FEW: Final = 1_000
MANY: Final = sized(1_000_000, 4_000)
_ROWS: Final = range(300)
"""The rows that are pushed to: they are there before the first figure is taken."""
_OTHER_ROWS: Final = range(300, 200_000)
"""The rows that fill the buffer."""
_PUSHES: Final = sized(40, 2)
_ROUNDS: Final = 5
_GATEWAY: Final = "bench"
_TABLE: Final = "lakesync-buffer"
_LANES: Final = 8
_UNBOUNDED: Final = Limits(backpressure_bytes_max=1 << 40, flush_threshold_bytes=1 << 40)
_EVENTS: Final = {
    "table": "events",
    "append": True,
    "columns": [
        {"name": "carrier", "type": "string"},
        {"name": "tailnum", "type": "string"},
        {"name": "dep_delay", "type": "integer"},
        {"name": "air_time", "type": "number"},
        {"name": "cancelled", "type": "boolean"},
    ],
}


def run() -> list[Entry]:
    """Measure, and give one entry for each figure."""
    return [*_unit_entries(), _ratio_entry()]


# --- units


def _unit_entries() -> list[Entry]:
    with _emulated() as (buffer, units):
        edits = list(batches(_PUSHES, _ROWS))
        for push in edits:  # rows that are there, so that what is measured is a change of them
            _service(buffer).push(_GATEWAY, push)
        units.clear()
        for push in batches(_PUSHES, _ROWS, first=_PUSHES):
            # A new process for each push reads everything: the dearest case.
            _service(buffer).push(_GATEWAY, push)
        pushed = Counter(units)
        service = _administration(buffer)
        service.register_schema(_GATEWAY, read_schema(_EVENTS))
        pusher = _service(buffer)
        events = list(batches(_PUSHES, _ROWS, table="events", first=2 * _PUSHES))
        pusher.push(_GATEWAY, events[0])
        units.clear()
        for push in events[1:]:
            pusher.push(_GATEWAY, push)
        appended = Counter(units)
        _open_lanes(buffer)
        puller = PullService(buffer, wall_clock=lambda: WALL_MS)
        current = _read_on(puller)
        units.clear()
        puller.pull(_GATEWAY, Pull("reader", current))
        pulled = Counter(units)
        lanes = len(buffer.heads(_GATEWAY))
    count = _PUSHES * BATCH
    detail = f"batches of {BATCH}, 5 columns, {DISTINCT} distinct rows; ConsumedCapacity, emulator"
    return [
        at_most(
            "push_wru_per_delta",
            pushed["TransactWriteItems"] / count,
            "WRU",
            PUSH_WRU_TARGET,
            detail,
        ),
        at_most(
            "append_wru_per_delta",
            appended["TransactWriteItems"] / (count - BATCH),
            "WRU",
            APPEND_WRU_TARGET,
            f"an append table, batches of {BATCH}, 5 columns; ConsumedCapacity, emulator",
        ),
        at_most(
            "push_rru_per_delta",
            (pushed["BatchGetItem"] + pushed["GetItem"]) / count,
            "RRU",
            PUSH_RRU_TARGET,
            f"batches of {BATCH}, {DISTINCT} distinct rows, each pushed by a process that knows "
            "nothing yet: configuration, head and rows, by the rule; a warm process reads nothing",
        ),
        at_most(
            "current_pull_rru_per_lane",
            sum(pulled.values()) / lanes,
            "RRU",
            CURRENT_PULL_RRU_TARGET,
            f"a client that is up to date, one request, {lanes} lanes; by the rule, all reads",
        ),
    ]


def _open_lanes(buffer: Buffer) -> None:
    main = buffer.heads(_GATEWAY)["main"]
    lanes = main.lanes.opening("main", _LANES)
    assert buffer.change_lanes(_GATEWAY, main, lanes, main.commit + 1)
    main = buffer.heads(_GATEWAY)["main"]
    for number in range(1, _LANES):
        assert buffer.raise_head(_GATEWAY, lane_name("main", number), None, main.commit, main)


def _read_on(puller: PullService) -> Stamp:
    cursor = 0
    while True:
        page = puller.pull(_GATEWAY, Pull("reader", cursor))
        cursor = page.cursor
        if not page.has_more:
            return cursor


@contextmanager
def _emulated() -> Iterator[tuple[DynamoBuffer, Counter[str]]]:
    units: Counter[str] = Counter()

    def count(operation: str, consumed: float) -> None:
        units[operation] += consumed  # type: ignore[assignment]  # half units exist

    os.environ.setdefault("AWS_ACCESS_KEY_ID", "none")
    os.environ.setdefault("AWS_SECRET_ACCESS_KEY", "none")
    with ExitStack() as stack:
        emulator = stack.enter_context(start_emulator())
        client = boto3.client("dynamodb", **emulator.client_options())
        stack.callback(client.close)
        client.create_table(
            TableName=_TABLE,
            KeySchema=[
                {"AttributeName": "pk", "KeyType": "HASH"},
                {"AttributeName": "sk", "KeyType": "RANGE"},
            ],
            AttributeDefinitions=[
                {"AttributeName": "pk", "AttributeType": "S"},
                {"AttributeName": "sk", "AttributeType": "S"},
            ],
            BillingMode="PAY_PER_REQUEST",
        )
        network = Network(emulator.endpoint)

        def send(headers: dict[str, str], body: bytes) -> tuple[int, bytes]:
            status, answer = network(headers, body)
            if headers["X-Amz-Target"].endswith(".BatchGetItem"):
                count("BatchGetItem", batch_read_units(body, answer))
            return status, answer

        caller = DynamoCaller(emulator.region, emulator.endpoint, send=send, on_capacity=count)
        yield DynamoBuffer(_TABLE, caller), units


# --- cost as the buffer fills


class _Metered(MemoryBuffer):
    """The buffer in memory, counting the units that DynamoDB would take."""

    def __init__(self) -> None:
        super().__init__()
        self.metering = False
        self.units = 0.0
        self.deltas = 0

    def commit(self, commit: Commit) -> None:
        """Commit, and count its write units."""
        super().commit(commit)
        self.deltas += sum(part.entry.count for part in commit.lanes.values())
        if self.metering:
            self.units += transaction_units(transact(_TABLE, commit)[0])

    def lane_heads(self, gateway: str, lanes: Sequence[str]) -> dict[str, Head]:
        """Return heads, a read unit each."""
        self.units += len(lanes)
        return super().lane_heads(gateway, lanes)

    def rows(self, gateway: str, wanted: Iterable[RowKey]) -> dict[RowKey, StoredRow]:
        """Return rows, and count their read units."""
        keys = list(wanted)
        stored = super().rows(gateway, keys)
        if self.metering:
            self.units += read_units(len(stored[key].state) if key in stored else 0 for key in keys)
        return stored


def _ratio_entry() -> Entry:
    """Fill one buffer, and measure the same pushes early and late.

    The process that pushes is new each time and reads all rows, as after a cold start.
    """
    buffer = _Metered()
    us, units = _cost(buffer, FEW)
    us_late, units_late = _cost(buffer, MANY)
    return at_most(
        "push_cost_1m_over_1k",
        max(us_late / us, units_late / units),
        "ratio",
        COST_RATIO_TARGET,
        f"in memory: CPU {us:.1f} and {us_late:.1f} us, read and write units {units:.2f} and "
        f"{units_late:.2f} a delta, by {FEW:,} and {MANY:,} deltas in the buffer",
    )


def _cost(buffer: _Metered, size: int) -> tuple[float, float]:
    """Fill the buffer, then give CPU microseconds and units of a further delta."""
    filler = _service(buffer)
    rows = _OTHER_ROWS if buffer.deltas else _ROWS
    for push in batches((size - buffer.deltas) // BATCH, rows, first=buffer.deltas // BATCH):
        filler.push(_GATEWAY, push)
    turns = [
        list(batches(_PUSHES, _ROWS, first=size // BATCH + turn * _PUSHES))
        for turn in range(_ROUNDS)
    ]

    def push_all(turn: int) -> int:
        service = _service(buffer)
        for push in turns[turn]:
            service.push(_GATEWAY, push)
        return _PUSHES * BATCH

    gc.freeze()  # what the filling left behind is not to be collected on the pushes' account
    us = cpu_us(push_all, _ROUNDS - 1)
    buffer.metering, buffer.units = True, 0.0
    push_all(_ROUNDS - 1)
    buffer.metering = False
    gc.unfreeze()
    return us, buffer.units / (_PUSHES * BATCH)


def _service(buffer: Buffer) -> PushService:
    return PushService(
        buffer,
        wall_clock=lambda: WALL_MS + 10**9,
        sleep_ms=lambda _: None,
        chance=Chance(),
        limits=_UNBOUNDED,
    )


def _administration(buffer: Buffer) -> AdminService:
    return AdminService(
        buffer, wall_clock=lambda: WALL_MS, sleep_ms=lambda _: None, chance=Chance()
    )
