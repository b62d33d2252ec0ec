"""A database in the lake's place: its tables are claimed there, and nowhere for the lake."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from lakesync.core.config import GatewayConfig
from lakesync.core.destinations import (
    destinations_from_json,
    destinations_to_json,
)
from lakesync.declare.destinations import destination_reader, read_destination
from lakesync.errors import Conflict, DestinationRefused
from tests.delivery.world import World
from tests.support.builders import at_ms, insert
from tests.support.gateways import GATEWAY

if TYPE_CHECKING:
    from lakesync.core.delta import Delta


def row(number: int, table: str = "todos") -> Delta:
    return insert(f"r{number}", at=at_ms(number), table=table, n=number)


def in_lake(world: World) -> set[str]:
    return {key.split("/")[2] for key, _ in world.objects.written if key.startswith("claims/")}


@pytest.mark.law("D20")
def test_gateway_with_a_database_instead_of_the_lake_writes_nothing_to_the_lake() -> None:
    world = World()
    world.declare("warehouse", lake=False)
    world.push(row(1), row(2, "notes"))
    world.flush()
    world.deliver()
    world.push(row(3), row(4, "later"))
    world.flush()
    world.deliver()

    assert in_lake(world) == set()
    assert world.lake.sent == [], "nothing starts a materialiser or a Glue run"
    world.check(name="warehouse")
    for table in ("todos", "notes", "later"):
        assert world.databases["warehouse"].rows_after(table, "", 9).unwrap().rows


@pytest.mark.law("D20")
def test_only_the_tables_named_by_the_destination_leave_the_lake() -> None:
    world = World()
    world.declare("warehouse", lake=False, tables=["todos"])
    world.declare("other")
    world.push(row(1), row(2, "notes"))
    world.flush()
    world.deliver()

    assert in_lake(world) == {"notes"}
    assert len(world.lake.sent) == 1
    world.check(name="other")


@pytest.mark.law("D20")
def test_tables_without_lake_stay_so_after_removal_and_fill_the_next_destination() -> None:
    world = World()
    world.declare("warehouse", lake=False)
    world.push(row(1))
    world.flush()
    world.deliver()
    world.destinations().remove(GATEWAY, "warehouse")
    world.push(row(2))
    world.flush()

    assert in_lake(world) == set()
    assert world.destinations().without_lake(GATEWAY) == ["*"]
    world.declare("next")
    world.deliver()
    world.check(name="next")
    assert set(world.databases["next"].rows_after("todos", "", 9).unwrap().rows) == {"r1", "r2"}


@pytest.mark.law("D20")
def test_destination_without_lake_is_refused_for_a_table_in_the_lake() -> None:
    world = World()
    world.push(row(1))
    world.flush()

    for tables in ([], ["todos"]):
        with pytest.raises(Conflict, match="todos is in the lake already"):
            world.declare("warehouse", lake=False, tables=tables)
        reads = destination_reader("w", {"kind": "mysql", "secret": "w", "lake": False})
        with pytest.raises(Conflict):
            world.destinations().check(GATEWAY, reads)
    world.declare("warehouse", lake=False, tables=["notes"])
    world.declare("warehouse", lake=False, tables=["notes"])
    world.push(row(2), row(3, "notes"))
    world.flush()
    world.declare("warehouse", lake=False, tables=["notes"])  # declaring it again stays safe

    assert in_lake(world) == {"todos"}
    with pytest.raises(Conflict, match="declared differently"):
        world.declare("warehouse", tables=["notes"])


@pytest.mark.parametrize(
    "body",
    [
        {"kind": "bigquery"},
        {"kind": "s3"},
        {"lake": "no"},
        {"lake": 0},
        {"buckets": [{"name": "b", "tables": ["todos"], "filters": []}]},
    ],
)
def test_destination_that_cannot_replace_the_lake_is_refused_with_its_path(
    body: dict[str, Any],
) -> None:
    declared = {"kind": "postgres", "secret": "w", "lake": False} | body
    with pytest.raises(DestinationRefused) as refused:
        read_destination("w", declared, GatewayConfig())

    assert "lake" in [fault.path for fault in refused.value.faults]


def test_lake_setting_is_stored_and_read_back_and_omitted_by_default() -> None:
    world = World()
    world.declare("plain")
    plain = destinations_to_json(world.buffer.destinations(GATEWAY))
    assert "noLake" not in plain
    [stored] = plain["destinations"]
    assert "lake" not in stored
    world.declare("warehouse", lake=False, tables=["todos"])
    declared = world.buffer.destinations(GATEWAY)

    read = destinations_from_json(destinations_to_json(declared))

    assert read == declared
    assert (read.by_name["warehouse"].lake, read.no_lake) == (False, frozenset({"todos"}))
