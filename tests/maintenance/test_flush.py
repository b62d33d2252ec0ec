"""Flushing: every committed delta is announced exactly as it was, whatever dies in between."""

from __future__ import annotations

import io
import json
from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

from lakesync.adapters.lake.parquet import ParquetEncoder
from lakesync.buffer.memory import MemoryBuffer
from lakesync.core.layout import Placement
from lakesync.errors import AdapterFailed, Backpressure, FlushFailed
from lakesync.log.limits import Limits
from lakesync.maintenance import flush as run
from lakesync.maintenance.flush import Flusher, due_gateways
from lakesync.ports import FlushState
from lakesync.result import Err
from tests.support.builders import WALL_MS, at_ms, insert, push, update
from tests.support.gateways import GivenTime, administrator, pulled, pusher
from tests.support.lake import Killed, Life, Messages, Objects, unflushed

if TYPE_CHECKING:
    from lakesync.core.delta import Delta

GATEWAY = "g"
Batch = dict[str, Any]


class Lake:
    """A gateway with data in it, and a lake to flush it to."""

    def __init__(self) -> None:
        self.buffer = MemoryBuffer()
        self.objects = Objects()
        self.queue = Messages()
        self.time = GivenTime(WALL_MS)
        self.administrator = administrator(self.buffer, time_=self.time)

    def fill(self, count: int = 6, *, first: int = 0) -> None:
        """Push edits of three tables in several commits."""
        service = pusher(self.buffer, time_=self.time)
        for number in range(first, first + count):
            self.time.now_ms += 10
            table = ("todos", "notes", "Private")[number % 3]
            mine = [
                insert(f"r{number}", at=at_ms(number), table=table, n=number),
                update(f"s{number % 2}", at=at_ms(number, 1), table="todos", Title="\u00e9"),
            ]
            service.push(GATEWAY, push(*mine)).unwrap()

    def flusher(self, life: Life | None = None) -> Flusher:
        """Give a flusher, as one process has it."""
        life = life or Life(float("inf"))
        return Flusher(
            life.of(self.buffer), life.of(self.objects), life.of(self.queue), ParquetEncoder()
        )

    def announced(self) -> dict[str, Batch]:
        """Give each announced batch by its object; the same one again must be the same."""
        batches: dict[str, Batch] = {}
        for body in self.queue.sent:
            batch = json.loads(body)
            assert batches.setdefault(batch["object"], batch) == batch
        return batches

    def rows(self) -> list[dict[str, Any]]:
        """Give all rows of all announced batches."""
        return [
            row | {"table": batch["table"]}
            for batch in self.announced().values()
            for row in pq.read_table(io.BytesIO(self.objects.held[batch["object"]])).to_pylist()
        ]

    def check(self) -> None:
        """Hold the lake against the log: all deltas, once each; batches without gaps."""
        logged = pulled(self.buffer, GATEWAY, deltas_max=10_000)
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
    """Count deltas by their ids."""
    return Counter(delta.delta_id for delta in deltas)


@pytest.fixture
def lake() -> Lake:
    held = Lake()
    held.fill()
    return held


@pytest.mark.law("D1")
def test_everything_committed_is_announced_once(lake: Lake) -> None:
    report = lake.flusher().flush(GATEWAY).unwrap()

    assert (report.batches, report.finished) == (3, True)
    assert report.deltas == len(lake.rows())
    lake.check()
    assert unflushed(lake.buffer, GATEWAY) == 0


def test_a_batch_says_what_it_is(lake: Lake) -> None:
    schema = {"table": "notes", "columns": [{"name": "n", "type": "integer"}]}
    lake.administrator.register_schema(GATEWAY, schema).unwrap()
    lake.flusher().flush(GATEWAY).unwrap()
    batch = next(batch for batch in lake.announced().values() if batch["table"] == "notes")
    body = lake.objects.held[batch["object"]]

    assert batch["gateway"] == GATEWAY
    assert batch["deltas"] == 2
    assert batch["bytes"] == len(body)
    assert batch["schema"]["columns"] == [{"name": "n", "type": "integer", "nullable": True}]
    assert batch["object"] == f"staging/g/notes/{0:020d}-{int(batch['last']):020d}.parquet"
    claim = f"claims/g/notes/{0:020d}-{int(batch['last']):020d}.json"
    assert json.loads(lake.objects.held[claim]) == batch


