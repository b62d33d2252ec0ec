"""Iceberg tables as a database: what a reader sees, the lake as a source, and who dies anywhere.

Laws P1, P2, P4, P7, P14: ``docs/spec/databases.md``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import boto3
import pytest
from moto import mock_aws
from pyiceberg.exceptions import (
    CommitFailedException,
    CommitStateUnknownException,
    ForbiddenError,
    ServerError,
)

from lakesync.adapters.connect import database_adapter, read_connection
from lakesync.adapters.database import Position
from lakesync.adapters.memory import MemoryDatabase
from lakesync.core.delta import Op, make_delta
from lakesync.core.names import lake_database
from lakesync.errors import (
    AdapterRefused,
    AdapterTimedOut,
    AdapterUnreachable,
    ValidationFailed,
)
from lakesync.materialise.lake_schema import EPOCH
from lakesync.result import Err
from lakesync.systems.iceberg import iceberg_database, state_table, table_pair
from lakesync.systems.iceberg.iceberg_database import lake_place
from lakesync.systems.iceberg.state_table import Leaves, StateFiles
from lakesync.testing.database_contract import batch, merged, schema
from tests.support.destinations import new_table
from tests.support.lake_databases import LakeDatabases

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from lakesync.core.delta import Delta
    from lakesync.systems.iceberg.iceberg_database import IcebergDatabase

TABLE = "orderLines"


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[LakeDatabases]:
    made = LakeDatabases(tmp_path)
    yield made
    made.close()


def put(row_id: str, at: int, table: str = TABLE, **columns: Any) -> Delta:
    return make_delta(Op.INSERT, table, row_id, columns, client_id="c", hlc=at)


def gone(row_id: str, at: int) -> Delta:
    return make_delta(Op.DELETE, TABLE, row_id, {}, client_id="c", hlc=at)


def seen(lake: LakeDatabases, keeper: str = "acme", name: str = "order_lines") -> dict[str, Any]:
    """Return the rows that a reader sees who knows nothing of LakeSync."""
    rows = lake.catalogue.load_table((lake.place.database(keeper), name)).scan(
        row_filter="_is_deleted = false"
    )
    return {
        row["_id"]: {k: v for k, v in row.items() if k[0] != "_"}
        for row in rows.to_arrow().to_pylist()
    }


def paths(lake: LakeDatabases, name: str) -> set[str]:
    """Return the data files that the snapshots of a table name."""
    table = lake.catalogue.load_table((lake.place.database("acme"), name))
    return {
        task.file.file_path.removeprefix("file://")
        for snapshot in table.snapshots()
        for task in table.scan(snapshot_id=snapshot.snapshot_id).plan_files()
    }


@pytest.mark.law("P1", "P14")
def test_rows_are_typed_in_tables_named_as_in_the_lake(lake: LakeDatabases) -> None:
    database, kinds = lake.adapter("acme"), {"unitPrice": "decimal(10,2)", "dueDate": "date"}
    first = batch(TABLE, [put("a", 1, unitPrice=1.5, dueDate="2026-01-02"),
                          put("b", 2, unitPrice=2, note={"x": 1})],
                  schema=schema(TABLE, kinds))  # fmt: skip
    database.insert_deltas(first).unwrap()
    database.insert_deltas(batch(TABLE, [gone("b", 3)], after=first.last)).unwrap()

    [row] = seen(lake).values()
    assert (str(row["unit_price"]), str(row["due_date"])) == ("1.50", "2026-01-02")
    changes = lake.catalogue.load_table((lake.place.database("acme"), "order_lines__changes"))
    assert [row["_op"] for row in changes.scan().to_arrow().to_pylist()] == [
        "INSERT", "INSERT", "DELETE",
    ]  # fmt: skip
    assert database.latest_state(TABLE, "a").unwrap() == {"unitPrice": 1.5, "dueDate": "2026-01-02"}


@pytest.mark.law("P7")
def test_refused_row_keeps_its_previous_value_until_it_is_corrected(lake: LakeDatabases) -> None:
    database, wanted = lake.adapter("acme"), schema(TABLE, {"n": "integer"})
    first = batch(TABLE, [put("a", 1, n=1), put("b", 2, n=2)], schema=wanted)
    database.insert_deltas(first).unwrap()
    bad = batch(TABLE, [put("a", 3, n="x"), put("c", 4, n="y"), put("b", 5, n=7)], after=first.last)
    letters = database.insert_deltas(bad).unwrap().dead_letters

    assert [(one.row_id, one.reason) for one in letters] == [
        ("a", 'column n: "x" is no integer'), ("c", 'column n: "y" is no integer'),
    ]  # fmt: skip
    assert seen(lake) == {"a": {"n": 1}, "b": {"n": 7}}
    assert database.latest_state(TABLE, "a").unwrap() == {"n": "x"}
    assert lake.adapter("acme").dead_letters(TABLE).unwrap() == letters
    mended = batch(TABLE, [put("a", 6, n=3), gone("c", 7)], after=bad.last)
    assert database.insert_deltas(mended).unwrap().dead_letters == ()
    assert seen(lake) == {"a": {"n": 3}, "b": {"n": 7}}


@pytest.mark.law("P6")
def test_new_column_types_rewrite_existing_rows(lake: LakeDatabases) -> None:
    database = lake.adapter("acme")
    first = batch(TABLE, [put("a", 1, n=1, price=1), put("b", 2, n="x", price=2)],
                  schema=schema(TABLE, {"price": "decimal(4,2)"}))  # fmt: skip
    database.insert_deltas(first).unwrap()
    assert seen(lake)["a"]["n"] == "1", "text, as long as nobody says what it is"
    typed = schema(TABLE, {"price": "decimal(8,2)", "n": "integer"}, version=2)
    database.ensure_schema(typed).unwrap()
    assert (seen(lake)["a"]["n"], str(seen(lake)["a"]["price"])) == (1, "1.00")
    assert [one.row_id for one in database.dead_letters(TABLE).unwrap()] == ["b"]
    assert database.latest_state(TABLE, "b").unwrap() == {"n": "x", "price": 2}


@pytest.mark.law("P3", "P14")
def test_lake_of_a_stack_is_read_up_to_its_batch_mark_and_never_written(
    lake: LakeDatabases, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lake's tables name no keeper, and its snapshots the epoch of a lease."""
    write: Callable[..., int] = table_pair.commit

    def commit(*given: Any) -> int:
        return write(*given[:-1], {**given[-1], EPOCH: "1"})

    monkeypatch.setattr(iceberg_database, "commit", commit)
    database, mirror = lake.adapter("acme"), MemoryDatabase()
    first = batch(
        TABLE, [put("a", 1, n=1), put("b", 2, n=2)], schema=schema(TABLE, {"n": "integer"})
    )
    second = batch(TABLE, [put("c", 3, n=3), gone("a", 4)], after=first.last)
    for one in (first, second):
        database.insert_deltas(one).unwrap()
        mirror.insert_deltas(one).unwrap()
    for name in ("order_lines", "order_lines__changes"):
        table = lake.catalogue.load_table((lake.place.database("acme"), name))
        with table.transaction() as made:
            made.remove_properties("lakesync.keeper")
    read = lake.adapter("acme")

    assert read.mark(TABLE).unwrap() == second.last
    assert read.rows_after(TABLE, "", 10).unwrap() == mirror.rows_after(TABLE, "", 10).unwrap()
    since = read.query_deltas_since(TABLE, Position(first.last, 1 << 62), 10).unwrap()
    assert [one.delta.row_id for one in since.deltas] == ["c", "a"]
    [(name, columns)] = read.tables().unwrap().items()
    assert (name, columns and [(one.name, one.type) for one in columns.columns]) == (
        TABLE, [("n", "integer")],
    )  # fmt: skip
    refused = read.insert_deltas(batch(TABLE, [put("z", 9)], after=second.last))
    assert isinstance(refused, Err)
    assert isinstance(refused.error, AdapterRefused)
    assert "lake" in refused.error.message


