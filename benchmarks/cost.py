"""What stacks cost in a month, as `lakesync cost` says it: the model and its prices.

``python -m benchmarks --only cost`` prints the figures. They are no measurements of this machine:
what the model counts with is held against the deployed local stack by ``benchmarks/hour.json``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from benchmarks.entries import at_most
from lakesync.cli.cost import described
from lakesync.cli.cost.bill import bill, shipped

if TYPE_CHECKING:
    from benchmarks.entries import Entry
    from lakesync.cli.cost.bill import Bill

MEASURES: Final = (
    "layers/lakesync/python/lakesync/cli/cost",
    "layers/lakesync/python/lakesync/client/waits.py",
    "layers/lakesync/python/lakesync/client/loop.py",
    "layers/lakesync/python/lakesync/client/websocket_listener.py",
)
REGION: Final = "us-east-1"
IDLE_TARGET: Final = 5
CONNECTION_TARGET: Final = 0.03
HUNDRED_TARGET: Final = 25
TEN_THOUSAND_TARGET: Final = 750
LAKE_TARGET: Final = 600
SCENARIO: Final[dict[str, Any]] = {
    "edits_per_hour": 12, "hours_per_day": 8, "receivers": 9, "tables": 1, "row_bytes": 300,
}  # fmt: skip
"""A device is connected day and night, and edits one cell every five minutes for eight hours a day;
nine others are sent it."""
CONNECTED: Final = (
    "keep-alives", "checks for missed broadcasts", "minutes of connections", "connections opened",
)  # fmt: skip
TENANTS: Final[dict[str, Any]] = {"devices": 10_000, "tenants": 1_000, "tables": 3}


def run() -> list[Entry]:
    """Give one entry for each figure."""
    return [
        _entry("idle_usd_month", IDLE_TARGET, _bill(devices=0)),
        _idle_connection(),
        _entry("cost_100_devices_usd", HUNDRED_TARGET, _bill(devices=100, **SCENARIO)),
        _entry("cost_10k_devices_usd", TEN_THOUSAND_TARGET, _bill(devices=10_000, **SCENARIO)),
        _lake(),
    ]


def _bill(**given: Any) -> Bill:
    return bill(described(given), REGION)


def _entry(name: str, target: float, billed: Bill) -> Entry:
    return at_most(name, billed.usd, "USD", target, _detail(billed))


def _detail(billed: Bill) -> str:
    """Return what the money is for, the dearest first."""
    dearest = sorted(billed.events, key=lambda event: -event[2])
    each = ", ".join(f"{what} ${usd:,.2f}" for what, _, usd in dearest if usd >= billed.usd / 100)
    return f"{each}; {REGION}, prices of {shipped().date}, without free tier"


def _idle_connection() -> Entry:
    with_one = _bill(devices=1, tenants=1, edits_per_hour=0)
    own = {what: usd for what, _, usd in with_one.events if what in CONNECTED}
    each = ", ".join(f"{what} ${usd:.4f}" for what, usd in own.items())
    return at_most(
        "idle_connection_usd_month", sum(own.values()), "USD", CONNECTION_TARGET,
        f"open for 30 days, nothing happens: {each}",
    )  # fmt: skip


def _lake() -> Entry:
    without = _bill(**TENANTS).usd
    billed = {layout: _bill(**TENANTS, lake=layout) for layout in ("small-batches", "glue-runs")}
    usd = {layout: one.usd - without for layout, one in billed.items()}
    lake = ("flushes", "merges into the lake", "maintenance of the lake")
    each = ", ".join(
        f"{what} ${cost:,.2f}" for what, _, cost in billed["small-batches"].events if what in lake
    )
    return at_most(
        "cost_1000_tenants_lake_usd", usd["small-batches"], "USD", LAKE_TARGET,
        f"what the lake adds for 1,000 tenants with 3 tables, flushed every 15 minutes, busy 8 "
        f"hours a day, written by functions, as a stack does by default: {each}; by Glue alone, "
        f"as before small batches were decided for each table, ${usd['glue-runs']:,.2f}",
    )  # fmt: skip
