"""Flows that are polled: from databases and connectors, to databases and the gateway."""

from __future__ import annotations

from contextlib import suppress
from copy import deepcopy
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakesync.adapters.database import PlacedDelta, Position, RowImages, TableBatch
from lakesync.adapters.lake.memory import MemoryAdapter
from lakesync.connectors import Change, SourceColumn, SourceTable, Unreadable
from lakesync.connectors.polls import LEASE_MS
from lakesync.core.clock import stamp
from lakesync.core.column_map import map_state
from lakesync.core.delta import parse
from lakesync.core.merge import view
from lakesync.core.schema import Column, TableSchema
from lakesync.declare.flows import read_flow
from lakesync.errors import (
    AdapterRefused,
    AdapterUnreachable,
    Conflict,
    CursorExpired,
    FlowRefused,
    NotFound,
)
from lakesync.flows.routes import keeper
from lakesync.result import Err, Ok
from lakesync.systems.objects import ObjectsDatabase
from tests.flows.world import GATEWAY, NOW_MS, SOURCE_TABLE, MortalEnd, World
from tests.support.builders import delete, insert, update
from tests.support.gateways import administrator
from tests.support.lake import Killed
from tests.support.sources import use_memory_source

if TYPE_CHECKING:
    from lakesync.core.delta import Delta
    from tests.support.sources import MemorySource

MINE = [{"name": "m", "tables": [], "filters": [{"column": "n", "op": "lt", "value": 10}]}]
MAP = {SOURCE_TABLE: {"rename": {"title": "name"}, "drop": ["n"], "constant": {"from": "shop"}}}
TO_GATEWAY: dict[str, Any] = {"destination": "gateway"}


def at(offset_ms: int) -> int:
    """Return a stamp some time before the test begins."""
    return stamp(NOW_MS - 1_000_000 + offset_ms)


def row(number: int, offset_ms: int = 0, **more: object) -> Delta:
    columns: dict[str, Any] = {"n": number, "title": f"t{number}"} | more
    return insert(f"r{number}", table=SOURCE_TABLE, at=at(offset_ms), **columns)


def change(row_id: str, offset_ms: int, **columns: Any) -> Delta:
    return update(row_id, table=SOURCE_TABLE, at=at(offset_ms), **columns)


def expected(world: World, table: str = SOURCE_TABLE, **body: Any) -> dict[str, Any]:
    """Return the rows that a flow's destination is to have, by its source's rows alone."""
    declared = {
        "name": "flow",
        "source": {"database": "postgres", "secret": "shop"},
        "tables": [table],
        "destination": "gateway",
    }
    config = world.buffer.config(GATEWAY)
    to = read_flow(declared | body, config, GATEWAY).to
    rows: dict[str, Any] = {}
    for row_id, state in world.source.rows_after(table, "", 10_000).unwrap().rows.items():
        values = view(state)
        if values is not None and (not to.is_filtered(table)
                                   or to.viewer().sees(table, values)):  # fmt: skip
            mapped = view(map_state(to.map_of(table), state)) or {}
            rows[row_id] = {name: parse(raw) for name, raw in mapped.items()}
    return rows


def gone_without_a_trace(world: World, row_id: str) -> None:
    """Remove a row from the source as a filling does: there is no history of it."""
    mark = world.source.mark(SOURCE_TABLE).unwrap()
    world.source.put_rows(RowImages(SOURCE_TABLE, 0, mark + 1, {row_id: None})).unwrap()
    world.source.restart(SOURCE_TABLE).unwrap()
    world.source.put_rows(RowImages(SOURCE_TABLE, 0, mark + 9, {})).unwrap()


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> MemorySource:
    """Let there be connectors of the type ``memory``."""
    return use_memory_source(monkeypatch)


