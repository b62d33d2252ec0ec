"""The lake through a REST catalogue, Iceberg's own: what holds in a folder holds there."""

from __future__ import annotations

import itertools
import math
import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyiceberg.catalog import load_catalog

from lakesync.materialise.lake_catalogue import LakeCatalogue
from lakesync.materialise.small_batches import SmallBatches, SmallTable
from lakesync_spark.common.arguments import MaintenanceArguments
from lakesync_spark.iceberg import branch_write, lake_table, state_merge
from lakesync_spark.iceberg.branches import main_touched
from lakesync_spark.iceberg.lake_table import LakeTable
from lakesync_spark.iceberg.maintenance import maintain
from tests.glue import test_crashes, test_marks, test_small_batches
from tests.glue.support.faults import is_as_the_core_says
from tests.glue.support.files import FileStore
from tests.glue.support.lake import PREFIX, STACK, Lake
from tests.glue.test_faults import edited, interrupted
from tests.glue.test_merge_agrees_with_core import SLOW, agree, fresh, tables
from tests.glue.test_small_batches import FULL, begun, change, put, same_as_sparks, take
from tests.support.builders import insert
from tests.support.catalogue_server import door_to
from tools.local_stack.iceberg_rest import start_iceberg_rest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from lakesync.core.delta import Delta
    from tests.support.catalogue_server import Door

pytestmark = pytest.mark.spark

REGION = "eu-central-1"
TOKEN = {"token": "t0p-s3cret"}
_numbers = itertools.count()


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    folder = tmp_path_factory.mktemp("rest")
    with (
        start_iceberg_rest(folder) as server,
        door_to(server, f"Bearer {TOKEN['token']}") as door,
    ):
        yield door


def opened(spark: SparkSession, door: Door, name: str, secret: dict[str, str]) -> LakeCatalogue:
    catalogue = LakeCatalogue("rest", door.address, secret="arn:secret")
    # This Spark has started already: what its logs show is settled.
    for setting, value in catalogue.spark_settings(name, REGION, secret).items():
        if setting != "spark.redaction.regex":
            spark.conf.set(setting, value)
    return catalogue


@pytest.fixture
def lake(spark: SparkSession, door: Door, tmp_path: Path) -> Lake:
    catalogue = opened(spark, door, "rest", TOKEN)
    opened(spark, door, "rest_beside", TOKEN)
    given = catalogue.python_settings(REGION, None, TOKEN)
    return Lake(
        spark, FileStore(tmp_path), f"rest{next(_numbers)}", catalog="rest", beside="rest_beside",
        opened=lambda: load_catalog("lake", **given),
    )  # fmt: skip


@pytest.mark.law("L1", "L19", "L21")
@given(deltas=tables())
@settings(SLOW, max_examples=1)
def test_alternating_spark_and_function_writes_match_the_core_and_spark_alone(
    lake: Lake, deltas: list[Delta]
) -> None:
    alternate(lake, deltas)


def alternate(lake: Lake, deltas: list[Delta]) -> None:
    table, alone = fresh(lake), fresh(lake)
    for part in (deltas[::2], deltas[1::2]):
        for each in (table, alone):
            each.put(part)
        assert alone.run().problem() == ""
        take(table)
        assert table.run().problem() == ""  # what is left, such as a column that is new
        assert table.pending() == []

    agree(table, deltas)
    same_as_sparks(table, alone)
    assert table.marks()["rows"].commit == alone.marks()["rows"].commit


CONTRACT: dict[str, Callable[..., None]] = {
    "killed as a merge is published": partial(
        test_crashes.test_run_killed_while_merging_on_a_branch_is_repaired_by_the_next,
        step="publish",
        after=True,
    ),
    "killed while columns are converted": partial(
        test_crashes.test_run_killed_while_converting_columns_is_repaired_by_the_next,
        step="fill_helpers",
    ),
    "compacted meanwhile": test_crashes.test_merge_restarts_after_a_concurrent_compaction,
    **{
        f"two runs at {step}, {loads}": partial(
            test_crashes.test_two_concurrent_runs_apply_each_commit_once, step=step, loads=loads
        )
        for step, loads in (("append_changes", "first load"), ("merge_state", "merge"))
    },
    "the mark outlives expiry": (
        test_marks.test_batch_mark_survives_compaction_and_expiry_of_snapshots
    ),
    "an overtaken function": test_small_batches.test_function_overtaken_by_spark_writes_nothing,
    "an overtaken run": partial(
        test_small_batches.test_spark_run_overtaken_by_a_function_duplicates_nothing,
        step="merge_state",
    ),
}
"""Tests of the lake in a folder, which know nothing of where it is: those in which the catalogue
decides between two writers, or keeps what later runs look at."""