@pytest.mark.law("S3")
def test_a_claim_carries_the_schema_that_is_newest_when_it_is_made(lake: Lake) -> None:
    """Pushes go on between the changes: what was pushed under an older one needs the newer too."""
    service = pusher(lake.buffer, time_=lake.time)
    columns: list[dict[str, object]] = []
    for number, kind in enumerate(("null", "integer", "timestamp")):
        columns.append({"name": f"c{number}", "type": kind})
        schema = {"table": "grown", "columns": list(columns), "partition": []}
        lake.administrator.register_schema(GATEWAY, schema).unwrap()
        value = "2024-01-01T00:00:00Z" if kind == "timestamp" else None
        columns_written: dict[str, Any] = {f"c{number}": value}
        delta = insert(f"g{number}", at=at_ms(number, 7), table="grown", **columns_written)
        assert service.push(GATEWAY, push(delta)).unwrap().accepted == 1

    lake.flusher().flush(GATEWAY).unwrap()

    [batch] = [held for held in lake.announced().values() if held["table"] == "grown"]
    assert batch["schema"]["version"] == 3
    assert [column["type"] for column in batch["schema"]["columns"]] == [
        "null", "integer", "timestamp",
    ]  # fmt: skip
    assert batch["deltas"] == 3


def test_a_row_of_a_batch_is_its_delta(lake: Lake) -> None:
    lake.flusher().flush(GATEWAY).unwrap()
    logged = {delta.delta_id: delta for delta in pulled(lake.buffer, GATEWAY)}

    for batch in lake.announced().values():
        for row in pq.read_table(io.BytesIO(lake.objects.held[batch["object"]])).to_pylist():
            delta = logged[row["_delta_id"]]
            assert (row["_op"], row["_row_id"]) == (delta.op.name, delta.row_id)
            assert (row["_client_id"], row["_hlc"]) == (delta.client_id, delta.hlc)
            columns = {name: value.decode() for name, value in delta.columns}
            assert {n: row[lake_name] for n, lake_name in batch["columns"].items()} == {
                name: columns.get(name) for name in batch["columns"]
            }


@pytest.mark.law("D2")
@pytest.mark.parametrize("last_happens", [False, True])
@pytest.mark.parametrize("writes", range(14))
def test_a_flush_that_died_is_repeated_under_the_same_names_with_the_same_bytes(
    lake: Lake, writes: int, *, last_happens: bool
) -> None:
    quiet = Lake()
    quiet.fill()
    quiet.flusher().flush(GATEWAY).unwrap()

    died = False
    try:
        lake.flusher(Life(writes, last_happens=last_happens)).flush(GATEWAY)
    except Killed:
        died = True
    lake.fill(3, first=6)  # life goes on before anybody notices
    lake.flusher().flush(GATEWAY).unwrap()

    assert died == (writes < 12)
    lake.check()
    for key, body in lake.objects.written:
        assert lake.objects.held[key] == body
    if 1 <= writes < 11 or (writes == 0 and last_happens):
        assert quiet.objects.held.items() <= lake.objects.held.items()
    assert unflushed(lake.buffer, GATEWAY) == 0
    assert due_gateways(lake.buffer) == []


@pytest.mark.law("D2")
def test_a_flush_may_die_again_and_again(lake: Lake) -> None:
    for writes in [3, 0, 5, 1, 8, 2, 10]:
        with pytest.raises(Killed):
            lake.flusher(Life(writes)).flush(GATEWAY)

    lake.flusher().flush(GATEWAY).unwrap()

    lake.check()


@pytest.mark.law("D3")
@pytest.mark.parametrize("pause", range(12))
def test_two_flushes_at_once_announce_the_same_batches(lake: Lake, pause: int) -> None:
    class Paused(Life):
        """Lets another flush run whole in the middle of this one."""

        def step(self, act: Any) -> Any:
            def call(*arguments: Any) -> Any:
                self._left -= 1
                if self._left == -1:
                    lake.fill(3, first=6)
                    lake.flusher().flush(GATEWAY).unwrap()
                return act(*arguments)

            return call

    lake.flusher(Paused(pause)).flush(GATEWAY).unwrap()
    lake.flusher().flush(GATEWAY).unwrap()

    lake.check()
    for key, body in lake.objects.written:
        assert lake.objects.held[key] == body
    assert unflushed(lake.buffer, GATEWAY) == 0


