"""Flows whose ends are a PostgreSQL, Iceberg and a MariaDB, small and large, as deployed."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

from lakesync.adapters.connect import database_adapter
from lakesync.adapters.database import Position
from lakesync.adapters.ledger_database import values_of
from lakesync.flows.routes import keeper
from tests.stack.test_flows import Flows
from tests.support.deployed import Glue, changes_reported, look_again
from tests.support.destinations import SqlDestination, mariadb_dialect, mariadb_url
from tests.support.sources import SqlSource
from tests.support.waiting import answered

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lakesync.analysis.connection import Aws
    from tests.support.deployed import Tenant
    from tools.local_stack.databases import Database
    from tools.local_stack.stack import Stack

ROWS_READ = 20_000
"""More rows than any table of these tests has."""


@pytest.fixture
def flows(tenant: Tenant, aws: Aws, lakesync: Callable[..., Any]) -> Flows:
    """Flows of a tenant that nobody else uses."""
    return Flows(tenant, aws, lakesync)


@pytest.fixture
def warehouse(mariadb: Database) -> Iterator[SqlDestination]:
    destination = SqlDestination(mariadb_dialect(mariadb))
    yield destination
    destination.close()


def secret_of(flows: Flows, url: str) -> str:
    """Store a database's URL; returns the secret's name."""
    secret = f"end{uuid4().hex[:8]}"
    prefix = f"{flows.aws.output('DestinationSecretPrefix')}{flows.tenant.gateway}"
    flows.aws.client("secretsmanager").create_secret(Name=f"{prefix}/{secret}", SecretString=url)
    return secret


def mariadb_secret(flows: Flows, mariadb: Database) -> str:
    """Store the URL of the MariaDB."""
    return secret_of(flows, mariadb_url(mariadb))


def iceberg_url(flows: Flows, stack: Stack) -> str:
    """Return the URL of Iceberg tables of one's own beside the stack's lake."""
    return (
        f"iceberg://glue/{flows.aws.output('DatabasePrefix')}?region={stack.region}"
        f"&warehouse=s3://{flows.aws.output('LakeBucket')}/destinations/iceberg"
        f"&endpoint={stack.endpoint}"
    )


def rows_of(url: str, kept: str, table: str) -> dict[str, dict[str, Any]]:
    with closing(database_adapter(url, kept)) as database:
        rows = database.rows_after(table, "", ROWS_READ).unwrap().rows
    shown = {row_id: values_of(state) for row_id, state in rows.items()}
    return {row_id: dict(row) for row_id, row in shown.items() if row is not None}


def polled(source: SqlSource, postgres: Database, **table: Any) -> dict[str, Any]:
    settings = {
        "host": postgres.host, "port": postgres.port, "database": postgres.database,
        "user": postgres.user, "password": postgres.password, "tls": "off", "settleS": 0,
        "tables": [{"name": source.table, "as": source.table, **table}],
    }  # fmt: skip
    return {"connector": "postgres", "configuration": settings}


@pytest.mark.law("Y1", "Y3", "Y5", "P14")
def test_flows_copy_rows_from_postgres_to_iceberg_to_mariadb_and_follow_changes(
    flows: Flows,
    stack: Stack,
    postgres: Database,
    mariadb: Database,
    warehouse: SqlDestination,
    credentials: None,
) -> None:
    source = SqlSource(postgres, "postgres", by_time=False)
    url = iceberg_url(flows, stack)
    lake, table = secret_of(flows, url), source.table
    flows.declare({
        "name": "in", "source": polled(source, postgres), "schedule": {"everyMinutes": 1_440},
        "destination": {"database": "iceberg", "secret": lake},
        "map": {table: {"rename": {"value": "label"}, "drop": ["changed"]}},
    })  # fmt: skip
    kept = keeper(flows.tenant.gateway, "in")
    flows.declare({
        "name": "out", "source": {"database": "iceberg", "secret": lake, "gateway": kept},
        "tables": [table], "schedule": {"everyMinutes": 1_440},
        "destination": {"database": "mysql", "secret": mariadb_secret(flows, mariadb),
                        "deletes": "hard"},
    })  # fmt: skip

    def brought() -> dict[str, Any]:
        return rows_of(url, kept, table)

    source.put({str(n): f"v{n}" for n in range(1, 6)})
    flows.poll("in")
    flows.poll("out")
    assert brought() == {str(n): {"id": n, "label": f"v{n}"} for n in range(1, 6)}
    assert warehouse.rows(table, "label") == {str(n): (f"v{n}",) for n in range(1, 6)}

    source.put({"2": "changed"})
    source.delete("4")
    source.run(f"ALTER TABLE {table} ADD COLUMN size integer")
    source.run(f"UPDATE {table} SET size = 7 WHERE id = 5")  # noqa: S608 - ours
    look_again(flows.tenant, "in")
    flows.poll("in")
    assert changes_reported(flows.tenant) == [("in", "size", "is new: integer")]
    flows.poll("out")
    labels = {"1": "v1", "2": "changed", "3": "v3", "5": "v5"}
    sizes = {row_id: 7 if row_id == "5" else None for row_id in labels}
    assert {row_id: row["label"] for row_id, row in brought().items()} == labels
    assert {row_id: row.get("size") for row_id, row in brought().items()} == sizes
    there = {row_id: (labels[row_id], sizes[row_id]) for row_id in labels}
    assert warehouse.rows(table, "label", "size") == there
    with closing(database_adapter(url, kept)) as database:
        history = database.query_deltas_since(table, Position(), 100).unwrap().deltas
    assert len({placed.delta.delta_id for placed in history}) == len(history) > 0
    source.close()


@pytest.mark.law("Y5", "Y11")
@pytest.mark.parametrize(
    ("kind", "total", "page_rows"), [("mysql", 4_500, 1_000), ("iceberg", 13_000, 10_000)]
)
def test_flow_copies_a_large_table_by_a_job_run_and_follows_changes(
    flows: Flows,
    stack: Stack,
    postgres: Database,
    mariadb: Database,
    warehouse: SqlDestination,
    credentials: None,
    kind: str,
    total: int,
    page_rows: int,
) -> None:
    """A page, and then so much is left that it is a job's: more than `JobBounds`."""
    source = SqlSource(postgres, "postgres", by_time=True)
    source.run(
        f"INSERT INTO {source.table} SELECT n, 'v' || n, timestamptz '2026-01-01' + "  # noqa: S608 - ours
        f"(n / 70) * interval '1 s' FROM generate_series(1, {total}) n"
    )
    url = iceberg_url(flows, stack)
    there = mariadb_secret(flows, mariadb) if kind == "mysql" else secret_of(flows, url)
    flows.declare({
        "name": "large", "source": polled(source, postgres, cursorColumn="changed"),
        "destination": {"database": kind, "secret": there},
        "schedule": {"everyMinutes": 1_440},
    })  # fmt: skip
    assert flows.status("large")["rows"] == page_rows
    job = Glue(flows.aws, "FlowJobName")
    [run] = [one for one in job.runs() if one["Arguments"]["--gateway"] == flows.tenant.gateway]
    ended = job.ended(run["Id"])
    assert ended["JobRunState"] == "SUCCEEDED", ended.get("ErrorMessage")
    # What the job left goes on at once, in pages.
    shown = answered(lambda: flows.status("large"), lambda shown: shown["polls"] > 0)
    assert (shown["rows"], shown["deadLetters"]) == (total, 0), shown

    source.run(f"UPDATE {source.table} SET value = 'new', changed = now() WHERE id = 17")  # noqa: S608 - ours
    flows.poll("large")
    if kind == "mysql":
        rows = {row_id: value for row_id, (value,) in warehouse.rows(source.table, "value").items()}
    else:
        kept = rows_of(url, keeper(flows.tenant.gateway, "large"), source.table)
        rows = {row_id: row["value"] for row_id, row in kept.items()}
    assert rows == {str(n): f"v{n}" for n in range(1, total + 1)} | {"17": "new"}
    source.close()
