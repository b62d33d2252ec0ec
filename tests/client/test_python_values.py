"""Declared columns take and give Python's values, and no others; see law K34."""

from __future__ import annotations

import asyncio
import base64
import threading
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from pydantic import Base64Bytes, BaseModel, ConfigDict, Field

from lakesync.client import AsyncClient
from lakesync.client.storage import app_table, queries
from lakesync.client.storage.cell_values import encoder, kind_of, read_value
from lakesync.core.column_types import fits
from lakesync.core.delta import NULL, canonical
from lakesync.errors import SchemaMismatch, ValidationFailed
from lakesync.result import Err
from lakesync.testing.memory_gateway import MemoryGateway
from tests.client.support.world import World, reopened
from tests.support.strategies import json_values
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from lakesync.client import Client, LostWrite

TYPES = {
    "title": "string",
    "done": "boolean",
    "due": "date",
    "at": "timestamp",
    "price": "decimal(12, 2)",
    "photo": "bytes",
    "n": "integer",
    "weight": "number",
    "tags": "json",
}
ROW: dict[str, Any] = {
    "title": "x",
    "done": True,
    "due": date(2026, 5, 17),
    "at": datetime(2026, 5, 17, 8, 30, 0, 120, tzinfo=timezone(timedelta(hours=2))),
    "price": Decimal("12.30"),
    "photo": b"\x00\xff",
    "n": 2**62,
    "weight": 2.5,
    "tags": ["a", {"b": 1}],
}


@pytest.fixture
def client(world: World) -> Client:
    client = world.client()
    client.declare("todos", TYPES).unwrap()
    return client


def same(one: Any, other: Any) -> bool:
    """Return whether two values are equal and of the same type."""
    return repr(one) == repr(other)


@pytest.mark.law("K34")
def test_typed_values_read_the_same_on_every_device_and_after_restarts(
    world: World, client: Client
) -> None:
    client.insert("todos", "t1", ROW).unwrap()
    other = world.client("b")
    other.declare("todos", TYPES).unwrap()
    client.sync().unwrap()
    other.sync().unwrap()

    shown = ROW | {"_row_id": "t1"}
    for one in (reopened(world, client), other):
        row = one.get("todos", "t1").unwrap()
        assert row is not None
        assert all(same(row[name], value) for name, value in ROW.items())
        (row,) = one.query("SELECT * FROM todos").unwrap()
        assert all(same(row[name], value) for name, value in shown.items())


@pytest.mark.law("K34")
@given(json_values)
@example("[1]")
@example("[1")
@example("{}")
@example('"x"')
@example({"a": [True, None, 1.5, "é"]})
def test_any_json_value_reads_as_it_was_written(
    tmp_path_factory: pytest.TempPathFactory, value: Any
) -> None:
    world = World(tmp_path_factory.mktemp("json"))
    client = world.client()
    client.declare("todos", {"tags": "json"}).unwrap()
    client.insert("todos", "t1", {"tags": value, "other": value}).unwrap()
    with client.watch("SELECT tags FROM todos") as watch:
        (row,) = next(iter(watch))
    (queried,) = client.query("SELECT tags, tags AS text, other FROM todos").unwrap()
    world.close()

    read = queried["tags"]
    assert canonical(read) == canonical(value)
    assert same(row["tags"], read)
    assert same(queried["other"], read)
    # Under another name than its column's it is read as SQLite stores it.
    stored: object = read
    if isinstance(value, list | dict):
        stored = canonical(value).decode()
    elif isinstance(value, bool) or (isinstance(value, str) and value[:1] in {"[", "{"}):
        stored = canonical(value)
    assert same(queried["text"], stored)


