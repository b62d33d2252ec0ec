"""Flushing: every committed delta is announced exactly as it was, whatever dies in between."""

from __future__ import annotations

import io
import json
from collections import Counter
from contextlib import suppress
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

from lakesync.adapters.lake.parquet import ParquetEncoder
from lakesync.core.deliveries import claims_of_message, tables_of_message
from lakesync.errors import AdapterFailed, Backpressure
from lakesync.log import declare
from lakesync.log.lanes import Limits
from lakesync.maintenance import flush
from lakesync.maintenance import flush as run
from lakesync.maintenance.flush import Flusher, due_gateways
from tests.support.builders import WALL_MS, at_ms, insert, push, update
from tests.support.gateways import GATEWAY, GatewayWorld, GivenTime
from tests.support.lake import Killed, Life, Messages, Objects, unflushed
from tests.support.some import some

if TYPE_CHECKING:
    from lakesync.core.delta import Delta

Batch = dict[str, Any]


class Lake(GatewayWorld):
    """A gateway with data in it, and a lake to flush it to."""

    def __init__(self) -> None:
        super().__init__(time=GivenTime(WALL_MS))
        self.objects = Objects()
        self.queue, self.deliveries = Messages(), Messages()

    def fill(self, count: int = 6, *, first: int = 0, atomic: bool = False) -> None:
        """Push edits of three tables in several commits."""
        for number in range(first, first + count):
            self.time.now_ms += 10
            table = ("todos", "notes", "Private")[number % 3]
            mine = [
                insert(f"r{number}", at=at_ms(number), table=table, n=number),
                update(f"s{number % 2}", at=at_ms(number, 1), table="todos", Title="\u00e9"),
            ]
            self.send(*mine, atomic=atomic)

    def flusher(self, life: Life | None = None) -> Flusher:
        life = life or Life(float("inf"))
        return Flusher(
            life.of(self.buffer), life.of(self.objects), life.of(self.queue), ParquetEncoder(),
            life.of(self.deliveries),
        )  # fmt: skip

    def announced(self) -> dict[str, Batch]:
        """Return each announced batch by its object; the same one again must be the same."""
        batches: dict[str, Batch] = {}
        for key in chain.from_iterable(map(claims_of_message, self.queue.sent)):
            batch = json.loads(self.objects.bodies[key])
            assert batches.setdefault(batch["object"], batch) == batch
        return batches

    def rows(self) -> list[dict[str, Any]]:
        return [
            row | {"table": batch["table"]}
            for batch in self.announced().values()
            for row in pq.read_table(io.BytesIO(self.objects.bodies[batch["object"]])).to_pylist()
        ]

    def check(self) -> None:
        """Hold the lake against the log: all deltas, once each; batches without gaps."""
        logged = self.pulled(deltas_max=10_000)
        assert Counter(row["_delta_id"] for row in self.rows()) == ids(logged)
        by_table: dict[str, list[tuple[int, int]]] = {}
        for batch in self.announced().values():
            span = int(batch["after"]), int(batch["last"])
            by_table.setdefault(batch["table"], []).append(span)
        for spans in by_table.values():
            spans.sort()
            assert spans[0][0] == 0
            assert all(before[1] == after[0] for before, after in pairwise(spans))


def ids(deltas: list[Delta]) -> Counter[str]:
    return Counter(delta.delta_id for delta in deltas)


@pytest.fixture
def lake() -> Lake:
    lake = Lake()
    lake.fill()
    return lake


@pytest.mark.law("D1")
def test_flush_announces_every_committed_delta_once(lake: Lake) -> None:
    report = lake.flusher().flush(GATEWAY)

    assert (report.batches, report.finished) == (3, True)
    assert report.deltas == len(lake.rows())
    lake.check()
    assert unflushed(lake.buffer, GATEWAY) == 0


def test_batch_announcement_describes_its_object_range_and_schema(lake: Lake) -> None:
    schema = {"table": "notes", "columns": [{"name": "n", "type": "integer"}]}
    lake.admin.register_schema(GATEWAY, schema)
    lake.flusher().flush(GATEWAY)
    batch = next(batch for batch in lake.announced().values() if batch["table"] == "notes")
    body = lake.objects.bodies[batch["object"]]

    assert batch["gateway"] == GATEWAY
    assert batch["deltas"] == 2
    assert batch["bytes"] == len(body)
    assert batch["schema"]["columns"] == [{"name": "n", "type": "integer", "nullable": True}]
    assert batch["object"] == f"staging/{GATEWAY}/notes/{0:020d}-{int(batch['last']):020d}.parquet"
    claim = f"claims/{GATEWAY}/notes/{0:020d}-{int(batch['last']):020d}.json"
    assert json.loads(lake.objects.bodies[claim]) == batch


