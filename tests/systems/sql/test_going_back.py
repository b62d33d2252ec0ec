"""A log of changes that is read again from a time, of a real MariaDB. Law N17."""

# ruff: noqa: S608 - statements of an application, on names of these tests

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakesync.buffer.memory_buffer import MemoryBuffer
from lakesync.connectors import FEED
from lakesync.core.clock import stamp, stamp_ms
from lakesync.core.delta import Op, make_delta
from lakesync.core.messages import Push
from lakesync.errors import ValidationFailed
from lakesync.systems.mysql.binlog import mysql_bytes, mysql_position, mysql_text
from lakesync.systems.mysql.mysql_settings import MYSQL
from lakesync.systems.postgres.postgres_settings import POSTGRES
from tests.support.capturing import GATEWAY, BinlogWorld
from tests.support.gateways import pusher

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lakesync.connectors.port import ConnectorType
    from lakesync.core.delta import Delta
    from tools.local_stack.databases import Database


@pytest.fixture
def world(mariadb: Database) -> Iterator[BinlogWorld]:
    made = BinlogWorld(mariadb, {"a": "id int PRIMARY KEY, v text"})
    yield made
    made.close()


def polled(world: BinlogWorld) -> None:
    world.time.now_ms = int(time.time() * 1_000)
    assert world.poll() == "done"


def changed(world: BinlogWorld, *statements: str) -> None:
    """Change rows, in a second and a file of the log of their own."""
    time.sleep(1.1)
    world.run("FLUSH BINARY LOGS")
    for statement in statements:
        world.run(statement.format(a=world.tables["a"]))
    polled(world)


def go_back(world: BinlogWorld, at_us: int, kind: ConnectorType = MYSQL) -> None:
    assert kind.begins_at is not None
    state = world.state
    state.cursors[FEED] = kind.begins_at(world.settings, FEED, state.cursors[FEED], at_us)
    world.saved = state.to_json()


def restored(world: BinlogWorld, deltas: list[Delta]) -> None:
    """Give the gateway what it had once."""
    world.buffer = MemoryBuffer()
    world.pusher = pusher(world.buffer, time_=world.time)
    world.pusher.push(GATEWAY, Push("connector:c", tuple(enumerate(deltas)), trusted=True))


