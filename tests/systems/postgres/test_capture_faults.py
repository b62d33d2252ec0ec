"""Change capture: slots that are gone, tables that cannot be captured, users who may not."""

# ruff: noqa: S608 - statements of an application, on names of these tests

from __future__ import annotations

from contextlib import closing
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import ValidationError

from lakesync.connectors import FEED
from lakesync.connectors.port import KEPT_BYTES
from lakesync.core.delta import Op
from lakesync.declare.flows import read_connector
from lakesync.errors import AdapterRefused
from lakesync.result import Err, Ok
from lakesync.systems.postgres import postgres_capture, replication_slot
from lakesync.systems.postgres.postgres_capture import DECODE_TRIES_MAX, CaptureConnector, forget
from lakesync.systems.postgres.postgres_settings import PostgresSettings
from lakesync.systems.postgres.postgres_source import PostgresSource
from lakesync.systems.postgres.replication_slot import lsn_of, lsn_text
from tests.support.capturing import GATEWAY, CaptureWorld, SteppedSlot
from tests.support.hosts import LOOPBACK
from tests.support.polling import PollingByHand

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tools.local_stack.databases import Database

pytestmark = pytest.mark.emulator


@pytest.fixture
def world(postgres: Database, monkeypatch: pytest.MonkeyPatch) -> Iterator[CaptureWorld]:
    """A world with two tables."""
    monkeypatch.setattr(postgres_capture, "Slot", SteppedSlot)
    tables = {"a": "id int PRIMARY KEY, v text, big text", "b": "id int PRIMARY KEY, v text"}
    made = CaptureWorld(postgres, tables)
    made.run(f"ALTER TABLE {made.tables['a']} ALTER big SET STORAGE EXTERNAL")
    yield made
    made.close()


def values(world: CaptureWorld, name: str = "a") -> dict[str, Any]:
    """Return one column of a table that the gateway has."""
    return {row_id: row["v"] for row_id, row in world.rows(name).items()}


def checked_by(connector: CaptureConnector) -> Any:
    """Return what a connector says of itself."""
    with closing(connector):
        return connector.check()


def insert(world: CaptureWorld, *ids: int, name: str = "a") -> None:
    """Insert rows."""
    world.run(*(f"INSERT INTO {world.tables[name]} (id, v) VALUES ({id_}, 'x')" for id_ in ids))


@pytest.mark.law("N12", "N13")
@pytest.mark.parametrize("loss", ["dropped", "moved", "unpublished", "recreated table", "restored"])
def test_slot_gap_triggers_a_full_re_read_that_finds_deletions(
    world: CaptureWorld, loss: str
) -> None:
    insert(world, 1, 2, 3)
    assert world.poll() == "done"
    slot, table = world.slot, world.tables["a"]
    if loss == "dropped":
        world.ask(f"SELECT pg_drop_replication_slot('{slot.name}')")
    elif loss == "unpublished":
        world.run(f"DROP PUBLICATION {slot.publication}")
    elif loss == "recreated table":
        world.run(f"DROP TABLE {table}", f"CREATE TABLE {table} (id int PRIMARY KEY, v text)")
        insert(world, 2, 3)
    world.run(f"DELETE FROM {table} WHERE id = 2", f"UPDATE {table} SET v = 'y' WHERE id = 3")
    if loss == "recreated table":
        world.run(f"DELETE FROM {table} WHERE id = 1")
    else:
        insert(world, 4)
    if loss == "moved":
        world.ask(f"SELECT pg_replication_slot_advance('{slot.name}', pg_current_wal_flush_lsn())")

    if loss == "restored":  # to a time before what was read
        lsn = world.cursor()["lsn"]
        world.saved = world.saved.replace(f"{lsn}".encode(), f"{lsn + (1 << 40)}".encode())

    assert world.poll() == "done"
    rows = {"1": "x", "3": "y", "4": "x"} if loss != "recreated table" else {"3": "y"}
    assert values(world) == rows
    assert world.state.fault is None
    assert ("readAgain" in world.state.source) == (loss != "recreated table")


class SlowSlot(SteppedSlot):
    """A slot whose changes the source does not decode in time."""

    slow = 0

    def peek(self, connection: Any, until: int) -> Iterator[bytes]:
        """Yield the messages, or what a source says that was too slow."""
        if SlowSlot.slow:
            SlowSlot.slow -= 1
            connection.execute("SET LOCAL statement_timeout = 10")
            connection.execute("SELECT pg_sleep(5)")
        yield from super().peek(connection, until)


