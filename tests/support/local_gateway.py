"""A gateway over HTTP in this process: the real routes on the buffer in memory, without AWS.

Each request becomes the event that API Gateway would make of it, with the authoriser's answer in
it; so everything from the transport down to the merge is what is deployed. So do the frames of its
WebSockets, which are served once somebody asks for their address. Pages of other origins may ask
it, as the template says.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from unittest.mock import patch
from urllib.parse import urlsplit
from uuid import uuid4

import jwt

from lakesync.adapters.lake.memory import MemorySignedObjects
from lakesync.adapters.lake.parquet import ParquetEncoder
from lakesync.buffer.admin_stores import ItemAudit, ItemConnectors, ItemHandlers
from lakesync.buffer.admission import ItemAccess, ItemQuotas
from lakesync.buffer.connections import ItemConnections, ItemTickets
from lakesync.buffer.memory_items import MemoryItemStore, MemoryRemoval
from lakesync.checkpoint.store import Checkpoints
from lakesync.compat.follower_deltas import FollowingPushes
from lakesync.compat.follower_progress import cursor_of
from lakesync.compat.follower_pulls import CheckpointService, FollowingPulls
from lakesync.errors import AdapterRefused
from lakesync.gateway.access import Access, AccessAdmin, Quotas
from lakesync.gateway.admin import AdminService
from lakesync.gateway.admin_changes import Audit
from lakesync.gateway.attachments import AttachmentService
from lakesync.gateway.connected import ClientsAdmin
from lakesync.gateway.destination_admin import DestinationAdmin
from lakesync.gateway.frame_sending import FrameSender
from lakesync.gateway.pull import PullService
from lakesync.gateway.push import PushService
from lakesync.log.declare import Declare
from lakesync.maintenance.erasure import Deleter
from lakesync.maintenance.flush import Flusher
from lakesync.ports import Quota
from lakesync.runtime.api.admin import admin_routes
from lakesync.runtime.api.open import open_routes
from lakesync.runtime.api.outlets import webhook_routes
from lakesync.runtime.api.pull import checkpoint_routes, pull_routes, ticket_routes
from lakesync.runtime.api.submissions import action_routes, attachment_routes, push_routes
from lakesync.runtime.authoriser import Authorities, TokenRules, lambda_authoriser
from lakesync.runtime.http import create_app
from lakesync.runtime.invocations import asked_by, with_questions
from lakesync.runtime.tasks import delete_and_wait, delete_task
from lakesync.runtime.websockets import SocketTickets
from lakesync.runtime.wiring_connectors import also_removing
from tests.delivery.world import KeptDatabase
from tests.support.acting import Acting
from tests.support.lake import Objects
from tests.support.local_sockets import (
    LocalSockets,
    PostedSockets,
    Stream,
    StreamedBuffer,
    StreamedItems,
)
from tests.support.polling import MemorySecrets, PollingByHand
from tests.support.source_function import Sources

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from starlette.applications import Starlette

    from lakesync.ports import SignedObjects
    from lakesync.runtime.observe import Handler
    from lakesync.runtime.tasks import DeleteNow

SECRET = "a secret that signs tokens of tests only"
GATEWAY = "g1"
ANSWERED = {
    "access-control-allow-origin": "*",
    "access-control-expose-headers": (
        "x-request-id,retry-after,x-checkpoint-hlc,x-checkpoint-id,x-checkpoint-next"
    ),
}
"""What API Gateway adds to an answer to a page of another origin: the template's configuration."""
PREFLIGHT = {
    "access-control-allow-origin": "*",
    "access-control-allow-methods": "GET,POST,DELETE",
    "access-control-allow-headers": "authorization,content-type,content-encoding,accept",
    "access-control-max-age": "600",
}
"""What API Gateway answers itself, where a browser asks first whether it may send a request."""


class _Chance:
    def jitter(self) -> float:
        return 0.5

    def token(self) -> str:
        return uuid4().hex


class _Queue:
    def __init__(self) -> None:
        self.sent: list[str] = []

    def send(self, body: str) -> None:
        self.sent.append(body)