def dated(world: BinlogWorld) -> set[tuple[Any, ...]]:
    """Return all that was accepted, to the second, as MariaDB's log tells it."""
    return {
        (delta.op, delta.row_id, delta.columns, stamp_ms(delta.hlc) // 1_000)
        for delta in world.deltas()
    }


@pytest.mark.emulator
@pytest.mark.law("N17")
def test_changes_since_a_time_are_read_again_with_their_original_stamps(world: BinlogWorld) -> None:
    changed(world, "INSERT INTO {a} VALUES (1, 'one'), (2, 'two'), (3, 'three')")
    changed(world, "UPDATE {a} SET v = 'second' WHERE id = 2")
    before, at_us = world.deltas(), int(time.time() * 1_000_000)
    changed(world, "UPDATE {a} SET v = 'third' WHERE id = 3", "DELETE FROM {a} WHERE id = 1")
    changed(world, "INSERT INTO {a} VALUES (4, 'four')", "UPDATE {a} SET v = '5' WHERE id = 4")
    whole = dated(world)
    restored(world, before)
    polled(world)
    assert world.rows("a") != world.expected("a"), "what was read is not read again by itself"

    go_back(world, at_us)
    assert world.poll(pages=1) == "more"  # and another process goes on
    polled(world)
    assert world.rows("a") == world.expected("a")
    assert dated(world) == whole, "dated as they were"
    assert "back" not in world.cursor()
    changed(world, "INSERT INTO {a} VALUES (6, 'six')")
    assert world.rows("a") == world.expected("a")


@pytest.mark.emulator
@pytest.mark.law("N17")
def test_changes_read_again_do_not_overwrite_later_edits(world: BinlogWorld) -> None:
    at_us = int(time.time() * 1_000_000)
    changed(world, "INSERT INTO {a} VALUES (1, 'one'), (2, 'two')")
    changed(world, "UPDATE {a} SET v = 'second' WHERE id = 2")
    edit = make_delta(Op.UPDATE, "a", "2", {"v": "a client's"}, client_id="phone",
                      hlc=stamp(int(time.time() * 1_000)))  # fmt: skip
    world.pusher.push(GATEWAY, Push("phone", ((0, edit),)))
    before = dated(world)
    go_back(world, at_us)
    polled(world)
    assert world.rows("a")["2"]["v"] == "a client's"
    assert dated(world) == before


@pytest.mark.emulator
@pytest.mark.law("N17")
def test_log_that_begins_after_the_time_is_reported_with_its_first_time(world: BinlogWorld) -> None:
    changed(world, "INSERT INTO {a} VALUES (1, 'one')")
    go_back(world, 1_000_000)
    polled(world)
    assert world.state.fault is not None
    assert "the source's log begins at 20" in world.state.fault.message
    changed_at = world.state.fault.message.partition("begins at ")[2][:20]
    world.run(f"INSERT INTO {world.tables['a']} VALUES (2, 'two')")
    polled(world)
    assert "2" not in world.rows("a")

    # As the sentence says: from that time on, or with a later one as before.
    oldest = time.mktime(time.strptime(changed_at, "%Y-%m-%dT%H:%M:%SZ")) - time.timezone
    go_back(world, int(oldest) * 1_000_000)
    assert world.cursor()["from"] == int(oldest) * 1_000_000
    go_back(world, int(time.time() * 1_000_000) + 1_000_000)
    assert "from" not in world.cursor()
    polled(world)
    assert world.rows("a") == world.expected("a")
    go_back(world, int(oldest) * 1_000_000)
    polled(world)
    assert world.rows("a") == world.expected("a")


@pytest.mark.law("N17")
def test_going_back_skips_no_unread_change_and_is_refused_for_a_slot() -> None:
    assert MYSQL.begins_at is not None
    assert POSTGRES.begins_at is not None
    settings_of = {
        "host": "h", "database": "d", "user": "u", "password": "p", "tables": [{"name": "a"}],
    }  # fmt: skip
    settings = MYSQL.configuration.model_validate(settings_of | {"changes": True})
    read = json.dumps({"file": "log.000007", "pos": 9, "us": 1_000, "server": "1"})
    assert MYSQL.begins_at(settings, FEED, "", 5) == ""
    assert json.loads(MYSQL.begins_at(settings, FEED, read, 1_000)) == json.loads(read)
    asked = MYSQL.begins_at(settings, FEED, read, 900)
    assert json.loads(asked) == json.loads(read) | {"from": 900}
    assert json.loads(MYSQL.begins_at(settings, FEED, asked, 800))["from"] == 800
    slot = POSTGRES.configuration.model_validate(settings_of | {"changes": True})
    with pytest.raises(ValidationFailed, match="cannot go back to a time"):
        POSTGRES.begins_at(slot, FEED, read, 900)


_SERVERS = st.dictionaries(
    st.uuids().map(str),
    st.lists(st.integers(1, 50), min_size=2, max_size=6, unique=True).map(
        lambda each: list(zip(sorted(each)[::2], sorted(each)[1::2], strict=False))
    ),
    max_size=3,
)


@pytest.mark.law("N17")
@given(_SERVERS)
def test_mysql_gtid_position_is_parsed_from_the_header_of_a_log_file(ranges: Any) -> None:
    assert mysql_position(mysql_bytes(mysql_text(ranges))) == mysql_text(ranges)


@pytest.mark.emulator
@pytest.mark.law("N17")
def test_going_back_over_truncate_and_alter_table_gives_the_current_rows(
    world: BinlogWorld,
) -> None:
    changed(world, "INSERT INTO {a} VALUES (1, 'one'), (2, 'two')")
    at_us = int(time.time() * 1_000_000)
    changed(world, "UPDATE {a} SET v = 'changed' WHERE id = 1", "TRUNCATE {a}")
    changed(world, "INSERT INTO {a} VALUES (3, 'three')", "ALTER TABLE {a} ADD n int DEFAULT 7")
    changed(world, "INSERT INTO {a} VALUES (4, 'four', 4)", "DELETE FROM {a} WHERE id = 3")
    assert world.rows("a") == world.expected("a")
    go_back(world, at_us)
    while world.poll(pages=1) == "more":
        pass
    polled(world)
    assert world.rows("a") == world.expected("a") == {"4": {"id": 4, "v": "four", "n": 4}}
    changed(world, "UPDATE {a} SET v = 'last' WHERE id = 4")
    assert world.rows("a") == world.expected("a")


@pytest.mark.law("N17")
def test_position_with_tagged_gtids_is_refused() -> None:
    position = (  # by MySQL 9.7, behind a transaction with a tagged id
        "0102000000000001e6e7bda0ea5611f1b32502fc0000000100010000000000000001000000000000008c09000000"
        "000000e6e7bda0ea5611f1b32502fc000000010c746167676564010000000000000001000000000000000400000000"
        "000000"
    )
    with pytest.raises(ValueError, match="the position has tags"):
        mysql_position(bytes.fromhex(position))
