"""The JavaScript client against a gateway: what one device writes, others have; nothing is lost."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from lakesync.client import Client, HttpTransport
from tests.support.gateways import administrator
from tests.support.local_gateway import GATEWAY, LocalGateway, serve_gateway
from tests.support.repository import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FOLDER = ROOT / "clients" / "js"
SCRIPT = FOLDER / "build" / "test" / "served.js"
OWN = {"buckets": [{"name": "own", "tables": [],
                    "filters": [{"column": "owner", "op": "eq", "value": "jwt:sub"}]}]}  # fmt: skip


class Browser:
    """A JavaScript client, in a process of its own."""

    def __init__(self, process: subprocess.Popen[str], gateway: LocalGateway, client: str) -> None:
        self._process = process
        opened = self.ask(
            "open",
            {
                "url": gateway.url,
                "gateway": GATEWAY,
                "clientId": client,
                "token": gateway.token(client),
            },
        )
        assert opened == {"ok": True}

    def ask(self, method: str, *arguments: Any) -> Any:
        """Call a method, and return its answer."""
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(json.dumps([method, *arguments]) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def value(self, method: str, *arguments: Any) -> Any:
        """Call a method that must succeed, and return its value."""
        result = self.ask(method, *arguments)
        assert result["ok"], result
        return result.get("value")


@pytest.fixture
def gateway() -> Iterator[LocalGateway]:
    with serve_gateway() as served:
        yield served


@pytest.fixture
def browser(gateway: LocalGateway) -> Iterator[Browser]:
    reason = os.environ.get("LAKESYNC_WITHOUT_NODE")
    if reason:
        pytest.skip(f"without Node.js: {reason}")
    node = shutil.which("node")
    assert node, "Node.js is needed: install Node 20 or newer"
    assert SCRIPT.exists(), "run tools/javascript.sh first: it builds the JavaScript client"
    with subprocess.Popen(
        [node, str(SCRIPT)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield Browser(process, gateway, "browser")
        assert process.stdin
        process.stdin.close()


@pytest.fixture
def phone(gateway: LocalGateway, tmp_path: Path) -> Iterator[Client]:
    transport = HttpTransport(gateway.url, GATEWAY, token=gateway.token("phone"))
    with (
        closing(transport),
        Client(tmp_path / "phone.db", client_id="phone", transport=transport) as client,
    ):
        yield client


@pytest.mark.law("K6")
def test_both_clients_show_the_same_rows_after_both_have_synced(
    browser: Browser, phone: Client
) -> None:
    browser.value("insert", "todos", "r1", {"title": "Buy milk", "n": 1.5, "tags": ["a", {"k": 1}]})
    phone.insert("todos", "r2", {"title": "\U0001f600"}).unwrap()
    browser.value("sync")
    phone.sync().unwrap()
    phone.update("todos", "r1", {"done": True}).unwrap()
    phone.sync().unwrap()
    browser.value("delete", "todos", "r2")
    browser.value("sync")
    phone.sync().unwrap()

    row = {"title": "Buy milk", "n": 1.5, "tags": ["a", {"k": 1}], "done": True}
    assert browser.value("get", "todos", "r1") == row == phone.get("todos", "r1").unwrap()
    assert browser.value("get", "todos", "r2") is None
    assert phone.get("todos", "r2").unwrap() is None
    assert browser.value("query", {"table": "todos", "where": {"done": True}}) == [
        row | {"_row_id": "r1"}
    ]


@pytest.mark.law("K7", "K8")
def test_refused_edit_waits_for_the_app_and_others_go_on(
    browser: Browser, gateway: LocalGateway
) -> None:
    schema = {"table": "todos", "columns": [{"name": "n", "type": "number"}]}
    administrator(gateway.buffer).register_schema(GATEWAY, schema)
    browser.value("insert", "todos", "r1", {"n": "no number"})
    browser.value("transaction", [["insert", "todos", "r2", {"n": 1}], ["delete", "todos", "r3"]])
    browser.value("sync")

    (refused,) = browser.ask("quarantined")
    assert refused["code"] == "SCHEMA_ERROR"
    assert browser.ask("status")["waiting"] == 0
    browser.value("amend", refused["deltaId"], {"n": 2})
    browser.value("sync")
    assert browser.ask("status")["quarantined"] == 0


@pytest.mark.law("K15")
def test_browser_has_exactly_the_rows_that_rules_show(
    browser: Browser, phone: Client, gateway: LocalGateway
) -> None:
    for row, owner in (("r1", "browser"), ("r2", "phone")):
        phone.insert("todos", row, {"owner": owner}).unwrap()
    phone.sync().unwrap()
    browser.value("sync")
    assert len(browser.value("query", {"table": "todos"})) == 2

    administrator(gateway.buffer).save_rules(GATEWAY, OWN)
    browser.value("sync")

    rows = browser.value("query", {"table": "todos"})
    assert rows == [{"_row_id": "r1", "owner": "browser"}]


def test_wrong_token_and_another_server_are_told_and_lose_nothing(gateway: LocalGateway) -> None:
    node = shutil.which("node")
    assert node
    with subprocess.Popen(
        [node, str(SCRIPT)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        wrong = LocalGateway(url=gateway.url)
        wrong.token = lambda *_, **__: "e30.eyJzdWIiOiJhIn0.x"  # type: ignore[method-assign]  # nobody signed it
        browser = Browser(process, wrong, "browser")
        browser.value("insert", "todos", "r1", {"n": 1})
        result = browser.ask("sync")
        assert result["error"]["code"] == "AUTH_ERROR"
        assert browser.ask("status")["waiting"] == 1
        assert process.stdin
        process.stdin.close()
