"""Flows that are to bring again what changed since a time, and sources that cannot tell."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

from lakesync.connectors.polls import LEASE_MS
from lakesync.core.clock import stamp
from lakesync.errors import LakeSyncError, ValidationFailed
from tests.flows.test_polled import change, expected, memory, row
from tests.flows.world import GATEWAY, SOURCE_TABLE, World
from tests.support.sources import SqlSource

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.sources import MemorySource
    from tools.local_stack.databases import Database

__all__ = ["memory"]  # the fixture


def lose(world: World, *row_ids: str, table: str = SOURCE_TABLE) -> None:
    """Lose rows at the destination, as somebody might who restored it."""
    for row_id in row_ids:
        del world.database()._tables[table].rows[row_id]
    world.time.now_ms += 100_000


@pytest.mark.law("Y5")
@pytest.mark.parametrize("to", [{}, {"destination": "gateway"}])
def test_backfill_from_a_later_time_skips_no_unread_change(
    monkeypatch: pytest.MonkeyPatch, to: dict[str, Any]
) -> None:
    monkeypatch.setattr("lakesync.connectors.poll.PAGE_ROWS_MAX", 1)
    world = World()
    world.commit(*(row(number) for number in range(6)))
    world.declare(**to)
    pages = iter([True, True, False])
    world.by_hand.polls.poll(GATEWAY, "flow", 0, lambda: next(pages))
    read = world.in_gateway if to else world.rows
    assert len(read()) == 2
    world.time.now_ms += LEASE_MS + 1
    world.admin.backfill(GATEWAY, "flow", stamp(world.time.wall_clock()))
    assert world.poll() == "done"
    assert read() == expected(world)

    world.commit(row(7, 60), change("r1", 61, n=50))
    world.time.now_ms += LEASE_MS + 1
    world.admin.backfill(GATEWAY, "flow", stamp(world.time.wall_clock() + 3_600_000))
    assert world.poll() == "done"
    assert read() == expected(world)


@pytest.mark.law("Y5", "Y10")
def test_backfill_from_a_source_without_times_is_refused_and_polling_continues(
    memory: MemorySource,
) -> None:
    world = World()
    source = {"connector": "memory", "configuration": {"token": "hush"}}
    world.declare(name="items", source=source, destination="gateway")
    out = {"name": "out", "source": "gateway"}
    world.admin.declare(GATEWAY, world.body(name="out", tables=[]) | out)
    memory.put({"a": 1})
    world.poll("items")
    for name, sentence in (("items", "type memory cannot"), ("out", "leave it out")):
        with pytest.raises(ValidationFailed, match=sentence) as refused:
            world.admin.backfill(GATEWAY, name, stamp(1_000))
        assert refused.value.field == "from"
    memory.put({"b": 2})
    polled = world.by_hand.polls.poll(GATEWAY, "items", 0, lambda: True)
    assert polled.status == "done", "whoever asked keeps no poll out"
    assert set(world.in_gateway("things")) == {"a", "b"}


@pytest.fixture(params=["postgres", "mariadb"])
def sql(request: pytest.FixtureRequest) -> Iterator[SqlSource]:
    made = SqlSource(request.getfixturevalue(request.param), request.param, by_time=True)
    yield made
    made.close()


def declared(world: World, database: Database, source: SqlSource, **more: Any) -> None:
    """Declare a flow from a table of an application to a database."""
    settings = {
        "host": database.host, "port": database.port, "database": database.database,
        "user": database.user, "password": database.password, "tls": "off", "settleS": 0,
        "tables": [{"name": source.table, "as": "things", "cursorColumn": "changed"}],
    }  # fmt: skip
    kind = "postgres" if source.is_postgres else "mysql"
    world.declare(source={"connector": kind, "configuration": settings | more}, tables=["things"])


@pytest.mark.emulator
@pytest.mark.law("Y5")
def test_backfill_from_a_time_reads_later_rows_of_a_table_polled_by_time(
    sql: SqlSource, request: pytest.FixtureRequest
) -> None:
    database = request.getfixturevalue("postgres" if sql.is_postgres else "mariadb")
    world = World()
    world.time.now_ms = time.time() * 1_000 + 5_000
    sql.put({"1": "a", "2": "b"})
    sql.run(f"UPDATE {sql.table} SET changed = %s WHERE id = 1", "2026-01-01 00:00:00")  # noqa: S608
    declared(world, database, sql, overlapS=0)
    assert world.poll() == "done"
    assert set(world.rows(table="things")) == {"1", "2"}
    lose(world, "1", "2", table="things")
    assert world.poll() == "done"
    assert world.rows(table="things") == {}, "nothing changed"

    world.time.now_ms += LEASE_MS + 1
    an_hour_ago_ms = int(time.time() * 1_000) - 3_600_000
    world.admin.backfill(GATEWAY, "flow", stamp(an_hour_ago_ms))
    assert world.poll() == "done"
    assert set(world.rows(table="things")) == {"2"}
    world.time.now_ms += LEASE_MS + 1
    world.admin.backfill(GATEWAY, "flow", stamp(1_760_000_000_000))
    assert world.poll() == "done"
    assert set(world.rows(table="things")) == {"1", "2"}


@pytest.mark.emulator
@pytest.mark.law("Y5")
@pytest.mark.parametrize(
    ("settings", "sentence"),
    [({}, "by difference"), ({"changes": True}, "cannot go back")],
)
def test_backfill_by_difference_or_slot_is_refused_and_a_later_log_start_is_reported(
    sql: SqlSource, request: pytest.FixtureRequest, settings: dict[str, Any], sentence: str
) -> None:
    database = request.getfixturevalue("postgres" if sql.is_postgres else "mariadb")
    world = World()
    world.time.now_ms = time.time() * 1_000 + 5_000
    sql.put({"1": "a"})
    declared(world, database, sql, tables=[{"name": sql.table, "as": "things"}], **settings)
    world.poll()
    world.time.now_ms += LEASE_MS + 1
    long_ago = stamp(1_760_000_000_000)
    if settings and not sql.is_postgres:
        world.admin.backfill(GATEWAY, "flow", long_ago)
        world.poll()
        assert "the source's log begins at" in world.status()["lastError"]["error"]
        world.admin.backfill(GATEWAY, "flow", stamp(world.time.wall_clock() + 3_600_000))
    else:
        with pytest.raises(LakeSyncError, match=sentence) as refused:
            world.admin.backfill(GATEWAY, "flow", long_ago)
        assert isinstance(refused.value, ValidationFailed)
    sql.put({"2": "b"})
    world.poll()
    assert set(world.rows(table="things")) == {"1", "2"}
    world.admin.remove(GATEWAY, "flow")