def test_tables_of_flows_are_separate_from_gateways_and_each_other(lake: LakeDatabases) -> None:
    kept = [lake.adapter(name) for name in ("acme", "acme/flow", "acme2")]
    for number, database in enumerate(kept):
        database.insert_deltas(batch("flow", [put("a", 1, "flow", n=number)])).unwrap()
    assert [one.latest_state("flow", "a").unwrap() for one in kept] == [
        {"n": 0}, {"n": 1}, {"n": 2},
    ]  # fmt: skip
    assert lake.place.database("acme") == lake_database("ls", "acme")
    assert [list(one.tables().unwrap()) for one in kept] == [["flow"]] * 3


@pytest.mark.law("P2", "P3", "P4")
@pytest.mark.parametrize("behind", [False, True])
def test_failure_at_any_catalogue_commit_leaves_no_partial_batch(
    lake: LakeDatabases, monkeypatch: pytest.MonkeyPatch, *, behind: bool
) -> None:
    """A commit of the catalogue that fails, or whose answer is lost; then the same comes again."""
    real, left = type(lake.catalogue).commit_table, [1 << 30]

    def commit(self: Any, *given: Any) -> Any:
        left[0] -= 1
        if not left[0] and not behind:
            raise ServerError("it is away")
        done = real(self, *given)
        if not left[0]:
            raise ServerError("its answer is lost")
        return done

    monkeypatch.setattr(type(lake.catalogue), "commit_table", commit)
    mirror, last, deaths = MemoryDatabase(), 0, 0
    for number in range(12):
        one = batch(TABLE, [put(f"r{number:02}", number * 3 + 1, n=number),
                            put("same", number * 3 + 2, n=number)], after=last)  # fmt: skip
        left[0] = number % 3 + 1
        answer = lake.adapter("acme").insert_deltas(one)
        left[0] = 1 << 30
        if isinstance(answer, Err):
            assert isinstance(answer.error, AdapterUnreachable)
            deaths += 1
            shown = lake.adapter("acme")
            mark = shown.mark(TABLE).unwrap()
            assert mark in {last, one.last}
            deltas = shown.query_deltas_since(TABLE, Position(), 100).unwrap().deltas
            assert (deltas[-1].position.commit if deltas else 0) == mark
            # Another batch may come in place of the one that was lost.
            extra = put(f"x{number:02}", number * 3 + 3, n=-1)
            again = batch(TABLE, [*(delta for _, delta in one.deltas), extra], after=last)
            one = again if mark == last else one
            lake.adapter("acme").insert_deltas(one).unwrap()
        mirror.insert_deltas(one).unwrap()
        last = one.last
    database = lake.adapter("acme")
    assert deaths > 6
    assert database.rows_after(TABLE, "", 99).unwrap() == mirror.rows_after(TABLE, "", 99).unwrap()
    history = database.query_deltas_since(TABLE, Position(), 99).unwrap().deltas
    assert [one.delta for one in history] == [
        one.delta for one in mirror.query_deltas_since(TABLE, Position(), 99).unwrap().deltas
    ]


