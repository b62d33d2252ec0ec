"""Pulls from a source, into local tables: under the rules, resumed after whatever goes wrong."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from lakesync.adapters.memory import MemoryDatabase
from lakesync.buffer.memory_buffer import MemoryBuffer
from lakesync.client import AsyncClient, Client, HttpTransport, MemoryTransport
from lakesync.core.delta import Op, make_delta
from lakesync.core.destinations import Destination
from lakesync.delivery.source_pull import SourcePulls
from lakesync.errors import AdapterUnreachable, LakeSyncError, NotFound, SourceUnavailable
from lakesync.result import Err
from lakesync.testing.database_contract import batch
from lakesync.testing.memory_gateway import MemoryGateway
from tests.client.support.world import check_sound
from tests.support.builders import WALL_MS
from tests.support.gateways import GivenTime, administrator, puller, pusher
from tests.support.local_gateway import GATEWAY as HTTP_GATEWAY
from tests.support.local_gateway import serve_gateway

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from lakesync.core.delta import Delta
    from lakesync.core.messages import Pull, PullPage

pytestmark = pytest.mark.law("K40")

GATEWAY = "acme"
OWN = {"column": "owner", "op": "eq", "value": "jwt:sub"}
RULES = {
    "buckets": [
        {"name": "own", "tables": ["todos"], "filters": [OWN]},
        {"name": "shared", "tables": ["notes"], "filters": []},
    ]
}


class World:
    """A gateway with one source, and clients of it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.buffer = MemoryBuffer()
        self.time = GivenTime(WALL_MS)
        self.database: Any = MemoryDatabase()
        self.marks: dict[str, int] = {}
        self.fails_in = 1_000
        """After so many pages the database is away."""
        self.sub = "ann"
        self.declare(7)
        self._gateway = puller(self.buffer, time_=self.time)
        self._sources = SourcePulls(
            self.buffer, lambda *_: self._opened(), wall_clock=self.time.wall_clock
        )
        self._open: list[Client] = []

    def declare(self, declared_ms: int) -> None:
        """Declare the source, perhaps once more."""
        source = Destination("warehouse", "postgres", "warehouse", declared_ms=declared_ms)
        declared = self.buffer.destinations(GATEWAY).with_one(source)
        assert self.buffer.save_destinations(GATEWAY, declared)

    def _opened(self) -> Any:
        self.fails_in -= 1
        if self.fails_in < 0:
            raise AdapterUnreachable("the database does not answer")
        return self.database

    def pull(self, gateway: str, pull: Pull) -> PullPage:
        """Answer as the functions do, by the claims of a token."""
        asked = replace(pull, claims={"sub": self.sub})
        return (self._sources if pull.source else self._gateway).pull(gateway, asked)

    def transport(self) -> MemoryTransport:
        """Return a way to the gateway."""
        return MemoryTransport(GATEWAY, pusher(self.buffer, time_=self.time), self)

    def client(self, **options: Any) -> Client:
        """Open the client's file."""
        options = {"transport": self.transport(), "page_deltas": 2, **options}
        client = Client(self.folder / "a.db", client_id="a", **options)
        self._open.append(client)
        return client

    def deliver(self, *deltas: Delta) -> None:
        """Put a batch of one table into the source."""
        table = deltas[0].table
        given = batch(table, deltas, after=self.marks.get(table, 0))
        self.database.insert_deltas(given).unwrap()
        self.marks[table] = given.last

    def close(self) -> None:
        """Close all clients."""
        for client in self._open:
            client.close()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.close()


def row(row_id: str, hlc: int, *, table: str = "notes", op: Op = Op.INSERT, **values: Any) -> Delta:
    return make_delta(op, table, row_id, values, client_id="w", hlc=hlc)


def notes(client: Client) -> dict[str, Any]:
    rows = client.query('SELECT _row_id, n FROM "warehouse.notes"').unwrap()
    return {each["_row_id"]: each["n"] for each in rows}


