"""How fast a client that sees next to nothing gets past the log of all others.

``python -m benchmarks --only sparse`` prints the figures; ``run`` gives them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from benchmarks import rules
from benchmarks.entries import at_least, cpu_us, sized
from benchmarks.flights import BATCH, WALL_MS, Chance
from benchmarks.gateway import (
    GATEWAY,
    PAGE_DELTAS,
    StandsStill,
    dynamo,
    push_flights,
    with_a_page,
)
from lakesync.buffer.memory_buffer import MemoryBuffer
from lakesync.core.messages import Pull
from lakesync.declare.schemas import read_schema
from lakesync.declare.sync_rules import rules_reader
from lakesync.gateway.admin import AdminService
from lakesync.gateway.pull import PullService
from lakesync.log.log_cache import Tails

if TYPE_CHECKING:
    from benchmarks.entries import Entry
    from lakesync.ports import Buffer, Commit

MEASURES: Final = rules.MEASURES
SCAN_TARGET_MB_PER_S: Final = 100
_PUSHES: Final = sized(400, 20)
_PULLS: Final = sized(20, 1)
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
    buffer = _Counted()
    _govern(buffer)
    push_flights(buffer, _PUSHES)
    from_memory = buffer.mb / (cpu_us(lambda _: _scan(buffer)) / 1e6)
    return [
        at_least(
            "sparse_pull_log_mb_per_s",
            from_memory,
            "MB/s",
            SCAN_TARGET_MB_PER_S,
            f"{_PUSHES * BATCH:,} deltas of others, each with another value in the column that "
            f"the one rule looks at, passed by requests of 16 MB at the most out of the memory of "
            f"a warm function; out of DynamoDB's answers, which are decoded and inflated first, "
            f"{_from_dynamo(buffer.mb / _PUSHES):.0f} MB/s",
        )
    ]


class _Counted(MemoryBuffer):
    """Counts the bytes of its log."""

    def __init__(self) -> None:
        super().__init__()
        self.mb = 0.0

    def commit(self, commit: Commit) -> None:
        """Commit, and count."""
        super().commit(commit)
        self.mb += sum(len(part.entry.records) for part in commit.lanes.values()) / 1e6


def _govern(buffer: Buffer) -> None:
    admin = AdminService(
        buffer, wall_clock=lambda: WALL_MS, sleep_ms=lambda _: None, chance=Chance()
    )
    admin.register_schema(GATEWAY, read_schema(_SCHEMA))
    admin.save_rules(GATEWAY, rules_reader(_RULES))


def _scan(buffer: Any) -> int:
    service = PullService(buffer, wall_clock=lambda: WALL_MS)
    pull = _READER
    while True:
        page = service.pull(GATEWAY, pull)
        assert page.count == 0
        if not page.has_more:
            return 1
        pull = replace(pull, since=page.cursor)


def _from_dynamo(mb_of_push: float) -> float:
    buffer = dynamo(StandsStill(_govern, with_a_page))
    service = PullService(buffer, wall_clock=lambda: WALL_MS)

    def pull_once(_: int) -> int:
        for _ in range(_PULLS):
            service._log.tails = Tails(buffer)  # noqa: SLF001 - what is measured is its absence
            assert service.pull(GATEWAY, _READER).count == 0
        return _PULLS

    return mb_of_push * PAGE_DELTAS / BATCH / (cpu_us(pull_once) / 1e6)
