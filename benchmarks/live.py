"""How soon an edit is in another client's file, on the local stack: push, stream, frame, SQLite.

``python -m benchmarks --only live`` prints the figures; ``run`` gives them.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import boto3
from websockets.asyncio.client import ClientConnection, connect

from benchmarks.entries import at_most, sized
from benchmarks.stack import running_stack
from lakesync.cli.session import sign
from lakesync.client import Client, HttpTransport
from tools.demo.live import milliseconds
from tools.local_stack.clients import client_options
from tools.local_stack.stack import socket_address

if TYPE_CHECKING:
    from benchmarks.entries import Entry
    from tools.local_stack.stack import Stack

MEASURES: Final = (
    "functions/push",
    "functions/notify",
    "tools/local_stack/emulator",
    "layers/lakesync/python/lakesync/buffer/connections.py",
    "layers/lakesync/python/lakesync/client/loop.py",
    "layers/lakesync/python/lakesync/client/http_transport.py",
    "layers/lakesync/python/lakesync/client/websocket_listener.py",
    "layers/lakesync/python/lakesync/gateway/broadcast.py",
    "layers/lakesync/python/lakesync/gateway/frame_sending.py",
    "layers/lakesync/python/lakesync/gateway/push.py",
    "layers/lakesync/python/lakesync/log",
    "layers/lakesync/python/lakesync/runtime/websocket_frames.py",
    "layers/lakesync/python/lakesync/runtime/websockets.py",
    "layers/lakesync/python/lakesync/wire",
)
EDITS: Final = sized(100, 3)
WARM_UP: Final = sized(10, 1)
P50_TARGET_MS: Final = 150
P99_TARGET_MS: Final = 500
SOCKETS: Final = sized(1_000, 10)
ROUNDS: Final = sized(4, 1)
ROUND_S_MAX: Final = 60
HANDSHAKES: Final = 16
"""Sockets that are opened at once."""
THOUSAND_TARGET_S: Final = 5


def run() -> list[Entry]:
    """Measure, and give one entry for each figure."""
    with running_stack() as stack:
        spent = measured(stack)
        rounds_s = asyncio.run(_thousand(stack))
    p50, p99 = statistics.median(spent), statistics.quantiles(spent, n=100)[98]
    detail = (
        f"{EDITS} edits of one client, each until it is in another's SQLite file, one after the "
        f"other, behind {WARM_UP} to warm up; the fastest {min(spent):.0f} ms"
    )
    return [
        at_most("broadcast_ms_p50", p50, "ms", P50_TARGET_MS, detail),
        at_most("broadcast_ms_p99", p99, "ms", P99_TARGET_MS, detail),
        at_most(
            "broadcast_1000_s",
            statistics.median(rounds_s),
            "s",
            THOUSAND_TARGET_S,
            f"one commit to {SOCKETS:,} sockets, from the receipt to the last frame; rounds of "
            f"{', '.join(f'{each:.1f}' for each in rounds_s)} s, the emulator on the same cores",
        ),
    ]


async def _thousand(stack: Stack) -> list[float]:
    """Return the seconds of some commits until the last of so many sockets has heard of each."""
    address, gateway = address_of(stack), f"bench{uuid4().hex[:8]}"
    at_once = asyncio.Semaphore(HANDSHAKES)

    async def opened(number: int) -> ClientConnection:
        client = f"c{number}"
        protocols: Any = ["lakesync.v1", f"bearer.{token_of(stack, gateway, client)}"]
        async with at_once:
            return await connect(
                f"{address}?clientId={client}",
                subprotocols=protocols,
                proxy=None,
                open_timeout=60,
                ping_interval=None,
                compression=None,
            )

    async def heard(socket: ClientConnection) -> float:
        await asyncio.wait_for(socket.recv(), ROUND_S_MAX)
        return time.monotonic()

    def pushed(number: int) -> float:
        token = partial(token_of, stack, gateway, "writer")
        with (
            tempfile.TemporaryDirectory(prefix=".bench-", dir=Path.cwd()) as name,
            HttpTransport(stack.http, gateway, token=token) as transport,
            Client(Path(name) / "w.db", client_id="writer", transport=transport) as writer,
        ):
            writer.insert("todos", f"t{number}", {"turn": number}).unwrap()
            writer.push().unwrap()
        return time.monotonic()

    sockets = await asyncio.gather(*(opened(number) for number in range(SOCKETS)))
    rounds_s = []
    for number in range(ROUNDS):
        waiting = [asyncio.create_task(heard(socket)) for socket in sockets]
        accepted_s = await asyncio.to_thread(pushed, number)
        rounds_s.append(max(await asyncio.gather(*waiting)) - accepted_s)
    for socket in sockets:
        socket.transport.abort()
    return rounds_s


def address_of(stack: Stack) -> str:
    """Return where the emulator serves the stack's WebSocket API."""
    formation: Any = boto3.client("cloudformation", **client_options(stack.endpoint))
    (described,) = formation.describe_stacks(StackName=stack.stack)["Stacks"]
    outputs = {each["OutputKey"]: each["OutputValue"] for each in described["Outputs"]}
    return socket_address(stack.endpoint, outputs["SocketUrl"])


def token_of(stack: Stack, gateway: str, client: str) -> str:
    """Sign a client's token."""
    return sign({"sub": client, "gw": gateway}, 3_600, stack.jwt_secret, int(time.time()))


def measured(stack: Stack) -> list[float]:
    """Return the milliseconds of each edit, from the call to the other file."""
    sockets, gateway = address_of(stack), f"bench{uuid4().hex[:8]}"
    token = partial(token_of, stack, gateway)
    with tempfile.TemporaryDirectory(prefix=".bench-", dir=Path.cwd()) as name:
        ann, bob = (
            Client(
                Path(name) / f"{client}.db",
                client_id=client,
                transport=HttpTransport(
                    stack.http, gateway, token=partial(token, client), socket_url=sockets
                ),
            )
            for client in ("ann", "bob")
        )
        with ann, bob:
            ann.insert("todos", "t1", {"turn": -1}).unwrap()
            ann.sync().unwrap()
            bob.sync().unwrap()
            turns: list[Any] = list(range(WARM_UP + EDITS))
            return [*milliseconds(ann, bob, "todos", "t1", "turn", turns)][WARM_UP:]