@dataclass
class LocalGateway:
    """A running gateway, and what it holds."""

    url: str = ""
    stream: Stream = field(default_factory=Stream)
    sockets: PostedSockets = field(default_factory=PostedSockets)
    objects: Objects = field(default_factory=Objects)
    secrets: MemorySecrets = field(default_factory=MemorySecrets)
    sources: Sources = field(default_factory=Sources)
    signed: SignedObjects = field(default_factory=MemorySignedObjects)
    """Where attachments are; another store may be put in its place."""
    requests: list[str] = field(default_factory=list)
    unusable: dict[str, str] = field(default_factory=dict)
    """Databases that refuse, by the names of their secrets: with the reason."""
    ahead_ms: int = 0
    """By how much its clock is ahead of the real one."""
    serve_sockets: Callable[[], str] | None = None
    restart: Callable[[], None] = lambda: None
    """Start its functions anew: what they remember is gone, such as what was before a restore."""

    def __post_init__(self) -> None:
        self.buffer, self.items = StreamedBuffer(self.stream), StreamedItems(self.stream)
        self.tickets = SocketTickets(ItemTickets(MemoryItemStore()), wall_clock=self.now_ms)
        self.access, self.quotas = ItemAccess(self.items), ItemQuotas(self.items)
        self.connections = ItemConnections(MemoryItemStore())
        self.audit = ItemAudit(MemoryItemStore())
        self.acting = Acting(ItemHandlers(self.items))

    @property
    def socket_url(self) -> str:
        """Where its WebSockets are: served as soon as somebody asks."""
        assert self.serve_sockets, "serve_gateway serves them"
        return self.serve_sockets()

    def now_ms(self) -> int:
        """Return the time of its clock."""
        return time.time_ns() // 1_000_000 + self.ahead_ms

    def ask_database(self, gateway: str, kind: str, secret: str) -> None:
        """Ask a database, as the function does that would use it."""

        def opened(*_: str) -> KeptDatabase:
            if secret in self.unusable:
                raise AdapterRefused(self.unusable[secret])
            return KeptDatabase()

        handler = with_questions(lambda *_: None, opened)

        def invoke(request: str) -> tuple[bool, bytes]:
            return True, json.dumps(handler(json.loads(request), None)).encode()

        asked_by(invoke, invoke)(gateway, kind, secret)

    def token(
        self, client: str, *, gateway: str = GATEWAY, role: str = "client", **claims: object
    ) -> str:
        own = {"sub": client, "gw": gateway, "role": role, "exp": int(time.time()) + 600}
        return jwt.encode(own | claims, SECRET, algorithm="HS256")


@contextmanager
def serve_gateway() -> Iterator[LocalGateway]:
    """Serve a gateway on a free port for as long as the block runs."""
    local = LocalGateway()
    # Metrics would go to standard output, among what the commands under test print.
    quiet = patch.dict(os.environ, {"POWERTOOLS_METRICS_DISABLED": "true"})
    with quiet, _responding(local) as respond, _listening(local, respond) as port:
        local.url = f"http://127.0.0.1:{port}"
        yield local


def write_stack_file(folder: Path, served: LocalGateway) -> Path:
    file = folder / ".local" / "stack.json"
    file.parent.mkdir()
    stack = {"http": served.url, "gateway": GATEWAY, "jwt_secret": SECRET}
    file.write_text(json.dumps(stack), "utf-8")
    return file


