"""What tables in shards of their own cost who reads and who writes, as it is said before."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import TYPE_CHECKING

import pytest

from lakesync.adapters.lake.parquet import ParquetEncoder
from lakesync.buffer.caller import DynamoCaller
from lakesync.buffer.dynamo import DynamoBuffer
from lakesync.core.clock import STAMP_MAX
from lakesync.core.layout import DEFAULT_SHARD, LANES_MAX, MAIN_LANE, SHARDS_MAX
from lakesync.core.messages import Pull
from lakesync.errors import ValidationFailed
from lakesync.log.lanes import IDLE_MS, pull_units, push_units
from lakesync.maintenance.flush import Flusher
from lakesync.maintenance.horizons import begin_epoch
from tests.support.builders import WALL_MS, at_ms, insert, push
from tests.support.gateways import GivenTime, administrator, puller, pusher
from tests.support.lake import Messages, Objects
from tests.support.lanes import open_lanes
from tests.support.modelled import LockedModel

if TYPE_CHECKING:
    from lakesync.core.clock import Stamp
    from lakesync.core.delta import Delta
    from lakesync.gateway.pull import PullService
    from lakesync.gateway.push import PushService

GATEWAY = "g"


@pytest.fixture
def model() -> LockedModel:
    return LockedModel()


def buffer_on(model: LockedModel) -> DynamoBuffer:
    caller = DynamoCaller("us-east-1", credentials=lambda: ("key", "secret", None), send=model)
    return DynamoBuffer("lakesync-buffer", caller)


def send(service: PushService, gateway: str, row: Delta) -> None:
    """Push one row, by who may have more tables without a schema than a user may."""
    receipt = service.push(gateway, replace(push(row), trusted=True))
    assert (receipt.accepted, receipt.outcomes) == (1, ())


@dataclass
class Apart:
    """A gateway whose tables are in shards of their own, all in use, and who reads it."""

    model: LockedModel
    shards: int
    gateway: str = GATEWAY
    shard: str = "s{}"
    rows: int = 0
    cursor: Stamp = 0

    def __post_init__(self) -> None:
        self.time = GivenTime(WALL_MS)
        self.buffer = buffer_on(self.model)
        self.admin = administrator(self.buffer, time_=self.time)
        self.pusher = pusher(self.buffer, time_=self.time)
        self.reader = puller(self.buffer, time_=self.time)
        self.tables: list[str] = []
        self.place(self.shards)

    def place(self, shards: int) -> None:
        """Put tables apart until there are so many shards."""
        for number in range(len(self.tables), shards):
            if number:
                self.admin.place_table(self.gateway, f"t{number}", self.shard.format(number))
            self.tables.append(f"t{number}")

    def said(self) -> int:
        return pull_units(self.gateway, self.admin.layout(self.gateway))

    def write(self, table: str, text_bytes: int = 24) -> float:
        """Push one edit; returns what it writes."""
        self.time.now_ms, self.rows = self.time.now_ms + 1, self.rows + 1
        before = self.model.dynamo.bill.write_units
        text = Random(f"{self.rows}").randbytes(text_bytes).hex()
        row = insert(f"r{self.rows % 7}", at=at_ms(self.rows), table=table, t=text)
        send(self.pusher, self.gateway, row)
        return self.model.dynamo.bill.write_units - before

    def read(self) -> float:
        """Pull until nothing is left, and once more; returns what that last pull reads."""
        self.time.now_ms += 1_000
        bill = self.model.dynamo.bill
        while True:
            read, written = bill.read_units, bill.write_units
            page = self.reader.pull(self.gateway, Pull("r", self.cursor, 1_000))
            self.cursor = page.cursor
            if not page.has_more and not page.count:
                assert bill.write_units == written
                return bill.read_units - read

    def write_and_read(self, rounds: int) -> float:
        """Write to each table and read, repeatedly; returns the most that a last pull reads."""
        most = 0.0
        for _ in range(rounds):
            for table in self.tables:
                self.write(table)
            most = max(most, self.read())
        return most

    def restore(self) -> None:
        """Begin an epoch, as of a buffer out of a backup."""
        begin_epoch(self.buffer, self.gateway, wall_clock=lambda: int(self.time.now_ms))
        self.time.now_ms += 10_000
        head = self.buffer.heads(self.gateway).get(MAIN_LANE)
        self.cursor = head.commit if head else 0
        self.reader = puller(self.buffer, time_=self.time)

    def flush(self) -> None:
        Flusher(self.buffer, Objects(), Messages(), ParquetEncoder(), Messages()).flush(
            self.gateway
        )


@pytest.mark.law("B18")
@pytest.mark.parametrize("shards", [1, 2, 5, 6, 9, 20, SHARDS_MAX])
def test_pull_without_news_reads_at_most_two_units_for_any_number_of_shards(
    model: LockedModel, shards: int
) -> None:
    apart = Apart(model, shards)

    assert apart.write_and_read(8) == apart.said() == min(shards, 2)

    apart.flush()
    assert apart.write_and_read(2) == apart.said()
    apart.time.now_ms += 2 * IDLE_MS
    apart.write("t0")
    apart.flush()
    assert apart.read() == 1


@pytest.mark.law("B18")
@pytest.mark.parametrize("is_restored", [False, True])
@pytest.mark.parametrize(
    ("shards", "gateway", "shard"),
    [
        (SHARDS_MAX, "g" * 16, "s{:05}"),
        (30, "00000000-0000-0000-0000-000000000000", "a_name_of_22_letters{:02}"),
        (20, "g" * 64, "s" * 30 + "{:02}"),
    ],
)
def test_pull_with_the_longest_shard_names_reads_at_most_two_units(
    model: LockedModel, shards: int, gateway: str, shard: str, *, is_restored: bool
) -> None:
    apart = Apart(model, shards, gateway, shard)
    if is_restored:
        apart.restore()
    for _ in range(2):
        apart.write_and_read(2)
        apart.flush()

    assert apart.said() == 2
    assert apart.write_and_read(2) <= 2


@pytest.mark.law("B18")
def test_table_placement_that_would_cost_a_third_read_unit_is_refused(model: LockedModel) -> None:
    apart = Apart(model, 1, "g" * 64, "s" * 30 + "{:02}")
    with pytest.raises(ValidationFailed, match="give the shard a shorter name, or put the table"):
        apart.place(SHARDS_MAX)
    shards = apart.admin.layout(apart.gateway).shards()
    assert 20 < len(shards) < SHARDS_MAX

    with pytest.raises(ValidationFailed, match="take 4,"):
        apart.admin.place_table(apart.gateway, "more", "s" * 32, dry_run=True)
    apart.admin.place_table(apart.gateway, "more", shards[-1])
    assert apart.admin.layout(apart.gateway).shards() == shards


@pytest.mark.law("B18")
def test_pull_from_a_restored_buffer_reads_the_predicted_units(model: LockedModel) -> None:
    apart = Apart(model, 36, "g" * 12, "shard_{}")
    apart.write_and_read(1)
    apart.restore()

    assert apart.write_and_read(3) == apart.said() == 2


@pytest.mark.law("B18")
@pytest.mark.law("B8")
def test_full_heads_are_read_and_emptied_once_shards_are_added(
    model: LockedModel,
) -> None:
    apart = Apart(model, 5)
    for _ in range(3):
        for table in apart.tables:
            apart.write(table)
    assert all(head.recent for head in apart.buffer.heads(GATEWAY).values())
    apart.place(SHARDS_MAX)

    page = apart.reader.pull(GATEWAY, Pull("r", 0, 1_000, at_least=STAMP_MAX))
    assert page.count == 15
    apart.cursor = page.cursor
    assert apart.write_and_read(1) == 2
    page = apart.reader.pull(GATEWAY, Pull("s", 0, 1_000))
    assert page.count == apart.rows == 15 + SHARDS_MAX


@pytest.mark.law("B18")
@pytest.mark.law("B14")
def test_heads_filled_by_another_release_are_read_and_emptied(
    model: LockedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    apart = Apart(model, SHARDS_MAX)
    with monkeypatch.context() as as_before:
        as_before.setattr("lakesync.log.push_parts.room_bytes", lambda *_: None)
        assert apart.write_and_read(5) > 2
    written = apart.rows

    page = puller(apart.buffer, time_=apart.time).pull(GATEWAY, Pull("s", 0, 1_000))
    assert page.count == written
    assert apart.write_and_read(1) == 2
    page = puller(apart.buffer, time_=apart.time).pull(GATEWAY, Pull("s", 0, 1_000))
    assert page.count == written + SHARDS_MAX


@pytest.mark.law("B18")
@pytest.mark.parametrize("shards", [2, 6, 8, 10, 14, 20, SHARDS_MAX])
def test_push_of_a_small_edit_writes_about_the_predicted_units(
    model: LockedModel, shards: int
) -> None:
    apart = Apart(model, shards)
    layout = apart.admin.layout(GATEWAY)
    for shard, table in [(DEFAULT_SHARD, "t0"), ("s1", "t1")]:
        for _ in range(8):
            apart.write(table)  # the first ones open lanes
        units = [apart.write(table) for _ in range(24)]
        assert sum(units) / 24 == pytest.approx(push_units(GATEWAY, shard, layout), abs=0.4)
    assert push_units(GATEWAY, "s1", layout) <= 6


@pytest.mark.parametrize("text_bytes", [0, 500, 3_000, 20_000])
def test_push_across_two_shards_writes_two_to_four_units_more(
    model: LockedModel, text_bytes: int
) -> None:
    time, bill = GivenTime(WALL_MS), model.dynamo.bill
    buffer = buffer_on(model)
    service = pusher(buffer, time_=time)
    units: dict[str, list[float]] = {}
    for at, shard in enumerate((DEFAULT_SHARD, "shard-side")):
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

    together, apart = units[DEFAULT_SHARD][1:], units["shard-side"][1:]  # the first ones open lanes
    assert min(apart) - min(together) >= 2
    assert 2 <= (sum(apart) - sum(together)) / len(together) <= 4


@pytest.mark.parametrize("lanes", [1, 2, 5, 8, 16, LANES_MAX])
def test_pull_without_news_of_forty_tables_reads_two_units_up_to_five_lanes(
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
        send(services[lane], GATEWAY, insert(f"r{made}", at=at_ms(made), table=table, t=text))

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
    """Return what a pull reads of who sees one table, while 30 pushes of 3 KB went to another.

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


def test_separate_shard_saves_read_units_only_in_processes_without_the_log_in_memory() -> None:
    together = pulled_units(LockedModel(), DEFAULT_SHARD)
    apart = pulled_units(LockedModel(), "side")

    assert 13 <= together[0] <= 19
    assert (together[1], *apart) == (1, 2, 2)
