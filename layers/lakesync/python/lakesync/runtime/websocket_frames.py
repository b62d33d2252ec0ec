"""Frames of WebSockets: requests answered (``functions/frames``), commits posted (``notify``).

Pushes, pulls and actions over a WebSocket: the same services answer as over HTTPS. A fault in a
request is answered under its id, and the connection stays open; an invalid frame, or a flood of
frames, closes it.

Actions are those of ``functions/actions``: this function may call that one, and needs none of its
permissions. It sends the event that API Gateway would send, with the authoriser's answer for this
connection. So ``functions/actions`` decides what a token may do, and whether its user is revoked.

Floods: each process counts the frames that it receives, and adds the count to the connection's
item, ten frames at a time: the item is read for each frame in any case, so every process sees the
sum. The cost is one write unit for each ten frames of a busy connection, a sixteenth of API
Gateway's price for them; nothing for a connection that sends less than ten frames in ten seconds to
a process. Law T7: ``docs/spec/realtime.md``.

``functions/notify`` handles the stream of the buffer's table, and sweeps. A batch of the buffer's
stream is handled gateway by gateway; each has its share of the remaining time, so that none waits
for another's connections. Lambda retries what fails, or had no time, for some minutes, and then
gives up: clients pull what they missed.

Frames are posted to API Gateway, one request each. Requests are signed here, as those of DynamoDB
are: the SDK would spend most of a millisecond on each, and a commit may need a thousand of them.
"""

from __future__ import annotations

import base64
import json
import os
import time
import uuid
from collections import OrderedDict
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from urllib.parse import quote

from lakesync.buffer.caller import Credentials, Network, RestSigner
from lakesync.buffer.table_calls import changes_of
from lakesync.errors import (
    BY_CODE,
    AdapterRefused,
    AuthFailed,
    BodyTooLarge,
    Forbidden,
    GatewayDeleted,
    InternalError,
    LakeSyncError,
    NotOffered,
    RateLimited,
    Retry,
    Unavailable,
    ValidationFailed,
)
from lakesync.gateway.connected import refusal_of
from lakesync.gateway.frame_sending import frames_in
from lakesync.log.lanes import DEFAULT_LIMITS
from lakesync.ports import FrameResult, Usage
from lakesync.runtime import observe
from lakesync.runtime.auth import claims_of, noted
from lakesync.wire.proto import TOO_LARGE, Tag

if TYPE_CHECKING:
    from collections.abc import Callable

    from lakesync.compat.follower_deltas import FollowingPushes
    from lakesync.compat.follower_pulls import FollowingPulls
    from lakesync.gateway.access import Access, Quotas
    from lakesync.gateway.broadcast import Broadcaster
    from lakesync.gateway.connected import ConnectionSweep
    from lakesync.gateway.frame_sending import Frames
    from lakesync.ports import Connection, Connections, Sockets
    from lakesync.runtime.observe import Handler, Invoke
    from lakesync.wire.proto import Request

    Answers = Callable[[Connection, Frames, Request], str]

# --- frames ---------------------------------------------------------------------------------------


