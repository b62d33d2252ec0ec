"""Marks outlive what others do to a table: compaction, and the expiry of snapshots."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest

from lakesync.errors import Conflict
from lakesync.materialise.lake_schema import COMMIT, EPOCH, MARK_TAG, BatchMark
from lakesync_spark.iceberg.lake_table import LakeTable
from lakesync_spark.iceberg.tables import find_table
from tests.glue.support.spark import BESIDE
from tests.support.builders import insert, update

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.glue.support.lake import Lake

pytestmark = pytest.mark.spark


def call(lake: Lake, table: str, procedure: str, arguments: str) -> None:
    name = table.partition(".")[2]
    lake.spark.sql(f"CALL {lake.catalog}.system.{procedure}(table => '{name}', {arguments})")


def compact(lake: Lake, table: str) -> None:
    call(lake, table, "rewrite_data_files", "options => map('rewrite-all', 'true')")


def expire(lake: Lake, table: str) -> None:
    call(lake, table, "expire_snapshots", "older_than => TIMESTAMP '2999-01-01', retain_last => 1")


def snapshot_ids(lake: Lake, table: str) -> list[int]:
    snapshots = lake.read(f"{table}.snapshots").orderBy("committed_at").collect()
    return [snapshot["snapshot_id"] for snapshot in snapshots]


@pytest.mark.law("L4", "L16")
def test_batch_mark_survives_compaction_and_expiry_of_snapshots(lake: Lake) -> None:
    lake.put([insert("r1", at=5, n=1), insert("r2", at=5, n=1)])
    lake.run()
    again = lake.put([update("r1", at=6, n=2)])
    lake.run()
    for table in (lake.name.rows, lake.name.changes):
        marked = snapshot_ids(lake, table)[-1]
        compact(lake, table)
        compact(lake, table)
        expire(lake, table)
        kept = snapshot_ids(lake, table)
        assert len(kept) == 2, "the current one, and the one that is tagged"
        assert kept[0] == marked
    assert lake.marks() == {"rows": BatchMark(3, 2), "changes": BatchMark(3, 2)}

    lake.claim(again)
    lake.put([update("r2", at=7, n=3)])
    assert lake.run().problem() == ""
    assert lake.visible() == {"r1": {"n": "2"}, "r2": {"n": "3"}}
    assert [change["_commit"] for change in lake.changes()] == [1, 2, 3, 4]
    assert lake.marks() == {"rows": BatchMark(4, 3), "changes": BatchMark(4, 3)}


@pytest.mark.law("L6", "L16")
def test_mark_tag_left_behind_by_a_crash_is_moved_by_the_next_run(lake: Lake) -> None:
    lake.put([insert("r1", at=5, n=1)])
    lake.run()
    first = snapshot_ids(lake, lake.name.rows)[-1]
    done = lake.put([update("r1", at=6, n=2)])
    lake.run()
    lake.spark.sql(f"ALTER TABLE {lake.name.rows} REPLACE TAG {MARK_TAG} AS OF VERSION {first}")
    lake.claim(done)
    lake.run()
    compact(lake, lake.name.rows)
    compact(lake, lake.name.rows)
    expire(lake, lake.name.rows)

    assert lake.marks()["rows"].commit == 2


class _Overtaken:
    """Iceberg's table, to which another run writes while its references are changed."""

    def __init__(self, java: Any, overtake: Callable[[], None]) -> None:
        self._java, self._overtake = java, overtake

    def __getattr__(self, name: str) -> Any:
        return getattr(self._java, name)

    def manageSnapshots(self) -> Any:  # noqa: N802 - Iceberg's name
        """Begin a change, and be overtaken."""
        change = self._java.manageSnapshots()
        self._overtake()
        return change


@pytest.mark.law("L7", "L16")
def test_mark_tag_is_moved_by_the_first_of_two_concurrent_runs(lake: Lake) -> None:
    lake.put([insert("r1", at=5, n=1)])
    lake.run()
    first = snapshot_ids(lake, lake.name.rows)[-1]
    lake.put([update("r1", at=6, n=2)])
    lake.run()
    lake.spark.sql(f"ALTER TABLE {lake.name.rows} REPLACE TAG {MARK_TAG} AS OF VERSION {first}")
    beside = replace(lake, catalog=BESIDE)
    late, early = (find_table(each.spark, each.name.rows, each.stack) for each in (lake, beside))
    assert late
    assert early
    real, times = late.java, count()

    def written() -> None:
        properties = f"('written' = '{next(times)}')"
        lake.spark.sql(f"ALTER TABLE {beside.name.rows} SET TBLPROPERTIES {properties}")

    vars(late)["_table"] = _Overtaken(real, written)
    with pytest.raises(Conflict, match="written to all the time"):
        late.keep_mark()
    assert real.snapshot(MARK_TAG).snapshotId() == first

    early.refresh()
    vars(late)["_table"] = _Overtaken(real, early.keep_mark)
    late.keep_mark()
    assert real.snapshot(MARK_TAG).snapshotId() == late.snapshot_id != first


@pytest.mark.law("L16")
def test_batch_mark_of_a_rolled_back_snapshot_is_not_used(lake: Lake) -> None:
    """A table that holds less than its mark says would jump commits."""
    table = lake.name.rows
    lake.put([insert("r1", at=5, n=1)])
    lake.run()
    compact(lake, table)
    before = snapshot_ids(lake, table)[-1]
    lake.put([update("r1", at=6, n=2)])
    lake.run()
    call(lake, table, "rollback_to_snapshot", f"snapshot_id => {before}")
    expire(lake, table)
    lake.put([update("r1", at=7, n=3)])
    report = lake.run()

    assert "carry its mark are gone" in report.problem()
    assert len(lake.pending()) == 1
    assert lake.visible() == {"r1": {"n": "1"}}


@pytest.mark.law("L16")
def test_reading_the_batch_mark_takes_as_many_calls_in_a_long_history(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table that is flushed every quarter of an hour has a thousand snapshots to expire."""
    lake.put([insert("r1", at=5, n=1)])
    lake.run()
    table = LakeTable(lake.spark, lake.name.rows)
    client: Any = table.java._gateway_client
    asked: list[str] = []
    real = client.send_command

    def send(command: str, *rest: Any, **how: Any) -> Any:
        if not command.startswith("m\n"):  # Python lets go of an object of Java whenever it likes
            asked.append(command)
        return real(command, *rest, **how)

    def looks() -> tuple[BatchMark, int]:
        table.refresh()
        table.keep_mark()
        with monkeypatch.context() as patch:
            patch.setattr(client, "send_command", send)
            asked.clear()
            table.keep_mark()
            return table.batch_mark(), len(asked)

    mark, few = looks()
    for commit in range(2, 40):
        marked = table.java.newAppend().set(COMMIT, str(commit)).set(EPOCH, "1")
        marked.commit()

    assert (mark.commit, few > 0) == (1, True)
    assert looks() == (BatchMark(39, 1), few)