@pytest.mark.law("N12")
def test_transaction_that_times_out_in_decoding_triggers_a_full_re_read(
    world: CaptureWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_capture, "Slot", SlowSlot)
    insert(world, 1, 2)
    assert world.poll() == "done"
    world.run(f"DELETE FROM {world.tables['a']} WHERE id = 1")
    insert(world, 3)

    def tried(times: int) -> list[str]:
        SlowSlot.slow, said = times, []
        while SlowSlot.slow:
            said.append(world.poll())
            world.time.sleep_ms(60_000)
        return said

    assert tried(DECODE_TRIES_MAX - 1) == ["wait"] * (DECODE_TRIES_MAX - 1)
    assert world.state.fault is not None
    assert world.state.fault.code == "ADAPTER_TIMED_OUT"
    assert world.poll() == "done"
    assert "readAgain" not in world.state.source
    assert values(world) == {"2": "x", "3": "x"}

    world.run(f"DELETE FROM {world.tables['a']} WHERE id = 2")
    insert(world, 4)
    assert tried(DECODE_TRIES_MAX)[-1] == "done"
    assert "did not decode" in str(world.state.source["readAgain"])
    assert values(world) == {"3": "x", "4": "x"}


@pytest.mark.law("N12")
def test_slot_advances_no_further_than_the_saved_cursor(world: CaptureWorld) -> None:
    insert(world, 1)
    world.poll()
    insert(world, 2)
    for kill in range(1, 20):
        status = world.poll(kill=kill)
        confirmed = world.ask(
            "SELECT confirmed_flush_lsn::text FROM pg_replication_slots "
            f"WHERE slot_name = '{world.slot.name}'"
        )
        assert lsn_of(confirmed) <= world.cursor()["lsn"]
        if status == "done":
            break

    assert values(world) == {"1": "x", "2": "x"}
    assert len(world.deltas()) == 2


@pytest.mark.law("N13")
def test_snapshot_of_a_table_waits_for_older_open_transactions(
    world: CaptureWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replication_slot, "OPEN_S_MAX", 0.2)
    world.configure(only=("b",))
    insert(world, 1, name="b")
    world.poll()
    late: Any = world.source.dialect.connect()
    late.execute(f"INSERT INTO {world.tables['a']} (id, v) VALUES (9, 'late')")
    world.configure()

    assert world.poll() == "wait"
    assert world.state.fault is not None
    assert "pg_stat_activity" in world.state.fault.message
    late.commit()
    late.close()
    world.time.sleep_ms(60_000)
    assert world.poll() == "done"
    assert values(world) == {"9": "late"}
    assert values(world, "b") == {"1": "x"}


@pytest.mark.law("N12")
def test_unchanged_toasted_column_is_omitted_from_the_delta(world: CaptureWorld) -> None:
    table = world.tables["a"]
    world.run(f"INSERT INTO {table} VALUES (1, 'x', repeat('a', 3000))")
    world.poll()
    world.run(f"UPDATE {table} SET v = 'y'")
    world.poll()
    delta = world.deltas()[-1]
    assert [name for name, _ in delta.columns] == ["id", "v"]
    world.run(f"UPDATE {table} SET id = 2")
    world.poll()

    assert world.rows("a") == {"2": {"id": 2, "v": "y", "big": "a" * 3000}}


@pytest.mark.law("N12")
def test_row_inserted_and_deleted_before_a_poll_gives_no_delta_and_hlc_is_the_commit_time(
    world: CaptureWorld,
) -> None:
    world.poll()
    table = world.tables["a"]
    world.run(f"INSERT INTO {table} (id) VALUES (1)", f"DELETE FROM {table}")
    world.run(f"INSERT INTO {table} (id, v) VALUES (2, 'x')")
    now_us = world.ask("SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint")
    world.time.sleep_ms(60_000)
    world.poll()
    (delta,) = world.deltas()

    assert delta.op is Op.INSERT
    assert 0 <= now_us - ((delta.hlc >> 16) * 1000 + (delta.hlc & 0xFFFF)) < 5_000_000


