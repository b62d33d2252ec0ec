"""Pulls from a declared destination: by the same rules, to the rows that `core.merge` makes."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lakesync.adapters.copying import Lifecycle
from lakesync.adapters.database import RowImages, TableBatch
from lakesync.adapters.history_archive import HistoryArchive
from lakesync.adapters.lake.memory import MemoryAdapter
from lakesync.adapters.memory import MemoryDatabase
from lakesync.buffer.memory_buffer import MemoryBuffer
from lakesync.core.delta import Op, make_delta
from lakesync.core.destinations import Destination
from lakesync.core.merge import EMPTY, apply, state_of, view
from lakesync.core.messages import PLACES_CHARS_MAX, Pull, PullPage
from lakesync.core.visibility import Viewer, rule_values
from lakesync.delivery import source_pull
from lakesync.delivery.source_pull import SourcePulls, TableKey, TablePlace, places_of, places_text
from lakesync.errors import (
    AdapterRefused,
    AdapterTimedOut,
    AdapterUnreachable,
    CursorExpired,
    LakeSyncError,
    NotFound,
    SourceUnavailable,
    ValidationFailed,
)
from lakesync.result import Err
from lakesync.systems.objects import ObjectsDatabase
from lakesync.testing.database_contract import batch
from lakesync.wire.records import decode_records
from tests.support.bigquery import bigquery_destination
from tests.support.builders import WALL_MS
from tests.support.destinations import (
    SqlDestination,
    mariadb_dialect,
    new_table,
    postgres_dialect,
)
from tests.support.gateways import GivenTime, administrator

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from lakesync.adapters.database import Inserted
    from lakesync.core.delta import Delta
    from lakesync.core.merge import RowState
    from lakesync.result import Result
    from tools.local_stack.bigquery import BigQueryServer

GATEWAY = "acme"
SOURCE = Destination("warehouse", "postgres", "warehouse", declared_ms=7)


def omit(*tables: str, **said: Any) -> dict[str, Any]:
    """Return an omission of ``n``, of all of some tables' rows."""
    return {"tables": list(tables), "columns": ["n"], **said}


def rules(own: str = "todos", shared: str = "notes") -> dict[str, Any]:
    """Return rules: of one table a client sees its own rows, of another all, of others none."""
    of_client = [{"column": "owner", "op": "eq", "value": "jwt:sub"}]
    return {
        "buckets": [
            {"name": "own", "tables": [own], "filters": of_client},
            {"name": "shared", "tables": [shared], "filters": []},
        ]
    }


KINDS = [
    "memory",
    pytest.param("postgres", marks=pytest.mark.emulator),
    pytest.param("mariadb", marks=pytest.mark.emulator),
    "objects",
    "archived",
]


class Archived(Lifecycle):
    """A database with an archive, into which all of its history moves with each batch."""

    def insert_deltas(self, batch: TableBatch) -> Result[Inserted, LakeSyncError]:
        taken = super().insert_deltas(batch)
        self.archive_until(batch.last).unwrap()
        return taken

    def put_rows(self, images: RowImages) -> Result[Inserted, LakeSyncError]:
        """Take rows, as delivery puts them into the database itself."""
        put: Result[Inserted, LakeSyncError] = self.primary.put_rows(images)  # type: ignore[attr-defined]
        return put


IN_MEMORY: Mapping[str, Callable[[], Any]] = {
    "memory": MemoryDatabase,
    "objects": lambda: ObjectsDatabase(MemoryAdapter(), "", GATEWAY),
    "archived": lambda: Archived(MemoryDatabase(), HistoryArchive(MemoryAdapter(), "", GATEWAY)),
}