@pytest.mark.law("P2", "P4")
def test_second_of_two_concurrent_writers_starts_again(
    lake: LakeDatabases, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other's history lies on the first one's, as nobody holds a lock."""
    lake.adapter("acme").insert_deltas(batch(TABLE, [put("a", 1, n=1)])).unwrap()
    other = batch(TABLE, [put("b", 2, n=2)], after=1)
    mine = batch(TABLE, [put("c", 3, n=3)], after=1)
    write, once = Leaves.write, list[bool]()

    def meanwhile(self: Leaves, *given: Any, **named: Any) -> None:
        write(self, *given, **named)
        if not once:
            once.append(True)
            lake.adapter("acme").insert_deltas(other).unwrap()

    monkeypatch.setattr(Leaves, "write", meanwhile)
    lake.adapter("acme").insert_deltas(mine).unwrap()
    database = lake.adapter("acme")
    assert set(database.rows_after(TABLE, "", 9).unwrap().rows) == {"a", "b"}
    history = database.query_deltas_since(TABLE, Position(), 9).unwrap().deltas
    assert [one.delta.row_id for one in history] == ["a", "b"]


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (CommitFailedException("somebody was quicker"), "another writer was first"),
        (CommitStateUnknownException("HTTP 400 Bad Request"), "HTTP 400 Bad Request"),
    ],
)
def test_write_that_never_commits_times_out_with_the_last_reason(
    lake: LakeDatabases, monkeypatch: pytest.MonkeyPatch, error: Exception, reason: str
) -> None:
    """And why the last attempt failed: the catalogue may be the one that does not take it."""

    def refused(*_: Any) -> Any:
        raise error

    monkeypatch.setattr(type(lake.catalogue), "commit_table", refused)
    answer = lake.adapter("acme").insert_deltas(batch(TABLE, [put("a", 1, n=1)]))
    assert isinstance(answer, Err)
    assert isinstance(answer.error, AdapterTimedOut)
    assert reason in str(answer.error)


def test_errors_of_the_catalogue_become_lakesync_errors(
    lake: LakeDatabases, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forbidden(*_: Any) -> Any:
        raise ForbiddenError("not for you")

    monkeypatch.setattr(type(lake.catalogue), "load_table", forbidden)
    answer = lake.adapter("acme").mark(TABLE)
    assert isinstance(answer, Err)
    assert isinstance(answer.error, AdapterRefused)


@pytest.mark.law("P5")
def test_changed_row_rewrites_one_of_many_files(
    lake: LakeDatabases, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lakesync.systems.iceberg.state_table.FILE_ROWS_MAX", 10)
    monkeypatch.setattr(state_table, "REMEMBERED_ROWS", 20)
    monkeypatch.setattr(state_table, "WINDOW_ROWS", 15)
    database, last = lake.adapter("acme"), 0
    rows = [put(f"r{number * 37 % 101:03}", number + 1, n=number) for number in range(101)]
    for start in range(0, 101, 26):
        one = batch(TABLE, rows[start : start + 26], after=last)
        database.insert_deltas(one).unwrap()
        last = one.last
    state = lake.catalogue.load_table((lake.place.database("acme"), "order_lines"))
    before = {task.file.file_path for task in state.scan().plan_files()}
    last_one = batch(TABLE, [put("r050", 500, n=0)], after=last)
    database.insert_deltas(last_one).unwrap()
    state.refresh()
    after = {task.file.file_path for task in state.scan().plan_files()}

    assert len(before) > 10
    assert (len(before - after), len(after - before)) == (1, 1)
    whole, place = dict[str, Any](), ""
    while True:
        page = database.rows_after(TABLE, place, 7).unwrap()
        whole |= page.rows
        if not page.has_more:
            break
        place = list(page.rows)[-1]
    assert list(whole) == sorted(whole)
    assert len(whole) == 101
    expected = merged([*rows, *(delta for _, delta in last_one.deltas)])
    assert {
        one: database.latest_state(TABLE, one).unwrap() for one in ("r000", "r050", "r100")
    } == {one: expected[one] for one in ("r000", "r050", "r100")}


def test_large_files_are_not_read_whole_to_find_rows(
    lake: LakeDatabases, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_table, "REMEMBERED_FILE_ROWS", 2)
    rows = [put(f"r{number}", number + 1, n=number) for number in range(9)]
    lake.adapter("acme").insert_deltas(batch(TABLE, rows)).unwrap()
    reads: list[Any] = []
    whole: Callable[..., Any] = StateFiles.whole

    def read(*given: Any) -> Any:
        reads.append(given)
        return whole(*given)

    monkeypatch.setattr(StateFiles, "whole", read)
    states = lake.adapter("acme").rows_of(TABLE, ["r3", "r7", "none"]).unwrap()
    assert (sorted(states), reads) == (["r3", "r7"], [])


@pytest.mark.law("P12")
def test_old_snapshots_are_removed_with_their_files_and_recent_ones_are_kept(
    lake: LakeDatabases, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_pair, "SNAPSHOTS_KEPT", 3)
    monkeypatch.setattr(table_pair, "KEPT_MS", -60_000)
    database, last = lake.adapter("acme"), 0
    database.insert_deltas(first := batch(TABLE, [put("secret", 1, n=1)])).unwrap()
    last = first.last
    for number in range(2, 14):
        one = batch(TABLE, [gone("secret", 2), put("a", number, n=number)], after=last)
        database.insert_deltas(one).unwrap()
        last = one.last
    state = lake.catalogue.load_table((lake.place.database("acme"), "order_lines"))
    files = {str(path) for path in lake.folder.rglob("*.parquet")}
    named = {path for one in ("order_lines", "order_lines__changes") for path in paths(lake, one)}

    assert 3 <= len(state.snapshots()) <= 7
    assert files == named
    assert seen(lake) == {"a": {"n": "13"}}


def test_iceberg_url_opens_its_catalogue(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_DEFAULT_REGION", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "us-east-1")
    url = "iceberg://glue/ls?warehouse=s3://my-bucket/some/folder&region=us-east-1"
    assert read_connection(url).kind == "iceberg"
    secret = '{"url": "iceberg://rest/ls?uri=https://lakes.example", "credentials": {"token": "t"}}'
    assert read_connection(secret).credentials == {"token": "t"}
    with mock_aws():
        boto3.client("s3").create_bucket(Bucket="my-bucket")
        database: IcebergDatabase = database_adapter(url, "acme")  # type: ignore[assignment]
        assert database.tables().unwrap() == {}
        assert database.mark(new_table()).unwrap() == 0
    place = lake_place(url, {})
    assert place.made_at("ls_acme", "t") == {"location": "s3://my-bucket/some/folder/ls_acme/t"}


@pytest.mark.parametrize(
    "url",
    ["iceberg://", "iceberg://glue/", "iceberg://glue/P?warehouse=s3://b/x", "iceberg://glue/p",
     "iceberg://glue/p?warehouse=/tmp", "iceberg://rest/p", "iceberg://hive/p?uri=https://x",
     "iceberg://rest/p?uri=https://user:word@x", "iceberg://s3tables/p?warehouse=bucket",
     "iceberg://glue/p?warehouse=s3://b/x&secret=1",
     "iceberg://glue/p?warehouse=s3://b/x&endpoint=ftp://host"],
)  # fmt: skip
def test_invalid_iceberg_url_is_refused_without_revealing_secrets(url: str) -> None:
    with pytest.raises(ValidationFailed) as refused:
        database_adapter(url, "g")
    assert "word" not in refused.value.message


@pytest.mark.law("P3")
def test_schema_that_another_process_changed_is_read_with_its_rows(lake: LakeDatabases) -> None:
    reader, writer = lake.adapter("acme"), lake.adapter("acme")
    rows = [make_delta(Op.INSERT, TABLE, "r1", {"n": 1}, client_id="c", hlc=1)]
    first = batch(TABLE, rows, schema=schema(TABLE, {"n": "integer"}))
    writer.insert_deltas(first).unwrap()
    assert reader.latest_state(TABLE, "r1").unwrap() == {"n": 1}
    assert reader.tables().unwrap()[TABLE] == writer.tables().unwrap()[TABLE]
    wider = schema(TABLE, {"n": "integer", "m": "integer"}, version=2, delete_wins=True)
    writer.ensure_schema(wider).unwrap()
    assert reader.latest_state(TABLE, "r1").unwrap() == {"n": 1}

    assert reader.tables().unwrap()[TABLE] == wider


def test_file_with_deletions_is_not_read_from_the_cache(
    monkeypatch: pytest.MonkeyPatch, lake: LakeDatabases
) -> None:
    adapter = lake.adapter("acme")
    rows = [make_delta(Op.INSERT, TABLE, "r1", {"n": 1}, client_id="c", hlc=1)]
    adapter.insert_deltas(batch(TABLE, rows)).unwrap()
    files: list[StateFiles] = []
    whole = StateFiles.whole

    def noting(self: StateFiles, task: Any) -> Any:
        files.append(self)
        return whole(self, task)

    monkeypatch.setattr(StateFiles, "whole", noting)
    assert adapter.latest_state(TABLE, "r1").unwrap() == {"n": 1}
    (task,) = files[-1].tasks
    monkeypatch.setattr(files[-1]._lake, "read", lambda _: "read")
    assert whole(files[-1], task) != "read", "it is cached"
    task.delete_files.add(task.file)

    assert whole(files[-1], task) == "read"
