"""Pulls from a source on the deployed stack: a database's rows by the rules, page by page."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql

from lakesync.core.delta import Op
from tests.stack.test_destinations import Warehouse, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import httpx

    from lakesync.analysis.connection import Aws
    from tests.support.deployed import Tenant
    from tools.local_stack.databases import Database

ROWS = 7
PAGE = 2
OWN = [{"column": "owner", "op": "eq", "value": "jwt:sub"}]
RULES = {
    "version": 1,
    "buckets": [
        {"name": "own", "tables": ["todos"], "filters": OWN},
        {"name": "shared", "tables": ["notes"], "filters": []},
    ],
}


@pytest.fixture
def warehouse(postgres: Database, tenant: Tenant, aws: Aws) -> Iterator[Warehouse]:
    """A database to which the tenant's rows are delivered, and the rules of who sees which."""
    ruled = tenant.call(
        "POST", f"/admin/sync-rules/{tenant.gateway}", token=tenant.token("ops", role="admin"),
        json=RULES,
    )  # fmt: skip
    assert ruled.status_code == 200, ruled.text
    made = Warehouse(postgres, tenant, aws, "warehouse", f"warehouse_{uuid4().hex[:8]}")
    made.make()
    made.add(tables=["todos", "notes"])
    yield made
    made.drop()


@dataclass
class Reader:
    """Who reads the source: what it has, and where it is."""

    tenant: Tenant
    name: str
    snapshot: str = ""
    rows: dict[str, dict[str, dict[str, Any]]] = field(default_factory=dict)
    read_again: list[str] = field(default_factory=list)

    def ask(self, source: str = "warehouse") -> httpx.Response:
        query = {"source": source, "limit": PAGE, "snapshot": self.snapshot}
        return self.tenant.call(
            "GET", f"/sync/{self.tenant.gateway}/pull", token=self.tenant.token(self.name),
            params={name: value for name, value in query.items() if value},
        )  # fmt: skip

    def read(self) -> list[int]:
        """Read pages to the end, from where it is; returns how many deltas each had."""
        counts: list[int] = []
        has_more = True
        while has_more:
            answer = self.ask()
            assert answer.status_code == 200, answer.text
            page = answer.json()
            for table in page.get("resync", {}).get("tables", ()):
                self.read_again.append(table)
                self.rows.pop(table, None)
            for delta in page["deltas"]:
                row = self.rows.setdefault(delta["table"], {}).setdefault(delta["rowId"], {})
                row |= {each["column"]: each["value"] for each in delta["columns"]}
            counts.append(len(page["deltas"]))
            self.snapshot, has_more = page["snapshot"], page["hasMore"]
        return counts

    def values(self) -> dict[str, dict[str, Any]]:
        return {
            table: {row_id: row["n"] for row_id, row in rows.items()}
            for table, rows in self.rows.items()
        }


def put(warehouse: Warehouse, owner: str, rows: dict[str, int], table: str = "todos") -> None:
    """Write rows of an owner, and wait until they are delivered."""
    tenant = warehouse.tenant
    tenant.push([
        tenant.make(Op.INSERT, row_id, {"owner": owner, "n": n}, table=table, client=owner)
        for row_id, n in rows.items()
    ])  # fmt: skip
    tenant.flush()
    query = sql.SQL("SELECT row_id, n FROM {}").format(sql.Identifier(table))

    def delivered() -> bool:
        try:
            return rows.items() <= dict(warehouse.run(query)).items()
        except psycopg.errors.UndefinedTable:
            return False

    until(delivered, wanted=True)


@pytest.mark.law("D13", "D14")
def test_pull_from_a_source_gives_visible_rows_and_then_only_changes(
    tenant: Tenant, warehouse: Warehouse, lakesync: Callable[..., Any]
) -> None:
    anns = {f"t{number}": number for number in range(ROWS)}
    notes = {"n1": 1, "n2": 2}
    put(warehouse, "ann", anns)
    put(warehouse, "bob", {"tb": 100})
    put(warehouse, "bob", notes, "notes")

    ann, bob = Reader(tenant, "ann"), Reader(tenant, "bob")
    counts = ann.read()
    assert (max(counts), sum(counts)) == (PAGE, ROWS + 2)
    assert ann.values() == {"todos": anns, "notes": notes}
    bob.read()
    assert bob.values() == {"todos": {"tb": 100}, "notes": notes}

    put(warehouse, "bob", {"n2": 22}, "notes")
    notes["n2"] = 22
    assert ann.read() == [1], "of a table that she sees whole, what changed alone"
    assert (ann.values()["notes"], ann.read_again) == (notes, [])

    put(warehouse, "ann", {"t3": 33})
    anns["t3"] = 33
    ann.read()
    assert (ann.values(), ann.read_again) == ({"todos": anns, "notes": notes}, ["todos"])
    assert ann.read() == [0]

    words = ("pull", "--rows", "--table", "todos", "--source", "warehouse", "--client", "bob")
    shown = lakesync(*words, "--gateway", tenant.gateway)
    assert shown == {"table": "todos", "_row_id": "tb", "owner": "bob", "n": 100}


@pytest.mark.law("D14")
def test_pull_from_an_unavailable_or_unknown_source_fails_without_revealing_it(
    tenant: Tenant, warehouse: Warehouse
) -> None:
    put(warehouse, "ann", {"t0": 0})
    reader = Reader(tenant, "ann")
    warehouse.be_away(is_away=True)
    away = reader.ask()
    assert (away.status_code, away.json()["code"]) == (503, "SOURCE_UNAVAILABLE"), away.text
    assert away.headers["retry-after"]
    assert warehouse.database not in away.text
    warehouse.be_away(is_away=False)
    reader.read()
    assert reader.values() == {"todos": {"t0": 0}}

    unknown = reader.ask("elsewhere")
    assert (unknown.status_code, unknown.json()["code"]) == (404, "NOT_FOUND"), unknown.text
    reader.snapshot = "AAAA"
    assert reader.ask().json()["code"] == "CURSOR_EXPIRED"
