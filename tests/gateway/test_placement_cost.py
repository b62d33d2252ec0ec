"""What tables in shards of their own cost who reads and who writes, as it is said before."""

from __future__ import annotations

from random import Random

import pytest

from lakesync.adapters.lake.parquet import ParquetEncoder
from lakesync.buffer.caller import DynamoCaller
from lakesync.buffer.dynamo import DynamoBuffer
from lakesync.core.layout import DEFAULT_SHARD, SHARDS_MAX
from lakesync.core.messages import Pull
from lakesync.log.lanes import IDLE_MS
from lakesync.maintenance.flush import Flusher
from lakesync.runtime.api.tables import _pull_units
from tests.support.builders import WALL_MS, at_ms, insert, push
from tests.support.gateways import GivenTime, administrator, puller, pusher
from tests.support.lake import Messages, Objects
from tests.support.modelled import LockedModel

GATEWAY = "g"


@pytest.fixture
def model() -> LockedModel:
    return LockedModel()


def buffer_on(model: LockedModel) -> DynamoBuffer:
    caller = DynamoCaller("us-east-1", credentials=lambda: ("key", "secret", None), send=model)
    return DynamoBuffer("lakesync-buffer", caller)


@pytest.mark.parametrize("shards", [1, 2, 6, SHARDS_MAX])
def test_a_pull_reads_what_was_said_while_shards_are_in_use_and_one_unit_when_they_are_idle(
    model: LockedModel, shards: int
) -> None:
    time, bill = GivenTime(WALL_MS), model.dynamo.bill
    buffer = buffer_on(model)
    admin, service = administrator(buffer, time_=time), pusher(buffer, time_=time)
    tables = ["t0", *(f"t{number}" for number in range(1, shards))]
    for number, table in enumerate(tables[1:], 1):
        admin.place_table(GATEWAY, table, f"s{number}")
    said = _pull_units(admin.layout(GATEWAY))
    reader = puller(buffer, time_=time)
    cursor, most = 0, 0.0
    for place in range(8):  # entries gather in heads, and move into the log
        for number, table in enumerate(tables):
            time.now_ms += 1
            text = f"{number * 7919 + place * 104729:x}" * 12
            service.push(GATEWAY, push(insert(f"r{place}", at=at_ms(place), table=table, t=text)))
        time.now_ms += 1_000
        cursor = reader.pull(GATEWAY, Pull("r", cursor, 1_000)).cursor
        before = bill.read_units
        page = reader.pull(GATEWAY, Pull("r", cursor, 1_000))
        assert (page.count, page.has_more) == (0, False)
        most = max(most, bill.read_units - before)

    assert said / 2 <= most <= said
    time.now_ms += 2 * IDLE_MS
    service.push(GATEWAY, push(insert("late", at=at_ms(9), table="t0", t="")))
    Flusher(buffer, Objects(), Messages(), ParquetEncoder(), Messages()).flush(GATEWAY)
    cursor = reader.pull(GATEWAY, Pull("r", cursor)).cursor
    before = bill.read_units
    reader.pull(GATEWAY, Pull("r", cursor))
    assert bill.read_units - before == 1


@pytest.mark.parametrize("text_bytes", [0, 500, 3_000, 20_000])
def test_a_push_that_touches_another_shard_writes_two_to_four_units_more(
    model: LockedModel, text_bytes: int
) -> None:
    time, bill = GivenTime(WALL_MS), model.dynamo.bill
    buffer = buffer_on(model)
    service = pusher(buffer, time_=time)
    units: dict[str, list[float]] = {}
    for at, shard in enumerate((DEFAULT_SHARD, "side")):
        administrator(buffer, time_=time).place_table(GATEWAY, "notes", shard)
        units[shard] = []
        for place in range(41):
            time.now_ms += 1_000
            before = bill.write_units
            both = [
                insert(
                    f"{at}-{place}",
                    at=at_ms(100 * at + place),
                    table=table,
                    t=Random(f"{table}{place}").randbytes(text_bytes // 2).hex(),
                )
                for table in ("todos", "notes")
            ]
            service.push(GATEWAY, push(*both))
            units[shard].append(bill.write_units - before)

    together, apart = units[DEFAULT_SHARD][1:], units["side"][1:]  # the first ones open lanes
    assert min(apart) - min(together) >= 2
    assert 2 <= (sum(apart) - sum(together)) / len(together) <= 4