@pytest.mark.law("S3")
def test_claim_carries_the_newest_schema(lake: Lake) -> None:
    """Pushes go on between the changes: what was pushed under an older one needs the newer too."""
    columns: list[dict[str, object]] = []
    for number, kind in enumerate(("null", "integer", "timestamp")):
        columns.append({"name": f"c{number}", "type": kind})
        schema = {"table": "grown", "columns": list(columns), "partition": []}
        lake.admin.register_schema(GATEWAY, schema)
        value = "2024-01-01T00:00:00Z" if kind == "timestamp" else None
        columns_written: dict[str, Any] = {f"c{number}": value}
        delta = insert(f"g{number}", at=at_ms(number, 7), table="grown", **columns_written)
        assert lake.send(delta).accepted == 1

    lake.flusher().flush(GATEWAY)

    [batch] = [
        announced for announced in lake.announced().values() if announced["table"] == "grown"
    ]
    assert batch["schema"]["version"] == 3
    assert [column["type"] for column in batch["schema"]["columns"]] == [
        "null", "integer", "timestamp",
    ]  # fmt: skip
    assert batch["deltas"] == 3


def test_each_row_of_a_batch_equals_its_delta(lake: Lake) -> None:
    lake.flusher().flush(GATEWAY)
    logged = {delta.delta_id: delta for delta in lake.pulled()}

    for batch in some(lake.announced().values()):
        rows = pq.read_table(io.BytesIO(lake.objects.bodies[batch["object"]])).to_pylist()
        for row in some(rows):
            delta = logged[row["_delta_id"]]
            assert (row["_op"], row["_row_id"]) == (delta.op.name, delta.row_id)
            assert (row["_client_id"], row["_hlc"]) == (delta.client_id, delta.hlc)
            columns = {name: value.decode() for name, value in delta.columns}
            assert {n: row[lake_name] for n, lake_name in batch["columns"].items()} == {
                name: columns.get(name) for name in batch["columns"]
            }


@pytest.mark.law("D2")
@pytest.mark.parametrize("last_happens", [False, True])
@pytest.mark.parametrize("writes", range(15))
def test_killed_flush_is_repeated_with_the_same_names_and_bytes(
    lake: Lake, writes: int, *, last_happens: bool
) -> None:
    quiet = Lake()
    quiet.fill()
    quiet.flusher().flush(GATEWAY)

    died = False
    try:
        lake.flusher(Life(writes, last_happens=last_happens)).flush(GATEWAY)
    except Killed:
        died = True
    lake.fill(3, first=6)  # life goes on before anybody notices
    lake.flusher().flush(GATEWAY)

    assert died == (writes < 13)
    lake.check()
    for key, body in some(lake.objects.written):
        assert lake.objects.bodies[key] == body
    if 1 <= writes < 14 or (writes == 0 and last_happens):
        assert quiet.objects.bodies.items() <= lake.objects.bodies.items()
    assert unflushed(lake.buffer, GATEWAY) == 0
    assert due_gateways(lake.buffer) == []


@pytest.mark.law("D2")
def test_repeatedly_killed_flush_is_completed(lake: Lake) -> None:
    for writes in [3, 0, 2, 1, 3, 5, 2, 3]:
        with pytest.raises(Killed):
            lake.flusher(Life(writes)).flush(GATEWAY)

    lake.flusher().flush(GATEWAY)

    lake.check()


def tables_of(lake: Lake) -> list[str]:
    """Return the tables that were announced so far, in order of name."""
    return sorted({batch["table"] for batch in lake.announced().values()})


