"""The job of large BigQuery batches: real Spark, the function's own code in its tasks, an emulator.

Who has a write is decided by size alone; what comes of it is held against the gateway's rows and
against what the function makes of the same deltas. Law D17: ``docs/spec/delivery.md``.
"""

from __future__ import annotations

import itertools
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from lakesync.adapters.database import Position
from lakesync.adapters.lake.parquet import read_batch
from lakesync.core.deliveries import GATHER_MS
from lakesync.core.schema import schema_to_json
from lakesync.delivery.deliverer import Deliverer, JobRuns, large_places
from lakesync.delivery.table_delivery import TableDelivery
from lakesync.systems.bigquery.bigquery_database import BigQueryAdapter
from lakesync.systems.bigquery.bigquery_jobs import Jobs
from lakesync.testing.database_contract import schema
from lakesync_spark.bigquery import parts as parts_module
from lakesync_spark.bigquery.large_delivery import LargeDelivery
from lakesync_spark.bigquery.run import run
from tests.delivery.world import World
from tests.glue.support.objects import FolderObjects
from tests.support.bigquery import DATASET, EmulatedJobs, InterruptedJobs, bigquery_destination
from tests.support.builders import at_ms, delete, insert, push, update
from tests.support.destinations import (
    new_table,
)
from tests.support.gateways import GATEWAY, pulled
from tests.support.lake import Killed, Life

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from lakesync.core.delta import Delta
    from lakesync.core.destinations import Destination
    from lakesync.delivery.table_context import TableContext
    from lakesync.errors import LakeSyncError
    from lakesync_spark.bigquery.run import DeliveryReport
    from tests.support.bigquery import BigQueryDestination
    from tools.local_stack.bigquery import BigQueryServer

pytestmark = [pytest.mark.spark, pytest.mark.emulator]

LARGE = 4
"""From so many deltas on a table is the job's."""


class Gateway(World):
    """A gateway with one table that goes to BigQuery, by a function and by a job."""

    def __init__(
        self, spark: SparkSession, dataset: BigQueryDestination, folder: Path, **body: Any
    ) -> None:
        super().__init__()
        self.spark, self.dataset, self.table = spark, dataset, new_table()
        self.objects = FolderObjects(str(folder / self.table))  # type: ignore[assignment]
        self.keeper = GATEWAY + self.table
        self.databases["warehouse"] = dataset.adapter(self.keeper)  # type: ignore[assignment]
        self.runs = 0
        self.declare(kind="bigquery", tables=[self.table], **body)
        self.deliver()

    def typed(self, **columns: str) -> None:
        registered = schema(self.table, columns)
        self.admin.register_schema(GATEWAY, schema_to_json(registered))

    def put(self, *deltas: Delta) -> None:
        self.push(*deltas)
        self.flush()

    def deliver(self, life: Life | None = None, steps: int = 10_000) -> list[LakeSyncError]:
        """Let the function handle its messages, after as long as it gathers at the most."""
        self.time.now_ms += GATHER_MS
        return super().deliver(life, steps)

    def deliverer(self, life: Life | None = None) -> Deliverer:
        """Return the function, which leaves to the job what is large."""
        return self._deliverer(life, partial(TableDelivery, large=JobRuns(LARGE, self._start)))

    def _start(self) -> None:
        self.runs += 1

    def job(self, life: Life | None = None, jobs: EmulatedJobs | None = None) -> DeliveryReport:
        """Do one run of the job, after as long as is gathered at the most.

        Where it is given other jobs, its driver has these.
        """
        self.time.now_ms += GATHER_MS
        server = self.dataset.server
        made = partial(Jobs, server.project, DATASET, endpoint=server.endpoint, retry_s=2)

        def table(context: TableContext) -> LargeDelivery:
            opened = partial(FolderObjects, self.objects.folder)  # type: ignore[attr-defined]
            return LargeDelivery(context, self.spark, opened, made, LARGE)

        kept = self.databases["warehouse"]
        if jobs:
            self.databases["warehouse"] = BigQueryAdapter(jobs, self.keeper)  # type: ignore[assignment]
        of = life.of if life else lambda port: port
        try:
            return run(
                self.spark,
                self._deliverer(life, table),
                lambda: large_places(self.buffer, self.objects, LARGE),
                of(self.deliveries),
                lambda: True,
            )
        finally:
            self.databases["warehouse"] = kept

    def _deliverer(self, life: Life | None, table: Any) -> Deliverer:
        of = life.of if life else lambda port: port

        def opened(gateway: str, destination: Destination) -> Any:
            assert gateway == GATEWAY
            return self.databases[destination.secret]

        return Deliverer(
            of(self.buffer), of(self.objects), of(self.deliveries), read_batch=read_batch,
            open_database=opened, wall_clock=self.time.wall_clock, table_delivery=table,
        )  # fmt: skip

    def history(self) -> list[tuple[Position, str]]:
        """Return what the destination has of the table's history: where, and which delta."""
        page = self.databases["warehouse"].query_deltas_since(self.table, Position(0, 0), 10_000)
        return [(placed.position, placed.delta.delta_id) for placed in page.unwrap().deltas]


