"""The emulator counts what AWS would bill, at its door: `GET /_lakesync/counts` gives the totals.

What reaches it from outside is counted, and what it starts: requests of the HTTP API, messages of
WebSockets, invocations with what they log, calls of services with DynamoDB's units. What the
emulator asks itself, such as polls of queues and streams, is not.
"""

# The emulator's own names are private; names.py watches over them.
# ruff: noqa: SLF001

from __future__ import annotations

import functools
import json
import math
import threading
from collections import Counter
from typing import TYPE_CHECKING, Any

from benchmarks.units import batch_read_units, item_bytes, read_units, transaction_units
from tools.local_stack.emulator.names import emulator_module

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

PATH = "/_lakesync/counts"
MESSAGE_BYTES = 32_768
"""API Gateway meters a message of a WebSocket in steps of so many bytes."""
_MESSAGE_EVENT = 6
_BUSY = frozenset({429, 500, 502, 503, 504})
"""What the emulator answers where this machine has no function free; AWS starts another."""
_BODY = 3


class Counts:
    """Totals by name since the emulator started."""

    def __init__(self) -> None:
        self._totals: Counter[str] = Counter()
        self._lock = threading.Lock()

    def add(self, **more: float) -> None:
        """Add to some totals."""
        with self._lock:
            for name, count in more.items():
                self._totals[name] += count  # type: ignore[assignment]

    def answer(self) -> bytes:
        """Return all totals as JSON."""
        with self._lock:
            return json.dumps(dict(sorted(self._totals.items()))).encode()


def count_what_is_billed() -> None:
    """AWS: every request, message, invocation and unit is on the bill. The emulator counts none."""
    counts = Counts()
    _serve(counts)
    _count_services(counts)
    _count_requests(counts)
    _count_messages(counts)
    _count_invocations(counts)


def _serve(counts: Counts) -> None:
    app = emulator_module("ministack.app")
    original = app._handle_pre_body_request

    async def handle(method: str, path: str, *rest: Any) -> Any:
        if path == PATH:
            return 200, {"Content-Type": "application/json"}, counts.answer()
        return await original(method, path, *rest)

    app._handle_pre_body_request = handle


def _count_services(counts: Counts) -> None:
    handlers = emulator_module("ministack.app").SERVICE_HANDLERS

    def counting(service: str, handle: Callable[..., Any]) -> Callable[..., Any]:
        async def counted(method: str, path: str, headers: Any, body: bytes, *rest: Any) -> Any:
            answer = await handle(method, path, headers, body, *rest)
            operation = operation_of(method, headers, rest[0])
            counts.add(**{f"{service}.{operation}": 1})
            if service == "dynamodb":
                counts.add(**_units(operation, body, answer))
            return answer

        return counted

    for service, handle in list(handlers.items()):
        handlers[service] = counting(service, handle)


def operation_of(method: str, headers: Mapping[str, str], query: Mapping[str, Any]) -> str:
    """Return what a call asks for; of S3 the method, and whether it lists."""
    named = str(headers.get("x-amz-target", "")).rpartition(".")[2]
    return named or ("LIST" if "list-type" in query else method)


def _units(operation: str, body: bytes, answer: Any) -> dict[str, float]:
    unit, units = dynamo_units(operation, body, bytes(answer[2] or b"{}"))
    return {f"dynamodb.{unit}.{_table(json.loads(body))}": units} if units else {}


def dynamo_units(operation: str, body: bytes, answer: bytes) -> tuple[str, float]:
    """Return whether a call reads or writes, and its units by the rule of the documentation.

    An update costs what a put of an item below 1 KB does: those of the library are small.
    """
    request = json.loads(body)
    if operation == "TransactWriteItems":
        return "writes", transaction_units(body)
    if operation in ("PutItem", "UpdateItem", "DeleteItem"):
        return "writes", max(1, math.ceil(item_bytes(request.get("Item", {})) / 1024))
    if operation == "BatchWriteItem":
        puts = [each for some in request["RequestItems"].values() for each in some]
        sizes = [item_bytes(each.get("PutRequest", {}).get("Item", {})) for each in puts]
        return "writes", float(sum(max(1, math.ceil(size / 1024)) for size in sizes))
    if operation not in ("GetItem", "BatchGetItem", "Query", "Scan"):
        return "none", 0.0
    if operation == "BatchGetItem":
        is_strong = any(each.get("ConsistentRead") for each in request["RequestItems"].values())
        units = batch_read_units(body, answer) if b"Responses" in answer else 0.0
        return "reads", units if is_strong else units / 2
    given = json.loads(answer)
    size = item_bytes(given.get("Item", {}))
    size += sum(map(item_bytes, given.get("Items", [])))
    return "reads", read_units([size]) if request.get("ConsistentRead") else read_units([size]) / 2


def _table(request: Mapping[str, Any]) -> str:
    if "TableName" in request:
        return str(request["TableName"])
    if "RequestItems" in request:
        return str(next(iter(request["RequestItems"])))
    first = next(iter(request["TransactItems"][0].values()))
    return str(first["TableName"])


def _count_requests(counts: Counts) -> None:
    gateway = emulator_module("ministack.services.apigateway")
    original = gateway.handle_execute

    @functools.wraps(original)
    async def handle(*args: Any, **kwargs: Any) -> Any:
        answer = await original(*args, **kwargs)
        route = str(args[2]).rstrip("/").rpartition("/")[2]
        kind = "refused" if answer[0] in _BUSY else "requests"
        counts.add(**{f"http.{kind}.{args[3]} {route}": 1, "http.bytes_out": len(answer[2] or b"")})
        return answer

    gateway.handle_execute = handle


def _count_messages(counts: Counts) -> None:
    gateway = emulator_module("ministack.services.apigateway")
    invoke, connections = gateway._invoke_ws_lambda, gateway.handle_connections_api

    @functools.wraps(invoke)
    async def received(*args: Any, **kwargs: Any) -> Any:
        event, text = args[_MESSAGE_EVENT], args[8]
        if event == "MESSAGE":
            counts.add(**{"socket.messages_in": steps(len(text or ""))})
        else:
            counts.add(**{f"socket.{event.lower()}": 1})
        return await invoke(*args, **kwargs)

    @functools.wraps(connections)
    async def asked(method: str, *args: Any) -> Any:
        answer = await connections(method, *args)
        body = args[_BODY]
        if method == "POST" and answer[0] < 300:  # noqa: PLR2004 - HTTP's own number
            counts.add(**{"socket.messages_out": steps(len(body)), "socket.bytes_out": len(body)})
        else:
            counts.add(**{f"socket.{method.lower()}": 1})
        return answer

    gateway._invoke_ws_lambda = received
    gateway.handle_connections_api = asked


def steps(size: int) -> int:
    """Return how many messages one of this size is metered as."""
    return max(1, math.ceil(size / MESSAGE_BYTES))


def _count_invocations(counts: Counts) -> None:
    functions = emulator_module("ministack.services.lambda_svc")
    original = functions._emit_lambda_logs

    @functools.wraps(original)
    def emit(function: dict[str, Any], request: str, log: str, *rest: Any, **more: Any) -> None:
        config = function.get("config") or function
        name = config.get("FunctionName", "unknown")
        counts.add(**{
            f"lambda.requests.{name}": 1,
            f"lambda.ms.{name}": rest[1],
            f"lambda.log_bytes.{name}": len(log.encode()),
            f"lambda.log_lines.{name}": len(log.splitlines()),
        })  # fmt: skip
        original(function, request, log, *rest, **more)

    functions._emit_lambda_logs = emit