@pytest.mark.law("K34")
def test_each_way_of_writing_accepts_typed_values(world: World, client: Client) -> None:
    client.insert_many("todos", {"t1": ROW, "t2": {"due": date(2026, 5, 18)}}).unwrap()
    client.update("todos", "t1", {"price": Decimal("1E+3")}).unwrap()
    with client.transaction() as tx:
        tx.upsert("todos", "t3", {"due": date(2026, 5, 19)}).unwrap()
        assert tx.query("SELECT due FROM todos ORDER BY due").unwrap()[2] == {
            "due": date(2026, 5, 19)
        }
        assert tx.get("todos", "t3").unwrap() == {"due": date(2026, 5, 19)}
    sql = "UPDATE todos SET due = ?, photo = ?, n = ? WHERE _row_id = 't3'"
    client.execute(sql, (date(2026, 5, 20), b"hello", 2**60)).unwrap()

    assert client.get("todos", "t1").unwrap() == ROW | {"price": Decimal(1000)}
    assert client.get("todos", "t3").unwrap() == {
        "due": date(2026, 5, 20),
        "photo": b"hello",
        "n": 2**60,
    }

    async def write() -> Any:
        async with AsyncClient(
            world.folder / "async.db", client_id="async", transport=world.transport()
        ) as other:
            (await other.declare("todos", TYPES)).unwrap()
            (await other.insert("todos", "t1", ROW)).unwrap()
            rows = (await other.query("SELECT due, photo FROM todos")).unwrap()
            return rows, (await other.get("todos", "t1")).unwrap()

    assert asyncio.run(write()) == ([{"due": ROW["due"], "photo": ROW["photo"]}], ROW)


WRONG: list[tuple[str, Any]] = [
    ("title", 7),
    ("title", date(2026, 5, 17)),
    ("done", 1),
    ("due", datetime(2026, 5, 17, tzinfo=UTC)),
    ("due", "tomorrow"),
    ("due", "2026-W20-7"),
    ("due", 20260517),
    ("at", date(2026, 5, 17)),
    ("at", "2026-05-17"),
    ("at", datetime.max.replace(tzinfo=timezone(-timedelta(hours=1)))),
    ("price", Decimal("0.001")),
    ("price", Decimal("1e10")),
    ("price", Decimal("NaN")),
    ("price", "12,30"),
    ("photo", "no base64!"),
    ("photo", 7),
    ("n", 2**63),
    ("n", True),
    ("n", 1.5),
    ("weight", "2"),
    ("weight", Decimal(2)),
]


@pytest.mark.law("K34")
@pytest.mark.parametrize(("name", "value"), WRONG)
def test_a_value_of_another_type_than_declared_is_refused_when_written(
    client: Client, name: str, value: Any
) -> None:
    client.insert("todos", "t1", ROW).unwrap()
    before = len(client.pending().unwrap())

    result = client.update("todos", "t1", {"done": False, name: value})

    assert isinstance(result, Err)
    assert result.error.code == "SCHEMA_ERROR"
    assert result.error.field == f"columns.{name}"
    sentence = str(result.error)
    assert f"todos.{name} is declared {TYPES[name].replace(' ', '')}" in sentence
    assert "give it" in sentence
    assert client.get("todos", "t1").unwrap() == ROW
    assert len(client.pending().unwrap()) == before
    if not isinstance(value, date):  # which SQLite takes as text
        written = client.execute(f"UPDATE todos SET {name} = ?", ("?",))  # noqa: S608
        assert isinstance(written, Err) is (name not in {"title", "tags"})


@pytest.mark.law("K34")
@pytest.mark.parametrize("value", [date(2026, 5, 17), Decimal(1), b"x", datetime.now(UTC)])
def test_a_typed_value_for_an_undeclared_column_is_refused_naming_the_declaration_needed(
    client: Client, value: Any
) -> None:
    result = client.insert("todos", "t1", {"other": value})

    assert isinstance(result, Err)
    assert result.error.code == "VALIDATION_ERROR"
    assert "declare the column other as" in str(result.error)
    assert client.get("todos", "t1").unwrap() is None


# What a column may be given: Python's values, and any JSON.
any_value = st.one_of(
    st.dates(), st.datetimes(), st.decimals(), st.binary(max_size=8), st.integers(), json_values,
    st.datetimes(timezones=st.timezones()), st.decimals(-(10**9), 10**9, places=2),
    st.from_regex(r"[0-9]{4}-[0-9]{2}-[0-9]{2}(T[0-9]{2}:[0-9]{2}Z?)?", fullmatch=True),
)  # fmt: skip
FROM_TEXT: dict[str, Callable[[str], object]] = {
    "string": str,
    "date": date.fromisoformat,
    "timestamp": datetime.fromisoformat,
    "decimal": Decimal,
    "integer": int,
    "bytes": base64.b64decode,
}
"""What text in a column of a type is read as; text is of no other type."""


