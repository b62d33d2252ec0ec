"""The WebSockets of a gateway in this process: the real handlers behind a server of websockets.

API Gateway is played by `LocalSockets`: it asks the authoriser and ``$connect`` for each handshake,
has frames answered, answers keep-alives by itself, and closes what is too large or binary. What is
written to the buffer goes to ``functions/notify`` as records of the table's stream.
"""

from __future__ import annotations

import base64
import json
import threading
import time
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl, urlsplit
from uuid import uuid4

from lakesync.buffer.memory_buffer import MemoryBuffer
from lakesync.buffer.memory_items import MemoryItemStore
from lakesync.compat.follower_deltas import FollowingPushes
from lakesync.compat.follower_pulls import FollowingPulls
from lakesync.gateway.access import Access, Quotas
from lakesync.gateway.broadcast import TURN_MS_MAX, Broadcaster
from lakesync.gateway.connected import ConnectionSweep
from lakesync.gateway.frame_sending import FrameSender
from lakesync.gateway.pull import PullService
from lakesync.ports import FrameResult, Quota
from lakesync.runtime.websocket_frames import (
    FrameService,
    frames_handler,
    notify_handler,
    run_actions,
)
from lakesync.runtime.websockets import connect_handler, disconnect_handler
from lakesync.wire.proto import FRAME_CHARS_MAX, KEEP_ALIVE_ANSWER
from tests.support.sockets import FakeSockets

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Executor

    from lakesync.core.config import GatewayConfig
    from lakesync.gateway.push import PushService
    from lakesync.ports import Commit
    from lakesync.runtime.observe import Handler
    from tests.support.local_gateway import LocalGateway

# --- the stream -----------------------------------------------------------------------------------


class Stream:
    """The stream of the buffer's table: each change goes to a reader, if there is one."""

    def __init__(self) -> None:
        self.reader: Callable[[dict[str, Any]], None] | None = None

    def bring(self, pk: str, sk: str, **image: int) -> None:
        """Hand a change on."""
        if self.reader is None:
            return
        keys = {"pk": {"S": pk}, "sk": {"S": sk}}
        numbers = {name: {"N": str(value)} for name, value in image.items()}
        name = uuid4().hex
        change = {"Keys": keys, "NewImage": numbers, "SequenceNumber": name}
        self.reader({"eventID": name, "dynamodb": change})


class StreamedBuffer(MemoryBuffer):
    """A buffer in memory whose heads and configurations go through a stream."""

    def __init__(self, stream: Stream) -> None:
        super().__init__()
        self._stream = stream

    def commit(self, commit: Commit) -> None:
        super().commit(commit)
        heads = self.heads(commit.gateway).values()
        newest = max((head.last_logged for head in heads), default=0)
        self._stream.bring(f"{commit.gateway}|head", "main", l=newest)

    def save_config(
        self, gateway: str, config: GatewayConfig, *arguments: Any, **options: Any
    ) -> None:
        super().save_config(gateway, config, *arguments, **options)
        self._stream.bring(f"{gateway}|config", "config", v=config.version)


class StreamedItems(MemoryItemStore):
    """Items in memory whose revocations go through a stream."""

    def __init__(self, stream: Stream) -> None:
        super().__init__()
        self._stream = stream

    def put(self, item: Any, *arguments: Any) -> bool:
        is_put = super().put(item, *arguments)
        if is_put and item.pk.startswith("|revoked|"):
            self._stream.bring(item.pk, item.sk, ms=item.attributes["ms"])
        return is_put


# --- open connections -----------------------------------------------------------------------------


CLOSE_S_MAX: Final = 1.0
OPENS_S_MAX: Final = 5.0
"""How long a handshake that was admitted may take to be over."""
FRAME_PIECE_BYTES_MAX: Final = 32_768
"""Bytes of one frame of the WebSocket protocol: a longer message has to come in pieces."""


@dataclass(frozen=True)
class Peer:
    """One connection, from the moment when its handshake is admitted."""

    connection: Any
    context: dict[str, Any]
    headers: dict[str, str]
    """What ``$connect`` answered."""
    is_open: threading.Event = field(default_factory=threading.Event)
    is_over: threading.Event = field(default_factory=threading.Event)


class PostedSockets(FakeSockets):
    """`lakesync.ports.Sockets` that post to real connections; others keep what they were sent."""

    def __init__(self) -> None:
        super().__init__()
        self.open: dict[str, Peer] = {}

    def send(self, connection_id: str, frame: str) -> FrameResult:
        peer = self.open.get(connection_id)
        if peer is None:
            return super().send(connection_id, frame)
        return FrameResult.SENT if _posted(peer, frame) else FrameResult.GONE

    def close(self, connection_id: str) -> None:
        super().close(connection_id)
        if peer := self.open.get(connection_id):
            peer.connection.close()


def _posted(peer: Peer, frame: str) -> bool:
    from websockets.exceptions import ConnectionClosed  # noqa: PLC0415 - see `LocalSockets.url`

    if not peer.is_open.wait(OPENS_S_MAX):
        return False
    try:
        peer.connection.send(frame)
    except ConnectionClosed:
        return False
    return True


# --- the server -----------------------------------------------------------------------------------


