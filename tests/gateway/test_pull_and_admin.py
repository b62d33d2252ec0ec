"""Pages that keep commits whole and stay within their bounds; administration while busy."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from lakesync.buffer.memory_buffer import MemoryBuffer
from lakesync.core.clock import STAMP_MAX
from lakesync.core.messages import Pull
from lakesync.errors import Contention, CursorExpired, ValidationFailed
from lakesync.log.lanes import Limits
from lakesync.ports import HeadMoved
from tests.support.builders import WALL_MS, at_ms, insert, push
from tests.support.gateways import (
    GATEWAY,
    GatewayWorld,
    GivenTime,
    administrator,
    deltas_of,
    pages,
    puller,
    pusher,
)
from tests.support.lanes import open_lanes

if TYPE_CHECKING:
    from lakesync.core.clock import Stamp
    from lakesync.core.config import GatewayConfig
    from lakesync.core.layout import Lanes
    from lakesync.ports import Head

MINE = {"column": "owner", "op": "eq", "value": "jwt:sub"}


def fill(world: GatewayWorld, commits: int, deltas: int, text: str = "") -> None:
    for number in range(commits):
        made = [
            insert(f"r{number}-{place}", at=at_ms(number, place), n=text) for place in range(deltas)
        ]
        world.send(*made)


# --- pages


@pytest.mark.law("B9")
@pytest.mark.parametrize("deltas_max", [1, 9, 10, 11, 25, 1_000])
def test_page_exceeds_its_limit_by_less_than_one_commit(
    world: GatewayWorld, deltas_max: int
) -> None:
    fill(world, commits=7, deltas=10)

    counts = [page.count for page in pages(world.buffer, GATEWAY, deltas_max=deltas_max)]

    assert sum(counts) == 70
    assert all(count % 10 == 0 for count in counts)
    assert all(deltas_max <= count < deltas_max + 10 for count in counts[:-1])


def test_a_page_stays_within_its_bytes_unless_one_commit_is_larger(world: GatewayWorld) -> None:
    fill(world, commits=20, deltas=2, text="x" * 10_000)
    service = world.puller(limits=Limits(page_bytes_max=50_000))
    tiny = world.puller(limits=Limits(page_bytes_max=1_000))

    page = service.pull(GATEWAY, Pull("r", deltas_max=1_000))

    assert (page.count, page.has_more) == (4, True)
    assert sum(map(len, page.records)) <= 50_000
    assert tiny.pull(GATEWAY, Pull("r", deltas_max=1_000)).count == 2


def test_an_empty_gateway_gives_an_empty_page(world: GatewayWorld) -> None:
    page = world.page()

    assert (page.records, page.cursor, page.has_more) == ((), 0, False)


@pytest.mark.parametrize("limit", [0, -1, 10_001])
def test_a_limit_out_of_bounds_is_refused(world: GatewayWorld, limit: int) -> None:
    with pytest.raises(ValidationFailed) as result:
        world.page(deltas_max=limit)

    assert result.value.field == "limit"


def test_cursor_below_the_trim_above_the_log_or_of_another_epoch_is_expired() -> None:
    class Restored(MemoryBuffer):
        def heads(
            self, gateway: str, since: Stamp = 0, *, at_once: bool = False
        ) -> dict[str, Head]:
            heads = super().heads(gateway, since, at_once=at_once)
            return {lane: replace(head, epoch="e.2", trimmed=100) for lane, head in heads.items()}

    world = GatewayWorld(Restored())
    fill(world, commits=1, deltas=1)
    service = world.pulls
    top = service.pull(GATEWAY, Pull("r", since=100))
    assert (top.epoch, top.count) == ("e.2", 1)

    for pull in (
        Pull("r", since=99),
        Pull("r", since=top.cursor + 1),
        Pull("r", since=top.cursor, epoch="e.1"),
        Pull("r", since=top.cursor, epoch="e"),
    ):
        with pytest.raises(CursorExpired):
            service.pull(GATEWAY, pull)
    assert service.pull(GATEWAY, Pull("r", since=top.cursor, epoch="e.2")).count == 0


@pytest.mark.law("B7")
def test_edit_with_an_old_stamp_reaches_a_client_that_pulled_since(world: GatewayWorld) -> None:
    world.send(insert("new", at=at_ms(50_000), n=1))
    cursor = world.page().cursor
    old = insert("old", at=1, client="offline", n=1)

    world.send(old)

    assert deltas_of(world.page(since=cursor)) == [old]


@pytest.mark.law("B7")
def test_a_process_with_a_slow_clock_commits_above_every_cursor(world: GatewayWorld) -> None:
    world.admin.place_table(GATEWAY, "notes", "side")
    slow = pusher(world.buffer, seed=1, time_=GivenTime(WALL_MS))
    slow.push(GATEWAY, push(insert("s1", at=at_ms(1), table="notes", n=1)))
    world.time.now_ms += 60_000
    fill(world, commits=1, deltas=1)
    cursor = world.page().cursor
    late = insert("s2", at=at_ms(2), table="notes", n=1)

    slow.push(GATEWAY, push(late))

    assert deltas_of(world.page(since=cursor)) == [late]


@pytest.mark.parametrize(("size", "asked_for"), [(10, 0), (5_000, 1)])
def test_pull_reads_the_log_only_of_lanes_whose_head_lacks_new_entries(
    world: GatewayWorld, size: int, asked_for: int
) -> None:
    fill(world, commits=1, deltas=1)
    open_lanes(world.buffer, GATEWAY, 8)
    cursor = world.page(at_least=STAMP_MAX).cursor
    late = insert("late", at=at_ms(9), n="x" * size)
    world.send(late)
    asked: list[str] = []

    class Watched(MemoryBuffer):
        def __getattribute__(self, name: str) -> object:
            asked.append(name)
            return getattr(world.buffer, name)

    page = puller(Watched(), time_=world.time).pull(GATEWAY, Pull("r", cursor, at_least=STAMP_MAX))
    assert deltas_of(page) == [late]
    assert asked.count("entries") == asked_for


# --- administration


@pytest.mark.law("B6")
@pytest.mark.parametrize("lanes", [1, 3])
def test_configuration_changes_although_pushes_move_heads_constantly(lanes: int) -> None:
    class Busy(MemoryBuffer):
        """Somebody commits between any two calls of the administrator."""

        pushed = 1

        def save_config(
            self, gateway: str, config: GatewayConfig, seen: Head | None, lanes: Lanes, to: Stamp,
            *, epoch: str = "",
        ) -> None:  # fmt: skip
            if config.layout.moves == 2:
                world.time.now_ms += 20
                number = int(world.time.now_ms)
                mine = insert(f"busy{number}", at=at_ms(number - WALL_MS), table="busy", n=1)
                world.pusher().push(gateway, push(mine))
                self.pushed += 1
            super().save_config(gateway, config, seen, lanes, to, epoch=epoch)

    buffer = Busy()
    world = GatewayWorld(buffer)
    world.admin.place_table(GATEWAY, "todos", "hot")
    first = insert("r1", at=at_ms(1), table="busy", n=1)
    world.send(first)
    before = world.buffer.config(GATEWAY).version
    open_lanes(world.buffer, GATEWAY, lanes)

    assert world.admin.place_table(GATEWAY, "notes", "side").version == before + 1
    assert world.buffer.heads(GATEWAY)["main"].lanes.open() == ["main"]
    assert len(world.pulled()) == buffer.pushed > 1


def test_configuration_change_that_always_loses_the_race_fails_with_contention() -> None:
    class Stubborn(MemoryBuffer):
        def save_config(self, *_: object, **__: object) -> None:
            raise HeadMoved({})

    with pytest.raises(Contention):
        GatewayWorld(Stubborn()).admin.place_table(GATEWAY, "todos", "hot")


def test_registering_a_schema_or_placing_a_table_again_changes_nothing(world: GatewayWorld) -> None:
    schema = {"table": "todos", "columns": [{"name": "n", "type": "integer"}]}
    for _ in range(2):
        world.admin.register_schema(GATEWAY, schema)
        world.admin.place_table(GATEWAY, "todos", "hot")

    assert world.buffer.config(GATEWAY).version == 2


def test_metrics_list_visible_tables_to_a_client_and_all_to_an_administrator(
    world: GatewayWorld,
) -> None:
    for table in ("todos", "salaries", "orders"):
        column = {"name": "owner", "type": "string"}
        world.admin.register_schema("g", {"table": table, "columns": [column]})
    world.admin.place_table("g", "salaries", "salaries")
    world.admin.place_table("g", "orders", "orders")
    for table in ("salaries", "orders"):
        world.pusher().push("g", push(insert("r1", at=at_ms(1), table=table)))
    of_all = world.admin.metrics("g")
    assert of_all["tables"] == ["orders", "salaries", "todos"]
    assert world.admin.metrics("g", {"sub": "c1"}) == of_all  # there are no rules

    mine = [{"column": "owner", "op": "eq", "value": "jwt:sub"}]
    paid = [{"column": "owner", "op": "eq", "value": "jwt:payroll"}]
    buckets = [
        {"name": "mine", "tables": ["todos", "orders"], "filters": mine},
        {"name": "paid", "tables": ["salaries"], "filters": paid},
    ]
    world.admin.save_rules("g", {"buckets": buckets})
    metrics = world.admin.metrics("g", {"sub": "c1"})

    assert "salaries" not in json.dumps(metrics)
    assert metrics["tables"] == ["orders", "todos"]
    assert metrics.keys() == {"gateway", "tables", "headHlc"}
    assert world.admin.metrics("g", {"payroll": "c1"})["tables"] == ["salaries"]
    assert world.admin.metrics("g")["tables"] == of_all["tables"]


@pytest.mark.law("U9")
@pytest.mark.parametrize("rules", [
    {"buckets": [{"name": "mine", "tables": ["todos"], "filters": [MINE]}]},
    {"buckets": [], "omit": [{"tables": ["todos"], "columns": ["salary"]}]},
])  # fmt: skip
def test_metrics_do_not_tell_a_client_the_size_of_hidden_rows(
    world: GatewayWorld, rules: dict[str, Any]
) -> None:
    admin, pushes = world.admin, world.pusher()
    admin.save_rules(GATEWAY, rules)
    sizes: list[dict[str, object]] = []
    for number, size in enumerate((1, 10_000)):
        hidden = insert(f"r{number}", at=at_ms(number), owner="other", salary="x" * size)
        pushes.push(GATEWAY, replace(push(hidden), trusted=True))
        sizes.append(admin.metrics(GATEWAY, {"sub": "c1"}))
    by_name = [{**each, "headHlc": "0"} for each in sizes]

    assert by_name[0] == by_name[1]
    page = world.page(client="c1", claims={"sub": "c1"})
    assert sizes[1]["headHlc"] == str(page.cursor)


def test_concurrent_changes_of_two_administrators_are_both_saved(world: GatewayWorld) -> None:
    class Interleaved(MemoryBuffer):
        """Another administrator is quicker, once."""

        def __init__(self) -> None:
            super().__init__()
            self.quicker = True

        def save_config(
            self, gateway: str, config: GatewayConfig, seen: Head | None, lanes: Lanes, to: Stamp,
            *, epoch: str = "",
        ) -> None:  # fmt: skip
            if self.quicker:
                self.quicker = False
                administrator(self, time_=world.time).place_table(gateway, "notes", "side")
            super().save_config(gateway, config, seen, lanes, to, epoch=epoch)

    interleaved = Interleaved()
    config = administrator(interleaved, time_=world.time).place_table(GATEWAY, "todos", "hot")

    assert config.version == 2
    assert config.layout.tables.keys() == {"todos", "notes"}
    assert world.buffer.config(GATEWAY).version == 0
