"""Deletion of a gateway: nothing after it, nothing left of it, whenever whoever does it dies."""

from __future__ import annotations

from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakesync.adapters.lake.parquet import ParquetEncoder
from lakesync.buffer.admin_stores import ItemConnectors, ItemHandlers
from lakesync.buffer.admission import ItemAccess, ItemQuotas
from lakesync.buffer.memory_buffer import MemoryBuffer
from lakesync.buffer.memory_items import MemoryItemStore, MemoryRemoval
from lakesync.checkpoint.store import Checkpoints
from lakesync.core.destinations import NO_DESTINATIONS, Destination
from lakesync.core.layout import MAIN_LANE
from lakesync.core.messages import Pull
from lakesync.errors import GatewayDeleted, LakeSyncError, NotFound
from lakesync.gateway.access import Access
from lakesync.gateway.pull import PullService
from lakesync.gateway.push import PushService
from lakesync.log.declare import Declare
from lakesync.maintenance.checkpoint_upkeep import Builder
from lakesync.maintenance.erasure import QUIET_MS, Deleter
from lakesync.maintenance.flush import Flusher, due_gateways
from lakesync.maintenance.horizons import Trimmer
from lakesync.ports import GATEWAY_KIND, DeliveryState, Quota, Revocation, Usage
from tests.support.builders import WALL_MS, insert, push, update
from tests.support.gateways import Administrator, GivenTime, SeededChance, pulled, pusher
from tests.support.lake import Killed, Life, Messages, Objects
from tests.support.steps import SteppedBuffer, Steps

if TYPE_CHECKING:
    from collections.abc import Callable

    from lakesync.maintenance.erasure import DeletionReport

OTHERS = ("g", "g1x", "G1")
EVENTS = {
    "table": "events",
    "append": True,
    "columns": [{"name": "n", "type": "number"}],
}


class World:
    """Some gateways with everything that can be stored of one."""

    def __init__(self) -> None:
        self.buffer, self.side = MemoryBuffer(), MemoryItemStore()
        self.access, self.quotas = ItemAccess(self.side), ItemQuotas(self.side)
        self.connectors, self.handlers = ItemConnectors(self.side), ItemHandlers(self.side)
        self.objects, self.time = Objects(), GivenTime(WALL_MS)
        for gateway in ("g1", *OTHERS):
            one = Destination("warehouse", "postgres", "warehouse")
            self.buffer.save_destinations(gateway, NO_DESTINATIONS.with_one(one))
            self.buffer.save_delivery_state(gateway, "warehouse", "todos", DeliveryState(1))
        self.flusher = Flusher(self.buffer, self.objects, Messages(), ParquetEncoder(), Messages())
        for gateway in ("g1", *OTHERS):
            self._fill(gateway)

    def _fill(self, gateway: str) -> None:
        clock = self.time.wall_clock
        chance = SeededChance()
        admin = Administrator(
            self.buffer, wall_clock=clock, sleep_ms=self.time.sleep_ms, chance=chance
        )
        admin.register_schema(gateway, EVENTS)
        admin.place_table(gateway, "hot", "hot")
        pushes = pusher(self.buffer, time_=self.time)
        for number, table in enumerate(("todos", "hot", "events")):
            pushes.push(gateway, push(insert(at=number + 1, table=table, n=1)))
            # More than lies in a head.
            large = insert("r1", at=number + 100, table="todos", text="x" * 20_000)
            pushes.push(gateway, push(large))
        self.flusher.flush(gateway)
        self.time.now_ms += 600_000
        checkpoints = Checkpoints(self.objects)
        Builder(self.buffer, self.objects, checkpoints, wall_clock=clock).build(gateway)
        pushes.push(gateway, push(insert("r2", at=9, n=2)))
        self.buffer.save_client_state(gateway, "old", None, b"state")
        self.access.bind(gateway, "phone", "ann")
        self.access.revoke(gateway, Revocation("user", "bob", 1, "ops"))
        self.quotas.report(gateway, 1, Usage(1, 1, 1))
        self.quotas.set_quota(gateway, Quota(5))
        self.connectors.add(gateway, "shop", b"{}", 1)
        self.handlers.add(gateway, "mail", b"{}", replace=False)
        self.objects.put_object(f"connectors/{gateway}/shop/ranges/1", b"{}", "application/json")
        self.objects.put_object(f"attachments/{gateway}/0-1-5", b"bytes", "image/png")

    @property
    def items(self) -> MemoryRemoval:
        return MemoryRemoval(self.buffer, self.side)

    def deleter(self, life: Life | None = None) -> Deleter:
        """Return what deletes, as a process that may die has it."""
        of: Callable[[Any], Any] = life.of if life else lambda port: port
        buffer = of(self.buffer)
        declare = Declare(
            buffer, wall_clock=self.time.wall_clock, sleep_ms=self.time.sleep_ms,
            chance=SeededChance(),
        )  # fmt: skip
        items = MemoryRemoval(buffer, of(self.side))
        return Deleter(
            buffer, items, of(self.access), of(self.objects), declare,
            wall_clock=self.time.wall_clock,
        )  # fmt: skip

    def all_left(self, gateway: str) -> dict[str, int]:
        """Count without any help of what deletes."""
        keys = [key for key in self.objects.bodies if f"/{gateway}/" in key]
        return {**self.items.count(gateway, ()), "objects": len(keys)}


