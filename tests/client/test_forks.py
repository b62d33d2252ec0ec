"""A client that was opened before its process forked: the child is refused, and harms nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")

OPENED = """
import asyncio, json, os, sys, threading, warnings
from lakesync.client import AsyncClient, Client
from lakesync.testing.memory_gateway import MemoryGateway

warnings.simplefilter("ignore")
gateway = MemoryGateway(sys.argv[1])
client = gateway.client("phone")
client.insert("todos", "t1", {"n": 1}).unwrap()

def forked(child):
    pid = os.fork()
    if pid == 0:
        print(json.dumps(child()), flush=True)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0

def said(operation):
    try:
        return str(operation().error)
    except Exception as exc:
        return str(exc)
"""


def run(folder: Path, body: str) -> Any:
    """Run a program that forks, in a process of its own; returns what its child printed."""
    program = [sys.executable, "-c", OPENED + body, str(folder)]
    ended = subprocess.run(program, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


@pytest.mark.law("K2")
def test_a_forked_child_may_not_use_its_parents_client_and_the_parent_continues(
    tmp_path: Path,
) -> None:
    body = """
loop = client.connect()
watch = client.watch("SELECT * FROM todos")
next(watch)
holds, done = threading.Event(), threading.Event()
def write():
    with client.transaction() as tx:
        tx.insert("todos", "t2").unwrap()
        holds.set()
        done.wait(120)
writer = threading.Thread(target=write)
writer.start()
holds.wait(120)

def child():
    answers = [
        said(lambda: client.insert("todos", "t3")),
        said(lambda: client.query("SELECT 1")),
        said(lambda: client.sync()),
        said(lambda: client.wipe(lose_edits=True)),
        said(lambda: client.attachments.add(b"bytes")),
        said(lambda: client.actions.run("shipping", "ship")),
        said(lambda: client.watch("SELECT 1")),
        said(lambda: client.connect()),
        said(lambda: client.transaction().__enter__()),
        str(client.status.last_error),
    ]
    assert watch.next() is None
    client.close()
    return answers

forked(child)
done.set()
writer.join()
client.insert("todos", "t4").unwrap()
client.sync().unwrap()
assert sorted(gateway.rows("todos")) == ["t1", "t2", "t4"]
gateway.close()
"""
    answers = run(tmp_path, body)

    assert len(answers) == 10
    assert all("before its process was forked" in answer for answer in answers), answers


@pytest.mark.law("K2")
def test_a_forked_child_may_open_a_file_that_its_parent_has_closed(tmp_path: Path) -> None:
    body = """
client.close()
def child():
    with Client(sys.argv[1] + "/phone.db", client_id="phone", transport=gateway.transport()) as own:
        own.insert("todos", "t2").unwrap()
        return own.query("SELECT _row_id FROM todos ORDER BY 1").unwrap()
forked(child)
"""
    folder = tmp_path
    assert run(folder, body) == [{"_row_id": "t1"}, {"_row_id": "t2"}]


def test_a_forked_child_is_refused_an_async_client_of_its_parent(tmp_path: Path) -> None:
    body = """
own = []
async def begin():
    own.append(await gateway.async_client("laptop").__aenter__())
    (await own[0].insert("todos", "t1")).unwrap()
    await own[0].query("SELECT 1")
asyncio.run(begin())

async def ask():
    async with asyncio.timeout(20):
        return [str((await own[0].insert("todos", "t2")).error),
                str((await own[0].query("SELECT 1")).error)]
forked(lambda: asyncio.run(ask()))
"""
    answers = run(tmp_path, body)

    assert len(answers) == 2
    assert all("before its process was forked" in answer for answer in answers), answers


def test_a_transport_opens_its_own_connections_in_a_forked_child(tmp_path: Path) -> None:
    body = """
import http.server
from lakesync.client import HttpTransport

class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        self.send_response(404)
        self.send_header("Content-Type", "application/json")
        port = str(self.client_address[1])
        body = json.dumps({"error": port, "code": "NOT_FOUND", "requestId": "r"}).encode()
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_): pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
threading.Thread(target=server.serve_forever, daemon=True).start()
transport = HttpTransport(f"http://127.0.0.1:{server.server_port}", "acme", token="a.b.c")
before = said(transport.schemas)
forked(lambda: [before, said(transport.schemas), said(transport.schemas)])
assert said(transport.schemas) == before
"""
    before, first, second = run(tmp_path, body)

    assert before.split()[0].isdigit()
    assert first == second
    assert first != before
