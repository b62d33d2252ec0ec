"""What one small push and one pull of a reader that is up to date cost, by the model's bill."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from benchmarks.entries import at_most
from benchmarks.scale.devices import Device, pull_function, push_function, push_once
from benchmarks.scale.world import World
from lakesync.core.messages import Pull
from lakesync.gateway.admin import AdminService
from lakesync.runtime import wiring

if TYPE_CHECKING:
    from benchmarks.entries import Entry
    from benchmarks.scale.items import Bill
    from lakesync.core.messages import PullPage

GATEWAY: Final = "quiet"
TABLES: Final = 40
APART_MS: Final = 2_000
PULLS: Final = 10
PUSHES: Final = 10
EDITS: Final = 3
"""Of each table, before it is read: heads with room for entries would be full of them."""


def run() -> list[Entry]:
    """Measure, and give the figures."""
    with World(4) as world:
        push, (together, writes) = _push_entry(world), _pull_entries(world)
        apart, _ = _pull_entries(world, apart=True)
        return [push, together, apart, writes]


def _push_entry(world: World) -> Entry:
    function, device = push_function(world), Device(world, GATEWAY, 0)

    def push() -> None:
        for number in range(3 + PUSHES):
            if number == 3:
                before.append(world.dynamo.bill.copy())
            push_once(function, GATEWAY, device.edit(f"row{number % 2}"))
            world.sleep_ms(APART_MS)

    before: list[Bill] = []
    world.spawn(push)
    world.run_until(60_000)
    bill = world.dynamo.bill.since(before[0])
    detail = (
        f"an edit of five columns in a warm process, a row of less than 1 KB; with "
        f"{bill.read_units / PUSHES:.1f} read units"
    )
    return at_most("push_single_wru", bill.write_units / PUSHES, "WRU", 4.5, detail)


def _pull_entries(world: World, *, apart: bool = False) -> list[Entry]:
    """A gateway with 40 tables of the longest names, each written, and a reader that read all."""
    name = "current_pull_rru_40_tables" + "_apart" * apart
    gateway = f"{GATEWAY}40" + "-apart" * apart
    pushes, pulls = push_function(world), pull_function(world)
    device = Device(world, gateway, 1)
    tables = [f"{'t' * 62}{number:02}" for number in range(TABLES)]

    def prepare() -> None:
        admin = AdminService(
            world.buffer(), wall_clock=world.wall_clock, sleep_ms=world.sleep_ms,
            chance=wiring.Randomness(),
        )  # fmt: skip
        for number, table in enumerate(tables[1:] if apart else ()):
            admin.place_table(gateway, table, f"shard_{number}")
        for edit in range(EDITS):
            for table in tables:
                push = replace(device.edit(f"row{edit}", table), trusted=True)
                push_once(pushes, gateway, push)

    cursors = [0]

    def pull() -> None:
        def ask(since: int) -> PullPage:
            asked = Pull("reader", since=since, deltas_max=1_000)
            return pulls.over_http(lambda services: services[0].pull(gateway, asked))

        page = ask(0)
        while page.has_more:
            page = ask(page.cursor)
        world.sleep_ms(APART_MS)
        before.append(world.dynamo.bill.copy())
        for _ in range(PULLS):
            page = ask(page.cursor)
            assert not page.count
            world.sleep_ms(APART_MS)
        cursors.append(page.cursor)

    before: list[Bill] = []
    world.prepare(prepare)
    world.spawn(pull)
    world.run_until(world.now_ms() + 60_000)
    assert cursors[-1]
    bill = world.dynamo.bill.since(before[0])
    detail = (
        f"{TABLES} tables of 64 letters{', each in a shard of its own' * apart}, each written "
        f"{EDITS} times; a pull every {APART_MS / 1000:.0f} s"
    )
    return [
        at_most(name, bill.read_units / PULLS, "RRU", 2, detail),
        at_most("current_pull_wru", bill.write_units / PULLS, "WRU", 0, detail),
    ]