class FrameService:
    """Answers frames. One for each process; one request at a time."""

    def __init__(
        self,
        pushes: FollowingPushes,
        pulls: FollowingPulls,
        quotas: Quotas,
        access: Access,
        connections: Connections,
        sockets: Sockets,
        actions: RunActions,
    ) -> None:
        self._actions = actions
        self._pushes = pushes
        self._pulls = pulls
        self._quotas = quotas
        self._access = access
        self._connections = connections
        self._sockets = sockets
        self._flood = FloodGate(connections)

    def answer(self, event: dict[str, Any], now_s: float) -> None:
        """Answer a frame, by a frame of its own."""
        context = event["requestContext"]
        name = context["connectionId"]
        gateway = claims_of(context.get("authorizer")).gateway
        connection = self._connections.get(gateway, name)
        if connection is None:
            # Nobody knows its encoding any more, but its frame shows it: base64 has no brace.
            frames = frames_in(is_json=str(event.get("body")).startswith("{"))
            over = AuthFailed("this connection is over; connect again")
            self._close(gateway, name, frames, over)
            return
        frames = frames_in(is_json=connection.is_json)
        error = refusal_of(connection, self._access, now_s) or self._flood.check(connection, now_s)
        if error is not None:
            self._close(gateway, name, frames, error)
            return
        try:
            request = _read(event, frames)
        except LakeSyncError as malformed:
            observe.failure(malformed, route="frames")
            self._close(gateway, name, frames, malformed)
            return
        if request.tag is Tag.ACTION:
            answers = self._acting(context.get("authorizer"))
        else:
            answers = {Tag.PUSH: self._push, Tag.PULL: self._pull}.get(request.tag, _not_offered)
        self._send(gateway, name, _answered(answers, connection, frames, request))

    def _acting(self, authorizer: object) -> Answers:
        """Return the answers to requests for actions, by callers whom the authoriser admits."""

        def act(connection: Connection, frames: Frames, request: Request) -> str:
            _must_be(connection, frames.decode_action_push(request.message).client_id)
            asked = frames.action_body(request.message)
            body = self._actions(connection.gateway, authorizer, asked, frames.MEDIA_TYPE)
            return frames.encode_action_response_frame(body, request.id)

        return act

    def _push(self, connection: Connection, frames: Frames, request: Request) -> str:
        gateway = connection.gateway
        self._quotas.check(gateway)
        push = frames.decode_push(request.message)
        _must_be(connection, push.client_id)
        self._access.check_client(gateway, connection.user, push.client_id)
        usage = Usage(1, len(push.deltas) + len(push.unreadable), request.size_bytes)
        self._quotas.use(gateway, usage)
        receipt = self._pushes.push(gateway, replace(push, claims=connection.claims))
        observe.count("DeltasAccepted", receipt.accepted)
        frame = frames.encode_receipt_frame(receipt, request.id)
        observe.usage(gateway, usage, bytes_out=len(frame))
        return frame

    def _pull(self, connection: Connection, frames: Frames, request: Request) -> str:
        pull = frames.decode_pull(request.message)
        client_id = pull.client_id or connection.client_id  # JSON may leave it out
        _must_be(connection, client_id)
        self._access.check_client(connection.gateway, connection.user, client_id)
        asked = replace(
            pull,
            client_id=client_id,
            deltas_max=min(pull.deltas_max, DEFAULT_LIMITS.page_deltas_max),
            claims=connection.claims,
            bytes_max=frames.FRAME_DELTA_BYTES_MAX,
        )
        page = self._pulls.pull(connection.gateway, asked)
        noted(self._access, connection.gateway, asked)
        frame = frames.encode_page_frame(page, request.id)
        observe.count("DeltasPulled", page.count)
        observe.usage(connection.gateway, bytes_out=len(frame), pulled=page.count)
        return frame

    def _send(self, gateway: str, name: str, frame: str) -> None:
        if self._sockets.send(name, frame) is FrameResult.GONE:
            self._connections.remove(gateway, name)

    def _close(self, gateway: str, name: str, frames: Frames, error: LakeSyncError) -> None:
        self._send(gateway, name, frames.encode_refusal(error, 0, closes=True))
        self._sockets.close(name)
        self._connections.remove(gateway, name)


def frames_handler(service: FrameService) -> Handler:
    """Return the handler of ``$default``. It returns nothing to the client: answers are posted."""

    @observe.publishing
    def handler(event: dict[str, Any], context: Any) -> dict[str, object]:  # noqa: ARG001 - AWS's
        try:
            service.answer(event, time.time())
        except LakeSyncError as error:
            observe.failure(error, route="frames")
            return {"statusCode": error.status}
        return {"statusCode": 200}

    return handler


def _answered(answers: Answers, connection: Connection, frames: Frames, request: Request) -> str:
    try:
        return answers(connection, frames, request)
    except LakeSyncError as error:
        observe.failure(error, route="frames")
        return frames.encode_refusal(error, request.id, closes=False)
    except Exception as exc:  # noqa: BLE001 - a bug is answered, and rings
        observe.bug(exc, route="frames")
        bug = InternalError("something went wrong here; try again later")
        return frames.encode_refusal(bug, request.id, closes=False)


def _not_offered(*_: object) -> str:
    raise NotOffered("clients send pushes (1), pulls (2) and actions (4) over a WebSocket")


def _read(event: dict[str, Any], frames: Frames) -> Request:
    body = event.get("body")
    if not isinstance(body, str) or event.get("isBase64Encoded"):
        raise ValidationFailed("send frames as text: base64 of a tag byte and a message, or JSON")
    return frames.read_request(body)


def _must_be(connection: Connection, client_id: str) -> None:
    if client_id != connection.client_id:
        raise Forbidden(
            "this connection is another client's: connect with clientId in the address",
            field="clientId",
        )


# --- floods ---------------------------------------------------------------------------------------


