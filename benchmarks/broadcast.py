"""What a commit costs that is told to many connections: CPU of ``functions/notify``, and dollars.

Everything is real but for the network: DynamoDB's answers are made before, as the bytes that it
sends, and API Gateway takes every frame at once. ``python -m benchmarks --only broadcast``.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from unittest.mock import patch

from benchmarks.entries import at_most, cpu_us, sized
from benchmarks.flights import WALL_MS
from lakesync.buffer.admission import ItemAccess
from lakesync.buffer.caller import DynamoCaller
from lakesync.buffer.connections import ItemConnections, connection_item
from lakesync.buffer.dynamo_items import DynamoItemStore, attributes_of
from lakesync.buffer.memory_buffer import MemoryBuffer
from lakesync.buffer.memory_items import MemoryItemStore
from lakesync.core.clock import stamp
from lakesync.core.delta import Op, make_delta
from lakesync.core.messages import Push
from lakesync.declare.sync_rules import rules_reader
from lakesync.gateway.access import Access
from lakesync.gateway.admin import AdminService
from lakesync.gateway.broadcast import Broadcaster
from lakesync.gateway.connected import rules_digest, scoped
from lakesync.gateway.frame_sending import SENT_PER_S_MAX, FrameSender
from lakesync.gateway.pull import PullService
from lakesync.gateway.push import PushService
from lakesync.ports import Connection
from lakesync.runtime.websocket_frames import ApiSockets

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.entries import Entry

MEASURES: Final = (
    "layers/lakesync/python/lakesync/buffer/connections.py",
    "layers/lakesync/python/lakesync/buffer/connections.py",
    "layers/lakesync/python/lakesync/core/visibility.py",
    "layers/lakesync/python/lakesync/gateway/broadcast.py",
    "layers/lakesync/python/lakesync/gateway/connected.py",
    "layers/lakesync/python/lakesync/gateway/frame_sending.py",
    "layers/lakesync/python/lakesync/gateway/pull.py",
    "layers/lakesync/python/lakesync/runtime/websocket_frames.py",
    "layers/lakesync/python/lakesync/wire",
)
GATEWAY: Final = "bench"
SCOPES: Final = 50
TARGET_US: Final = 60
SIZES: Final = sized((1_000, 10_000, 100_000), (100,))
TARGET_USD: Final = 1.25
USD_PER_MESSAGE: Final = 1.00 / 1e6
"""Of API Gateway's WebSockets, for each 32 KB in either direction."""
USD_PER_WRU: Final = 0.625 / 1e6
USD_PER_RRU: Final = 0.125 / 1e6
USD_PER_CALL: Final = 0.20 / 1e6
USD_PER_GB_S: Final = 0.0000166667
NOTIFY_GB: Final = 1.0
ELSEWHERE: Final = (
    "AppSync Events $1.00 a million operations (AWS's price list for eu-west-1, in effect since "
    "2024-09; the price of its minutes was not found, those of AppSync's GraphQL are $0.08 a "
    "million), Ably $2.50 beyond a plan, Pusher $49 a month for 500 connections and a million "
    "messages a day"
)
"""As their pages said in 2025 and 2026."""
_CREDENTIALS: Final = {
    "AWS_ACCESS_KEY_ID": "key",
    "AWS_SECRET_ACCESS_KEY": "secret",
    "AWS_SESSION_TOKEN": "t" * 800,
}
_READ_BYTES: Final = 4_096
_PAGE_BYTES: Final = 1_000_000
"""What DynamoDB gives of a query at once."""
_RULES: Final = {
    "version": 1,
    "buckets": [
        {
            "name": "team",
            "tables": [],
            "filters": [{"column": "team", "op": "eq", "value": "jwt:team"}],
            "write": [],
        },
        {
            "name": "all",
            "tables": [],
            "filters": [{"column": "team", "op": "eq", "value": "all"}],
            "write": [],
        },
    ],
}


def run() -> list[Entry]:
    """Measure, and give one entry for each figure."""
    with patch.dict(os.environ, _CREDENTIALS):
        spent = {size: _cpu_us(size) for size in SIZES}
        counted = _Bench(1_000)
        counted.tell()
        bill = _usd_per_m_messages(counted)
    each = ", ".join(f"{size:,}: {us:.1f}" for size, us in spent.items())
    return [
        at_most(
            "broadcast_cpu_us_per_connection",
            max(spent.values()),
            "us",
            TARGET_US,
            f"a commit of one row that all of {SCOPES} scopes see, from DynamoDB's bytes to signed "
            f"requests; by connections, {each}",
        ),
        at_most(
            "broadcast_usd_per_m_messages",
            bill.usd,
            "USD",
            TARGET_USD,
            f"small commits to 1,000 connections, us-east-1: {bill.detail}. Elsewhere, without "
            f"what decides who sees what: {ELSEWHERE}",
        ),
    ]


def _cpu_us(size: int) -> float:
    bench = _Bench(size)
    bench.tell()
    return cpu_us(lambda _: bench.tell(), rounds=2)


class _Bill(NamedTuple):
    """What a million messages cost, and of what."""

    usd: float
    detail: str


def _usd_per_m_messages(bench: _Bench) -> _Bill:
    calls = bench.counted()
    times = 1_000_000 / calls["posts"]
    parts = {
        "API Gateway": times * calls["posts"] * USD_PER_MESSAGE,
        "DynamoDB": times * (calls["reads"] * USD_PER_RRU + calls["writes"] * USD_PER_WRU),
        "Lambda": times
        * (USD_PER_CALL + calls["posts"] / SENT_PER_S_MAX * NOTIFY_GB * USD_PER_GB_S),
    }
    each = ", ".join(f"{name} ${usd:.3f}" for name, usd in parts.items())
    return _Bill(
        sum(parts.values()),
        f"{each}; one commit was {calls['posts']:,} posts, {calls['reads']:.0f} read units and "
        f"{calls['writes']} write units",
    )


