"""`lakesync connectors` against a real gateway."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from lakesync.cli.commands import connectors
from lakesync.connectors import SourceColumn, SourceTable, polls
from lakesync.errors import ActionFailed, AdapterRefused, AdapterUnreachable
from lakesync.result import Ok
from tests.cli.test_declaring import gateway
from tests.support.acting import use_memory_outside
from tests.support.command_lines import run
from tests.support.gateways import pulled
from tests.support.local_gateway import GATEWAY
from tests.support.sources import use_memory_source

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.acting import MemoryOutside
    from tests.support.local_gateway import LocalGateway
    from tests.support.sources import MemorySource


__all__ = ["gateway"]  # the fixture


@pytest.fixture
def source(gateway: LocalGateway, monkeypatch: pytest.MonkeyPatch) -> MemorySource:
    """What connectors of the type ``memory`` read."""
    return use_memory_source(monkeypatch)


@pytest.fixture
def shop(source: MemorySource, tmp_path: Path) -> str:
    """A file that registers a connector."""
    body = {"type": "memory", "name": "shop", "configuration": {"token": "hush"}}
    (tmp_path / "shop.json").write_text(json.dumps(body))
    return str(tmp_path / "shop.json")


@pytest.mark.law("N8")
def test_a_connector_is_added_polled_listed_and_removed(
    gateway: LocalGateway, source: MemorySource, shop: str
) -> None:
    assert "memory" in run("connectors", "types").stdout
    assert "The source in memory answers." in run("connectors", "add", shop).stdout
    again = run("connectors", "add", shop)
    assert (again.exit_code, "already" in again.stderr) == (1, True)
    source.put({"a": 1, "b": 2})
    assert "2 rows" in run("connectors", "run", "shop", "--follow").stdout
    brought = [each.row_id for each in pulled(gateway.buffer, GATEWAY) if each.table == "things"]
    assert brought == ["a", "b"]

    (listed,) = run("connectors", "list", "--json").stdout.splitlines()
    assert json.loads(listed)["rows"] == 2
    assert "every 15 min" in run("connectors", "list").stdout
    assert "hush" not in run("connectors", "show", "shop").stdout
    assert "answers" in run("connectors", "check", "shop").stdout
    for action in ("pause", "resume", "reset", "remove"):
        assert run("connectors", action, "shop").exit_code == 0
    assert run("connectors", "list", "--json").stdout == ""
    assert "there is no connector shop" in run("connectors", "check", "shop").stderr


@pytest.mark.law("N8")
def test_settings_are_tested_without_registering(shop: str, tmp_path: Path) -> None:
    tested = run("connectors", "test", shop).stdout
    assert tested == (
        "The source in memory answers. It would write to things; nothing was registered.\n"
    )
    assert run("connectors", "list", "--json").stdout == ""
    assert "hush" not in run("connectors", "test", shop, "--json").stdout
    (tmp_path / "bad.json").write_text('{"type": "memory", "name": "shop", "configuration": {}}')
    bad = run("connectors", "test", str(tmp_path / "bad.json"))
    assert (bad.exit_code, "token" in bad.stderr) == (1, True)


def test_a_poll_that_fails_is_reported(source: MemorySource, shop: str) -> None:
    run("connectors", "add", shop)
    source.fails = [AdapterRefused("the token has expired")]
    done = run("connectors", "run", "shop", "--follow")

    assert done.exit_code == 1
    assert "the token has expired" in done.stderr


def test_connector_settings_are_changed_from_a_file(
    source: MemorySource, shop: str, tmp_path: Path
) -> None:
    run("connectors", "add", shop)
    (tmp_path / "other.json").write_text('{"table": "others"}')
    assert run("connectors", "configure", "shop", str(tmp_path / "other.json")).exit_code == 0

    assert '"others"' in run("connectors", "show", "shop").stdout


@pytest.mark.parametrize(("text", "exit_code"), [("", 2), ("[]", 1), ("{", 2)])
def test_a_file_that_holds_no_connector_is_reported(
    gateway: LocalGateway, tmp_path: Path, text: str, exit_code: int
) -> None:
    (tmp_path / "bad.json").write_text(text)
    done = run("connectors", "add", str(tmp_path / "bad.json"))

    assert done.exit_code == exit_code
    assert "bad.json" in done.stderr


def test_deleting_a_gateway_removes_its_connectors_secrets(
    gateway: LocalGateway, source: MemorySource, shop: str
) -> None:
    run("connectors", "add", shop)
    assert gateway.secrets.stored
    run("gateways", "delete", GATEWAY, "--yes")

    assert gateway.secrets.stored == {}


def test_adding_a_connector_with_schema_registers_the_sources_types_before_the_first_poll(
    gateway: LocalGateway, source: MemorySource, shop: str
) -> None:
    added = run("connectors", "add", shop, "--schema")
    assert (added.exit_code, "registered: shop" in added.stdout) == (0, True), added.stderr
    assert "things: schema version 1, 2 columns" in added.stderr
    shown = json.loads(run("schema", "show", "things", "--json").stdout)
    types = {column["name"]: column["type"] for column in shown["columns"]}
    assert types == {"id": "string", "value": "json"}
    assert all(column["nullable"] for column in shown["columns"])
    source.put({"a": 1})
    assert ", 1 row, 0 dead letters" in run("connectors", "run", "shop", "--follow").stdout
    again = run("connectors", "add", shop, "--schema", "--no-check")
    assert (again.exit_code, "--schema asks the source" in again.stderr) == (2, True)


def test_adding_a_destination_warns_of_tables_without_a_schema(
    gateway: LocalGateway, shop: str, tmp_path: Path
) -> None:
    warehouse = tmp_path / "warehouse.json"
    body = {"kind": "postgres", "secret": "warehouse", "tables": ["things", "flights"]}
    warehouse.write_text(json.dumps(body))
    added = run("destinations", "add", "warehouse", str(warehouse))
    assert "things: without a schema columns are JSON text there" in added.stderr
    run("connectors", "add", shop, "--schema")
    assert "schema" not in run("destinations", "add", "warehouse", str(warehouse)).stderr


@pytest.mark.law("N20")
def test_connectors_list_shows_changes_of_the_sources_schema(
    gateway: LocalGateway, source: MemorySource, shop: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    columns = [SourceColumn("id", "string"), SourceColumn("value", "json")]

    def columns_now() -> Ok[tuple[SourceTable, ...]]:
        return Ok((SourceTable("items", tuple(columns), ("id",)),))

    monkeypatch.setattr(source, "columns", columns_now, raising=False)
    monkeypatch.setattr(polls, "LOOK_MS", 0)
    run("connectors", "add", shop)
    run("connectors", "run", "shop", "--follow")
    columns[1:] = [SourceColumn("value", "string"), SourceColumn("more", "date")]
    run("connectors", "run", "shop", "--follow")
    said = run("connectors", "list").stderr

    assert "shop: severe: items.value: was json, and is string (20" in said
    assert "shop: note: items.more: is new: date (20" in said
    [listed] = run("connectors", "list", "--json").stdout.splitlines()
    assert [each["column"] for each in json.loads(listed)["schemaChanges"]] == ["value", "more"]


# --- actions --------------------------------------------------------------------------------------


@pytest.fixture
def outside(gateway: LocalGateway, monkeypatch: pytest.MonkeyPatch) -> MemoryOutside:
    """What action handlers of the type ``memory`` reach."""
    monkeypatch.setattr(connectors, "_PAUSE_S", 0.0)
    return use_memory_outside(monkeypatch)


@pytest.fixture
def file(outside: MemoryOutside, tmp_path: Path) -> str:
    """A file that registers an action handler."""
    body = {"type": "memory", "name": "mail", "configuration": {"token": "hush"}}
    (tmp_path / "mail.json").write_text(json.dumps(body))
    return str(tmp_path / "mail.json")


@pytest.mark.law("X6")
def test_an_action_handler_is_added_listed_run_and_removed(
    outside: MemoryOutside, file: str
) -> None:
    assert "registered: mail, which can send" in run("actions", "add", file).stdout
    again = run("actions", "add", file)
    assert (again.exit_code, "already" in again.stderr) == (1, True)
    assert "nobody" in run("actions", "list").stdout
    (listed,) = run("actions", "list", "--json").stdout.splitlines()
    assert json.loads(listed)["actions"] == ["send"]
    assert "hush" not in listed

    done = run("actions", "run", "mail", "send", '{"n": 7}')
    assert 'done: {"n": 1}' in done.stdout
    assert outside.done[0][2] == {"n": 7}
    assert run("actions", "remove", "mail").exit_code == 0
    assert "no action handler" in run("actions", "remove", "mail").stderr


@pytest.mark.law("X1", "X2")
def test_an_action_repeated_with_its_id_runs_once(outside: MemoryOutside, file: str) -> None:
    run("actions", "add", file)
    for _ in range(2):
        assert 'done: {"n": 1}' in run("actions", "run", "mail", "send", "--id", "a1").stdout
    assert len(outside.done) == 1

    outside.refuses = ActionFailed("no such mailbox")
    refused = run("actions", "run", "mail", "send")
    assert (refused.exit_code, "no such mailbox" in refused.stderr) == (1, True)


def test_an_unfinished_action_ends_with_its_id_and_invalid_parameters_are_refused(
    outside: MemoryOutside, file: str
) -> None:
    run("actions", "add", file)
    outside.refuses = AdapterUnreachable("away")
    given_up = run("actions", "run", "mail", "send", "--wait", "-1")

    assert given_up.exit_code == 1
    assert "ask again: --id" in given_up.stderr
    assert "not JSON" in run("actions", "run", "mail", "send", "{").stderr
    assert "the parameters do not fit" in run("actions", "run", "mail", "send", '{"x": 1}').stderr