@pytest.fixture
def dataset(bigquery: BigQueryServer) -> Iterator[BigQueryDestination]:
    dataset = bigquery_destination(bigquery)
    yield dataset
    dataset.close()


@pytest.fixture
def gateway(spark: SparkSession, dataset: BigQueryDestination, tmp_path: Path) -> Gateway:
    return Gateway(spark, dataset, tmp_path)


def some(gateway: Gateway, first: int = 1, count: int = LARGE) -> list[Delta]:
    return [insert(f"r{n}", at=at_ms(n), table=gateway.table, n=n)
            for n in range(first, first + count)]  # fmt: skip


@pytest.mark.law("D17")
def test_large_batches_are_written_by_the_job_and_small_ones_by_the_function(
    gateway: Gateway,
) -> None:
    gateway.typed(n="integer", title="string")
    gateway.put(*some(gateway))
    gateway.deliver()
    assert gateway.runs == 1, "the function asked for a run"
    assert gateway.rows(gateway.table) == {}, "and left the rows to it"
    gateway.put(update("r1", at=at_ms(20), table=gateway.table, title="x"))

    report = gateway.job()
    assert report.problem() == ""
    assert list(report.delivered.values()) == [LARGE + 1]
    gateway.check(gateway.table)
    assert gateway.dataset.rows(gateway.table, "n", "title")["r1"] == (1, "x")

    gateway.put(update("r2", at=at_ms(21), table=gateway.table, n=7))
    assert gateway.job().delivered == {}, "a small batch is not the job's"
    gateway.deliver()
    assert gateway.runs == 1
    gateway.check(gateway.table)
    assert len(gateway.history()) == LARGE + 2


