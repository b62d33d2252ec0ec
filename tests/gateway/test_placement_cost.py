"""What tables in shards of their own cost who reads and who writes, as it is said before."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

import pytest

from lakesync.adapters.lake.parquet import ParquetEncoder
from lakesync.buffer.caller import DynamoCaller
from lakesync.buffer.dynamo import DynamoBuffer
from lakesync.core.clock import STAMP_MAX
from lakesync.core.layout import DEFAULT_SHARD, LANES_MAX, SHARDS_MAX
from lakesync.core.messages import Pull
from lakesync.log.lanes import IDLE_MS
from lakesync.maintenance.flush import Flusher
from lakesync.runtime.api.tables import _pull_units
from tests.support.builders import WALL_MS, at_ms, insert, push
from tests.support.gateways import GivenTime, administrator, puller, pusher
from tests.support.lake import Messages, Objects
from tests.support.lanes import open_lanes
from tests.support.modelled import LockedModel

if TYPE_CHECKING:
    from lakesync.gateway.pull import PullService

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


@pytest.mark.parametrize("lanes", [1, 2, 5, 8, 16, LANES_MAX])
def test_a_current_reader_of_forty_tables_reads_two_units_while_five_lanes_are_open(
    model: LockedModel, lanes: int
) -> None:
    """By tables of the longest names; a head with entries is less than a KB, so four are a unit."""
    time, bill = GivenTime(WALL_MS), model.dynamo.bill
    services = [pusher(buffer_on(model), seed=n, time_=time) for n in range(lanes)]
    tables = [f"{'t' * 62}{number:02}" for number in range(40)]
    made = 0

    def write(lane: int, table: str) -> None:
        nonlocal made
        time.now_ms, made = time.now_ms + 1, made + 1
        text = Random(f"{made}").randbytes(40).hex()
        services[lane].push(GATEWAY, push(insert(f"r{made}", at=at_ms(made), table=table, t=text)))

    for table in tables:
        write(0, table)
    names = open_lanes(buffer_on(model), GATEWAY, lanes)
    for service, name in zip(services, names, strict=True):
        service._committer._row_cache.gateway(GATEWAY).lanes[DEFAULT_SHARD] = name
    reader = puller(buffer_on(model), time_=time)
    cursor, most = 0, 0.0
    for place in range(9):  # entries gather in heads, and move into the log
        for lane in range(lanes):
            write(lane, tables[(place + lane) % 40])
        time.now_ms += 1_000
        cursor = reader.pull(GATEWAY, Pull("r", cursor, 1_000, at_least=STAMP_MAX)).cursor
        read, written = bill.read_units, bill.write_units
        page = reader.pull(GATEWAY, Pull("r", cursor, 1_000))
        assert (page.count, page.has_more, bill.write_units) == (0, False, written)
        most = max(most, bill.read_units - read)

    assert most <= 1 + -(-(lanes - 1) // 4)
    assert most <= 2 or lanes > 5


HIDDEN_PUSHES = 30
TODOS_ALONE = [
    {"name": "everybody", "tables": ["todos"], "filters": []},
    {
        "name": "few",
        "tables": ["events"],
        "filters": [{"column": "team", "op": "eq", "value": "jwt:team"}],
    },
]


def pulled_units(model: LockedModel, shard: str) -> tuple[float, float]:
    """Give what a pull reads of who sees one table, while 30 pushes of 3 KB went to another.

    Returns:
        By a process that was not asked lately, and by one that just served a reader of both tables.
    """
    time, bill = GivenTime(WALL_MS), model.dynamo.bill
    buffer = buffer_on(model)
    admin, service = administrator(buffer, time_=time), pusher(buffer, time_=time)
    admin.save_rules(GATEWAY, {"buckets": TODOS_ALONE})
    admin.place_table(GATEWAY, "events", shard)
    service.push(GATEWAY, push(insert("r", at=at_ms(0), table="todos", n=1)))
    few = {"team": "few"}
    seen = insert("e", at=at_ms(1), table="events", team="few", t="")
    service.push(GATEWAY, replace(push(seen), claims=few))
    time.now_ms += 1_000
    first = puller(buffer_on(model), time_=time).pull(GATEWAY, Pull("r", at_least=STAMP_MAX))
    for place in range(HIDDEN_PUSHES):
        time.now_ms += 1_000
        text = Random(f"{place}").randbytes(1_500).hex()
        event = insert(f"e{place}", at=at_ms(2 + place), table="events", team="few", t=text)
        service.push(GATEWAY, replace(push(event), claims=few))
    time.now_ms += 1_000

    def units(reader: PullService, asked: Pull) -> float:
        before, page = bill.read_units, reader.pull(GATEWAY, asked)
        assert not page.has_more
        return bill.read_units - before

    asked = Pull("r", first.cursor, 1_000, scope=first.scope)
    warm = puller(buffer_on(model), time_=time)
    config_units = 1  # a process that is new reads the configuration
    by_new = units(puller(buffer_on(model), time_=time), asked) - config_units
    assert units(warm, replace(asked, claims=few, scope="")) > 0
    return by_new, units(warm, asked)


def test_a_shard_of_its_own_pays_only_for_a_process_that_reads_it_for_nobody_else() -> None:
    together = pulled_units(LockedModel(), DEFAULT_SHARD)
    apart = pulled_units(LockedModel(), "side")

    assert 13 <= together[0] <= 19
    assert (together[1], *apart) == (1, 2, 2)
