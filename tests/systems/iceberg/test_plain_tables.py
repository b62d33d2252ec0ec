"""Iceberg tables that others write, followed by a flow from snapshot to snapshot. Law Y12."""

from __future__ import annotations

import random
from contextlib import closing
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyiceberg.table.snapshots import Operation

from lakesync.adapters.database import (
    ADDED,
    CHANGED,
    SAME,
    PlacedDelta,
    Position,
    SnapshotStep,
    TableBatch,
)
from lakesync.connectors.port import BroughtRows
from lakesync.core.flows import PlainTable as Declared
from lakesync.core.schema import Column, TableSchema
from lakesync.errors import AdapterFailed, AdapterRefused, ValidationFailed
from lakesync.flows.database_sources import PlainSource
from lakesync.result import Err
from lakesync.systems.iceberg.iceberg_database import PlainTable
from tests.flows.world import GATEWAY, World
from tests.support.builders import insert
from tests.support.lake_databases import LakeDatabases

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lakesync.connectors.port import SourcePage

NAME, KEY = "orders", "id"
SCHEMA = pa.schema([pa.field("id", pa.int64()), pa.field("name", pa.string())])
FAR_MS = 1 << 46


class Copy:
    """What a flow would have at its destination, page by page: newer stamps win."""

    def __init__(self, lake: LakeDatabases, key: str = KEY) -> None:
        self._lake = lake
        self._key = key
        self.rows: dict[str, dict[str, Any]] = {}
        self.stamps: dict[str, int] = {}
        self.cursor = ""
        self.given = 0
        self.reports: list[Any] = []
        self.source = self.opened()

    def opened(self) -> PlainSource:
        wanted = {NAME: Declared(f"raw.{NAME}", (self._key,))}
        return PlainSource(self._lake.adapter(), wanted, self._brought)

    def _brought(self, table: str, place: str) -> BroughtRows:
        assert table == NAME
        ids = sorted(row_id for row_id in self.rows if row_id > place)
        return BroughtRows(tuple(ids[:2]), ids[1] if len(ids) > 2 else "")

    def brought_nothing(self, table: str, place: str) -> BroughtRows:
        return BroughtRows((), "") if table and not place else self._brought(table, place)

    def page(self, rows_max: int = 2) -> bool:
        """Take a page; tell whether there are more."""
        page: SourcePage = self.source.read(
            NAME, self.cursor, rows_max=rows_max, poll_ms=FAR_MS
        ).unwrap()
        for change in page.changes:
            assert change.hlc is not None
            self.given += 1
            assert change.hlc >= self.stamps.get(change.row_id, 0)
            self.stamps[change.row_id] = change.hlc
            if change.columns is None:
                self.rows.pop(change.row_id, None)
            else:
                self.rows[change.row_id] = dict(change.columns)
        self.reports += [page.report] if page.report else []
        self.cursor = page.cursor
        return page.has_more

    def follow(self, rows_max: int = 2) -> None:
        while self.page(rows_max):
            pass


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[LakeDatabases]:
    with closing(LakeDatabases(tmp_path)) as databases:
        databases.catalogue.create_namespace("raw")
        yield databases


def rows_of(rows: dict[int, str]) -> pa.Table:
    return pa.Table.from_pylist(
        [{"id": key, "name": name} for key, name in rows.items()], schema=SCHEMA
    )


def expected(table: Any) -> dict[str, Any]:
    return {str(row["id"]): row for row in table.scan().to_arrow().to_pylist()}


