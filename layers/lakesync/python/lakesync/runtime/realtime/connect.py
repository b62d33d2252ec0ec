"""The handlers of ``functions/connect`` and ``functions/disconnect``: who is connected.

A handshake is refused with the status of its error; API Gateway shows nothing else of the answer.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from lakesync.errors import InternalError, LakeSyncError
from lakesync.gateway.connected import rules_digest, scoped
from lakesync.ports import Connection
from lakesync.runtime import observe
from lakesync.runtime.auth import caller_of, claims_of
from lakesync.runtime.realtime.handshake import chosen, query
from lakesync.runtime.roles import ALLOWED

if TYPE_CHECKING:
    from collections.abc import Callable

    from lakesync.gateway.access import Access
    from lakesync.ports import Configurations, Connections, WallClock
    from lakesync.runtime.observe import Handler


def connect_handler(
    connections: Connections, configs: Configurations, access: Access, wall_clock: WallClock
) -> Handler:
    """Return the handler of ``$connect``: by the same token checks as every request over HTTPS."""

    def connect(event: dict[str, Any]) -> dict[str, object]:
        context = event["requestContext"]
        headers = chosen(event)
        authoriser = context.get("authorizer")
        gateway = claims_of(authoriser).gateway
        now_ms = wall_clock()
        caller = caller_of(authoriser, gateway, now_ms / 1000, access)
        caller.must_be_one_of(ALLOWED["connect"])
        client_id = caller.speaks_for(query(event).get("clientId"))
        config = configs.config(gateway)
        config.check_not_deleted()
        connection = Connection(
            gateway,
            context["connectionId"],
            client_id,
            caller.token.user,
            caller.token.expires_s,
            now_ms,
            caller.token.all,
        )
        connections.add(scoped(connection, config, rules_digest(config)))
        observe.count("Connected")
        return {"statusCode": 200, "headers": headers}

    return _answering(connect)


def disconnect_handler(connections: Connections) -> Handler:
    """Return the handler of ``$disconnect``, which AWS calls if it can; else the sweep forgets."""

    def disconnect(event: dict[str, Any]) -> dict[str, object]:
        context = event["requestContext"]
        gateway = claims_of(context.get("authorizer")).gateway
        connections.remove(gateway, context["connectionId"])
        return {"statusCode": 200}

    return _answering(disconnect)


def _answering(handle: Callable[[dict[str, Any]], dict[str, object]]) -> Handler:
    """Answer with a raised error's status, by the one table of errors; no event is logged."""

    def handler(event: dict[str, Any], context: Any) -> dict[str, object]:  # noqa: ARG001 - AWS's
        request = event.get("requestContext", {})
        where = {"route": str(request.get("routeKey")), "request": str(request.get("requestId"))}
        try:
            return handle(event)
        except LakeSyncError as error:
            observe.failure(error, **where)
            return _refusal(error, where["request"])
        except Exception as exc:  # noqa: BLE001 - a bug is answered, and rings
            observe.bug(exc, **where)
            refused = InternalError("something went wrong here; try again later")
            return _refusal(refused, where["request"])
        finally:
            observe.publish()

    return handler


def _refusal(error: LakeSyncError, request_id: str) -> dict[str, object]:
    """Return an error as every answer words it; API Gateway may pass on no more than the status."""
    sentence = error.public_message or error.message
    body = {"error": sentence, "code": error.code, "requestId": request_id}
    return {"statusCode": error.status, "body": json.dumps(body)}
