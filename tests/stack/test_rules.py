"""Sync rules on the deployed stack: clients, ours and others, hold exactly what they may see."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from lakesync.client import Client, HttpTransport
from lakesync.core.delta import Op, make_delta
from lakesync.core.messages import Push
from lakesync.wire import proto
from lakesync.wire.proto import Tag
from lakesync.wire.records import decode_records
from tests.stack.test_sockets import next_frame, opened
from tests.support.deployed import Tenant
from tests.support.node import run_node

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from lakesync.core.messages import Pull, PullPage, PushReceipt
    from tools.local_stack.stack import Stack

MINE = {"column": "team", "op": "in", "value": "jwt:teams"}
RULES = {
    "version": 1,
    "buckets": [{"name": "mine", "tables": ["todos"], "filters": [MINE], "write": [MINE]}],
}
SCHEMA: dict[str, Any] = {
    "table": "todos",
    "columns": [{"name": n, "type": "string"} for n in ("team", "title")],
}

OMITTED = {
    "version": 1,
    "buckets": [],
    "omit": [
        {
            "tables": ["todos"],
            "columns": ["title"],
            "except": [{"claim": "dept", "op": "eq", "value": "hr"}],
        }
    ],
}


class Holder:
    """A client's way to the gateway, with a token whose claims may be replaced."""

    def __init__(self, tenant: Tenant, client_id: str, **claims: Any) -> None:
        self._tenant, self._client_id = tenant, client_id
        self._transport: HttpTransport | None = None
        self.carry(**claims)

    def carry(self, **claims: Any) -> None:
        """Carry another token from now on."""
        self.close()
        token = self._tenant.token(self._client_id, **claims)
        self._transport = HttpTransport(self._tenant.stack.http, self._tenant.gateway, token=token)

    def push(self, push: Push) -> PushReceipt:
        assert self._transport is not None
        return self._transport.push(push)

    def pull(self, pull: Pull) -> PullPage:
        assert self._transport is not None
        return self._transport.pull(pull)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


def administer(tenant: Tenant, path: str, body: dict[str, Any]) -> None:
    answer = tenant.call(
        "POST", f"/admin/{path}/{tenant.gateway}", token=tenant.token(role="admin"), json=body
    )
    assert answer.status_code == 200, answer.text


@pytest.fixture
def governed(tenant: Tenant) -> Tenant:
    administer(tenant, "schema", SCHEMA)
    administer(tenant, "sync-rules", RULES)
    return tenant


class Team:
    """Clients of one tenant, on files."""

    def __init__(self, tenant: Tenant, folder: Path) -> None:
        self._tenant, self._folder = tenant, folder
        self.members: list[tuple[Client, Holder]] = []

    def join(self, name: str, *teams: str) -> tuple[Client, Holder]:
        holder = Holder(self._tenant, name, teams=list(teams))
        client = Client(self._folder / f"{name}.db", client_id=name, transport=holder)
        self.members.append((client, holder))
        return client, holder

    def close(self) -> None:
        for client, holder in self.members:
            client.close()
            holder.close()


@pytest.fixture
def team(governed: Tenant, tmp_path: Path) -> Iterator[Team]:
    team = Team(governed, tmp_path)
    yield team
    team.close()


def titles(client: Client) -> dict[str, str]:
    rows = client.query('SELECT _row_id, title FROM "todos"').unwrap()
    return {row["_row_id"]: row["title"] for row in rows}


def sync(*clients: Client) -> None:
    for client in clients:
        client.sync().unwrap()


def test_visible_rows_follow_changes_of_rows_and_of_token_claims(team: Team) -> None:
    ann, anns = team.join("ann", "x")
    bob, _ = team.join("bob", "y")
    ann.insert("todos", "t1", {"team": "x", "title": "one"}).unwrap()
    ann.insert("todos", "t2", {"team": "x", "title": "two"}).unwrap()
    bob.insert("todos", "t3", {"team": "y", "title": "three"}).unwrap()
    sync(ann, bob, ann, bob)
    assert (titles(ann), titles(bob)) == ({"t1": "one", "t2": "two"}, {"t3": "three"})

    both, _ = team.join("carol", "x", "y")
    sync(both)
    assert set(titles(both)) == {"t1", "t2", "t3"}
    both.update("todos", "t2", {"team": "y"}).unwrap()
    sync(both, ann, bob)
    assert (set(titles(ann)), set(titles(bob))) == ({"t1"}, {"t2", "t3"})

    ann.update("todos", "t1", {"title": "edited offline"}).unwrap()
    anns.carry(teams=["y"])
    sync(bob)
    ann.sync()
    ann.pull().unwrap()
    assert set(titles(ann)) >= {"t2", "t3"}
    anns.carry(teams=["x"])
    sync(ann, ann)
    assert set(titles(ann)) == {"t1"}


def test_write_outside_the_sync_rules_is_refused_alone(team: Team) -> None:
    ann, _ = team.join("ann", "x")
    ann.insert("todos", "mine", {"team": "x", "title": "mine"}).unwrap()
    theirs = ann.insert("todos", "theirs", {"team": "y", "title": "theirs"}).unwrap()
    ann.sync()

    carol, _ = team.join("carol", "x", "y")
    sync(carol)

    assert [entry.delta.delta_id for entry in ann.quarantined().unwrap()] == [theirs.delta_id]
    assert set(titles(carol)) == {"mine"}
    ann.discard(theirs.delta_id).unwrap()
    assert set(titles(ann)) == {"mine"}