@contextmanager
def _listening(local: LocalGateway, respond: Any) -> Iterator[int]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        # Head and body leave apart; else the body would wait for the other side's delayed ACK.
        disable_nagle_algorithm = True

        def _serve(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            local.requests.append(f"{self.command} {self.path}")
            status, headers, answer = self._answer(body)
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def _answer(self, body: bytes) -> tuple[int, Mapping[str, str], bytes]:
            asks = self.command == "OPTIONS" and "access-control-request-method" in self.headers
            if asks and "origin" in self.headers:
                return 204, PREFLIGHT, b""
            status, headers, answer = respond(self.command, self.path, dict(self.headers), body)
            added = ANSWERED if "origin" in self.headers else {}
            return status, {**headers, **added}, answer

        do_GET = do_POST = do_PUT = do_DELETE = do_OPTIONS = _serve  # noqa: N815 - the base class's names

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def pushing(local: LocalGateway) -> PushService:
    """Return what commits to a gateway's buffer."""
    return PushService(
        local.buffer, wall_clock=local.now_ms, sleep_ms=lambda _: None, chance=_Chance()
    )


def whole_api(local: LocalGateway, delete_now: DeleteNow | None = None) -> Starlette:
    """Return the app of all functions, over what a gateway holds; ``delete_now`` stands for one."""
    wall_clock, chance = local.now_ms, _Chance()
    push = pushing(local)
    admin = AdminService(
        local.buffer, wall_clock=wall_clock, sleep_ms=lambda _: None, chance=chance
    )
    flusher = Flusher(local.buffer, local.objects, _Queue(), ParquetEncoder(), _Queue())
    checkpoints = Checkpoints(local.objects)

    def flush_now(gateway: str, table: str) -> Mapping[str, object]:
        report = flusher.flush(gateway, table=table)
        shown = {"batches": report.batches, "deltas": report.deltas}
        return shown | {"watermark": str(report.watermark)}

    declare = Declare(local.buffer, wall_clock=wall_clock, sleep_ms=lambda _: None, chance=chance)
    polling = PollingByHand(
        push.push,
        wall_clock,
        ItemConnectors(local.items),
        objects=local.objects,
        access=local.access,
        secrets=local.secrets,
        rows=local.buffer,
        asks=local.ask_database,
    )
    acting = local.acting
    acting.wall_clock = wall_clock
    items = MemoryRemoval(local.buffer, local.items)
    stores = local.buffer, items, local.access, local.objects
    task = delete_task(Deleter(*stores, declare, wall_clock=wall_clock), wall_clock)

    def invoke(request: str) -> tuple[bool, bytes]:
        return True, json.dumps(task(json.loads(request), lambda: True)).encode()

    delete_now = delete_now or delete_and_wait(invoke)
    audit = Audit(local.audit, wall_clock=wall_clock, token=chance.token)
    clients = ClientsAdmin(
        local.access,
        local.buffer,
        local.connections,
        FrameSender(local.sockets, local.connections, seconds=time.monotonic, sleep_s=time.sleep),
        cursor_of=cursor_of,
    )
    destinations = DestinationAdmin(
        local.buffer, local.objects, _Queue(), wall_clock=wall_clock, asks=local.ask_database
    )
    pulls = PullService(local.buffer, wall_clock=wall_clock, checkpoints=checkpoints)
    return create_app(
        push_routes(
            FollowingPushes(push, local.buffer),
            Quotas(local.quotas, Quota(0, 0, 0), wall_clock=wall_clock),
            body_bytes_max=4_500_000,
        ),
        pull_routes(FollowingPulls(pulls, local.buffer, wall_clock=wall_clock)),
        checkpoint_routes(CheckpointService(local.buffer, checkpoints)),
        ticket_routes(lambda: local.tickets),
        admin_routes(
            admin,
            AccessAdmin(local.access, wall_clock=wall_clock),
            destinations,
            flush_now,
            also_removing(delete_now, lambda: acting.admin, lambda: polling.admin),
            lambda: polling.admin,
            lambda: acting.admin,
            audit,
            lambda: clients,
            lambda: polling.flow_admin(local.buffer, destinations),
        ),
        action_routes(acting.service),
        attachment_routes(
            lambda: AttachmentService(local.buffer, local.signed, bytes_max=100_000_000),
            Quotas(local.quotas, Quota(0, 0, 0), wall_clock=wall_clock),
        ),
        webhook_routes(polling.webhooks),
        open_routes("wss://sockets.example/live"),
        access=Access(local.access, wall_clock=wall_clock),
        audit=audit,
    )


@contextmanager
def _responding(local: LocalGateway) -> Iterator[Any]:
    signers: Any = Authorities(TokenRules(("HS256",)), "", lambda: {"current": SECRET}, None)  # type: ignore[arg-type]  # there are no public keys
    authorise = lambda_authoriser(signers, redeem=local.tickets.redeem)

    # A Lambda function serves one request at a time, on a thread with an event loop.
    loop = asyncio.new_event_loop()
    function = ThreadPoolExecutor(1, initializer=asyncio.set_event_loop, initargs=(loop,))
    running: dict[str, Handler] = {}

    def start() -> None:
        app = whole_api(local)
        running["handler"] = function.submit(local.sources.beside, app, local.buffer).result()

    start()
    local.restart = start

    def handler(event: dict[str, Any], context: Any) -> Any:
        return running["handler"](event, context)

    def invoke(event: dict[str, Any]) -> Any:
        event["requestContext"]["authorizer"] = {"lambda": authorise(event, None)["context"]}
        return handler(event, None)

    def respond(
        method: str, target: str, headers: Mapping[str, str], body: bytes
    ) -> tuple[int, Mapping[str, str], bytes]:
        answer = function.submit(invoke, _event(method, target, headers, body)).result()
        text = answer.get("body") or ""
        raw = base64.b64decode(text) if answer.get("isBase64Encoded") else text.encode()
        kept = {n: v for n, v in answer["headers"].items() if n.lower() != "content-length"}
        return answer["statusCode"], kept, raw

    sockets = LocalSockets(local, authorise, pushing(local), handler, function)
    local.serve_sockets = sockets.url
    try:
        with function, closing(sockets):
            yield respond
    finally:
        loop.close()


def _event(method: str, target: str, headers: Mapping[str, str], body: bytes) -> dict[str, Any]:
    parts = urlsplit(target)
    return {
        "version": "2.0",
        "routeKey": "$default",
        "rawPath": parts.path,
        "rawQueryString": parts.query,
        "headers": {name.lower(): value for name, value in headers.items()},
        "requestContext": {
            "http": {"method": method, "path": parts.path, "sourceIp": "127.0.0.1"},
            "requestId": uuid4().hex,
            "stage": "$default",
        },
        "body": base64.b64encode(body).decode(),
        "isBase64Encoded": True,
    }
