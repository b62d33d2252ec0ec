"""What a run does with what waits: marks, gaps, overlaps, repeats, failures."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from lakesync.core.config import JSON, READS
from lakesync.materialise.lake_schema import BatchMark
from lakesync.materialise.work_queue import Lease
from lakesync_spark.iceberg import table_run
from tests.glue.support.lake import Lake
from tests.support.builders import delete, insert, update

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


pytestmark = pytest.mark.spark


@pytest.mark.law("L1", "L3", "L4")
def test_batches_become_rows_and_changes(lake: Lake) -> None:
    lake.put([insert("r1", at=5, title="a", n=1), insert("r2", at=6, title="b")])
    lake.put([update("r1", at=7, title="z"), delete("r2", at=8)], form=JSON)
    report = lake.run()

    assert report.applied == {f"{lake.gateway}/todos": {"batches": 2, "deltas": 4, "commit": 4}}
    assert report.problem() == ""
    assert lake.visible() == {"r1": {"n": "1", "title": '"z"'}}
    assert lake.rows()["r2"]["_is_deleted"]
    assert [(c["_commit"], c["_op"], c["_id"], c["_columns"]) for c in lake.changes()] == [
        (1, "INSERT", "r1", ["n", "title"]),
        (2, "INSERT", "r2", ["title"]),
        (3, "UPDATE", "r1", ["title"]),
        (4, "DELETE", "r2", []),
    ]
    assert lake.marks() == {"rows": BatchMark(4, 1), "changes": BatchMark(4, 1)}
    assert lake.pending() == []


@pytest.mark.law("L4")
def test_repeated_batch_changes_nothing(lake: Lake) -> None:
    first = lake.put([insert("r1", at=5, n=1)])
    second = lake.put([update("r1", at=6, n=2)])
    lake.run()
    before = lake.states(), lake.changes()
    for batch in (second, first, second):
        lake.claim(batch)
        lake.run()

    assert (lake.states(), lake.changes()) == before
    assert lake.pending() == []


@pytest.mark.law("L5")
def test_a_batch_behind_a_gap_waits_and_is_reported(lake: Lake, spark: SparkSession) -> None:
    lake.put([insert("r1", at=5, n=1)])
    missing = lake.put([update("r1", at=6, n=2)])
    lake.store.delete(missing.claim_key)
    later = lake.put([update("r1", at=7, m=3)])
    report = lake.run()

    assert lake.visible() == {"r1": {"n": "1"}}
    assert report.waiting == {f"{lake.gateway}/todos": 1}
    assert report.problem() == ""
    assert lake.pending() == [f"{later.range_name}.json"]

    lake.claim(missing)
    assert lake.run().waiting == {}
    assert lake.visible() == {"r1": {"n": "2", "m": "3"}}
    assert [change["_commit"] for change in lake.changes()] == [1, 2, 3]


@pytest.mark.law("L5")
def test_first_batch_of_a_table_must_begin_at_zero(lake: Lake) -> None:
    lake.put([insert("r1", at=5, n=1)], after=7, commits=[9])
    report = lake.run()

    assert report.waiting == {f"{lake.gateway}/todos": 1}
    assert lake.marks() == {}


@pytest.mark.law("L5")
def test_gap_that_lasts_too_long_fails_the_run(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_run, "WAIT_S_MAX", 0.5)
    lake.put([insert("r1", at=5, n=1)], after=7, commits=[9])

    assert "missing" in lake.run().problem()


@pytest.mark.law("L4")
def test_overlapping_batches_count_each_commit_once(lake: Lake) -> None:
    deltas = [insert(f"r{n}", at=10 + n, n=n) for n in range(4)]
    lake.put(deltas[:2], after=0)
    lake.put(deltas, after=0)
    lake.run()

    assert [change["_commit"] for change in lake.changes()] == [1, 2, 3, 4]
    assert lake.pending() == []


@pytest.mark.law("L4")
def test_a_longer_repeat_of_an_applied_batch_adds_only_what_is_new(lake: Lake) -> None:
    deltas = [insert(f"r{n}", at=10 + n, n=n) for n in range(4)]
    lake.put(deltas[:2], after=0)
    lake.run()
    lake.put(deltas, after=0)
    lake.run()

    assert [change["_commit"] for change in lake.changes()] == [1, 2, 3, 4]
    assert sorted(lake.visible()) == ["r0", "r1", "r2", "r3"]


@pytest.mark.law("L1", "L4")
def test_the_order_in_which_batches_arrive_does_not_matter(lake: Lake) -> None:
    writes = [insert(at=3, n=1), update(at=9, n=2), update(at=5, n=3), delete(at=4)]
    lakes: list[Lake] = []
    for order in itertools.permutations(writes[:3]):
        one = Lake(lake.spark, lake.store, f"{lake.gateway}-{len(lakes)}")
        for delta in (*order, writes[3]):
            one.put([delta])
        lakes.append(one)
    lake.run()

    assert {str(one.states()) for one in lakes} == {str(lakes[0].states())}
    assert lakes[0].visible() == {"r1": {"n": "2"}}


@pytest.mark.law("L9")
def test_unreadable_object_stops_only_its_table(lake: Lake, spark: SparkSession) -> None:
    other = Lake(spark, lake.store, f"{lake.gateway}-other")
    other.put([insert("r1", at=5, n=1)])
    lake.put([insert("r1", at=5, n=1)])
    bad = lake.put([update("r1", at=6, n=2)])
    lake.put([update("r1", at=7, n=3)])
    lake.store.put(bad.object_key, b"not parquet")
    report = lake.run()

    assert other.visible() == {"r1": {"n": "1"}}
    assert lake.visible() == {"r1": {"n": "1"}}, "what came before it is there"
    assert [(f.table, f.set_aside) for f in report.failed] == [(f"{lake.gateway}/todos", True)]
    assert report.problem().startswith(
        f"{lake.gateway}/todos: ValidationFailed: the object {bad.object_key} cannot be read: "
    )
    assert lake.store.keys("claims-failed") == [bad.claim_key.replace("claims", "claims-failed", 1)]
    assert report.waiting == {f"{lake.gateway}/todos": 1}, "what comes after it waits"


@pytest.mark.law("L9")
@pytest.mark.parametrize("call", ["claims", "read"])
def test_claims_of_a_temporarily_unreadable_table_wait_and_other_tables_proceed(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    other = replace(lake, table="notes", batches=[])
    for each in (lake, other):
        each.put([insert("r1", at=5, n=1)])
    real, asked = getattr(lake.store, call), f"{lake.gateway}/todos"

    def refused(key: str = "") -> Any:
        if asked in key:
            raise OSError("SlowDown")
        return real(key)

    with monkeypatch.context() as patch:
        patch.setattr(lake.store, call, refused)
        report = lake.run()

    assert other.visible() == {"r1": {"n": "1"}}
    assert [(f.table, f.reason, f.set_aside) for f in report.failed] == [
        (asked, "OSError: SlowDown", False)
    ]
    assert len(lake.pending()) == 1
    assert lake.run().problem() == ""
    assert lake.visible() == {"r1": {"n": "1"}}


@pytest.mark.law("L9")
def test_batch_with_a_missing_object_is_set_aside(lake: Lake) -> None:
    gone = lake.put([insert("r1", at=5, n=1)])
    lake.store.delete(gone.object_key)

    assert [failure.set_aside for failure in lake.run().failed] == [True]
    assert lake.pending() == []


@pytest.mark.law("L9")
def test_malformed_claim_is_set_aside(lake: Lake) -> None:
    lake.store.put("claims/g/t/1.json", b"{")
    report = lake.run()

    assert [failure.table for failure in report.failed] == ["claims/g/t/1.json"]
    assert lake.store.keys("claims") == []


@pytest.mark.law("B14")
def test_a_claim_of_a_later_release_waits_for_that_release(lake: Lake) -> None:
    later = json.dumps({"version": READS + 1}).encode()
    lake.store.put("claims/g/t/1.json", later)
    report = lake.run()

    assert [failure.set_aside for failure in report.failed] == [False]
    assert "written by a later release" in report.problem()
    assert lake.store.keys("claims") == ["claims/g/t/1.json"]
    lake.store.delete("claims/g/t/1.json")


@pytest.mark.law("L9")
def test_claim_is_kept_after_a_transient_fault_and_applied_by_the_next_run(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.put([insert("r1", at=5, n=1)])
    with monkeypatch.context() as broken:
        broken.setattr("lakesync_spark.iceberg.apply.merge_state", _fails)
        report = lake.run()

    assert [failure.set_aside for failure in report.failed] == [False]
    assert len(lake.pending()) == 1
    assert lake.run().problem() == ""
    assert lake.visible() == {"r1": {"n": "1"}}
    assert len(lake.changes()) == 1


@pytest.mark.law("L12")
def test_claim_that_arrives_as_the_lease_is_released_is_applied(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was announced to a run that found the lease held, and went home."""
    lake.put([insert("r1", at=5, n=1)])
    real = Lease.__exit__
    late = iter([[update("r1", at=6, n=2)]])

    def release(lease: Lease, *error: object) -> None:
        for deltas in late:
            lake.put(deltas)
        real(lease, *error)  # type: ignore[arg-type]

    monkeypatch.setattr(Lease, "__exit__", release)
    report = lake.run()

    assert lake.visible() == {"r1": {"n": "2"}}
    assert report.applied[f"{lake.gateway}/todos"]["commit"] == 2