def test_page_names_its_scope_and_a_changed_scope_is_read_again(governed: Tenant) -> None:
    tenant = governed
    rows = [("a", "x"), ("b", "y")]
    deltas = [
        make_delta(
            Op.INSERT, "todos", row, {"team": name, "title": row}, client_id="w",
            hlc=tenant.make(Op.INSERT, row).hlc,
        )
        for row, name in rows
    ]  # fmt: skip
    body = {
        "clientId": "w",
        "ownCursor": True,
        "deltas": [
            {
                "op": "INSERT", "table": d.table, "rowId": d.row_id, "clientId": "w",
                "hlc": str(d.hlc),
                "columns": [
                    {"column": name, "value": value.decode().strip('"')}
                    for name, value in d.columns
                ],
            }
            for d in deltas
        ],
    }  # fmt: skip
    pushed = tenant.call(
        "POST", f"/sync/{tenant.gateway}/push", token=tenant.token("w", teams=["x", "y"]), json=body
    )
    assert pushed.json()["accepted"] == 2

    def page(since: str, *teams: str, **query: str) -> dict[str, Any]:
        answer = tenant.call(
            "GET", f"/sync/{tenant.gateway}/pull", token=tenant.token("r", teams=list(teams)),
            params={"since": since, "removes": "true"} | query,
        )  # fmt: skip
        assert answer.status_code == 200, answer.text
        answered: dict[str, Any] = answer.json()
        return answered

    first = page("0", "x")
    assert [delta["rowId"] for delta in first["deltas"]] == ["a"]
    same = page(first["serverHlc"], "x", scope=first["scope"])
    assert (same["deltas"], same["scope"]) == ([], first["scope"])
    other = page(first["serverHlc"], "y", scope=first["scope"])
    assert other["scope"] != first["scope"]
    assert "a" not in {delta["rowId"] for delta in other["deltas"] if delta["op"] != "REMOVE"}


@pytest.mark.law("K33", "V12")
def test_omitted_column_is_in_no_page_broadcast_or_client_file(
    tenant: Tenant, socket_url: str, tmp_path: Path
) -> None:
    administer(tenant, "schema", SCHEMA)
    administer(tenant, "sync-rules", OMITTED)
    holder = Holder(tenant, "ann", dept="hr")

    def insert(row: str) -> None:
        values: dict[str, object] = {"team": "x", "title": f"secret {row}"}
        delta = tenant.make(Op.INSERT, row, values, client="ann")
        assert holder.push(Push("ann", ((0, delta),))).accepted == 1

    def broadcast(socket: Any, name: str) -> set[str]:
        """Insert rows until a connection is sent one; before, it may be told to pull."""
        for number in range(5):
            insert(f"{name}{number}")
            tag, body = next_frame(socket)
            page = proto.decode_page(body)
            if tag is Tag.BROADCAST and page.count:
                return columns_in(page)
        pytest.fail("there came no broadcast")

    with opened(socket_url, tenant, "eve", dept="hr") as socket:
        assert broadcast(socket, "e") == {"team", "title"}
    with opened(socket_url, tenant, "bob") as socket:
        assert broadcast(socket, "b") == {"team"}

    pull, schema = (f"/sync/{tenant.gateway}/{route}" for route in ("pull", "schema"))
    audiences: list[tuple[dict[str, Any], bool]] = [({"dept": "hr"}, True), ({}, False)]
    for claims, sees in audiences:
        name = "eve" if sees else "bob"
        page = tenant.call(
            "GET", pull, token=tenant.token(name, **claims), params={"clientId": name}
        )
        assert page.json()["deltas"]
        assert ("secret" in page.text) is sees
        answer = tenant.call("GET", schema, token=tenant.token(name, **claims))
        assert answer.status_code == 200, answer.text
        assert ("title" in answer.text) is sees

    with Client(tmp_path / "ann.db", client_id="ann", transport=holder) as ann:
        sync(ann)
        assert ann.get("todos", "b0").unwrap() == {"team": "x", "title": "secret b0"}
        holder.carry()
        edit = ann.update("todos", "b0", {"title": "mine"}).unwrap()
        ann.sync()
        sync(ann)
        [refused] = ann.quarantined().unwrap()
        assert (refused.delta.delta_id, refused.code) == (edit.delta_id, "COLUMN_OMITTED")
        ann.discard(edit.delta_id).unwrap()
        assert ann.get("todos", "b0").unwrap() == {"team": "x"}
    holder.close()


def columns_in(page: PullPage) -> set[str]:
    deltas = [delta for run in page.records for delta in decode_records(run)]
    return {name for delta in deltas for name, _ in delta.columns}


def test_existing_clients_end_with_the_same_visible_rows(stack: Stack) -> None:
    tenant = Tenant(stack)
    answered = run_node(
        "../compat/two_clients.mjs",
        {"url": stack.http, "gateway": tenant.gateway, "secret": stack.jwt_secret},
    )

    assert answered["a"] == answered["b"] == answered["c"]
    assert len(answered["a"]) == 4