def asked(world: World, gateway: str) -> dict[str, Callable[[], object]]:
    clock = world.time.wall_clock
    checkpoints = Checkpoints(world.objects)
    admin = Administrator(
        world.buffer, wall_clock=clock, sleep_ms=world.time.sleep_ms, chance=SeededChance()
    )
    return {
        "push": lambda: pusher(world.buffer, time_=world.time).push(gateway, push(update(at=50))),
        "pull": lambda: PullService(world.buffer, wall_clock=clock).pull(gateway, Pull("reader")),
        "schema": lambda: admin.register_schema(gateway, {**EVENTS, "table": "more"}),
        "place": lambda: admin.place_table(gateway, "todos", "cold"),
        "build": lambda: Builder(
            world.buffer, world.objects, checkpoints, wall_clock=clock
        ).build(gateway),
        "let in": lambda: Access(world.access, wall_clock=clock).check_user(gateway, "ann"),
    }  # fmt: skip


@pytest.mark.law("E1", "E3")
def test_deletion_removes_all_data_of_a_gateway_and_none_of_others() -> None:
    world = World()
    before = {gateway: world.all_left(gateway) for gateway in OTHERS}
    assert all(world.all_left("g1").values()), "every kind is there"
    report = world.deleter().delete("g1", by="ops")

    assert report.is_gone
    assert report.left.keys() >= {"log", "rows", "users", "checkpoints", "staging", "claims"}
    assert not any(world.all_left("g1").values())
    assert {gateway: world.all_left(gateway) for gateway in OTHERS} == before
    assert world.buffer.gateways() == sorted(OTHERS)
    assert {delta.row_id for delta in pulled(world.buffer, "g1x")} == {"r1", "r2"}


@pytest.mark.law("E1")
@pytest.mark.parametrize("name", ["push", "pull", "schema", "place", "build", "let in"])
def test_requests_to_a_deleted_gateway_are_refused_and_store_nothing(name: str) -> None:
    world = World()
    world.deleter().delete("g1", by="ops")
    with pytest.raises(GatewayDeleted, match="deleted for good"):
        asked(world, "g1")[name]()
    asked(world, "g1x")[name]()

    assert not any(world.all_left("g1").values())


@pytest.mark.law("E1")
def test_flush_and_trim_skip_a_deleted_gateway() -> None:
    world = World()
    world.deleter().delete("g1", by="ops")

    assert world.flusher.flush("g1").batches == 0
    assert Trimmer(world.buffer, wall_clock=world.time.wall_clock, keep_ms=0).trim("g1").finished
    assert "g1" not in due_gateways(world.buffer)
    assert not any(world.all_left("g1").values())


@pytest.mark.law("E1")
def test_push_of_a_warm_process_to_a_deleted_gateway_is_refused() -> None:
    world = World()
    warm = pusher(world.buffer, time_=world.time)
    warm.push("g1", push(insert("r3", at=10, table="hot", n=1)))
    world.deleter().delete("g1", by="ops")
    for delta in (update("r3", at=11, table="hot", n=2), insert("new", at=12, table="hot")):
        with pytest.raises(GatewayDeleted):
            warm.push("g1", push(delta))

    assert not any(world.all_left("g1").values())


@pytest.mark.law("E1")
def test_id_of_a_deleted_gateway_is_never_reused() -> None:
    world = World()
    world.deleter().delete("g1", by="ops")
    world.time.now_ms += 100 * QUIET_MS
    report = world.deleter().delete("g1", by="another")

    assert report.is_gone
    assert report.deleted_ms + QUIET_MS == report.final_ms < world.time.now_ms
    assert [each.by for each in world.access.revocations("g1")] == ["ops"]
    with pytest.raises(GatewayDeleted):
        asked(world, "g1")["push"]()