@pytest.mark.law("N4", "N13")
def test_table_that_cannot_be_captured_does_not_stop_other_tables(world: CaptureWorld) -> None:
    table = world.tables["a"]
    world.run(f"ALTER TABLE {table} DROP CONSTRAINT a_pkey")
    insert(world, 1, name="b")
    insert(world, 2)
    checked = checked_by(world.connector())
    assert isinstance(checked, Err)
    assert "has no primary key" in checked.error.message

    assert world.poll() == "done"
    assert world.state.fault is not None
    assert (world.state.fault.table, values(world, "b")) == (table, {"1": "x"})
    # It was not published: the application can still change it.
    world.run(f"UPDATE {table} SET v = 'y'", f"ALTER TABLE {table} ADD PRIMARY KEY (id)")
    assert world.poll() == "done"
    assert values(world) == {"2": "y"}
    assert world.state.fault is None


@pytest.mark.law("N13")
def test_rows_with_a_bytea_key_are_not_taken_for_deleted(world: CaptureWorld) -> None:
    table = world.tables["a"]
    world.run(
        f"ALTER TABLE {table} DROP CONSTRAINT a_pkey",
        f"ALTER TABLE {table} ADD k bytea PRIMARY KEY",
        f"INSERT INTO {table} (id, k) VALUES (1, '\\x01'), (2, '\\x00ff'), (3, '\\x5c78')",
    )
    assert world.poll() == "done"
    before = world.rows("a")
    assert before.keys() == {"AQ==", "AP8=", "XHg="}
    world.ask(f"SELECT pg_drop_replication_slot('{world.slot.name}')")
    world.run(f"DELETE FROM {table} WHERE id = 2")
    assert world.poll() == "done"  # all is read again, and deletions are found by the key

    assert world.rows("a").keys() == {"AQ==", "XHg="}


def test_check_of_a_table_without_replica_identity_says_what_to_run(world: CaptureWorld) -> None:
    world.run(f"ALTER TABLE {world.tables['a']} REPLICA IDENTITY NOTHING")
    checked = checked_by(world.connector())

    assert isinstance(checked, Err)
    assert "REPLICA IDENTITY DEFAULT" in checked.error.message


def test_user_without_privileges_is_shown_what_to_run(world: CaptureWorld) -> None:
    role = f"reader_{world.schema}"
    world.run(
        f"CREATE ROLE {role} LOGIN PASSWORD 'p'",
        f"GRANT USAGE ON SCHEMA {world.schema} TO {role}",
        f"GRANT SELECT ON ALL TABLES IN SCHEMA {world.schema} TO {role}",
    )
    insert(world, 1)
    world.configure(user=role, password="p")
    messages = []
    for repair in (
        f"ALTER ROLE {role} REPLICATION",
        f"CREATE PUBLICATION {world.slot.publication} FOR TABLE {world.tables['a']}",
        f"ALTER PUBLICATION {world.slot.publication} ADD TABLE {world.tables['b']}",
    ):
        checked = checked_by(world.connector())
        assert isinstance(checked, Err)
        assert isinstance(checked.error, AdapterRefused)
        messages.append(checked.error.message)
        world.run(repair)

    assert "ALTER ROLE … REPLICATION" in messages[0]
    assert f'CREATE PUBLICATION "{world.slot.publication}" FOR TABLE' in messages[1]
    assert "ALTER PUBLICATION" in messages[2]
    assert isinstance(checked_by(world.connector()), Ok)
    assert world.poll() == "done"
    assert values(world) == {"1": "x"}
    publication = world.slot.publication
    assert forget(world.settings, world.storage(), None, LOOPBACK) == ""
    assert world.ask(f"SELECT count(*) FROM pg_publication WHERE pubname = '{publication}'") == 1
    world.run(f"DROP PUBLICATION {publication}", f"DROP OWNED BY {role}", f"DROP ROLE {role}")


def test_foreign_slot_and_incomplete_publication_are_reported(world: CaptureWorld) -> None:
    slot, publication = world.slot.name, world.slot.publication
    world.ask(f"SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput')::text")
    world.poll()
    assert world.state.fault is not None
    assert f"there is a replication slot {slot} already" in world.state.fault.message
    world.ask(f"SELECT pg_drop_replication_slot('{slot}')")
    world.run(f"CREATE PUBLICATION theirs_{slot} FOR TABLE {world.tables['a']} "
              "WITH (publish = 'insert')")  # fmt: skip
    world.configure(publication=f"theirs_{slot}")
    checked = checked_by(world.connector())
    assert isinstance(checked, Err)
    assert "SET (publish = 'insert, update, delete, truncate')" in checked.error.message
    world.run(f"DROP PUBLICATION theirs_{slot}", f"DROP PUBLICATION IF EXISTS {publication}")