@pytest.mark.law("Y2", "Y5")
@pytest.mark.parametrize("to", [{}, TO_GATEWAY])
@pytest.mark.parametrize("what", [{}, {"map": MAP}, {"filter": MINE}, {"filter": MINE, "map": MAP}])
def test_database_source_is_read_and_followed(to: dict[str, Any], what: dict[str, Any]) -> None:
    world = World()
    world.commit(*(row(number) for number in range(6, 14)))
    world.commit(delete("r7", table=SOURCE_TABLE, at=at(50)))
    world.declare(**to, **what)
    assert world.poll() == "done"
    read = world.in_gateway if to else world.rows
    assert read() == expected(world, **what)

    world.commit(
        row(20, 60), change("r6", 61, n=70), change("r9", 62, title="new", fresh=1),
        change("r12", 63, n=1), delete("r8", table=SOURCE_TABLE, at=at(64)),
    )  # fmt: skip
    assert world.poll() == "done"
    assert read() == expected(world, **what)
    assert read()["r9"]["fresh"] == 1
    assert world.poll() == "done"
    assert world.status()["state"] == "current"
    assert world.poll() == "done"
    assert read() == expected(world, **what)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["r1", "r2", "r3"]),
        st.sampled_from(["insert", "update", "delete"]),
        st.integers(1, 20),
        st.sampled_from(["poll", "die before", "die after", "go on", "forget", "backfill"]),
        st.integers(1, 6),
    ),
    max_size=10,
)


@pytest.mark.law("Y1", "Y5", "Y8")
@pytest.mark.parametrize("to", [{}, TO_GATEWAY])
@settings(max_examples=60, deadline=None)
@given(STEPS, st.sampled_from([[], MINE]))
def test_rows_arrive_once_wherever_polls_are_killed(
    to: dict[str, Any], steps: list[tuple[str, str, int, str, int]], buckets: Any
) -> None:
    world = World()
    world.commit(row(1), row(15))
    world.declare(map=MAP, filter=buckets, **to)
    makes = {"insert": insert, "update": update}
    for row_id, op, n, then, writes in steps:
        one: dict[str, Any] = {
            "table": SOURCE_TABLE,
            "at": at(n),
        }  # late ones too, as clients were offline
        world.commit(
            delete(row_id, **one) if op == "delete" else makes[op](row_id, n=n, title="x", **one)
        )
        if then.startswith("die"):
            world.steps.left, world.steps.last_happens = writes, then.endswith("after")
            with suppress(Killed):
                world.poll()
            world.steps.left = 1_000_000
        if then == "poll":
            world.poll()
        if then == "forget":
            world.source.forget_history(SOURCE_TABLE, world.source.mark(SOURCE_TABLE).unwrap())
        if then == "backfill":
            world.time.now_ms += 100_000
            world.admin.backfill(GATEWAY, "flow")
    assert world.poll() == "done", "one that was interrupted comes to its end"
    assert world.poll() == "done", "and one that begins now has all there is"

    read = world.in_gateway if to else world.rows
    assert read() == expected(world, map=MAP, filter=buckets)
    if not to:
        history = [placed.delta for placed in _history(world)]
        assert len({one.delta_id for one in history}) == len(history), "nothing comes twice"


def _history(world: World) -> Any:
    page = world.database().query_deltas_since(SOURCE_TABLE, Position(), 10_000).unwrap()
    return page.deltas


@pytest.mark.law("Y5")
@pytest.mark.parametrize("to", [{}, TO_GATEWAY])
def test_rows_removed_while_history_was_forgotten_are_deleted(to: dict[str, Any]) -> None:
    world = World()
    world.commit(row(1), row(2), row(3))
    world.declare(**to)
    world.poll()
    mark = world.source.mark(SOURCE_TABLE).unwrap()
    gone: dict[str, Any] = {"r2": None}
    world.source.put_rows(RowImages(SOURCE_TABLE, 0, mark + 1, gone)).unwrap()
    world.source.restart(SOURCE_TABLE).unwrap()
    assert world.poll() == "done", "it is being filled: nothing is known"
    read = world.in_gateway if to else world.rows
    assert set(read()) == {"r1", "r2", "r3"}

    world.source.put_rows(RowImages(SOURCE_TABLE, 0, mark + 9, {})).unwrap()
    assert world.poll() == "done"
    assert set(read()) == {"r1", "r3"}


