"""How soon an edit is in another client's file, on the local stack: push, stream, frame, SQLite.

``python -m benchmarks --only live`` prints the figures; ``run`` gives them.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import boto3

from benchmarks.entries import at_most
from benchmarks.stack import _running_stack
from lakesync.cli.tokens import sign
from lakesync.client import Client, HttpTransport
from tools.demo.live import milliseconds, socket_address
from tools.local_stack.clients import client_options

if TYPE_CHECKING:
    from benchmarks.entries import Entry
    from tools.local_stack.stack import Stack

EDITS: Final = 100
WARM_UP: Final = 10
P50_TARGET_MS: Final = 150
P99_TARGET_MS: Final = 500


def run() -> list[Entry]:
    """Measure, and give one entry for each figure."""
    with _running_stack() as stack:
        spent = measured(stack)
    p50, p99 = statistics.median(spent), statistics.quantiles(spent, n=100)[98]
    detail = (
        f"{EDITS} edits of one client, each until it is in another's SQLite file, one after the "
        f"other, behind {WARM_UP} to warm up; the fastest {min(spent):.0f} ms"
    )
    return [
        at_most("broadcast_ms_p50", p50, "ms", P50_TARGET_MS, detail),
        at_most("broadcast_ms_p99", p99, "ms", P99_TARGET_MS, detail),
    ]


def measured(stack: Stack) -> list[float]:
    """Give the milliseconds of each edit, from the call to the other file."""
    formation: Any = boto3.client("cloudformation", **client_options(stack.endpoint))
    (described,) = formation.describe_stacks(StackName=stack.stack)["Stacks"]
    outputs = {each["OutputKey"]: each["OutputValue"] for each in described["Outputs"]}
    sockets = socket_address(stack.endpoint, outputs["SocketUrl"])
    gateway = f"bench{uuid4().hex[:8]}"

    def token(client: str) -> str:
        claims = {"sub": client, "gw": gateway}
        return sign(claims, 3_600, stack.jwt_secret, int(time.time()))

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
