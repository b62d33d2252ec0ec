"""A run is killed between any two of its steps, and another comes after it, or beside it."""

from __future__ import annotations

import math
from dataclasses import replace
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

import pytest

from lakesync.core.schema import Column, TableSchema
from lakesync.errors import Conflict
from lakesync.materialise import work_queue
from lakesync.materialise.work_queue import LEASE_S, Lease, group_of
from lakesync_spark.iceberg import apply, branch_write, retype, state_merge, table_run
from tests.glue.support.spark import BESIDE
from tests.support.builders import delete, insert, update
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.glue.support.lake import Lake

pytestmark = pytest.mark.spark


class Killed(BaseException):
    """The process is gone: nothing that comes after it happens, not even a release."""


def kill(patch: pytest.MonkeyPatch, owner: Any, step: str, *, after: bool, call: int = 1) -> None:
    """Let the process die right before, or right after, a call of a step."""
    real: Callable[..., Any] = getattr(owner, step)
    calls = iter(range(1, 100))

    def step_and_die(*args: Any, **kwargs: Any) -> Any:
        if next(calls) != call:
            return real(*args, **kwargs)
        if after:
            real(*args, **kwargs)
        raise Killed

    patch.setattr(owner, step, step_and_die)
    # The lease of a process that is gone stays on record, and is renewed no more.
    patch.setattr(work_queue.Lease, "__exit__", lambda one, *_: one._released.set())


POINTS = [
    ("prepare", 1, False),
    ("prepare", 1, True),
    ("prepare", 2, True),
    ("append_changes", 1, True),
    ("merge_state", 1, True),
    ("forget", 1, True),
]


@pytest.mark.law("L6")
@pytest.mark.parametrize(
    ("step", "call", "after"), POINTS, ids=[f"{s}-{c}-{a and 'after'}" for s, c, a in POINTS]
)
def test_killed_run_is_repaired_by_the_next(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, step: str, call: int, *, after: bool
) -> None:
    lake.put([insert("r1", at=5, n=1), insert("r2", at=6, n=1)])
    lake.run()
    lake.put([update("r1", at=7, n=2), insert("r3", at=8, m=1)])
    with monkeypatch.context() as patch:
        kill(patch, apply, step, after=after, call=call)
        with pytest.raises(Killed):
            lake.run()
    report = lake.run()

    assert report.problem() == ""
    assert {name: row["n"] for name, row in lake.visible().items()} == {
        "r1": "2", "r2": "1", "r3": None,
    }  # fmt: skip
    assert [change["_commit"] for change in lake.changes()] == [1, 2, 3, 4]
    assert {mark.commit for mark in lake.marks().values()} == {4}
    assert lake.pending() == []


STEPS = [
    ("open_branch", True), ("add_rows", True), ("delete_replaced", True), ("publish", False),
    ("publish", True),
]  # fmt: skip


@pytest.mark.law("L6", "L7")
@pytest.mark.parametrize(("step", "after"), STEPS, ids=[f"{s}-{a and 'after'}" for s, a in STEPS])
def test_run_killed_while_merging_on_a_branch_is_repaired_by_the_next(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, step: str, *, after: bool
) -> None:
    monkeypatch.setattr(state_merge, "REWRITE_DELTAS_PER_ROW", math.inf)
    lake.put([insert("r1", at=5, n=1), insert("r2", at=6, n=1)])
    lake.run()
    before = lake.rows()
    lake.put([update("r1", at=7, n=2), insert("r3", at=8, n=1), delete("r2", at=9)])
    with monkeypatch.context() as patch:
        kill(patch, branch_write, step, after=after)
        with pytest.raises(Killed):
            lake.run()
    seen = lake.rows()
    is_published = step == "publish" and after
    assert (seen == before) is not is_published, "all of it, or nothing"
    assert lake.run().problem() == ""

    assert {name: row["n"] for name, row in lake.visible().items()} == {"r1": "2", "r3": "1"}
    assert not is_published or lake.rows() == seen
    assert {mark.commit for mark in lake.marks().values()} == {5}
    assert refs(lake) == ["lakesync", "main"]


