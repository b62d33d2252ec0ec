"""Change capture of MariaDB: unusual values, logs that are gone, tables that cannot be captured."""

# ruff: noqa: S608 - statements of an application, on names of these tests

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import ValidationError

from lakesync.connectors import FEED
from lakesync.connectors.port import KEPT_BYTES
from lakesync.declare.flows import read_connector
from lakesync.errors import AdapterRefused
from lakesync.result import Err, Ok
from lakesync.systems.mysql import binlog, mysql_capture
from lakesync.systems.mysql.mysql_settings import MySqlSettings
from tests.support.capturing import GATEWAY, BinlogWorld
from tests.support.polling import PollingByHand

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tools.local_stack.databases import Database

pytestmark = pytest.mark.emulator


@pytest.fixture
def world(mariadb: Database) -> Iterator[BinlogWorld]:
    """A world with two tables."""
    tables = {"a": "id int PRIMARY KEY, v text, big text", "b": "id int PRIMARY KEY, v text"}
    made = BinlogWorld(mariadb, tables)
    yield made
    made.close()


def values(world: BinlogWorld, name: str = "a") -> dict[str, Any]:
    """Return one column of a table that the gateway has."""
    return {row_id: row["v"] for row_id, row in world.rows(name).items()}


def checked(world: BinlogWorld) -> Any:
    """Return what a connector says of itself."""
    with closing(world.connector()) as connector:
        return connector.check()


def insert(world: BinlogWorld, *ids: int, name: str = "a") -> None:
    """Insert rows."""
    world.run(*(f"INSERT INTO {world.tables[name]} (id, v) VALUES ({id_}, 'x')" for id_ in ids))


@pytest.mark.law("N12", "N13")
@pytest.mark.parametrize("loss", ["purged", "not this server's", "without names", "reset"])
def test_log_gap_triggers_a_full_re_read_that_finds_deletions(
    world: BinlogWorld, loss: str
) -> None:
    insert(world, 1, 2, 3)
    assert world.poll() == "done"
    look = binlog.look(world.application.cursor())
    if loss == "without names":
        world.run("SET GLOBAL binlog_row_metadata = MINIMAL")
    table = world.tables["a"]
    world.run(f"DELETE FROM {table} WHERE id = 2", f"UPDATE {table} SET v = 'y' WHERE id = 3")
    insert(world, 4)
    if loss == "purged":
        world.run("FLUSH BINARY LOGS")
        file = world.ask("SHOW MASTER STATUS" if look.is_mariadb else "SHOW BINARY LOG STATUS")
        if look.is_mariadb:
            world.run("SET GLOBAL slave_connections_needed_for_purge = 0")
        while world.ask("SHOW BINARY LOGS") != file:  # not while its changes are being kept
            world.run(f"PURGE BINARY LOGS TO '{file}'")
    elif loss == "without names":
        world.run("SET GLOBAL binlog_row_metadata = FULL")
    elif loss == "reset":  # as a source is that was restored from a backup
        world.run("RESET MASTER" if look.is_mariadb else "RESET BINARY LOGS AND GTIDS")
    else:
        gtid = "0-1-99999999" if look.is_mariadb else f"{look.server}:1-99999999"
        more = {"gtid": gtid} if world.cursor()["gtid"] else {"server": "another"}
        cursor = world.cursor()
        for name, value in more.items():
            world.saved = world.saved.replace(cursor[name].encode(), value.encode())

    assert world.poll() == "done"
    assert values(world) == {"1": "x", "3": "y", "4": "x"}
    assert world.state.fault is None
    assert world.state.source["readAgain"]


@pytest.mark.law("N12")
def test_prepared_transaction_is_read_once_committed(world: BinlogWorld) -> None:
    insert(world, 1)
    world.poll()
    xid = f"'{world.schema}'"
    cursor = world.application.cursor()
    for statement in (
        f"XA START {xid}", f"INSERT INTO {world.tables['a']} (id, v) VALUES (2, 'xa')",
        f"XA END {xid}", f"XA PREPARE {xid}",
    ):  # fmt: skip
        cursor.execute(statement)
    world.poll()
    assert values(world) == {"1": "x"}
    cursor.execute(f"XA COMMIT {xid}")
    assert world.poll() == "done"

    assert values(world) == {"1": "x", "2": "xa"}


