"""Each function as Lambda loads it, over a buffer in memory, driven by ``events/``."""

from __future__ import annotations

import asyncio
import base64
import gzip
import importlib.util
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from lakesync.adapters.attachments.memory import MemorySignedObjects
from lakesync.buffer.memory import MemoryBuffer
from lakesync.buffer.memory_access import MemoryAccess
from lakesync.buffer.memory_actions import MemoryHandlers, MemoryRuns
from lakesync.buffer.memory_audit import MemoryAudit
from lakesync.buffer.memory_connectors import MemoryConnectors
from lakesync.buffer.memory_quota import MemoryQuotas
from lakesync.runtime import (
    wiring,
    wiring_access,
    wiring_actions,
    wiring_attachments,
    wiring_connectors,
)
from tests.support.logs import logged
from tests.support.repository import ROOT

if TYPE_CHECKING:
    import io
    from collections.abc import Callable, Iterator

ENVIRONMENT = {
    "AWS_REGION": "eu-central-1",
    "AWS_DEFAULT_REGION": "eu-central-1",
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "BUFFER_TABLE": "buffer",
    "FLUSH_QUEUE_URL": "unset",
    "FLUSH_THRESHOLD_BYTES": "1000000",
    "BACKPRESSURE_BYTES_MAX": "10000000",
    "BACKPRESSURE_AGE_S_MAX": "3600000000",
    "QUOTA_PUSHES_PER_S": "100",
    "QUOTA_DELTAS_PER_S": "0",
    "QUOTA_BYTES_PER_S": "0",
    "FLUSH_FUNCTION": "flush",
    "ACTIONS_FUNCTION": "actions",
    "RETAIN_FUNCTION": "retain",
    "SOURCE_FUNCTION": "pull_source",
    "FLOW_FUNCTION": "flow",
    "LAKE_FLOW_FUNCTION": "lake-flow",
    "LAKE_BUCKET": "lake",
    "CONNECTOR_SECRETS": "stack/connectors/",
    "POLL_MACHINE": "arn:aws:states:eu-central-1:123456789012:stateMachine:poll",
    "POLL_SCHEDULE_GROUP": "polls",
    "POLL_SCHEDULE_ROLE": "arn:aws:iam::123456789012:role/poll",
    "ACTION_SECRETS": "stack/actions/",
    "AUDIT_TABLE": "audit",
    "CONNECTIONS_TABLE": "connections",
    "SOCKET_HOST": "api.execute-api.eu-central-1.amazonaws.com",
    "SOCKET_STAGE": "live",
    "ACTION_HOSTS": "*",
    "CONNECTOR_HOSTS": "*",
    "ACTIONS_TABLE": "actions",
    "ATTACHMENT_BYTES_MAX": "1000000",
    "ANNOUNCE_QUEUE_URL": "unset",
    "DELIVER_QUEUE_URL": "unset",
    "SECRET_PREFIX": "stack/destinations/",
    "GLUE_JOB": "materialise",
    "RUNS_MAX": "4",
    "SMALL_BATCH_DELTAS": "0",
    "MERGE_AFTER_MINUTES": "0",
    "DATABASE_PREFIX": "ls",
    "LAKE_CATALOGUE": '{"kind": "glue"}',
    "STACK_ID": "arn:aws:cloudformation:eu-central-1:123456789012:stack/one/1",
    "JWT_ALGORITHMS": "HS256",
    "JWT_SECRET_ARN": "jwt",
}


def event(name: str) -> dict[str, Any]:
    """Return a sample event."""
    event: dict[str, Any] = json.loads((ROOT / "events" / f"{name}.json").read_text())
    return event


class Context:
    """What Lambda tells a function about its invocation."""

    invoked_function_arn = "arn:aws:lambda:eu-west-1:123456789012:function:function:live"
    aws_request_id = "c6af9ac6-7b61-11e6-9a41-93e8deadbeef"

    def __init__(self, remaining_ms: int = 300_000) -> None:
        self.remaining_ms = remaining_ms

    def get_remaining_time_in_millis(self) -> int:
        return self.remaining_ms


def no_deletion(event: Any, has_time: Any) -> Any:
    """Delete no gateway: nobody asks for it here."""
    pytest.fail(f"who asks for {event}, {has_time}?")


@dataclass
class Answer:
    """An HTTP answer, decoded."""

    status: int
    headers: dict[str, str]
    body: bytes = field(repr=False)

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Functions:
    """Loads functions, as a cold start does, and calls them."""

    buffer: MemoryBuffer
    access: MemoryAccess
    quotas: MemoryQuotas
    audit: MemoryAudit
    attachments: MemorySignedObjects

    def load(self, name: str) -> Callable[[Any, Any], Any]:
        """Return a function's handler, out of a fresh module."""
        path = ROOT / "functions" / name / "app.py"
        spec = importlib.util.spec_from_file_location(f"function_{name}", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        handler: Callable[[Any, Any], Any] = module.handler
        return handler

    def http(self, name: str, sent: str | dict[str, Any]) -> Answer:
        """Send one HTTP event to a function."""
        wanted = event(sent) if isinstance(sent, str) else sent
        answer = self.load(name)(wanted, Context())
        body = answer["body"].encode()
        if answer["isBase64Encoded"]:
            body = base64.b64decode(body)
        if answer["headers"].get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        return Answer(answer["statusCode"], answer["headers"], body)


@pytest.fixture
def functions(monkeypatch: pytest.MonkeyPatch) -> Iterator[Functions]:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    for name in ("AWS_ENDPOINT_URL", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    buffer, access = MemoryBuffer(), MemoryAccess()
    monkeypatch.setattr(wiring, "buffer", lambda _: buffer)
    monkeypatch.setattr(wiring_access, "store", lambda _: access)
    connectors = MemoryConnectors()
    monkeypatch.setattr(wiring_connectors, "connector_store", lambda _: connectors)
    handlers, runs = MemoryHandlers(), MemoryRuns()
    monkeypatch.setattr(wiring_actions, "handler_store", lambda _: handlers)
    monkeypatch.setattr(wiring_actions, "runs", lambda _: runs)
    audit = MemoryAudit()
    monkeypatch.setattr(wiring_access, "audit_store", lambda _: audit)
    quotas = MemoryQuotas()
    monkeypatch.setattr(wiring_access, "quota_store", lambda _: quotas)
    # Mangum makes a loop for the life of its process, and a test is not one.
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    attachments = MemorySignedObjects()
    monkeypatch.setattr(wiring_attachments, "signed_objects", lambda _: attachments)
    yield Functions(buffer, access, quotas, audit, attachments)
    asyncio.set_event_loop(None)
    loop.close()


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Iterator[io.StringIO]:
    """Everything that the functions log, at the most talkative level."""
    with logged(monkeypatch) as stream:
        yield stream
