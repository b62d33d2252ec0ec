"""S3 that throttles, credentials that run out, and maintenance by others, midway through a run.

Whatever was refused, the next run leaves rows, changes and marks as `lakesync.core.merge` has them,
and no claim is set aside for a fault that is not its own.
"""

from __future__ import annotations

import itertools
import math
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest
from botocore.exceptions import ClientError
from pyiceberg.io.pyarrow import PyArrowFileIO

from lakesync.materialise import small_batches
from lakesync.materialise.iceberg_table import IcebergTable
from lakesync.materialise.work_queue import LEASE_S
from lakesync_spark.iceberg import apply, branch_write, branches, state_merge
from lakesync_spark.iceberg.lake_table import LakeTable
from lakesync_spark.iceberg.table_files import TableFiles
from tests.glue.support.faults import Faults, is_as_the_core_says, refused
from tests.glue.support.files import FileStore
from tests.glue.support.folder_catalogue import FolderCatalogue
from tests.glue.test_marks import compact, expire
from tests.glue.test_small_batches import begun, change, gone, put, take

if TYPE_CHECKING:
    from collections.abc import Callable

    from lakesync.core.delta import Delta
    from tests.glue.support.lake import Lake

pytestmark = pytest.mark.spark

STORE = ("claims", "read", "put_if_unchanged", "delete")
DAY_MS = 86_400_000


@pytest.fixture(autouse=True)
def only_merges(monkeypatch: pytest.MonkeyPatch) -> None:
    """A small table would be written anew: fewer steps to fail at."""
    monkeypatch.setattr(state_merge, "REWRITE_DELTAS_PER_ROW", math.inf)


def edited(lake: Lake, deltas: list[Delta]) -> None:
    """Put a batch: a row that changes, one that goes, a new one."""
    at = 10 * len(deltas)
    more = [
        change("r1", at, title=f"at {at}"),
        gone(f"r{len(deltas) - 3}", at + 1),
        put("todos", f"r{len(deltas)}", at + 2, title="new", done=True),
    ]
    lake.put(more)
    deltas += more


def made_good(lake: Lake, deltas: list[Delta]) -> None:
    """Do another run, when the lease of the one before has run out, and compare."""
    assert lake.store.set_aside_reasons == {}
    lake.store.pause(LEASE_S + 1)
    assert lake.run().problem() == ""
    is_as_the_core_says(lake, deltas)


# --- S3 and its credentials


@pytest.mark.law("L4", "L6", "L9")
@pytest.mark.parametrize(
    ("code", "lasts", "first"), [("SlowDown", False, 1), ("ExpiredToken", True, 3)]
)
def test_run_with_any_s3_call_refused_is_repaired_by_the_next(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, code: str, first: int, *, lasts: bool
) -> None:
    """At every fifth call of a run in turn, until it makes no more."""
    deltas = begun(lake)
    for call in itertools.count(first, 5):
        faults = Faults(lambda: refused(code), call, lasts=lasts)
        edited(lake, deltas)
        with monkeypatch.context() as patch, suppress(ClientError):
            faults.put_before(patch, lake.store, STORE)
            lake.run()
        made_good(lake, deltas)
        if not faults.is_met:
            break

    assert call > first + 10, "several steps were met"


@pytest.mark.law("L4", "L6", "L9", "L19")
@pytest.mark.parametrize(
    ("code", "lasts", "first"), [("SlowDown", False, 1), ("ExpiredToken", True, 2)]
)
def test_function_with_any_s3_call_refused_is_repaired_by_a_run(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, code: str, first: int, *, lasts: bool
) -> None:
    deltas = begun(lake)
    for call in itertools.count(first, 3):
        faults = Faults(lambda: refused(code), call, lasts=lasts)
        edited(lake, deltas)
        with monkeypatch.context() as patch, suppress(ClientError):
            faults.put_before(patch, lake.store, STORE)
            take(lake)
        made_good(lake, deltas)
        if not faults.is_met:
            break

    assert call > first + 6, "several steps were met"