@pytest.mark.law("N12")
def test_statement_logged_changes_trigger_a_re_read_of_their_table(
    world: BinlogWorld,
) -> None:
    insert(world, 1, 2)
    world.poll()
    table = world.tables["a"]
    world.run(
        "SET SESSION binlog_format = STATEMENT, SESSION transaction_isolation = 'REPEATABLE-READ'"
    )
    world.run(f"UPDATE {table} SET v = 'said'", f"DELETE FROM {table} WHERE id = 1")
    assert world.poll() == "done"

    assert values(world) == {"2": "said"}


@pytest.mark.law("N4", "N13")
def test_table_that_cannot_be_captured_does_not_stop_other_tables(world: BinlogWorld) -> None:
    table, parent = world.tables["a"], world.tables["b"]
    insert(world, 1, name="b")
    insert(world, 2)
    world.run(f"ALTER TABLE {table} ADD COLUMN p int, ADD CONSTRAINT goes FOREIGN KEY (p) "
              f"REFERENCES {parent} (id) ON DELETE CASCADE")  # fmt: skip
    answer = checked(world)
    assert isinstance(answer, Err)
    assert "foreign key (goes: CASCADE or SET NULL)" in answer.error.message
    assert world.poll() == "done"
    assert world.state.fault is not None
    assert (world.state.fault.table, values(world, "b")) == (table, {"1": "x"})
    world.run(f"ALTER TABLE {table} DROP CONSTRAINT goes", f"ALTER TABLE {table} DROP PRIMARY KEY")
    answer = checked(world)
    assert "has no primary key" in answer.error.message
    world.run(f"ALTER TABLE {table} ADD PRIMARY KEY (id)")
    assert world.poll() == "done"
    assert values(world) == {"2": "x"}
    mended: Any = world.state.fault
    assert mended is None


def test_log_without_row_images_is_reported_with_the_setting_to_change(world: BinlogWorld) -> None:
    only: tuple[tuple[str, str, str], ...] = (("binlog_row_metadata", "NO_LOG", "FULL"),)
    if world.database.is_mysql:
        only = (
            ("binlog_row_metadata", "MINIMAL", "FULL"),
            ("binlog_transaction_compression", "ON", "OFF"),
        )
    for setting, value, usual in (*only, ("binlog_format", "MIXED", "ROW")):
        world.run(f"SET GLOBAL {setting} = {value}")
        answer = checked(world)
        world.run(f"SET GLOBAL {setting} = {usual}")
        assert isinstance(answer.error, AdapterRefused)
        assert f"set {setting} = {usual}" in answer.error.message


def test_user_without_privileges_is_shown_the_grants_to_run(world: BinlogWorld) -> None:
    user = f"reader_{world.schema}"
    world.run(
        f"CREATE USER {user}@'127.0.0.1' IDENTIFIED BY 'p'",
        f"GRANT SELECT ON {world.schema}.* TO {user}@'127.0.0.1'",
        f"GRANT SELECT ON {world.database.database}.* TO {user}@'127.0.0.1'",
    )
    insert(world, 1)
    world.configure(user=user, password="p")
    for grant in ("REPLICATION CLIENT", "REPLICATION SLAVE"):
        answer = checked(world)
        assert isinstance(answer, Err)
        assert isinstance(answer.error, AdapterRefused)
        assert "GRANT REPLICATION SLAVE, REPLICATION CLIENT" in answer.error.message
        world.run(f"GRANT {grant} ON *.* TO {user}@'127.0.0.1'")
    if world.database.is_mysql and world.ask("SELECT @@GLOBAL.gtid_mode") != "ON":
        assert "GRANT PROCESS ON *.* TO" in checked(world).error.message
        world.run(f"GRANT PROCESS ON *.* TO {user}@'127.0.0.1'")
    assert isinstance(checked(world), Ok)
    assert world.poll() == "done"
    assert values(world) == {"1": "x"}
    insert(world, 2)
    assert world.poll() == "done"
    assert values(world) == {"1": "x", "2": "x"}
    world.run(f"DROP USER {user}@'127.0.0.1'")