@pytest.mark.law("D3")
@pytest.mark.parametrize("pause", range(12))
def test_a_flush_that_began_before_a_table_moved_loses_nothing(lake: Lake, pause: int) -> None:
    class Moved(Life):
        def step(self, act: Any) -> Any:
            def call(*arguments: Any) -> Any:
                self._left -= 1
                if self._left == -1:
                    lake.administrator.place_table(GATEWAY, "todos", Placement("hot", 4)).unwrap()
                    lake.fill(6, first=6)
                    with pytest.raises(Killed):
                        lake.flusher(Life(3)).flush(GATEWAY)
                return act(*arguments)

            return call

    lake.flusher(Moved(pause)).flush(GATEWAY).unwrap()
    lake.flusher().flush(GATEWAY).unwrap()

    lake.check()


def test_a_large_log_is_flushed_range_by_range(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "RANGE_BYTES_MAX", 500)
    monkeypatch.setattr(run, "_SLICE_DELTAS_MAX", 2)
    lake.administrator.place_table(GATEWAY, "todos", Placement("hot", 3)).unwrap()
    lake.fill(30, first=6)

    report = lake.flusher().flush(GATEWAY).unwrap()

    assert report.batches > 10
    lake.check()


def test_a_flush_without_time_ends_between_ranges_and_goes_on_later(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "RANGE_BYTES_MAX", 500)
    monkeypatch.setattr(run, "_SLICE_DELTAS_MAX", 2)
    time = iter([True, False])

    report = lake.flusher().flush(GATEWAY, lambda: next(time)).unwrap()

    assert not report.finished
    assert 0 < report.deltas < len(pulled(lake.buffer, GATEWAY))
    assert due_gateways(lake.buffer) == [GATEWAY]
    assert lake.flusher().flush(GATEWAY).unwrap().finished
    lake.check()


def test_an_idle_gateway_is_flushed_for_nothing(lake: Lake) -> None:
    lake.flusher().flush(GATEWAY).unwrap()
    written = len(lake.objects.written)

    report = lake.flusher().flush(GATEWAY).unwrap()

    assert (report.batches, report.deltas) == (0, 0)
    assert len(lake.objects.written) == written
    assert Flusher(lake.buffer, lake.objects, lake.queue, ParquetEncoder()).due() == []
    assert lake.flusher().flush("never-used").unwrap().batches == 0