def test_records_left_of_a_deleted_gateway_hold_no_data() -> None:
    world = World()
    world.deleter().delete("g1", by="ops")
    config = world.buffer.config("g1")

    assert sorted(config.tables) == ["events", "hot", "todos"]
    assert not any(config.tables.values())
    assert not config.schemas
    assert all(not head.recent for head in world.buffer.all_heads("g1").values())
    assert [each.kind for each in world.access.revocations("g1")] == [GATEWAY_KIND]


def test_deletion_of_an_unknown_gateway_is_refused() -> None:
    world = World()
    with pytest.raises(NotFound):
        world.deleter().delete("nowhere", by="ops")
    assert world.buffer.config("nowhere").version == 0

    world.access.bind("polled", "phone", "ann")
    assert world.deleter().delete("polled", by="ops").is_gone
    assert not any(world.all_left("polled").values())


@pytest.mark.law("E2")
@pytest.mark.parametrize("last_happens", [False, True])
def test_deletion_killed_at_any_write_is_completed_by_the_next(*, last_happens: bool) -> None:
    for writes in count():
        world = World()
        try:
            world.deleter(Life(writes, last_happens=last_happens)).delete("g1", by="ops")
        except Killed:
            if writes:
                with pytest.raises(GatewayDeleted):
                    asked(world, "g1")["push"]()
            assert world.deleter().delete("g1", by="ops").is_gone
            assert not any(world.all_left("g1").values())
        else:
            break

    assert writes > 15, "it was killed between all of them"


@pytest.mark.law("E2")
def test_deletion_out_of_time_is_completed_later() -> None:
    world = World()
    for budget in count():
        has_time = partial(next, iter([True] * budget), False)
        report = world.deleter().delete("g1", by="ops", has_time=has_time)
        if report.finished:
            break
        assert (report.left, report.is_gone) == ({}, False)

    assert budget > 5
    assert world.deleter().delete("g1", by="ops").is_gone
    assert not any(world.all_left("g1").values())


@pytest.mark.law("E1")
@given(st.lists(st.integers(0, 63), max_size=200))
def test_no_push_is_committed_after_a_concurrent_deletion(choices: list[int]) -> None:
    steps = Steps(choices)
    buffer, side, objects = SteppedBuffer(steps), MemoryItemStore(), Objects()
    access = ItemAccess(side)
    accepted: list[int] = []
    refused: list[str] = []
    at_deletion: list[int] = []

    def writer(name: str, ahead_ms: int) -> Callable[[], None]:
        service = PushService(
            buffer, wall_clock=steps.wall_clock(ahead_ms), sleep_ms=steps.sleep_ms,
            chance=SeededChance(ahead_ms),
        )  # fmt: skip

        def run() -> None:
            for number in range(6):
                table = f"t{number % 2}"
                delta = insert(f"{name}{number}", at=number + 1, client=name, table=table, n=1)
                try:
                    service.push("g1", push(delta, client=name))
                    accepted.append(len(buffer.commits))
                except LakeSyncError as error:
                    refused.append(error.code)

        return run

    def delete() -> None:
        clock = steps.wall_clock(-50)
        declare = Declare(buffer, wall_clock=clock, sleep_ms=steps.sleep_ms, chance=SeededChance())
        items = MemoryRemoval(buffer, side)
        deleter = Deleter(buffer, items, access, objects, declare, wall_clock=clock)
        reports.append(deleter.delete("g1", by="ops"))

    def check() -> None:
        if buffer._gateways["g1"].config.deleted_ms:
            at_deletion.append(len(buffer.commits))
            assert at_deletion[0] == at_deletion[-1], "something was committed after"

    reports: list[DeletionReport] = []
    PushService(
        buffer, wall_clock=steps.wall_clock(), sleep_ms=steps.sleep_ms, chance=SeededChance(9)
    ).push("g1", push(insert("first", at=1)))
    steps.run([writer("a", 0), writer("b", 80), delete, writer("c", -80)], check)

    assert reports[0].deleted_ms
    assert set(refused) <= {"GATEWAY_DELETED", "CONTENTION", "UNAVAILABLE"}
    items = MemoryRemoval(buffer, side)
    assert not any(items.count("g1", ()).values())
    assert len(accepted) + len(refused) == 18
    assert buffer.heads("g1")[MAIN_LANE].recent == ()
