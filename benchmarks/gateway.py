"""What a push and a pull cost in CPU, from request bytes to the wire and from the log to bytes.

``python -m benchmarks --only gateway`` prints the figures; ``run`` gives them.
"""

from __future__ import annotations

import os
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any, Final

from benchmarks.entries import Entry, at_most, cpu_us, sized
from benchmarks.flights import BATCH, DISTINCT, WALL_MS, Chance, batches
from benchmarks.scale.dynamo import Dynamo
from benchmarks.scale.ports import OneCaller
from lakesync.buffer.caller import DynamoCaller
from lakesync.buffer.dynamo import DynamoBuffer
from lakesync.buffer.memory_buffer import MemoryBuffer
from lakesync.core.messages import Pull
from lakesync.gateway.pull import PullService
from lakesync.gateway.push import PushService
from lakesync.log.log_cache import Tails
from lakesync.wire import jsonish, proto

if TYPE_CHECKING:
    from collections.abc import Callable

    from lakesync.buffer.caller import Send
    from lakesync.core.messages import Push
    from lakesync.ports import Buffer, Commit

MEASURES: Final = (
    "layers/lakesync/python/lakesync/buffer",
    "layers/lakesync/python/lakesync/core",
    "layers/lakesync/python/lakesync/gateway/push.py",
    "layers/lakesync/python/lakesync/gateway/pull.py",
    "layers/lakesync/python/lakesync/log",
    "layers/lakesync/python/lakesync/ports",
    "layers/lakesync/python/lakesync/wire",
)
PUSHES: Final = sized(60, 2)
ROWS: Final = range(1_500)
PAGE_DELTAS: Final = 1_000
PUSH_TARGET: Final = 40
PUSH_TARGET_WITHOUT_CLIENT: Final = 25
PULL_TARGET: Final = 5
PULL_JSON_TARGET: Final = 15
_TABLE: Final = "lakesync-buffer"
GATEWAY: Final = "bench"
_ROUNDS: Final = sized(5, 1)
_PAGES: Final = sized(20, 1)


def run() -> list[Entry]:
    """Measure, and give one entry for each figure."""
    return [*_push_entries(), *_pull_entries()]


# --- push


class _Discarding(MemoryBuffer):
    """Takes any commit, and keeps none once it is told so: what is left is the gateway's own."""

    def __init__(self) -> None:
        super().__init__()
        self.stands_still = False

    def commit(self, commit: Commit) -> None:
        """Take a commit."""
        if not self.stands_still:
            super().commit(commit)


class _TakesAnything:
    """Takes any transaction, and forgets it once it is told so; before, a model of DynamoDB."""

    def __init__(self) -> None:
        self.stands_still = False
        self._model = Dynamo(OneCaller(), Random(0))

    def __call__(self, headers: dict[str, str], body: bytes) -> tuple[int, bytes]:
        """Answer an operation."""
        if self.stands_still and headers["X-Amz-Target"].endswith(".TransactWriteItems"):
            return 200, b"{}"
        return self._model(headers, body)


def _push_entries() -> list[Entry]:
    turns = [list(batches(PUSHES, ROWS, first=turn * PUSHES)) for turn in range(_ROUNDS + 1)]
    emulated, memory, answering = _TakesAnything(), _Discarding(), _TakesAnything()
    to_wire = _push_us(emulated, dynamo(emulated), proto, turns)
    to_port = _push_us(memory, memory, proto, turns)
    from_json = _push_us(answering, dynamo(answering), jsonish, turns)
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


def _push_us(
    store: _TakesAnything | _Discarding, buffer: Buffer, wire: Any, turns: list[list[Push]]
) -> float:
    bodies = [[wire.encode_push(push) for push in turn] for turn in turns]
    service = PushService(
        buffer, wall_clock=lambda: WALL_MS + 1_000_000, sleep_ms=lambda _: None, chance=Chance()
    )

    def push_all(turn: int) -> int:
        for body in bodies[turn + 1]:
            receipt = service.push(GATEWAY, wire.decode_push(body))
            assert receipt.accepted == BATCH
            wire.encode_receipt(receipt)
        return PUSHES * BATCH

    push_all(-1)  # the tables are declared, and from here on the process knows the rows
    store.stands_still = True
    return cpu_us(push_all, _ROUNDS)


def dynamo(send: Send) -> DynamoBuffer:
    """Return a buffer whose requests go where the caller says."""
    os.environ.setdefault("AWS_ACCESS_KEY_ID", "none")
    os.environ.setdefault("AWS_SECRET_ACCESS_KEY", "none")
    return DynamoBuffer(_TABLE, DynamoCaller("eu-west-1", send=send))


# --- pull


def _pull_entries() -> list[Entry]:
    send = StandsStill(with_a_page)
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


class StandsStill:
    """A DynamoDB whose content does not change: each request is answered as it was before."""

    def __init__(self, *fill: Callable[[Buffer], None]) -> None:
        self._model = Dynamo(OneCaller(), Random(0))
        self._answers: dict[tuple[str, bytes], tuple[int, bytes]] = {}
        for step in fill:
            step(dynamo(self._model))

    def __call__(self, headers: dict[str, str], body: bytes) -> tuple[int, bytes]:
        """Answer an operation."""
        asked = headers["X-Amz-Target"], body
        if asked not in self._answers:
            self._answers[asked] = self._model(headers, body)
        return self._answers[asked]


def with_a_page(buffer: Buffer) -> None:
    """Push a page of deltas into a buffer."""
    push_flights(buffer, PAGE_DELTAS // BATCH)


def push_flights(buffer: Buffer, pushes: int) -> None:
    """Push so many batches into a buffer, whatever its sync rules say."""
    service = PushService(
        buffer, wall_clock=lambda: WALL_MS + 1_000_000, sleep_ms=lambda _: None, chance=Chance()
    )
    for push in batches(pushes, ROWS):
        receipt = service.push(GATEWAY, replace(push, trusted=True))
        assert receipt.accepted == BATCH, receipt.outcomes[0].error


def pull_us(send: Send, wire: Any, pull: Pull) -> float:
    """Return the CPU of a pulled delta: DynamoDB's answer to the bytes of the page."""
    buffer = dynamo(send)
    service = PullService(buffer, wall_clock=lambda: WALL_MS)

    def pull_all(_: int) -> int:
        count = 0
        for _ in range(_PAGES):
            service._log.tails = Tails(buffer)  # noqa: SLF001 - else all but the first are from memory
            page = service.pull(GATEWAY, pull)
            wire.encode_page(page)
            count += page.count
        assert count == _PAGES * PAGE_DELTAS, count
        return count

    return cpu_us(pull_all, _ROUNDS)
