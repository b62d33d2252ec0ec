"""How fast the whole local stack takes pushes and answers pulls, over HTTP from outside.

The stack is one emulator in one Python process, functions beside it, on this machine's cores; so
the emulator's own share is reported with each figure. On AWS the same functions run by themselves.
``python -m benchmarks.stack`` prints the figures; ``run`` gives them.
"""

from __future__ import annotations

import http.client
import json
import os
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit
from uuid import uuid4

import boto3

from benchmarks.entries import sized
from lakesync.cli.session import sign
from lakesync.core.clock import HybridLogicalClock
from lakesync.core.delta import Op, make_delta
from lakesync.core.messages import Push
from lakesync.wire import proto
from tools.local_stack import paths
from tools.local_stack.clients import client_options
from tools.local_stack.processes import read_record
from tools.local_stack.stack import Stack, down, status, up

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from benchmarks.entries import Entry

MEASURES: Final = (
    "functions/push",
    "functions/pull",
    "tools/local_stack/emulator",
    "layers/lakesync/python/lakesync/buffer",
    "layers/lakesync/python/lakesync/core",
    "layers/lakesync/python/lakesync/gateway/push.py",
    "layers/lakesync/python/lakesync/gateway/pull.py",
    "layers/lakesync/python/lakesync/log",
    "layers/lakesync/python/lakesync/runtime",
    "layers/lakesync/python/lakesync/wire",
)
PUSH_TARGET: Final = 3_000
PULL_TARGET: Final = 30_000
BATCH_DELTAS: Final = 100
CONNECTIONS: Final = 4
BUFFERED: Final = sized(10_000, 200)
PUSHES: Final = sized(240, 8)
WARM_PUSHES: Final = sized(240, 4)
"""The emulator and the functions take so many until each push costs them the same."""
PAGE_DELTAS: Final = 1_000
PULL_ROUNDS: Final = sized(3, 1)
_PROTOBUF: Final = "application/x-protobuf"
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Tenant:
    """A gateway for one measurement."""

    stack: Stack
    gateway: str

    def connect(self) -> http.client.HTTPConnection:
        """Open a connection that stays open."""
        parts = urlsplit(self.stack.http)
        return http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=60)

    def path(self, route: str) -> str:
        """Return the path of one of the gateway's routes."""
        return f"{urlsplit(self.stack.http).path}/v1/sync/{self.gateway}/{route}"

    def headers(self, client: str) -> dict[str, str]:
        """Return the headers of one client's requests."""
        claims = {"sub": client, "gw": self.gateway}
        token = sign(claims, 3_600, self.stack.jwt_secret, int(time.time()))
        return {
            "Authorization": f"Bearer {token}",
            "Content-Type": _PROTOBUF,
            "Accept": _PROTOBUF,
        }


