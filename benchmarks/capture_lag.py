"""How soon a row that was committed in PostgreSQL is in a client's file, on the local stack.

The connector's state machine is started each second, as EventBridge Scheduler starts it each
minute.
"""

from __future__ import annotations

import random
import statistics
import tempfile
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import httpx

from benchmarks.entries import at_most, sized
from benchmarks.live import address_of, token_of
from benchmarks.stack import running_stack
from lakesync.client import Client, HttpTransport, SyncLoop
from tests.support.capturing import CaptureWorld
from tests.support.deployed import Tenant, aws_of, executed
from tools.local_stack.databases import start_postgres

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.entries import Entry
    from lakesync.analysis.connection import Aws
    from lakesync.client import Watch
    from tools.local_stack.stack import Stack

MEASURES: Final = (
    "functions/ingest",
    "stepfunctions",
    "tools/local_stack/emulator",
    "layers/lakesync/python/lakesync/client/loop.py",
    "layers/lakesync/python/lakesync/client/http_transport.py",
    "layers/lakesync/python/lakesync/client/websocket_listener.py",
    "layers/lakesync/python/lakesync/connectors",
    "layers/lakesync/python/lakesync/gateway/broadcast.py",
    "layers/lakesync/python/lakesync/gateway/push.py",
    "layers/lakesync/python/lakesync/runtime/websocket_frames.py",
    "layers/lakesync/python/lakesync/runtime/websockets.py",
)
COMMITS: Final = sized(40, 2)
WARM_UP: Final = sized(5, 1)
NAME: Final = "shop"
POLL_S: Final = 1.0
ARRIVES_S_MAX: Final = 60
_SQL: Final = "SELECT value FROM items WHERE _row_id = ?"


def run() -> list[Entry]:
    """Measure, and give the one figure."""
    with running_stack() as stack, start_postgres() as database:
        world = CaptureWorld(database, {"items": "id int PRIMARY KEY, value int"})
        tenant = Tenant(stack)
        path = f"/admin/connectors/{tenant.gateway}"
        _ask(tenant, "POST", path, {
            "type": "postgres", "name": NAME, "everyMinutes": 1_440,
            "configuration": _settings(world),
        })  # fmt: skip
        try:
            with _polled_each_second(aws_of(stack), tenant.gateway):
                spent = list(_arrivals(stack, tenant, world))[WARM_UP:]
        finally:
            _ask(tenant, "DELETE", f"{path}/{NAME}")
            world.application.close()
    p50, p90 = statistics.median(spent), statistics.quantiles(spent, n=10)[8]
    detail = (
        f"{COMMITS} commits at any moment of the second, each until it is in a client's SQLite "
        f"file, behind {WARM_UP} to warm up; nine of ten within {p90:,.0f} ms, the fastest "
        f"{min(spent):,.0f} ms; on average half a second of it is the wait for the next poll"
    )
    return [at_most("cdc_lag_ms_p50", p50, "ms", 1_500, detail)]


def _settings(world: CaptureWorld) -> dict[str, Any]:
    settings = world.settings
    return {
        "host": settings.host, "port": settings.port, "database": settings.database,
        "user": settings.user, "password": world.database.password, "tls": "off",
        "changes": True, "tables": [{"name": world.tables["items"], "as": "items"}],
    }  # fmt: skip


def _ask(tenant: Tenant, method: str, path: str, body: object = None) -> None:
    answer = tenant.call(method, path, token=tenant.token("ops", role="admin"), json=body)
    assert answer.status_code == httpx.codes.OK, answer.text


@contextmanager
def _polled_each_second(aws: Aws, gateway: str) -> Iterator[None]:
    """Start a poll each second; one that is still at work would end the next at once, law N7."""
    ends = threading.Event()

    def polls() -> None:
        due = time.monotonic()
        while not ends.wait(max(due - time.monotonic(), 0)):
            executed(aws, "PollStateMachineArn", {"gateway": gateway, "name": NAME})
            due = max(due + POLL_S, time.monotonic())

    thread = threading.Thread(target=polls, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ends.set()
        thread.join()


def _arrivals(stack: Stack, tenant: Tenant, world: CaptureWorld) -> Iterator[float]:
    """Commit one row after another; returns the milliseconds until the client has each."""
    chance = random.Random(1)
    table = world.tables["items"]
    with tempfile.TemporaryDirectory(prefix=".bench-", dir=Path.cwd()) as name:
        transport = HttpTransport(
            stack.http, tenant.gateway, token=lambda: token_of(stack, tenant.gateway, "phone"),
            socket_url=address_of(stack),
        )  # fmt: skip
        with (
            Client(Path(name) / "phone.db", client_id="phone", transport=transport) as client,
            SyncLoop(client, every_s=3_600),
        ):
            client.declare("items", {"value": "integer"}).unwrap()
            world.run(f"INSERT INTO {table} VALUES (1, -1)")  # noqa: S608 - our own name
            with client.watch(_SQL, ("1",)) as watch:
                _until_there(watch, -1)
                for value in range(WARM_UP + COMMITS):
                    time.sleep(chance.uniform(0, POLL_S))
                    started = time.perf_counter()
                    world.run(f"UPDATE {table} SET value = {value}")  # noqa: S608
                    _until_there(watch, value)
                    yield (time.perf_counter() - started) * 1000


def _until_there(watch: Watch[list[dict[str, Any]]], value: int) -> None:
    ends = time.monotonic() + ARRIVES_S_MAX
    while (rows := watch.next(max(ends - time.monotonic(), 0))) is not None:
        if rows and rows[0]["value"] == value:
            return
    raise TimeoutError(f"the value {value} was not there in {ARRIVES_S_MAX} s")
