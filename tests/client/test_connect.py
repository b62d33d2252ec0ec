"""Syncing in the background, as a part of a client; no program waits for it as it ends."""

from __future__ import annotations

import asyncio
import logging
import socket
import subprocess
import sys
import threading
import time
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import pytest

from lakesync.client import AsyncClient, Client, HttpTransport, SyncLoop, SyncSummary, Timeouts
from lakesync.errors import LakeSyncError, Unreachable, ValidationFailed
from lakesync.result import Err, Ok, Result
from lakesync.testing.memory_gateway import MemoryGateway
from tests.support.repository import ROOT
from tests.support.waiting import PATIENCE_S, waited

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SOON_S = PATIENCE_S
OWN_ROWS = {
    "version": 1,
    "buckets": [
        {
            "name": "own",
            "tables": ["todos"],
            "filters": [{"column": "owner", "op": "eq", "value": "jwt:sub"}],
        }
    ],
}


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[MemoryGateway]:
    with MemoryGateway(tmp_path) as gateway:
        yield gateway


@contextmanager
def silent() -> Iterator[str]:
    """A server that takes connections and never answers; returns its address."""
    with closing(socket.create_server(("127.0.0.1", 0), backlog=50)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.law("K17")
def test_connected_clients_receive_each_others_edits_and_reconnect_after_being_offline(
    gateway: MemoryGateway,
) -> None:
    phone, laptop = gateway.client("phone"), gateway.client("laptop")
    phone.connect(every_s=3_600)
    laptop.connect(every_s=3_600)
    assert waited(lambda: laptop.status.connected)
    phone.insert("todos", "t1", {"title": "milk"}).unwrap()
    assert waited(lambda: laptop.get("todos", "t1").unwrap())

    gateway.online = False
    assert not laptop.status.connected
    phone.insert("todos", "t2", {"title": "eggs"}).unwrap()
    gateway.online = True
    assert waited(lambda: laptop.get("todos", "t2").unwrap())
    assert laptop.status.connected


@pytest.mark.law("K17")
def test_closing_a_client_stops_its_sync_loops(gateway: MemoryGateway) -> None:
    client = gateway.client("phone")
    loop = client.connect()
    assert loop.is_running()
    again = client.connect(every_s=5)
    assert (loop.is_running(), again.is_running()) == (False, True)
    own = SyncLoop(client)
    own.start()

    client.close()

    assert not again.is_running()
    assert not own.is_running()
    assert not client.status.connected
    with pytest.raises(ValidationFailed, match="closed"):
        client.connect()


@pytest.mark.law("K17")
def test_a_wipe_stops_the_sync_loop_and_a_refused_wipe_does_not(gateway: MemoryGateway) -> None:
    client = gateway.client("phone")
    results: list[Result[SyncSummary, LakeSyncError]] = []
    loop = client.connect(on_result=results.append)
    assert waited(lambda: results)
    gateway.online = False
    client.insert("todos", "t1").unwrap()
    refused = client.wipe()
    assert isinstance(refused, Err)
    assert refused.error.code == "CONFLICT"
    assert str(refused.error).startswith("1 edit waits for the gateway; this would be lost")
    assert loop.is_running()
    gateway.online = True
    assert waited(lambda: client.status.pending == 0)

    client.wipe().unwrap()

    assert not loop.is_running()
    heard = len(results)
    loop.wake()
    time.sleep(0.1)
    assert len(results) == heard
    codes = {result.error.code for result in results if isinstance(result, Err)}
    assert codes <= {"UNREACHABLE"}


def test_an_async_connect_delivers_sync_results_in_the_event_loop(gateway: MemoryGateway) -> None:
    async def scenario() -> None:
        heard: asyncio.Queue[Any] = asyncio.Queue()
        async with gateway.async_client("phone") as client:
            loop = client.connect(on_result=heard.put)
            assert isinstance(await heard.get(), Ok)
            assert (await client.status).connected
            with pytest.raises(AttributeError, match=r"\(await client.status\).connected"):
                _ = client.status.connected
        assert not loop.is_running()

    asyncio.run(scenario())


def test_a_sync_loop_takes_an_async_client_and_refuses_a_callback_that_is_not_callable(
    gateway: MemoryGateway,
) -> None:
    async def scenario() -> None:
        async with gateway.async_client("phone") as client, SyncLoop(client):
            assert await asyncio.to_thread(waited, lambda: client.client.status.connected)

    asyncio.run(scenario())
    nothing: Any = None
    with pytest.raises(ValidationFailed):
        gateway.client("laptop").on_change(nothing)
    with pytest.raises(ValidationFailed):
        SyncLoop(gateway.client("laptop"), on_result=nothing)


def test_a_missing_websocket_library_is_reported_before_the_loop_starts_a_thread(
    gateway: MemoryGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = gateway.client("phone")
    loop = SyncLoop(client)
    monkeypatch.setattr(client, "listen", Mock(side_effect=ImportError("websockets")))
    with pytest.raises(ImportError):
        loop.start()
    assert not loop.is_running()


def test_a_single_table_name_may_be_given_as_text_to_watch_and_on_change(
    gateway: MemoryGateway,
) -> None:
    client = gateway.client("phone")
    called = threading.Event()
    with (
        client.on_change(lambda _: called.set(), "todos"),
        client.watch("SELECT 1 AS one", tables="todos") as watch,
    ):
        assert watch.tables == frozenset({"todos"})
        client.insert("todos", "t1").unwrap()
        assert called.wait(SOON_S)


def test_the_subject_of_a_client_of_a_memory_gateway_defaults_to_its_client_id(
    gateway: MemoryGateway,
) -> None:
    gateway.put_rules(OWN_ROWS)
    bob = gateway.client("bob")
    bob.insert("todos", "t1", {"owner": "bob"}).unwrap()
    bob.sync().unwrap()
    for name, claims, rows in (("bob-2", {"sub": "bob"}, 1), ("eve", {"org": "x"}, 0)):
        other = gateway.client(name, claims=claims)
        other.insert("todos", "mine", {"owner": "nobody"})
        other.sync()
        assert (other.get("todos", "t1").unwrap() is not None) == bool(rows)


def test_a_callback_that_runs_while_its_client_closes_logs_no_traceback(
    gateway: MemoryGateway, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        begun = asyncio.Event()

        async def slow(_: object) -> None:
            begun.set()
            await asyncio.sleep(60)

        async def late(_: object) -> None:
            await asyncio.sleep(0.2)
            (await client.query("SELECT 1")).unwrap()

        async with gateway.async_client("phone") as client:
            client.on_change(slow)
            client.on_change(late)
            (await client.insert("todos", "t1")).unwrap()
            await begun.wait()
        await asyncio.sleep(0.4)

    with caplog.at_level(logging.WARNING):
        asyncio.run(scenario())
        time.sleep(0.1)
    assert caplog.text == ""


@pytest.mark.law("K17")
def test_stopping_a_loop_drops_a_request_that_is_not_answered(tmp_path: Path) -> None:
    results: list[Result[SyncSummary, LakeSyncError]] = []
    with (
        silent() as url,
        HttpTransport(url, "g1", token="t") as transport,
        Client(tmp_path / "a.db", client_id="a", transport=transport) as client,
    ):
        loop = client.connect(on_result=results.append)
        assert waited(lambda: list(transport._sockets._sockets))
        began_s = time.monotonic()
        loop.stop(timeout_s=0.1)
        assert time.monotonic() - began_s < Timeouts().read_s / 2
        assert loop._thread is not None
        assert not loop._thread.is_alive()
    assert [type(result.error) for result in results if isinstance(result, Err)] == [Unreachable]


def test_closing_an_async_client_drops_a_request_that_is_not_answered(tmp_path: Path) -> None:
    async def scenario(url: str) -> float:
        with HttpTransport(url, "g1", token="t") as transport:
            client = AsyncClient(tmp_path / "a.db", client_id="a", transport=transport)
            syncing = asyncio.create_task(client.sync())
            assert await asyncio.to_thread(waited, lambda: list(transport._sockets._sockets))
            began_s = time.monotonic()
            await client.close()
            assert isinstance(await syncing, Err)
            return time.monotonic() - began_s

    with silent() as url:
        assert asyncio.run(scenario(url)) < 10


CANCELLED = """
import asyncio
from lakesync.client import AsyncClient, HttpTransport

async def main():
    transport = HttpTransport({url!r}, "g1", token="t")
    client = AsyncClient("a.db", client_id="a", transport=transport)
    try:
        async with asyncio.timeout(0.5):
            await client.sync()
    except TimeoutError:
        print("ended")

asyncio.run(main())
"""
WATCHED = """
import threading
from lakesync.client import Client, HttpTransport

client = Client("a.db", client_id="a", transport=HttpTransport({url!r}, "g1", token="t"))
client.declare("todos", {{"title": "string"}}).unwrap()
shown = threading.Event()

def show():
    for rows in client.watch("SELECT * FROM todos"):
        shown.set()
    print("ended")

threading.Thread(target=show).start()
shown.wait()
"""
LOOPED = """
from lakesync.client import Client, HttpTransport

client = Client("a.db", client_id="a", transport=HttpTransport({url!r}, "g1", token="t"))
with client.connect():
    pass
client.close()
print("ended")
"""


@pytest.mark.parametrize("program", [CANCELLED, WATCHED, LOOPED], ids=["sync", "watch", "loop"])
def test_an_unanswered_sync_or_open_watch_does_not_keep_a_program_from_ending(
    program: str, tmp_path: Path
) -> None:
    with silent() as url:
        ended = subprocess.run(
            [sys.executable, "-c", program.format(url=url)],
            cwd=tmp_path,
            env={"PYTHONPATH": str(ROOT / "layers" / "lakesync" / "python")},
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "ended\n", "")
