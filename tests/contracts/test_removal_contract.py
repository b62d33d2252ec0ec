"""What every store of a gateway's items promises: all of them are counted, and all of them go."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import boto3
import pytest

from lakesync.buffer.admin_stores import ItemConnectors, ItemHandlers
from lakesync.buffer.admission import ItemAccess, ItemQuotas
from lakesync.buffer.dynamo import DynamoBuffer
from lakesync.buffer.dynamo_items import DynamoItemStore, DynamoRemoval
from lakesync.buffer.memory_buffer import MemoryBuffer
from lakesync.buffer.memory_items import MemoryItemStore, MemoryRemoval
from lakesync.core.destinations import NO_DESTINATIONS, Destination
from lakesync.core.layout import MAIN_LANE
from lakesync.errors import GatewayDeleted
from lakesync.log.declare import Declare
from lakesync.maintenance.erasure import OBJECT_KINDS, Deleter
from lakesync.ports import DeliveryState, FlushState, HeadMoved, Quota, Revocation, Usage
from tests.support.builders import insert, push, update
from tests.support.commits import Writer
from tests.support.gateways import (
    SeededChance,
    administrator,
    pulled,
    pusher,
    real_wall_clock,
    really_sleep_ms,
)
from tests.support.lake import Objects
from tests.support.stores import TABLE

if TYPE_CHECKING:
    from lakesync.buffer.items import ItemStore
    from lakesync.ports import Buffer, GatewayItems
    from tests.support.stores import Address

EVENTS = {"table": "events", "append": True, "columns": [{"name": "n", "type": "number"}]}
KINDS = {
    "heads", "registry", "log", "rows", "marks", "flush", "clients", "users", "revocations",
    "quota", "destinations", "connectors", "actions",
}  # fmt: skip


@dataclass
class Stored:
    """The stores of one table."""

    buffer: Buffer
    items: GatewayItems
    side: ItemStore
    address: Address | None = None

    def __post_init__(self) -> None:
        self.access, self.quotas = ItemAccess(self.side), ItemQuotas(self.side)
        self.connectors, self.handlers = ItemConnectors(self.side), ItemHandlers(self.side)

    def deleter(self) -> Deleter:
        """Return what deletes a gateway."""
        declare = Declare(
            self.buffer, wall_clock=real_wall_clock, sleep_ms=really_sleep_ms,
            chance=SeededChance(),
        )  # fmt: skip
        return Deleter(
            self.buffer, self.items, self.access, Objects(), declare, wall_clock=real_wall_clock
        )

    def raw(self, gateway: str) -> list[tuple[str, str]]:
        """Return the keys of all items that bear a gateway's name, by reading the whole table."""
        assert self.address is not None
        client: Any = boto3.client(
            "dynamodb", region_name=self.address.region, endpoint_url=self.address.endpoint
        )
        pages = client.get_paginator("scan").paginate(TableName=TABLE, ConsistentRead=True)
        items = [(item["pk"]["S"], item["sk"]["S"]) for page in pages for item in page["Items"]]
        client.close()
        return sorted(
            (pk, sk) for pk, sk in items
            if gateway in pk.split("|")[:3] or (pk == "gateways" and sk == gateway)
        )  # fmt: skip


@pytest.fixture
def stored(store: str, request: pytest.FixtureRequest) -> Stored:
    """The stores of each implementation."""
    if store == "memory":
        memory, items = MemoryBuffer(), MemoryItemStore()
        return Stored(memory, MemoryRemoval(memory, items), items)
    if store == "model":
        modelled: Any = request.getfixturevalue("buffer")
        caller, address = modelled._call, None
    else:
        request.getfixturevalue("credentials")
        address = request.getfixturevalue("dynamodb_local")
        caller = address.caller()
    side = DynamoItemStore(TABLE, caller)
    return Stored(DynamoBuffer(TABLE, caller), DynamoRemoval(TABLE, caller), side, address)


