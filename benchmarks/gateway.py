"""What a push and a pull cost in CPU, from request bytes to the wire and from the log to bytes.

``python -m benchmarks --only gateway`` prints the figures; ``run`` gives them.
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from benchmarks.entries import Entry, at_most, cpu_us
from benchmarks.flights import BATCH, DISTINCT, WALL_MS, Chance, batches
from lakesync.buffer import keys, pack, requests
from lakesync.buffer.caller import DynamoCaller
from lakesync.buffer.dynamo import DynamoBuffer
from lakesync.buffer.memory import MemoryBuffer
from lakesync.buffer.transaction import transact
from lakesync.core.config import GatewayConfig
from lakesync.core.declaring import admitting
from lakesync.core.messages import Pull
from lakesync.gateway.pull import PullService
from lakesync.gateway.push import PushService
from lakesync.log.log_cache import Tails
from lakesync.wire import jsonish, proto

if TYPE_CHECKING:
    from lakesync.buffer.caller import Send
    from lakesync.core.messages import Push
    from lakesync.ports import Buffer, Commit

PUSHES: Final = 60
ROWS: Final = range(1_500)
PAGE_DELTAS: Final = 1_000
PUSH_TARGET: Final = 40
PUSH_TARGET_WITHOUT_CLIENT: Final = 25
PULL_TARGET: Final = 5
PULL_JSON_TARGET: Final = 15
_TABLE: Final = "lakesync-buffer"
GATEWAY: Final = "bench"
_ROUNDS: Final = 5
_PAGES: Final = 20


def run() -> list[Entry]:
    """Measure, and give one entry for each figure."""
    return [*_push_entries(), *_pull_entries()]


# --- push


class _Discarding(MemoryBuffer):
    """Takes any commit and keeps none: what is left is the gateway's own cost."""

    def commit(self, commit: Commit) -> None:
        """Take a commit."""


def _push_entries() -> list[Entry]:
    turns = [list(batches(PUSHES, ROWS, first=turn * PUSHES)) for turn in range(_ROUNDS + 1)]
    to_wire = _push_us(dynamo(_TakesAnything()), proto, turns)
    to_port = _push_us(_Discarding(), proto, turns)
    from_json = _push_us(dynamo(_TakesAnything()), jsonish, turns)
    warm = f"batches of {BATCH}, 5 columns, {DISTINCT} distinct rows a commit, a warm process"
    return [
        at_most(
            "gateway_push_cpu_us_per_delta",
            to_wire,
            "us",
            PUSH_TARGET,
            f"{warm}; protobuf bytes in, signed request and receipt out; from JSON {from_json:.1f}",
        ),
        at_most(
            "gateway_push_cpu_us_per_delta_without_client",
            to_port,
            "us",
            PUSH_TARGET_WITHOUT_CLIENT,
            f"{warm}; without compressing, writing and signing DynamoDB's request",
        ),
    ]


def _push_us(buffer: Buffer, wire: Any, turns: list[list[Push]]) -> float:
    bodies = [[wire.encode_push(push) for push in turn] for turn in turns]
    service = PushService(
        buffer, wall_clock=lambda: WALL_MS + 1_000_000, sleep_ms=lambda _: None, chance=Chance()
    )

    def push_all(turn: int) -> int:
        for body in bodies[turn + 1]:
            receipt = service.push(GATEWAY, wire.decode_push(body))
            wire.encode_receipt(receipt)
        return PUSHES * BATCH

    push_all(-1)  # from here on the process knows the rows
    return cpu_us(push_all, _ROUNDS)


def dynamo(send: Send) -> DynamoBuffer:
    """Return a buffer whose requests go where the caller says."""
    os.environ.setdefault("AWS_ACCESS_KEY_ID", "none")
    os.environ.setdefault("AWS_SECRET_ACCESS_KEY", "none")
    return DynamoBuffer(_TABLE, DynamoCaller("eu-west-1", send=send))


