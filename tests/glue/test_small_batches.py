"""Small batches without Spark: the same rows as Spark's, whoever writes them, and whoever dies."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakesync.core.deliveries import parse_claim
from lakesync.core.delta import Op, make_delta
from lakesync.declare.schemas import read_schema
from lakesync.errors import Conflict
from lakesync.materialise import lake_rows, small_batches
from lakesync.materialise.iceberg_table import IcebergTable
from lakesync.materialise.small_batches import SmallBatches, SmallTable, Taken
from lakesync.materialise.work_queue import Lease, group_of_table
from lakesync_spark.iceberg import apply
from tests.glue.support.folder_catalogue import FolderCatalogue
from tests.glue.support.lake import PREFIX, STACK, Lake
from tests.glue.test_merge_agrees_with_core import FINAL, SLOW, agree, fresh, tables
from tests.glue.test_views import live_rows

if TYPE_CHECKING:
    from collections.abc import Callable

    from lakesync.core.deliveries import Batch
    from lakesync.core.delta import Delta
    from lakesync.core.schema import TableSchema

pytestmark = pytest.mark.spark

FULL = itertools.repeat(600.0).__next__


class Killed(BaseException):
    """The function ends here, whatever it was at."""


def table_of(lake: Lake) -> SmallTable:
    store: Any = lake.store
    if lake.opened is not None:
        return SmallTable(store, lake.opened(), PREFIX, STACK)
    warehouse = Path(urlsplit(str(lake.spark.conf.get("spark.sql.catalog.lake.warehouse"))).path)
    return SmallTable(store, FolderCatalogue(warehouse), PREFIX, STACK)


def take(lake: Lake, deltas_max: int = 10_000, merge_after_s: float = 0.0) -> Taken:
    lake.runs += 1
    run_id = f"function-{lake.runs}"
    store: Any = lake.store
    return SmallBatches(store, lambda: table_of(lake), deltas_max, run_id, merge_after_s).take(FULL)


def put(table: str, row_id: str, at: int, **columns: Any) -> Delta:
    return make_delta(Op.INSERT, table, row_id, columns, client_id="c", hlc=at)


def change(row_id: str, at: int, **columns: Any) -> Delta:
    return make_delta(Op.UPDATE, "todos", row_id, columns, client_id="d", hlc=at)


def gone(row_id: str, at: int) -> Delta:
    return make_delta(Op.DELETE, "todos", row_id, client_id="d", hlc=at)


def begun(lake: Lake) -> list[Delta]:
    """Make tables of some rows, by Spark."""
    deltas = [put("todos", f"r{n}", n + 1, title=f"t{n}", done=False) for n in range(6)]
    lake.put(deltas)
    lake.run()
    return deltas


def claimed_batch(lake: Lake, key: str) -> Batch:
    claim = lake.store.read(key)
    assert claim is not None
    return parse_claim(key, claim.body)


def unsynced(rows: Any) -> Any:
    """Return rows without the time at which they were synced."""
    return [{k: v for k, v in row.items() if k != "_synced_at"} for row in rows]


def same_as_sparks(lake: Lake, other: Lake) -> None:
    rows, theirs = lake.rows(), other.rows()
    assert unsynced(rows[key] for key in sorted(rows)) == unsynced(
        theirs[key] for key in sorted(theirs)
    )
    assert unsynced(row.asDict() for row in lake.changes()) == unsynced(
        row.asDict() for row in other.changes()
    )


@pytest.mark.law("L1", "L19")
@pytest.mark.parametrize("schema", [None, FINAL], ids=["updates count", "deletes win"])
@given(deltas=tables(), turns=st.lists(st.booleans(), min_size=2, max_size=2))
@settings(SLOW, max_examples=2)
def test_alternating_spark_and_function_writes_match_the_core_and_spark_alone(
    lake: Lake, deltas: list[Delta], turns: list[bool], schema: TableSchema | None
) -> None:
    table, alone = fresh(lake), fresh(lake)
    parts = [part for n in range(3) if (part := deltas[n::3])]
    taken = 0
    for part, by_spark in zip(parts, [True, *turns], strict=False):
        for each in (table, alone):
            each.put(part, schema=schema)
        alone.run()
        if not by_spark:
            taken += take(table).deltas
        table.run()  # what is left, such as a column that is new
        assert table.pending() == []

    agree(table, deltas, delete_wins=schema is FINAL)
    same_as_sparks(table, alone)
    assert table.marks()["rows"].commit == alone.marks()["rows"].commit


TYPES = ("string", "number", "boolean", "integer", "timestamp", "date", "bytes", "json")
VALUES: tuple[Any, ...] = (
    "plain", 'q"\\\n\u0001é😀', 1, -7, 0.1, 1e21, 5.684341886080802e-14, 2**53 + 2, True, None,
    "9223372036854775807", "12.50", 12.5, "2013-01-01T05:00:00Z", "2013-01-01T05:00:00.120Z",
    "2013-01-01 05:00", "2013-01-01T05:00:00.123456789+02:00", "2013-02-28", "0000-01-01",
    "YWJj", "YWI", {"a": [1, None]}, [], "",
)  # fmt: skip


@pytest.mark.law("L2", "L3", "L19")
def test_function_writes_every_type_as_spark_does(lake: Lake) -> None:
    columns = [{"name": f"{kind}_col", "type": kind} for kind in (*TYPES, "decimal(10,2)")]
    names = [f"c{n}" for n in range(len(columns))]
    columns = [{**column, "name": name} for column, name in zip(columns, names, strict=True)]
    schema = read_schema({"table": "todos", "columns": columns, "version": 1})
    alone = fresh(lake)
    first = [put("todos", "first", 1, **dict.fromkeys(names, None))]
    written = [
        put("todos", f"v{n}", 2 + n, **dict.fromkeys(names, value))
        for n, value in enumerate(VALUES)
    ]
    for each in (lake, alone):
        each.put(first, schema=schema)
        each.run()
        each.put(written, schema=schema)
    taken = take(lake)
    alone.run()

    assert taken == Taken(deltas=len(written))
    assert lake.states() == alone.states()
    numbers = {"v6"}  # of many digits, which Java may print otherwise: its text is kept
    mine, theirs = lake.rows(), alone.rows()
    assert unsynced(mine[key] for key in sorted(mine.keys() - numbers)) == unsynced(
        theirs[key] for key in sorted(theirs.keys() - numbers)
    )


@pytest.mark.law("L19")
def test_changed_column_comments_are_left_to_spark_and_edited_ones_are_ignored(
    lake: Lake,
) -> None:
    def about(text: str) -> TableSchema:
        columns = [{"name": "n", "type": "integer", "description": text}]
        return read_schema({"table": "todos", "columns": columns, "version": 1})

    lake.put([put("todos", "a", 1, n=1)], schema=about("How many"))
    lake.run()
    lake.put([change("a", 2, n=2)], schema=about("How much"))

    assert take(lake).left == {
        f"{lake.gateway}/todos": "LeftToSpark: the comments of its columns change"
    }
    lake.run()
    for table in (lake.name.rows, lake.name.changes):
        lake.spark.sql(f"ALTER TABLE {table} ALTER COLUMN n COMMENT 'Mine'")
    lake.put([change("a", 3, n=3)], schema=about("How much"))
    assert take(lake) == Taken(deltas=1)


@pytest.mark.law("L11", "L19")
def test_repeated_batch_of_events_is_appended_once(lake: Lake) -> None:
    columns = [{"name": "n", "type": "integer"}]
    schema = read_schema({"table": "todos", "columns": columns, "version": 1, "append": True})
    lake.put([put("todos", "a", 1, n=1)], schema=schema)
    lake.run()
    batch = lake.put([put("todos", "b", 2, n=2)], schema=schema)
    first = take(lake)
    lake.claim(batch, schema)
    again = take(lake)

    assert (first.deltas, again.left) == (1, {})
    rows = lake.read(lake.name.rows).orderBy("_commit").collect()
    assert [(row["_id"], row["n"]) for row in rows] == [("a", 1), ("b", 2)]
    assert lake.pending() == []


# --- death between any two steps


STEPS = [(0, "before"), (0, "after"), (1, "before"), (1, "after"), (2, "before")]


def dying(step: int, when: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Wrap the steps of a function that ends before or after one of them."""
    calls = itertools.count()

    def wrapped(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            number = next(calls)
            if (number, when) == (step, "before"):
                raise Killed
            real(*arguments)
            if (number, when) == (step, "after"):
                raise Killed

        return call

    return wrapped


@pytest.mark.law("L6", "L19")
def test_batch_of_a_killed_function_is_finished_by_the_next_function_or_spark_run(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It dies at each step in turn; a function finishes the batch, or Spark every other time."""
    deltas = begun(lake)
    for number, (step, when) in enumerate(STEPS):
        at = 10 * (number + 1)
        more = [
            change("r1", at, title=f"new {at}"),
            gone(f"r{number + 1}", at + 1),
            put("todos", f"r{at}", at, title="n", done=1),
        ]
        lake.put(more)
        deltas += more
        dies = dying(step, when)
        with monkeypatch.context() as patch:
            patch.setattr(IcebergTable, "commit", dies(IcebergTable.commit))
            patch.setattr(SmallTable, "forget", dies(SmallTable.forget))
            with pytest.raises(Killed):
                take(lake)
        assert lake.pending() != []
        if number == 2:
            lake.run()
        else:
            assert take(lake).left == {}

        assert lake.pending() == []
        agree(lake, deltas)
        assert len(lake.changes()) == len(deltas)


# --- two writers


class NoLease:
    """A lease that somebody believes to have."""

    epoch = 1

    def check(self) -> None:
        """It is not looked after."""

    def rise_above(self, written: int) -> None:
        """It is not looked after."""


@pytest.mark.law("L7", "L19")
def test_function_overtaken_by_spark_writes_nothing(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    deltas = begun(lake)
    batch = lake.put([change("r1", 9, title="new")])
    table = table_of(lake)
    real = lake_rows.read_deltas

    def overtaken(*arguments: Any) -> Any:
        lake.run()
        return real(*arguments)

    monkeypatch.setattr(small_batches, "read_deltas", overtaken)
    claimed = claimed_batch(lake, batch.claim_key)
    with pytest.raises(Conflict):
        table.apply([claimed], NoLease())  # type: ignore[arg-type]

    agree(lake, [*deltas, change("r1", 9, title="new")])
    assert len(lake.changes()) == len(deltas) + 1


@pytest.mark.law("L7", "L19")
@pytest.mark.parametrize("step", ["append_changes", "merge_state"])
def test_spark_run_overtaken_by_a_function_duplicates_nothing(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    deltas = begun(lake)
    batch = lake.put([change("r1", 9, title="new"), put("todos", "r9", 9, title="n", done=1)])
    claimed = claimed_batch(lake, batch.claim_key)
    real = getattr(apply, step)
    once = iter([None])

    def overtaken(*arguments: Any) -> Any:
        for _ in once:
            table_of(lake).apply([claimed], NoLease())  # type: ignore[arg-type]
        return real(*arguments)

    monkeypatch.setattr(apply, step, overtaken)
    lake.run()
    lake.claim(batch)
    lake.run()

    agree(lake, [*deltas, change("r1", 9, title="new"), put("todos", "r9", 9, title="n", done=1)])
    assert len(lake.changes()) == len(deltas) + 2


@pytest.mark.law("L8", "L19")
def test_function_skips_a_gateway_group_leased_by_a_run(lake: Lake) -> None:
    begun(lake)
    lake.put([change("r1", 9, title="new")])
    group = group_of_table(f"{lake.gateway}/todos")
    with Lease.acquire_if_free(lake.store, group, "spark"):  # type: ignore[arg-type, union-attr]
        taken = take(lake)

    assert taken == Taken(later={f"{lake.gateway}/todos"})
    assert len(lake.pending()) == 1


# --- what is left


@pytest.mark.law("L9", "L19")
def test_batches_that_a_function_cannot_apply_wait_for_spark_with_a_reason(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"{lake.gateway}/todos"
    lake.put([put("todos", "r0", 1, title="t")])
    reasons = [take(lake).left[name]]
    lake.run()
    lake.put([put("todos", "r1", 2, other="t")])
    reasons.append(take(lake).left[name])
    lake.run()
    lake.put([put("todos", "r2", 3, title="t")], after=lake.batches[-1].last + 5)
    reasons.append(take(lake).left[name])
    lake.store.delete(lake.batches[-1].claim_key)
    lake.batches.pop()
    lake.put([change("r1", 4, title="t")])
    with monkeypatch.context() as patch:
        patch.setattr(small_batches, "REWRITTEN_BYTES_MAX", 10)
        reasons.append(take(lake).left[name])
        patch.setattr(small_batches, "LOOKED_AT_BYTES_MAX", 10)
        reasons.append(take(lake).left[name])
    reasons.append(take(lake, deltas_max=0).left[name])
    waits = len(lake.pending())
    lake.run()

    assert [reason.partition(": ")[2] or reason for reason in reasons] == [
        "its lake tables are not there yet",
        "its columns change",
        "the batch before those that wait is missing",
        "its rows are in too many files to write them anew",
        "its rows may be in too many files to look for them",
        "1 delta waiting, 1 bytes",
    ]
    assert waits == 1
    assert set(lake.visible()) == {"r0", "r1"}


@pytest.mark.law("L4", "L12", "L20")
def test_merge_of_a_large_table_is_deferred_while_its_changes_are_appended(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    deltas = begun(lake)
    name = f"{lake.gateway}/todos"
    with monkeypatch.context() as patch:
        patch.setattr(small_batches, "REWRITTEN_BYTES_MAX", 10)
        for at in (20, 21):
            deltas.append(change("r1", at, title=f"at {at}"))
            lake.put(deltas[-1:])
            taken = take(lake, merge_after_s=60.0)
            assert (taken.left, list(taken.merges)) == ({}, [name])
            assert len(lake.changes()) == len(deltas)
        assert lake.marks()["changes"].commit > lake.marks()["rows"].commit
        assert lake.visible()["r1"]["title"] == '"t1"'
        assert live_rows(lake)["r1"]["title"] == '"at 21"'
        assert len(lake.pending()) == 2

        # Enough waits: by its age, or by its number.
        lake.store.age_s = 61.0
        assert list(take(lake, merge_after_s=60.0).left) == [name]
        lake.store.age_s = 1.0
        assert list(take(lake, 1, merge_after_s=60.0).left) == [name]
    lake.run()

    assert lake.pending() == []
    agree(lake, deltas)
    assert len(lake.changes()) == len(deltas)
    assert lake.visible()["r1"]["title"] == live_rows(lake)["r1"]["title"] == '"at 21"'


@pytest.mark.law("L19")
def test_only_files_with_changed_rows_are_rewritten(lake: Lake) -> None:
    begun(lake)
    lake.put([put("todos", "z1", 20, title="z", done=True)])
    assert take(lake).deltas == 1
    before = {row["file_path"] for row in lake.read(f"{lake.name.rows}.files").collect()}
    lake.put([change("z1", 21, title="zz"), change("r1", 1, title="too late")])
    assert take(lake).deltas == 2
    after = {row["file_path"] for row in lake.read(f"{lake.name.rows}.files").collect()}

    assert len(before - after) == 1
    assert lake.visible()["z1"]["title"] == '"zz"'


@pytest.mark.law("L4", "L19")
def test_batch_that_changes_no_row_moves_only_the_batch_mark(lake: Lake) -> None:
    begun(lake)
    before = lake.rows()
    batch = lake.put([change("r1", 1, title="too late")])
    taken = take(lake)

    assert taken == Taken(deltas=1)
    assert lake.rows() == before
    assert lake.marks()["rows"].commit == lake.marks()["changes"].commit == batch.last