@pytest.mark.law("Y12")
@pytest.mark.parametrize("seed", range(4))
def test_copy_has_the_rows_of_a_plain_table_after_any_operations(
    lake: LakeDatabases, seed: int
) -> None:
    chance, copy = random.Random(seed), Copy(lake)
    table = lake.catalogue.create_table(f"raw.{NAME}", SCHEMA)
    there: set[int] = set()
    for number in range(14):
        kind = chance.choice(["append", "append", "delete", "overwrite", "wait", "all"])
        if kind == "append":
            new = set(range(number * 10, number * 10 + chance.randint(1, 5)))
            table.append(rows_of(dict.fromkeys(new, f"made {number}")))
            there |= new
        elif kind == "delete" and there:
            gone = chance.choice(sorted(there))
            table.delete(f"id == {gone}")
            there.discard(gone)
        elif kind == "overwrite" and there:
            changed = chance.sample(sorted(there), min(3, len(there)))
            table.upsert(rows_of(dict.fromkeys(changed, f"changed {number}")), ["id"])
        elif kind == "all":
            there = {key for key in there if chance.random() < 0.7} | {1000 + number}
            table.overwrite(rows_of(dict.fromkeys(there, f"anew {number}")))
        if chance.random() < 0.4:
            copy.page()  # and another process goes on
            copy.source = copy.opened()
        if chance.random() < 0.5:
            copy.follow()
            assert copy.rows == expected(table)
    copy.follow()
    assert copy.rows == expected(table)
    given = copy.given
    copy.follow()
    assert copy.given == given, "what was read is not read again"


@pytest.mark.law("Y12")
def test_following_a_commit_reads_only_its_changed_rows(lake: LakeDatabases) -> None:
    copy, table = Copy(lake), lake.catalogue.create_table(f"raw.{NAME}", SCHEMA)
    table.append(rows_of(dict.fromkeys(range(50), "old")))
    copy.follow(20)
    table.append(rows_of({60: "new"}))
    table.upsert(rows_of({7: "changed"}), ["id"])  # makes the file anew that row 7 is in
    copy.follow(20)
    assert copy.given == 50 + 2
    assert (copy.rows["7"]["name"], copy.rows["60"]["name"]) == ("changed", "new")


@pytest.mark.law("Y12")
def test_snapshots_of_compaction_are_not_read_again() -> None:
    operations = [Operation.APPEND, Operation.APPEND, Operation.REPLACE, Operation.APPEND]

    def steps_of(operations: list[Operation]) -> list[SnapshotStep]:
        snapshots = {
            at: SimpleNamespace(snapshot_id=at, parent_snapshot_id=at - 1 or None, timestamp_ms=at,
                                summary=SimpleNamespace(operation=operation))
            for at, operation in enumerate(operations, 1)
        }  # fmt: skip
        table = SimpleNamespace(
            current_snapshot=lambda: snapshots[len(snapshots)], snapshot_by_id=snapshots.get
        )
        place: Any = SimpleNamespace(catalogue=SimpleNamespace(load_table=lambda _: table))
        return PlainTable(place, "raw.orders").steps(1)

    added, same, last = steps_of(operations)
    assert [added, same, last] == [
        SnapshotStep(1, 2, 2, ADDED), SnapshotStep(2, 3, 3, SAME), SnapshotStep(3, 4, 4, ADDED)
    ]  # fmt: skip
    assert steps_of([*operations, Operation.DELETE]) == [SnapshotStep(1, 5, 5, CHANGED)]
    assert list(PlainTable(None, "raw.orders").rows(same, ["id"])) == []  # type: ignore[arg-type]


