"""Arguments, claims, chains and the lease: no Spark needed."""

from __future__ import annotations

import ast
import io
import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakesync.adapters.lake.parquet import read_batch
from lakesync.core.config import JSON, PARQUET
from lakesync.core.deliveries import Batch, parse_claim
from lakesync.core.schema import Column, TableSchema
from lakesync.errors import Conflict, LakeSyncError, ValidationFailed
from lakesync.maintenance import flush
from lakesync.materialise.lake_catalogue import LakeCatalogue
from lakesync.materialise.work_queue import LEASE_S, Lease, lease_key, next_chain
from lakesync_spark.common.arguments import Arguments, parse_arguments, parse_bigquery_arguments
from lakesync_spark.common.report import Report, reason_of
from lakesync_spark.common.staging import is_whole
from lakesync_spark.iceberg import table_run
from lakesync_spark.iceberg.apply import is_readable
from lakesync_spark.iceberg.table_run import TableRun
from tests.glue.support.faults import refused
from tests.glue.support.files import FileStore
from tests.glue.support.lake import Lake
from tests.support.builders import insert
from tests.support.repository import ROOT
from tests.support.some import some

if TYPE_CHECKING:
    from pathlib import Path


def test_classes_of_job_scripts_have_no_slots() -> None:
    """A script runs as ``__main__``, and Spark sends its classes themselves; 3.5 loses slots."""
    scripts = some(sorted((ROOT / "glue_jobs").glob("*.py")))
    classes = {
        f"{script.name}: {each.name}": [ast.unparse(one) for one in each.decorator_list]
        for script in scripts
        for each in ast.walk(ast.parse(script.read_text()))
        if isinstance(each, ast.ClassDef)
    }
    assert classes
    assert [name for name, decorators in classes.items() if "slots" in str(decorators)] == []


def test_arguments_of_glue_itself_are_ignored() -> None:
    argv = [
        "--JOB_NAME", "j", "--enable-metrics", "--lake_bucket", "b", "--conf", "a=1 --conf b=2",
        "--database_prefix=p", "--catalog", "lake", "--only", "g/t", "--JOB_RUN_ID", "x",
        "--stack", "arn:stack/a", "--lake_catalogue", '{"kind": "rest", "uri": "https://a"}',
    ]  # fmt: skip
    catalogue = LakeCatalogue("rest", "https://a")

    assert parse_arguments(argv) == Arguments(
        "b", "p", "lake", "arn:stack/a", "g/t", catalogue=catalogue
    )


def test_a_missing_argument_is_named() -> None:
    with pytest.raises(
        ValidationFailed, match="--database_prefix, --catalog, --lake_catalogue, --s"
    ):
        parse_arguments(["--lake_bucket", "b", "--catalog"])


CLAIM: dict[str, Any] = json.loads(
    flush.Batch("g1", "todos", 5, 9, (), {"Due": "due", "n": "n"}).claim(
        TableSchema("todos", (Column("n", "number"),), version=3, partition=("n",)), 10
    )
)


def test_claim_of_the_flush_function_is_parsed() -> None:
    batch = parse_claim("claims/k.json", json.dumps(CLAIM).encode())

    assert (batch.gateway, batch.table, batch.after, batch.last) == ("g1", "todos", 5, 9)
    assert batch.schema is not None
    assert batch.schema.partition == ("n",)
    assert batch.object_key.startswith("staging/g1/todos/")
    assert dict(batch.columns) == CLAIM["columns"]


@pytest.mark.law("L9")
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("version", 99), ("version", None), ("gateway", "a/../b"), ("gateway", 1), ("table", "a b"),
        ("after", "9"), ("after", 5), ("after", "-1"), ("last", str(2**63)), ("object", None),
        ("deltas", "1"), ("deltas", True), ("append", 0), ("schema", []),
        ("schema", {"columns": 1}),
        ("schema", {"columns": [{"name": "n", "type": "money"}]}), ("columns", []),
        ("columns", {"n": "`; DROP"}), ("columns", {"a b": "a b"}),
    ],
)  # fmt: skip
def test_claim_with_an_invalid_field_is_refused(field: str, value: object) -> None:
    with pytest.raises(LakeSyncError):
        parse_claim("claims/k.json", json.dumps({**CLAIM, field: value}).encode())


@given(st.binary(max_size=20))
def test_noise_is_not_parsed_as_a_claim(noise: bytes) -> None:
    with pytest.raises(LakeSyncError):
        parse_claim("claims/k.json", noise)


def batch(after: int, last: int, deltas: int = 1) -> Batch:
    key = f"claims/g/t/{after}-{last}.json"
    return Batch(key, "g", "t", after, last, "o", deltas, append=False, schema=None, columns=())