@pytest.mark.law("L14")
def test_table_of_another_stack_is_unchanged_and_its_batch_waits(lake: Lake) -> None:
    lake.put([insert("r1", at=5, n=1)])
    lake.run()
    before = lake.states(), lake.changes()
    lake.put([update("r1", at=6, n=2)])
    owner, lake.stack = lake.stack, "arn:aws:cloudformation:us-east-1:1:stack/two/2"
    report = lake.run()

    assert f"belongs to {owner}, and this is {lake.stack}" in report.problem()
    assert len(lake.pending()) == 1
    lake.stack = owner
    assert (lake.states(), lake.changes()) == before
    assert lake.run().problem() == ""
    assert lake.visible() == {"r1": {"n": "2"}}


def test_run_without_claims_reports_nothing(lake: Lake) -> None:
    report = lake.run()

    assert (report.applied, report.failed, report.waiting) == ({}, [], {})


def _fails(*_: object) -> None:
    raise RuntimeError("the network went away")


def test_chain_is_split_where_a_fold_would_exceed_its_limit(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_run, "FOLD_DELTAS_MAX", 1)
    for n in range(3):
        lake.put([insert(f"r{n}", at=5 + n, n=n)])
    lake.run()

    snapshots = lake.read(f"{lake.name.changes}.snapshots").count()
    assert snapshots == 3
    assert len(lake.changes()) == 3