def test_a_recorded_range_that_no_flush_can_hold_is_an_error_and_loses_nothing(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    top = max(head.commit for head in lake.buffer.heads(GATEWAY, ["main"]).values())
    lake.buffer.save_flush_state(GATEWAY, FlushState(), FlushState(until=top))
    monkeypatch.setattr(run, "RANGE_BYTES_MAX", 10)
    monkeypatch.setattr(run, "_SLICE_DELTAS_MAX", 2)

    result = lake.flusher().flush(GATEWAY)

    assert isinstance(result, Err)
    assert isinstance(result.error, FlushFailed)
    assert lake.queue.sent == []


def test_a_lake_that_is_away_leaves_the_range_for_later(lake: Lake) -> None:
    class Away(Objects):
        def put_object(self, *_: object) -> None:
            raise AdapterFailed("S3 could not be reached")

    broken = Flusher(lake.buffer, Away(), lake.queue, ParquetEncoder())

    assert isinstance(broken.flush(GATEWAY), Err)
    assert lake.queue.sent == []
    lake.flusher().flush(GATEWAY).unwrap()
    lake.check()


@pytest.mark.law("D4")
def test_backpressure_ends_when_a_flush_caught_up() -> None:
    lake = Lake()
    tight = Limits(backpressure_bytes_max=600, backpressure_age_ms_max=60_000)
    service = pusher(lake.buffer, time_=lake.time, limits=tight)
    taken = 0
    while service.push(GATEWAY, push(insert(f"r{taken}", at=at_ms(taken), n=taken))).unwrap_or(
        None
    ):
        taken += 1
    refused = service.push(GATEWAY, push(insert("one-more", at=at_ms(99), n=1)))

    assert isinstance(refused, Err)
    assert isinstance(refused.error, Backpressure)
    assert (refused.error.status, refused.error.code) == (503, "BACKPRESSURE_ERROR")
    assert len(pulled(lake.buffer, GATEWAY)) == taken > 1
    lake.flusher().flush(GATEWAY).unwrap()
    assert service.push(GATEWAY, push(insert("one-more", at=at_ms(99), n=1))).unwrap().accepted == 1


@pytest.mark.law("D4")
def test_old_data_is_backpressure_too_and_new_data_after_a_flush_is_not_old() -> None:
    lake = Lake()
    service = pusher(lake.buffer, time_=lake.time, limits=Limits(backpressure_age_ms_max=60_000))
    service.push(GATEWAY, push(insert("r1", at=at_ms(1), n=1))).unwrap()
    lake.time.now_ms += 60_000
    assert service.push(GATEWAY, push(insert("r2", at=at_ms(2), n=1))).unwrap().accepted == 1
    lake.time.now_ms += 60_000

    assert isinstance(service.push(GATEWAY, push(insert("r3", at=at_ms(3), n=1))), Err)
    lake.flusher().flush(GATEWAY).unwrap()
    assert service.push(GATEWAY, push(insert("r3", at=at_ms(3), n=1))).unwrap().accepted == 1
    lake.time.now_ms += 60_000
    assert service.push(GATEWAY, push(insert("r4", at=at_ms(4), n=1))).unwrap().accepted == 1


def test_metrics_tell_what_waits_and_that_nothing_does(lake: Lake) -> None:
    lake.time.now_ms += 5_000
    size = unflushed(lake.buffer, GATEWAY)
    waiting = lake.administrator.metrics(GATEWAY).unwrap()
    lake.flusher().flush(GATEWAY).unwrap()
    flushed = lake.administrator.metrics(GATEWAY).unwrap()

    assert waiting["unflushedBytes"] == size > 0
    assert isinstance(waiting["unflushedAgeMs"], int)
    assert waiting["unflushedAgeMs"] >= 5_000
    assert (flushed["unflushedBytes"], flushed["unflushedAgeMs"]) == (0, 0)
    assert flushed["flushedHlc"] == flushed["headHlc"]


def test_a_flush_is_asked_for_past_the_threshold_and_again_after_as_much() -> None:
    lake = Lake()
    asked: list[str] = []
    service = pusher(
        lake.buffer,
        time_=lake.time,
        limits=Limits(flush_threshold_bytes=1_000),
        on_threshold=asked.append,
    )
    for number in range(30):
        service.push(GATEWAY, push(insert(f"r{number}", at=at_ms(number), n=number))).unwrap()
    size = unflushed(lake.buffer, GATEWAY)

    assert size // 1_000 - 1 <= len(asked) <= size // 1_000
    assert set(asked) == {GATEWAY}


def test_schemas_with_text_that_queues_refuse_are_announced_all_the_same() -> None:
    lake = Lake()
    lake.administrator.register_schema(
        GATEWAY,
        {
            "table": "todos",
            "columns": [{"name": "n", "type": "integer"}],
            "sourceTable": "\ufffe\u0001\U0001f600",
        },
    ).unwrap()
    pusher(lake.buffer, time_=lake.time).push(GATEWAY, push(insert(at=at_ms(1), n=1))).unwrap()
    lake.flusher().flush(GATEWAY).unwrap()

    assert lake.queue.sent[0].isascii()
    assert json.loads(lake.queue.sent[0])["schema"]["sourceTable"] == "\ufffe\u0001\U0001f600"


def test_what_died_before_the_heads_learnt_of_it_is_noted_by_the_next_flush() -> None:
    lake = Lake()
    lake.fill(1)
    writes = 1 + 2 + 1 + 1  # the range, an object and its claim, its announcement, the watermark
    with pytest.raises(Killed):
        lake.flusher(Life(writes)).flush(GATEWAY)
    assert lake.buffer.flush_state(GATEWAY).watermark > 0
    assert unflushed(lake.buffer, GATEWAY) > 0
    lake.administrator.place_table(GATEWAY, "other", Placement("side")).unwrap()  # moves all heads

    lake.flusher().flush(GATEWAY).unwrap()

    assert unflushed(lake.buffer, GATEWAY) == 0
    assert due_gateways(lake.buffer) == []