@dataclass
class World:
    """A gateway with one source, whose batches are put as delivery puts them."""

    database: Any
    buffer: MemoryBuffer = field(default_factory=MemoryBuffer)
    time: GivenTime = field(default_factory=lambda: GivenTime(WALL_MS))
    put: list[Delta] = field(default_factory=list)
    marks: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        declared = self.buffer.destinations(GATEWAY).with_one(SOURCE)
        assert self.buffer.save_destinations(GATEWAY, declared)

    def rules(self, body: Any = None) -> None:
        administrator(self.buffer, time_=self.time).save_rules(GATEWAY, body or rules())

    def deliver(self, table: str, deltas: Sequence[Delta]) -> None:
        """Put a batch into the source."""
        given = batch(table, deltas, after=self.marks.get(table, 0))
        self.database.insert_deltas(given).unwrap()
        self.marks[table] = given.last
        self.put += deltas

    def remove(self, table: str, row_id: str) -> None:
        """Remove a row without a trace, as delivery does that it may not have."""
        after = self.marks[table]
        self.marks[table] = after + 1
        images = RowImages(table, after, after + 1, {row_id: None})
        self.database.put_rows(images).unwrap()
        self.put = [delta for delta in self.put if (delta.table, delta.row_id) != (table, row_id)]

    def pull(self, **asked: Any) -> PullPage:
        service = SourcePulls(
            self.buffer, lambda *_: Lent(self.database), wall_clock=self.time.wall_clock
        )
        given = {"client_id": "c", "source": "warehouse", "claims": {"sub": "ann"}, **asked}
        return service.pull(GATEWAY, Pull(**given))

    def visible(self, sub: str = "ann") -> dict[tuple[str, str], Any]:
        """Return the rows that a client may see, by one merge of all that was put."""
        rules = self.buffer.config(GATEWAY).rules
        viewer = Viewer(rules, {"sub": sub})
        states: dict[tuple[str, str], RowState] = {}
        for delta in self.put:
            key = delta.table, delta.row_id
            states[key] = apply(states.get(key, EMPTY), delta)
        shown = {key: viewer.shown_state(key[0], state) for key, state in states.items()}
        return {
            key: view(shown[key])
            for key, state in states.items()
            if view(shown[key]) is not None
            and viewer.sees(key[0], rule_values(state, rules.columns(key[0])))
        }


class Lent:
    """A database that stays open when it is closed."""

    def __init__(self, database: Any) -> None:
        self._database = database

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)

    def close(self) -> None:
        """Leave it open: others use it."""


@dataclass
class Reader:
    """A client of the source: what it holds, and where it is."""

    world: World
    sub: str = "ann"
    limit: int = 100
    bytes_max: int = 2_000_000
    snapshot: str = ""
    rows: dict[tuple[str, str], RowState] = field(default_factory=dict)
    received: list[Delta] = field(default_factory=list)
    again: list[str] = field(default_factory=list)

    def page(self) -> PullPage:
        page = self.world.pull(
            snapshot=self.snapshot,
            deltas_max=self.limit,
            bytes_max=self.bytes_max,
            claims={"sub": self.sub},
        )
        for table in page.resync.tables if page.resync else ():
            self.again.append(table)
            self.rows = {key: row for key, row in self.rows.items() if key[0] != table}
        for delta in (delta for run in page.records for delta in decode_records(run)):
            self.received.append(delta)
            key = delta.table, delta.row_id
            self.rows[key] = apply(self.rows.get(key, EMPTY), delta)
        self.snapshot = page.snapshot
        return page

    def read(self) -> int:
        """Read to the end; returns the pages that it took."""
        pages = 1
        while self.page().has_more:
            pages += 1
            assert pages < 500
        return pages

    @property
    def seen(self) -> dict[tuple[str, str], Any]:
        views = {key: view(state) for key, state in self.rows.items()}
        return {key: row for key, row in views.items() if row is not None}


@pytest.fixture(params=KINDS)
def database(request: pytest.FixtureRequest) -> Callable[[], Any]:
    """Make an empty database of each kind, to be closed."""

    def made() -> Any:
        if request.param in IN_MEMORY:
            return IN_MEMORY[request.param]()
        server = request.getfixturevalue(request.param)
        dialect = (postgres_dialect if request.param == "postgres" else mariadb_dialect)(server)
        return SqlDestination(dialect).adapter()

    return made


def row(row_id: str, hlc: int, *, table: str = "todos", op: Op = Op.INSERT, **values: Any) -> Delta:
    return make_delta(op, table, row_id, values, client_id="w", hlc=hlc)


@st.composite
def changes(draw: st.DrawFn, tables: Sequence[str]) -> list[Delta]:
    """Deltas of few rows, whose owners change."""
    said = st.tuples(
        st.sampled_from([Op.INSERT, Op.UPDATE, Op.UPDATE, Op.DELETE]),
        st.sampled_from(tables),
        st.sampled_from(["r1", "r2", "é"]),
        st.fixed_dictionaries(
            {}, optional={"owner": st.sampled_from(["ann", "bob", 3]), "n": st.integers(0, 9)}
        ),
        st.integers(1, 9),
    )
    return [
        row(row_id, hlc, table=table, op=op, **({} if op is Op.DELETE else values))
        for op, table, row_id, values, hlc in draw(st.lists(said, max_size=10))
    ]