@pytest.mark.law("K34", "S2")
@given(st.sampled_from(sorted(TYPES.values())), any_value)
@example("date", "2026-05-17")
@example("timestamp", "2026-05-17T08:30Z")
@example("decimal(12, 2)", "12.30")
@example("integer", "-9007199254740993")
@example("bytes", "AP8=")
@example("timestamp", datetime(1890, 1, 1, tzinfo=timezone(timedelta(minutes=19, seconds=32))))
@example("decimal(12, 2)", Decimal("-0"))
@example("decimal(12, 2)", 2**53)
def test_a_value_that_the_client_accepts_fits_the_gateways_type_and_reads_back_equal(
    type_name: str, value: Any
) -> None:
    declared = type_name.replace(" ", "")
    kind = kind_of(declared)
    try:
        raw = encoder("t", "c", declared)(value)
    except (SchemaMismatch, ValidationFailed):
        return
    if value is None:
        assert raw == NULL
    else:
        assert fits(declared, raw)
    back = read_value(kind, raw)
    if kind == "json":
        assert canonical(back) == raw
    elif isinstance(value, str):
        assert back == FROM_TEXT[kind](value)
    else:
        assert back == value
    again = encoder("t", "c", declared)(back)
    assert read_value(kind, again) == back


@pytest.mark.law("K34")
def test_values_pulled_with_another_type_than_declared_read_as_they_were_written(
    world: World, client: Client
) -> None:
    other = world.client("b")
    written = {"due": "soon", "at": 7, "price": "much", "photo": "?", "n": "many", "done": "yes"}
    other.insert("todos", "t1", written).unwrap()
    other.sync().unwrap()
    client.sync().unwrap()

    assert client.get("todos", "t1").unwrap() == written
    names = ", ".join(written)
    (row,) = client.query(f"SELECT {names} FROM todos").unwrap()  # noqa: S608
    assert row == written


@pytest.mark.law("K34")
def test_a_result_column_has_the_declared_type_of_the_column_it_is_named_after(
    client: Client,
) -> None:
    client.insert("todos", "t1", ROW).unwrap()
    client.insert("notes", "n1", {"due": "2026-05-17", "todo": "t1"}).unwrap()
    client.declare("plans", {"due": "timestamp"}).unwrap()
    client.execute("CREATE TABLE drafts (due TEXT)").unwrap()
    client.execute("INSERT INTO drafts VALUES ('2026-05-17')").unwrap()
    with client._file.database.transaction() as connection:
        connection.execute("CREATE VIEW soon AS SELECT due, due AS until FROM todos")
    due, text = date(2026, 5, 17), "2026-05-17"
    expected: list[tuple[str, Any]] = [
        ("SELECT due FROM todos", due),
        ("SELECT DUE FROM todos", due),
        ("SELECT t.due FROM todos AS t", due),
        ("SELECT max(due) AS due FROM todos", due),
        ("SELECT max(due) FROM todos", text),
        ("SELECT due AS text FROM todos", text),
        ("SELECT due FROM soon", due),
        ("SELECT until FROM soon", text),
        ("WITH q AS (SELECT due FROM todos) SELECT due FROM q", due),
        ("SELECT due FROM notes", text),
        ("SELECT due FROM drafts", text),
        ("SELECT todos.due FROM todos JOIN notes ON todo = todos._row_id", due),
        ("SELECT due FROM todos UNION SELECT due FROM notes", text),
        ("SELECT todos.due FROM todos JOIN notes ON todos.due = notes.due", text),
        ("SELECT due FROM todos UNION SELECT due FROM plans", text),
        ("SELECT upper('x') AS due FROM todos WHERE due > ''", "X"),
        ("SELECT count(*) AS due FROM todos WHERE due > ''", 1),
    ]
    for sql, value in expected:
        ((read,),) = client.query(sql, as_=tuple).unwrap()
        assert same(read, value), sql
        with client.transaction() as tx:
            ((read,),) = tx.query(sql, as_=tuple).unwrap()
            assert same(read, value), sql