class _Chance:
    def __init__(self) -> None:
        self._number = 0

    def jitter(self) -> float:
        return 0.5

    def token(self) -> str:
        self._number += 1
        return f"token-{self._number}"


class _Bench:
    """A gateway with so many connections, and one process that notifies them."""

    def __init__(self, size: int) -> None:
        self._buffer = MemoryBuffer()
        self._now_ms = WALL_MS
        chance = _Chance()
        common: dict[str, Any] = {
            "wall_clock": lambda: self._now_ms,
            "sleep_ms": lambda _: None,
            "chance": chance,
        }
        AdminService(self._buffer, **common).save_rules(GATEWAY, rules_reader(_RULES))
        self._pushes = PushService(self._buffer, **common)
        self._store = _Answers(self._buffer, size)
        self._posted = 0
        sockets = ApiSockets("x.execute-api", "live", "eu-west-1", network=self._post)
        caller = DynamoCaller(
            "eu-west-1", send=self._store, credentials=lambda: ("key", "secret", "t")
        )
        connections = ItemConnections(DynamoItemStore("connections", caller))
        sender = FrameSender(sockets, connections, seconds=lambda: 0.0, sleep_s=lambda _: None)
        self._broadcaster = Broadcaster(
            PullService(self._buffer, wall_clock=lambda: self._now_ms),
            connections,
            sender,
            access=Access(ItemAccess(MemoryItemStore()), wall_clock=lambda: self._now_ms),
            wall_clock=lambda: self._now_ms,
        )

    def _post(
        self, method: str, path: str, headers: dict[str, str], body: bytes
    ) -> tuple[int, bytes]:
        self._posted += bool(path and headers and body and method == "POST")
        return 200, b""

    def counted(self) -> dict[str, float]:
        """Tell all of one commit; returns the calls and units that it took."""
        before = dict(self._store.used)
        posts = self.tell()
        used = {name: units - before.get(name, 0) for name, units in self._store.used.items()}
        return {"posts": posts, **used}

    def tell(self) -> int:
        """Commit a row, and tell all of it; returns how many were told."""
        self._now_ms += 1_000
        delta = make_delta(
            Op.INSERT,
            "todos",
            f"row{self._now_ms}",
            {"title": "Buy milk", "team": "all", "done": False},
            client_id="writer",
            hlc=stamp(self._now_ms),
        )
        before = self._posted
        commit = self._pushes.push(GATEWAY, Push("writer", ((0, delta),))).server_hlc
        self._broadcaster.notify(GATEWAY, commit, f"batch-{commit}")
        self._store.notified = commit
        return self._posted - before


class _Answers:
    """DynamoDB's answers about the connections of one gateway."""

    def __init__(self, buffer: MemoryBuffer, size: int) -> None:
        self.notified = 0
        self.used = {"reads": 0.0, "writes": 0.0}
        config = buffer.config(GATEWAY)
        rules = rules_digest(config)
        known = {}
        for number in range(SCOPES):
            claims = {"sub": "u", "gw": GATEWAY, "exp": 4_000_000_000, "team": f"team-{number}"}
            connection = Connection(GATEWAY, "", "", "", 4e9, WALL_MS, claims)
            known[number] = scoped(connection, config, rules)
        self._pages = list(_pages(_items(known, size)))

    def __call__(self, headers: dict[str, str], body: bytes) -> tuple[int, bytes]:
        """Answer a request."""
        if not headers["X-Amz-Target"].endswith("Query"):
            self.used["writes"] += 1
            return 200, b"{}"
        start = json.loads(body).get("ExpressionAttributeValues", {}).get(":after", {}).get("S", "")
        page = self._pages[int(start.partition("#")[2] or 0)]
        # The item's own bytes, without the JSON around them, are what is billed.
        self.used["reads"] += -(-sum(map(_item_bytes, json.loads(page)["Items"])) // _READ_BYTES)
        return 200, page.replace(b'"NOTIFIED"', b'"%d"' % self.notified)


def _items(known: dict[int, Connection], size: int) -> Iterator[dict[str, Any]]:
    yield {"pk": {"S": GATEWAY}, "sk": {"S": "|notify"}, "n": {"N": "NOTIFIED"}}
    for number in range(size):
        some = known[number % SCOPES]
        named = {"id": f"c{number:011}=", "client_id": f"phone-{number}", "user": f"user-{number}"}
        claims = {**some.claims, "sub": f"user-{number}"}
        item = connection_item(
            Connection(
                GATEWAY,
                named["id"],
                named["client_id"],
                named["user"],
                some.expires_s,
                some.opened_ms,
                claims,
                some.scope,
                some.rules,
            )
        )
        yield attributes_of(item)


def _item_bytes(item: dict[str, Any]) -> int:
    return sum(len(name) + len(next(iter(value.values()))) for name, value in item.items())


def _pages(items: Iterator[dict[str, Any]]) -> Iterator[bytes]:
    page, size, number = [], 0, 0
    for item in items:
        page.append(item)
        size += len(json.dumps(item))
        if size > _PAGE_BYTES:
            number += 1
            last = {"pk": {"S": GATEWAY}, "sk": {"S": f"#{number}"}}
            yield json.dumps({"Items": page, "LastEvaluatedKey": last}).encode()
            page, size = [], 0
    yield json.dumps({"Items": page}).encode()
