"""A client and its tables' schemas: told when they change, and never needed to sync."""

from __future__ import annotations

import time
from datetime import date
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import jwt
import pytest

from lakesync.client import Client, HttpTransport
from lakesync.core.schema import Column, TableSchema
from lakesync.errors import Unreachable
from tests.support.gateways import Administrator, SeededChance, real_wall_clock
from tests.support.local_gateway import GATEWAY, SECRET, LocalGateway, serve_gateway

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from lakesync.core.messages import Pull, PullPage, Push, PushReceipt


class World:
    """A gateway over HTTP, its administrator, and clients with claims."""

    def __init__(self, gateway: LocalGateway, folder: Path) -> None:
        self.gateway = gateway
        self._folder = folder
        self._open: list[Any] = []
        self.admin = Administrator(
            gateway.buffer,
            wall_clock=real_wall_clock,
            sleep_ms=lambda _: None,
            chance=SeededChance(),
        )
        self.claims: dict[str, dict[str, object]] = {}

    def register(self, table: str, *columns: str) -> None:
        listed = [{"name": name, "type": "string"} for name in columns]
        self.admin.register_schema(GATEWAY, {"table": table, "columns": listed})

    def client(self, name: str, kind: type[HttpTransport] = HttpTransport, **claims: Any) -> Client:
        """Start a client, or start it again with other claims."""

        def token() -> str:
            own = {"sub": name, "gw": GATEWAY, "exp": int(time.time()) + 600, **claims}
            return jwt.encode(own, SECRET, algorithm="HS256")

        transport = kind(self.gateway.url, GATEWAY, token=token)
        client = Client(self._folder / f"{name}.db", client_id=name, transport=transport)
        self._open += [client, transport]
        return client

    def asked(self) -> int:
        """Count how often anybody asked for the schemas."""
        return sum(request.endswith("/schema") for request in self.gateway.requests)

    def close(self) -> None:
        for each in self._open:
            each.close()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with serve_gateway() as gateway:
        world = World(gateway, tmp_path)
        yield world
        world.close()


def names(schema: TableSchema | None) -> list[str]:
    return [column.name for column in schema.columns] if schema else []


@pytest.mark.law("S6")
def test_a_client_requests_schemas_only_when_they_have_changed(world: World) -> None:
    ann = world.client("ann")
    ann.sync().unwrap()
    assert (ann.schema("todos").unwrap(), world.asked()) == (None, 0)

    world.register("todos", "title")
    ann.sync().unwrap()
    assert ann.schema("todos").unwrap() == TableSchema("todos", (Column("title", "string"),))
    ann.insert("todos", "t1", {"title": "a"}).unwrap()
    ann.sync().unwrap()
    ann.sync().unwrap()
    assert world.asked() == 1

    world.register("todos", "title", "note")
    ann.pull().unwrap()
    schema = ann.schema("todos").unwrap()
    assert schema is not None
    assert (schema.version, names(schema)) == (2, ["title", "note"])
    assert world.asked() == 2


@pytest.mark.law("K35")
def test_a_table_can_be_declared_by_the_gateways_schema(world: World) -> None:
    columns = [
        {"name": "due", "type": "date"},
        {"name": "price", "type": "decimal(9,2)"},
        {"name": "tags", "type": "json"},
    ]
    world.admin.register_schema(GATEWAY, {"table": "todos", "columns": columns})
    ann = world.client("ann")
    ann.sync().unwrap()
    row = {"due": date(2026, 5, 17), "price": Decimal("1.50"), "tags": ["a"]}

    schema = ann.schema("todos").unwrap()
    assert schema is not None
    ann.declare("todos", schema, indexes=[["due"]]).unwrap()

    ann.insert("todos", "t1", row).unwrap()
    assert ann.query("SELECT due, price, tags FROM todos").unwrap() == [row]
    refused: Any = ann.insert("todos", "t2", {"due": "soon"})
    assert refused.error.code == "SCHEMA_ERROR"
    ann.sync().unwrap()
    assert ann.pending().unwrap() == []


