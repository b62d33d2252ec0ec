"""Actions that arrive over a WebSocket are run by ``functions/actions``, as those over HTTPS.

The function that answers frames may call that function, and needs none of its permissions. It sends
the event that API Gateway would send, with the authoriser's answer for this connection. So
``functions/actions`` decides what a token may do, and whether its user is revoked.
"""

from __future__ import annotations

import base64
import json
import time
import uuid
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from lakesync.errors import BY_CODE, InternalError, LakeSyncError, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable

RunActions: TypeAlias = "Callable[[str, object, bytes], bytes]"
"""Runs an encoded ``ActionPush``, given the gateway and the authoriser's answer."""
ACTIONS_S: Final = 22
"""How long actions of one frame may take; the connection to the function waits some seconds more,
and API Gateway 29 s in all. An action that takes longer is requested again, under the same id.
"""
_PROTOBUF: Final = "application/x-protobuf"
_OK: Final = 200


def run_actions(invoke: Callable[[str], tuple[bool, bytes]]) -> RunActions:
    """Return a function that has ``functions/actions`` run actions.

    Args:
        invoke: hands a request to the function; tells whether it answered, and what.
    """

    def run(gateway: str, authorizer: object, body: bytes) -> bytes:
        returned, payload = invoke(json.dumps(_event(gateway, authorizer, body)))
        answer = json.loads(payload) if returned else {}
        if "statusCode" not in answer:
            raise Unavailable("actions cannot be run now; send them again, with the same ids")
        content = answer.get("body", "")
        sent = base64.b64decode(content) if answer.get("isBase64Encoded") else content.encode()
        if answer["statusCode"] != _OK:
            raise _error(sent)
        return sent

    return run


def _event(gateway: str, authorizer: object, body: bytes) -> dict[str, Any]:
    """Return the event of a request over HTTPS."""
    path = f"/sync/{gateway}/action"
    http = {"method": "POST", "path": path, "protocol": "HTTP/1.1", "sourceIp": "0.0.0.0"}  # noqa: S104 - nobody's
    return {
        "version": "2.0",
        "routeKey": "POST /sync/{gateway}/action",
        "rawPath": path,
        "rawQueryString": "",
        "headers": {"accept": _PROTOBUF, "content-type": _PROTOBUF, "host": "frames"},
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
    """Return the error that the function answered."""
    try:
        fields = json.loads(body)
        kind = BY_CODE.get(fields["code"], InternalError)
        return kind(str(fields["error"]), field=fields.get("field"))
    except (ValueError, KeyError, TypeError):
        return InternalError("actions were answered without a reason; try again later")
