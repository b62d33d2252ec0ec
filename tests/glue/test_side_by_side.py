"""Several tables in one run, and several runs at once: none waits, and nothing is done twice."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from lakesync.materialise import work_queue
from lakesync.materialise.work_queue import (
    GATEWAY_GROUPS,
    LEASE_S,
    Lease,
    group_of,
    group_of_table,
    table_of,
)
from lakesync_spark.common.scheduling import SCHEDULER, pool_of
from lakesync_spark.iceberg import apply, run, state_merge
from tests.glue.support.lake import Lake
from tests.glue.support.spark import BESIDE
from tests.support.builders import insert, update
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lakesync_spark.common.report import Report


def lakes(lake: Lake, count: int) -> list[Lake]:
    """Return gateways of as many groups, each with two batches."""
    made: dict[int, Lake] = {}
    number = 0
    while len(made) < count:
        number += 1
        one = Lake(lake.spark, lake.store, f"{lake.gateway}-{number}")
        made.setdefault(group_of(one.gateway), one)
    for one in made.values():
        one.put([insert("r1", at=5, n=1)])
        one.put([update("r1", at=6, n=2), insert("r2", at=7, n=1)])
    return list(made.values())


def is_whole(one: Lake) -> bool:
    """Return whether each delta of a gateway is in the lake, once."""
    commits = [change["_commit"] for change in one.changes()]
    states = {name: row["n"] for name, row in one.visible().items()}
    return (commits, states) == ([1, 2, 3], {"r1": "2", "r2": "1"})


def in_threads(*runs: Any) -> list[Report]:
    """Do runs at once, each as its own process would."""
    with ThreadPoolExecutor(len(runs)) as pool:
        return [one.result(PATIENCE_S) for one in [pool.submit(one) for one in runs]]


# --- without Spark


def test_every_gateway_id_maps_to_one_gateway_group_and_groups_are_balanced() -> None:
    names = [f"gateway-{number}" for number in range(5_000)]
    sizes = [0] * GATEWAY_GROUPS
    for name in names:
        sizes[group_of(name)] += 1
        assert group_of_table(table_of(f"claims/{name}/todos/1-2.json")) == group_of(name)

    assert min(sizes) > 0
    assert max(sizes) < 3 * len(names) / GATEWAY_GROUPS


# --- with Spark


@pytest.mark.spark
@pytest.mark.law("L7", "L8")
def test_two_concurrent_runs_share_the_groups_and_apply_each_delta_once(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "TABLES_AT_ONCE_MAX", 2)
    # Whoever waits lets the others' renewals happen, as they do in the time that it waits for.
    monkeypatch.setattr(work_queue, "RENEW_S", 0.02)
    lake.store.meanwhile = lambda: time.sleep(0.2)
    both = threading.Barrier(2, timeout=PATIENCE_S)
    met: set[str] = set()
    real = state_merge.merge_state

    def together(bench: Any, target: Any, chain: Any) -> None:
        catalog = target.table.name.split(".")[0]
        if catalog not in met:
            met.add(catalog)
            both.wait()  # neither goes on before the other has work too
        real(bench, target, chain)

    many = lakes(lake, 6)
    monkeypatch.setattr(apply, "merge_state", together)
    reports = in_threads(lake.run, replace(lake, catalog=BESIDE, runs=100).run)

    assert [report.problem() for report in reports] == ["", ""]
    taken = [set(report.applied) for report in reports]
    assert all(taken), "each had something to do"
    assert not taken[0] & taken[1], "no table was taken by both"
    assert taken[0] | taken[1] == {f"{one.gateway}/todos" for one in many}
    assert all(is_whole(one) for one in many)
    assert lake.pending() == []


@pytest.mark.spark
@pytest.mark.law("L8")
def test_group_of_a_killed_run_is_taken_over_by_a_concurrent_run(lake: Lake) -> None:
    many = lakes(lake, 3)
    Lease.acquire(lake.store, group_of(many[0].gateway), "killed")  # type: ignore[arg-type]
    began = lake.store.now
    report = lake.run()

    assert not report.leased_by_another
    assert all(is_whole(one) for one in many)
    assert (lake.store.now - began).total_seconds() < LEASE_S + 5


@pytest.mark.spark
@pytest.mark.law("L8", "L9")
def test_run_skips_a_group_leased_by_another_and_applies_the_rest(lake: Lake) -> None:
    many = lakes(lake, 3)
    other = Lease.acquire(lake.store, group_of(many[0].gateway), "another")  # type: ignore[arg-type]
    assert other is not None
    lake.store.meanwhile = other.check
    report = lake.run()

    assert report.leased_by_another
    assert [is_whole(one) for one in many[1:]] == [True, True]
    assert {entry.key.split("/")[1] for entry in lake.store.claims()} == {many[0].gateway}


@pytest.mark.spark
@pytest.mark.law("L9")
def test_unreadable_batch_is_set_aside_with_its_reason_and_other_tables_commit(
    lake: Lake, spark: SparkSession
) -> None:
    good = Lake(spark, lake.store, lake.gateway, table="good")
    good.put([insert("r1", at=5, n=1)])
    good.put([update("r1", at=6, n=2), insert("r2", at=7, n=1)])
    lake.put([insert("r1", at=5, n=1)])
    bad = lake.put([update("r1", at=6, n=2)])
    lake.store.put(bad.object_key, b"not parquet")
    report = lake.run()

    assert is_whole(good)
    assert lake.visible() == {"r1": {"n": "1"}}, "what came before it is there"
    [failure] = report.failed
    assert (failure.table, failure.batch.endswith(bad.range_name), failure.set_aside) == (
        f"{lake.gateway}/todos", True, True,
    )  # fmt: skip
    [reason] = lake.store.set_aside_reasons.values()
    assert "cannot be read" in reason


@pytest.mark.spark
@pytest.mark.law("L9")
def test_slow_table_delays_neither_other_tables_nor_their_new_batches(
    lake: Lake, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "LOOK_S", 0.2)
    slow, quick = (Lake(spark, lake.store, lake.gateway, table=name) for name in ("slow", "quick"))
    slow.put([insert("r1", at=5, n=1)])
    quick.put([insert("r1", at=5, n=1)])
    pools: dict[str, str | None] = {}
    is_done = threading.Event()
    real = state_merge.merge_state

    def merge(bench: Any, target: Any, chain: Any) -> None:
        table = chain.links[0].batch.table
        pools[table] = pool_of(bench.spark)
        if table == "slow":
            assert is_done.wait(PATIENCE_S), "the quick table waits for the slow one"
        real(bench, target, chain)
        if table == "quick" and not quick.batches[1:]:
            quick.put([update("r1", at=6, n=2), insert("r2", at=7, n=1)])
        elif table == "quick":
            is_done.set()

    monkeypatch.setattr(apply, "merge_state", merge)
    report = lake.run()

    assert report.problem() == ""
    assert is_whole(quick)
    assert slow.visible() == {"r1": {"n": "1"}}
    assert pools["slow"]
    assert pools["slow"] != pools["quick"], "their jobs share the executors evenly"
    scheduler = spark.sparkContext.getConf().get("spark.scheduler.mode")
    assert {"spark.scheduler.mode": scheduler} == SCHEDULER


@pytest.mark.spark
@pytest.mark.law("L8")
def test_lost_lease_ends_only_the_work_on_its_group(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = lakes(lake, 3)
    lost = many[1]
    real = apply.append_changes

    def overtaken(bench: Any, target: Any, chain: Any) -> None:
        if chain.links[0].batch.gateway == lost.gateway:
            bench.lease._lost = True
        real(bench, target, chain)

    monkeypatch.setattr(apply, "append_changes", overtaken)
    with pytest.raises(Exception, match="lost its lease"):
        lake.run()
    monkeypatch.setattr(apply, "append_changes", real)

    assert [is_whole(one) for one in many if one is not lost] == [True, True]
    lake.store.pause(LEASE_S + 1)
    assert lake.run().problem() == ""
    assert is_whole(lost)


@pytest.mark.spark
def test_run_takes_no_new_tables_after_its_time_is_over(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = lakes(lake, 2)
    monkeypatch.setattr(run, "TAKING_S_MAX", -1.0)

    assert lake.run().applied == {}
    monkeypatch.undo()
    assert len(lake.run().applied) == len(many)
