"""A state table that is made anew of its changes: the rows of the core, whatever was done to it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]

from lakesync.errors import Conflict, NotFound, ValidationFailed
from lakesync_spark.common.arguments import MaintenanceArguments
from lakesync_spark.iceberg import rebuild as module
from lakesync_spark.iceberg.rebuild import rebuild
from lakesync_spark.iceberg.writing import overwrite
from tests.glue.support.lake import PREFIX
from tests.glue.test_merge_agrees_with_core import FINAL, SLOW, agree, fresh, tables
from tests.support.builders import delete, insert, update

if TYPE_CHECKING:
    from lakesync.core.delta import Delta
    from lakesync.core.schema import TableSchema
    from lakesync_spark.iceberg.rebuild import RebuildReport
    from tests.glue.support.lake import Lake

pytestmark = pytest.mark.spark

DELTAS = [
    *(insert(f"r{n}", at=n + 1, n=n, title=f"t{n}") for n in range(6)),
    update("r1", at=20, n=None),
    delete("r2", at=21),
    update("r3", at=22, title={"deep": [1, None]}),
]
BY_HAND = (
    "DELETE FROM {rows} WHERE _id = 'r0'",
    "UPDATE {rows} SET title = '\"mine\"' WHERE _id = 'r4'",
    "UPDATE {rows} SET _id = 'stranger' WHERE _id = 'r5'",
)


def rebuilt(lake: Lake, how: str = "yes", table: str = "todos") -> RebuildReport:
    only = f"{lake.gateway}/{table}".rstrip("/")
    arguments = MaintenanceArguments(
        "lake", PREFIX, lake.catalog, lake.stack, 0, only=only, rebuild=how
    )
    return rebuild(lake.spark, lake.store, arguments, "rebuild")  # type: ignore[arg-type]


def begun(lake: Lake) -> None:
    lake.put(DELTAS[:5])
    lake.run()
    lake.put(DELTAS[5:])
    lake.run()


@pytest.mark.law("L23")
def test_rebuild_reverts_manual_changes_and_keeps_the_batch_mark(lake: Lake) -> None:
    begun(lake)
    before, marks = lake.rows(), lake.marks()
    for statement in BY_HAND:
        lake.spark.sql(statement.format(rows=lake.name.rows))
    spoilt = lake.rows()

    tried = rebuilt(lake, "dry")
    assert lake.rows() == spoilt
    assert (tried.rows, tried.missing, tried.changed, tried.surplus) == (6, 2, 1, 1)
    assert not tried.written

    done = rebuilt(lake)
    assert (done.missing, done.changed, done.surplus, done.written) == (2, 1, 1, True)
    agree(lake, DELTAS)
    assert lake.marks()["rows"].commit == marks["rows"].commit
    for row_id in ("r1", "r2", "r3"):
        assert lake.rows()[row_id] == before[row_id], "what was as it should be is not touched"
    assert rebuilt(lake).written is False

    more = [update("r0", at=30, n=7), update("r5", at=31, title="on it goes")]
    lake.put(more)
    assert lake.run().problem() == ""
    agree(lake, [*DELTAS, *more])


@pytest.mark.law("L1", "L23")
@pytest.mark.parametrize("schema", [None, FINAL], ids=["updates count", "deletes win"])
@given(deltas=tables())
@settings(SLOW, max_examples=1)
def test_rebuild_recreates_a_dropped_table(
    lake: Lake, deltas: list[Delta], schema: TableSchema | None
) -> None:
    table = fresh(lake)
    table.put(deltas, schema=schema)
    table.run()
    states = table.states()
    table.spark.sql(f"DROP TABLE {table.name.rows} PURGE")

    assert rebuilt(table, "dry").missing == len(states)
    done = rebuilt(table)

    assert (done.made, done.written, done.missing) == (True, True, len(states))
    assert table.states() == states
    agree(table, deltas, delete_wins=schema is FINAL)
    assert table.marks()["rows"].commit == table.marks()["changes"].commit


@pytest.mark.law("L6", "L23")
def test_killed_rebuild_leaves_the_table_unchanged_and_the_next_completes_it(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun(lake)
    lake.spark.sql(BY_HAND[0].format(rows=lake.name.rows))
    spoilt = lake.rows()

    def dies(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(module, "overwrite", dies)
        with pytest.raises(KeyboardInterrupt):
            rebuilt(lake)
    assert lake.rows() == spoilt
    rebuilt(lake)

    agree(lake, DELTAS)


@pytest.mark.law("L7", "L23")
def test_rebuild_overtaken_by_a_concurrent_write_writes_nothing(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun(lake)
    lake.spark.sql(BY_HAND[0].format(rows=lake.name.rows))

    def overtaken(*arguments: Any) -> None:
        others = lake.name.rows.replace(f"`{lake.catalog}`", f"`{lake.beside}`")
        lake.spark.sql(BY_HAND[1].format(rows=others))
        overwrite(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(module, "overwrite", overtaken)
        with pytest.raises(Py4JJavaError, match="conflicting"):
            rebuilt(lake)
    assert "r0" not in lake.rows()
    rebuilt(lake)

    agree(lake, DELTAS)


@pytest.mark.law("L23")
def test_rebuild_is_refused_where_changes_cannot_give_the_table(lake: Lake) -> None:
    with pytest.raises(NotFound, match="is made by its first batch"):
        rebuilt(lake)
    with pytest.raises(ValidationFailed, match="a rebuild is of one table"):
        rebuilt(lake, table="")
    begun(lake)
    first = lake.read(f"{lake.name.changes}.snapshots").orderBy("committed_at").first()
    assert first is not None
    table = lake.name.changes.partition(".")[2]
    lake.spark.sql(
        f"CALL {lake.catalog}.system.rollback_to_snapshot('{table}', {first['snapshot_id']})"
    )

    with pytest.raises(Conflict, match="goes further than its changes"):
        rebuilt(lake)
