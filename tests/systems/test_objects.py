"""Tables as objects of a bucket: what a reader sees, and who dies at any request.

Laws P1, P2, P4, P5, P7: ``docs/spec/databases.md``.
"""

from __future__ import annotations

import gzip
import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import boto3
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from moto import mock_aws

from lakesync.adapters import file_database, ledger_database
from lakesync.adapters.connect import database_adapter, read_connection
from lakesync.adapters.database import Position, RowImages
from lakesync.adapters.lake.memory import MemoryAdapter
from lakesync.adapters.lake.s3_adapter import S3Adapter
from lakesync.adapters.memory import MemoryDatabase
from lakesync.core.delta import Op, make_delta
from lakesync.errors import (
    AdapterRefused,
    AdapterUnreachable,
    ConstraintViolated,
    CursorExpired,
    SchemaMismatch,
    ValidationFailed,
)
from lakesync.result import Err
from lakesync.systems import objects as table_module
from lakesync.systems.objects import ObjectsDatabase
from lakesync.testing.database_contract import batch, merged, schema
from tests.support.destinations import (
    changed_rows,
    new_table,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lakesync.core.delta import Delta

TABLE = "orders"


class Cut(MemoryAdapter):
    """A bucket that is lost at one of its requests, before it or behind it."""

    left = 1_000_000
    behind = False

    def _step(self) -> bool:
        self.left -= 1
        if self.left == 0 and not self.behind:
            raise AdapterUnreachable("the connection was lost")
        return self.left == 0

    def put_object(self, key: str, body: bytes, content_type: str) -> None:
        """Put, or be lost."""
        lost = self._step()
        super().put_object(key, body, content_type)
        if lost:
            raise AdapterUnreachable("the answer was lost")

    def put_new_object(self, key: str, body: bytes, content_type: str) -> bool:
        """Put one that is new, or be lost."""
        lost = self._step()
        with self._lock:
            is_new = key not in self._objects
            if is_new:
                MemoryAdapter.put_object(self, key, body, content_type)
        if lost:
            raise AdapterUnreachable("the answer was lost")
        return is_new

    def delete_objects(self, keys: Iterable[str]) -> None:
        """Remove, or be lost."""
        lost = self._step()
        super().delete_objects(keys)
        if lost:
            raise AdapterUnreachable("the answer was lost")


def seen(objects: Any, table: str = TABLE, prefix: str = "g/") -> dict[str, dict[str, Any]]:
    """Read a table as anybody does who reads all files of its rows."""
    rows: dict[str, dict[str, Any]] = {}
    for key in objects.list_objects(f"{prefix}{table}/rows/"):
        for line in gzip.decompress(objects.get_object(key)).splitlines():
            row = json.loads(line)
            row_id = row.pop("row_id")
            assert row.pop("lakesync_state")
            assert row_id not in rows, "each row is in one file"
            rows[row_id] = row
    return rows


def put(row_id: str, at: int, op: Op = Op.INSERT, **columns: Any) -> Delta:
    """Return a delta."""
    return make_delta(op, TABLE, row_id, columns, client_id="c", hlc=at)


@pytest.mark.law("P4")
def test_bucket_reader_finds_each_row_once_with_current_columns() -> None:
    objects = MemoryAdapter()
    database = ObjectsDatabase(objects, "", "g")
    columns = {"n": "integer", "due": "timestamp"}
    rows = [put("a\n", 1, n=1, due="2026-11-25T00:00:00Z", more={"x": [None]}), put("b", 2, n=2)]
    rows.append(make_delta(Op.INSERT, TABLE, "c", {"row_id": "mine"}, client_id="c", hlc=3))
    database.insert_deltas(batch(TABLE, rows, schema=schema(TABLE, columns))).unwrap()
    assert seen(objects) == {
        "a\n": {"n": 1, "due": "2026-11-25T00:00:00Z", "more": {"x": [None]}},
        "b": {"n": 2},
        "c": {},
    }

    more = [put("b", 10, Op.DELETE), put("a\n", 11, Op.UPDATE, n=7)]
    database.insert_deltas(batch(TABLE, more, after=2)).unwrap()
    assert set(seen(objects)) == {"a\n", "c"}
    assert seen(objects)["a\n"]["n"] == 7
    assert database.latest_state(TABLE, "b").unwrap() is None
    back = [put("b", 12, n=3)]
    database.insert_deltas(batch(TABLE, back, after=3)).unwrap()
    assert seen(objects)["b"] == {"n": 3}


@pytest.mark.law("P4")
def test_soft_deleted_row_remains_with_deleted_at_alone() -> None:
    objects = MemoryAdapter()
    database = ObjectsDatabase(objects, "", "g")
    soft = schema(TABLE, {"n": "integer"}, soft_delete=True)
    rows = [put("a", 1, n=1), put("a", 1_700_000_000_000 << 16, Op.DELETE)]
    database.insert_deltas(batch(TABLE, rows, schema=soft)).unwrap()
    assert list(seen(objects)["a"]) == ["deleted_at"]


@pytest.mark.law("P4", "M10")
def test_delete_wins_table_hides_rows_updated_after_their_deletion() -> None:
    objects = MemoryAdapter()
    adapter = ObjectsDatabase(objects, "", "g")
    wanted = schema(TABLE, {"n": "integer"}, delete_wins=True)
    late = [put("r1", 1, n=1), put("r1", 2, Op.DELETE), put("r1", 3, Op.UPDATE, n=3)]
    adapter.insert_deltas(batch(TABLE, late, schema=wanted)).unwrap()
    assert seen(objects) == {}

    again = batch(TABLE, [put("r1", 4)], after=adapter.mark(TABLE).unwrap(), schema=wanted)
    adapter.insert_deltas(again).unwrap()
    assert seen(objects) == {"r1": {"n": 3}}


@pytest.mark.law("P5", "P7")
def test_row_that_does_not_fit_its_column_is_a_dead_letter_until_it_fits() -> None:
    objects = MemoryAdapter()
    database = ObjectsDatabase(objects, "", "g")
    typed = schema(TABLE, {"n": "integer"})
    rows = [put("a", 1, n="many"), put("b", 2, n=2)]
    inserted = database.insert_deltas(batch(TABLE, rows, schema=typed)).unwrap()
    assert [(one.row_id, "no integer" in one.reason) for one in inserted.dead_letters] == [
        ("a", True)
    ]
    assert set(seen(objects)) == {"b"}
    assert database.latest_state(TABLE, "a").unwrap() == {"n": "many"}
    assert database.retry_dead_letters(TABLE).unwrap() == inserted.dead_letters

    mended = database.insert_deltas(batch(TABLE, [put("a", 9, n=1)], after=1)).unwrap()
    assert mended.dead_letters == database.dead_letters(TABLE).unwrap() == ()
    assert seen(objects)["a"] == {"n": 1}


@pytest.mark.law("P7")
def test_row_that_no_longer_fits_shows_its_former_values_until_it_fits() -> None:
    objects = MemoryAdapter()
    database = ObjectsDatabase(objects, "", "g")
    typed = schema(TABLE, {"n": "integer", "s": "string"})
    rows = [put("a", 1, n=1, s=',"lakesync_state":"'), put("b", 2, n=2)]
    database.insert_deltas(batch(TABLE, rows, schema=typed)).unwrap()
    former = seen(objects)
    newer: dict[str, Any] = {"n": "many", "s": "newer"}
    for after in (1, 2):  # the second time it is tried again
        again = [put("a", 3, **newer)] if after == 1 else []
        taken = database.insert_deltas(batch(TABLE, again, after=after, schema=typed)).unwrap()
        assert [one.row_id for one in taken.dead_letters] == ["a"]
        assert seen(objects) == former
        assert database.latest_state(TABLE, "a").unwrap() == newer
    states = database.rows_after(TABLE, "", 10).unwrap().rows
    assert list(states) == ["a", "b"]

    mended = [put("a", 9, n=5)]
    database.insert_deltas(batch(TABLE, mended, after=3, schema=typed)).unwrap()
    assert seen(objects)["a"] == {"n": 5, "s": "newer"}
    assert database.dead_letters(TABLE).unwrap() == ()
    gone = [put("a", 10, Op.DELETE)]
    database.insert_deltas(batch(TABLE, gone, after=4, schema=typed)).unwrap()
    assert seen(objects) == {"b": former["b"]}


@pytest.mark.law("P5")
def test_column_that_gets_a_type_is_rewritten_and_a_changed_type_is_refused() -> None:
    objects = MemoryAdapter()
    database = ObjectsDatabase(objects, "", "g")
    database.insert_deltas(batch(TABLE, [put("a", 1, n="x"), put("b", 2, n=2)])).unwrap()
    database.ensure_schema(schema(TABLE, {"n": "integer"})).unwrap()
    assert set(seen(objects)) == {"b"}
    assert [one.row_id for one in database.dead_letters(TABLE).unwrap()] == ["a"]
    refused = database.ensure_schema(schema(TABLE, {"n": "boolean"}, version=2))
    assert isinstance(refused, Err)
    assert isinstance(refused.error, SchemaMismatch)
    assert database.rewrite(TABLE).unwrap() == 2
    assert isinstance(database.rewrite("none"), Err)


@pytest.mark.law("P6", "P7")
def test_dead_letter_is_resolved_when_its_column_is_widened() -> None:
    objects = MemoryAdapter()
    database = ObjectsDatabase(objects, "", "g")
    narrow = schema(TABLE, {"n": "decimal(4,2)"})
    database.insert_deltas(batch(TABLE, [put("a", 1, n=1_000.5)], schema=narrow)).unwrap()
    assert [one.row_id for one in database.dead_letters(TABLE).unwrap()] == ["a"]
    database.ensure_schema(schema(TABLE, {"n": "decimal(8,2)"}, version=2)).unwrap()
    assert seen(objects) == {"a": {"n": 1000.5}}
    assert database.dead_letters(TABLE).unwrap() == ()


@pytest.mark.law("P7")
def test_too_many_refused_rows_fail_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_database, "TABLE_DEAD_LETTERS_MAX", 2)
    database = ObjectsDatabase(MemoryAdapter(), "", "g")
    rows = [put(f"r{number}", number + 1, n="x") for number in range(3)]
    refused = database.insert_deltas(batch(TABLE, rows, schema=schema(TABLE, {"n": "number"})))
    assert isinstance(refused, Err)
    assert isinstance(refused.error, ConstraintViolated)
    assert database.mark(TABLE).unwrap() == 0


