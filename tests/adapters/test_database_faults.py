"""Real databases that fail while they are written to: what comes of it is as if they had not.

Law P8, and P1 to P4 behind each fault: ``docs/spec/databases.md``.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from lakesync.adapters.database import Position
from lakesync.adapters.ledger_database import values_of
from lakesync.errors import (
    AdapterQuotaExceeded,
    AdapterRefused,
    AdapterTimedOut,
    AdapterUnreachable,
    Conflict,
)
from lakesync.result import Err
from lakesync.systems.mysql import mysql_dialect as mysql
from lakesync.systems.postgres import postgres_dialect as postgres
from lakesync.testing.database_contract import batch, merged, schema
from tests.support.builders import delete, insert, update
from tests.support.destinations import (
    new_table,
)
from tests.support.failing_databases import (
    PASSWORD,
    SMALL_MARIADB,
    FailingMariaDb,
    FailingPostgres,
    small_disk,
)
from tests.support.waiting import PATIENCE_S, waited
from tools.local_stack.databases import start_mariadb

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lakesync.adapters.sql.adapter import SqlAdapter
    from lakesync.core.delta import Delta
    from lakesync.errors import LakeSyncError
    from tests.support.failing_databases import FailingDatabase

pytestmark = pytest.mark.emulator

ROWS = 100
MANY = 600
"""As many as no space is left for in tables that have some of their own."""
LONG = "x" * 3_000
"""A value of which a few hundred have no room on a disk that is full."""


@pytest.fixture(params=["postgres", "mariadb"])
def database(request: pytest.FixtureRequest) -> Iterator[FailingDatabase]:
    """A database of each kind that can fail."""
    server = request.getfixturevalue(request.param)
    made: Any = FailingPostgres if request.param == "postgres" else FailingMariaDb
    with closing(made(server)) as failing:
        yield failing


@pytest.fixture(params=["postgres", "mariadb"])
def on_a_small_disk(request: pytest.FixtureRequest) -> Iterator[FailingDatabase]:
    """A database of each kind whose disk can be full."""
    if request.param == "mariadb":
        with start_mariadb(*SMALL_MARIADB) as small, closing(FailingMariaDb(small)) as failing:
            yield failing
    else:
        server = request.getfixturevalue("postgres")
        with small_disk("nobody") as disk, closing(FailingPostgres(server, disk)) as failing:
            yield failing


@pytest.fixture
def table() -> str:
    """A table that nobody else uses."""
    return new_table()


def before(table: str, rows: int) -> list[Delta]:
    """Return what is taken before the fault."""
    return [insert(f"r{n}", at=n + 1, table=table, n=n, s="short") for n in range(rows)]


def during(table: str, rows: int) -> list[Delta]:
    """Return what the fault falls in: later, earlier, a delete, and rows that are new."""
    return [
        *(update(f"r{n}", at=10_000 + n, table=table, s=LONG) for n in range(rows)),
        update("r1", at=1, client="a", table=table, n=-1),
        delete("r2", at=20_000, table=table),
        *(insert(f"new{n}", at=30_000 + n, table=table, n=n) for n in range(rows)),
    ]


class Work:
    """Two batches of a table: one that is there, and one that a fault falls in."""

    def __init__(self, database: FailingDatabase, table: str, rows: int = ROWS) -> None:
        self.table, self.database = table, database
        self.deltas = [before(table, rows), during(table, rows)]
        kinds = schema(table, {"n": "integer", "s": "string"})
        self.first = batch(table, self.deltas[0], schema=kinds)
        self.second = batch(table, self.deltas[1], after=self.first.last, schema=kinds)
        self.adapter = database.adapter()
        self.adapter.insert_deltas(self.first).unwrap()

    def failure(self, adapter: SqlAdapter | None = None) -> LakeSyncError:
        """Bring the second batch, which is not taken; returns why."""
        result = (adapter or self.adapter).insert_deltas(self.second)
        assert isinstance(result, Err)
        assert PASSWORD not in str(result.error)
        return result.error

    def check(self, adapter: SqlAdapter | None = None) -> None:
        """Bring the second batch now, twice; nothing is lost, nothing there twice."""
        adapter = adapter or self.adapter
        assert adapter.mark(self.table).unwrap() == self.first.last
        adapter.insert_deltas(self.second).unwrap()
        again = adapter.insert_deltas(self.second).unwrap()
        assert (again.deltas, again.rows, again.dead_letters) == (0, 0, ())
        self.check_rows(adapter)

    def check_rows(self, adapter: SqlAdapter) -> None:
        """Hold rows, history and the table to query against `core.merge` of all deltas."""
        every = [*self.deltas[0], *self.deltas[1]]
        states = adapter.rows_after(self.table, "", 10_000).unwrap().rows
        shown = {row: values_of(state, self.first.schema) for row, state in states.items()}
        expected = merged(every)
        assert {row: values for row, values in shown.items() if values is not None} == expected
        page = adapter.query_deltas_since(self.table, Position(0, 0), 10_000).unwrap()
        assert [one.delta.delta_id for one in page.deltas] == [one.delta_id for one in every]
        [(count,)] = self.database.queried(f"SELECT count(*) FROM {self.table}")  # noqa: S608 - ours
        assert count == len(expected)


@pytest.fixture
def work(database: FailingDatabase, table: str) -> Iterator[Work]:
    """A table that has taken its first batch."""
    work = Work(database, table)
    with closing(work.adapter):
        yield work


@pytest.mark.law("P2", "P8")
def test_read_only_database_refuses_writes_and_recovers(work: Work) -> None:
    with work.database.read_only(), closing(work.database.adapter()) as another:
        errors = [work.failure(), work.failure(), work.failure(another)]
        # Who was connected may find his session ended, as where a replica takes over.
        assert isinstance(errors[0], AdapterRefused | AdapterUnreachable)
        assert {type(error) for error in errors[1:]} == {AdapterRefused}
    if isinstance(work.adapter.mark(work.table), Err):
        work.adapter.close()  # the session that was refused has ended
    work.check()


@pytest.mark.law("P2", "P8")
def test_database_without_free_connections_is_unreachable_and_recovers(work: Work) -> None:
    with work.database.out_of_connections(), closing(work.database.adapter()) as another:
        for adapter in (work.adapter, work.adapter, another):
            assert type(work.failure(adapter)) is AdapterUnreachable
    work.check()


@pytest.mark.law("P2", "P4", "P8")
def test_full_disk_is_reported_as_quota_exceeded_and_recovers(
    on_a_small_disk: FailingDatabase, table: str
) -> None:
    work = Work(on_a_small_disk, table, MANY)
    with on_a_small_disk.full_disk(), closing(on_a_small_disk.adapter()) as another:
        for adapter in (work.adapter, another):
            error = work.failure(adapter)
            assert type(error) is AdapterQuotaExceeded, error
    work.check()
    work.adapter.close()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Statements that end soon."""
    monkeypatch.setitem(postgres._SETTINGS, "statement_timeout", "500")
    monkeypatch.setattr(mysql, "STATEMENT_TIMEOUT_S", 1)