@pytest.mark.law("L4", "L9", "L19")
def test_function_continues_after_the_catalogue_refused_a_table(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At each call of the catalogue; it is the function that comes again, and no run."""
    deltas = begun(lake)
    for call in itertools.count(1):
        faults = Faults(lambda: refused("ExpiredTokenException"), call, lasts=True)
        edited(lake, deltas)
        with monkeypatch.context() as patch:
            faults.put_before(patch, FolderCatalogue, ("load_table", "commit_table"))
            taken = take(lake)
        assert taken.faults == faults.is_met
        assert bool(lake.pending()) == faults.is_met
        assert take(lake).left == {}
        is_as_the_core_says(lake, deltas)
        if not faults.is_met:
            break

    assert call > 2, "several steps were met"


@pytest.mark.law("L4", "L9", "L19")
def test_function_continues_after_files_of_a_table_were_refused(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PyIceberg reads metadata and data by itself, and Arrow says what S3 said."""
    deltas = begun(lake)
    met = []
    for call in (1, 3, 6, 10, 15, 400):
        faults = Faults(slow_down, call, lasts=True)
        edited(lake, deltas)
        with monkeypatch.context() as patch:
            faults.put_before(patch, PyArrowFileIO, ("new_input", "new_output"))
            taken = take(lake)
        met.append(faults.is_met)
        assert taken.faults == faults.is_met
        assert bool(lake.pending()) == faults.is_met
        assert take(lake).left == {}
        is_as_the_core_says(lake, deltas)

    assert met == [True] * 5 + [False]


def slow_down() -> OSError:
    return OSError("AWS Error SLOW_DOWN during GetObject operation")


@pytest.mark.law("L9")
@pytest.mark.parametrize("is_cut", [False, True], ids=["not given", "cut off"])
def test_batch_that_spark_executors_cannot_read_is_not_set_aside(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, is_cut: bool
) -> None:
    """Its executors read S3 by themselves: what they meet there is no fault of the object."""
    deltas = begun(lake)
    edited(lake, deltas)
    key = lake.batches[-1].object_key
    away = tmp_path / "away"
    if is_cut:
        body = (lake.store.folder / key).read_bytes()
        (away / key).parent.mkdir(parents=True)
        (away / key).write_bytes(body[: len(body) // 2])
    with monkeypatch.context() as patch:
        patch.setattr(FileStore, "root", property(lambda _: f"file://{away}"))
        report = lake.run()

    assert [failure.set_aside for failure in report.failed] == [False]
    made_good(lake, deltas)


WRITES = [
    (apply, "append_changes"),
    (branch_write, "add_rows"),
    (branch_write, "delete_replaced"),
]


@pytest.mark.law("L6", "L9")
def test_run_with_data_files_refused_midway_is_repaired_by_the_next(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither read nor written: where they lie is no folder any more, until the run has ended."""
    deltas = begun(lake)
    for owner, step in WRITES:
        name = lake.name.changes if owner is apply else lake.name.rows
        data = Path(urlsplit(LakeTable(lake.spark, name).java.location()).path, "data")
        away = data.with_name("away")
        real = getattr(owner, step)

        def refuse(*arguments: Any, real: Any = real, data: Path = data, **named: Any) -> Any:
            if data.is_dir():
                data.rename(data.with_name("away"))
                data.touch()
            return real(*arguments, **named)

        edited(lake, deltas)
        with monkeypatch.context() as patch:
            patch.setattr(owner, step, refuse)
            report = lake.run()
        data.unlink()
        away.rename(data)

        assert [failure.set_aside for failure in report.failed] == [False], step
        made_good(lake, deltas)


# --- maintenance by others


def forgotten(lake: Lake, table: str) -> None:
    """Expire all snapshots that may expire, and remove every file that none names."""
    expire(lake, table)
    TableFiles(lake.spark, table).remove_orphans(int(time.time() * 1000) + DAY_MS)


def compacted(lake: Lake, table: str) -> None:
    """Write all files anew, and leave nothing of those before."""
    compact(lake, table)
    forgotten(lake, table)


def interrupted(
    patch: pytest.MonkeyPatch, owner: Any, step: str, meanwhile: Callable[[], None], *, after: bool
) -> None:
    """Let somebody else do something once, right before or after a step."""
    real = getattr(owner, step)
    once = iter([meanwhile])

    def call(*arguments: Any, **named: Any) -> Any:
        if not after:
            for one in once:
                one()
        answer = real(*arguments, **named)
        for one in once:
            one()
        return answer

    patch.setattr(owner, step, call)


STEPS = [
    (apply, "append_changes", False, forgotten, False),
    (branch_write, "open_branch", True, forgotten, True),
    (branch_write, "add_rows", True, forgotten, False),
    (branch_write, "added_rows", True, compacted, False),
    (branch_write, "publish", False, compacted, False),
    (branch_write, "publish", False, forgotten, True),
]


@pytest.mark.law("L6", "L7", "L16")
@pytest.mark.parametrize(("owner", "step", "after", "meanwhile", "is_old"), STEPS)
def test_expiry_during_a_merge_loses_nothing(
    lake: Lake,
    monkeypatch: pytest.MonkeyPatch,
    owner: Any,
    step: str,
    meanwhile: Callable[[Lake, str], None],
    *,
    after: bool,
    is_old: bool,
) -> None:
    """Of a table that nobody has written to for a day, the branch of a merge expires at once."""
    if is_old:
        monkeypatch.setattr(branches, "BRANCH_AGE_MS_MAX", 1)
    deltas = begun(lake)
    edited(lake, deltas)
    name = lake.name.changes if owner is apply else lake.name.rows
    interrupted(monkeypatch, owner, step, lambda: meanwhile(lake, name), after=after)
    report = lake.run()

    assert report.problem() == "", "it began again by itself"
    is_as_the_core_says(lake, deltas)


@pytest.mark.law("L6", "L7", "L16", "L19")
@pytest.mark.parametrize(
    ("owner", "step", "after", "meanwhile"),
    [
        (small_batches, "read_deltas", False, compacted),
        (small_batches, "touched", True, compacted),
        (IcebergTable, "commit", False, forgotten),
    ],
)
def test_expiry_during_a_merge_by_the_function_loses_nothing(
    lake: Lake,
    monkeypatch: pytest.MonkeyPatch,
    owner: Any,
    step: str,
    meanwhile: Callable[[Lake, str], None],
    *,
    after: bool,
) -> None:
    deltas = begun(lake)
    edited(lake, deltas)

    def both() -> None:
        for name in (lake.name.rows, lake.name.changes):
            meanwhile(lake, name)

    with monkeypatch.context() as patch:
        interrupted(patch, owner, step, both, after=after)
        take(lake)
    made_good(lake, deltas)