def filled(stored: Stored, gateway: str, rows: int = 40) -> None:
    """Store something of every kind, more than one request removes."""
    admin = administrator(stored.buffer)
    admin.register_schema(gateway, EVENTS)
    admin.place_table(gateway, "hot", "hot")
    pushes = pusher(stored.buffer)
    for number in range(3):
        at = 10 * number + 1
        todos = [insert(f"r{n}", at=at, text="x" * 2_000, n=number) for n in range(rows)]
        pushes.push(gateway, push(*todos, insert("h", at=at, table="hot", n=number)))
    events = [insert(f"e{n}", at=1_000 + n, table="events", n=n) for n in range(3)]
    pushes.push(gateway, push(*events))
    stored.buffer.save_flush_state(gateway, FlushState(), FlushState(5))
    one = Destination("warehouse", "postgres", "warehouse")
    assert stored.buffer.save_destinations(gateway, NO_DESTINATIONS.with_one(one))
    for number in range(30):
        state = DeliveryState(number)
        stored.buffer.save_delivery_state(gateway, "warehouse", f"t{number}", state)
    for number in range(30):
        stored.buffer.save_flushed_table(gateway, f"t{number}", 5)
        stored.buffer.save_client_state(gateway, f"old-{number}", None, b"state")
        stored.access.bind(gateway, f"phone-{number}", "ann")
        stored.access.revoke(gateway, Revocation("user", f"bob-{number}", 1, "ops"))
    for number in range(30):
        assert stored.connectors.add(gateway, f"shop-{number}", b"definition", 1)
        assert stored.handlers.add(gateway, f"mail-{number}", b"definition", replace=False)
    stored.quotas.report(gateway, 1, Usage(1, 1, 1))
    stored.quotas.set_quota(gateway, Quota(5))


@pytest.mark.law("E1", "E3")
def test_deletion_counts_and_removes_items_of_all_kinds(stored: Stored, gateway: str) -> None:
    neighbour = f"{gateway}x"
    for name in (gateway, neighbour):
        filled(stored, name)
    config = stored.buffer.config(gateway)
    tables = {*config.tables, *config.schemas}
    before = stored.items.count(gateway, tables)
    assert set(before) == KINDS
    assert all(before.values()), before
    report = stored.deleter().delete(gateway, by="ops")

    assert report.is_gone
    assert set(report.left) == KINDS | set(OBJECT_KINDS)
    assert gateway not in stored.buffer.gateways()
    assert gateway not in stored.buffer.unflushed("", 1_000).gateways
    assert stored.items.count(neighbour, tables) == before
    assert len(pulled(stored.buffer, neighbour)) == 3 * 41 + 3


@pytest.mark.law("E3")
def test_deleted_gateway_leaves_only_its_tombstone_and_heads_in_the_table(
    stored: Stored, gateway: str
) -> None:
    if stored.address is None:
        pytest.skip("what is in memory, or in the model, has no table to read")
    filled(stored, gateway)
    assert len(stored.raw(gateway)) > 100
    stored.deleter().delete(gateway, by="ops")
    left = stored.raw(gateway)

    assert (f"{gateway}|config", "config") in left
    assert (f"|revoked|{gateway}", f"gateway|{gateway}") in left
    heads = [pk for pk, _ in left if pk.startswith((f"{gateway}|head|", f"{gateway}|heads"))]
    heads += [pk for pk, _ in left if pk == f"{gateway}|head"]
    assert len(heads) + 2 == len(left)


@pytest.mark.law("E1")
def test_writes_in_flight_are_refused_after_deletion(stored: Stored, gateway: str) -> None:
    filled(stored, gateway, rows=1)
    buffer = stored.buffer
    heads = buffer.heads(gateway)
    warm = pusher(buffer)
    warm.push(gateway, push(update("r0", at=500, n=9)))
    version = buffer.config(gateway).version
    late = [Writer(buffer, gateway, version, 1 << 62).prepare(lane) for lane in heads]
    stored.deleter().delete(gateway, by="ops")
    for commit in late:
        with pytest.raises(HeadMoved):
            buffer.commit(commit)
    main = heads[MAIN_LANE]
    assert not buffer.change_lanes(gateway, main, main.lanes.opening("hot", 4), main.commit + 1)
    with pytest.raises(GatewayDeleted):
        warm.push(gateway, push(update("r0", at=501, n=9)))

    assert not any(stored.deleter().delete(gateway, by="ops").left.values())


@pytest.mark.law("E2")
def test_a_slice_ends_when_its_time_is_up(stored: Stored, gateway: str) -> None:
    filled(stored, gateway)
    calls = 0
    while True:
        has_time = partial(next, iter([True] * (4 + 20 * calls)), False)
        report = stored.deleter().delete(gateway, by="ops", has_time=has_time)
        if report.finished:
            break
        calls += 1

    assert calls
    assert report.is_gone