@pytest.mark.law("P1", "P2", "P3")
@settings(max_examples=60, deadline=None)
@given(
    deltas=changed_rows(TABLE), size=st.integers(1, 3),
    cut=st.integers(1, 12), behind=st.booleans(), part=st.integers(1, 4),
)  # fmt: skip
def test_batch_killed_at_any_request_is_completed_by_its_repetition(
    deltas: list[Delta], size: int, cut: int, part: int, *, behind: bool
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table_module, "FILE_ROWS_MAX", size)
        patch.setattr(file_database, "SWEEP_VERSIONS", 2)
        objects, mirror = Cut(), MemoryDatabase()
        after = 0
        for start in range(0, len(deltas), part):
            one = batch(TABLE, deltas[start : start + part], after=after)
            objects.left, objects.behind = cut, behind
            with suppress(AdapterUnreachable):
                ObjectsDatabase(objects, "", "g").insert_deltas(one).unwrap()
            objects.left = 1_000_000
            ObjectsDatabase(objects, "", "g").insert_deltas(one).unwrap()
            mirror.insert_deltas(one).unwrap()
            after = one.last
        database = ObjectsDatabase(objects, "", "g")
        for _ in range(2):  # what was left is looked for
            more = batch(TABLE, [put("z", after + 90)], after=after)
            database.insert_deltas(more).unwrap()
            mirror.insert_deltas(more).unwrap()
            after = more.last
        rows, same = (one.rows_after(TABLE, "", 99).unwrap() for one in (database, mirror))
        assert rows == same
        some, theirs = (one.query_deltas_since(TABLE, Position(), 99).unwrap()
                        for one in (database, mirror))  # fmt: skip
        assert some == theirs
        assert set(seen(objects)) == set(merged([*deltas, put("z", 1)]))
        left = {key for key in objects.list_objects("g/") if "/heads/" not in key}
        named = database._tables.head(TABLE).keys() | {f"g/.tables/{TABLE}"}
        assert left == named
        for hidden in (False, True):
            files = [one for one in database._tables.head(TABLE).files if one.hidden is hidden]
            bounds = [one.encode() for file in files for one in (file.first, file.last)]
            assert bounds == sorted(bounds), "no two have room for the same row"
            assert all(0 < file.rows <= size for file in files)