@pytest.mark.law("Y12")
def test_rows_are_compared_in_parts_and_only_differences_are_delivered(
    lake: LakeDatabases, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lakesync.flows.database_sources.COMPARED_ROWS_MAX", 7)
    copy, table = Copy(lake), lake.catalogue.create_table(f"raw.{NAME}", SCHEMA)
    table.append(rows_of(dict.fromkeys(range(40), "old")))
    copy.follow()
    table.overwrite(rows_of({key: "old" if key % 2 else "new" for key in range(10, 50)}))
    copy.page()
    copy.source = copy.opened()
    copy.follow()
    assert copy.rows == expected(table)
    assert copy.given == 40 + 10 + 15 + 10, "gone, changed and new rows alone"


@pytest.mark.law("Y12")
def test_table_is_read_again_after_snapshots_expired_and_missing_rows_are_deleted(
    lake: LakeDatabases, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lakesync.flows.database_sources.COMPARED_ROWS_MAX", 2)
    copy, table = Copy(lake), lake.catalogue.create_table(f"raw.{NAME}", SCHEMA)
    table.append(rows_of(dict.fromkeys(range(9), "old")))
    copy.follow()
    table.delete("id < 4")
    table.append(rows_of({20: "new"}))
    old = [one.snapshot_id for one in table.snapshots()][:-1]
    table.maintenance.expire_snapshots().by_ids(old).commit()
    copy.page()
    assert [*copy.reports[0]] == ["readAgain"]
    while copy.page(2):  # and each page by another process
        copy.source = copy.opened()
    assert copy.rows == expected(table)


@pytest.mark.law("Y9", "Y12")
def test_unreadable_row_is_not_treated_as_deleted(lake: LakeDatabases) -> None:
    schema = pa.schema([pa.field("id", pa.int64()), pa.field("size", pa.float64())])

    def sizes(rows: dict[int, float]) -> pa.Table:
        return pa.Table.from_pylist([{"id": n, "size": s} for n, s in rows.items()], schema=schema)

    copy, table = Copy(lake), lake.catalogue.create_table(f"raw.{NAME}", schema)
    table.append(sizes({1: 1.0, 2: 2.0, 3: 3.0}))
    copy.follow()
    table.overwrite(sizes({1: 1.5, 2: float("nan")}))
    old = [one.snapshot_id for one in table.snapshots()][:-1]
    table.maintenance.expire_snapshots().by_ids(old).commit()
    copy.follow()
    assert copy.rows == {"1": {"id": 1, "size": 1.5}, "2": {"id": 2, "size": 2.0}}


@pytest.mark.law("Y12")
def test_copy_follows_a_rollback_of_the_table(lake: LakeDatabases) -> None:
    copy, table = Copy(lake), lake.catalogue.create_table(f"raw.{NAME}", SCHEMA)
    table.append(rows_of({1: "one", 2: "two"}))
    good = table.metadata.current_snapshot_id
    assert good is not None
    table.upsert(rows_of({2: "wrong", 3: "wrong"}), ["id"])
    copy.follow()
    assert copy.rows["2"]["name"] == "wrong"
    table.manage_snapshots().rollback_to_snapshot(good).commit()
    copy.follow()
    assert copy.rows == expected(table)


@pytest.mark.law("Y12")
def test_values_follow_column_types_and_rows_without_a_key_are_reported(
    lake: LakeDatabases,
) -> None:
    moment = datetime(2026, 2, 3, 4, 5, 6, 7, tzinfo=UTC)
    row = {"id": "a", "n": 2**60, "price": Decimal("1.20"), "at": moment, "day": date(2026, 2, 3),
           "raw": b"\x00\xff", "tags": ["x", None], "ok": True, "none": None}  # fmt: skip
    kinds = {"id": pa.string(), "n": pa.int64(), "price": pa.decimal128(9, 2),
             "at": pa.timestamp("us", "UTC"), "day": pa.date32(), "raw": pa.binary(),
             "tags": pa.list_(pa.string()), "ok": pa.bool_(), "none": pa.float64()}  # fmt: skip
    schema = pa.schema([pa.field(name, kind) for name, kind in kinds.items()])
    table = lake.catalogue.create_table(f"raw.{NAME}", schema)
    table.append(pa.Table.from_pylist([row, {**row, "id": None}], schema=schema))
    source = Copy(lake).source
    page = source.read(NAME, "", rows_max=9, poll_ms=FAR_MS).unwrap()

    [change], [without] = page.changes, page.unreadable
    assert change.columns == {
        "id": "a", "n": str(2**60), "price": "1.20", "at": "2026-02-03T04:05:06.000007Z",
        "day": "2026-02-03", "raw": "AP8=", "tags": ["x", None], "ok": True, "none": None,
    }  # fmt: skip
    assert "its key is NULL: id" in without.reason
    [discovered] = source.discover().unwrap()
    assert {one.name: one.type for one in discovered.columns} == {
        "id": "string", "n": "integer", "price": "decimal(9,2)", "at": "timestamp", "day": "date",
        "raw": "bytes", "tags": "json", "ok": "boolean", "none": "number",
    }  # fmt: skip


@pytest.mark.law("Y12")
def test_check_reports_a_missing_table_and_a_missing_key_column(lake: LakeDatabases) -> None:
    missing = Copy(lake).source.check()
    assert isinstance(missing, Err)
    assert isinstance(missing.error, AdapterFailed)
    assert "raw.orders" in missing.error.message
    lake.catalogue.create_table(f"raw.{NAME}", SCHEMA)
    wrong = Copy(lake, key="number").source.check()
    assert isinstance(wrong, Err)
    assert isinstance(wrong.error, AdapterRefused)
    assert wrong.error.message == "raw.orders has no column number"
    assert Copy(lake).source.check().unwrap() == "It has what is asked for: 1 table."


@pytest.mark.law("Y12")
def test_missing_data_file_is_refused_and_a_later_snapshot_is_followed(lake: LakeDatabases) -> None:
    copy, table = Copy(lake), lake.catalogue.create_table(f"raw.{NAME}", SCHEMA)
    table.append(rows_of({1: "one"}))
    for task in table.scan().plan_files():
        Path(task.file.file_path.removeprefix("file://")).unlink()
    assert copy.page()
    answer = copy.source.read(NAME, copy.cursor, rows_max=2, poll_ms=FAR_MS)
    assert isinstance(answer, Err)
    assert isinstance(answer.error, AdapterRefused)
    table.overwrite(rows_of({2: "two"}))
    copy.follow()
    assert copy.rows == expected(table)


@pytest.mark.law("Y12", "Y5")
def test_flow_copies_and_follows_a_plain_table(lake: LakeDatabases) -> None:
    world, table = World(), lake.catalogue.create_table(f"raw.{NAME}", SCHEMA)
    table.append(rows_of({1: "one", 2: "two", 3: "three"}))
    world.by_hand.databases["lake", ""] = lake.adapter()
    plain = {NAME: {"table": f"raw.{NAME}", "key": ["id"]}}
    body = {
        "source": {"database": "iceberg", "secret": "lake", "plain": plain},
        "map": {NAME: {"rename": {"name": "title"}}},
    }
    [planned] = world.admin.plan(GATEWAY, world.body(**body))["tables"]
    assert planned == {
        "table": NAME, "columns": ["id", "title"], "rows": 3, "passing": 3, "hasMore": True,
    }  # fmt: skip
    world.declare(**body)
    assert world.poll() == "done"
    assert world.rows()["2"] == {"id": 2, "title": "two"}
    table.delete("id == 1")
    table.upsert(rows_of({2: "second", 4: "four"}), ["id"])
    assert world.poll() == "done"
    assert {key: row["title"] for key, row in world.rows().items()} == {
        "2": "second", "3": "three", "4": "four",
    }  # fmt: skip
    with pytest.raises(ValidationFailed, match="cannot begin at a time"):
        world.admin.backfill(GATEWAY, "flow", since=1)
    world.admin.backfill(GATEWAY, "flow")
    table.delete("id == 3")
    assert world.poll() == "done"
    assert sorted(world.rows()) == ["2", "4"], "what went meanwhile is gone here too"


@pytest.mark.law("Y12")
def test_changes_table_of_lakesync_is_read_as_a_plain_table_by_commit(lake: LakeDatabases) -> None:
    keeps, at = lake.adapter("g"), 1 << 50
    for number in range(3):
        made = [insert(f"r{each}", table=NAME, at=at + number, n=number) for each in range(2)]
        put = [PlacedDelta(Position(at + number, place), one) for place, one in enumerate(made)]
        schema = TableSchema(NAME, (Column("n", "integer"),))
        after = at + number - 1 if number else 0
        keeps.insert_deltas(TableBatch(NAME, after, at + number, put, schema)).unwrap()
    [database] = [each for each in lake.catalogue.list_namespaces() if each != ("raw",)]
    wanted = Declared(f"{database[0]}.{NAME}__changes", ("_commit", "_ordinal"), ("n",))
    source = PlainSource(lake.adapter(), {"log": wanted}, Copy(lake).brought_nothing)
    page = source.read("log", "", rows_max=99, poll_ms=FAR_MS).unwrap()
    assert sorted(str(change.columns) for change in page.changes) == sorted(
        str({"n": number, "commit": at + number, "ordinal": place})
        for number in range(3) for place in range(2)
    )  # fmt: skip