WINDOW_S: Final = 10
"""Frames are counted in spans of so many seconds, the same in all processes."""
WINDOW_FRAMES_MAX: Final = 1_000
"""Frames of one connection in ten seconds, in all processes: more are a flood, which closes it."""
COUNTED_AT_ONCE: Final = 10
"""Frames of one connection that a process takes before it adds them to those of all processes."""
CONNECTIONS_COUNTED_MAX: Final = 1_000
"""Connections whose frames one process counts."""


class FloodGate:
    """Counts frames. One for each process; one call at a time.

    Args:
        connections: where the frames of all processes are summed.
    """

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._taken: OrderedDict[str, tuple[int, int]] = OrderedDict()
        """For each connection a window, and the frames received in it that are not summed yet."""

    def check(self, connection: Connection, now_s: float) -> LakeSyncError | None:
        """Count a frame; returns why the connection is closed if its frames are a flood."""
        window = int(now_s) // WINDOW_S
        began, taken = self._taken.pop(connection.id, (window, 0))
        taken = taken + 1 if began == window else 1
        summed = connection.frames if connection.window == window else 0
        if summed + taken > WINDOW_FRAMES_MAX:
            most = WINDOW_FRAMES_MAX // WINDOW_S
            return RateLimited(f"at most {most} frames a second; connect again, and pause")
        if taken >= COUNTED_AT_ONCE and self._added(connection, window, taken):
            taken = 0
        self._taken[connection.id] = (window, taken)
        while len(self._taken) > CONNECTIONS_COUNTED_MAX:
            self._taken.popitem(last=False)
        return None

    def _added(self, connection: Connection, window: int, taken: int) -> bool:
        """Add to the sum; what cannot be added now is added with the next frame."""
        try:
            return self._connections.count_frames(connection, window, taken)
        except Unavailable:
            return False


# --- actions --------------------------------------------------------------------------------------


RunActions: TypeAlias = "Callable[[str, object, bytes, str], bytes]"
"""Runs an encoded ``ActionPush``, given the gateway, the authoriser's answer, and its media type,
which is also the answer's."""
ACTIONS_S: Final = 22
"""How long actions of one frame may take; the connection to the function waits some seconds more,
and API Gateway 29 s in all. An action that takes longer is requested again, under the same id.
"""
_OK: Final = 200


def run_actions(invoke: Invoke) -> RunActions:
    """Return a function that has ``functions/actions`` run actions."""

    def run(gateway: str, authorizer: object, body: bytes, media_type: str) -> bytes:
        returned, payload = invoke(json.dumps(_event(gateway, authorizer, body, media_type)))
        answer = json.loads(payload) if returned else {}
        if "statusCode" not in answer:
            raise Unavailable("actions cannot be run now; send them again, with the same ids")
        content = answer.get("body", "")
        sent = base64.b64decode(content) if answer.get("isBase64Encoded") else content.encode()
        if answer["statusCode"] != _OK:
            raise _error(sent)
        if "content-encoding" in answer.get("headers", {}):
            raise BodyTooLarge(TOO_LARGE)  # what is not asked to be compressed is over 4 MB
        return sent

    return run


def _event(gateway: str, authorizer: object, body: bytes, media_type: str) -> dict[str, Any]:
    path = f"/sync/{gateway}/action"
    http = {"method": "POST", "path": path, "protocol": "HTTP/1.1", "sourceIp": "0.0.0.0"}  # noqa: S104 - nobody's
    return {
        "version": "2.0",
        "routeKey": "POST /sync/{gateway}/action",
        "rawPath": path,
        "rawQueryString": "",
        "headers": {"accept": media_type, "content-type": media_type, "host": "frames"},
        "requestContext": {
            "http": http | {"userAgent": "lakesync"},
            "requestId": uuid.uuid4().hex,
            "routeKey": "POST /sync/{gateway}/action",
            "stage": "$default",
            "timeEpoch": time.time_ns() // 1_000_000,
            "authorizer": {"lambda": authorizer},
        },
        "pathParameters": {"gateway": gateway},
        "body": base64.b64encode(body).decode(),
        "isBase64Encoded": True,
    }


def _error(body: bytes) -> LakeSyncError:
    try:
        fields = json.loads(body)
        kind = BY_CODE.get(fields["code"], InternalError)
        return kind(str(fields["error"]), field=fields.get("field"))
    except (ValueError, KeyError, TypeError):
        return InternalError("actions were answered without a reason; try again later")


# --- notifications --------------------------------------------------------------------------------


_MARGIN_MS: Final = 10_000
"""Left of a function's time when no further frame is sent: one without an answer takes 6 s."""