class _TakesAnything:
    """Takes any commit, and answers as a DynamoDB that has a table declared and no rows."""

    def __init__(self) -> None:
        deltas = [delta for _, delta in next(batches(1, ROWS)).deltas]
        config = replace(admitting(GatewayConfig(), None, deltas), version=1)
        head = {
            **requests.key(*keys.head_key(GATEWAY, "main")),
            "c": requests.number(1),
            "v": requests.number(config.version),
        }
        document = {"d": requests.binary(pack.pack_config(config))}
        self._config = json.dumps({"Item": document}).encode()
        self._head = json.dumps({"Responses": {_TABLE: [head]}}).encode()

    def __call__(self, headers: dict[str, str], body: bytes) -> tuple[int, bytes]:
        """Answer an operation."""
        if headers["X-Amz-Target"].endswith(".GetItem"):
            return 200, self._config
        if f'"{GATEWAY}|head"'.encode() in body:
            return 200, self._head
        return 200, b'{"Responses":{}}'


# --- pull


def _pull_entries() -> list[Entry]:
    send = StoredLog(with_a_page(KeptCommits()))
    pull = Pull("reader", deltas_max=PAGE_DELTAS)
    detail = f"pages of {PAGE_DELTAS:,}, commits of {BATCH}, 5 columns; DynamoDB's answer to bytes"
    return [
        at_most(
            "gateway_pull_cpu_us_per_delta", pull_us(send, proto, pull), "us", PULL_TARGET, detail
        ),
        at_most(
            "gateway_pull_json_cpu_us_per_delta",
            pull_us(send, jsonish, pull),
            "us",
            PULL_JSON_TARGET,
            f"{detail}, as JSON",
        ),
    ]


class StoredLog:
    """Answers as DynamoDB does for a log of one full page."""

    def __init__(self, buffer: KeptCommits) -> None:
        commits = buffer.commits
        last = commits[-1]
        config = buffer.config(GATEWAY)
        head = {
            **requests.key(*keys.head_key(GATEWAY, "main")),
            "c": requests.number(last.stamp),
            "l": requests.number(last.stamp),
            "v": requests.number(config.version),
        }
        document = {"d": requests.binary(pack.pack_config(config))}
        items = [json.loads(transact(_TABLE, commit)[0])["TransactItems"][1] for commit in commits]
        self._head = json.dumps({"Item": head}).encode()
        self._config = json.dumps({"Item": document}).encode()
        self._log = json.dumps({"Items": [item["Put"]["Item"] for item in items]}).encode()

    def __call__(self, headers: dict[str, str], body: bytes) -> tuple[int, bytes]:
        """Answer an operation."""
        if headers["X-Amz-Target"].endswith(".Query"):
            return 200, self._log
        return 200, self._config if f'"{keys.CONFIG}"'.encode() in body else self._head


class KeptCommits(MemoryBuffer):
    """Keeps commits as they were made."""

    def __init__(self) -> None:
        super().__init__()
        self.commits: list[Commit] = []

    def commit(self, commit: Commit) -> None:
        """Commit, and keep it."""
        super().commit(commit)
        self.commits.append(commit)


def with_a_page(buffer: KeptCommits) -> KeptCommits:
    """Push a page of deltas into a buffer."""
    service = PushService(
        buffer, wall_clock=lambda: WALL_MS + 1_000_000, sleep_ms=lambda _: None, chance=Chance()
    )
    for push in batches(PAGE_DELTAS // BATCH, ROWS):
        service.push(GATEWAY, push)
    return buffer


def pull_us(send: Send, wire: Any, pull: Pull) -> float:
    """Return the CPU of a pulled delta: DynamoDB's answer to the bytes of the page."""
    buffer = dynamo(send)
    service = PullService(buffer, wall_clock=lambda: WALL_MS)

    def pull_all(_: int) -> int:
        count = 0
        for _ in range(_PAGES):
            service._tails = Tails(buffer)  # noqa: SLF001 - else all but the first are from memory
            page = service.pull(GATEWAY, pull)
            wire.encode_page(page)
            count += page.count
        assert count == _PAGES * PAGE_DELTAS
        return count

    return cpu_us(pull_all, _ROUNDS)