@pytest.mark.law("D17", "D9")
def test_function_delivers_a_batch_whose_job_run_failed(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway.put(*some(gateway))
    monkeypatch.setattr("lakesync_spark.bigquery.large_delivery.stage_parts", _broken)
    assert "no part of it" in gateway.job().problem()
    [state] = gateway.buffer.delivery_states(GATEWAY, "warehouse").values()
    assert "was not staged: ValueError: no part of it" in state.error
    assert gateway.job().delivered == {}, "it is not the job's now"

    gateway.deliver()
    assert gateway.runs == 0
    gateway.check(gateway.table)
    monkeypatch.undo()
    gateway.put(*some(gateway, 10))
    gateway.deliver()
    assert gateway.runs == 1, "what follows is the job's again"
    assert gateway.job().problem() == ""
    gateway.check(gateway.table)


def _broken(*_: object) -> Any:
    raise ValueError("no part of it")


@pytest.mark.law("D17")
def test_batches_staged_in_many_parts_are_committed_in_one_write(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway.typed(n="integer", title="string")
    gateway.put(*some(gateway, 1, 6))
    gateway.put(*some(gateway, 7, 6))
    monkeypatch.setattr(parts_module, "DELTAS_PER_TASK", 4)
    written, before = _writes(gateway), _stages(gateway)
    assert gateway.job().problem() == ""
    gateway.check(gateway.table)
    assert len(gateway.history()) == 12
    assert _writes(gateway) == written + 1
    assert _stages(gateway) == before


def _writes(gateway: Gateway) -> int:
    database: Any = gateway.databases["warehouse"]
    marks = [name for name in _tables(gateway) if name.startswith("lakesync_mark_")]
    assert database
    return sum(
        int(gateway.dataset.run(f"SELECT writes FROM `{name}`")[0][0])  # noqa: S608 - ours
        for name in marks
        if gateway.table in name
    )


def _tables(gateway: Gateway) -> list[str]:
    client: Any = gateway.dataset.jobs._client
    return [one.table_id for one in client.list_tables(DATASET)]


def _stages(gateway: Gateway) -> set[str]:
    return {name for name in _tables(gateway) if "_stage_" in name}


@pytest.mark.law("D17", "D8")
def test_function_repairs_a_batch_whose_object_is_missing(gateway: Gateway) -> None:
    gateway.put(*some(gateway))
    gateway.put(*some(gateway, 10))
    for key in gateway.objects.list_objects(f"staging/{GATEWAY}/{gateway.table}/")[:1]:
        gateway.objects.delete_object(key)

    assert gateway.job().problem() == ""
    gateway.deliver()
    gateway.sweep()
    gateway.check(gateway.table)


@pytest.mark.law("D17", "D8")
def test_function_repairs_a_batch_whose_object_is_damaged(gateway: Gateway) -> None:
    gateway.put(*some(gateway))
    [key] = gateway.objects.list_objects(f"staging/{GATEWAY}/{gateway.table}/")
    gateway.objects.put_object(key, b"no parquet", "application/octet-stream")

    assert gateway.job().problem() == ""
    gateway.deliver()
    gateway.check(gateway.table)


@pytest.mark.law("D17", "D10")
def test_filtered_destinations_are_delivered_by_the_function_at_any_size(
    spark: SparkSession, dataset: BigQueryDestination, tmp_path: Path
) -> None:
    seen = [{"name": "few", "tables": [], "filters": [{"column": "n", "op": "lt", "value": 3}]}]
    gateway = Gateway(spark, dataset, tmp_path, buckets=seen)
    gateway.put(*some(gateway, 1, 2 * LARGE))
    assert gateway.job().delivered == {}
    gateway.deliver()

    assert gateway.runs == 0
    assert set(gateway.rows(gateway.table)) == {"r1", "r2"}


@pytest.mark.law("D17", "D11")
def test_destination_paused_while_parts_are_staged_is_not_written(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway.put(*some(gateway))
    real, before = parts_module.stage_parts, _stages(gateway)

    def paused(*arguments: Any) -> Any:
        stages = real(*arguments)
        gateway.destinations().set_paused(GATEWAY, "warehouse", paused=True)
        return stages

    monkeypatch.setattr("lakesync_spark.bigquery.large_delivery.stage_parts", paused)
    assert gateway.job().problem() == ""
    assert gateway.history() == []
    assert _stages(gateway) == before, "what was staged in vain is removed"
    gateway.destinations().set_paused(GATEWAY, "warehouse", paused=False)
    monkeypatch.undo()
    gateway.job()
    gateway.check(gateway.table)


@pytest.mark.law("D17", "P5")
def test_concurrent_write_makes_the_job_read_and_stage_again(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway.put(*some(gateway))
    assert gateway.job().problem() == ""
    gateway.put(*some(gateway, 10))
    before = _stages(gateway)
    real, calls = parts_module.stage_parts, itertools.count(1)
    [mark] = [name for name in _tables(gateway)
              if name.startswith("lakesync_mark_") and gateway.table in name]  # fmt: skip

    def overtaken(*arguments: Any) -> Any:
        stages = real(*arguments)
        if next(calls) == 1:
            gateway.dataset.run(f"UPDATE `{mark}` SET writes = writes + 1 WHERE TRUE")  # noqa: S608
        return stages

    monkeypatch.setattr("lakesync_spark.bigquery.large_delivery.stage_parts", overtaken)
    assert gateway.job().problem() == ""
    assert next(calls) == 3
    gateway.check(gateway.table)
    assert len(gateway.history()) == 2 * LARGE
    assert _stages(gateway) == before


@pytest.mark.law("D17", "P7")
def test_refused_rows_become_dead_letters_and_are_retried(gateway: Gateway) -> None:
    gateway.push(insert("bad", at=at_ms(50), table=gateway.table, n="written before it had a type"))
    gateway.typed(n="integer")
    gateway.put(*some(gateway))
    assert gateway.job().problem() == ""
    states = gateway.buffer.delivery_states(GATEWAY, "warehouse")
    assert states[gateway.table].dead_letters == 1
    assert set(gateway.dataset.rows(gateway.table)) == {f"r{n}" for n in range(1, 5)}

    gateway.put(*some(gateway, 10))
    assert gateway.job().problem() == ""
    assert gateway.buffer.delivery_states(GATEWAY, "warehouse")[gateway.table].dead_letters == 1
    gateway.put(*some(gateway, 20), update("bad", at=at_ms(60), table=gateway.table, n=5))
    assert gateway.job().problem() == ""
    assert gateway.buffer.delivery_states(GATEWAY, "warehouse")[gateway.table].dead_letters == 0
    assert gateway.dataset.rows(gateway.table, "n")["bad"] == (5,)


def _killed(gateway: Gateway, cut: int, *, last_happens: bool) -> bool:
    try:
        gateway.job(Life(cut, last_happens=last_happens))
    except Killed:
        return True
    return False


@pytest.mark.law("D17", "D8")
def test_job_killed_between_any_two_writes_is_completed_by_the_next(
    gateway: Gateway,
) -> None:
    gateway.put(*some(gateway))
    first, cut = 1, 0
    while _killed(gateway, cut // 2, last_happens=bool(cut % 2)):
        cut += 1
        assert gateway.job().problem() == ""
        gateway.check(gateway.table)
        first += LARGE
        gateway.put(*some(gateway, first))
    assert cut > 2
    gateway.check(gateway.table)
    assert len(gateway.history()) == len(set(gateway.history())) == first + LARGE - 1


@pytest.mark.law("D17", "P5")
def test_connection_lost_at_any_request_leaves_no_partial_delivery(
    gateway: Gateway, bigquery: BigQueryServer
) -> None:
    gateway.put(*some(gateway))
    cut, first = 1, 1
    while True:
        jobs = InterruptedJobs(bigquery, cut)
        problem = gateway.job(jobs=jobs).problem()
        if jobs.statements < cut:
            break
        if problem:
            gateway.deliver()
        gateway.check(gateway.table)
        first += LARGE
        gateway.put(*some(gateway, first))
        cut += 5
    gateway.check(gateway.table)
    assert len(gateway.history()) == first + LARGE - 1


ROWS = st.sampled_from(["r1", "r2", "é", "r\U0001f600", "z"])


@st.composite
def batches(draw: st.DrawFn) -> list[list[tuple[str, str, int, str, dict[str, Any]]]]:
    """Return batches of deltas of few rows and stamps, so that they meet."""
    delta = st.tuples(
        st.sampled_from(["insert", "update", "delete"]), ROWS, st.integers(1, 9),
        st.sampled_from(["c1", "c2"]),
        st.dictionaries(st.sampled_from(["a", "b"]), st.integers(-3, 3) | st.none(), min_size=1),
    )  # fmt: skip
    return draw(st.lists(st.lists(delta, min_size=LARGE, max_size=9), min_size=1, max_size=3))


@pytest.mark.law("D17", "P3")
@settings(
    max_examples=12, deadline=None, phases=[Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)  # fmt: skip
@given(made=batches(), runs=st.lists(st.booleans(), min_size=3, max_size=3))
def test_deliveries_by_job_and_function_give_the_rows_of_the_gateway(
    made: Any, runs: list[bool], spark: SparkSession, dataset: BigQueryDestination, tmp_path: Path
) -> None:
    gateway = Gateway(spark, dataset, tmp_path)
    kinds: Any = {"insert": insert, "update": update, "delete": delete}
    for deltas, by_job in zip(made, runs, strict=False):
        for kind, row_id, at, client, columns in deltas:
            given_columns = {} if kind == "delete" else columns
            delta = kinds[kind](
                row_id, at=at_ms(at), client=client, table=gateway.table, **given_columns
            )
            gateway.time.now_ms += 5
            gateway.pushes.push(GATEWAY, push(delta, client=delta.client_id))
        gateway.flush()
        if by_job:
            assert gateway.job().problem() == ""
    assert gateway.job().problem() == ""
    gateway.sweep()
    gateway.check(gateway.table)
    effective = [delta.delta_id for delta in pulled(gateway.buffer, GATEWAY)]
    assert [delta_id for _, delta_id in gateway.history()] == effective