@pytest.mark.law("L6", "L7", "L10", "L16", "L19", "L21")
@pytest.mark.parametrize("promise", CONTRACT.values(), ids=CONTRACT)
def test_guarantees_of_a_folder_catalogue_hold_in_a_rest_catalogue(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, promise: Callable[..., None]
) -> None:
    hold(promise, lake, monkeypatch)


def hold(promise: Callable[..., None], lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Carry out another module's test on a lake of this one."""
    takes = getattr(promise, "func", promise).__code__.co_varnames
    given: dict[str, Any] = {"lake": lake, "monkeypatch": monkeypatch}
    promise(**{name: value for name, value in given.items() if name in takes})


@pytest.mark.law("L7", "L21")
def test_column_swap_fails_if_a_new_snapshot_was_committed(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A REST catalogue looks at what a commit changes alone, and columns are no rows."""
    lake.put([insert("r1", at=5, n=1)])
    lake.run()
    name = lake.name.rows
    other = name.replace("`rest`", "`rest_beside`")
    for turn in range(2):  # what is touched is touched back
        lake.spark.sql(f"ALTER TABLE {name} ADD COLUMN _new_n STRING")
        table = LakeTable(lake.spark, name)

        def append_first(*arguments: Any) -> Any:
            lake.read(other).limit(0).writeTo(other).append()
            return main_touched(*arguments)

        with monkeypatch.context() as patch:
            patch.setattr(lake_table, "main_touched", append_first)
            with pytest.raises(Py4JJavaError, match="CommitFailedException"):
                table.swap_columns([("n", "_new_n")], table.snapshot_id)
        table.refresh()
        assert table.has_field("_new_n")

        table.swap_columns([("n", "_new_n")], table.snapshot_id)
        assert not table.has_field("_new_n")
        assert [row["n"] for row in lake.read(name).collect()] == [None], turn


@pytest.mark.law("L6", "L7", "L21")
def test_commit_with_a_lost_answer_is_applied_once(lake: Lake, door: Door) -> None:
    deltas = [put("todos", f"r{n}", n + 1, title=f"t{n}", done=False) for n in range(3)]
    lake.put(deltas)
    lake.run()
    for number, by_spark in enumerate([True, False]):
        at = 10 * (number + 1)
        more = [change("r1", at, title=f"at {at}"), put("todos", f"n{at}", at, title="n", done=1)]
        deltas += more
        lake.put(more)
        before = door.commits
        door.lost = 1
        if by_spark:
            lake.run()  # it looks again at what has failed, and finds it done
        else:
            assert take(lake).faults == 1
            assert lake.pending() != []
        assert (door.lost, door.commits > before) == (0, True), "it is done, and nobody knows"
        lake.store.pause(600)
        assert lake.run().problem() == ""

        assert lake.pending() == []
        agree(lake, deltas)
        assert len(lake.changes()) == len(deltas)


@pytest.mark.law("L6", "L9", "L19", "L21")
def test_catalogue_that_defers_requests_midway_loses_nothing(
    lake: Lake, door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark's client asks again by itself; of the function each request is put off in turn."""
    monkeypatch.setattr(state_merge, "REWRITE_DELTAS_PER_ROW", math.inf)
    deltas = begun(lake)
    edited(lake, deltas)
    with monkeypatch.context() as patch:
        interrupted(
            patch, branch_write, "publish", lambda: vars(door).update(put_off=2), after=False
        )
        assert lake.run().problem() == ""
    assert door.put_off == 0
    is_as_the_core_says(lake, deltas)
    for number in itertools.count():
        edited(lake, deltas)
        door.let_through, door.put_off = number, 1
        taken = take(lake)
        is_met, door.let_through, door.put_off = not door.put_off, 0, 0
        assert taken.faults == is_met
        assert bool(lake.pending()) == is_met
        assert take(lake).left == {}
        is_as_the_core_says(lake, deltas)
        if not is_met:
            break

    assert number > 3, "both tables, and both commits"


@pytest.mark.law("L6", "L9", "L19", "L21")
def test_token_rotated_midway_fails_the_run_and_is_read_again_afterwards(
    lake: Lake, door: Door, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_merge, "REWRITE_DELTAS_PER_ROW", math.inf)
    secret, store = dict(TOKEN), lake.store
    catalogue = LakeCatalogue("rest", door.address, secret="arn:secret")

    def open_tables() -> SmallTable:
        given = catalogue.python_settings(REGION, None, secret)
        return SmallTable(store, load_catalog("lake", **given), PREFIX, STACK)  # type: ignore[arg-type]

    function = SmallBatches(store, open_tables, 10_000, "function")  # type: ignore[arg-type]
    deltas = begun(lake)
    edited(lake, deltas)
    assert function.take(FULL).left == {}
    is_as_the_core_says(lake, deltas)
    later = replace(lake, catalog="rest_later")
    monkeypatch.setattr(door, "word", door.word)  # put back at the end

    def rotate() -> None:
        door.word = "Bearer r0tated"
        secret["token"] = "r0tated"

    edited(lake, deltas)
    with monkeypatch.context() as patch:
        interrupted(patch, branch_write, "delete_replaced", rotate, after=False)
        report = lake.run()
    assert [failure.set_aside for failure in report.failed] == [False]
    assert len(lake.pending()) == 1
    assert [function.take(FULL).faults, function.take(FULL).faults] == [1, 0]
    opened(spark, door, "rest_later", secret)
    is_as_the_core_says(later, deltas)

    edited(later, deltas)
    assert later.run().problem() == ""
    is_as_the_core_says(later, deltas)


@pytest.mark.law("L21")
def test_catalogue_refuses_a_wrong_token(lake: Lake, door: Door, spark: SparkSession) -> None:
    opened(spark, door, "rest_refused", {"token": "guessed"})
    before = door.sent_away
    with pytest.raises(Py4JJavaError, match="NotAuthorizedException"):
        spark.sql("SHOW NAMESPACES IN rest_refused").collect()

    assert door.sent_away > before
    assert "x-iceberg-access-delegation" in door.asked


@pytest.mark.law("L17", "L21")
def test_maintenance_of_s3_tables_expires_snapshots_and_deletes_no_file(
    lake: Lake,
) -> None:
    for at in (5, 6, 7):
        lake.put([insert(f"r{at}", at=at, n=1)])
        assert lake.run().problem() == ""
    tables_of_s3 = LakeCatalogue(
        "s3tables", warehouse="arn:aws:s3tables:eu-central-1:123456789012:bucket/lake"
    )
    arguments = MaintenanceArguments(
        "lake", PREFIX, lake.catalog, STACK, 0, only=lake.gateway, catalogue=tables_of_s3
    )
    before, rows = files_of(lake), lake.visible()
    lake.store.now = lake.store.now.fromtimestamp(time.time(), lake.store.now.tzinfo)
    report = maintain(lake.spark, lake.store, arguments, "maintenance")  # type: ignore[arg-type]

    assert report.problem() == ""
    assert all(one.after and one.after.old_snapshots == 0 for one in report.tables)
    assert sum(one.before.old_snapshots for one in report.tables) > 0
    assert before <= files_of(lake)
    assert lake.visible() == rows


def files_of(lake: Lake) -> set[str]:
    """Return the data files that lie where a gateway's tables are, whoever names them."""
    location = LakeTable(lake.spark, lake.name.rows).java.location()
    files = lake.spark.read.format("binaryFile").option("recursiveFileLookup", "true")
    rows = files.option("pathGlobFilter", "*.parquet").load(f"{location}/data").select("path")
    return {row["path"] for row in rows.collect()}