@pytest.mark.law("D18")
def test_flush_of_one_table_leaves_the_others_for_the_next_flush(lake: Lake) -> None:
    report = lake.flusher().flush(GATEWAY, table="notes")

    assert (report.batches, report.deltas, report.finished) == (1, 2, True)
    assert tables_of(lake) == ["notes"]
    assert unflushed(lake.buffer, GATEWAY) > 0
    assert due_gateways(lake.buffer) == [GATEWAY]
    assert lake.flusher().flush(GATEWAY, table="notes").batches == 0
    assert lake.flusher().flush(GATEWAY, table="nothing").batches == 0
    assert lake.flusher().flush(GATEWAY, table="Private").batches == 1
    assert tables_of(lake) == ["Private", "notes"]

    lake.flusher().flush(GATEWAY)

    lake.check()
    assert unflushed(lake.buffer, GATEWAY) == 0


@pytest.mark.law("D18")
def test_second_flush_of_a_table_first_finishes_the_open_range(lake: Lake) -> None:
    lake.flusher().flush(GATEWAY, table="notes")
    lake.fill(6, first=6)

    report = lake.flusher().flush(GATEWAY, table="notes")

    assert report.batches == 3, "the two that the first range still owed, and the table's next"
    lake.flusher().flush(GATEWAY)
    lake.check()


@pytest.mark.law("D18")
def test_flush_of_a_table_without_new_deltas_records_no_range(lake: Lake) -> None:
    lake.flusher().flush(GATEWAY)
    before = lake.buffer.flush_state(GATEWAY)
    lake.send(insert("r9", at=at_ms(99), table="todos", n=9))

    assert lake.flusher().flush(GATEWAY, table="notes").batches == 0
    assert lake.buffer.flush_state(GATEWAY) == before
    assert lake.flusher().flush(GATEWAY, lambda: False, table="todos").finished is False


@pytest.mark.law("D18")
@pytest.mark.parametrize("writes", range(6))
def test_killed_flush_of_one_table_is_repeated_by_any_flush(lake: Lake, writes: int) -> None:
    died = False
    try:
        lake.flusher(Life(writes)).flush(GATEWAY, table="todos")
    except Killed:
        died = True
    assert died == (writes < 5)
    lake.fill(3, first=6)
    if writes % 2:
        lake.flusher().flush(GATEWAY, table="notes")
    lake.flusher().flush(GATEWAY)

    lake.check()
    for key, body in some(lake.objects.written):
        assert lake.objects.bodies[key] == body
    assert due_gateways(lake.buffer) == []


@pytest.mark.law("D3")
@pytest.mark.parametrize("pause", range(13))
def test_two_concurrent_flushes_announce_the_same_batches(lake: Lake, pause: int) -> None:
    class Paused(Life):
        """Lets another flush run whole in the middle of this one."""

        def step(self, act: Any) -> Any:
            def call(*arguments: Any) -> Any:
                self._left -= 1
                if self._left == -1:
                    lake.fill(3, first=6)
                    lake.flusher().flush(GATEWAY)
                return act(*arguments)

            return call

    lake.flusher(Paused(pause)).flush(GATEWAY)
    lake.flusher().flush(GATEWAY)

    lake.check()
    for key, body in some(lake.objects.written):
        assert lake.objects.bodies[key] == body
    assert unflushed(lake.buffer, GATEWAY) == 0


@pytest.mark.law("D3")
@pytest.mark.parametrize("pause", range(13))
def test_flush_loses_nothing_when_a_table_moves_to_another_shard_meanwhile(
    lake: Lake, pause: int
) -> None:
    class Moved(Life):
        def step(self, act: Any) -> Any:
            def call(*arguments: Any) -> Any:
                self._left -= 1
                if self._left == -1:
                    lake.admin.place_table(GATEWAY, "todos", "hot")
                    lake.fill(6, first=6)
                    with pytest.raises(Killed):
                        lake.flusher(Life(3)).flush(GATEWAY)
                return act(*arguments)

            return call

    lake.flusher(Moved(pause)).flush(GATEWAY)
    lake.flusher().flush(GATEWAY)

    lake.check()


def test_a_large_log_is_flushed_range_by_range(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "RANGE_BYTES_MAX", 500)
    monkeypatch.setattr(run, "_SLICE_DELTAS_MAX", 2)
    lake.admin.place_table(GATEWAY, "todos", "hot")
    lake.fill(30, first=6)

    report = lake.flusher().flush(GATEWAY)

    assert report.batches > 10
    lake.check()


