"""How fast a client that sees next to nothing gets past the log of all others.

``python -m benchmarks --only sparse`` prints the figures; ``run`` gives them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from benchmarks.entries import at_least, cpu_us
from benchmarks.flights import BATCH, WALL_MS, Chance, batches
from benchmarks.gateway import GATEWAY, PAGE_DELTAS, ROWS, KeptCommits, StoredLog, dynamo
from lakesync.core.messages import Pull
from lakesync.gateway.admin import AdminService
from lakesync.gateway.pull import PullService
from lakesync.gateway.push import PushService
from lakesync.log.log_cache import Tails

if TYPE_CHECKING:
    from benchmarks.entries import Entry

SCAN_TARGET_MB_PER_S: Final = 100
_PUSHES: Final = 400
_RULES: Final = {
    "version": 1,
    "buckets": [
        {
            "name": "mine",
            "tables": ["flights"],
            "filters": [{"column": "tailnum", "op": "eq", "value": "jwt:sub"}],
        }
    ],
}
_SCHEMA: Final = {
    "table": "flights",
    "columns": [
        {"name": "carrier", "type": "string"},
        {"name": "tailnum", "type": "string"},
        {"name": "dep_delay", "type": "integer"},
        {"name": "air_time", "type": "number"},
        {"name": "cancelled", "type": "boolean"},
    ],
}
_READER: Final = Pull("nobody", deltas_max=PAGE_DELTAS, claims={"sub": "nobody"}, removes=True)


def run() -> list[Entry]:
    """Measure, and give one entry for each figure."""
    buffer = _ruled(_PUSHES)
    size_mb = (
        sum(len(part.entry.records) for commit in buffer.commits for part in commit.lanes.values())
        / 1e6
    )
    from_memory = size_mb / (cpu_us(lambda _: _scan(buffer)) / 1e6)
    return [
        at_least(
            "sparse_pull_log_mb_per_s",
            from_memory,
            "MB/s",
            SCAN_TARGET_MB_PER_S,
            f"{_PUSHES * BATCH:,} deltas of others, each with another value in the column that "
            f"the one rule looks at, passed by requests of 16 MB at the most out of the memory of "
            f"a warm function; out of DynamoDB's answers, which are decoded and inflated first, "
            f"{_from_dynamo():.0f} MB/s",
        )
    ]


def _ruled(pushes: int) -> KeptCommits:
    buffer = KeptCommits()
    admin = AdminService(
        buffer, wall_clock=lambda: WALL_MS, sleep_ms=lambda _: None, chance=Chance()
    )
    admin.register_schema(GATEWAY, _SCHEMA)
    admin.save_rules(GATEWAY, _RULES)
    service = PushService(
        buffer, wall_clock=lambda: WALL_MS + 1_000_000, sleep_ms=lambda _: None, chance=Chance()
    )
    for push in batches(pushes, ROWS):
        service.push(GATEWAY, push)
    return buffer


def _scan(buffer: Any) -> int:
    service = PullService(buffer, wall_clock=lambda: WALL_MS)
    pull = _READER
    while True:
        page = service.pull(GATEWAY, pull)
        assert page.count == 0
        if not page.has_more:
            return 1
        pull = replace(pull, since=page.cursor)


def _from_dynamo() -> float:
    kept = _ruled(PAGE_DELTAS // BATCH)
    size_mb = (
        sum(len(part.entry.records) for commit in kept.commits for part in commit.lanes.values())
        / 1e6
    )
    buffer = dynamo(StoredLog(kept))
    service = PullService(buffer, wall_clock=lambda: WALL_MS)

    def pull_once(_: int) -> int:
        for _ in range(20):
            service._tails = Tails(buffer)  # noqa: SLF001 - what is measured is its absence
            assert service.pull(GATEWAY, _READER).count == 0
        return 20

    return size_mb / (cpu_us(pull_once) / 1e6)
