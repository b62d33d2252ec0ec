"""Two ways into the state table, merge and rewrite: which is taken when, and what both keep."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as sf

from lakesync_spark.iceberg import apply, state_merge, table_run
from tests.support.builders import delete, insert, update

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.glue.support.lake import Lake

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("compiled")]


@pytest.mark.law("L1")
@pytest.mark.parametrize("per_row", [0, math.inf], ids=["rewrites", "merges"])
def test_only_changed_rows_get_a_new_synced_at(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, per_row: float
) -> None:
    monkeypatch.setattr(state_merge, "REWRITE_DELTAS_PER_ROW", per_row)
    lake.put([insert(f"r{n}", at=9, n=1) for n in range(3)])
    lake.run()
    first = lake.rows()
    lake.store.pause(60)
    lake.put([update("r0", at=10, n=2), update("r1", at=8, n=2), insert("r3", at=9, n=1)])
    lake.run()
    rows = lake.rows()

    assert [rows[name] == first[name] for name in ("r0", "r1", "r2")] == [False, True, True]
    assert rows["r0"]["_synced_at"] == rows["r3"]["_synced_at"] > first["r0"]["_synced_at"]
    assert {name: row["_commit"] for name, row in rows.items()} == {
        "r0": 6, "r1": 3, "r2": 3, "r3": 6,
    }  # fmt: skip


@pytest.mark.law("L15")
@pytest.mark.parametrize("per_row", [0, math.inf], ids=["rewrites", "merges"])
def test_incremental_reader_by_commit_misses_nothing_of_a_run_with_several_commits(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, per_row: float
) -> None:
    """The reader comes between any two commits to the table, and takes what it has not seen."""
    monkeypatch.setattr(state_merge, "REWRITE_DELTAS_PER_ROW", per_row)
    monkeypatch.setattr(table_run, "FOLD_DELTAS_MAX", 1)
    real = state_merge.merge_state
    seen: dict[str, dict[str, Any]] = {}
    times = set()

    def merge_and_read(*step: Any) -> None:
        real(*step)
        upto = max((row["_commit"] for row in seen.values()), default=0)
        later = {name: row for name, row in lake.rows().items() if row["_commit"] > upto}
        assert later
        seen.update(later)
        [time] = {row["_synced_at"] for row in later.values()}
        assert time not in times
        times.add(time)
        lake.store.pause(1)

    monkeypatch.setattr(apply, "merge_state", merge_and_read)
    for place in range(3):
        lake.put([insert(f"r{place}", at=9, n=place), update("r0", at=10 + place, n=place)])
    lake.run()

    assert len(times) == 3
    assert seen == lake.rows()


@pytest.mark.parametrize(("rows", "operation"), [(1, "overwrite"), (9, "delete")])
def test_batch_as_large_as_the_table_rewrites_it_and_smaller_ones_add_delete_files(
    lake: Lake, rows: int, operation: str
) -> None:
    """Otherwise its rows go to files of their own, and delete files take the old ones away."""
    lake.put([insert(f"r{n}", at=9, n=1) for n in range(rows)])
    lake.run()
    lake.put([update("r0", at=10, n=2)])
    lake.run()
    last = lake.read(f"{lake.name.rows}.snapshots").orderBy("committed_at").collect()[-1]

    assert ("added-delete-files" in last["summary"]) == (operation == "delete")
    assert lake.visible()["r0"] == {"n": "2"}


def last_summary(lake: Lake) -> dict[str, str]:
    """Return what the state table's current snapshot counts."""
    snapshots = lake.read(f"{lake.name.rows}.snapshots").orderBy("committed_at").collect()
    summary: dict[str, str] = snapshots[-1]["summary"]
    return summary


def test_dead_rows_trigger_a_rewrite(lake: Lake) -> None:
    """However small the batches: readers never go through more dead rows than live ones."""
    lake.put([insert(f"r{n}", at=9, n=0) for n in range(8)])
    lake.run()
    dead = []
    for at in range(10, 14):
        lake.put([update(f"r{n}", at=at, n=at) for n in range(3)])
        lake.run()
        dead.append(int(last_summary(lake)["total-position-deletes"]))

    assert dead == [3, 6, 0, 3]
    assert last_summary(lake)["total-delete-files"] == "1"
    assert [row["n"] for _, row in sorted(lake.visible().items())] == ["13"] * 3 + ["0"] * 5


@pytest.fixture
def many_tasks(lake: Lake) -> Iterator[None]:
    """Let Spark use 16 tasks where it shuffles, however little there is for each."""
    settings = {
        "spark.sql.shuffle.partitions": "16",
        "spark.sql.adaptive.coalescePartitions.enabled": "false",
    }
    before = {name: lake.spark.conf.get(name) for name in settings}
    for name, value in settings.items():
        lake.spark.conf.set(name, value)
    yield
    for name, was in before.items():
        lake.spark.conf.set(name, str(was))


@pytest.mark.parametrize("per_row", [0, math.inf], ids=["rewrites", "merges"])
def test_similar_commits_reuse_compiled_java_code(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, per_row: float
) -> None:
    """Code that differed in a commit or a time would be most of what a small merge costs."""
    monkeypatch.setattr(state_merge, "REWRITE_DELTAS_PER_ROW", per_row)
    jvm: Any = lake.spark._jvm
    metric = jvm.org.apache.spark.metrics.source.CodegenMetrics.METRIC_COMPILATION_TIME()
    compiled = []
    for at in range(4):
        before = metric.getCount()
        lake.put([update("r0", at=10 + at, n=at), insert(f"r{at}", at=20, n=1, m="a")])
        assert lake.run().problem() == ""
        compiled.append(metric.getCount() - before)
        lake.store.pause(7)

    assert metric.getCount() > 0, "it counts"
    assert compiled[3] == 0


@pytest.mark.usefixtures("many_tasks")
def test_merge_into_a_sorted_table_writes_at_most_one_delete_file_per_data_file(
    lake: Lake,
) -> None:
    """Rows that are next to each other in a file are changed by tasks all over."""
    lake.put([insert(f"r{n:03}", at=9, n=0) for n in range(200)])
    lake.run()
    rows = lake.read(lake.name.rows).localCheckpoint()  # as a compaction that sorts leaves them
    rows.repartitionByRange(4, "_id").writeTo(lake.name.rows).overwrite(sf.lit(True))
    assert last_summary(lake)["total-data-files"] == "4"
    lake.put([update(f"r{n:03}", at=10, n=1) for n in range(0, 200, 2)])
    lake.run()
    summary = last_summary(lake)

    assert summary["added-position-deletes"] == "100"
    assert int(summary["added-delete-files"]) <= 4
    assert sum(row["n"] == "1" for row in lake.visible().values()) == 100


@pytest.mark.law("L1")
def test_a_table_without_columns_has_rows(lake: Lake) -> None:
    lake.put([insert("r1", at=5)])
    lake.run()
    lake.put([delete("r1", at=6), insert("r2", at=7)])
    lake.run()
    lake.put([update("r2", at=8, n=1)])
    lake.run()

    assert lake.visible() == {"r2": {"n": "1"}}
    assert lake.rows()["r1"]["_is_deleted"]
