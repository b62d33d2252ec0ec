"""`lakesync flows` against a real gateway: from ``flows.yaml`` to its removal."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.cli.test_declaring import fields_of, gateway, lines, run
from tests.support.gateways import pulled
from tests.support.local_gateway import GATEWAY
from tests.support.sources import use_memory_source

if TYPE_CHECKING:
    from tests.support.local_gateway import LocalGateway
    from tests.support.sources import MemorySource

__all__ = ["gateway"]  # the fixture

FLOWS = """
flows:
  - name: flights-out
    source: gateway
    tables: [flights]
    filter:
      - {name: ours, tables: [flights], filters: [{column: carrier, op: in, value: [UA, AA]}]}
    map:
      flights: {drop: [carrier], constant: {origin: lakesync}}
    destination: {database: postgres, secret: warehouse}
  - name: items-in
    source: {connector: memory, configuration: {token: hush}}
    filter:
      - {name: low, tables: [things], filters: [{column: value, op: lt, value: 5}]}
    destination: gateway
    schedule: {everyMinutes: 5}
  - name: across
    source: {database: mysql, secret: shop, gateway: other}
    tables: [orders]
    destination: {database: postgres, secret: reports}
    continuous: true
"""


@pytest.fixture
def source(gateway: LocalGateway, monkeypatch: pytest.MonkeyPatch) -> MemorySource:
    """What connectors of the type ``memory`` read."""
    Path("flows.yaml").write_text(FLOWS)
    return use_memory_source(monkeypatch)


def status(name: str) -> dict[str, Any]:
    [one] = lines(run("flows", "status", name, "--json"))
    answer: dict[str, Any] = one
    return answer


@pytest.mark.law("Y7", "Y10")
def test_flows_are_applied_run_paused_backfilled_and_removed(
    gateway: LocalGateway, source: MemorySource
) -> None:
    source.put({"a": 1, "b": 9})
    applied = run("flows", "apply", "flows.yaml")
    assert applied.exit_code == 0, applied.stderr
    assert applied.stdout.splitlines() == [
        "declared: flights-out", "declared: items-in", "declared: across",
    ]  # fmt: skip
    again = run("flows", "apply", "flows.yaml")
    assert again.stdout.splitlines()[0] == "unchanged: flights-out"
    assert again.stdout.splitlines()[1:] == ["unchanged: items-in", "unchanged: across"]

    assert run("flows", "run", "items-in").exit_code == 0
    brought = [each.row_id for each in pulled(gateway.buffer, GATEWAY) if each.table == "things"]
    assert brought == ["a"], "the filter lets one of them pass"
    shown = status("items-in")
    assert (shown["state"], shown["rows"], shown["schedule"]) == (
        "current", 1, {"everyMinutes": 5},
    )  # fmt: skip
    assert "lagS" in shown
    assert "hush" not in run("flows", "list", "--json").stdout
    assert fields_of(run("flows", "list"), "flights-out")[1:] == [
        "gateway", "postgres", "warehouse", "filling", "0", "s", "0",
    ]  # fmt: skip
    assert [one["name"] for one in lines(run("destinations", "list", "--json"))] == ["flights-out"]

    for name in ("flights-out", "items-in"):
        assert run("flows", "pause", name).stdout == f"paused: {name}\n"
        assert (status(name)["state"], status(name)["paused"]) == ("paused", True)
        assert run("flows", "apply", "flows.yaml").exit_code == 0, "paused or not is no difference"
        assert run("flows", "resume", name).stdout == f"resumed: {name}\n"
        assert run("flows", "backfill", name).stdout == f"{name} is being backfilled\n"
    from_ = run("flows", "backfill", "across", "--from", "2026-11-25T00:00:00Z")
    assert from_.exit_code == 0, from_.stderr
    for name, since, reason in (
        ("items-in", "2026-11-25T00:00:00Z", "cannot begin at a time"),
        ("across", "yesterday", "from"),
    ):
        refused = run("flows", "backfill", name, "--from", since)
        assert (refused.exit_code, reason in refused.stderr) == (1, True)
    assert "follows each flush" in run("flows", "run", "flights-out").stderr
    for name in ("flights-out", "items-in", "across"):
        assert run("flows", "remove", name).stdout == f"removed: {name}\n"
    assert run("flows", "list", "--json").stdout == ""
    assert "there is no flow" in run("flows", "status", "across").stderr
    assert "there is no flow" in run("flows", "remove", "across").stderr


@pytest.mark.law("Y10")
@pytest.mark.usefixtures("gateway")
def test_flows_plan_counts_rows_that_would_move_and_saves_nothing(source: MemorySource) -> None:
    source.put({"a": 1, "b": 9})
    out, into, across = lines(run("flows", "plan", "flows.yaml", "--json"))

    [flights] = out["tables"]
    assert flights["table"] == "flights"
    assert 0 < flights["passing"] < flights["rows"] == 16
    assert (flights["hasMore"], "carrier" in flights["columns"]) == (False, False)
    assert flights["columns"][-1] == "origin"
    assert into["tables"] == [
        {"table": "things", "columns": ["id", "value"], "rows": 2, "passing": 1, "hasMore": False}
    ]
    assert into["message"] == "The source in memory answers."
    assert across["tables"] == [{"table": "orders"}]
    assert across["message"] == "Its rows are not counted: the secret shop cannot be read."
    assert "hush" not in run("flows", "plan", "flows.yaml").stdout
    assert "not known" in run("flows", "plan", "flows.yaml").stdout
    assert run("flows", "list", "--json").stdout == ""


@pytest.mark.law("Y4")
@pytest.mark.usefixtures("gateway", "source")
def test_faults_of_all_flows_are_reported_and_no_flow_is_declared() -> None:
    faulty = FLOWS.replace("database: postgres, secret: w", "database: oracle, secret: w")
    faulty = faulty.replace("tables: [orders]", "tables: []").replace("[things]", "[stuff]")
    Path("flows.yaml").write_text(faulty + "  - {name: across}\n")
    refused = run("flows", "apply", "flows.yaml")

    assert refused.exit_code == 1
    for part in (
        "flights-out.destination.database", "items-in.tables", "across.tables", "across.name",
        "across.source", "nothing was declared",
    ):  # fmt: skip
        assert part in refused.stdout + refused.stderr, part
    assert run("flows", "list", "--json").stdout == ""
    Path("flows.yaml").write_text("flows: [}")
    assert "not YAML" in run("flows", "apply", "flows.yaml").stderr


@pytest.mark.law("Y10")
@pytest.mark.usefixtures("gateway", "source")
def test_a_differently_declared_flow_is_replaced_only_with_replace() -> None:
    assert run("flows", "apply", "flows.yaml").exit_code == 0
    Path("flows.yaml").write_text(FLOWS.replace("value: 5", "value: 7"))
    refused = run("flows", "apply", "flows.yaml")
    assert (refused.exit_code, "declared differently" in refused.stdout + refused.stderr) == (
        1,
        True,
    )
    replaced = run("flows", "apply", "flows.yaml", "--replace")
    assert replaced.stdout.splitlines()[1] == "declared: items-in"
    [bucket] = status("items-in")["filter"]
    assert bucket["filters"][0]["value"] == 7


@pytest.mark.law("Y4")
@pytest.mark.usefixtures("source")
def test_a_flow_from_a_connector_to_iceberg_is_refused() -> None:
    to_lake = FLOWS.replace(
        "destination: gateway", "destination: {database: iceberg, secret: lake}"
    )
    Path("flows.yaml").write_text(to_lake)
    refused = run("flows", "apply", "flows.yaml")
    assert refused.exit_code == 1
    assert "source.connector" in refused.stdout + refused.stderr
    assert "no room beside Iceberg" in refused.stdout + refused.stderr
    assert lines(run("flows", "list", "--json")) == []


@pytest.mark.law("Y10")
@pytest.mark.usefixtures("source")
def test_a_flow_with_the_name_of_a_connector_or_invalid_settings_is_refused(
    gateway: LocalGateway,
) -> None:
    del gateway
    Path("shop.json").write_text(
        '{"type": "memory", "name": "items-in", "configuration": {"token": "x"}}'
    )
    assert run("connectors", "add", "shop.json").exit_code == 0
    refused = run("flows", "apply", "flows.yaml")
    assert "there is a connector items-in already" in refused.stdout + refused.stderr
    Path("flows.yaml").write_text(FLOWS.replace("token: hush", "token: [1]"))
    refused = run("flows", "apply", "flows.yaml")
    assert "source.configuration" in refused.stdout + refused.stderr


@pytest.mark.law("Y4")
def test_a_flow_with_an_unusable_database_is_refused_except_with_no_check(
    gateway: LocalGateway,
    source: MemorySource,
) -> None:
    for secret in ("warehouse", "reports"):
        gateway.unusable = {secret: "the password of sync is wrong"}
        for word in ("plan", "apply"):
            refused = run("flows", word, "flows.yaml")
            assert refused.exit_code == 1
            assert f"the secret {secret} cannot be used: the password of sync is" in refused.stderr
    assert run("flows", "list", "--json").stdout == ""

    gateway.unusable = dict.fromkeys(("warehouse", "reports", "shop"), "the server is away")
    unasked = run("flows", "apply", "flows.yaml", "--no-check")
    assert unasked.exit_code == 0, unasked.stderr
    assert len(lines(run("flows", "list", "--json"))) == 3