class LocalSockets:
    """API Gateway's WebSockets on a free port, from the moment when its address is asked for.

    Args:
        authorise: the authoriser's handler.
        push: what commits.
        http: the handler of the requests over HTTPS, which runs actions too.
        function: the thread in which every function of the gateway runs.
    """

    def __init__(
        self,
        local: LocalGateway,
        authorise: Handler,
        push: PushService,
        http: Handler,
        function: Executor,
    ) -> None:
        self._local = local
        self._authorise = authorise
        self._function = function
        self._lock = threading.Lock()
        self._server: Any = None
        self._thread: threading.Thread | None = None
        self._records: list[dict[str, Any]] = []
        access = Access(local.access, wall_clock=local.now_ms)
        pulls = PullService(local.buffer, wall_clock=local.now_ms)
        self._connect = connect_handler(local.connections, local.buffer, access, local.now_ms)
        self._disconnect = disconnect_handler(local.connections)

        def acting(event: str) -> tuple[bool, bytes]:
            return True, json.dumps(http(json.loads(event), None)).encode()

        self._frames = frames_handler(
            FrameService(
                FollowingPushes(push, local.buffer),
                FollowingPulls(pulls, local.buffer, wall_clock=local.now_ms),
                Quotas(local.quotas, Quota(0, 0, 0), wall_clock=local.now_ms),
                access,
                local.connections,
                local.sockets,
                run_actions(
                    lambda event: (True, json.dumps(http(json.loads(event), None)).encode())
                ),
            )
        )
        self._sender = FrameSender(
            local.sockets, local.connections, seconds=time.monotonic, sleep_s=time.sleep
        )
        self._notify = notify_handler(
            Broadcaster(
                pulls, local.connections, self._sender, access=access, wall_clock=local.now_ms
            ),
            ConnectionSweep(local.connections, self._sender, access, local.now_ms),
        )

    def url(self) -> str:
        """Return the address, where connections are served from now on."""
        with self._lock:
            if self._server is None:
                self._serve()
            return f"ws://127.0.0.1:{self._server.socket.getsockname()[1]}"

    def close(self) -> None:
        """Close all connections, and serve no more."""
        self._local.stream.reader = None
        if self._thread is not None:
            self._server.shutdown()
            self._thread.join()
        for peer in list(self._local.sockets.open.values()):
            peer.connection.close()
            peer.is_over.wait(CLOSE_S_MAX)

    def _serve(self) -> None:
        # Most users of a gateway open no WebSocket.
        from websockets.sync.server import serve  # noqa: PLC0415

        self._server = serve(
            self._converse,
            "127.0.0.1",
            0,
            process_request=self._admit,
            select_subprotocol=self._chosen,
            compression=None,
            ping_interval=None,
            close_timeout=CLOSE_S_MAX,
            max_size=(FRAME_CHARS_MAX, FRAME_PIECE_BYTES_MAX),
        )
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()
        self._local.stream.reader = self._record

    # --- functions --------------------------------------------------------------------------------

    def _call(self, handler: Handler, event: dict[str, Any]) -> dict[str, Any]:
        answer: dict[str, Any] = self._function.submit(handler, event, None).result()
        return answer

    def _record(self, record: dict[str, Any]) -> None:
        """Have a record of the stream handled behind what runs now, with those that follow."""
        with self._lock:
            self._records.append(record)
            if len(self._records) == 1:
                notified = self._function.submit(self._notify_of_records)
                notified.add_done_callback(lambda done: done.result())  # a failure is logged

    def _notify_of_records(self) -> None:
        with self._lock:
            records, self._records = self._records, []
        time_left = SimpleNamespace(get_remaining_time_in_millis=lambda: TURN_MS_MAX)
        self._notify({"Records": records}, time_left)

    # --- connections ------------------------------------------------------------------------------

    def _admit(self, connection: Any, request: Any) -> Any:
        """Ask whether a handshake is admitted; a refusal shows no more than its status."""
        name = base64.b64encode(uuid4().bytes[:11]).decode()
        context = {"connectionId": name, "requestId": uuid4().hex, "routeKey": "$connect"}
        event = {
            "headers": dict(request.headers.raw_items()),
            "queryStringParameters": dict(parse_qsl(urlsplit(request.path).query)),
            "requestContext": context,
        }
        authorised = self._call(self._authorise, event | {"methodArn": "arn:aws:execute-api:::"})
        context["authorizer"] = authorised["context"]
        answer = self._call(self._connect, event)
        if answer["statusCode"] != 200:
            return connection.respond(answer["statusCode"], "")
        self._local.sockets.open[name] = Peer(connection, context, answer.get("headers", {}))
        connection.name = name
        return None

    def _chosen(self, connection: Any, _: object) -> Any:
        headers = self._local.sockets.open[connection.name].headers
        return headers.get("Sec-WebSocket-Protocol")

    def _converse(self, connection: Any) -> None:
        from websockets.exceptions import ConnectionClosed  # noqa: PLC0415

        sockets, name = self._local.sockets, connection.name
        peer = sockets.open[name]
        peer.is_open.set()
        try:
            for frame in connection:
                self._take(peer, frame)
        except ConnectionClosed:
            pass  # however it ended, it is over
        finally:
            sockets.gone.add(name)
            del sockets.open[name]
            self._call(self._disconnect, {"requestContext": peer.context})
            peer.is_over.set()

    def _take(self, peer: Peer, frame: str | bytes) -> None:
        """Route one frame as the template says; API Gateway closes at a binary one."""
        if isinstance(frame, bytes):
            peer.connection.close(1003)
        elif _action(frame) == "ping":
            peer.connection.send(KEEP_ALIVE_ANSWER)
        else:
            context = peer.context | {"routeKey": "$default", "requestId": uuid4().hex}
            self._call(self._frames, {"requestContext": context, "body": frame})


def _action(frame: str) -> object:
    try:
        body = json.loads(frame)
    except (ValueError, RecursionError):
        return None
    return body.get("action") if isinstance(body, dict) else None
