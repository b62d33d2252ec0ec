"""Declared statements in real databases: done once, bound, refused whole."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from lakesync.actions import Done, Outside, Run
from lakesync.actions.engine import NOT_DONE
from lakesync.connectors.registry import configured, secret_names
from lakesync.errors import ActionFailed, OutcomeUnknown, ValidationFailed
from lakesync.result import Err, Ok
from lakesync.systems.mysql.mysql_source import MYSQL
from lakesync.systems.postgres.postgres_source import POSTGRES
from lakesync.systems.sql.sql_actions import SqlStatements
from tests.support.hosts import LOOPBACK
from tests.support.sources import SqlSource

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tools.local_stack.databases import Database

RUN = Run("0" * 32, "g", "c", "ann", "add", {"id": 1, "value": "one"}, 10.0)


class World:
    """A table, and an action handler of statements about it."""

    def __init__(self, database: Database, kind: str) -> None:
        self.table = SqlSource(database, kind, by_time=False)
        self._kind = POSTGRES if kind == "postgres" else MYSQL
        name = self.table.table
        self.settings: dict[str, Any] = {
            "host": database.host, "port": database.port, "database": database.database,
            "user": database.user, "password": database.password, "tls": "off",
            "statements": [
                {"name": "add",
                 "sql": f"INSERT INTO {name} (id, value) VALUES (%(id)s, %(value)s)"},  # noqa: S608
                {"name": "find", "returns": "rows",
                 "sql": f"SELECT id, value FROM {name} WHERE value LIKE 'o%%'"},  # noqa: S608
                {"name": "wrong", "sql": "UPDATE no_such_table_at_all SET a = %(id)s"},
            ],
        }  # fmt: skip

    def handler(self, **more: Any) -> SqlStatements:
        made = self._kind.make(
            configured(self._kind, self.settings | more), Outside(databases=LOOPBACK)
        )
        assert isinstance(made, SqlStatements)
        return made

    def run(self, run: Run = RUN) -> Any:
        handler = self.handler()
        try:
            return handler.execute(run)
        finally:
            handler.close()

    def rows(self) -> Any:
        return self.run(replace(RUN, run_id="f" * 32, action="find"))


@pytest.fixture(params=["postgres", "mariadb"])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    database: Database = request.getfixturevalue(request.param)
    made = World(database, "postgres" if request.param == "postgres" else "mysql")
    handler = made.handler()
    handler.lookup(RUN)
    handler._transaction(lambda cursor: cursor.execute("DROP TABLE IF EXISTS lakesync_actions"))
    handler.close()
    yield made
    made.table.close()


@pytest.mark.law("X1", "X3", "X10")
def test_statement_runs_once_and_repeats_its_result(world: World) -> None:
    handler = world.handler()
    assert handler.lookup(RUN) == Ok(NOT_DONE)
    assert world.run() == Ok(Done({"count": 1}))
    assert handler.lookup(RUN) == Ok(Done({"count": 1}))
    assert world.run() == Ok(Done({"count": 1}))
    assert world.rows() == Ok(Done({"rows": [{"id": 1, "value": "one"}]}))
    handler.close()


@pytest.mark.law("X1")
def test_concurrent_runs_execute_a_statement_once(world: World) -> None:
    with ThreadPoolExecutor(4) as threads:
        results = [*threads.map(lambda _: world.run(), range(4))]
    assert Ok(Done({"count": 1})) in results
    assert world.rows() == Ok(Done({"rows": [{"id": 1, "value": "one"}]}))
    assert world.run() == Ok(Done({"count": 1}))


@pytest.mark.law("X2", "X10")
@pytest.mark.parametrize(
    "run",
    [replace(RUN, run_id="2" * 32), replace(RUN, run_id="3" * 32, action="wrong")],
    ids=["a key that is there", "a table that is not"],
)
def test_statement_refused_by_the_database_is_final_and_changes_nothing(
    world: World, run: Run
) -> None:
    world.run()
    refused = world.run(run)

    assert isinstance(refused, Err)
    assert type(refused.error) is ActionFailed
    assert "no_such_table" not in refused.error.message
    handler = world.handler()
    assert handler.lookup(run) == Ok(NOT_DONE)
    handler.close()


@pytest.mark.law("X4", "X10")
def test_values_are_bound_and_never_sql(world: World) -> None:
    text = "o'); DROP TABLE lakesync_actions; --"
    world.run(replace(RUN, params={"id": 1, "value": text}))
    world.run(replace(RUN, run_id="4" * 32, params={"id": 2, "value": ["o", 1]}))

    assert world.rows() == Ok(Done({"rows": [{"id": 1, "value": text}]}))
    assert world.run(replace(RUN, params={"id": 1, "value": text})) == Ok(Done({"count": 1}))


@pytest.mark.law("X3", "X10")
def test_commit_whose_answer_is_lost_is_looked_up(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.run(replace(RUN, run_id="5" * 32, params={"id": 5, "value": "x"}))
    handler = world.handler()
    handler.lookup(RUN)
    connection: Any = handler._connection

    class Losing:
        commits = 0

        def cursor(self) -> Any:
            return connection.cursor()

        def commit(self) -> None:
            connection.commit()
            self.commits += 1
            if self.commits > 1:  # the first finds that there are notes
                connection.close()
                connection.commit()  # as a connection does that is gone

        def close(self) -> None:
            """It is closed."""

    monkeypatch.setattr(handler, "_connection", Losing())
    lost = handler.execute(RUN)

    assert isinstance(lost, Err)
    assert type(lost.error) is OutcomeUnknown
    assert handler.lookup(RUN) == Ok(Done({"count": 1}))
    handler.close()


@pytest.mark.law("X6")
@pytest.mark.parametrize("sql", ["SELECT %s", "SELECT 5 % 2", "SELECT %(a)d", "SELECT %(a", "%"])
def test_a_statement_that_cannot_be_bound_is_refused(sql: str) -> None:
    body = {"host": "h", "database": "d", "user": "u", "password": "hush",
            "statements": [{"name": "a", "sql": sql}]}  # fmt: skip
    with pytest.raises(ValidationFailed, match="percent sign") as refused:
        configured(POSTGRES, body)
    assert "hush" not in refused.value.message
    assert secret_names(POSTGRES) == secret_names(MYSQL) == {"password"}
