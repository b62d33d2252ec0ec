"""The lake in Nessie, which keeps of each table its current snapshot: no history, branches or tags.

What follows from that is in ``docs/spec/lake.md``, under "The catalogue".
"""

from __future__ import annotations

import itertools
import math
import time
from functools import partial
from typing import TYPE_CHECKING

import boto3
import pytest
from hypothesis import given, settings
from pyiceberg.catalog import load_catalog

from lakesync.cli.lake_tables import greatest_commit, set_mark
from lakesync.core.names import lake_database
from lakesync.materialise.lake_catalogue import LakeCatalogue
from lakesync_spark.common.arguments import MaintenanceArguments
from lakesync_spark.iceberg import state_merge
from lakesync_spark.iceberg.maintenance import maintain
from tests.glue import test_crashes, test_rest_catalogue, test_small_batches
from tests.glue.support.faults import is_as_the_core_says
from tests.glue.support.files import FileStore
from tests.glue.support.lake import PREFIX, STACK, Lake
from tests.glue.test_faults import edited
from tests.glue.test_merge_agrees_with_core import SLOW, tables
from tests.glue.test_small_batches import begun, take
from tools.local_stack.nessie import start_nessie

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyiceberg.catalog import Catalog
    from pyspark.sql import SparkSession

    from lakesync.core.delta import Delta
    from tools.local_stack.aws_emulator import Emulator

pytestmark = [pytest.mark.spark, pytest.mark.emulator]

BUCKET = "nessie"
NAMES = ("nessie", "nessie_beside")
_numbers = itertools.count()


@pytest.fixture(scope="module")
def catalogue(
    spark: SparkSession, emulator: Emulator, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LakeCatalogue]:
    """Nessie on a bucket for the tables, which Spark knows by two names."""
    boto3.client("s3", **emulator.client_options()).create_bucket(Bucket=BUCKET)
    with start_nessie(tmp_path_factory.mktemp("nessie"), emulator, BUCKET) as uri:
        catalogue = LakeCatalogue("rest", uri, warehouse=BUCKET)
        for name in NAMES:
            said = catalogue.spark_settings(name, emulator.region, {})
            keys = {"s3.access-key-id": "test", "s3.secret-access-key": "test"}
            said |= {f"spark.sql.catalog.{name}.{key}": value for key, value in keys.items()}
            for setting, value in said.items():
                spark.conf.set(setting, value)
        yield catalogue


@pytest.fixture
def lake(spark: SparkSession, emulator: Emulator, catalogue: LakeCatalogue, tmp_path: Path) -> Lake:
    keys = ("test", "test", None)
    said = catalogue.python_settings(emulator.region, emulator.endpoint, {}, keys)
    return Lake(
        spark, FileStore(tmp_path), f"nessie{next(_numbers)}", catalog=NAMES[0], beside=NAMES[1],
        opened=lambda: load_catalog("lake", **said),
    )  # fmt: skip


def opened(lake: Lake) -> Catalog:
    assert lake.opened
    return lake.opened()


@pytest.mark.law("L1", "L19", "L21")
@given(deltas=tables())
@settings(SLOW, max_examples=1)
def test_alternating_spark_and_function_writes_match_the_core_and_spark_alone(
    lake: Lake, deltas: list[Delta]
) -> None:
    test_rest_catalogue.alternate(lake, deltas)


@pytest.mark.law("L1", "L4", "L21")
def test_merge_without_branches_leaves_one_snapshot_on_main(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_merge, "REWRITE_DELTAS_PER_ROW", math.inf)  # a merge, if it can be
    deltas = begun(lake)
    for _ in range(2):
        edited(lake, deltas)
        assert lake.run().problem() == ""
        is_as_the_core_says(lake, deltas)

    table = opened(lake).load_table((lake_database(PREFIX, lake.gateway), lake.table))
    assert list(table.refs()) == ["main"], "else branches and tags are kept, and this page is old"
    assert len(table.metadata.snapshots) == 1


CONTRACT: dict[str, Callable[..., None]] = {
    "killed behind a merge": partial(
        test_crashes.test_killed_run_is_repaired_by_the_next,
        step="merge_state",
        call=1,
        after=True,
    ),
    "two runs at once": partial(
        test_crashes.test_two_concurrent_runs_apply_each_commit_once,
        step="merge_state",
        loads="merge",
    ),
    "killed while columns are converted": partial(
        test_crashes.test_run_killed_while_converting_columns_is_repaired_by_the_next,
        step="fill_helpers",
    ),
    "columns above a new snapshot": (
        test_rest_catalogue.test_column_swap_fails_if_a_new_snapshot_was_committed
    ),
    "an overtaken run": partial(
        test_small_batches.test_spark_run_overtaken_by_a_function_duplicates_nothing,
        step="merge_state",
    ),
}


@pytest.mark.law("L6", "L7", "L10", "L19", "L21")
@pytest.mark.parametrize("promise", CONTRACT.values(), ids=CONTRACT)
def test_guarantees_of_a_folder_catalogue_hold_in_nessie(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, promise: Callable[..., None]
) -> None:
    test_rest_catalogue.hold(promise, lake, monkeypatch)


@pytest.mark.law("L16", "L18", "L21")
def test_batch_mark_hidden_by_a_foreign_commit_is_restored_from_the_rows(
    lake: Lake,
) -> None:
    deltas = begun(lake)
    for name in (lake.name.rows, lake.name.changes):
        lake.read(name).limit(0).writeTo(name).append()
    edited(lake, deltas)
    assert "lakesync lake repair" in lake.run().problem()
    assert lake.pending() != []
    for place in opened(lake).list_tables(lake_database(PREFIX, lake.gateway)):
        table = opened(lake).load_table(place)
        set_mark(table, greatest_commit(table))

    assert lake.run().problem() == ""
    is_as_the_core_says(lake, deltas)


@pytest.mark.law("L17", "L21")
def test_maintenance_compacts_files_and_deletes_none(
    lake: Lake, emulator: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("lakesync.maintenance.lake_plan", "lakesync_spark.iceberg.table_files"):
        monkeypatch.setattr(f"{module}.SMALL_FILES_MAX", 1)
    deltas = begun(lake)
    for _ in range(2):
        edited(lake, deltas)
        assert take(lake).left == {}
    arguments = MaintenanceArguments("lake", PREFIX, lake.catalog, STACK, 0, only=lake.gateway)
    lake.store.now = lake.store.now.fromtimestamp(time.time(), lake.store.now.tzinfo)
    before = objects(emulator)
    report = maintain(lake.spark, lake.store, arguments, "maintenance")  # type: ignore[arg-type]

    assert report.problem() == ""
    assert any(one.after and one.after.files < one.before.files for one in report.tables)
    assert before <= objects(emulator), "older states of the catalogue name them"
    is_as_the_core_says(lake, deltas)
    edited(lake, deltas)
    assert lake.run().problem() == ""
    is_as_the_core_says(lake, deltas)


def objects(emulator: Emulator) -> set[str]:
    client = boto3.client("s3", **emulator.client_options())
    pages = client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET)
    return {entry["Key"] for page in pages for entry in page.get("Contents", [])}
