"""Each function as Lambda loads it, over a buffer in memory, driven by ``events/``."""

from __future__ import annotations

import asyncio
import base64
import gzip
import importlib.util
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import boto3
import pytest

from lakesync.adapters.lake.memory import MemorySignedObjects
from lakesync.buffer.admin_stores import ItemAudit, ItemConnectors, ItemHandlers, ItemRuns
from lakesync.buffer.admission import ItemAccess, ItemQuotas
from lakesync.buffer.memory_buffer import MemoryBuffer
from lakesync.buffer.memory_items import MemoryItemStore
from lakesync.runtime import wiring, wiring_connectors
from tests.support.function_environment import ENVIRONMENT
from tests.support.logs import logged
from tests.support.repository import ROOT

if TYPE_CHECKING:
    import io
    from collections.abc import Callable, Iterator


def event(
    name: str, *, body: object = None, query: str | dict[str, str] | None = None, **claims: object
) -> dict[str, Any]:
    """Return a sample event, with another body, query or claims of the token if they are given."""
    sent: dict[str, Any] = json.loads((ROOT / "events" / f"{name}.json").read_text())
    if body is not None:
        sent["body"] = body if isinstance(body, str) else json.dumps(body)
    if query is not None:
        sent["rawQueryString"] = query if isinstance(query, str) else urlencode(query)
    if claims:
        context = sent["requestContext"]["authorizer"]
        context = context.get("lambda", context)
        context["claims"] = json.dumps(json.loads(context["claims"]) | claims)
    return sent


class Context:
    """What Lambda tells a function about its invocation."""

    invoked_function_arn = "arn:aws:lambda:eu-west-1:123456789012:function:function:live"
    aws_request_id = "c6af9ac6-7b61-11e6-9a41-93e8deadbeef"

    def __init__(self, remaining_ms: int = 300_000) -> None:
        self.remaining_ms = remaining_ms

    def get_remaining_time_in_millis(self) -> int:
        return self.remaining_ms


def lake_bucket() -> Any:
    """Create the lake's bucket, and return a client of S3."""
    s3: Any = boto3.client("s3", region_name="eu-central-1")
    place = {"LocationConstraint": "eu-central-1"}
    s3.create_bucket(Bucket="lake", CreateBucketConfiguration=place)
    return s3


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
    items: MemoryItemStore
    access: ItemAccess
    quotas: ItemQuotas
    audit: ItemAudit
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

    def call(self, function: str, name: str | dict[str, Any], remaining_ms: int = 300_000) -> Any:
        """Call a function with a sample event, or another."""
        return self.load(function)(
            event(name) if isinstance(name, str) else name, Context(remaining_ms)
        )

    def http(self, name: str, sent: str | dict[str, Any]) -> Answer:
        """Send one HTTP event to a function."""
        answer = self.call(name, sent)
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
    buffer, items = MemoryBuffer(), MemoryItemStore()
    access = ItemAccess(items)
    monkeypatch.setattr(wiring, "buffer", lambda _: buffer)
    monkeypatch.setattr(wiring, "store", lambda _: access)
    connectors = ItemConnectors(items)
    monkeypatch.setattr(wiring_connectors, "connector_store", lambda _: connectors)
    handlers, runs = ItemHandlers(items), ItemRuns(MemoryItemStore())
    monkeypatch.setattr(wiring_connectors, "handler_store", lambda _: handlers)
    monkeypatch.setattr(wiring_connectors, "runs", lambda _: runs)
    audit = ItemAudit(MemoryItemStore())
    monkeypatch.setattr(wiring, "audit_store", lambda _: audit)
    quotas = ItemQuotas(items)
    monkeypatch.setattr(wiring, "quota_store", lambda _: quotas)
    # Mangum makes a loop for the life of its process, and a test is not one.
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    attachments = MemorySignedObjects()
    monkeypatch.setattr(wiring, "signed_objects", lambda _: attachments)
    yield Functions(buffer, items, access, quotas, audit, attachments)
    asyncio.set_event_loop(None)
    loop.close()


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Iterator[io.StringIO]:
    """Everything that the functions log, at the most talkative level."""
    with logged(monkeypatch) as stream:
        yield stream
