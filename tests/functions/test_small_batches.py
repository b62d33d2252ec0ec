"""``functions/materialise`` with small batches: who is asked, and what becomes of announcements."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from lakesync.materialise import small_batches
from lakesync.materialise.left import LeftToSpark, MergeLeft
from lakesync.materialise.small_batches import BYTES_MAX, CLAIMS_MAX, SmallBatches, Taken
from lakesync.runtime.materialise import SMALL_FAULTS, SMALL_TRIES_MAX, materialise_handler
from tests.functions.conftest import Context
from tests.functions.test_materialise import BACK, DONE, SENT, Runs
from tests.glue.support.files import FileStore
from tests.support.claims import claim_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class Small:
    """What takes small batches, with an answer that is given."""

    def __init__(self, taken: Taken, runs: Runs, left: int) -> None:
        self.taken = taken
        self.runs = runs
        self.left = left
        self.seconds: list[float] = []

    def take(self, seconds_left: Callable[[], float]) -> Taken:
        self.seconds.append(seconds_left())
        self.runs.claims = self.left
        return self.taken


@pytest.mark.law("L12", "L19")
@pytest.mark.parametrize(
    ("taken", "left", "started", "answer"),
    [
        (Taken(deltas=3), 0, 0, DONE),
        (Taken(left={"demo/todos": "its columns change"}), 1, 1, DONE),
        (Taken(deltas=3, left={"demo/todos": "its columns change"}, busy=True), 1, 1, DONE),
        (Taken(busy=True), 1, 0, BACK),
        # What is in a changes table waits for more: the next announcement, or the sweep.
        (Taken(merges={"demo/todos": "its rows are in too many files"}), 1, 0, DONE),
        (Taken(merges={"demo/a": "m"}, left={"demo/b": "its columns change"}), 2, 1, DONE),
    ],
)
def test_a_run_is_started_only_for_what_the_function_leaves(
    taken: Taken, left: int, started: int, answer: Any
) -> None:
    runs = Runs(2)
    small = Small(taken, runs, left)

    assert materialise_handler(runs, 4, small)(SENT, Context(28_000)) == answer
    assert (runs.started, small.seconds) == (started, [28.0])


@pytest.mark.parametrize(("claims", "at_work"), [(0, 0), (1, 1)])
def test_the_function_does_nothing_where_nothing_waits_or_a_run_is_at_work(
    claims: int, at_work: int
) -> None:
    runs = Runs(claims, at_work)
    small = Small(Taken(), runs, 0)
    materialise_handler(runs, 4, small)(SENT, Context())

    assert (small.seconds, runs.started) == ([], 0)


def test_what_stops_the_function_again_and_again_gets_a_run() -> None:
    runs = Runs(1)
    small = Small(Taken(), runs, 0)
    received = {"ApproximateReceiveCount": str(SMALL_TRIES_MAX + 1)}
    records = [{**record, "attributes": received} for record in SENT["Records"]]

    assert materialise_handler(runs, 4, small)({"Records": records}, Context()) == DONE
    assert (small.seconds, runs.started) == ([], 1)


# --- what is small


class Table:
    """Applies what it is given, or fails."""

    def __init__(self, *faults: Exception) -> None:
        self.faults = list(faults)
        self.applied: list[list[str]] = []

    def apply(self, batches: Any, lease: Any) -> int:
        lease.check()
        if self.faults:
            raise self.faults.pop(0)
        self.applied.append([batch.name for batch in batches])
        return sum(batch.deltas for batch in batches)


def taken_of(store: FileStore, table: Table, deltas_max: int = 100, seconds: float = 30) -> Taken:
    small = SmallBatches(store, lambda: table, deltas_max, "function")  # type: ignore[arg-type,return-value]
    return small.take(lambda: seconds)


@pytest.mark.law("L19")
def test_batches_are_small_by_their_number_their_deltas_and_their_bytes(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "few")
    for number in range(3):
        claim_of(store, "demo", "todos", number, deltas=30)
    table = Table()

    assert taken_of(store, table, deltas_max=89).left == {"": "90 deltas waiting, 3 bytes"}
    assert taken_of(store, table, deltas_max=90) == Taken(deltas=90)
    claim_of(store, "demo", "todos", 3, deltas=1, size=BYTES_MAX)
    assert list(taken_of(store, table).left) == [""]
    for number in range(CLAIMS_MAX):
        claim_of(store, "demo", "notes", number, deltas=1)
    assert taken_of(store, table).left == {"": f"more than {CLAIMS_MAX} claims wait"}
    assert len(table.applied) == 1


@pytest.mark.law("L9", "L19")
def test_a_fault_stays_with_its_table_and_the_others_are_taken(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "few")
    for table in ("a", "b", "c"):
        claim_of(store, "demo", table, 0, deltas=1)
    store.put("claims/demo/c/1.json", b"{")
    taken = taken_of(store, Table(ValueError("no such file")))

    assert taken.deltas == 1
    assert taken.left == {
        "demo/a": "ValueError: no such file",
        "demo/c": "a claim must be JSON",
    }
    assert len(list(store.claims())) == 4
    assert taken.faults == 1, "a claim that cannot be read is the run's to set aside"


@pytest.mark.law("L19")
def test_what_is_decided_to_be_a_runs_is_no_fault_and_what_fails_is_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    store = FileStore(tmp_path / "few")
    for table in ("a", "b", "c"):
        claim_of(store, "demo", table, 0, deltas=1)
    faults = (LeftToSpark("its columns change"), MergeLeft("many files"), OSError("denied"))
    taken = taken_of(store, Table(*faults))

    assert (len(taken.left), taken.faults) == (3, 1)
    runs = Runs(3)
    materialise_handler(runs, 4, Small(taken, runs, 3))(SENT, Context())
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line[SMALL_FAULTS] for line in lines if SMALL_FAULTS in line] == [[1.0]]
    [record] = [each for each in caplog.records if each.getMessage() == "left to a Glue run"]
    assert record.levelname == "WARNING"
    assert "OSError: denied" in record.__dict__["reasons"].values()


def test_no_table_is_begun_that_may_not_be_ended(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "few")
    claim_of(store, "demo", "todos", 0, deltas=1)
    taken = taken_of(store, Table(), seconds=small_batches.SECONDS_LEFT_MIN - 1)

    assert taken.left == {"demo/todos": "the function has no time left"}


@pytest.mark.law("L9", "L19")
def test_after_a_fault_the_catalogue_is_opened_anew_with_what_its_secret_says_then(
    tmp_path: Path,
) -> None:
    """A function lives for hours; the token of its catalogue may be rotated meanwhile."""
    store = FileStore(tmp_path / "few")
    opened = [Table(), Table(), Table()]
    opened[0].faults = [LeftToSpark("its columns change"), PermissionError("401")]
    turns = iter(opened)
    small = SmallBatches(store, lambda: next(turns), 100, "function")  # type: ignore[arg-type,return-value]
    faults = []
    for number in range(4):
        claim_of(store, "demo", "todos", number, deltas=1)
        faults.append(small.take(lambda: 30).faults)

    assert faults == [0, 1, 0, 0]
    assert [len(table.applied) for table in opened] == [0, 2, 0], "one that works stays open"
