"""The JavaScript client against a gateway: what one device writes, others have; nothing is lost."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import uuid
from base64 import b64decode, b64encode
from contextlib import closing
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import boto3
import pytest
from botocore.config import Config

from lakesync.actions.service import registration_from
from lakesync.adapters.lake.s3 import S3SignedObjects
from lakesync.client import Client, HttpTransport
from lakesync.core.attachments import PART_BYTES
from lakesync.errors import AdapterFailed
from tests.support.acting import use_memory_outside
from tests.support.gateways import administrator
from tests.support.local_gateway import GATEWAY, LocalGateway, serve_gateway
from tests.support.repository import ROOT
from tests.support.waiting import waited

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from lakesync.actions import Run
    from tools.local_stack.aws_emulator import Emulator

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


TYPES = {
    "n": "integer", "price": "decimal(9,2)", "at": "timestamp", "day": "date", "photo": "bytes",
}  # fmt: skip


@pytest.mark.law("K34", "S1")
def test_typed_values_are_the_same_in_both_clients(
    browser: Browser, phone: Client, gateway: LocalGateway
) -> None:
    columns = [{"name": name, "type": kind} for name, kind in TYPES.items()]
    administrator(gateway.buffer).register_schema(GATEWAY, {"table": "items", "columns": columns})
    phone.declare("items", TYPES).unwrap()
    browser.value("declare", "items", TYPES)
    rows = {
        "r1": {"n": 2**62 + 1, "price": Decimal("19.90"), "photo": b"\x00\xff",
               "at": datetime(2026, 5, 17, 8, 0, 0, 5, UTC), "day": date(2026, 5, 17)},
        "r2": {"n": -7, "price": Decimal(-1), "photo": b""},
    }  # fmt: skip
    for row_id, row in rows.items():
        phone.insert("items", row_id, row).unwrap()
    phone.sync().unwrap()
    browser.value("sync")

    first = browser.value("get", "items", "r1")
    assert first == {
        "n": {"$integer": str(2**62 + 1)}, "price": "19.90", "photo": {"$bytes": "AP8="},
        "at": "2026-05-17T08:00:00.000005+00:00", "day": "2026-05-17",
    }  # fmt: skip
    second = browser.value("get", "items", "r2")
    assert second == {"n": {"$integer": "-7"}, "price": "-1", "photo": {"$bytes": ""}}
    browser.value("insert", "items", "r3", first)
    browser.value("insert", "items", "r4", second)
    browser.value("sync")
    phone.sync().unwrap()
    assert browser.ask("quarantined") == []
    assert phone.get("items", "r3").unwrap() == rows["r1"]
    assert phone.get("items", "r4").unwrap() == rows["r2"]
    later = {"table": "items", "order": "-n", "limit": 2}
    assert [row["_row_id"] for row in browser.value("query", later)] == ["r3", "r1"]


@pytest.mark.law("K34")
def test_amended_edit_keeps_the_digits_of_its_other_columns(
    browser: Browser, phone: Client, gateway: LocalGateway
) -> None:
    columns = [{"name": "n", "type": "integer"}, {"name": "title", "type": "string"}]
    administrator(gateway.buffer).register_schema(GATEWAY, {"table": "items", "columns": columns})
    browser.value("insert", "items", "r1", {"n": "9007199254740993", "title": 1})
    browser.value("sync")
    (refused,) = browser.ask("quarantined")
    browser.value("declare", "items", {"n": "integer", "title": "string"})
    wrong = browser.ask("amend", refused["deltaId"], {"title": 2})
    assert wrong["error"]["code"] == "SCHEMA_ERROR"
    assert wrong["error"]["field"] == "title"
    browser.value("amend", refused["deltaId"], {"title": "two"})
    browser.value("sync")
    phone.sync().unwrap()

    assert phone.get("items", "r1").unwrap() == {"n": "9007199254740993", "title": "two"}


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


@pytest.mark.law("X1", "X11", "X12", "X13")
def test_action_is_done_once_after_its_edits(
    browser: Browser, gateway: LocalGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    outside = use_memory_outside(monkeypatch)
    allow = [{"actions": ["send"]}]
    body = {"type": "memory", "name": "mail", "allow": allow}
    gateway.acting.admin.register(GATEWAY, registration_from(body))
    assert [each["actionType"] for each in browser.value("actions.describe")["mail"]] == ["send"]
    browser.value("insert", "orders", "o7", {"total": 30})
    queued = browser.value("actions.run", "mail", "send", {"to": "ann"})
    refused = browser.value("actions.run", "mail", "send", {"to": 7})
    browser.value("actions.send")
    assert outside.done == []  # the gateway has not got the edit yet

    browser.value("sync")
    gateway.acting.epoch = gateway.buffer.epoch(GATEWAY)
    outside.after, outside.lookup_fails = lost_answer, AdapterFailed("it cannot be looked up")
    browser.value("actions.send")
    (sent,) = browser.value("actions.pending")
    assert sent["status"] == "sent"
    outside.after = outside.lookup_fails = None

    def has_ended() -> bool:
        browser.value("actions.send")
        return bool(browser.value("actions.find", queued["actionId"])["status"] == "done")

    assert waited(has_ended)
    assert browser.value("actions.resultOf", queued["actionId"]) == {"looked": True}
    assert [params for _, _, params in outside.done] == [{"to": "ann"}]
    (dead,) = browser.value("actions.deadLetters")
    assert (dead["actionId"], dead["code"]) == (refused["actionId"], "ACTION_VALIDATION_ERROR")


def lost_answer(run: Run) -> None:
    raise OSError(f"the answer of {run.action} was lost")


@pytest.fixture
def stored(gateway: LocalGateway, emulator: Emulator) -> Iterator[None]:
    """Let the gateway's attachments be on S3."""
    config = Config(signature_version="s3v4", s3={"addressing_style": "virtual"})
    s3: Any = boto3.client("s3", config=config, **emulator.client_options())
    bucket = f"attachments-{uuid.uuid4().hex}"
    s3.create_bucket(Bucket=bucket)
    gateway.signed = S3SignedObjects(bucket, s3)
    yield
    s3.close()


@pytest.mark.emulator
@pytest.mark.law("G1", "G2", "G6", "G7")
@pytest.mark.usefixtures("stored")
@pytest.mark.parametrize("size", [0, 1_000, PART_BYTES + 1])
def test_attachments_go_both_ways(browser: Browser, phone: Client, size: int) -> None:
    ours, theirs = (random.Random(f"{size} {who}").randbytes(size) for who in ("ours", "theirs"))
    given = {"$bytes": b64encode(ours).decode()}
    photo = browser.value("attachments.add", given, {"mediaType": "image/png"})
    browser.value("insert", "todos", "t1", {"photo": photo})
    document = phone.attachments.add(theirs).unwrap()
    phone.insert("todos", "t2", {"file": {"all": [str(document)]}}).unwrap()
    for _ in range(2):
        browser.value("sync")
        phone.sync().unwrap()
    missing = browser.ask("attachments.get", "todos", "t2", "file")
    assert missing["error"]["code"] == "NOT_YET_UPLOADED"
    browser.value("attachments.upload")
    assert browser.value("attachments.status", photo)["status"] == "kept"
    phone.attachments.upload().unwrap()

    assert phone.attachments.fetch("todos", "t1", "photo").unwrap().read_bytes() == ours
    fetched = browser.value("attachments.get", "todos", "t2", "file")
    assert b64decode(fetched["$bytes"]) == theirs


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