def test_rows_pulled_from_a_source_are_in_separate_local_tables(world: World) -> None:
    world.deliver(*[row(f"r{n}", 10 + n, n=n, tags=["x"], done=True) for n in range(5)])
    world.deliver(row("t1", 10, table="todos", title="Buy milk"))
    client = world.client()
    client.insert("notes", "mine", {"n": 99}).unwrap()

    done = client.pull(source="warehouse").unwrap()
    assert (done.deltas, done.pages > 1, done.rebuilt) == (6, True, False)
    assert notes(client) == {f"r{n}": n for n in range(5)}
    (first, *_) = client.query('SELECT * FROM "warehouse.notes" ORDER BY n').unwrap()
    assert first == {"_row_id": "r0", "n": 0, "tags": '["x"]', "done": 1}

    world.deliver(row("r0", 30, op=Op.UPDATE, n=7), row("r1", 31, op=Op.DELETE))
    # The delete was delivered first; what is older than it shows nothing.
    world.deliver(row("r1", 29, op=Op.UPDATE, n=5), row("r9", 32, more="new"))
    assert client.pull(source="warehouse").unwrap().deltas > 0
    assert notes(client) == {"r0": 7, "r2": 2, "r3": 3, "r4": 4, "r9": None}
    assert client.pull(source="warehouse").unwrap().deltas == 0

    # The gateway's rows and edits are others.
    assert client.query("SELECT n FROM notes", as_=tuple).unwrap() == [(99,)]
    client.sync().unwrap()
    assert len(client.query("SELECT n FROM notes").unwrap()) == 1
    check_sound(client)


def test_a_pull_from_a_source_that_fails_midway_keeps_its_rows_and_resumes(world: World) -> None:
    world.deliver(*[row(f"r{n}", 10 + n, n=n) for n in range(7)])
    world.fails_in = 2
    client = world.client()

    result = client.pull(source="warehouse")
    assert isinstance(result, Err)
    assert isinstance(result.error, SourceUnavailable)
    assert "does not answer" in result.error.message
    assert (result.error.done.pages, result.error.done.deltas) == (2, 4)
    assert notes(client) == {f"r{n}": n for n in range(4)}

    client.close()
    world.fails_in = 1_000
    again = world.client()
    assert notes(again) == {f"r{n}": n for n in range(4)}
    assert again.pull(source="warehouse").unwrap().deltas == 3
    assert notes(again) == {f"r{n}": n for n in range(7)}

    # It is no longer declared: what was pulled stays.
    declared = world.buffer.destinations(GATEWAY).without("warehouse", WALL_MS)
    assert world.buffer.save_destinations(GATEWAY, declared)
    gone = again.pull(source="warehouse")
    assert isinstance(gone, Err)
    assert isinstance(gone.error, NotFound)
    assert "there is no source 'warehouse'" in str(gone.error)
    assert len(notes(again)) == 7


def test_a_redeclared_source_is_read_again_and_its_old_rows_stay_readable_meanwhile(
    world: World,
) -> None:
    world.deliver(*[row(f"r{n}", 10 + n, n=n) for n in range(5)])
    client = world.client()
    client.pull(source="warehouse").unwrap()

    world.database, world.marks = MemoryDatabase(), {}
    world.declare(8)
    world.deliver(*[row(f"r{n}", 5, n=n + 100) for n in (1, 2, 8)])
    world.fails_in = 2
    assert isinstance(client.pull(source="warehouse"), Err)
    # One page of the new one, and what it has yet to replace.
    assert notes(client) == {"r0": 0, "r1": 101, "r2": 102, "r3": 3, "r4": 4}

    world.fails_in = 1_000
    client.pull(source="warehouse").unwrap()
    assert notes(client) == {"r1": 101, "r2": 102, "r8": 108}


@pytest.mark.law("D13")
def test_a_source_shows_only_the_rows_that_sync_rules_allow(world: World) -> None:
    administrator(world.buffer, time_=world.time).save_rules(GATEWAY, RULES)
    world.deliver(
        row("t1", 10, table="todos", owner="ann", n=1),
        row("t2", 11, table="todos", owner="bob", n=2),
    )
    world.deliver(row("r1", 12, n=3))
    client = world.client()
    client.pull(source="warehouse").unwrap()
    mine = 'SELECT _row_id FROM "warehouse.todos" ORDER BY 1'
    assert client.query(mine, as_=tuple).unwrap() == [("t1",)]

    world.deliver(row("t1", 20, table="todos", op=Op.UPDATE, owner="bob"))
    assert client.pull(source="warehouse").unwrap().rebuilt
    assert client.query(mine, as_=tuple).unwrap() == []

    world.sub = "bob"
    client.pull(source="warehouse").unwrap()
    assert client.query(mine, as_=tuple).unwrap() == [("t1",), ("t2",)]
    assert notes(client) == {"r1": 3}


