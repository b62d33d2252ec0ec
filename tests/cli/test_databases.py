"""`lakesync databases` between a real PostgreSQL and a real MariaDB."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from google.auth.credentials import AnonymousCredentials

from lakesync.adapters.connect import database_adapter
from lakesync.core.delta import Op, make_delta
from lakesync.testing.database_contract import batch, schema
from tests.support.bigquery import DATASET
from tests.support.command_lines import run
from tests.support.destinations import mariadb_url, new_table

if TYPE_CHECKING:
    from pathlib import Path

    from tools.local_stack.bigquery import BigQueryServer
    from tools.local_stack.databases import Database

GATEWAY = "clidatabases"


def url(database: Database) -> str:
    return (
        f"postgresql://{database.user}:{database.password}@{database.host}:{database.port}"
        f"/{database.database}"
    )


def filled(postgres: Database) -> str:
    """Make a table of five rows; return its name."""
    table = new_table() + "_cli"
    deltas = [make_delta(Op.INSERT, table, f"r{n}", {"n": n}, client_id="c", hlc=1)
              for n in range(5)]  # fmt: skip
    with database_adapter(url(postgres), GATEWAY) as source:
        wanted = schema(table, {"n": "number"})
        source.insert_deltas(batch(table, deltas, schema=wanted)).unwrap()
    return table


@pytest.fixture(autouse=True)
def place(empty_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty folder, and no gateway but the one that is named."""
    assert list(empty_folder.iterdir()) == []
    monkeypatch.setenv("LAKESYNC_GATEWAY", GATEWAY)


@pytest.mark.emulator
def test_tables_are_copied_and_compared(
    postgres: Database, mariadb: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OLD", url(postgres))
    monkeypatch.setenv("NEW", mariadb_url(mariadb))
    table = filled(postgres)
    words = ("--from-env", "OLD", "--to-env", "NEW", "--table", table)
    differ = run("databases", "compare", *words)
    assert differ.exit_code == 1
    assert "copy again" in differ.stderr
    copied = run("databases", "copy", *words, "--json")
    assert copied.exit_code == 0, copied.stderr
    copied_counts, compared = map(json.loads, copied.stdout.splitlines())
    assert (copied_counts["deltas"], compared["rows"], compared["equal"]) == (5, 5, True)
    assert "0 deltas copied" in run("databases", "copy", *words).stdout
    with database_adapter(mariadb_url(mariadb), GATEWAY) as target:
        assert target.latest_state(table, "r3").unwrap() == {"n": 3}
    unknown = run("databases", "copy", *words[:4], "--table", "nothere")
    assert unknown.exit_code == 1
    assert table in unknown.stderr


@pytest.mark.emulator
def test_tables_are_copied_to_bigquery(
    postgres: Database, bigquery: BigQueryServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("google.auth.default", lambda *_, **__: (AnonymousCredentials(), None))
    monkeypatch.setenv("OLD", url(postgres))
    monkeypatch.setenv("NEW", f"bigquery://{bigquery.project}/{DATASET}?location=US")
    table = filled(postgres)
    words = ("--from-env", "OLD", "--to-env", "NEW", "--table", table)
    copied = run("databases", "copy", *words, "--json")
    assert copied.exit_code == 0, copied.stderr
    copied_counts, compared = map(json.loads, copied.stdout.splitlines())
    assert (copied_counts["deltas"], compared["rows"], compared["equal"]) == (5, 5, True)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("", "set OLD"),
        ("oracle://u:secret@h/d", "postgresql://user"),
        ("mysql://u:secret@h:port/d", "postgresql://user"),
        ("mysql://u:secret@h/", "postgresql://user"),
        ("mysql://u:secret@h/d?tls=1", "verify, encrypt, off"),
        ("mysql://u:secret@h/d?ssl=1", "postgresql://user"),
        ("postgresql://u:secret@127.0.0.1:1/d", "PostgreSQL"),
        ("mysql://u:secret@127.0.0.1:1/d", "MySQL"),
        ("bigquery://project/", "bigquery://project/dataset"),
        ("bigquery://u:secret@project/d", "bigquery://project/dataset"),
        ("bigquery://project/d?key=secret", "bigquery://project/dataset"),
        ("bigquery://project/d/e", "bigquery://project/dataset"),
    ],
)
def test_an_invalid_database_url_is_reported_without_its_password(
    monkeypatch: pytest.MonkeyPatch, given: str, message: str
) -> None:
    monkeypatch.setenv("OLD", given)
    monkeypatch.setenv("NEW", given)
    result = run("databases", "compare", "--from-env", "OLD", "--to-env", "NEW")
    assert result.exit_code != 0
    assert message in result.stderr
    assert "secret" not in result.stderr + result.stdout