@pytest.mark.law("Y5", "Y9")
@pytest.mark.parametrize("to", [{}, TO_GATEWAY])
def test_source_restored_from_a_backup_is_reported_and_read_again_later(
    to: dict[str, Any],
) -> None:
    world = World()
    world.commit(row(1), row(2))
    world.declare(**to)
    world.poll()
    backup = deepcopy(world.source)
    world.commit(row(3), change("r1", 30, n=7), delete("r2", table=SOURCE_TABLE, at=at(31)))
    world.poll()
    read = world.in_gateway if to else world.rows
    assert set(read()) == {"r1", "r3"}
    world.source = world.by_hand.databases["shop", "other"] = backup
    for _ in range(2):
        assert world.poll() == "done"
        status = world.status()
        assert (status["state"], status["lastError"]["code"]) == ("failing", CursorExpired.code)
        assert "backup" in status["lastError"]["error"]
        assert set(read()) == {"r1", "r3"}, "nothing is deleted that may only be away"

    world.time.now_ms += 100_000
    world.commit(row(4, 60))
    assert world.poll() == "done"
    assert world.poll() == "done"
    assert world.status()["state"] == "current"
    assert read() == expected(world)
    assert set(read()) == {"r1", "r2", "r4"}


@pytest.mark.law("Y8")
def test_row_that_never_passed_the_filter_leaves_no_trace() -> None:
    world = World()
    world.commit(row(50), row(51), delete("r51", table=SOURCE_TABLE, at=at(9)))
    world.declare(filter=MINE, **TO_GATEWAY)
    world.poll()
    world.commit(change("r50", 20, n=60), delete("r50", table=SOURCE_TABLE, at=at(30)))
    world.poll()

    assert world.buffer.scan_rows(GATEWAY, SOURCE_TABLE, "", 10).rows == ()
    assert world.status()["rows"] == 0


@pytest.mark.law("Y5")
def test_backfill_from_a_time_reads_rows_changed_since() -> None:
    world = World()
    world.commit(row(1))
    between_ms = world.time.wall_clock() + 1
    world.commit(row(2))
    world.declare()
    world.poll()
    lost = {"r1": None, "r2": None}
    for row_id in lost:  # as somebody might who restored the database
        del world.database()._tables[SOURCE_TABLE].rows[row_id]
    world.time.now_ms += 100_000
    world.admin.backfill(GATEWAY, "flow", stamp(between_ms))
    world.poll()

    assert set(world.rows()) == {"r2"}
    world.time.now_ms += 100_000
    world.admin.backfill(GATEWAY, "flow")
    world.poll()
    assert set(world.rows()) == {"r1", "r2"}


@pytest.mark.law("Y2", "Y8")
def test_connector_rows_are_filtered_and_mapped_into_the_gateway(memory: MemorySource) -> None:
    world = World()
    world.declare(
        name="items", source={"connector": "memory", "configuration": {"token": "hush"}},
        filter=[{"name": "low", "tables": ["things"],
                 "filters": [{"column": "value", "op": "lt", "value": 5}]}],
        map={"things": {"hash": ["value"], "constant": {"origin": "shop"}}}, **TO_GATEWAY,
    )  # fmt: skip
    memory.put({"a": 1, "b": 9})
    world.poll("items")
    assert set(world.in_gateway("things")) == {"a"}
    assert world.in_gateway("things")["a"]["origin"] == "shop"
    assert len(world.in_gateway("things")["a"]["value"]) == 64
    memory.put({"a": 7, "b": 2})
    memory.delete("c")
    world.poll("items")

    assert set(world.in_gateway("things")) == {"b"}
    assert {row_id for row_id, _ in world.buffer.scan_rows(GATEWAY, "things", "", 9).rows} == {
        "a",
        "b",
    }