def test_flush_out_of_time_stops_between_ranges_and_continues_later(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "RANGE_BYTES_MAX", 500)
    monkeypatch.setattr(run, "_SLICE_DELTAS_MAX", 2)
    time = iter([True, False])

    report = lake.flusher().flush(GATEWAY, lambda: next(time))

    assert not report.finished
    assert 0 < report.deltas < len(lake.pulled())
    assert due_gateways(lake.buffer) == [GATEWAY]
    assert lake.flusher().flush(GATEWAY).finished
    lake.check()


def test_flush_of_an_idle_gateway_writes_nothing(lake: Lake) -> None:
    lake.flusher().flush(GATEWAY)
    written = len(lake.objects.written)

    report = lake.flusher().flush(GATEWAY)

    assert (report.batches, report.deltas) == (0, 0)
    assert len(lake.objects.written) == written
    assert due_gateways(lake.buffer) == []
    assert lake.flusher().flush("never-used").batches == 0


@pytest.mark.law("D5")
@pytest.mark.parametrize("range_bytes_max", [10, 500, 1_000_000])
def test_recorded_range_is_finished_after_the_layout_and_bounds_change(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, range_bytes_max: int
) -> None:
    lake.fill(30, first=6)
    with pytest.raises(Killed):
        lake.flusher(Life(3)).flush(GATEWAY)
    until = lake.buffer.flush_state(GATEWAY).until
    assert until
    lake.admin.place_table(GATEWAY, "todos", "hot")
    lake.admin.place_table(GATEWAY, "notes", "cold")
    lake.fill(30, first=36)
    monkeypatch.setattr(run, "RANGE_BYTES_MAX", range_bytes_max)
    monkeypatch.setattr(run, "_SLICE_DELTAS_MAX", 2)

    assert lake.flusher().flush(GATEWAY).finished

    lake.check()
    ends = {int(batch["last"]) for batch in lake.announced().values()}
    afters = {int(batch["after"]) for batch in lake.announced().values()}
    assert not any(after < until < end for after in afters for end in ends if after >= end)
    assert unflushed(lake.buffer, GATEWAY) == 0


