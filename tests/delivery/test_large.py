"""Who has a table's next write in BigQuery, a function or a job with Spark, is decided by size.

What the job then does with real Spark: ``tests/glue/test_bigquery_job.py``.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakesync.adapters.lake.parquet import read_batch
from lakesync.core.deliveries import GATHER_MS, Batch, DeliveryPlace
from lakesync.core.destinations import Destination
from lakesync.delivery.deliverer import Deliverer, JobRuns, is_large, large_places
from lakesync.delivery.table_delivery import TableDelivery
from lakesync.ports import DeliveryState
from tests.delivery.world import World
from tests.support.builders import at_ms, insert
from tests.support.gateways import GATEWAY

if TYPE_CHECKING:
    from tests.support.lake import Life

LARGE = 3
PLACE = DeliveryPlace(GATEWAY, "warehouse", "todos")


class SharedWorld(World):
    """A gateway whose function leaves to a job what is large."""

    def __init__(self, kind: str = "bigquery", **body: Any) -> None:
        super().__init__()
        self.runs = 0
        self.declare(kind=kind, **body)
        self.deliver()

    def put(self, first: int, count: int) -> None:
        """Push and flush a batch of inserts."""
        self.push(*(insert(f"r{n}", at=at_ms(n), n=n) for n in range(first, first + count)))
        self.flush()

    def deliverer(self, life: Life | None = None) -> Deliverer:
        del life
        return Deliverer(
            self.buffer, self.objects, self.deliveries, read_batch=read_batch,
            open_database=lambda _, to: self.databases[to.secret],
            wall_clock=self.time.wall_clock,
            table_delivery=partial(TableDelivery, large=JobRuns(LARGE, self._start)),
        )  # fmt: skip

    def _start(self) -> None:
        self.runs += 1

    def of_job(self) -> list[DeliveryPlace]:
        return large_places(self.buffer, self.objects, LARGE)


@pytest.mark.law("D17")
def test_large_table_is_left_to_a_job_and_a_run_is_requested() -> None:
    world = SharedWorld()
    world.put(1, 2)
    world.deliver()
    assert world.runs == 0
    world.check()

    world.put(10, LARGE)
    assert world.of_job() == [PLACE]
    waiting = world.waiting()
    world.time.now_ms += GATHER_MS
    world.deliver()
    assert (world.runs, world.waiting()) == (1, waiting)
    assert len(world.rows()) == 2


@pytest.mark.law("D17")
@pytest.mark.parametrize(
    "body",
    [
        {"kind": "postgres"},
        {
            "buckets": [
                {
                    "name": "few",
                    "tables": [],
                    "filters": [{"column": "n", "op": "lt", "value": 99}],
                }
            ]
        },
    ],
)
def test_other_database_kinds_and_filtered_tables_are_written_by_the_function(
    body: dict[str, Any],
) -> None:
    world = SharedWorld(**body)
    world.put(1, 2 * LARGE)

    assert world.of_job() == []
    world.deliver()
    assert world.runs == 0
    world.check()


@pytest.mark.law("D17")
def test_after_a_failed_try_the_function_writes_and_the_next_batches_go_to_the_job() -> None:
    world = SharedWorld()
    world.put(1, LARGE)
    failed = DeliveryState(0, 0, "ADAPTER_REFUSED: the role is not trusted", int(world.time.now_ms))
    world.buffer.save_delivery_state(*PLACE, failed)

    assert world.of_job() == []
    world.deliver()
    assert world.runs == 0
    world.check()
    world.put(10, LARGE)
    assert world.of_job() == [PLACE]


@pytest.mark.law("D17")
def test_table_to_be_filled_is_written_by_the_function() -> None:
    world = SharedWorld()
    world.put(1, LARGE)
    world.destinations().backfill(GATEWAY, "warehouse")
    world.deliverer().deliver(PLACE._replace(table=""))

    assert world.of_job() == []
    world.deliver()
    assert world.runs == 0
    world.check()


@pytest.mark.law("D17")
def test_paused_and_removed_destinations_are_left_out_of_the_job() -> None:
    world = SharedWorld()
    world.put(1, LARGE)
    world.destinations().set_paused(GATEWAY, "warehouse", paused=True)
    assert world.of_job() == []
    world.destinations().set_paused(GATEWAY, "warehouse", paused=False)
    assert world.of_job() == [PLACE]
    world.objects.put_object(f"deliveries/{GATEWAY}/gone/todos/1-2.json", b"{}", "text/plain")
    world.objects.put_object("deliveries/what", b"{}", "text/plain")
    assert world.of_job() == [PLACE]


@pytest.mark.law("D17")
@given(deltas=st.lists(st.integers(0, 10), max_size=5), deltas_min=st.integers(0, 20))
def test_table_is_large_from_the_minimum_number_of_deltas(
    deltas: list[int], deltas_min: int
) -> None:
    batches = [
        Batch("", "g", "t", n, n + 1, "", count, append=False, schema=None, columns=())
        for n, count in enumerate(deltas)
    ]
    to = Destination("w", "bigquery", "w")

    large = is_large(to, DeliveryState(), "t", batches, deltas_min)
    assert large == (deltas_min > 0 and sum(deltas) >= deltas_min)
    assert not is_large(to, DeliveryState(error="it failed"), "t", batches, deltas_min)
    assert not is_large(Destination("w", "postgres", "w"), DeliveryState(), "t", batches, 1)