@pytest.mark.law("Y3", "Y5")
def test_a_schema_that_grows_at_the_source_grows_at_the_destination(
    memory: MemorySource, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World()
    world.database(name="items")
    world.declare(
        name="items",
        source={"connector": "memory", "configuration": {"token": "hush"}},
        map={"things": {"rename": {"value": "worth"}}},
    )
    memory.put({"a": 1})
    world.poll("items")
    database = world.database(name="items")
    schema = database.tables().unwrap()["things"]
    assert schema is not None
    assert [(one.name, one.type) for one in schema.columns] == [("id", "string"), ("worth", "json")]

    columns = (SourceColumn("value", "integer"), SourceColumn("size", "number"))
    monkeypatch.setattr(
        type(memory), "discover", lambda _: Ok((SourceTable("items", columns, ("id",)),))
    )
    memory.put({"b": 2})
    world.poll("items")
    grown = database.tables().unwrap()["things"]
    assert grown is not None
    assert [(one.name, one.type) for one in grown.columns] == [
        ("id", "string"), ("worth", "json"), ("size", "number"),
    ]  # fmt: skip
    assert grown.version > schema.version
    assert world.rows(database, "things") == {"a": {"worth": 1}, "b": {"worth": 2}}


@pytest.mark.law("Y3")
def test_mapped_schema_of_a_source_database_reaches_the_destination() -> None:
    world = World()
    world.commit(row(1))
    columns = (Column("n", "integer"), Column("title", "string"))
    world.source.ensure_schema(TableSchema(SOURCE_TABLE, columns)).unwrap()
    world.declare(map=MAP)
    world.poll()

    schema = world.database().tables().unwrap()[SOURCE_TABLE]
    assert schema is not None
    assert [one.name for one in schema.columns] == ["name", "from"]


@pytest.mark.law("Y9")
def test_refused_row_is_counted_and_does_not_stop_other_rows(memory: MemorySource) -> None:
    world = World()
    world.declare(
        name="items",
        source={"connector": "memory", "configuration": {"token": "hush"}},
        **TO_GATEWAY,
    )
    memory.put({"a": 1})
    memory.log.append(Unreadable("b", "it is not JSON"))
    memory.log.append(Change("c" * 600, {"value": 1}, memory.clock_us))
    memory.put({"d": 4})
    assert world.poll("items") == "done"

    assert set(world.in_gateway("things")) == {"a", "d"}
    status = world.status("items")
    assert (status["deadLetters"], status["rows"], status["state"]) == (2, 2, "current")


@pytest.mark.law("Y9")
def test_unreachable_destination_is_reported_and_retried() -> None:
    world = World()
    world.commit(row(1))
    world.declare()
    world.database().is_away = True
    assert world.poll() == "wait"
    status = world.status()
    assert status["state"] == "failing"
    assert "cannot be reached" in status["lastError"]["error"]
    assert AdapterUnreachable.code == status["lastError"]["code"]

    world.database().is_away = False
    world.time.now_ms += 4_000_000
    assert world.poll() == "done"
    assert set(world.rows()) == {"r1"}
    assert world.poll() == "done"
    assert world.status()["state"] == "current"


class Locked:
    """A database that lets nobody in who comes with the old secret."""

    def __init__(self, database: Any) -> None:
        self._database = database
        self.is_locked = False

    def __getattr__(self, name: str) -> Any:
        if self.is_locked and name != "close":
            return lambda *_, **__: Err(AdapterRefused("the password is another one"))
        return getattr(self._database, name)


@pytest.mark.law("Y5", "Y9")
@pytest.mark.parametrize("end", [("shop", "other"), ("warehouse", keeper(GATEWAY, "flow"))])
def test_secret_refused_midway_is_reported_and_loses_and_duplicates_nothing(
    monkeypatch: pytest.MonkeyPatch, end: tuple[str, str]
) -> None:
    monkeypatch.setattr("lakesync.connectors.poll.PAGE_ROWS_MAX", 1)
    world = World()
    world.commit(*(row(number) for number in range(60)))
    world.declare(map=MAP)
    locked = world.by_hand.databases[end] = Locked(world.by_hand.databases[end])
    pages = iter(range(100))

    def has_time() -> bool:
        locked.is_locked = next(pages) >= 2
        return True

    step = world.by_hand.polls.poll(GATEWAY, "flow", 0, has_time)
    assert (step.status, step.has_fault) == ("done", True)
    locked.is_locked = False
    there = world.rows()
    assert 0 < len(there) < 60

    locked.is_locked = True
    assert world.poll() == "done"
    status = world.status()
    assert (status["state"], status["lastError"]["code"]) == ("failing", AdapterRefused.code)
    locked.is_locked = False
    assert world.rows() == there, "nothing is deleted that cannot be seen"
    assert world.poll() == "done"
    assert world.poll() == "done"
    assert world.rows() == expected(world, map=MAP)
    assert world.status()["state"] == "current"
    history = [placed.delta.delta_id for placed in _history(world)]
    assert len(set(history)) == len(history)


@pytest.mark.law("Y5")
@pytest.mark.parametrize("to", [{}, TO_GATEWAY])
@pytest.mark.parametrize("how", ["followed", "read again", "cut between"])
def test_row_deleted_and_inserted_again_keeps_no_old_columns(
    monkeypatch: pytest.MonkeyPatch, to: dict[str, Any], how: str
) -> None:
    world = World()
    world.commit(row(1), row(2))
    world.declare(**to)
    world.poll()
    if how == "cut between":
        monkeypatch.setattr("lakesync.connectors.poll.PAGE_ROWS_MAX", 1)
    world.commit(
        delete("r1", table=SOURCE_TABLE, at=at(10)),
        insert("r1", table=SOURCE_TABLE, at=at(11), n=7),
    )
    if how == "read again":
        world.source.forget_history(SOURCE_TABLE, world.source.mark(SOURCE_TABLE).unwrap())
    world.poll()
    world.poll()

    read = world.in_gateway if to else world.rows
    assert read() == expected(world)
    assert read()["r1"] == {"n": 7}


@pytest.mark.law("Y5", "Y9")
@pytest.mark.parametrize("to", [{}, TO_GATEWAY])
def test_restored_source_removes_columns_added_after_the_backup(to: dict[str, Any]) -> None:
    world = World()
    world.commit(insert("r1", table=SOURCE_TABLE, at=at(1), n=1))
    world.declare(**to)
    world.poll()
    backup = deepcopy(world.source)
    world.commit(change("r1", 30, title="new"))
    world.poll()
    world.source = world.by_hand.databases["shop", "other"] = backup
    world.poll()
    with pytest.raises(Conflict, match="by itself"):  # how far it was is not to be forgotten
        world.admin.backfill(GATEWAY, "flow")

    world.time.now_ms += 100_000
    world.commit(row(4, 60))
    world.poll()
    read = world.in_gateway if to else world.rows
    assert read() == expected(world)
    assert read()["r1"] == {"n": 1}


@pytest.mark.law("Y5")
def test_history_forgotten_inside_a_half_read_commit_triggers_a_full_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("lakesync.connectors.poll.PAGE_ROWS_MAX", 2)
    world = World()
    world.commit(row(1))
    world.declare()
    world.poll()
    last = stamp(world.time.wall_clock() + 5)
    mark = world.source.mark(SOURCE_TABLE).unwrap()
    placed = [PlacedDelta(Position(last, place), row(place + 2)) for place in range(3)]
    world.source.insert_deltas(TableBatch(SOURCE_TABLE, mark, last, placed)).unwrap()
    pages = iter([True, False])
    world.time.now_ms += LEASE_MS + 1
    world.by_hand.polls.poll(GATEWAY, "flow", 0, lambda: next(pages))
    assert set(world.rows()) == {"r1", "r2", "r3"}, "a commit is cut"

    world.source.forget_history(SOURCE_TABLE, last)
    world.poll()
    assert world.rows() == expected(world)
    assert len(world.rows()) == 4


@pytest.mark.law("Y9")
@pytest.mark.parametrize("how", ["deleted", "hidden"])
def test_dead_letter_of_a_deleted_or_filtered_row_is_removed(how: str) -> None:
    world = World()
    columns = [{"name": "n", "type": "integer"}, {"name": "title", "type": "string"}]
    administrator(world.buffer, time_=world.time).register_schema(
        GATEWAY, {"table": SOURCE_TABLE, "columns": columns}
    )
    seen = [{"name": "m", "tables": [], "filters": [{"column": "title", "op": "neq",
                                                     "value": "hidden"}]}]  # fmt: skip
    world.commit(row(1), insert("r2", table=SOURCE_TABLE, at=at(2), n="no number", title="t"))
    world.declare(filter=seen, **TO_GATEWAY)
    world.poll()
    assert world.status()["deadLetters"] == 1

    gone = delete("r2", table=SOURCE_TABLE, at=at(20))
    world.commit(gone if how == "deleted" else change("r2", 20, title="hidden"))
    world.poll()
    assert world.status()["deadLetters"] == 0
    assert world.by_hand.admin.one(GATEWAY, "flow")["deadLetters"] == []


@pytest.mark.law("Y9")
@pytest.mark.parametrize("then", ["mended before", "mended then"])
@pytest.mark.parametrize("writes", range(1, 9))
def test_dead_letters_are_counted_exactly_after_a_kill(writes: int, then: str) -> None:
    """Of a refused row, and of one that is accepted since; whether it dies after the last write."""
    for last_happens in (False, True):
        world = World()
        bad = insert("r2", table=SOURCE_TABLE, at=at(2), n="no number")
        administrator(world.buffer, time_=world.time).register_schema(
            GATEWAY, {"table": SOURCE_TABLE, "columns": [{"name": "n", "type": "integer"}]}
        )
        world.commit(bad)
        world.declare(**TO_GATEWAY)
        if then == "mended before":
            world.poll()
        fits = [delete("r2", table=SOURCE_TABLE, at=at(3)),
                insert("r2", table=SOURCE_TABLE, at=at(4), n=2)]  # fmt: skip
        if then == "mended before":
            world.commit(*fits)
        world.steps.left, world.steps.last_happens = writes, last_happens
        with suppress(Killed):
            world.poll()
        world.steps.left = 1_000_000
        if then != "mended before":  # and then it fits
            world.commit(*fits)
        world.poll()
        world.poll()

        assert world.in_gateway() == {"r2": {"n": 2}}
        letters = world.by_hand.admin.one(GATEWAY, "flow")["deadLetters"]
        assert (world.status()["deadLetters"], letters) == (0, [])


@pytest.mark.law("Y9")
@pytest.mark.parametrize("writes", range(1, 7))
def test_dead_letter_of_a_row_gone_without_a_trace_is_removed_after_a_kill(writes: int) -> None:
    """Its deletion is found by comparing, and is not found again once it is durable."""
    for last_happens in (False, True):
        world = World()
        objects = ObjectsDatabase(MemoryAdapter(), "", keeper(GATEWAY, "flow"))
        world.by_hand.databases["warehouse", keeper(GATEWAY, "flow")] = MortalEnd(
            objects, world.steps
        )
        schema = TableSchema(SOURCE_TABLE, (Column("n", "integer"),))
        world.source.ensure_schema(schema).unwrap()
        world.commit(insert("r1", table=SOURCE_TABLE, at=at(1), n=1))
        world.commit(insert("r2", table=SOURCE_TABLE, at=at(2), n="no number"))
        world.declare(destination={"database": "iceberg", "secret": "warehouse"})
        world.poll()
        assert world.status()["deadLetters"] == 1

        gone_without_a_trace(world, "r2")
        world.steps.left, world.steps.last_happens = writes, last_happens
        with suppress(Killed):
            world.poll()
        world.steps.left = 1_000_000
        world.poll()

        assert set(world.rows(world.database())) == {"r1"}
        letters = world.by_hand.admin.one(GATEWAY, "flow")["deadLetters"]
        assert (world.status()["deadLetters"], letters) == (0, [])


@pytest.mark.law("Y10")
@pytest.mark.parametrize("dies_at", ["secrets.put", "put"])
def test_flow_whose_declaration_was_killed_starts_when_declared_again(
    memory: MemorySource, monkeypatch: pytest.MonkeyPatch, dies_at: str
) -> None:
    world = World()
    body: dict[str, Any] = {
        "name": "items", "source": {"connector": "memory", "configuration": {"token": "hush"}},
        **TO_GATEWAY,
    }  # fmt: skip

    def die(*_: object, **__: object) -> None:
        raise Killed

    port = world.by_hand.secrets if dies_at == "secrets.put" else world.by_hand
    with monkeypatch.context() as patch:
        patch.setattr(port, "put", die)
        with pytest.raises(Killed):
            world.declare(**body)
    assert world.by_hand.schedules == {}

    assert not world.declare(**body)["isNew"]
    assert world.by_hand.schedules == {(GATEWAY, "items"): (15, False)}
    memory.put({"a": 1})
    assert world.poll("items") == "done"
    assert world.in_gateway("things") == {"a": {"value": 1}}

    world.admin.set_paused(GATEWAY, "items", paused=True)
    world.declare(**body)
    assert world.by_hand.schedules == {(GATEWAY, "items"): (15, True)}


@pytest.mark.parametrize("name", ["", "x" * 1_025, "é" * 513, "\ud800", "Upper"])
def test_invalid_flow_name_is_not_looked_up(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A body may name anything; of a name that is no key, the store would make a fault of ours."""
    world = World()

    def refuse(*_: object) -> None:
        raise AssertionError(name)

    monkeypatch.setattr(world.by_hand.store, "connector", refuse)

    assert world.admin.declared(GATEWAY, name) is None
    with pytest.raises(NotFound):
        world.admin.run(GATEWAY, name)
    with pytest.raises(FlowRefused) as refused:
        world.admin.plan(GATEWAY, world.body(name=name))
    assert [fault.path for fault in refused.value.faults] == ["name"]