def refs(lake: Lake) -> list[str]:
    return sorted(row["name"] for row in lake.read(f"{lake.name.rows}.refs").collect())


@pytest.mark.law("L7", "L16")
def test_merge_restarts_after_a_concurrent_compaction(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_merge, "REWRITE_DELTAS_PER_ROW", math.inf)
    for at in (5, 6):
        lake.put([insert(f"r{at}", at=at, n=1)])
        lake.run()
    lake.put([update("r5", at=7, n=2)])
    real = branch_write.publish
    tries: list[str] = []

    def compact_first(spark: Any, table: Any, branch: str, start: int) -> None:
        if not tries:
            name = lake.name.rows.partition(".")[2]
            lake.spark.sql(
                f"CALL {lake.catalog}.system.rewrite_data_files(table => '{name}',"
                " options => map('rewrite-all', 'true'))"
            )
        tries.append(branch)
        real(spark, table, branch, start)

    monkeypatch.setattr(branch_write, "publish", compact_first)
    report = lake.run()

    assert report.problem() == ""
    assert len(set(tries)) == 2
    assert lake.visible() == {"r5": {"n": "2"}, "r6": {"n": "1"}}
    assert {mark.commit for mark in lake.marks().values()} == {3}
    assert refs(lake) == ["lakesync", "main"]


SCHEMA = TableSchema("todos", (Column("n", "number"), Column("m", "string")))