def spans(batches: Any) -> list[tuple[int, int]]:
    return [(batch.after, batch.last) for batch in batches]


@pytest.mark.law("L5")
def test_a_chain_ends_at_a_gap() -> None:
    chain = next_chain([batch(7, 9), batch(0, 3), batch(3, 5)], 0)

    assert spans(link.batch for link in chain.links) == [(0, 3), (3, 5)]
    assert spans(chain.waiting) == [(7, 9)]


@pytest.mark.law("L4")
def test_of_overlapping_batches_the_one_with_the_later_end_is_taken() -> None:
    chain = next_chain([batch(0, 3), batch(0, 5), batch(2, 4), batch(4, 8)], 0)

    assert [(*link.batch.claim_key.split("/")[-1:], link.above) for link in chain.links] == [
        ("0-5.json", 0),
        ("4-8.json", 5),
    ]
    assert spans(chain.covered) == [(0, 3), (2, 4)]


def test_fold_is_bounded_but_takes_at_least_one_batch() -> None:
    batches = [batch(0, 3, 10), batch(3, 5, 10), batch(5, 9, 10)]

    assert spans(link.batch for link in next_chain(batches, 0, deltas_max=20).links) == [
        (0, 3),
        (3, 5),
    ]
    assert spans(link.batch for link in next_chain(batches, 0, deltas_max=0).links) == [(0, 3)]


@pytest.mark.law("L4", "L5")
@given(st.lists(st.tuples(st.integers(0, 20), st.integers(1, 9)), max_size=9), st.integers(0, 20))
def test_chain_covers_each_commit_once_and_skips_none(
    ranges: list[tuple[int, int]], mark: int
) -> None:
    batches = [batch(after, after + length) for after, length in {*ranges}]
    chain = next_chain(batches, mark)
    reached = mark
    for link in chain.links:
        assert link.above == reached
        assert link.batch.after <= reached < link.batch.last
        reached = link.batch.last

    taken = [link.batch for link in chain.links]
    assert sorted(spans([*taken, *chain.covered, *chain.waiting])) == sorted(spans(batches))
    assert all(batch.last <= reached for batch in chain.covered)
    assert all(batch.after > reached for batch in chain.waiting)


GROUP = 7


@pytest.fixture
def store(tmp_path: Path) -> Any:
    return FileStore(tmp_path)


@pytest.mark.law("L8")
def test_only_one_run_holds_the_lease(store: Any) -> None:
    first = Lease.acquire(store, GROUP, "a")
    assert first is not None
    store.meanwhile = first.check
    assert Lease.acquire(store, GROUP, "b") is None
    with first:
        first.check()
    second = Lease.acquire(store, GROUP, "b")

    assert second is not None
    assert (first.epoch, second.epoch) == (1, 2)


@pytest.mark.law("L8")
def test_expired_lease_is_taken_over_and_its_former_holder_is_refused(store: Any) -> None:
    first = Lease.acquire(store, GROUP, "a")
    began = store.now
    second = Lease.acquire(store, GROUP, "b")

    assert first is not None
    assert second is not None
    with pytest.raises(Conflict, match="lost its lease of epoch 1"):
        first.check()
    assert (store.now - began).total_seconds() < LEASE_S + 5
    second.check()
    with second:
        pass
    with pytest.raises(Conflict):
        first.check()


