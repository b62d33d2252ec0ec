"""The handler of ``functions/frames``: pushes, pulls and actions over a WebSocket.

The same services answer as over HTTPS, actions those of ``functions/actions``. A fault in a request
is answered under its id, and the connection stays open; an invalid frame, or a flood of frames,
closes it.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lakesync.errors import (
    AuthFailed,
    Forbidden,
    InternalError,
    LakeSyncError,
    NotOffered,
    ValidationFailed,
)
from lakesync.gateway.connected import refusal_of
from lakesync.log.limits import DEFAULT_LIMITS
from lakesync.ports import Delivered, Usage
from lakesync.runtime import observe
from lakesync.runtime.auth import claims_of
from lakesync.runtime.noting import noted
from lakesync.runtime.realtime.flood import FloodGate
from lakesync.wire import actions_proto, frames, proto
from lakesync.wire.frames import Tag

if TYPE_CHECKING:
    from collections.abc import Callable

    from lakesync.compat.followers import FollowingPulls
    from lakesync.compat.pushes import FollowingPushes
    from lakesync.gateway.access import Access
    from lakesync.gateway.quota import Quotas
    from lakesync.ports import Connection, Connections, Sockets
    from lakesync.runtime.observe import Handler
    from lakesync.runtime.realtime.act import RunActions

    Answers = Callable[[Connection, bytes, int], str]


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
            self._close(gateway, name, AuthFailed("this connection is over; connect again"))
            return
        error = refusal_of(connection, self._access, now_s) or self._flood.check(connection, now_s)
        if error is not None:
            self._close(gateway, name, error)
            return
        try:
            tag, message = _read(event)
            request_id = frames.request_id_of(tag, message)
        except LakeSyncError as malformed:
            observe.failure(malformed, route="frames")
            self._close(gateway, name, malformed)
            return
        if tag is Tag.ACTION:
            answers = self._acting(context.get("authorizer"))
        else:
            answers = {Tag.PUSH: self._push, Tag.PULL: self._pull}.get(tag, _not_offered)
        self._send(gateway, name, _answered(answers, connection, message, request_id))

    def _acting(self, authorizer: object) -> Answers:
        """Return the answers to requests for actions, by callers whom the authoriser admits."""

        def act(connection: Connection, message: bytes, request_id: int) -> str:
            _must_be(connection, actions_proto.decode_push(message).client_id)
            body = self._actions(connection.gateway, authorizer, message)
            return frames.encode_action_response_frame(body, request_id)

        return act

    def _push(self, connection: Connection, message: bytes, request_id: int) -> str:
        gateway = connection.gateway
        self._quotas.check(gateway)
        push = proto.decode_push(message)
        _must_be(connection, push.client_id)
        self._access.check_client(gateway, connection.user, push.client_id)
        usage = Usage(1, len(push.deltas) + len(push.unreadable), len(message))
        self._quotas.use(gateway, usage)
        receipt = self._pushes.push(gateway, replace(push, claims=connection.claims))
        observe.count("DeltasAccepted", receipt.accepted)
        frame = frames.encode_receipt_frame(receipt, request_id)
        observe.usage(gateway, usage, bytes_out=len(frame))
        return frame

    def _pull(self, connection: Connection, message: bytes, request_id: int) -> str:
        pull = proto.decode_pull(message)
        _must_be(connection, pull.client_id)
        self._access.check_client(connection.gateway, connection.user, pull.client_id)
        asked = replace(
            pull,
            deltas_max=min(pull.deltas_max, DEFAULT_LIMITS.page_deltas_max),
            claims=connection.claims,
            bytes_max=frames.FRAME_DELTA_BYTES_MAX,
        )
        page = self._pulls.pull(connection.gateway, asked)
        noted(self._access, connection.gateway, asked)
        frame = frames.encode_page_frame(page, request_id)
        observe.count("DeltasPulled", page.count)
        observe.usage(connection.gateway, bytes_out=len(frame), pulled=page.count)
        return frame

    def _send(self, gateway: str, name: str, frame: str) -> None:
        if self._sockets.send(name, frame) is Delivered.GONE:
            self._connections.remove(gateway, name)

    def _close(self, gateway: str, name: str, error: LakeSyncError) -> None:
        """Say why, and close."""
        self._send(gateway, name, frames.encode_refusal(error, 0, closes=True))
        self._sockets.close(name)
        self._connections.remove(gateway, name)


def frames_handler(service: FrameService) -> Handler:
    """Return the handler of ``$default``. It returns nothing to the client: answers are posted."""

    def handler(event: dict[str, Any], context: Any) -> dict[str, object]:  # noqa: ARG001 - AWS's
        try:
            service.answer(event, time.time())
        except LakeSyncError as error:
            observe.failure(error, route="frames")
            return {"statusCode": error.status}
        finally:
            observe.publish()
        return {"statusCode": 200}

    return handler


def _answered(answers: Answers, connection: Connection, message: bytes, request_id: int) -> str:
    """Return the frame that answers a request, whatever becomes of it."""
    try:
        return answers(connection, message, request_id)
    except LakeSyncError as error:
        observe.failure(error, route="frames")
        return frames.encode_refusal(error, request_id, closes=False)
    except Exception as exc:  # noqa: BLE001 - a bug is answered, and rings
        observe.bug(exc, route="frames")
        bug = InternalError("something went wrong here; try again later")
        return frames.encode_refusal(bug, request_id, closes=False)


def _not_offered(*_: object) -> str:
    raise NotOffered("clients send pushes (1), pulls (2) and actions (4) over a WebSocket")


def _read(event: dict[str, Any]) -> tuple[Tag, bytes]:
    body = event.get("body")
    if not isinstance(body, str) or event.get("isBase64Encoded"):
        raise ValidationFailed("send frames as text: base64 of a tag byte and a message")
    return frames.decode_frame(body)


def _must_be(connection: Connection, client_id: str) -> None:
    if client_id != connection.client_id:
        raise Forbidden(
            "this connection is another client's: connect with clientId in the address",
            field="clientId",
        )
