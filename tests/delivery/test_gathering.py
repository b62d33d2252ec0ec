"""BigQuery is written to as seldom as a day's quota wants, and has everything."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakesync.adapters.ledger_database import DELTAS_MAX
from lakesync.core.deliveries import GATHER_DELTAS_MAX, GATHER_MS, Batch, Pace, delivery_place
from lakesync.delivery.table_delivery import chained
from lakesync.errors import AdapterQuotaExceeded
from lakesync.result import Err
from tests.delivery.world import KeptDatabase, World
from tests.support.builders import at_ms, delete, insert, update
from tests.support.gateways import GATEWAY
from tests.support.lake import Killed, Life

if TYPE_CHECKING:
    from lakesync.adapters.database import Inserted, RowImages, TableBatch
    from lakesync.core.delta import Delta
    from lakesync.errors import LakeSyncError
    from lakesync.result import Result

DAY_MS = 86_400_000
MINUTE_MS = 60_000
CHANGES_A_DAY_MAX = 1_500
"""Of one table in BigQuery."""
MINE = [{"name": "mine", "tables": [], "filters": [{"column": "n", "op": "lt", "value": 40}]}]


class CountingDatabase(KeptDatabase):
    """A database that counts its writes, and may have no quota left."""

    def __init__(self) -> None:
        super().__init__()
        self.writes = 0
        self.has_quota = True

    def insert_deltas(self, batch: TableBatch) -> Result[Inserted, LakeSyncError]:
        self.writes += 1
        if not self.has_quota:
            return Err(AdapterQuotaExceeded("BigQuery: quota exceeded"))
        return super().insert_deltas(batch)

    def put_rows(self, images: RowImages) -> Result[Inserted, LakeSyncError]:
        self.writes += 1
        return super().put_rows(images)


class GatheringWorld(World):
    """A gateway with a destination whose batches are gathered."""

    def __init__(self, **body: Any) -> None:
        super().__init__()
        self.database = CountingDatabase()
        self.databases["warehouse"] = self.database
        self.declare(kind="bigquery", **body)
        self.deliver()
        self.time.now_ms += 2 * MINUTE_MS  # what it is filled with is visible
        self.sweep()
        self.time.now_ms += GATHER_MS
        self.database.writes = 0

    def once(self, life: Life | None = None) -> list[int]:
        """Handle what was announced once; gives in how many seconds messages come again."""
        again = []
        announced, self.deliveries.sent = self.deliveries.sent, []
        for body in announced:
            place = delivery_place(json.loads(body)["claim"])
            delivered = self.deliverer(life).deliver(place)
            if not delivered.finished:
                self.deliveries.sent.append(body)
                again.append(delivered.again_s)
        return again


def numbered(number: int) -> Delta:
    return insert(f"r{number}", at=at_ms(number), n=number)


@pytest.mark.law("D15")
def test_flush_per_minute_uses_at_most_half_of_the_daily_changes_quota() -> None:
    world = GatheringWorld()
    hours = 2
    for minute in range(hours * 60):
        world.push(numbered(minute))
        world.flush()
        world.once()
        world.time.now_ms += MINUTE_MS

    a_day = world.database.writes * 24 / hours
    assert 0 < a_day <= DAY_MS / GATHER_MS + 24 / hours
    assert DAY_MS / GATHER_MS <= CHANGES_A_DAY_MAX / 2
    world.time.now_ms += GATHER_MS
    world.once()
    world.check()


@pytest.mark.law("D15")
def test_gathered_batches_are_one_write_after_the_minimum_wait() -> None:
    world = GatheringWorld()
    world.push(numbered(0))
    world.flush()
    assert world.once() == [], "the first of all goes at once"
    for number in range(1, 6):
        world.push(numbered(number))
        world.flush()
    again = world.once()

    assert len(again) == 5
    assert max(again) <= GATHER_MS // 1000
    assert (world.database.writes, len(world.rows())) == (1, 1)
    world.time.now_ms += max(again) * 1000
    assert world.once() == []
    assert world.database.writes == 2
    world.check()


@pytest.mark.law("D15")
def test_full_write_is_not_delayed() -> None:
    world = GatheringWorld()
    world.push(numbered(0))
    world.flush()
    world.once()
    with patch("lakesync.core.deliveries.GATHERED", Pace(GATHER_MS, 4, 1_000_000, 10)):
        for number in range(1, 9):
            world.push(numbered(number))
            world.flush()
        assert world.once() == []

    assert world.database.writes == 3
    world.check()


@pytest.mark.law("D15")
def test_failed_write_counts_toward_the_pace() -> None:
    world = GatheringWorld()
    world.database.has_quota = False
    world.push(numbered(0))
    world.flush()
    with pytest.raises(AdapterQuotaExceeded):
        world.once()
    world.database.has_quota = True
    world.deliverer().sweep()
    world.once()
    place = delivery_place(world.waiting()[0])

    assert not world.deliverer().deliver(place).finished
    assert world.database.writes == 1
    world.time.now_ms += GATHER_MS
    assert world.deliverer().deliver(place).finished
    world.check()


@pytest.mark.law("D15", "D8")
def test_gathered_write_killed_anywhere_is_completed_later() -> None:
    for writes in range(1, 30):
        world = GatheringWorld()
        for number in range(4):
            world.push(numbered(number), update("r0", at=at_ms(50 + number), n=number))
            world.flush()
        life = Life(writes)
        try:
            world.once(life)
        except Killed:
            world.time.now_ms += GATHER_MS
            world.sweep()
            world.check()
            continue
        assert writes > 3
        return
    pytest.fail("it never came to its end")


@pytest.mark.law("D15", "D10")
def test_filtered_rows_are_gathered_into_one_write() -> None:
    world = GatheringWorld(buckets=MINE)
    for number in range(60):
        world.push(numbered(number))
    world.push(update("r1", at=at_ms(99), n=99), delete("r2", at=at_ms(100)))
    world.flush()
    with patch("lakesync.delivery.table_delivery.IMAGES_MAX", 5):
        world.once()

    assert world.database.writes == 1
    assert len(world.rows()) == 38
    world.check()


@pytest.mark.law("D15", "D8")
def test_filling_takes_at_most_four_writes() -> None:
    world = GatheringWorld()
    with patch("lakesync.delivery.table_delivery.ROWS_MAX", 3):
        for number in range(20):
            world.push(numbered(number))
        world.flush()
        world.destinations().backfill(GATEWAY, "warehouse")
        world.deliver()

    assert world.database.writes <= 4, "rows, what is to be removed, and the mark"
    world.check()


@given(data=st.data())
@settings(max_examples=50)
def test_chained_batches_continue_the_mark_without_a_gap(data: st.DataObject) -> None:
    ends = sorted(data.draw(st.sets(st.integers(1, 40), min_size=1, max_size=10)))
    sizes = [data.draw(st.integers(1, 9)) for _ in ends]
    batches = [
        Batch("", GATEWAY, "t", after, last, "", deltas, False, None, ())
        for after, last, deltas in zip([0, *ends], ends, sizes, strict=False)
    ]
    given_ = data.draw(st.permutations(batches))
    deltas_max = data.draw(st.integers(1, 20))
    run = chained(given_, 0, deltas_max)

    assert run == batches[: len(run)]
    assert len(run) == 1 or sum(batch.deltas for batch in run) <= deltas_max
    rest = batches[len(run) :]
    assert not rest or sum(batch.deltas for batch in [*run, rest[0]]) > deltas_max


def test_gathered_write_limit_equals_the_transaction_limit() -> None:
    assert GATHER_DELTAS_MAX == DELTAS_MAX