def test_the_tables_of_a_source_are_written_only_by_pulls(world: World) -> None:
    world.deliver(row("r1", 10, n=1))
    client = world.client()
    client.pull(source="warehouse").unwrap()
    for sql in (
        'INSERT INTO "warehouse.notes" (_row_id) VALUES (1)',
        'UPDATE "Warehouse.Notes" SET n = 2',
        'DELETE FROM "warehouse.notes"',
        'DROP TABLE "warehouse.notes"',
        'ALTER TABLE "warehouse.notes" ADD COLUMN more',
    ):
        with pytest.raises(LakeSyncError, match="only pulls write it"):
            client.execute(sql).unwrap()
    assert notes(client) == {"r1": 1}

    with client.watch('SELECT n FROM "warehouse.notes"', as_=tuple) as rows:
        assert next(rows) == [(1,)]
        world.deliver(row("r1", 20, op=Op.UPDATE, n=2))
        client.pull(source="warehouse").unwrap()
        assert next(rows) == [(2,)]

    client.forget_source("warehouse").unwrap()
    assert isinstance(client.query('SELECT n FROM "warehouse.notes"'), Err)
    client.execute('CREATE TABLE "warehouse.notes" (a)').unwrap()
    with pytest.raises(LakeSyncError, match="rename it, and pull again"):
        client.pull(source="warehouse").unwrap()
    client.execute('DROP TABLE "warehouse.notes"').unwrap()
    client.pull(source="warehouse").unwrap()
    assert notes(client) == {"r1": 2}


def test_rebinding_a_file_removes_the_tables_of_its_sources(world: World) -> None:
    world.deliver(row("r1", 10, n=1))
    client = world.client()
    client.pull(source="warehouse").unwrap()
    client.rebind("edits").unwrap()
    assert isinstance(client.query('SELECT n FROM "warehouse.notes"'), Err)
    client.pull(source="warehouse").unwrap()
    assert notes(client) == {"r1": 1}


def test_a_source_can_be_pulled_over_http(tmp_path: Path) -> None:
    with serve_gateway() as served:
        declared = served.buffer.destinations(HTTP_GATEWAY).with_one(
            Destination("warehouse", "postgres", "warehouse", declared_ms=7)
        )
        assert served.buffer.save_destinations(HTTP_GATEWAY, declared)
        deltas = [row(f"r{n}", 10 + n, n=n) for n in range(5)]
        served.sources.database.insert_deltas(batch("notes", deltas)).unwrap()
        token = served.token("a")
        with (
            HttpTransport(served.url, HTTP_GATEWAY, token=token) as transport,
            Client(tmp_path / "a.db", client_id="a", transport=transport, page_deltas=2) as client,
        ):
            assert client.pull(source="warehouse").unwrap().deltas == 5
            assert notes(client) == {f"r{n}": n for n in range(5)}
            missing = client.pull(source="elsewhere")
            assert isinstance(missing, Err)
            assert missing.error.code == "NOT_FOUND"
            client.pull().unwrap()


@pytest.mark.law("K24")
def test_an_async_client_pulls_and_forgets_a_source(world: World) -> None:
    world.deliver(*[row(f"r{n}", 10 + n, n=n) for n in range(5)])

    async def scenario() -> None:
        path = world.folder / "b.db"
        async with AsyncClient(path, client_id="b", transport=world.transport()) as client:
            assert (await client.pull(source="warehouse")).unwrap().deltas == 5
            rows = (await client.query('SELECT n FROM "warehouse.notes"')).unwrap()
            assert len(rows) == 5
            (await client.forget_source("warehouse")).unwrap()
            assert isinstance(await client.query('SELECT n FROM "warehouse.notes"'), Err)

    asyncio.run(scenario())


@pytest.mark.parametrize("source", ["", "Warehouse", "a.b", 7, "lake\n"])
def test_an_invalid_source_name_is_refused(world: World, source: Any) -> None:
    with pytest.raises(LakeSyncError, match="source is the name of a declared destination"):
        world.client().pull(source=source).unwrap()


def test_a_pull_from_a_source_of_a_gateway_without_sources_is_not_found(tmp_path: Path) -> None:
    with MemoryGateway(tmp_path) as gateway, gateway.client("phone") as client:
        result = client.pull(source="warehouse")
        assert isinstance(result, Err)
        assert result.error.code == "NOT_FOUND"