@pytest.mark.law("P2")
def test_concurrent_writers_each_see_the_writes_of_the_other() -> None:
    objects = MemoryAdapter()
    one, other = (ObjectsDatabase(objects, "", "g") for _ in range(2))
    one.insert_deltas(batch(TABLE, [put("a", 1, n=1)])).unwrap()
    head = one._tables.head(TABLE)
    newest = one._tables._of(TABLE)[0].newest
    stale = [head]
    one._tables._of(TABLE)[0].newest = lambda: stale.pop() if stale else newest()  # type: ignore[method-assign]
    other.insert_deltas(batch(TABLE, [put("a", 3, Op.UPDATE, m=2)], after=1)).unwrap()

    late = one.insert_deltas(batch(TABLE, [put("a", 4, Op.UPDATE, k=3)], after=1)).unwrap()
    assert late.deltas == 0, "the other one took that commit"
    assert other.latest_state(TABLE, "a").unwrap() == {"n": 1, "m": 2}
    one.insert_deltas(batch(TABLE, [put("a", 5, Op.UPDATE, k=3)], after=2)).unwrap()
    assert other.latest_state(TABLE, "a").unwrap() == {"n": 1, "m": 2, "k": 3}


@pytest.mark.law("P9", "P12")
def test_history_and_old_heads_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_module, "HISTORY_FILES_MAX", 6)
    monkeypatch.setattr(file_database, "HEADS_KEPT", 5)
    objects = MemoryAdapter()
    database = ObjectsDatabase(objects, "", "g")
    for number in range(40):
        one = batch(TABLE, [put("a", number + 1, n=number)], after=number)
        database.insert_deltas(one).unwrap()
    forgotten = database.query_deltas_since(TABLE, Position(), 10)
    assert isinstance(forgotten, Err)
    assert isinstance(forgotten.error, CursorExpired)
    assert len(database.query_deltas_since(TABLE, Position(38), 10).unwrap().deltas) == 3
    assert len(objects.list_objects(f"g/{TABLE}/heads/")) <= 5 + file_database.SWEEP_VERSIONS
    assert len(objects.list_objects(f"g/{TABLE}/rows/")) == 1