def notify_handler(broadcaster: Broadcaster, sweep: ConnectionSweep) -> Handler:
    """Return the handler of the stream's batches, and of the schedule's ticks."""

    def handler(event: dict[str, Any], context: Any) -> dict[str, object]:
        try:
            if "Records" in event:
                return _notify(broadcaster, event["Records"], context)
            return {"closed": sweep.sweep(_share(context, 1))}
        finally:
            try:
                broadcaster.drain()
            finally:
                observe.publish()

    return handler


def _notify(
    broadcaster: Broadcaster, records: list[dict[str, Any]], context: Any
) -> dict[str, object]:
    changes = changes_of(records)
    owner = str(records[0].get("eventID", ""))
    tasks: list[Callable[[Callable[[], bool]], bool]] = [
        partial(broadcaster.close_revoked, gateway, kind, name)
        for gateway, kind, name in changes.revocations
    ]
    tasks += [
        partial(
            broadcaster.notify,
            gateway,
            changes.commits.get(gateway, 0),
            owner,
            rules_changed=gateway in changes.configs,
        )
        for gateway in sorted(changes.commits.keys() | changes.configs)
    ]
    again: list[LakeSyncError] = []
    is_whole = True
    for number, task in enumerate(tasks):
        is_done, errors = _tried(task, _share(context, len(tasks) - number))
        is_whole, again = is_whole and is_done, again + errors
    if again:
        raise again[0]  # the whole batch comes again; what is done is not done twice
    failures = []
    if not is_whole:
        observe.count("BroadcastsHandedOn")
        failures = [{"itemIdentifier": records[0]["dynamodb"]["SequenceNumber"]}]
    return {"gateways": len(changes.commits), "batchItemFailures": failures}


def _share(context: Any, parts: int) -> Callable[[], bool]:
    """Return a function that tells whether time is left of one of ``parts`` equal shares."""
    left_ms = context.get_remaining_time_in_millis()
    ends_ms = left_ms - max(left_ms - _MARGIN_MS, 0) / parts
    return lambda: context.get_remaining_time_in_millis() > ends_ms


def _tried(
    task: Callable[[Callable[[], bool]], bool], has_time: Callable[[], bool]
) -> tuple[bool, list[LakeSyncError]]:
    """Do something; returns whether it is done, and returns the error if it may succeed later.

    What failed keeps no neighbour.
    """
    try:
        return task(has_time), []
    except GatewayDeleted:
        return True, []  # its connections are closed by its revocation
    except LakeSyncError as error:
        observe.failure(error, task="notify")
        return True, [error] if error.retry is Retry.LATER else []


# --- posting frames -------------------------------------------------------------------------------


_GONE: Final = 410
_BUSY: Final = 429
_SERVER_FAULT: Final = 500


class ApiSockets:
    """`lakesync.ports.Sockets` by API Gateway. Safe to use from several threads."""

    def __init__(
        self,
        host: str,
        stage: str,
        region: str,
        endpoint_url: str | None = None,
        *,
        network: Callable[[str, str, dict[str, str], bytes], tuple[int, bytes]] | None = None,
    ) -> None:
        self._signer = RestSigner(host, "execute-api", region)
        self._request = network or Network(endpoint_url or f"https://{host}").request
        self._stage = stage

    def send(self, connection_id: str, frame: str) -> FrameResult:
        status = self._ask("POST", connection_id, frame.encode())
        if status == _GONE:
            return FrameResult.GONE
        return FrameResult.BUSY if status == _BUSY else FrameResult.SENT

    def close(self, connection_id: str) -> None:
        if self._ask("DELETE", connection_id, b"") == _BUSY:
            raise Unavailable("API Gateway is busy; the same request may succeed in a moment")

    def _ask(self, method: str, connection_id: str, body: bytes) -> int:
        path = f"/{self._stage}/@connections/{quote(connection_id, safe='')}"
        credentials = Credentials(
            os.environ["AWS_ACCESS_KEY_ID"],
            os.environ["AWS_SECRET_ACCESS_KEY"],
            os.environ.get("AWS_SESSION_TOKEN"),
        )
        now = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        headers = self._signer.headers(method, path, body, credentials, now)
        status, _ = self._request(method, path, headers, body)
        if status >= _SERVER_FAULT:
            raise Unavailable(f"API Gateway fails (HTTP {status}); try again in a moment")
        if status not in {_GONE, _BUSY} and status >= 300:  # noqa: PLR2004 - not a success
            raise AdapterRefused(f"API Gateway refused {method} of a connection: HTTP {status}")
        return status
