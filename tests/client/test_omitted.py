"""A client from which columns are left out: they are not there, go when rules change, and come."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING, Any, NoReturn

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lakesync.core.delta import parse
from lakesync.errors import Unreachable
from lakesync.result import Err
from lakesync.wire.records import decode_row_state
from tests.client.support.gateways import GATEWAY
from tests.client.support.world import check_sound
from tests.client.test_sync_rules import World, sync

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from lakesync.client import Client

pytestmark = pytest.mark.law("K33")


NO_TITLE = {
    "tables": ["todos"],
    "columns": ["title"],
    "except": [{"claim": "role", "op": "eq", "value": "hr"}],
}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    yield world
    for client, _ in world.clients.values():
        client.close()


def put(world: World, *omit: dict[str, Any]) -> None:
    world.gateway._admin.save_rules(GATEWAY, {"buckets": [], "omit": list(omit)})


def of_hr(world: World, name: str) -> Client:
    client = world.client(name)
    world.clients[name][1].claims["role"] = "hr"
    return client


def everything(client: Client) -> bytes:
    """Return all that a client's file holds of rows: states, bases, cells."""
    connection = client._file.database._reader
    rows = connection.execute("SELECT state, base FROM _lakesync_rows").fetchall()
    cells = connection.execute("SELECT * FROM todos").fetchall()
    return repr((rows, cells)).encode()


def test_a_declared_column_that_rules_omit_is_null(world: World) -> None:
    put(world, NO_TITLE)
    ann, bob = world.client("ann"), of_hr(world, "bob")
    ann.declare("todos", {"owner": "string", "title": "string"}).unwrap()
    bob.insert("todos", "t1", {"owner": "bob", "title": "secret"}).unwrap()
    sync(bob, ann)

    rows = ann.query("SELECT * FROM todos").unwrap()
    assert rows == [{"_row_id": "t1", "owner": "bob", "title": None}]
    assert ann.get("todos", "t1").unwrap() == {"owner": "bob"}
    ann.insert("todos", "t2", {"owner": "ann"}).unwrap()
    sync(ann, bob)
    assert bob.get("todos", "t2").unwrap() == {"owner": "ann"}


def test_values_of_a_newly_omitted_column_are_removed_and_return_when_claims_allow(
    world: World,
) -> None:
    ann, bob = world.client("ann"), of_hr(world, "bob")
    lost: list[Any] = []
    ann.on_conflict(lost.append)
    bob.insert("todos", "t1", {"owner": "bob", "title": "secret"}).unwrap()
    ann.insert("todos", "t2", {"owner": "ann", "title": "my own"}).unwrap()
    sync(bob, ann)
    assert b"secret" in everything(ann)
    put(world, NO_TITLE)
    bob.update("todos", "t1", {"title": "secret still"}).unwrap()
    sync(bob, ann)

    assert world.titles("ann") == {"t1": None, "t2": None}
    assert b"secret" not in everything(ann)
    assert b"my own" not in everything(ann)
    assert lost == []
    assert world.titles("bob") == {"t1": "secret still"} | {"t2": "my own"}
    check_sound(ann)

    world.clients["ann"][1].claims["role"] = "hr"
    sync(ann)
    assert world.titles("ann") == {"t1": "secret still", "t2": "my own"}


def test_a_pending_edit_of_an_omitted_column_is_refused_and_discarding_it_removes_its_value(
    world: World,
) -> None:
    ann, bob = world.client("ann"), of_hr(world, "bob")
    bob.insert("todos", "t1", {"owner": "bob", "title": "secret"}).unwrap()
    sync(bob, ann)
    ann.update("todos", "t1", {"title": "by ann"}).unwrap()
    ann.update("todos", "t1", {"owner": "ann"}).unwrap()
    put(world, NO_TITLE)
    summary = ann.push().unwrap()
    ann.pull().unwrap()

    assert summary.accepted == 1
    (refused,) = ann.quarantined().unwrap()
    assert refused.error
    assert refused.error.code == "COLUMN_OMITTED"
    assert world.titles("ann") == {"t1": "by ann"}
    ann.discard(refused.delta.delta_id).unwrap()
    assert ann.get("todos", "t1").unwrap() == {"owner": "ann"}
    assert b"secret" not in everything(ann)