@pytest.mark.law("N12", "N13")
def test_without_gtids_the_position_is_a_file_and_an_offset(
    world: BinlogWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(binlog, "GTID_CHARACTERS_MAX", -1)
    monkeypatch.setattr("lakesync.connectors.poll.PAGE_ROWS_MAX", 10)
    world.poll()
    for number in range(3):
        insert(world, *range(20 * number, 20 * number + 17))
        world.run("FLUSH BINARY LOGS")
        world.poll(kill=3 + number)
    while world.poll() == "more":
        pass
    assert (world.cursor()["gtid"], world.cursor()["is_by_gtid"]) == ("", False)
    assert len(world.rows("a")) == len(world.deltas()) == 51
    assert "readAgain" not in world.state.source
    server = world.cursor()["server"]
    world.saved = world.saved.replace(
        f'\\"server\\": \\"{server}\\"'.encode(), b'\\"server\\": \\"2\\"'
    )
    insert(world, 99)
    while world.poll() == "more":
        pass
    assert world.state.source["readAgain"] == (
        "another server took over, without ids of transactions"
    )
    assert len(world.rows("a")) == 52


@pytest.mark.law("N1", "N12")
def test_changes_of_other_tables_are_skipped_page_by_page(
    world: BinlogWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mysql_capture, "READ_BYTES_MAX", 3_000)
    world.configure(only=("b",))
    world.poll()
    for number in range(30):
        insert(world, number)
    insert(world, 1, name="b")
    before = world.cursor()
    assert world.poll(pages=2) == "more"
    assert world.rows("b") == {}
    assert world.cursor()["pos"] > before["pos"]
    assert world.poll() == "done"
    assert values(world, "b") == {"1": "x"}


def test_connector_lifecycle_from_registration_to_removal(world: BinlogWorld) -> None:
    by_hand = PollingByHand(world.pusher.push, world.time.wall_clock, rows=world.buffer)
    settings = world.settings.model_dump(by_alias=True, exclude_none=True, mode="json")
    body = {
        "type": "mysql",
        "name": "shop",
        "configuration": settings | {"password": "lakesync"},
    }
    message = by_hand.admin.register(GATEWAY, read_connector(body))
    assert "can be captured; it keeps its log" in message
    insert(world, 1)
    by_hand.polls.poll(GATEWAY, "shop", 0, lambda: True)
    world.time.sleep_ms(60_000)
    insert(world, 2)
    step = by_hand.polls.poll(GATEWAY, "shop", 0, lambda: True)

    shown = by_hand.admin.one(GATEWAY, "shop")
    assert shown["source"][KEPT_BYTES] == step.kept_bytes > 0
    assert values(world) == {"1": "x", "2": "x"}
    world.run(f"DELETE FROM {world.tables['a']} WHERE id = 1")
    by_hand.admin.reset(GATEWAY, "shop")
    world.time.sleep_ms(60_000)
    by_hand.polls.poll(GATEWAY, "shop", 0, lambda: True)
    assert values(world) == {"2": "x"}
    assert by_hand.admin.remove(GATEWAY, "shop") == ""


def test_settings_that_contradict_are_refused() -> None:
    body = {"host": "h", "database": "d", "user": "u", "password": "p"}
    for more in (
        {"changes": True, "tables": [{"name": "t", "cursorColumn": "c"}]},
        {"tables": [{"name": "t"}], "serverId": 7},
        {"changes": True, "tables": [{"name": "t"}], "serverId": 0},
    ):
        with pytest.raises(ValidationError):
            MySqlSettings.model_validate(body | more)
    settings = MySqlSettings.model_validate(body | {"changes": True, "tables": [{"name": "s.t"}]})

    assert list(settings.named().items()) == [(FEED, ""), ("s.t", "t")]
