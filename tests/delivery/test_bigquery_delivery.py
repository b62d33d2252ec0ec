"""A gateway's rows arrive in BigQuery: the delivery of every destination, into its emulator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from lakesync.core.deliveries import GATHER_MS
from lakesync.core.schema import schema_to_json
from lakesync.testing.database_contract import schema
from tests.delivery.world import World
from tests.support.bigquery import BigQueryDestination, bigquery_destination
from tests.support.builders import at_ms, delete, insert, update
from tests.support.destinations import (
    new_table,
)
from tests.support.gateways import GATEWAY

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tools.local_stack.bigquery import BigQueryServer

SEEN = [{"name": "few", "tables": [], "filters": [{"column": "n", "op": "lt", "value": 10}]}]


@pytest.fixture
def dataset(bigquery: BigQueryServer) -> Iterator[BigQueryDestination]:
    dataset = bigquery_destination(bigquery)
    yield dataset
    dataset.close()


def world_of(dataset: BigQueryDestination, table: str, **body: Any) -> World:
    world = World()
    world.databases["warehouse"] = dataset.adapter(GATEWAY + table)  # type: ignore[assignment]
    world.declare(kind="bigquery", tables=[table], **body)
    return world


def register(world: World, table: str) -> None:
    typed = schema(table, {"n": "integer", "title": "string"})
    world.admin.register_schema(GATEWAY, schema_to_json(typed))


def later(world: World) -> None:
    world.time.now_ms += GATHER_MS
    world.sweep()


@pytest.mark.law("D8", "D10", "D15")
@pytest.mark.emulator
def test_bigquery_destination_is_filled_follows_and_removes_filtered_rows(
    dataset: BigQueryDestination,
) -> None:
    table = new_table()
    world = world_of(dataset, table, buckets=SEEN)
    register(world, table)
    world.push(*(insert(f"r{n}", at=at_ms(n), table=table, n=n) for n in (1, 2, 3, 20)))
    world.flush()
    world.deliver()
    assert dataset.rows(table, "n") == {"r1": (1,), "r2": (2,), "r3": (3,)}

    world.push(
        update("r1", at=at_ms(30), table=table, title="now"),
        update("r2", at=at_ms(31), table=table, n=11),
        update("r20", at=at_ms(32), table=table, n=4),
        delete("r3", at=at_ms(33), table=table),
    )
    world.flush()
    world.push(insert("r5", at=at_ms(34), table=table, n=5))
    world.flush()
    later(world)

    assert dataset.rows(table, "n", "title") == {
        "r1": (1, "now"), "r20": (4, None), "r5": (5, None),
    }  # fmt: skip
    world.check(table)


@pytest.mark.law("D8", "D9", "P7")
@pytest.mark.emulator
def test_refused_row_is_counted_and_a_backfill_restores_missing_rows(
    dataset: BigQueryDestination,
) -> None:
    table = new_table()
    world = world_of(dataset, table)
    world.deliver()
    world.time.now_ms += GATHER_MS
    world.push(insert("r1", at=at_ms(1), table=table, n=1))
    world.push(insert("bad", at=at_ms(2), table=table, n="written before it had a type"))
    register(world, table)
    world.flush()
    later(world)
    state = world.buffer.delivery_states(GATEWAY, "warehouse")[table]
    assert (state.dead_letters, state.error) == (1, "")
    assert dataset.rows(table, "n") == {"r1": (1,)}

    world.push(update("bad", at=at_ms(3), table=table, n=2))
    world.flush()
    dataset.run(f"DELETE FROM {table} WHERE TRUE")  # noqa: S608 - ours
    world.destinations().backfill(GATEWAY, "warehouse")
    world.deliver()
    later(world)

    assert world.buffer.delivery_states(GATEWAY, "warehouse")[table].dead_letters == 0
    assert dataset.rows(table, "n")["bad"] == (2,)
    world.check(table)