@pytest.mark.law("K34")
def test_a_changed_declaration_changes_the_type_that_a_column_reads_as(world: World) -> None:
    client = world.client()
    client.insert("todos", "t1", {"due": "2026-05-17"}).unwrap()
    sql = "SELECT due FROM todos"
    assert client.query(sql).unwrap() == [{"due": "2026-05-17"}]
    with client.watch(sql) as watch:
        assert next(watch) == [{"due": "2026-05-17"}]
        client.declare("todos", {"due": "date"}).unwrap()
        assert next(watch) == [{"due": date(2026, 5, 17)}]
        client.update("todos", "t1", {"due": date(2026, 5, 18)}).unwrap()
        assert next(watch) == [{"due": date(2026, 5, 18)}]
    client.declare("todos", {"due": "string"}).unwrap()
    assert client.query(sql).unwrap() == [{"due": "2026-05-18"}]
    with client._file.database.transaction() as connection:
        connection.execute("CREATE VIEW v AS SELECT title AS due FROM notes")
        connection.execute("CREATE TABLE notes (title)")
    client.declare("todos", {"due": "date"}).unwrap()
    assert client.query("SELECT due FROM v").unwrap() == []
    with client._file.database.transaction() as connection:
        connection.execute("DROP VIEW v")
        connection.execute("CREATE VIEW v AS SELECT due FROM todos")
    assert client.query("SELECT due FROM v").unwrap() == [{"due": date(2026, 5, 18)}]


@pytest.mark.law("K34")
def test_a_query_without_typed_columns_converts_nothing(client: Client) -> None:
    client.insert("todos", "t1", ROW).unwrap()
    client.query("SELECT due FROM todos").unwrap()
    kinds = client._file.database._kinds._of
    names, sql = ["title", "n", "weight", "tags", "_row_id"], "SELECT 1 / 0 FROM nowhere"
    assert kinds(names, sql, ()) == {}  # which is not even prepared
    assert kinds(["due", "title"], "SELECT due, title FROM todos", ()) == {"due": "date"}