def test_wal_level_other_than_logical_is_reported(world: CaptureWorld) -> None:
    row = ("replica", "0/1", 0, False, None, "", 0, True, False)
    cursor = SimpleNamespace(execute=lambda *_: None, fetchone=lambda: row)

    with pytest.raises(AdapterRefused, match="wal_level is replica"):
        world.slot.look(cursor)


def test_unreachable_source_at_removal_is_reported_with_the_slot_to_drop(
    world: CaptureWorld,
) -> None:
    world.poll()
    gone = PostgresSettings.model_validate(
        world.settings.model_dump(by_alias=True) | {"port": 1, "password": "p"}
    )
    storage = world.storage()
    remains = forget(gone, storage, None, LOOPBACK)

    assert f"pg_drop_replication_slot('{world.slot.name}')" in remains
    assert isinstance(
        checked_by(CaptureConnector(PostgresSource(gone, LOOPBACK), gone, storage)), Err
    )
    remains = forget(world.settings, storage, world.settings, LOOPBACK)
    assert remains == "", "it goes on with the same"
    assert world.ask(
        f"SELECT count(*) FROM pg_replication_slots WHERE slot_name = '{world.slot.name}'"
    ) == 1  # fmt: skip


def test_a_computed_column_is_left_out_and_lsns_are_numbers(world: CaptureWorld) -> None:
    world.run(
        f"ALTER TABLE {world.tables['b']} ADD COLUMN d int GENERATED ALWAYS AS (id * 2) STORED"
    )
    insert(world, 1, name="b")
    world.poll()

    assert world.rows("b") == {"1": {"id": 1, "v": "x"}}
    assert lsn_text(lsn_of("1A/B00C")) == "1A/B00C"


def test_connector_lifecycle_from_registration_to_removal(world: CaptureWorld) -> None:
    by_hand = PollingByHand(world.pusher.push, world.time.wall_clock, rows=world.buffer)
    settings = world.settings.model_dump(by_alias=True, exclude_none=True, mode="json")
    body = {
        "type": "postgres",
        "name": "shop",
        "configuration": settings | {"password": "lakesync"},
    }
    message = by_hand.admin.register(GATEWAY, read_connector(body))
    assert "can be captured by the slot lakesync_shop_" in message
    insert(world, 1)
    step = by_hand.polls.poll(GATEWAY, "shop", 0, lambda: True)
    world.time.sleep_ms(60_000)
    insert(world, 2)
    step = by_hand.polls.poll(GATEWAY, "shop", 0, lambda: True)

    shown = by_hand.admin.one(GATEWAY, "shop")
    assert shown["source"][KEPT_BYTES] == step.kept_bytes > 0
    assert values(world) == {"1": "x", "2": "x"}
    slots = (
        f"SELECT count(*) FROM pg_replication_slots WHERE slot_name = '{shown['source']['slot']}'"
    )
    assert world.ask(slots) == 1
    world.run(f"DELETE FROM {world.tables['a']} WHERE id = 1")
    by_hand.admin.reset(GATEWAY, "shop")
    assert world.ask(slots) == 0
    world.time.sleep_ms(60_000)
    by_hand.polls.poll(GATEWAY, "shop", 0, lambda: True)
    assert values(world) == {"2": "x"}
    polled = {key: value for key, value in settings.items() if key not in {"changes", "password"}}
    by_hand.admin.configure(GATEWAY, "shop", polled)
    assert world.ask(slots) == 0
    world.time.sleep_ms(60_000)
    assert by_hand.polls.poll(GATEWAY, "shop", 0, lambda: True).status == "done"
    assert "lastError" not in by_hand.admin.one(GATEWAY, "shop")
    assert by_hand.admin.remove(GATEWAY, "shop") == ""


def test_settings_that_contradict_are_refused() -> None:
    body = {"host": "h", "database": "d", "user": "u", "password": "p"}
    by_time = [{"name": "t", "cursorColumn": "c"}]
    for more in (
        {"changes": True, "tables": by_time},
        {"tables": [{"name": "t"}], "slot": "s"},
        {"changes": True, "tables": [{"name": "t"}], "slot": "Not A Name"},
    ):
        with pytest.raises(ValidationError):
            PostgresSettings.model_validate(body | more)
    settings = PostgresSettings.model_validate(
        body | {"changes": True, "tables": [{"name": "s.t"}]}
    )

    assert list(settings.named().items()) == [(FEED, ""), ("s.t", "t")]