edits = st.lists(
    st.tuples(
        st.sampled_from(["ann", "bob"]),
        st.sampled_from(["write", "write", "delete", "sync", "sync", "rules", "role"]),
        st.sampled_from(["t1", "t2"]),
        st.dictionaries(
            st.sampled_from(["owner", "title"]), st.sampled_from(["x", "y"]), min_size=1
        ),
    ),
    max_size=16,
)


@settings(
    max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
@given(edits)
def test_clients_hold_exactly_the_columns_of_each_row_that_rules_do_not_omit(
    tmp_path_factory: pytest.TempPathFactory, happened: list[Any]
) -> None:
    world = World(tmp_path_factory.mktemp("omitted"))
    omitting = False
    clients = {"ann": world.client("ann"), "bob": of_hr(world, "bob")}
    for name, what, row_id, columns in happened:
        client, transport = clients[name], world.clients[name][1]
        if what == "write":
            client.update("todos", row_id, columns).unwrap()
        elif what == "delete":
            client.delete("todos", row_id).unwrap()
        elif what == "sync":
            sync(client)
        elif what == "rules":
            omitting = not omitting
            put(world, *[NO_TITLE] * omitting)
        else:
            transport.claims["role"] = "dev" if transport.claims.get("role") == "hr" else "hr"
    for _ in range(2):
        sync(*clients.values())
    stored = world.gateway.buffer.rows(GATEWAY, [("todos", "t1"), ("todos", "t2")])
    for name, client in clients.items():
        for refused in client.quarantined().unwrap():
            client.discard(refused.delta.delta_id).unwrap()
        omits = omitting and world.clients[name][1].claims.get("role") != "hr"
        for key, row in stored.items():
            state = decode_row_state(row.state)
            due = {column: parse(register[2]) for column, register in state.columns.items()
                   if not (omits and column == "title")}  # fmt: skip
            assert client.get(*key).unwrap() == (due or None)
        client.close()


def test_no_table_of_the_clients_file_contains_an_omitted_value(
    world: World, tmp_path: Path
) -> None:
    """Not the outbox, not the echoes that are pending: read with SQLite alone."""
    ann, bob = world.client("ann"), of_hr(world, "bob")
    bob.insert("todos", "t1", {"owner": "bob", "title": "s3cr3t"}).unwrap()
    sync(bob, ann)
    put(world, NO_TITLE)
    sync(ann)
    ann.close()
    with sqlite3.connect(tmp_path / "ann.db") as file:
        dump = "\n".join(
            repr(file.execute(f'SELECT * FROM "{name}"').fetchall())  # noqa: S608 - its own names
            for (name,) in file.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        )
    assert "s3cr3t" not in dump


@pytest.mark.law("K33", "K6")
def test_omitted_column_of_an_accepted_edit_goes_with_the_first_page(world: World) -> None:
    client = world.client("new")
    client.insert("todos", "r1", {"title": "Buy milk", "owner": "new"}).unwrap()
    client.push().unwrap()
    put(world, NO_TITLE)

    sync(client)

    assert client.get("todos", "r1").unwrap() == {"owner": "new"}
    assert b"Buy milk" not in everything(client)


@pytest.mark.law("K33", "K3")
def test_omitted_column_stays_away_when_a_lost_receipt_is_made_up_for(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = world.client("new")
    sync(client)
    client.insert("todos", "r1", {"title": "Buy milk", "owner": "new"}).unwrap()
    transport = world.clients["new"][1]
    with monkeypatch.context() as lossy:
        lossy.setattr(transport, "push", lambda push: lost(type(transport).push(transport, push)))
        assert isinstance(client.push(), Err)
    put(world, NO_TITLE)
    client.pull().unwrap()
    assert len(client.pending().unwrap()) == 1

    sync(client)

    assert client.pending().unwrap() == []
    assert client.get("todos", "r1").unwrap() == {"owner": "new"}
    assert b"Buy milk" not in everything(client)


def lost(_: object) -> NoReturn:
    raise Unreachable("the answer was lost")