@pytest.mark.law("L6", "L10")
@pytest.mark.parametrize("step", ["add_helpers", "fill_helpers"])
def test_run_killed_while_converting_columns_is_repaired_by_the_next(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    lake.put([insert("r1", at=5, n=1, m="a")])
    lake.run()
    lake.put([update("r1", at=7, n=2)], schema=SCHEMA)
    for call in (1, 2):  # the changes table, then the state table
        with monkeypatch.context() as patch:
            kill(patch, retype, step, after=True, call=call)
            with pytest.raises(Killed):
                lake.run()
    lake.run()

    assert lake.visible() == {"r1": {"n": 2.0, "m": "a"}}
    assert [(change["n"], change["m"]) for change in lake.changes()] == [(1.0, "a"), (2.0, None)]


def beside(lake: Lake, monkeypatch: pytest.MonkeyPatch, step: str) -> Any:
    """Run twice at once: the second run does all its work while the first is about to do a step.

    The lease of the first has run out by then; it knows when it looks next.
    """
    real = getattr(apply, step)
    another = replace(lake, catalog=lake.beside)
    seconds = []

    def overtaken(*args: Any, **kwargs: Any) -> Any:
        monkeypatch.setattr(apply, step, real)
        lake.store.pause(LEASE_S + 1)
        seconds.append(another.run())
        # As a process would go on that was stopped right behind its last look at the lease.
        with monkeypatch.context() as patch:
            patch.setattr(Lease, "check", lambda _: None)
            return real(*args, **kwargs)

    monkeypatch.setattr(apply, step, overtaken)
    with pytest.raises(Conflict, match="lost its lease"):
        lake.run()
    return seconds[0]


@pytest.mark.law("L7", "L8")
@pytest.mark.parametrize("step", ["append_changes", "merge_state"])
@pytest.mark.parametrize("loads", ["first load", "rewrite", "merge"])
def test_two_concurrent_runs_apply_each_commit_once(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, step: str, loads: str
) -> None:
    expected = {"r1": {"n": "2"}}
    monkeypatch.setattr(
        state_merge, "REWRITE_DELTAS_PER_ROW", 0 if loads == "rewrite" else math.inf
    )
    if loads != "first load":
        lake.put([insert("r0", at=4, n=0)])
        lake.run()
        expected["r0"] = {"n": "0"}
    lake.put([insert("r1", at=5, n=1), update("r1", at=6, n=2)])
    second = beside(lake, monkeypatch, step)

    assert second.problem() == ""
    assert lake.visible() == expected
    commits = [change["_commit"] for change in lake.changes()]
    assert commits == sorted(set(commits)), "no delta twice"
    assert {mark.commit for mark in lake.marks().values()} == {len(commits)}
    lake.put([update("r1", at=9, n=3)])
    lake.store.pause(LEASE_S + 1)
    assert lake.run().problem() == ""
    assert lake.visible()["r1"] == {"n": "3"}


@pytest.mark.law("L7")
@pytest.mark.parametrize("call", ["claims", "read"])
def test_run_that_lost_its_lease_fails_even_if_the_store_refuses_its_calls(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    lake.put([insert("r1", at=5, n=1)])
    real, asked = getattr(lake.store, call), f"{lake.gateway}/todos"

    def overtaken(key: str = "") -> Any:
        if asked not in key:
            return real(key)
        monkeypatch.setattr(lake.store, call, real)
        lake.store.pause(LEASE_S + 1)
        assert replace(lake, catalog=BESIDE).run().problem() == ""
        raise OSError("SlowDown")

    monkeypatch.setattr(lake.store, call, overtaken)
    with pytest.raises(Conflict, match="lost its lease"):
        lake.run()
    assert lake.visible() == {"r1": {"n": "1"}}


@pytest.mark.law("L7")
@pytest.mark.parametrize("per_row", [0, math.inf], ids=["rewrites", "merges"])
def test_merge_overtaken_midway_by_another_run_fails(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, per_row: float
) -> None:
    monkeypatch.setattr(state_merge, "REWRITE_DELTAS_PER_ROW", per_row)
    lake.put([insert("r1", at=5, n=1)])
    lake.run()
    lake.put([update("r1", at=6, n=2)])
    merging, overtaken = Event(), Event()
    late = iter([True])
    name = "replace_rows" if per_row else "overwrite"
    real = getattr(state_merge, name)

    def slow(*arguments: Any, **named: Any) -> None:
        if next(late, False):
            merging.set()
            assert overtaken.wait(PATIENCE_S)
        real(*arguments, **named)

    def run_slowly() -> None:
        with pytest.raises(Conflict, match="lost its lease"):
            replace(lake, catalog=BESIDE).run()

    monkeypatch.setattr(state_merge, name, slow)
    first = Thread(target=run_slowly)
    first.start()
    assert merging.wait(PATIENCE_S)
    lake.store.pause(LEASE_S + 1)
    assert lake.run().problem() == ""
    overtaken.set()
    first.join(PATIENCE_S)
    current = {row["snapshot_id"] for row in lake.read(f"{lake.name.rows}.history").collect()}
    snapshots = lake.read(f"{lake.name.rows}.snapshots").orderBy("committed_at").collect()
    seen = [snapshot["summary"] for snapshot in snapshots if snapshot["snapshot_id"] in current]

    assert [summary["lakesync.epoch"] for summary in seen] == ["1", "3"]
    assert lake.visible() == {"r1": {"n": "2"}}


@pytest.mark.law("L8")
def test_epochs_keep_growing_after_the_lease_object_is_deleted(lake: Lake) -> None:
    lake.put([insert("r1", at=5, n=1)])
    lake.run()
    lake.put([update("r1", at=6, n=2)])
    lake.run()
    lake.store.delete(work_queue.lease_key(group_of(lake.gateway)))
    lake.put([update("r1", at=7, n=3)])
    lake.run()

    assert lake.visible() == {"r1": {"n": "3"}}
    assert {mark.epoch for mark in lake.marks().values()} == {3}


@pytest.mark.law("L8")
def test_run_that_finds_the_group_leased_ends_without_a_failure(lake: Lake) -> None:
    lake.put([insert("r1", at=5, n=1)])
    other = Lease.acquire(lake.store, group_of(lake.gateway), "another")  # type: ignore[arg-type]
    lake.store.meanwhile = other.check if other else None
    report = lake.run()

    assert other is not None
    assert report.leased_by_another
    assert report.problem() == ""
    assert len(lake.pending()) == 1
    assert table_run.WAIT_S_MAX > LEASE_S
