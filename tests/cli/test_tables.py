"""`lakesync tables` against a real gateway: which shard each table is in."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from lakesync.log.declare import Declare, admitting
from tests.cli.test_declaring import gateway
from tests.support.builders import insert
from tests.support.command_lines import run
from tests.support.gateways import SeededChance
from tests.support.local_gateway import GATEWAY

if TYPE_CHECKING:
    from tests.support.local_gateway import LocalGateway

__all__ = ["gateway"]  # the fixture


@pytest.mark.usefixtures("gateway")
def test_placing_a_table_in_a_shard_is_saved_except_in_a_dry_run() -> None:
    assert "default shard" in run("tables", "list").stdout
    tried = run("tables", "place", "events", "hot", "--dry-run")
    assert "would be in shard hot" in tried.stdout
    assert "reads 2 units at most (1 before)" in tried.stdout
    assert "writes some 4.3 units (4.3 before)" in tried.stdout
    assert "writes two to four more" in tried.stdout
    assert json.loads(run("tables", "list", "--json").stdout)["tables"] == {}

    assert "events is in shard hot" in run("tables", "place", "events", "hot").stdout
    listed = json.loads(run("tables", "list", "--json").stdout)
    assert listed == {"tables": {"events": "hot"}, "shards": ["hot", "main"]}
    assert "hot" in run("tables", "list").stdout
    again = json.loads(run("tables", "place", "events", "main", "--json").stdout)
    assert (again["saved"], again["shards"]) == (True, ["hot", "main"])


@pytest.mark.parametrize(("table", "shard"), [("events", "No Shard"), ("no table", "hot")])
def test_invalid_table_and_shard_names_are_refused(
    gateway: LocalGateway, table: str, shard: str
) -> None:
    refused = run("tables", "place", table, shard)
    assert refused.exit_code == 1
    assert "name" in refused.stderr
    assert gateway.url


@pytest.mark.law("S7")
def test_a_table_without_rows_is_removed(gateway: LocalGateway) -> None:
    deltas = [insert(table="Scratch", Title=1)]
    declare = Declare(
        gateway.buffer, wall_clock=lambda: 0, sleep_ms=lambda _: None, chance=SeededChance()
    )
    declare(GATEWAY, lambda config: admitting(config, None, deltas))

    assert "may be removed" in run("tables", "remove", "Scratch", "--dry-run").stdout
    assert json.loads(run("tables", "remove", "Scratch", "--json").stdout)["removed"] is True
    gone = run("tables", "remove", "Scratch")
    assert (gone.exit_code, "no table Scratch" in gone.stderr) == (1, True)


@pytest.mark.law("S5")
@pytest.mark.usefixtures("gateway")
def test_saving_a_schema_reports_the_existing_spellings_that_it_adopted() -> None:
    pushed = run("push", "--table", "Notes", "--row", "n1", "--insert", "--set", "Title=a")
    assert pushed.exit_code == 0, pushed.stderr
    saved = run("schema", "put", "--table", "notes", "--column", "title:string")

    assert "Notes: schema version 1 is in force" in saved.stdout
    assert "notes as Notes, title as Title" in saved.stdout