@pytest.mark.law("D13")
@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_reader_gets_the_merged_rows_that_the_rules_show(
    database: Callable[[], Any], data: st.DataObject
) -> None:
    with closing(database()) as opened:
        rows_are_those_that_rules_show(opened, data)


@pytest.mark.law("D13")
@pytest.mark.emulator
@settings(max_examples=4, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_reader_of_bigquery_gets_the_merged_rows_that_the_rules_show(
    bigquery: BigQueryServer, data: st.DataObject
) -> None:
    with closing(bigquery_destination(bigquery)) as opened:
        rows_are_those_that_rules_show(opened.adapter(), data)


def rows_are_those_that_rules_show(opened: Any, data: st.DataObject) -> None:
    world, (own, shared, hidden) = World(opened), (new_table(), new_table(), new_table())
    if is_ruled := data.draw(st.booleans(), "rules"):
        omitted = data.draw(st.lists(st.sampled_from([own, shared]), unique=True), "omitted")
        but = {"except": [{"claim": "sub", "op": "eq", "value": "bob"}]}
        omitting = [omit(*omitted, **but)] if omitted else []
        world.rules(rules(own, shared) | {"omit": omitting})
    limit = data.draw(st.integers(1, 4), "limit")
    readers = [Reader(world, sub, limit) for sub in ("ann", "bob")]
    for _ in range(data.draw(st.integers(1, 3), "rounds")):
        deltas: list[Delta] = data.draw(changes([own, shared, hidden]), "deltas")
        for table in dict.fromkeys(delta.table for delta in deltas):
            world.deliver(table, [delta for delta in deltas if delta.table == table])
            if data.draw(st.booleans(), "a page in between"):
                readers[0].page()
        rows = sorted(world.visible())
        removed: bool = data.draw(st.booleans(), "removed")
        if rows and removed:
            which: tuple[str, str] = data.draw(st.sampled_from(rows), "which")
            world.remove(*which)
        for reader in readers:
            reader.read()
            assert reader.seen == world.visible(reader.sub)
    for reader in readers:
        assert not is_ruled or hidden not in {delta.table for delta in reader.received}


@pytest.mark.law("D13", "V12")
def test_omitted_columns_are_in_no_row_and_no_history() -> None:
    world = World(MemoryDatabase())
    world.rules(rules() | {"omit": [omit("notes", "todos")]})
    world.deliver("notes", [row("n1", 1, table="notes", owner="bob", n=1)])
    world.deliver("todos", [row("t1", 1, owner="ann", n=1)])
    reader = Reader(world)
    reader.read()
    more = [row("n1", 2, table="notes", op=Op.UPDATE, n=2),
            row("n1", 3, table="notes", op=Op.UPDATE, owner="ann", n=3)]  # fmt: skip
    world.deliver("notes", more)
    world.deliver("todos", [row("t1", 2, op=Op.UPDATE, n=2)])
    reader.read()

    assert reader.seen == world.visible()
    assert {name for delta in reader.received for name, _ in delta.columns} == {"owner"}
    assert not reader.again or reader.again == ["todos"]


@pytest.mark.law("D13")
def test_pull_reveals_nothing_of_hidden_rows() -> None:
    world = World(MemoryDatabase())
    world.rules()
    world.deliver("todos", [row("mine", 1, owner="ann"), row("secret", 2, owner="bob")])
    world.deliver("hidden", [row("secret", 1, table="hidden", n=1)])
    reader = Reader(world)
    reader.read()
    world.deliver("todos", [row("secret", 3, op=Op.DELETE), row("secret2", 4, owner="bob")])
    world.deliver("hidden", [row("more", 2, table="hidden", n=2)])
    reader.read()

    assert {delta.row_id for delta in reader.received} == {"mine"}
    assert reader.again == ["todos"], "a table that is hidden whole is not even named"


@pytest.mark.law("D13")
def test_pull_after_a_change_sends_only_that_change() -> None:
    world = World(MemoryDatabase())
    world.deliver("todos", [row(f"r{n}", n + 1, n=n) for n in range(30)])
    reader = Reader(world, limit=7)
    assert reader.read() == 5
    reader.received.clear()
    change = row("r3", 99, op=Op.UPDATE, n=33)
    world.deliver("todos", [change])
    reader.read()

    assert reader.received == [change]
    assert not reader.again
    reader.received.clear()
    reader.read()
    assert not reader.received, "what did not change is not sent again"


@pytest.mark.law("D13")
def test_changed_claims_or_rules_re_read_only_the_tables_concerned() -> None:
    world = World(MemoryDatabase())
    world.rules()
    world.deliver("todos", [row("a", 1, owner="ann"), row("b", 2, owner="bob")])
    world.deliver("notes", [row("n", 1, table="notes", x=1)])
    reader = Reader(world)
    reader.read()
    reader.sub = "bob"
    reader.read()

    assert reader.again == ["todos"]
    assert reader.seen == world.visible("bob")
    world.rules({"buckets": rules()["buckets"][:1]})
    reader.read()
    assert reader.again == ["todos", "notes"]
    assert reader.seen == world.visible("bob") != {}


@pytest.mark.law("D13")
def test_forgotten_history_is_replaced_by_reading_rows_again() -> None:
    world = World(MemoryDatabase())
    world.deliver("todos", [row("a", 1, n=1), row("b", 2, n=1)])
    reader = Reader(world)
    reader.read()
    world.remove("todos", "a")
    reader.read()

    assert reader.again == ["todos"]
    assert reader.seen == world.visible() != {}


@pytest.mark.law("D13")
@pytest.mark.parametrize("some_are_hidden", [False, True])
def test_a_row_removed_while_rows_are_read_is_gone_at_the_end_of_the_reading(
    *, some_are_hidden: bool
) -> None:
    world = World(MemoryDatabase())
    if some_are_hidden:
        world.rules()
    rows = [row(row_id, 1, owner="ann", n=1) for row_id in ("a", "b", "c")]
    world.deliver("todos", rows)
    reader = Reader(world, limit=1)
    reader.page()
    world.remove("todos", "a")
    reader.read()

    assert reader.seen == world.visible() != {}


@pytest.mark.law("D13")
def test_a_change_while_rows_are_read_is_in_the_same_reading() -> None:
    world = World(MemoryDatabase())
    world.deliver("todos", [row(row_id, 1, n=1) for row_id in ("a", "b", "c")])
    reader = Reader(world, limit=1)
    reader.page()
    world.deliver("todos", [row("a", 2, op=Op.UPDATE, n=2)])
    reader.read()

    assert reader.seen == world.visible()
    assert reader.seen[("todos", "a")] == {"n": b"2"}
    assert not reader.again


@pytest.mark.law("D13")
def test_a_commit_between_two_reads_of_one_page_is_in_the_same_reading(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(source_pull, "ROWS_READ_MAX", 1)
    world = World(MemoryDatabase())
    world.deliver("todos", [row("a", 1, n=1), row("b", 1, n=1)])
    read, late = world.database.rows_after, [row("a", 2, op=Op.DELETE), row("c", 2, n=3)]

    def rows_after(table: str, row_id: str, rows_max: int) -> Any:
        if row_id and late:
            world.deliver("todos", [late.pop(0), late.pop(0)])
        return read(table, row_id, rows_max)

    monkeypatch.setattr(world.database, "rows_after", rows_after)
    reader = Reader(world)
    reader.read()

    assert reader.seen == world.visible()
    assert {row_id for _, row_id in reader.seen} == {"b", "c"}


@pytest.mark.law("D13")
@pytest.mark.parametrize("some_are_hidden", [False, True])
def test_rows_of_a_table_that_is_being_filled_again_stay_with_its_readers(
    *, some_are_hidden: bool
) -> None:
    world = World(MemoryDatabase())
    if some_are_hidden:
        world.rules()
    world.deliver("todos", [row("a", 1, owner="ann", n=1)])
    reader = Reader(world)
    reader.read()
    shown = reader.seen
    world.database.restart("todos")
    if some_are_hidden:
        reader.read()
        assert reader.seen == shown != {}
    late = Reader(world)
    late.read()
    assert late.seen == {}
    filled = RowImages("todos", 0, 9, {"a": state_of(row("a", 1, owner="ann", n=1))})
    world.database.put_rows(filled).unwrap()
    for one in (reader, late):
        one.read()
        assert one.seen == world.visible() == shown


@pytest.mark.law("D13")
def test_a_row_removed_behind_archived_history_is_gone_at_the_end_of_the_reading() -> None:
    world = World(IN_MEMORY["archived"]())
    world.deliver("todos", [row("a", 1, n=1), row("b", 1, n=1)])
    reader = Reader(world)
    reader.read()
    world.deliver("todos", [row("b", 2, op=Op.UPDATE, n=2)])
    world.remove("todos", "a")
    reader.read()

    assert reader.seen == world.visible() != {}


@pytest.mark.law("D13")
def test_table_being_filled_is_pulled_once_it_is_filled() -> None:
    world = World(MemoryDatabase())
    world.deliver("todos", [row("a", 1, n=1)])
    world.database.restart("todos")
    reader = Reader(world)
    assert reader.read() == 1
    assert not reader.seen
    filled = RowImages("todos", 0, 9, {"a": state_of(row("a", 1, n=1))})
    world.database.put_rows(filled).unwrap()
    reader.read()

    assert reader.seen == world.visible() != {}


@pytest.mark.law("D14")
def test_pages_keep_the_limits_of_deltas_and_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_pull, "ROWS_READ_MAX", 4)
    world = World(MemoryDatabase())
    world.deliver("todos", [row(f"r{n:03}", n + 1, text="x" * 500) for n in range(100)])
    reader = Reader(world, limit=10_000, bytes_max=5_000)
    sizes = []
    more = True
    while more:
        page = reader.page()
        sizes.append(sum(map(len, page.records)))
        more = page.has_more

    assert max(sizes) <= 5_000
    assert reader.seen == world.visible()
    # As much is read for one page as may be; the next one goes on behind it.
    assert len(Reader(world, limit=10_000).world.pull(deltas_max=10_000).records) == 4 * 16


@pytest.mark.law("D14")
@pytest.mark.parametrize("error", [AdapterUnreachable, AdapterTimedOut])
def test_unreachable_database_gives_503_without_its_details(
    error: type[LakeSyncError],
) -> None:
    world = World(MemoryDatabase())
    world.database.tables = lambda: Err(error("db.internal:5432 refused the password"))
    with pytest.raises(SourceUnavailable) as raised:
        world.pull()

    assert raised.value.status == 503
    assert raised.value.retry_after_s
    assert "db.internal" not in raised.value.public_message


@pytest.mark.law("D14")
def test_secret_without_a_url_raises_adapter_refused() -> None:
    def opened(*_: object) -> Any:
        raise ValidationFailed("a database's URL is …", field="url")

    world = World(MemoryDatabase())
    service = SourcePulls(world.buffer, opened, wall_clock=world.time.wall_clock)
    with pytest.raises(AdapterRefused):
        service.pull(GATEWAY, Pull("c", source="warehouse"))


@pytest.mark.law("D14")
def test_invalid_source_pull_is_refused_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(MemoryDatabase())
    world.deliver("todos", [row("a", 1, n=1)])
    at = world.pull().snapshot
    with pytest.raises(NotFound, match="declared destinations"):
        world.pull(source="elsewhere")
    with pytest.raises(ValidationFailed, match="snapshot"):
        world.pull(since=5)
    for text in ("?", "AAAA", at[:-4], at + "AAAA", "é"):
        with pytest.raises((ValidationFailed, CursorExpired)):
            world.pull(snapshot=text)
    anew = replace(SOURCE, declared_ms=8)
    known = {TableKey(b"12345678", b"1234"): TablePlace(3)}
    with pytest.raises(CursorExpired, match="begin again"):
        world.pull(snapshot=places_text(anew, {}))
    with pytest.raises(CursorExpired, match="gone"):
        world.pull(snapshot=places_text(SOURCE, known))
    monkeypatch.setattr(source_pull, "TABLES_MAX", 0)
    with pytest.raises(ValidationFailed, match="fewer"):
        world.pull()


def test_snapshot_text_of_the_maximum_number_of_tables_fits_a_request() -> None:
    names = [bytes([n]) * 8 for n in range(source_pull.TABLES_MAX)]
    places = {TableKey(name, b"1234"): TablePlace(2**62, 7) for name in names}
    places[TableKey(names[0], b"1234")] = TablePlace(5, row_id="é" * 256)
    text = places_text(SOURCE, places)

    assert len(text) <= PLACES_CHARS_MAX
    assert places_of(SOURCE, text) == places


@pytest.mark.law("D13")
def test_undeclared_tables_are_not_pulled() -> None:
    world = World(MemoryDatabase())
    some = replace(SOURCE, name="some", tables=frozenset({"todos"}))
    declared = world.buffer.destinations(GATEWAY).with_one(some)
    assert world.buffer.save_destinations(GATEWAY, declared)
    world.deliver("todos", [row("a", 1, n=1)])
    world.deliver("notes", [row("b", 1, table="notes", n=1)])
    page = world.pull(source="some")

    assert [d.table for run in page.records for d in decode_records(run)] == ["todos"]


def test_empty_batch_gives_no_deltas() -> None:
    world = World(MemoryDatabase())
    world.database.insert_deltas(TableBatch("todos", 0, 4, ())).unwrap()
    reader = Reader(world)

    assert reader.read() == 1
    assert not reader.received