@pytest.mark.law("D5")
def test_ranges_are_the_same_for_every_layout(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(run, "RANGE_BYTES_MAX", 2_000)
    monkeypatch.setattr(run, "_SLICE_DELTAS_MAX", 2)
    layouts: list[dict[str, str]] = [
        {},
        {"todos": "hot"},
        {"todos": "a", "notes": "b", "Private": "c"},
    ]
    sizes = []
    for layout in layouts:
        lake = Lake()
        for table, shard in layout.items():
            lake.admin.place_table(GATEWAY, table, shard)
        lake.fill(40, atomic=True)
        lake.flusher().flush(GATEWAY)
        lake.check()
        sizes.append([batch["deltas"] for batch in lake.announced().values()])

    assert sizes[0] == sizes[1] == sizes[2]
    assert len(sizes[0]) > 10


@pytest.mark.law("D5")
def test_range_size_is_bounded_over_all_shards(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "RANGE_BYTES_MAX", 2_000)
    monkeypatch.setattr(run, "_SLICE_DELTAS_MAX", 2)
    lake.admin.place_table(GATEWAY, "todos", "hot")
    lake.fill(60, first=6)
    ranges = []
    real = flush.rows_of

    def rows_of(entries: Any) -> Any:
        ranges.append(list(entries))
        return real(ranges[-1])

    monkeypatch.setattr(run, "rows_of", rows_of)
    lake.flusher().flush(GATEWAY)

    sizes = [sum(len(entry.records) for entry in entries) for entries in ranges]
    largest = max(len(entry.records) for entries in ranges for entry in entries)
    assert len(sizes) > 5
    assert max(sizes) < 2_000 + 2 * largest  # a commit here is in two shards at the most
    lake.check()


@pytest.mark.law("D5")
def test_many_tables_are_flushed_in_several_ranges_and_killed_flushes_make_progress(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(run, "RANGE_TABLES_MAX", 20)
    lake = Lake()
    tables = [f"table{number}" for number in range(100)]
    for start in range(0, 100, 10):
        mine = [insert(f"r{t}", at=at_ms(start), table=t, n=1) for t in tables[start : start + 10]]
        lake.send(*mine, trusted=True)

    deaths = 0
    while True:
        try:
            report = lake.flusher(Life(30)).flush(GATEWAY)
        except Killed:
            deaths += 1
            continue
        break

    assert report.finished
    assert 10 < deaths < 25  # 5 ranges of 20 tables with 4 writes each: none begins over and over
    assert set(lake.buffer.flushed_tables(GATEWAY)) == set(tables)
    lake.check()


@pytest.mark.law("D5")
def test_sparse_columns_split_a_batch_by_its_number_of_cells(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(flush, "BATCH_CELLS_MAX", 400)
    lake = Lake()
    for number in range(100):
        columns: dict[str, Any] = {f"c{number}": number}
        lake.send(insert(f"r{number}", at=at_ms(number), **columns))

    lake.flusher().flush(GATEWAY)

    batches = list(lake.announced().values())
    assert [batch["deltas"] for batch in batches] == [20] * 5
    assert all(len(batch["columns"]) == 20 for batch in batches)
    lake.check()


def test_announcement_is_small_even_for_a_large_claim(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """SQS takes 256 KB; a claim may be larger."""
    for bound in ("TABLE_COLUMNS_MAX", "CLIENT_COLUMNS_MAX", "CLIENT_TABLE_COLUMNS_MAX"):
        monkeypatch.setattr(declare, bound, 5_000)
    monkeypatch.setattr(declare, "DECLARED_BYTES_MAX", 1_000_000)
    lake = Lake()
    for number in range(10):
        columns: dict[str, Any] = {f"{'column' * 9}{number}_{place}": None for place in range(500)}
        lake.send(insert(f"r{number}", at=at_ms(number), **columns))

    lake.flusher().flush(GATEWAY)

    [batch] = lake.announced().values()
    assert len(lake.objects.bodies[json.loads(lake.queue.sent[0])["claim"]]) > 256 * 1024
    assert len(batch["columns"]) == 5_000
    assert len(lake.queue.sent[0]) < 1_000


@pytest.mark.law("D1", "D5")
def test_each_announcement_message_names_a_bounded_number_of_tables() -> None:
    lake = Lake()
    names = [f"t{number}" for number in range(2 * run.TOGETHER_TABLES_MAX + 1)]
    lake.send(*(insert("r", at=at_ms(1), table=name, n=1) for name in names))

    lake.flusher().flush(GATEWAY)

    named = [sorted(tables_of_message(body)) for body in lake.queue.sent]
    assert [len(tables) for tables in named] == [run.TOGETHER_TABLES_MAX] * 2 + [1]
    assert sorted(chain.from_iterable(named)) == [f"{GATEWAY}/{name}" for name in sorted(names)]
    lake.check()


@pytest.mark.law("D2", "D5")
def test_tables_are_marked_flushed_only_after_their_announcement() -> None:
    class Away(Messages):
        def send(self, body: str) -> None:
            if len(self.sent) == 1:
                raise AdapterFailed("the queue is away")
            super().send(body)

    lake = Lake()
    names = [f"t{number}" for number in range(2 * run.TOGETHER_TABLES_MAX)]
    lake.send(*(insert("r", at=at_ms(1), table=name, n=1) for name in names))
    there, lake.queue = lake.queue, Away()

    with pytest.raises(AdapterFailed):
        lake.flusher().flush(GATEWAY)

    flushed = lake.buffer.flushed_tables(GATEWAY)
    assert len(flushed) == run.TOGETHER_TABLES_MAX
    there.sent += lake.queue.sent
    lake.queue = there
    lake.flusher().flush(GATEWAY)
    assert len(lake.queue.sent) == 2, "what was announced is not announced again"
    lake.check()


def test_range_is_flushed_later_if_the_lake_is_unavailable(lake: Lake) -> None:
    class Away(Objects):
        def put_object(self, *_: object) -> None:
            raise AdapterFailed("S3 could not be reached")

    broken = Flusher(lake.buffer, Away(), lake.queue, ParquetEncoder(), lake.deliveries)

    with pytest.raises(AdapterFailed):
        broken.flush(GATEWAY)
    assert lake.queue.sent == []
    lake.flusher().flush(GATEWAY)
    lake.check()


@pytest.mark.law("D4")
def test_backpressure_ends_after_a_flush() -> None:
    lake = Lake()
    tight = Limits(backpressure_bytes_max=600, backpressure_age_ms_max=60_000)
    service = lake.pusher(limits=tight)
    taken = 0
    with suppress(Backpressure):
        while taken < 1_000:
            service.push(GATEWAY, push(insert(f"r{taken}", at=at_ms(taken), n=taken)))
            taken += 1
    with pytest.raises(Backpressure) as refused:
        service.push(GATEWAY, push(insert("one-more", at=at_ms(99), n=1)))

    assert (refused.value.status, refused.value.code) == (503, "BACKPRESSURE_ERROR")
    assert len(lake.pulled()) == taken > 1
    lake.flusher().flush(GATEWAY)
    assert service.push(GATEWAY, push(insert("one-more", at=at_ms(99), n=1))).accepted == 1


@pytest.mark.law("D4")
def test_backpressure_starts_at_an_age_of_unflushed_data_and_ends_after_a_flush() -> None:
    lake = Lake()
    service = lake.pusher(limits=Limits(backpressure_age_ms_max=60_000))
    service.push(GATEWAY, push(insert("r1", at=at_ms(1), n=1)))
    lake.time.now_ms += 60_000
    assert service.push(GATEWAY, push(insert("r2", at=at_ms(2), n=1))).accepted == 1
    lake.time.now_ms += 60_000

    with pytest.raises(Backpressure):
        service.push(GATEWAY, push(insert("r3", at=at_ms(3), n=1)))
    lake.flusher().flush(GATEWAY)
    assert service.push(GATEWAY, push(insert("r3", at=at_ms(3), n=1))).accepted == 1
    lake.time.now_ms += 60_000
    assert service.push(GATEWAY, push(insert("r4", at=at_ms(4), n=1))).accepted == 1


def test_metrics_report_unflushed_bytes_and_age_before_and_after_a_flush(lake: Lake) -> None:
    lake.time.now_ms += 5_000
    size = unflushed(lake.buffer, GATEWAY)
    waiting = lake.admin.metrics(GATEWAY)
    lake.flusher().flush(GATEWAY)
    flushed = lake.admin.metrics(GATEWAY)

    assert waiting["unflushedBytes"] == size > 0
    assert isinstance(waiting["unflushedAgeMs"], int)
    assert waiting["unflushedAgeMs"] >= 5_000
    assert (flushed["unflushedBytes"], flushed["unflushedAgeMs"]) == (0, 0)
    assert flushed["flushedHlc"] == flushed["headHlc"]


def test_pushes_request_a_flush_each_time_the_threshold_is_passed() -> None:
    lake = Lake()
    asked: list[str] = []
    service = lake.pusher(
        limits=Limits(flush_threshold_bytes=1_000),
        on_threshold=asked.append,
    )
    for number in range(30):
        service.push(GATEWAY, push(insert(f"r{number}", at=at_ms(number), n=number)))
    size = unflushed(lake.buffer, GATEWAY)

    assert size // 1_000 - 1 <= len(asked) <= size // 1_000
    assert set(asked) == {GATEWAY}


def test_schema_with_characters_that_queues_refuse_is_announced() -> None:
    lake = Lake()
    lake.admin.register_schema(
        GATEWAY,
        {
            "table": "todos",
            "columns": [{"name": "n", "type": "integer"}],
            "sourceTable": "\ufffe\u0001\U0001f600",
        },
    )
    lake.send(insert(at=at_ms(1), n=1))
    lake.flusher().flush(GATEWAY)

    [batch] = lake.announced().values()
    assert lake.queue.sent[0].isascii()
    assert batch["schema"]["sourceTable"] == "\ufffe\u0001\U0001f600"


@pytest.mark.law("D6")
def test_flush_killed_before_it_updated_the_heads_is_recorded_by_the_next() -> None:
    lake = Lake()
    lake.fill(1)
    # The range, an object and its claim, its announcement, the table, the watermark.
    writes = 1 + 2 + 1 + 1 + 1
    with pytest.raises(Killed):
        lake.flusher(Life(writes)).flush(GATEWAY)
    assert lake.buffer.flush_state(GATEWAY).watermark > 0
    assert unflushed(lake.buffer, GATEWAY) > 0
    lake.admin.place_table(GATEWAY, "other", "side")  # moves all heads

    lake.flusher().flush(GATEWAY)

    assert unflushed(lake.buffer, GATEWAY) == 0
    assert due_gateways(lake.buffer) == []