def run() -> list[Entry]:
    """Measure, and give one entry for each figure."""
    with running_stack() as stack:
        tenant = Tenant(stack, f"bench{uuid4().hex[:8]}")
        _push_all(tenant, "loader", _bodies("loader", "old", BUFFERED // BATCH_DELTAS))
        alone = [Tenant(stack, f"bench{uuid4().hex[:8]}") for _ in range(CONNECTIONS)]
        return [_push_entry(tenant, alone), _pull_entry(tenant)]


def _push_entry(tenant: Tenant, alone: Sequence[Tenant]) -> Entry:
    # Functions are measured warm: a process for each connection is started before.
    _push_at_once([tenant] * CONNECTIONS, WARM_PUSHES)
    together = _push_at_once([tenant] * CONNECTIONS)
    for other in alone:
        _push_all(other, "c0", _bodies("c0", "warm", 1))
    apart = _push_at_once(alone)
    raw_ms = _raw_transaction_ms(tenant.stack)
    invoke_ms = _empty_invoke_ms(tenant)
    push_ms = BATCH_DELTAS * 1000 / together.deltas_per_s
    detail = (
        f"{CONNECTIONS} connections to one shard, batches of {BATCH_DELTAS}, 5 columns, "
        f"{BUFFERED:,} buffered, {together.refused} answered 503 and pushed again; a push every "
        f"{push_ms:.1f} ms, of which the emulator's own process computes "
        f"{together.emulator_ms:.1f} ms (a raw TransactWriteItems of {BATCH_DELTAS} items takes "
        f"{raw_ms:.1f} ms, an empty invocation {invoke_ms:.1f} ms); each connection on a gateway "
        f"of its own: {apart.deltas_per_s:,.0f}/s"
    )
    return _entry("push_http_deltas_per_s", together.deltas_per_s, PUSH_TARGET, detail)


@dataclass(frozen=True)
class Pushed:
    """What came of pushing from all connections at once."""

    deltas_per_s: float
    emulator_ms: float
    """Processor time of the emulator's own process, for each push."""
    refused: int
    """Pushes that lost every race until their deadline (503), and were pushed again."""


def _push_at_once(tenants: Sequence[Tenant], pushes: int = PUSHES) -> Pushed:
    each = pushes // CONNECTIONS
    run_id = uuid4().hex[:6]
    work = [
        (tenant, f"c{number}", _bodies(f"c{number}", f"{run_id}-{number}", each))
        for number, tenant in enumerate(tenants)
    ]
    before, started = _emulator_cpu_s(), time.perf_counter()
    with ThreadPoolExecutor(CONNECTIONS) as threads:
        refused = sum(threads.map(lambda one_push: _push_all(*one_push), work))
    seconds = time.perf_counter() - started
    pushes = each * CONNECTIONS
    emulator_ms = (_emulator_cpu_s() - before) * 1000 / pushes
    return Pushed(pushes * BATCH_DELTAS / seconds, emulator_ms, refused)


def _push_all(tenant: Tenant, client: str, bodies: Sequence[bytes]) -> int:
    """Push one after the other; returns how often a push was refused for now."""
    connection, headers, refused = tenant.connect(), tenant.headers(client), 0
    for body in bodies:
        status, answer = _send(connection, "POST", tenant.path("push"), headers, body)
        while status == http.client.SERVICE_UNAVAILABLE:
            refused += 1
            status, answer = _send(connection, "POST", tenant.path("push"), headers, body)
        assert status == http.client.OK, answer
        assert proto.decode_receipt(answer).accepted == BATCH_DELTAS
    connection.close()
    return refused


def _bodies(client: str, prefix: str, count: int) -> list[bytes]:
    clock = HybridLogicalClock()
    bodies = []
    for number in range(count):
        deltas = [
            make_delta(
                Op.INSERT,
                "flights",
                f"{prefix}-{number}-{place}",
                _columns(place),
                client_id=client,
                hlc=clock.now(int(time.time() * 1000)),
            )
            for place in range(BATCH_DELTAS)
        ]
        bodies.append(proto.encode_push(Push(client, tuple(enumerate(deltas)))))
    return bodies


def _columns(place: int) -> dict[str, object]:
    return {
        "carrier": "UA",
        "flight": place,
        "origin": "EWR",
        "dep_delay": place - 3.5,
        "cancelled": place % 40 == 0,
    }


@dataclass(frozen=True)
class Pulled:
    """What came of pulling all of a log some times."""

    deltas_per_s: float
    page_ms: float
    page_deltas: float
    emulator_ms: float
    """Processor time of the emulator's own process, for each page."""


def _pull_entry(tenant: Tenant) -> Entry:
    """Measure pulls as our client asks, and as existing clients do, whose pages are other ones."""
    ours, existing = (_pull_all(tenant, marks) for marks in ("&ownCursor=true", ""))
    detail = (
        f"one connection, protobuf, {PULL_ROUNDS} readings of all of the log, a warm process; a "
        f"page of {ours.page_deltas:,.0f} takes {ours.page_ms:.1f} ms, of which the emulator's own "
        f"process computes {ours.emulator_ms:.1f} ms; an existing client, whose rows are sent as "
        f"they are: {existing.deltas_per_s:,.0f}/s in pages of {existing.page_deltas:,.0f}"
    )
    return _entry("pull_http_deltas_per_s", ours.deltas_per_s, PULL_TARGET, detail)


def _pull_all(tenant: Tenant, marks: str) -> Pulled:
    """Pull the log from its beginning some times, after a page that starts the process."""
    connection, headers = tenant.connect(), tenant.headers(f"reader{len(marks)}")
    first = tenant.path(f"pull?since=0&limit={PAGE_DELTAS}{marks}")
    _get(connection, first, headers)
    deltas = pages = 0
    before, started = _emulator_cpu_s(), time.perf_counter()
    for _ in range(PULL_ROUNDS):
        cursor, more = 0, True
        while more:
            path = tenant.path(f"pull?since={cursor}&limit={PAGE_DELTAS}{marks}")
            page = proto.decode_page(_get(connection, path, headers))
            cursor, more = page.cursor, page.has_more
            deltas += page.count
            pages += 1
    seconds = time.perf_counter() - started
    emulator_ms = (_emulator_cpu_s() - before) * 1000 / pages
    connection.close()
    return Pulled(deltas / seconds, seconds * 1000 / pages, deltas / pages, emulator_ms)


def _send(
    connection: http.client.HTTPConnection,
    method: str,
    path: str,
    headers: dict[str, str],
    body: bytes | None = None,
) -> tuple[int, bytes]:
    connection.request(method, path, body, headers)
    answer = connection.getresponse()
    return answer.status, answer.read()


def _get(connection: http.client.HTTPConnection, path: str, headers: dict[str, str]) -> bytes:
    status, content = _send(connection, "GET", path, headers)
    assert status == http.client.OK, content
    return content


# --- the emulator's own share ---------------------------------------------------------------------


def _emulator_cpu_s() -> float:
    """Return the processor time of the emulator's process, without its functions'."""
    pid = read_record(_folder() / "emulator.json")["pid"]
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def _raw_transaction_ms(stack: Stack) -> float:
    """Return how long the emulator takes for a transaction alone, as large as a push's."""
    client = boto3.client("dynamodb", **client_options(stack.endpoint, stack.region))
    table = _output(stack, "BufferTable")
    prefix = f"bench#{uuid4().hex}"
    times = []
    for turn in range(10):
        items: list[Any] = [
            {
                "Put": {
                    "TableName": table,
                    "Item": {
                        "pk": {"S": prefix},
                        "sk": {"S": f"{turn}-{number}"},
                        "state": {"B": b"x" * 150},
                    },
                }
            }
            for number in range(BATCH_DELTAS)
        ]
        started = time.perf_counter()
        client.transact_write_items(TransactItems=items)
        times.append(time.perf_counter() - started)
    return sorted(times)[len(times) // 2] * 1000


def _empty_invoke_ms(tenant: Tenant) -> float:
    """Return how long a request takes whose function does next to nothing."""
    connection = tenant.connect()
    path = f"{urlsplit(tenant.stack.http).path}/health"
    times = []
    for _ in range(20):
        started = time.perf_counter()
        _get(connection, path, {})
        times.append(time.perf_counter() - started)
    connection.close()
    return sorted(times)[len(times) // 2] * 1000


def _output(stack: Stack, name: str) -> str:
    client = boto3.client("cloudformation", **client_options(stack.endpoint, stack.region))
    outputs = client.describe_stacks(StackName=stack.stack)["Stacks"][0]["Outputs"]
    return next(output["OutputValue"] for output in outputs if output["OutputKey"] == name)


@contextmanager
def running_stack() -> Iterator[Stack]:
    """The local stack, or the one that ``LAKESYNC_STACK_JSON`` names.

    One that was not running is stopped again.
    """
    folder = _folder()
    running = status(folder)
    try:
        yield running or up(folder)
    finally:
        if running is None:
            down(folder)


def _folder() -> Path:
    named = os.environ.get("LAKESYNC_STACK_JSON")
    return Path(named).parent if named else paths.LOCAL


def _entry(name: str, value: float, target: float, detail: str) -> Entry:
    return {
        "name": name,
        "value": round(value),
        "unit": "1/s",
        "target": target,
        "holds": value >= target,
        "detail": detail,
    }


if __name__ == "__main__":
    for entry in run():
        print(json.dumps(entry, indent=2))
