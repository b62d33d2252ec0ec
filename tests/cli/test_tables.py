"""`lakesync tables` against a real gateway: which shard each table is in."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.cli.test_declaring import gateway, run

if TYPE_CHECKING:
    from tests.support.local_gateway import LocalGateway

__all__ = ["gateway"]  # the fixture


@pytest.mark.usefixtures("gateway")
def test_a_table_is_placed_once_it_was_tried() -> None:
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
def test_what_is_no_name_is_refused(gateway: LocalGateway, table: str, shard: str) -> None:
    refused = run("tables", "place", table, shard)
    assert refused.exit_code == 1
    assert "name" in refused.stderr
    assert gateway.url
