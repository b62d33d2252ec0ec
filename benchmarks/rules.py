"""What sync rules cost: a decision by itself, and pages that are decided over pages that are not.

``python -m benchmarks --only rules`` prints the figures; ``run`` gives them.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any, Final

from benchmarks.entries import at_most, cpu_us, sized
from benchmarks.flights import WALL_MS, Chance
from benchmarks.gateway import GATEWAY, PAGE_DELTAS, StandsStill, pull_us, with_a_page
from lakesync.core.delta import canonical
from lakesync.core.messages import Pull
from lakesync.core.schema import Column, TableSchema
from lakesync.core.visibility import Viewer
from lakesync.declare.schemas import read_schema
from lakesync.declare.sync_rules import read_rules, rules_reader
from lakesync.gateway.admin import AdminService
from lakesync.wire import jsonish, proto

if TYPE_CHECKING:
    from benchmarks.entries import Entry
    from lakesync.ports import Buffer

MEASURES: Final = (
    "layers/lakesync/python/lakesync/core",
    "layers/lakesync/python/lakesync/gateway/pull.py",
    "layers/lakesync/python/lakesync/gateway/filtered_reads.py",
    "layers/lakesync/python/lakesync/log",
    "layers/lakesync/python/lakesync/wire",
)
DECISION_TARGET_US: Final = 1
PULL_TARGET: Final = 2
DECISIONS: Final = sized(20_000, 200)
CLAIMS: Final = {"sub": "reader", "carriers": ["UA", "AA", "DL", "B6"]}
_COLUMNS: Final = {
    "carrier": "string", "tailnum": "string", "dep_delay": "integer", "air_time": "number",
    "cancelled": "boolean",
}  # fmt: skip
_SCHEMA: Final = {
    "table": "flights",
    "columns": [{"name": name, "type": kind} for name, kind in _COLUMNS.items()],
}


def _bucket(name: str, *filters: tuple[str, str, object]) -> dict[str, Any]:
    return {
        "name": name,
        "tables": ["flights"],
        "filters": [{"column": c, "op": op, "value": value} for c, op, value in filters],
    }


BUCKETS: Final = [
    _bucket("late", ("dep_delay", "gt", 300), ("cancelled", "eq", False)),
    _bucket("one", ("tailnum", "eq", "jwt:tailnum")),
    _bucket("long", ("air_time", "gte", 149)),
    _bucket("mine", ("carrier", "in", "jwt:carriers")),
]
RULES: Final = {"version": 1, "buckets": BUCKETS}
"""The last bucket shows every flight to `CLAIMS`, the others few: each has to be asked."""


def run() -> list[Entry]:
    """Measure, and give one entry for each figure."""
    decision = _decision_us() / len(BUCKETS)
    plain, decided = (_pull_us(jsonish, ruled=ruled) for ruled in (False, True))
    spliced, cut = (_pull_us(proto, ruled=ruled) for ruled in (False, True))
    return [
        at_most(
            "visibility_us_per_delta_bucket",
            decision,
            "us",
            DECISION_TARGET_US,
            "a change of a column that the rules look at, 4 buckets of 1 to 2 filters, the row "
            "before and after",
        ),
        at_most(
            "pull_with_4_rules_over_none",
            decided / plain,
            "ratio",
            PULL_TARGET,
            f"pages of {PAGE_DELTAS:,}, DynamoDB's answer to JSON, every delta in sight: "
            f"{decided:.2f} and {plain:.2f} us of CPU a delta; to protobuf, which without rules is "
            f"spliced unread, {cut:.2f} and {spliced:.2f}",
        ),
    ]


def _decision_us() -> float:
    columns = tuple(Column(name, kind) for name, kind in _COLUMNS.items())
    rules, _ = read_rules(RULES, {"flights": TableSchema("flights", columns)}, strict=True)
    viewer = Viewer(rules, CLAIMS)
    chance = random.Random(1)
    rows = [
        {
            "carrier": canonical(chance.choice(["UA", "AA", "DL", "XX"])),
            "tailnum": canonical(f"N{chance.randrange(10_000, 99_999)}"),
            "dep_delay": canonical(chance.randrange(-20, 400)),
            "air_time": canonical(chance.randrange(300) / 2),
            "cancelled": canonical(chance.random() < 0.02),
        }
        for _ in range(DECISIONS + 1)
    ]

    def decide_all(_: int) -> int:
        transition = viewer.transition
        for place in range(DECISIONS):
            transition("flights", rows[place], rows[place + 1])
        return DECISIONS

    return cpu_us(decide_all)


def _pull_us(wire: Any, *, ruled: bool) -> float:
    def govern(buffer: Buffer) -> None:
        admin = AdminService(
            buffer, wall_clock=lambda: WALL_MS, sleep_ms=lambda _: None, chance=Chance()
        )
        admin.register_schema(GATEWAY, read_schema(_SCHEMA))
        if ruled:
            admin.save_rules(GATEWAY, rules_reader(RULES))

    send = StandsStill(govern, with_a_page)
    pull = Pull("reader", deltas_max=PAGE_DELTAS, claims=CLAIMS, removes=True)
    return pull_us(send, wire, pull)
