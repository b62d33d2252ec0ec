"""`lakesync flows` against a real gateway: from ``flows.yaml`` to its removal."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from lakesync.adapters.lake.parquet import read_batch
from lakesync.core.clock import VISIBLE_MS_MAX, stamp
from lakesync.core.deliveries import DELIVERIES, DELIVERIES_FAILED, RETRY, DeliveryPlace
from lakesync.core.destinations import Archive
from lakesync.delivery.deliverer import Deliverer
from lakesync.ports import DeliveryState
from tests.cli.test_declaring import fields_of, gateway, write
from tests.delivery.world import KeptDatabase
from tests.support.command_lines import lines, run
from tests.support.gateways import pulled
from tests.support.lake import Messages
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


# --- destinations ---------------------------------------------------------------------------------


WAREHOUSE = {"kind": "postgres", "secret": "warehouse", "tables": ["flights"]}
PLACE = DeliveryPlace(GATEWAY, "warehouse")
FLIGHTS = PLACE._replace(table="flights")


@pytest.fixture
def declared(gateway: LocalGateway) -> LocalGateway:
    """A gateway with a destination that nothing was delivered to yet."""
    write("warehouse.json", WAREHOUSE)
    done = run("destinations", "add", "warehouse", "warehouse.json")
    assert done.stdout.startswith("declared: warehouse; `lakesync destinations list` shows")
    return gateway


def later_ms() -> int:
    """Return a time at which everything that was committed is visible."""
    return time.time_ns() // 1_000_000 + VISIBLE_MS_MAX


def deliver(gateway: LocalGateway, database: KeptDatabase) -> None:
    """Do what ``functions/deliver`` does with what waits."""
    deliverer = Deliverer(
        gateway.buffer, gateway.objects, Messages(), read_batch=read_batch,
        open_database=lambda *_: database, wall_clock=later_ms,
    )  # fmt: skip
    deliverer.deliver(PLACE)
    deliverer.deliver(FLIGHTS)


def listed() -> dict[str, Any]:
    [one] = lines(run("destinations", "list", "--json"))
    answer: dict[str, Any] = one
    return answer


@pytest.mark.law("D12")
def test_a_destination_is_added_filled_paused_backfilled_and_removed(
    declared: LocalGateway,
) -> None:
    assert fields_of(run("destinations", "list"), "warehouse")[:3] == [
        "warehouse", "postgres", "filling",
    ]  # fmt: skip
    database = KeptDatabase()
    deliver(declared, database)
    assert len(database.rows_after("flights", "", 100).unwrap().rows) == 16
    assert listed()["state"] == "current"
    again = run("destinations", "add", "warehouse", "warehouse.json")
    assert again.exit_code == 0, "adding is safe to repeat"

    assert run("destinations", "pause", "warehouse").stdout == "paused: warehouse\n"
    assert listed()["state"] == "paused"
    assert run("destinations", "resume", "warehouse").stdout == "resumed: warehouse\n"
    assert listed()["paused"] is False
    assert run("destinations", "backfill", "warehouse").stdout == "warehouse is being filled\n"
    assert (listed()["state"], listed()["filling"]) == ("filling", 1)
    assert run("destinations", "remove", "warehouse").stdout == (
        "removed: warehouse; its tables are not changed\n"
    )
    assert run("destinations", "list", "--json").stdout == ""
    assert run("destinations", "list").stdout.startswith("No destinations; declare one: ")


def test_tables_that_a_destination_keeps_from_the_lake_are_listed_also_on_removal(
    gateway: LocalGateway,
) -> None:
    write("instead.json", WAREHOUSE | {"secret": "i", "tables": ["unseen"], "lake": False})
    assert run("destinations", "add", "instead", "instead.json").exit_code == 0
    without = "to the lake these do not go: unseen"
    assert without in run("destinations", "list").stderr
    assert without in run("destinations", "remove", "instead").stderr


@pytest.mark.law("D12")
def test_a_destination_with_an_unusable_database_is_refused_except_with_no_check(
    gateway: LocalGateway,
) -> None:
    write("warehouse.json", WAREHOUSE | {"archive": {"secret": "old", "afterDays": 30}})
    for secret in ("old", "warehouse"):
        gateway.unusable[secret] = "the password of sync is wrong"
        for word in ("check", "add"):
            refused = run("destinations", word, "warehouse", "warehouse.json")
            assert refused.exit_code == 1
            assert f"the secret {secret} cannot be used: the password of sync is" in refused.stderr
    assert run("destinations", "list", "--json").stdout == ""

    unasked = run("destinations", "add", "warehouse", "warehouse.json", "--no-check")
    assert unasked.exit_code == 0, unasked.stderr
    again = run("destinations", "add", "warehouse", "warehouse.json")
    assert again.exit_code == 0, "what is declared is not asked again"
    gateway.unusable.clear()
    checked = run("destinations", "check", "warehouse", "warehouse.json")
    assert checked.stdout == "warehouse can be declared; its database answers\n"


def test_failing_deliveries_and_claims_set_aside_are_listed_and_replayed(
    declared: LocalGateway,
) -> None:
    failing = DeliveryState(7, 2, "ADAPTER_UNREACHABLE: it cannot be reached", 1)
    declared.buffer.save_delivery_state(GATEWAY, "warehouse", "flights", failing)
    claim = f"{GATEWAY}/warehouse/flights/1-2.json"
    aside = json.dumps({"reason": "it is no claim", "claim": "{}"}).encode()
    declared.objects.put_object(DELIVERIES_FAILED + claim, aside, "application/json")
    shown = run("destinations", "list")

    assert fields_of(shown, "warehouse")[2] == "failing"
    assert "warehouse: flights: ADAPTER_UNREACHABLE: it cannot be reached" in shown.stderr
    assert f"warehouse: set aside: {claim}: it is no claim" in shown.stderr
    assert "fix the cause, then: lakesync destinations replay warehouse" in shown.stderr

    replayed = run("destinations", "replay", "warehouse")
    assert replayed.stdout == "warehouse: 1 table will be retried\n"
    assert FLIGHTS.prefix + RETRY in declared.objects.list_objects(DELIVERIES)
    assert DELIVERIES + claim in declared.objects.list_objects(DELIVERIES)
    assert listed()["setAside"] == []


@pytest.mark.law("D12")
def test_every_fault_of_a_destination_is_shown_and_nothing_is_saved(gateway: LocalGateway) -> None:
    write("bad.json", {"kind": "oracle", "secret": "a b", "tables": ["Flights"], "colour": 1})
    for verb in ("check", "add"):
        done = run("destinations", verb, "warehouse", "bad.json")
        assert done.exit_code == 1
        shown = {line.split()[0] for line in done.stdout.splitlines() if line.strip()}
        assert {"kind", "secret", "tables[0]", "colour"} <= shown
        assert done.stderr.startswith("error: 4 faults in the destination: ")
    as_json = run("destinations", "check", "warehouse", "bad.json", "--json")
    assert "colour" in as_json.output
    assert gateway.buffer.destinations(GATEWAY).by_name == {}


def test_destinations_check_saves_nothing(gateway: LocalGateway) -> None:
    write("warehouse.json", WAREHOUSE)
    done = run("destinations", "check", "warehouse", "warehouse.json")

    assert done.stdout == "warehouse can be declared; its database answers\n"
    assert gateway.buffer.destinations(GATEWAY).by_name == {}
    piped = run("destinations", "add", "warehouse", "-", text=json.dumps(WAREHOUSE))
    assert piped.exit_code == 0
    assert list(gateway.buffer.destinations(GATEWAY).by_name) == ["warehouse"]


@pytest.mark.usefixtures("declared")
def test_a_conflicting_destination_is_refused_with_advice() -> None:
    write("other.json", WAREHOUSE | {"tables": []})
    otherwise = run("destinations", "add", "warehouse", "other.json")
    assert (otherwise.exit_code, "remove it first" in otherwise.stderr) == (1, True)
    shared = run("destinations", "add", "second", "warehouse.json")
    assert (shared.exit_code, "give each one of its own" in shared.output) == (1, True)
    run("destinations", "remove", "warehouse")
    early = run("destinations", "add", "warehouse", "other.json")
    assert (early.exit_code, "add it in " in early.stderr) == (3, True), "worth trying later"


@pytest.mark.usefixtures("gateway")
@pytest.mark.parametrize("text", ["", "{", None])
def test_a_file_without_a_valid_destination_is_reported(text: str | None) -> None:
    if text is not None:
        Path("bad.json").write_text(text)
    for verb in ("check", "add"):
        done = run("destinations", verb, "warehouse", "bad.json")
        assert done.exit_code in {1, 2}
        assert "bad.json" in done.stderr
        assert len(done.stderr.splitlines()) == 1


@pytest.mark.law("P15")
def test_the_archive_option_declares_an_archive(gateway: LocalGateway) -> None:
    write("warehouse.json", WAREHOUSE)
    words = ("destinations", "add", "warehouse", "warehouse.json", "--archive")
    assert "names a secret and days" in run(*words, "cold").stderr
    refused = run(*words, "warehouse:99")
    assert "archive.afterDays" in refused.output
    assert "archive.secret" in refused.output
    assert run(*words, "cold:7").exit_code == 0
    declared = gateway.buffer.destinations(GATEWAY).by_name["warehouse"]
    assert declared.archive == Archive("cold", 7)
    assert listed()["archive"] == {"secret": "cold", "afterDays": 7}


@pytest.mark.law("P15")
def test_destinations_list_shows_up_to_when_the_archive_reaches(gateway: LocalGateway) -> None:
    write("warehouse.json", WAREHOUSE)
    run("destinations", "add", "plain", "warehouse.json")
    write("warehouse.json", WAREHOUSE | {"secret": "other"})
    run("destinations", "add", "kept", "warehouse.json", "--archive", "cold:7")
    moments = {"flights": 1_793_000_000_000, "gates": 1_793_500_000_000}

    def save(table: str, archived: int) -> None:
        state = DeliveryState(stamp(1_794_000_000_000), archived=archived)
        for name in ("plain", "kept"):
            gateway.buffer.save_delivery_state(GATEWAY, name, table, state)

    assert "archived to" in run("destinations", "list").stdout
    for table in moments:
        save(table, 0)
    assert fields_of(run("destinations", "list"), "kept")[-2:] == ["nothing", "yet"]
    for table, moment in moments.items():
        save(table, stamp(moment))
    shown = run("destinations", "list")
    assert fields_of(shown, "kept")[-2:] == ["2026-10-26", "07:33"]
    assert fields_of(shown, "plain")[-1] == "0"
    every = lines(run("destinations", "list", "--json"))
    by_name = {one["name"]: one["tablesDelivered"] for one in every}
    assert [one["archived"] for one in by_name["kept"]] == [str(stamp(m)) for m in moments.values()]
    assert "archived" not in by_name["plain"][0]