@pytest.mark.law("P2", "P8")
@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("what", ["lakesync_marks", "the table"])
def test_table_locked_for_too_long_times_out_and_recovers(
    database: FailingDatabase, table: str, what: str
) -> None:
    work = Work(database, table)
    begun = time.monotonic()
    with database.locked(table if what == "the table" else what):
        assert type(work.failure()) is AdapterTimedOut
        assert type(work.failure()) is AdapterTimedOut
        assert database.waiting() == 0, "nothing goes on waiting there"
    assert time.monotonic() - begun < 30
    work.check()
    work.adapter.close()


def midway(work: Work, then: Callable[[], None]) -> LakeSyncError:
    """Do something while the second batch is being written; returns what became of that."""
    with work.database.locked(work.table), ThreadPoolExecutor(1) as threads:
        written = threads.submit(work.failure)
        assert waited(work.database.waiting)
        then()
        return written.result(timeout=PATIENCE_S)


@pytest.mark.law("P2", "P4", "P8")
def test_credentials_rotated_midway_are_refused_and_new_ones_continue(
    work: Work,
) -> None:
    def rotate() -> None:
        work.database.change_password("rotated")
        work.database.end_sessions()

    assert isinstance(midway(work, rotate), AdapterUnreachable)
    assert isinstance(work.failure(), AdapterRefused)
    with closing(work.database.adapter("rotated")) as rotated:
        work.check(rotated)


@pytest.mark.law("P2", "P4", "P8")
def test_database_dropped_midway_is_refused_and_can_be_refilled(
    work: Work,
) -> None:
    assert isinstance(midway(work, work.database.drop), AdapterRefused | AdapterUnreachable)
    assert isinstance(work.failure(), AdapterRefused)
    work.database.create()
    assert isinstance(work.failure(), Conflict), "what went before is missing"
    work.adapter.insert_deltas(work.first).unwrap()
    work.check()
