"""Destinations on the deployed stack: a gateway's rows arrive in PostgreSQL, whatever happens."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, LiteralString
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql

from lakesync.core.delta import Op
from tests.support.deployed import Tenant
from tests.support.killed_flush import bucket
from tests.support.waiting import answered

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lakesync.analysis.connection import Aws
    from tools.local_stack.databases import Database
    from tools.local_stack.stack import Stack

SCHEMA = {"table": "todos", "columns": [{"name": "n", "type": "integer"}]}


def until(read: Callable[[], Any], wanted: Any, every_s: float = 0.3) -> None:
    answered(read, lambda answer: answer == wanted, every_s=every_s)


@dataclass
class Warehouse:
    """A database of its own, and the destination that it is."""

    server: Database
    tenant: Tenant
    aws: Aws
    name: str
    database: str

    @property
    def path(self) -> str:
        return f"/admin/destinations/{self.tenant.gateway}"

    def run(self, statement: sql.Composed | LiteralString, *, at_server: bool = False) -> list[Any]:
        """Run a statement as the one who owns the database."""
        database = self.server.database if at_server else self.database
        with psycopg.connect(
            host=self.server.host, port=self.server.port, dbname=database,
            user=self.server.user, password=self.server.password, autocommit=True,
        ) as connection:  # fmt: skip
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []

    def make(self) -> None:
        """Make the database, and the secret that holds its URL."""
        self.run(
            sql.SQL("CREATE DATABASE {}").format(sql.Identifier(self.database)), at_server=True
        )
        server = self.server
        url = (
            f"postgresql://{server.user}:{server.password}@{server.host}:{server.port}"
            f"/{self.database}"
        )
        self.aws.client("secretsmanager").create_secret(
            Name=f"{self.aws.output('DestinationSecretPrefix')}{self.tenant.gateway}/{self.name}",
            SecretString=url,
        )

    def drop(self) -> None:
        self.be_away(is_away=False)
        self.aws.client("secretsmanager").delete_secret(
            SecretId=f"{self.aws.output('DestinationSecretPrefix')}{self.tenant.gateway}/{self.name}",
            ForceDeleteWithoutRecovery=True,
        )
        drop = sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(self.database))
        self.run(drop, at_server=True)

    def be_away(self, *, is_away: bool) -> None:
        """Let nobody connect, and end who is; or let them again."""
        alter = sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS {}").format(
            sql.Identifier(self.database), sql.Literal(not is_away)
        )
        self.run(alter, at_server=True)
        if is_away:
            end = sql.SQL(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = {}"
            ).format(sql.Literal(self.database))
            self.run(end, at_server=True)

    def ask(self, method: str, path: str = "", body: object = None) -> dict[str, Any]:
        answer = self.tenant.call(
            method, self.path + path, token=self.tenant.token("ops", role="admin"), json=body
        )
        assert answer.status_code == 200, answer.text
        answered: dict[str, Any] = answer.json()
        return answered

    def add(self, **more: object) -> None:
        declared = {"kind": "postgres", "secret": self.name, "tables": ["todos"]} | more
        self.ask("POST", f"/{self.name}", declared)

    def act(self, action: str) -> None:
        self.ask("POST", f"/{self.name}/{action}", {})

    def report(self) -> dict[str, Any]:
        listed = self.ask("GET")["destinations"]
        return next(each for each in listed if each["name"] == self.name)

    def rows(self) -> dict[str, int]:
        """Return its rows; none before there is a table."""
        try:
            return dict(self.run("SELECT row_id, n FROM todos"))
        except psycopg.errors.UndefinedTable:
            return {}


@pytest.fixture
def tenant(stack: Stack) -> Tenant:
    """A tenant whose table has a schema."""
    tenant = Tenant(stack)
    done = tenant.call(
        "POST", f"/admin/schema/{tenant.gateway}", token=tenant.token("ops", role="admin"),
        json=SCHEMA,
    )  # fmt: skip
    assert done.status_code == 200, done.text
    return tenant


@pytest.fixture
def warehouses(postgres: Database, tenant: Tenant, aws: Aws) -> Iterator[tuple[Warehouse, ...]]:
    made = tuple(
        Warehouse(postgres, tenant, aws, name, f"{name}_{uuid4().hex[:8]}")
        for name in ("first", "second")
    )
    for each in made:
        each.make()
    yield made
    for each in made:
        each.drop()


def push(tenant: Tenant, rows: dict[str, int], op: Op = Op.INSERT) -> None:
    tenant.push([tenant.make(op, row_id, {"n": n}) for row_id, n in rows.items()])
    tenant.flush()


@pytest.mark.law("D9", "D11")
@pytest.mark.usefixtures("lake_left_alone")
def test_unreadable_claim_is_set_aside_and_applied_after_a_replay(
    tenant: Tenant, warehouses: tuple[Warehouse, Warehouse]
) -> None:
    first, _ = warehouses
    tenant.push([tenant.make(Op.INSERT, "before", {"n": 0})])
    first.add()
    until(first.rows, {"before": 0})
    first.act("pause")
    push(tenant, {"a": 1})
    until(lambda: first.report()["waiting"], 1)
    objects, place = bucket(tenant), f"{tenant.gateway}/first/"
    [key] = objects.list_objects(f"deliveries/{place}")
    claim = objects.get_object(key)
    objects.put_object(key, b"{}", "application/json")
    first.act("resume")

    until(lambda: len(objects.list_objects(f"deliveries-failed/{place}")), 1)
    [failed] = objects.list_objects(f"deliveries-failed/{place}")
    assert failed == f"deliveries-failed/{key.removeprefix('deliveries/')}"
    mended = json.loads(objects.get_object(failed)) | {"claim": claim.decode()}
    objects.put_object(failed, json.dumps(mended).encode(), "application/json")
    first.act("replay")
    until(first.rows, {"before": 0, "a": 1})
    assert objects.list_objects(f"deliveries-failed/{place}") == []


@pytest.mark.law("D7", "D13")
@pytest.mark.usefixtures("lake_left_alone")
def test_rows_arrive_in_an_s3_destination_and_are_pulled_from_it(
    tenant: Tenant, aws: Aws, stack: Stack
) -> None:
    url = (
        f"s3://{aws.output('LakeBucket')}/destinations/{tenant.gateway}?region={stack.region}"
        f"&endpoint={stack.endpoint}&style=path"
    )
    secret = f"{aws.output('DestinationSecretPrefix')}{tenant.gateway}/folder"
    aws.client("secretsmanager").create_secret(Name=secret, SecretString=url)
    admin, path = tenant.token("ops", role="admin"), f"/admin/destinations/{tenant.gateway}/folder"
    tenant.push([tenant.make(Op.INSERT, "before", {"n": 0})])
    added = tenant.call("POST", path, token=admin, json={"kind": "s3", "secret": "folder"})
    assert added.status_code == 200, added.text
    push(tenant, {"a": 1})

    def pulled() -> dict[str, Any]:
        answer = tenant.call(
            "GET", f"/sync/{tenant.gateway}/pull?source=folder", token=tenant.token("ann")
        )
        deltas = answer.json().get("deltas", [])
        return {each["rowId"]: each["columns"][0]["value"] for each in deltas}

    until(pulled, {"before": 0, "a": 1})
    aws.client("secretsmanager").delete_secret(SecretId=secret, ForceDeleteWithoutRecovery=True)


@pytest.mark.law("D7", "D8", "D9", "D11")
@pytest.mark.usefixtures("lake_left_alone")
def test_destinations_receive_wait_and_refuse_rows_independently(
    tenant: Tenant, warehouses: tuple[Warehouse, Warehouse]
) -> None:
    first, second = warehouses
    tenant.push([tenant.make(Op.INSERT, "before", {"n": 0})])
    first.add()
    mine = {"name": "few", "tables": ["todos"],
            "filters": [{"column": "n", "op": "lt", "value": 10}]}  # fmt: skip
    second.add(buckets=[mine])
    push(tenant, {"a": 1, "b": 20})
    until(first.rows, {"before": 0, "a": 1, "b": 20})
    until(second.rows, {"before": 0, "a": 1})

    # One is down: the other has everything, and the one catches up by itself.
    first.be_away(is_away=True)
    push(tenant, {"c": 3})
    until(second.rows, {"before": 0, "a": 1, "c": 3})
    until(lambda: first.report()["state"], "failing")
    assert "ADAPTER_" in first.report()["tablesDelivered"][0]["error"]
    assert first.server.password not in str(first.report())
    first.be_away(is_away=False)
    until(first.rows, {"before": 0, "a": 1, "b": 20, "c": 3})

    # One is paused: what comes waits, and nothing is lost.
    second.act("pause")
    push(tenant, {"a": 2}, Op.UPDATE)
    until(lambda: first.rows()["a"], 2)
    report = second.report()
    assert (report["state"], report["waiting"], second.rows()["a"]) == ("paused", 1, 1)
    second.act("resume")
    until(lambda: second.rows()["a"], 2)

    # A row that cannot fit is listed; its neighbours are there.
    first.run("ALTER TABLE todos ADD CONSTRAINT small CHECK (n < 100)")
    push(tenant, {"d": 4, "huge": 1_000})
    until(lambda: first.report()["deadLetters"], 1)
    assert first.rows()["d"] == 4
    assert "huge" not in first.rows()
    assert second.report()["deadLetters"] == 0
    first.run("ALTER TABLE todos DROP CONSTRAINT small")
    first.act("replay")
    until(lambda: first.report()["deadLetters"], 0)
    until(lambda: first.rows()["huge"], 1_000)

    # Removed: its table stays as it is, and the other follows on.
    first.ask("DELETE", "/first")
    push(tenant, {"e": 5})
    until(lambda: second.rows().get("e"), 5)
    assert "e" not in first.rows()
    left = tenant.call("POST", f"{first.path}/first/pause", token=tenant.token(role="admin"))
    assert left.status_code == 404