@pytest.mark.law("S6")
def test_schemas_are_stored_in_the_clients_file(world: World) -> None:
    world.register("todos", "title")
    ann = world.client("ann")
    ann.sync().unwrap()
    ann.close()

    again = world.client("ann")

    assert names(again.schema("todos").unwrap()) == ["title"]
    again.sync().unwrap()
    assert world.asked() == 1


@pytest.mark.law("S6")
def test_sync_rules_and_claims_decide_which_schemas_a_client_receives(world: World) -> None:
    world.register("todos", "team")
    world.register("notes", "team")
    ann = world.client("ann")
    ann.sync().unwrap()
    assert names(ann.schema("todos").unwrap()) == names(ann.schema("notes").unwrap()) == ["team"]

    mine = {"column": "team", "op": "eq", "value": "jwt:team"}
    bucket = {"name": "b", "tables": ["todos"], "filters": [mine]}
    world.admin.save_rules(GATEWAY, {"buckets": [bucket]})
    ann.sync().unwrap()
    assert [ann.schema(table).unwrap() for table in ("todos", "notes")] == [None, None]
    ann.close()

    moved = world.client("ann", team="red")
    moved.sync().unwrap()
    assert names(moved.schema("todos").unwrap()) == ["team"]
    assert moved.schema("notes").unwrap() is None


class Deaf(HttpTransport):
    """A transport whose requests for schemas are lost, for a while."""

    hears = False

    def schemas(self) -> Any:
        if not self.hears:
            raise Unreachable("the request was lost")
        return super().schemas()


@pytest.mark.law("S6")
def test_a_failed_schema_request_does_not_fail_the_pull_and_is_repeated_by_the_next(
    world: World,
) -> None:
    world.register("todos", "title")
    bob = world.client("bob")
    bob.insert("todos", "t1", {"title": "a"}).unwrap()
    bob.sync().unwrap()
    ann = world.client("ann", Deaf)

    assert ann.pull().unwrap().deltas == 1
    assert (ann.schema("todos").unwrap(), ann.get("todos", "t1").unwrap()) == (None, {"title": "a"})
    Deaf.hears = True
    try:
        ann.pull().unwrap()
    finally:
        Deaf.hears = False
    assert names(ann.schema("todos").unwrap()) == ["title"]


class Older:
    """A transport that cannot tell schemas, as any that was written before there were any."""

    def __init__(self, inner: HttpTransport) -> None:
        self._inner = inner

    def push(self, push: Push) -> PushReceipt:
        return self._inner.push(push)

    def pull(self, pull: Pull) -> PullPage:
        return self._inner.pull(pull)


@pytest.mark.law("S6")
def test_a_client_with_outdated_schemas_keeps_and_syncs_unknown_columns(
    world: World, tmp_path: Path
) -> None:
    world.register("todos", "title")
    inner = HttpTransport(world.gateway.url, GATEWAY, token=world.gateway.token("old"))
    new = world.client("new")
    with inner, Client(tmp_path / "old.db", client_id="old", transport=Older(inner)) as old:
        old.insert("todos", "t1", {"title": "a"}).unwrap()
        old.sync().unwrap()
        world.register("todos", "title", "note", "extra")
        new.sync().unwrap()
        new.update("todos", "t1", {"note": "n", "extra": "e"}).unwrap()
        new.sync().unwrap()

        old.sync().unwrap()
        assert old.schema("todos").unwrap() is None
        assert old.query("SELECT title, note, extra FROM todos").unwrap() == [
            {"title": "a", "note": "n", "extra": "e"}
        ]
        old.update("todos", "t1", {"title": "b", "note": "m"}).unwrap()
        summary = old.sync().unwrap()
        new.sync().unwrap()

    assert summary.pushed.quarantined == 0
    assert new.get("todos", "t1").unwrap() == {"title": "b", "note": "m", "extra": "e"}
    assert world.asked() == 1
