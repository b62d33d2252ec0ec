"""``functions/materialise`` with small batches: who is asked, and what becomes of announcements."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from lakesync.cli.cost import counts
from lakesync.core.deliveries import announcement
from lakesync.maintenance.flush import TOGETHER_TABLES_MAX
from lakesync.materialise import small_batches
from lakesync.materialise.small_batches import (
    BUSY_S_MAX,
    BYTES_MAX,
    CLAIMS_MAX,
    SmallBatches,
    Taken,
)
from lakesync.materialise.work_queue import Lease, LeftToSpark, MergeLeft, group_of_table
from lakesync.runtime.materialise import SMALL_FAULTS, SMALL_TRIES_MAX, materialise_handler
from tests.functions.conftest import Context
from tests.functions.test_materialise import BACK, DONE, SENT, Runs
from tests.glue.support.files import FileStore
from tests.support.claims import claim_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable
    from pathlib import Path


class Small:
    """What takes small batches, with an answer that is given."""

    def __init__(self, taken: Taken, runs: Runs, left: int) -> None:
        self.taken = taken
        self.runs = runs
        self.left = left
        self.seconds: list[float] = []
        self.asked: list[tuple[set[str], set[str]]] = []

    def take(
        self,
        seconds_left: Callable[[], float],
        announced: Iterable[str] = (),
        tried: Collection[str] = (),
    ) -> Taken:
        self.seconds.append(seconds_left())
        self.asked.append((set(announced), set(tried)))
        self.runs.claims = self.left
        return self.taken


@pytest.mark.law("L12", "L19")
@pytest.mark.parametrize(
    ("taken", "left", "started", "answer"),
    [
        (Taken(deltas=3), 0, 0, DONE),
        (Taken(left={"demo/todos": "its columns change"}), 1, 1, DONE),
        (Taken(3, left={"demo/todos": "its columns change"}, later={"demo/b"}), 1, 1, DONE),
        (Taken(later={"demo/todos"}), 1, 0, BACK),
        # What is in a changes table waits for more: the next announcement, or the sweep.
        (Taken(merges={"demo/todos": "its rows are in too many files"}), 1, 0, DONE),
        (Taken(merges={"demo/a": "m"}, left={"demo/b": "its columns change"}), 2, 1, DONE),
    ],
)
def test_a_glue_run_is_started_only_for_tables_the_function_leaves(
    taken: Taken, left: int, started: int, answer: Any
) -> None:
    runs = Runs(2)
    small = Small(taken, runs, left)

    assert materialise_handler(runs, 4, small)(SENT, Context(28_000)) == answer
    assert (runs.started, small.seconds) == (started, [28.0])


def sent(*tables: str, received: int = 1) -> dict[str, Any]:
    """Return announcements of a batch of each table."""
    return {
        "Records": [
            {
                "messageId": table,
                "body": announcement(f"claims/{table}/1-2.json", f"staging/{table}/1-2.parquet"),
                "attributes": {"ApproximateReceiveCount": str(received)},
            }
            for table in tables
        ]
    }


def back(answer: dict[str, Any]) -> list[str]:
    return [one["itemIdentifier"] for one in answer["batchItemFailures"]]


@pytest.mark.law("L12", "L19")
def test_the_function_takes_announced_tables_also_during_a_glue_run() -> None:
    runs = Runs(3, at_work=1)
    small = Small(Taken(deltas=2), runs, 1)

    assert materialise_handler(runs, 4, small)(sent("demo/a", "acme/b"), Context()) == DONE
    assert small.asked == [({"demo/a", "acme/b"}, set())]
    assert runs.started == 0


def together(*tables: str, received: int = 1) -> dict[str, Any]:
    """Return one announcement of a batch of each of some tables."""
    first, *others = [f"claims/{table}/1-2.json" for table in tables]
    body = announcement(first, f"staging/{tables[0]}/1-2.parquet", more=others)
    attributes = {"ApproximateReceiveCount": str(received)}
    return {"messageId": tables[0], "body": body, "attributes": attributes}


@pytest.mark.law("L12", "L19")
def test_all_tables_of_an_announcement_are_taken() -> None:
    runs = Runs(3)
    small = Small(Taken(deltas=2), runs, 0)
    often = SMALL_TRIES_MAX + 1
    records = [together("demo/a", "demo/b"), together("acme/b", "acme/c", received=often)]

    assert materialise_handler(runs, 4, small)({"Records": records}, Context()) == DONE
    named = {"demo/a", "demo/b", "acme/b", "acme/c"}
    assert small.asked == [(named, {"acme/b", "acme/c"})]


@pytest.mark.law("L12")
@pytest.mark.parametrize("unfinished", [{"later": {"demo/b"}}, {"left": {"demo/b": "new"}}])
def test_an_announcement_is_retried_while_any_of_its_tables_waits(unfinished: Any) -> None:
    runs = Runs(900, at_work=4)
    handler = materialise_handler(runs, 4, Small(Taken(**unfinished), runs, 900))
    records = [together("demo/a", "demo/b"), together("acme/b", "acme/c")]

    assert back(handler({"Records": records}, Context())) == ["demo/a"]


def test_a_message_without_a_claim_makes_the_function_take_all_tables() -> None:
    runs = Runs(1)
    small = Small(Taken(), runs, 0)
    records = [*sent("demo/a")["Records"], {"messageId": "1", "body": '{"replayed": true}'}]
    materialise_handler(runs, 4, small)({"Records": records}, Context())

    assert small.asked == [(set(), set())]


@pytest.mark.law("L12")
def test_only_announcements_of_tables_locked_by_others_are_retried() -> None:
    runs = Runs(2)
    handler = materialise_handler(runs, 4, Small(Taken(later={"acme/b"}), runs, 1))

    assert back(handler(sent("demo/a", "acme/b", "acme/c"), Context())) == ["acme/b"]
    assert runs.started == 0


@pytest.mark.law("L12")
def test_tables_left_for_glue_are_retried_while_enough_runs_are_active() -> None:
    runs = Runs(900, at_work=1)
    taken = Taken(left={"demo/a": "its columns change"}, later={"acme/b"})
    handler = materialise_handler(runs, 4, Small(taken, runs, 900))

    assert back(handler(sent("demo/a", "acme/b", "acme/c"), Context())) == ["demo/a", "acme/b"]
    assert runs.started == 0


@pytest.mark.law("L12")
def test_no_run_is_started_while_another_function_starts_runs() -> None:
    runs = Runs(900)
    runs.others_start = True
    handler = materialise_handler(runs, 4, Small(Taken(left={"demo/a": "new"}), runs, 900))

    assert back(handler(sent("demo/a", "acme/b"), Context())) == ["demo/a"]
    assert runs.started == 0


def test_one_table_left_for_glue_starts_one_run() -> None:
    runs = Runs(3_000)
    handler = materialise_handler(runs, 4, Small(Taken(left={"demo/a": "new"}), runs, 3_000))

    assert handler(sent("demo/a", "acme/b"), Context()) == DONE
    assert runs.started == 1


def test_a_table_whose_announcement_was_retried_too_often_gets_a_glue_run() -> None:
    runs = Runs(2)
    small = Small(Taken(left={"demo/a": "tried"}), runs, 1)
    again = sent("demo/a", received=SMALL_TRIES_MAX + 1)["Records"]

    handler = materialise_handler(runs, 4, small)
    assert handler({"Records": again + sent("demo/b")["Records"]}, Context()) == DONE
    assert small.asked == [({"demo/a", "demo/b"}, {"demo/a"})]
    assert runs.started == 1


def test_a_message_without_a_table_retried_too_often_starts_a_glue_run() -> None:
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


def taken_of(
    store: FileStore, table: Table, *announced: str, deltas_max: int = 100, seconds: float = 30,
    tried: Iterable[str] = (),
) -> Taken:  # fmt: skip
    small = SmallBatches(store, lambda: table, deltas_max, "function")  # type: ignore[arg-type,return-value]
    return small.take(lambda: seconds, announced, set(tried))


class Counted(FileStore):
    """A bucket that counts what `lakesync.cli.cost.counts` says of leases and listings."""

    writes = 0

    def claims(self, *named: str) -> Any:
        self.writes += 1
        return super().claims(*named)

    def put_if_unchanged(self, key: str, *given: Any) -> Any:
        self.writes += 1
        return super().put_if_unchanged(key, *given)


@pytest.mark.law("L19")
def test_tables_of_a_gateway_share_a_lease_and_a_listing(tmp_path: Path) -> None:
    writes = []
    for number, names in enumerate([("todos",), ("todos", "lists", "notes")]):
        store, table = Counted(tmp_path / f"{number}"), Table()
        for name in names:
            claim_of(store, "demo", name, 0, deltas=1)
        store.writes = 0
        taken = taken_of(store, table, *(f"demo/{name}" for name in names))
        assert (taken.deltas, len(table.applied)) == (len(names), len(names))
        writes.append(store.writes)

    alone, three = writes
    assert 3 * alone - three == 2 * counts.SHARED_WRITES, "one has them, for all three"
    assert counts.TABLES_TOGETHER == TOGETHER_TABLES_MAX


@pytest.mark.law("L19")
def test_batches_are_small_by_their_number_their_deltas_and_their_bytes(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "few")
    for number in range(3):
        claim_of(store, "demo", "todos", number, deltas=30)
    table = Table()

    assert taken_of(store, table, deltas_max=89).left == {
        "demo/todos": "90 deltas waiting, 3 bytes"
    }
    assert taken_of(store, table, deltas_max=90) == Taken(deltas=90)
    claim_of(store, "demo", "todos", 3, deltas=1, size=BYTES_MAX)
    assert list(taken_of(store, table).left) == ["demo/todos"]
    for number in range(CLAIMS_MAX + 1):
        claim_of(store, "demo", "notes", number, deltas=1)
    assert taken_of(store, table).left == {"": f"more than {CLAIMS_MAX} claims wait"}
    assert taken_of(store, table, "demo/notes").left == {
        "demo/notes": f"more than {CLAIMS_MAX} claims wait"
    }
    assert len(table.applied) == 1


@pytest.mark.law("L19")
def test_smallness_is_judged_by_table_whatever_waits_for_other_gateways(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "many")
    for gateway in range(200):
        claim_of(store, f"g{gateway}", "todos", 0, deltas=50)
    claim_of(store, "g7", "notes", 0, deltas=1)
    claim_of(store, "g8", "notes", 0, deltas=10_000)
    table = Table()
    taken = taken_of(store, table, "g7/todos", "g8/notes", "g9/todos", "gone/todos")

    assert (taken.deltas, taken.later) == (100, set())
    assert taken.left == {"g8/notes": "10,000 deltas waiting, 1 bytes"}
    assert [batches[0].split("/")[:2] for batches in table.applied] == [
        ["g7", "todos"],
        ["g9", "todos"],
    ]
    assert taken_of(store, table, "g11/todos", tried=["g11/todos"]).left == {
        "g11/todos": "its announcement came back again and again"
    }


@pytest.mark.law("L8", "L19")
@pytest.mark.parametrize("after_s", [3, 60])
def test_a_leased_gateway_group_is_waited_for_briefly(tmp_path: Path, after_s: int) -> None:
    store = FileStore(tmp_path / "two")
    claim_of(store, "demo", "todos", 0, deltas=1)
    claim_of(store, "acme", "todos", 0, deltas=1)
    other = Lease.acquire_if_free(store, group_of_table("demo/todos"), "other")  # type: ignore[arg-type]
    assert other is not None
    other.__enter__()
    begun = store.now

    def release() -> None:
        if (store.now - begun).total_seconds() == after_s:
            other.__exit__(None, None, None)

    store.meanwhile = release
    try:
        taken = taken_of(store, Table(), "demo/todos", "acme/todos")
    finally:
        other.__exit__(None, None, None)

    waited_s = (store.now - begun).total_seconds()
    if after_s < BUSY_S_MAX:
        assert (taken, waited_s) == (Taken(deltas=2), after_s)
    else:
        assert (taken, waited_s) == (Taken(deltas=1, later={"demo/todos"}), BUSY_S_MAX)


@pytest.mark.law("L9", "L19")
def test_a_fault_in_one_table_does_not_affect_other_tables(tmp_path: Path) -> None:
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
def test_tables_left_to_glue_by_decision_are_no_faults_and_failures_are_counted(
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


def test_no_table_is_begun_without_enough_time(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "few")
    claim_of(store, "demo", "todos", 0, deltas=1)
    taken = taken_of(store, Table(), seconds=small_batches.SECONDS_LEFT_MIN - 1)

    assert taken == Taken(later={"demo/todos"}), "it comes again, and is no run's"


@pytest.mark.law("L9", "L19")
def test_the_catalogue_is_reopened_after_a_fault(
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