@pytest.mark.law("L8")
def test_lease_renewal_with_a_lost_answer_keeps_the_lease(
    store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = Lease.acquire(store, GROUP, "a")
    assert lease is not None
    real = store.put_if_unchanged

    def deaf(*args: Any) -> None:
        real(*args)

    monkeypatch.setattr(store, "put_if_unchanged", deaf)
    lease.check()
    monkeypatch.setattr(store, "put_if_unchanged", real)
    lease.check()

    assert json.loads(store.read(lease_key(GROUP)).body)["run_id"] == "a"


def test_two_concurrent_acquisitions_give_one_lease(
    store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = store.read

    def read(key: str) -> Any:
        stored = real(key)
        monkeypatch.setattr(store, "read", real)
        assert Lease.acquire(store, GROUP, "b") is not None
        return stored

    monkeypatch.setattr(store, "read", read)

    assert Lease.acquire(store, GROUP, "a") is None


class JavaError:
    """A Java exception as Py4J shows it."""

    def __init__(self, name: str, message: str | None, cause: JavaError | None = None) -> None:
        self.getName = lambda: name
        self.getMessage = lambda: message
        self.getCause = lambda: cause

    def getClass(self) -> JavaError:  # noqa: N802 - Java's name
        return self


class GatewayError(Exception):
    """As Py4J raises it: its own text tells nothing."""

    def __init__(self, java: JavaError) -> None:
        super().__init__("An error occurred while calling o1.overwrite.")
        self.java_exception = java


def test_a_reason_names_the_java_exception_and_its_first_cause() -> None:
    cause = JavaError("o.Validation", "found a conflict\n\n  in f.parquet\nof t\nat line 1")
    error = GatewayError(JavaError("o.Spark", "aborted", JavaError("o.Between", None, cause)))

    assert reason_of(error) == (
        "o.Spark: aborted; caused by o.Validation: found a conflict in f.parquet of t"
    )
    assert reason_of(GatewayError(JavaError("o.Alone", None))) == "o.Alone"
    assert reason_of(ValueError("a\nb")) == "ValueError: a b"


def test_the_job_of_large_bigquery_batches_reads_its_arguments() -> None:
    words = [
        "--lake_bucket", "lake", "--buffer_table", "b", "--deliver_queue_url", "q",
        "--secret_prefix", "s/destinations/", "--region", "eu-central-1",
    ]  # fmt: skip

    read = parse_bigquery_arguments([*words, "--deltas_min", "7", "--JOB_NAME", "x"])
    assert (read.buffer_table, read.deltas_min) == ("b", 7)
    for wrong in ([], ["--deltas_min", "0"], ["--deltas_min", "many"]):
        with pytest.raises(ValidationFailed, match="--deltas_min"):
            parse_bigquery_arguments([*words, *wrong])


# --- what is a batch's own fault


@pytest.mark.law("L9")
def test_damaged_object_is_detected_by_every_reader(tmp_path: Path) -> None:
    batch, body = staged(FileStore(tmp_path))
    faults = 0
    for place in range(0, len(body), 11):
        damaged = bytes([*body[:place], body[place] ^ 0xFF, *body[place + 1 :]])
        try:
            read_batch(damaged, batch)  # of Parquet, not every byte tells
        except ValidationFailed:
            faults += 1
        else:
            assert is_whole(damaged)

    assert faults > len(body) // 11 // 4


@pytest.mark.law("L9")
@pytest.mark.parametrize("form", [PARQUET, JSON])
def test_batch_is_unreadable_if_its_object_is_damaged_or_missing(tmp_path: Path, form: str) -> None:
    store = FileStore(tmp_path)
    batch, body = staged(store, form)
    bench: Any = SimpleNamespace(store=store)

    assert is_readable(bench, batch)
    other = io.BytesIO()
    pq.write_table(pa.table({"_commit": ["not", "a", "number"]}), other)
    for bad in (body[:-20], b"not parquet", b"", other.getvalue()):
        store.put(batch.object_key, bad)
        assert not is_readable(bench, batch)
    store.delete(batch.object_key)
    assert not is_readable(bench, batch)


@pytest.mark.law("L9")
@pytest.mark.parametrize("code", ["SlowDown", "ExpiredToken"])
def test_batch_is_not_set_aside_while_s3_refuses_its_object(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    store = FileStore(tmp_path)
    batch, _ = staged(store)
    read = store.read

    def refuse(key: str) -> Any:
        if key == batch.object_key:
            raise refused(code)
        return read(key)

    def fail(*_: object) -> None:
        raise OSError("Status Code: 503")

    monkeypatch.setattr(store, "read", refuse)
    monkeypatch.setattr(table_run, "located", lambda *_: None)
    monkeypatch.setattr(
        table_run, "survey", lambda _bench, _name, batches, _: next_chain(batches, 0)
    )
    monkeypatch.setattr(table_run, "apply_chain", fail)
    bench: Any = SimpleNamespace(spark=None, store=store, lease=SimpleNamespace(check=lambda: None))
    report, arguments = Report(), Arguments("b", "p", "lake", "arn:stack/a")
    left = TableRun(bench, arguments, report, f"{batch.gateway}/{batch.table}", set()).work()

    assert left == {batch.claim_key}
    assert store.set_aside_reasons == {}
    assert [failure.set_aside for failure in report.failed] == [False]


def staged(store: FileStore, form: str = PARQUET) -> tuple[Batch, bytes]:
    """Write a batch and its claim; give it as the claim says it, and its object."""
    nobody: Any = None
    rows = [insert(f"r{n}", at=n + 1, s="x" * n) for n in range(40)]
    put = Lake(nobody, store, "g1").put(rows, form=form)
    claim, stored = store.read(put.claim_key), store.read(put.object_key)
    assert claim is not None
    assert stored is not None
    return parse_claim(put.claim_key, claim.body), stored.body