@pytest.mark.law("N12")
@pytest.mark.parametrize("rows", [3, 40])
def test_rows_whose_keys_shift_in_one_transaction_match_the_source(
    world: CaptureWorld, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lakesync.connectors.poll.PAGE_ROWS_MAX", 7)
    table = world.tables["a"]
    world.run(
        f"ALTER TABLE {table} DROP CONSTRAINT a_pkey",
        f"ALTER TABLE {table} ADD PRIMARY KEY (id) DEFERRABLE INITIALLY DEFERRED",
        f"ALTER TABLE {table} REPLICA IDENTITY FULL",
        f"INSERT INTO {table} (id, v) SELECT n, 'v' || n FROM generate_series(1, {rows}) n",
    )
    assert world.poll() == "done"
    world.run(f"UPDATE {table} SET id = id + 1")
    assert world.poll() == "done"
    assert values(world) == {str(n + 1): f"v{n}" for n in range(1, rows + 1)}

    world.run(
        f"UPDATE {table} SET id = CASE id WHEN 2 THEN 3 ELSE 2 END WHERE id IN (2, 3)",
        f"UPDATE {table} SET id = 100 WHERE id = 4",
        f"DELETE FROM {table} WHERE id = 2",
    )
    assert world.poll() == "done"
    assert values(world) == {str(row["id"]): row["v"] for row in world.expected("a").values()}
    assert values(world)["3"] == "v1"


@pytest.mark.law("N13")
@pytest.mark.parametrize("change", ["ATTACH", "DETACH", "DROP", "TRUNCATE"])
def test_partition_attach_detach_drop_and_truncate_are_followed(
    postgres: Database, change: str
) -> None:
    world = CaptureWorld(postgres, {"other": "id int PRIMARY KEY"})
    name, part = f"{world.schema}.whole", f"{world.schema}.second"
    world.tables["whole"] = name
    world.run(
        f"CREATE TABLE {name} (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)",
        f"CREATE TABLE {world.schema}.first PARTITION OF {name} FOR VALUES FROM (0) TO (10)",
        f"CREATE TABLE {part} (id int PRIMARY KEY, v text)",
        f"INSERT INTO {part} VALUES (11, 'b')",
        f"INSERT INTO {name} VALUES (1, 'a')",
    )
    attached = f"ALTER TABLE {name} ATTACH PARTITION {part} FOR VALUES FROM (10) TO (20)"
    if change != "ATTACH":
        world.run(attached)
    world.configure(only=("whole",))
    assert world.poll() == "done"
    whole, alone = {"1": "a", "11": "b"}, {"1": "a"}
    assert values(world, "whole") == (alone if change == "ATTACH" else whole)
    world.run(
        {
            "ATTACH": attached,
            "DETACH": f"ALTER TABLE {name} DETACH PARTITION {part}",
            "DROP": f"DROP TABLE {part}",
            "TRUNCATE": f"TRUNCATE {part}",
        }[change]
    )
    assert world.poll() == "done"
    assert world.poll() == "done"
    assert values(world, "whole") == (whole if change == "ATTACH" else alone)
    world.close()


@pytest.mark.law("N13")
@pytest.mark.parametrize(
    ("old", "new", "before", "after"),
    [
        ("int", "bigint USING n * 10", 7, 70),
        ("text", "varchar(9) USING n || '!'", "7", "7!"),
        ("timestamp", "timestamptz USING (n + interval '1 day') AT TIME ZONE 'UTC'",
         "2026-05-17T00:00:00", "2026-05-18T00:00:00Z"),
    ],
)  # fmt: skip
def test_column_type_change_triggers_a_re_read_even_if_the_lakesync_type_is_the_same(
    world: CaptureWorld, old: str, new: str, before: object, after: object
) -> None:
    table = world.tables["a"]
    value = "'2026-05-17'" if old == "timestamp" else "'7'"
    world.run(
        f"ALTER TABLE {table} ADD n {old}", f"INSERT INTO {table} (id, n) VALUES (1, {value})"
    )
    assert world.poll() == "done"
    assert world.rows("a")["1"]["n"] == before
    world.run(f"ALTER TABLE {table} ALTER n TYPE {new}")
    assert world.poll() == "done"
    assert world.poll() == "done"

    assert world.rows("a")["1"]["n"] == after
