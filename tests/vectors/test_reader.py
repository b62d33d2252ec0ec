"""The reader of ``examples/reader.mjs`` shows what a gateway lets its token see."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from lakesync.maintenance.horizons import begin_epoch
from tests.support.builders import delete, insert, push, update
from tests.support.gateways import administrator, pusher, real_wall_clock
from tests.support.local_gateway import GATEWAY, LocalGateway, serve_gateway
from tests.support.repository import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SCRIPT = ROOT / "tests" / "vectors" / "pulled.mjs"
OWN = {"buckets": [{"name": "own", "tables": [],
                    "filters": [{"column": "owner", "op": "eq", "value": "jwt:sub"}]}]}  # fmt: skip


@pytest.fixture
def gateway() -> Iterator[LocalGateway]:
    with serve_gateway() as served:
        yield served


@pytest.fixture
def rows(gateway: LocalGateway) -> Iterator[Callable[[], Any]]:
    """Return what the reader shows after a pull; it is one process for the whole test."""
    reason = os.environ.get("LAKESYNC_WITHOUT_NODE")
    if reason:
        pytest.skip(f"without Node.js: {reason}")
    node = shutil.which("node")
    assert node, "Node.js is needed: install Node 18 or newer"
    with subprocess.Popen(
        [node, str(SCRIPT)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin
        assert process.stdout
        pipes = process.stdin, process.stdout

        def pulled() -> Any:
            asked = {"url": gateway.url, "gateway": GATEWAY, "token": gateway.token("reader")}
            pipes[0].write(json.dumps(asked) + "\n")
            pipes[0].flush()
            return json.loads(pipes[1].readline())

        yield pulled
        process.stdin.close()


@pytest.mark.law("K5", "K6", "K15")
def test_reader_shows_what_its_token_may_see(
    gateway: LocalGateway, rows: Callable[[], Any]
) -> None:
    pushes = pusher(gateway.buffer)
    now = real_wall_clock() << 16
    pushes.push(GATEWAY, push(
        insert("r1", at=now, title="Buy milk", owner="reader"),
        insert("r2", at=now + 1, title="Buy bread", owner="somebody"),
    ))  # fmt: skip
    assert rows() == {
        "todos": {
            "r1": {"title": "Buy milk", "owner": "reader"},
            "r2": {"title": "Buy bread", "owner": "somebody"},
        }
    }

    pushes.push(GATEWAY, push(update("r1", at=now + 2, done=True), delete("r2", at=now + 3)))
    assert rows()["todos"]["r1"] == {"title": "Buy milk", "owner": "reader", "done": True}
    assert rows()["todos"]["r2"] is None

    pushes.push(GATEWAY, push(insert("r3", at=now + 4, owner="somebody")))
    assert "r3" in rows()["todos"]
    administrator(gateway.buffer).save_rules(GATEWAY, OWN)
    assert rows()["todos"].keys() == {"r1"}

    handed = push(update("r3", at=now + 5, client="somebody", owner="reader"), client="somebody")
    pushes.push(GATEWAY, replace(handed, claims={"sub": "somebody"}))
    assert rows()["todos"]["r3"] == {"owner": "reader"}


@pytest.mark.law("K12")
def test_reader_reads_a_restored_gateway_from_the_start(
    gateway: LocalGateway, rows: Callable[[], Any]
) -> None:
    now = real_wall_clock() << 16
    pusher(gateway.buffer).push(GATEWAY, push(insert("r1", at=now, title="Buy milk")))
    before = rows()
    begin_epoch(gateway.buffer, GATEWAY, wall_clock=real_wall_clock)

    assert rows() == before == {"todos": {"r1": {"title": "Buy milk"}}}


def test_reader_says_what_the_gateway_refused(
    gateway: LocalGateway, rows: Callable[[], Any]
) -> None:
    gateway.token = lambda *_, **__: "e30.eyJzdWIiOiJhIn0.x"  # type: ignore[method-assign]  # a token that nobody signed

    assert rows()["error"].startswith("AUTH_ERROR: ")