@pytest.mark.law("P11", "E9")
@pytest.mark.parametrize("soft", [True, False])
def test_erased_row_leaves_no_bytes_in_the_bucket(*, soft: bool) -> None:
    objects = MemoryAdapter()
    database = ObjectsDatabase(objects, "", "g")
    wanted = schema(TABLE, {"n": "integer"}, soft_delete=soft)
    rows = [put("a", 1, n=1), put("secret", 2, n="hush"), put("z", 3, n=3)]
    database.insert_deltas(batch(TABLE, rows, schema=wanted)).unwrap()
    database.insert_deltas(batch(TABLE, [put("secret", 9, Op.DELETE)], after=2)).unwrap()
    mark = database.mark(TABLE).unwrap()

    images = RowImages(TABLE, mark, mark + 1, {"secret": None}, wanted, is_last=False)
    assert database.put_rows(images).unwrap().rows == 1
    database.forget_history(TABLE, mark).unwrap()
    assert database.mark(TABLE).unwrap() == mark
    assert set(seen(objects)) == {"a", "z"}
    for key in objects.list_objects(""):
        body = objects.get_object(key)
        assert b"secret" not in (gzip.decompress(body) if key.endswith(".gz") else body), key


def test_gateways_and_flows_have_separate_tables() -> None:
    objects = MemoryAdapter()
    kept = [ObjectsDatabase(objects, "", name) for name in ("acme", "acme/flow", "acme2")]
    for number, database in enumerate(kept):
        database.insert_deltas(batch("flow", [put("a", 1, n=number)])).unwrap()
    assert [one.latest_state("flow", "a").unwrap() for one in kept] == [
        {"n": 0}, {"n": 1}, {"n": 2},
    ]  # fmt: skip
    assert [list(one.tables().unwrap()) for one in kept] == [["flow"]] * 3


def test_bucket_and_folder_are_taken_from_the_url(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    assert read_connection("s3://bucket/folder").kind == "s3"
    with mock_aws():
        client = boto3.client("s3")
        client.create_bucket(Bucket="my-bucket")
        database = database_adapter("s3://my-bucket/some/folder?region=us-east-1", "g")
        database.insert_deltas(batch(TABLE, [put("a", 1, n=1)])).unwrap()
        assert seen(S3Adapter("my-bucket", client), prefix="some/folder/g/") == {"a": {"n": 1}}
        other = database_adapter("s3://none-such/x?region=us-east-1", "g").mark(TABLE)
        assert isinstance(other, Err)
        assert isinstance(other.error, AdapterRefused)


@pytest.mark.parametrize(
    "url",
    ["s3://", "s3://B_/x", "s3://bucket/../x", "s3://bucket/a//b", "s3://bucket/x?secret=1",
     "s3://bucket/x?endpoint=ftp://host", "s3://bucket/x?style=maybe", "s3://user@bucket/x"],
)  # fmt: skip
def test_url_that_names_no_bucket_is_refused(url: str) -> None:
    with pytest.raises(ValidationFailed, match="s3://bucket"):
        database_adapter(url, "g")


def test_rows_are_listed_in_order_across_many_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_module, "FILE_ROWS_MAX", 10)
    monkeypatch.setattr(table_module, "_CACHED_ROWS_MAX", 20)
    database, table = ObjectsDatabase(MemoryAdapter(), "", "g"), new_table()
    rows = [make_delta(Op.INSERT, table, f"r{n * 37 % 101:03}", {"n": n}, client_id="c", hlc=n + 1)
            for n in range(101)]  # fmt: skip
    last = 0
    for start in range(0, 101, 7):
        some = batch(table, rows[start : start + 7], after=last)
        database.insert_deltas(some).unwrap()
        last = some.last
    read, after = list[str](), ""
    while page := database.rows_after(table, after, 9).unwrap().rows:
        read += page
        after = read[-1]
    assert read == sorted({one.row_id for one in rows})
