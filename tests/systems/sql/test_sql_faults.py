"""A real database that changes under its polls: a table, a column's type, the password."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

from lakesync.buffer.memory_buffer import MemoryBuffer
from lakesync.connectors.polls import LEASE_MS
from lakesync.core.delta import parse
from lakesync.core.merge import view
from lakesync.declare.flows import read_connector
from lakesync.wire.records import decode_row_state
from tests.support.gateways import GivenTime, administrator, pulled, pusher
from tests.support.mysql_server import end_sessions
from tests.support.polling import PollingByHand
from tests.support.sources import SqlSource

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lakesync.connectors.polls import Step
    from tools.local_stack.databases import Database

pytestmark = pytest.mark.emulator

G = "g"
ROWS = 9
PAGE = 2
MIDWAY = 3
"""The page before which something happens."""


class Shop:
    """Two tables of a database, polled by a registered connector in pages of few rows."""

    def __init__(self, database: Database, kind: str, *, by_time: bool) -> None:
        self.is_postgres, self.by_time = kind == "postgres", by_time
        self.orders, self.items = (SqlSource(database, kind, by_time=by_time) for _ in range(2))
        cursor = {"cursorColumn": "changed"} if by_time else {}
        self.settings: dict[str, Any] = {
            "host": database.host, "port": database.port, "database": database.database,
            "user": database.user, "password": database.password, "tls": "off", "settleS": 0,
            "tables": [
                {"name": self.orders.table, "as": "orders", **cursor},
                {"name": self.items.table, "as": "items", **cursor},
            ],
        }  # fmt: skip
        self.time, self.buffer = GivenTime(int(time.time() * 1000)), MemoryBuffer()
        self.by_hand = PollingByHand(
            pusher(self.buffer, time_=self.time).push, self.time.wall_clock, rows=self.buffer
        )

    def register(self, **more: Any) -> None:
        """Register the connector."""
        body = {
            "type": "postgres" if self.is_postgres else "mysql", "name": "shop",
            "configuration": self.settings | more,
        }  # fmt: skip
        self.by_hand.admin.register(G, read_connector(body))

    def poll(self, midway: Callable[[], object] = lambda: None) -> Step:
        """Poll as a later execution does; something may happen before one of its pages."""
        self.time.now_ms += LEASE_MS + 1
        pages = iter(range(1_000))

        def has_time() -> bool:
            if next(pages) == MIDWAY:
                midway()
            return True

        return self.by_hand.polls.poll(G, "shop", 0, has_time)

    def retype(self, kind: str) -> None:
        """Give a column of the orders another type."""
        change = f"ALTER COLUMN value TYPE {kind} USING value::{kind}"
        if not self.is_postgres:
            change = f"MODIFY value {kind}"
        self.orders.run(f"ALTER TABLE {self.orders.table} {change}")

    @property
    def shown(self) -> dict[str, Any]:
        """What an administrator sees."""
        return self.by_hand.admin.one(G, "shop")

    def rows(self, table: str) -> dict[str, Any]:
        """Return the value of each row that the gateway has."""
        states = self.buffer.scan_rows(G, table, "", 1_000).rows
        shown = {row_id: view(decode_row_state(one.state)) for row_id, one in states}
        return {row_id: parse(row["value"]) for row_id, row in shown.items() if row is not None}

    def close(self) -> None:
        """Drop the tables."""
        self.orders.close()
        self.items.close()


@pytest.fixture(params=["postgres by time", "postgres", "mariadb by time", "mariadb"])
def shop(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    """Tables of each kind of database, read by times and by difference."""
    monkeypatch.setattr("lakesync.connectors.poll.PAGE_ROWS_MAX", PAGE)
    kind: str = request.param.split()[0]
    made = Shop(request.getfixturevalue(kind), kind, by_time="time" in request.param)
    made.orders.put({str(number): str(number) for number in range(1, ROWS + 1)})
    made.items.put({"1": "x"})
    yield made
    made.close()


def numbered(first: int = 1, last: int = ROWS) -> dict[str, str]:
    """Return the rows that there are at first."""
    return {str(number): str(number) for number in range(first, last + 1)}


@pytest.mark.law("N1", "N4")
def test_table_that_vanishes_midway_deletes_nothing_and_does_not_stop_other_tables(
    shop: Shop,
) -> None:
    shop.register()
    away = f"away_{shop.orders.table}"
    vanishes = f"ALTER TABLE {shop.orders.table} RENAME TO {away}"
    assert shop.poll(lambda: shop.orders.run(vanishes)).status == "wait", "it may be a moment"
    there = shop.rows("orders")
    assert 0 < len(there) < ROWS

    shop.items.put({"2": "y"})
    step = shop.poll()
    fault = shop.shown["lastError"]
    assert (step.status, step.has_fault, fault["table"]) == ("done", True, shop.orders.table)
    assert "there is no table" in fault["error"]
    assert (shop.rows("orders"), shop.rows("items")) == (there, {"1": "x", "2": "y"})

    shop.orders.run(f"ALTER TABLE {away} RENAME TO {shop.orders.table}")
    shop.orders.put({"10": "10"})
    wanted = numbered(last=10)
    if not shop.by_time:
        shop.orders.delete("1")
        del wanted["1"]
    shop.poll()
    assert shop.poll().has_fault is False
    assert shop.rows("orders") == wanted
    assert "lastError" not in shop.shown


@pytest.mark.law("N1", "N5")
def test_column_whose_type_changes_during_a_poll_is_read_with_the_new_type(shop: Shop) -> None:
    shop.register()
    assert shop.poll(lambda: shop.retype("bigint")).status == "done"
    rows = shop.rows("orders")
    assert rows == numbered(last=MIDWAY * PAGE) | {
        str(number): number for number in range(MIDWAY * PAGE + 1, ROWS + 1)
    }

    shop.orders.put({"1": 11, "10": 10})
    assert shop.poll().has_fault is False
    after = shop.rows("orders")
    assert (after["1"], after["10"]) == (11, 10)
    if not shop.by_time:
        assert after == {str(number): number for number in range(2, 11)} | {"1": 11}


@pytest.mark.law("N1", "N5")
@pytest.mark.parametrize("when", ["between two polls", "under a poll"])
def test_key_whose_type_changes_is_followed(shop: Shop, when: str) -> None:
    if shop.by_time:
        pytest.skip("what is read by times is in the order of those")
    shop.register()

    def retype() -> None:
        shop.orders.delete("2")
        kind = "ALTER COLUMN id TYPE text" if shop.is_postgres else "MODIFY id varchar(20)"
        shop.orders.run(f"ALTER TABLE {shop.orders.table} {kind}")
        shop.orders.run(f"INSERT INTO {shop.orders.table} VALUES ('x', 'new', {shop.orders.now})")  # noqa: S608

    if when == "under a poll":
        shop.poll(retype)
    else:
        shop.poll()
        assert len(shop.rows("orders")) == ROWS
        retype()
        shop.poll()
    shop.poll()
    wanted = {row: value for row, value in numbered().items() if row != "2"} | {"x": "new"}
    assert shop.rows("orders") == wanted
    assert shop.poll().has_fault is False
    assert "lastError" not in shop.shown

    before = len(pulled(shop.buffer, G))
    shop.orders.run(f"DELETE FROM {shop.orders.table} WHERE id = '9'")  # noqa: S608
    shop.orders.run(f"UPDATE {shop.orders.table} SET value = 'y' WHERE id = 'x'")  # noqa: S608
    shop.poll()
    del wanted["9"]
    assert shop.rows("orders") == wanted | {"x": "y"}
    assert len(pulled(shop.buffer, G)) == before + 2, "nothing else comes again"


@pytest.mark.law("N4")
def test_rows_that_contradict_the_declared_type_are_dead_letters_and_others_are_pushed(
    shop: Shop,
) -> None:
    types = {"id": "integer", "value": "string", "changed": "timestamp"}
    columns = [{"name": name, "type": kind} for name, kind in types.items()]
    administrator(shop.buffer, time_=shop.time).register_schema(
        G, {"table": "orders", "columns": columns}
    )
    shop.register()
    shop.poll()
    shop.retype("bigint")
    shop.orders.put({"1": 11, "10": 10})
    shop.items.put({"2": "y"})
    assert shop.poll().status == "done"
    assert shop.rows("items") == {"1": "x", "2": "y"}
    assert shop.rows("orders") == numbered()
    letters = {one["rowId"]: one["reason"] for one in shop.shown["deadLetters"]}
    assert letters.keys() >= {"1", "10"}
    assert "value" in letters["1"]

    shop.retype("text")
    shop.orders.put({number: f"{number}!" for number in letters})
    shop.poll()
    assert shop.shown["deadLetters"] == []
    assert shop.rows("orders") == numbered() | {number: f"{number}!" for number in letters}


@pytest.mark.law("N1", "N8")
def test_password_changed_midway_is_reported_and_loses_and_duplicates_nothing(
    shop: Shop,
) -> None:
    user, source = f"reader_{shop.orders.table}", shop.orders
    if shop.is_postgres:
        source.run(f"CREATE ROLE {user} LOGIN PASSWORD 'first'")
        for table in (source.table, shop.items.table):
            source.run(f"GRANT SELECT ON {table} TO {user}")
        of_user = f"FROM pg_stat_activity WHERE usename = '{user}'"
        changes = [
            f"ALTER ROLE {user} PASSWORD 'second'",
            f"SELECT pg_terminate_backend(pid) {of_user}",
        ]
        ends = [f"DROP OWNED BY {user}", f"DROP ROLE {user}"]
    else:
        source.run(f"CREATE USER {user}@'127.0.0.1' IDENTIFIED BY 'first'")
        source.run(f"GRANT SELECT ON {shop.settings['database']}.* TO {user}@'127.0.0.1'")
        changes = [f"ALTER USER {user}@'127.0.0.1' IDENTIFIED BY 'second'"]
        ends = [f"DROP USER {user}@'127.0.0.1'"]
    shop.register(user=user, password="first")

    def change() -> None:
        for statement in changes:
            source.run(statement)
        if not shop.is_postgres:
            end_sessions(source.source.dialect, user)

    assert shop.poll(change).status == "wait", "the connection is lost"
    there = shop.rows("orders")
    assert 0 < len(there) < ROWS
    step = shop.poll()
    assert (step.status, step.has_fault) == ("done", True)
    assert (shop.shown["lastError"]["code"], shop.rows("orders")) == ("ADAPTER_REFUSED", there)
    assert "first" not in str(shop.shown)

    renewed = shop.settings | {"user": user, "password": "second"}
    shop.by_hand.admin.configure(G, "shop", renewed)
    shop.poll()
    assert shop.poll().has_fault is False
    assert (shop.rows("orders"), shop.rows("items")) == (numbered(), {"1": "x"})
    assert len(pulled(shop.buffer, G)) == ROWS + 1, "nothing came twice"
    for statement in ends:
        source.run(statement)