@pytest.mark.law("K34")
def test_an_answer_and_its_types_are_of_one_moment(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A list that is written between the two changes how the text is kept that looks like one."""
    client.insert("free", "t1", {"note": "[1]"}).unwrap()
    asked, written = app_table.answer_of, ["t2"]

    def interrupted(*given: Any) -> Any:
        answer = asked(*given)
        while written:
            client.insert("free", written.pop(), {"note": [2]}).unwrap()
        return answer

    monkeypatch.setattr(queries, "answer_of", interrupted)
    rows = client.query("SELECT _row_id, note FROM free ORDER BY 1").unwrap()

    assert rows == [{"_row_id": "t1", "note": "[1]"}, {"_row_id": "t2", "note": [2]}]


@dataclass
class Texts:
    due: str
    done: int
    price: str
    photo: str


@dataclass
class Anything:
    due: Any
    photo: object


class Model(BaseModel):
    model_config = ConfigDict(strict=True)
    due: date
    at: datetime
    price: Decimal
    photo: bytes
    tags: list[Any]
    done: bool
    weight: Annotated[float, Field(ge=0)]


class Other(BaseModel):
    due: str
    photo: Base64Bytes
    picture: bytes | None = Field(None, alias="plain")


@pytest.mark.law("K34")
def test_a_row_objects_field_types_decide_how_values_are_converted(client: Client) -> None:
    client.insert("todos", "t1", ROW | {"plain": "aGVsbG8="}).unwrap()

    def read(as_: Any) -> Any:
        (row,) = client.query("SELECT * FROM todos", as_=as_).unwrap()
        return row

    assert read(Texts) == Texts("2026-05-17", 1, "12.30", "AP8=")
    assert read(Anything) == Anything(date(2026, 5, 17), b"\x00\xff")
    wanted = {name: ROW[name] for name in Model.model_fields}
    assert read(Model) == Model(**wanted)
    other = read(Other)
    assert (other.due, other.photo, other.picture) == ("2026-05-17", b"\x00\xff", b"hello")


PHOTOS: list[tuple[str, Any]] = [
    ("SELECT _row_id FROM todos WHERE photo = ?", (b"\0\xff",)),
    ("SELECT _row_id FROM todos WHERE photo = :photo", {"photo": bytearray(b"\0\xff")}),
    ("SELECT _row_id FROM todos WHERE photo IN (?, ?)", [b"", memoryview(b"\0\xff")]),
    ("WITH w AS (SELECT * FROM todos) SELECT _row_id FROM w WHERE w.photo = ?", (b"\0\xff",)),
]


@pytest.mark.law("K34")
@pytest.mark.parametrize(("sql", "parameters"), PHOTOS)
def test_bytes_are_compared_with_declared_bytes(client: Client, sql: str, parameters: Any) -> None:
    client.insert("todos", "t1", {"photo": b"\0\xff"}).unwrap()
    client.insert("todos", "t2", {"photo": b"\0"}).unwrap()
    wanted = [{"_row_id": "t1"}]

    assert client.query(sql, parameters).unwrap() == wanted
    with client.transaction() as tx:
        tx.update("todos", "t2", {"due": date(2026, 5, 17)}).unwrap()
        assert tx.query(sql, parameters).unwrap() == wanted
    with client.watch(sql, parameters) as watch:
        assert watch.next(1) == wanted
        client.update("todos", "t1", {"photo": None}).unwrap()
        assert watch.next(5) == []


@pytest.mark.law("K34")
def test_statements_compare_bytes_with_declared_bytes(client: Client) -> None:
    client.insert("todos", "t1", {"photo": b"\0\xff", "title": "x"}).unwrap()
    client.insert("todos", "t2", {"photo": b"", "title": "y"}).unwrap()

    rename = "UPDATE todos SET title = ? WHERE photo = ?"
    for _ in range(2):  # prepared, and known from before
        assert client.execute(rename, ("AP", b"\0\xff")).unwrap() == 1
    refused: Any = client.execute(rename, (b"\0\xff", b"\0\xff"))
    assert "need the type bytes" in refused.error.message
    assert client.execute(rename, ("", b"")).unwrap() == 1
    swap = "UPDATE todos SET photo = ? WHERE photo = ?"
    assert client.execute(swap, (b"\1", b"\0\xff")).unwrap() == 1
    assert client.query("SELECT title, photo FROM todos ORDER BY _row_id").unwrap() == [
        {"title": "AP", "photo": b"\1"},
        {"title": "", "photo": b""},
    ]
    assert client.execute("DELETE FROM todos WHERE photo = ?", (b"\1",)).unwrap() == 1


@pytest.mark.law("K34")
def test_a_query_that_reads_a_local_table_compares_bytes_as_bytes(client: Client) -> None:
    client.execute("CREATE TABLE drafts (todo TEXT, photo BLOB)").unwrap()
    client.execute("INSERT INTO drafts VALUES ('t1', ?)", (b"\0\xff",)).unwrap()
    client.insert("todos", "t1", {"photo": b"\0\xff"}).unwrap()
    own = "SELECT photo FROM drafts WHERE photo = ?"
    both = "SELECT todo FROM drafts JOIN todos ON todo = _row_id WHERE {}.photo = ?"

    assert client.query(own, (b"\0\xff",)).unwrap() == [{"photo": b"\0\xff"}]
    with client.transaction() as tx:
        for asked in (client, tx):
            assert asked.query(both.format("drafts"), (b"\0\xff",)).unwrap() == [{"todo": "t1"}]
            assert asked.query(both.format("todos"), (b"\0\xff",)).unwrap() == []
            assert asked.query(both.format("todos"), ("AP8=",)).unwrap() == [{"todo": "t1"}]
            assert asked.query("SELECT ? AS b", (b"\0",)).unwrap() == [{"b": b"\0"}]
    update = "UPDATE drafts SET todo = 't2' WHERE photo = ? AND todo IN (SELECT _row_id FROM todos)"
    assert client.execute(update, (b"\0\xff",)).unwrap() == 1


def test_bytes_of_a_local_table_read_as_bytes_into_a_row_object(client: Client) -> None:
    @dataclass
    class Draft:
        photo: bytes

    client.execute("CREATE TABLE drafts (photo BLOB)").unwrap()
    client.execute("INSERT INTO drafts VALUES (?)", (b"aGVsbG8=",)).unwrap()
    assert client.query("SELECT * FROM drafts", as_=Draft).unwrap() == [Draft(b"aGVsbG8=")]


@pytest.mark.law("K34")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=20)
@given(
    st.lists(
        st.tuples(
            st.dates(),
            st.datetimes(timezones=st.none() | st.just(UTC)),
            st.decimals(min_value=-(10**9), max_value=10**9, places=2),
            st.binary(max_size=20),
            st.integers(-(2**63), 2**63 - 1),
            st.booleans(),
        ),
        min_size=1,
        max_size=5,
    )
)
def test_any_typed_values_are_accepted_by_the_gateway_and_read_back_equal(
    tmp_path_factory: pytest.TempPathFactory, rows: Sequence[tuple[Any, ...]]
) -> None:
    names = ("due", "at", "price", "photo", "n", "done")
    folder: Path = tmp_path_factory.mktemp("values")
    columns = [{"name": name, "type": TYPES[name].replace(" ", "")} for name in names]
    with MemoryGateway(folder) as gateway:
        gateway.put_schema({"table": "todos", "columns": columns})
        mine, other = gateway.client("mine"), gateway.client("other")
        for client in (mine, other):
            client.declare("todos", TYPES).unwrap()
        for place, row in enumerate(rows):
            mine.insert("todos", f"t{place}", dict(zip(names, row, strict=True))).unwrap()
        mine.sync().unwrap()
        assert mine.quarantined().unwrap() == []  # the gateway takes what the client takes
        other.sync().unwrap()
        for client in (mine, other):
            sql = f"SELECT {', '.join(names)} FROM todos ORDER BY _row_id"  # noqa: S608
            assert client.query(sql, as_=tuple).unwrap() == list(rows)
            for place, row in enumerate(rows):
                read = client.get("todos", f"t{place}").unwrap()
                assert read == dict(zip(names, row, strict=True))


def test_a_refused_edit_is_amended_with_typed_values(world: World) -> None:
    client = world.client()
    client.insert("todos", "t1", {"due": "soon", "n": "1"}).unwrap()
    (entry,) = client.pending().unwrap()
    with client._file.database.transaction():
        kept = client._file.outbox.find(entry.delta.delta_id)
        assert kept is not None
        client._file.quarantine([(kept, SchemaMismatch("it is no date"))])
    client.declare("todos", {"due": "date"}).unwrap()

    amended = client.amend(entry.delta.delta_id, {"due": date(2026, 5, 17)}).unwrap()

    assert dict(amended.columns) == {"due": b'"2026-05-17"', "n": b'"1"'}
    assert client.get("todos", "t1").unwrap() == {"due": date(2026, 5, 17), "n": "1"}


@pytest.mark.law("K34", "K27")
def test_a_conflict_reports_typed_values(world: World, client: Client) -> None:
    other = world.client("b")
    lost: list[LostWrite] = []
    reported = threading.Event()

    def tell(write: LostWrite) -> None:
        lost.append(write)
        reported.set()

    with client.on_conflict(tell):
        client.insert("todos", "t1", {"due": date(2026, 5, 17)}).unwrap()
        world.clock.ms += 10
        other.insert("todos", "t1", {"due": "2026-05-18"}).unwrap()
        other.sync().unwrap()
        client.sync().unwrap()
        assert reported.wait(PATIENCE_S)
    assert [(one.own, one.other) for one in lost] == [(date(2026, 5, 17), date(2026, 5, 18))]


def test_query_parameters_may_be_dates_timestamps_and_decimals(client: Client) -> None:
    client.insert("todos", "t1", ROW).unwrap()
    by_place = "SELECT 1 FROM todos WHERE due = ? AND at = ? AND price = ?"
    given_ = (ROW["due"], ROW["at"], ROW["price"])
    assert client.query(by_place, given_, as_=tuple).unwrap() == [(1,)]
    by_name = "SELECT 1 FROM todos WHERE due = :due AND at = :at"
    with client.watch(by_name, {"due": ROW["due"], "at": ROW["at"]}, as_=tuple) as watch:
        assert next(watch) == [(1,)]
