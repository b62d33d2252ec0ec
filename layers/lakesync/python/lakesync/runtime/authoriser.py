"""The Lambda authorizer: a token in; its claims, or the reason why it is refused, out.

API Gateway answers a "no" of an authorizer with a body of its own. So a bad token is answered with
a context that says why, and every function refuses it, in our words, as it refuses anything that
is not the context of a good token: see `lakesync.runtime.auth`.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from lakesync.errors import AuthFailed
from lakesync.runtime import observe
from lakesync.runtime.auth import refused, verified
from lakesync.runtime.realtime.handshake import socket_token
from lakesync.runtime.tokens import bearer_token, claimed_gateway, verify

if TYPE_CHECKING:
    from collections.abc import Callable

    from lakesync.runtime.keys import Authorities


def lambda_authoriser(
    authorities: Authorities,
    clock: Callable[[], float] = time.time,
    *,
    token_in_query: bool = False,
) -> Callable[[dict[str, Any], Any], dict[str, Any]]:
    """Give the handler of an HTTP API's authorizer (payload 2.0, simple responses).

    And of a WebSocket API's, whose answer is handed on for as long as the connection lasts.
    Keys that cannot be read raise, so that nothing is cached and the error alarm rings.
    """

    def handler(event: dict[str, Any], context: object) -> dict[str, Any]:  # noqa: ARG001 - AWS's
        is_socket = "methodArn" in event
        try:
            if is_socket:
                token = socket_token(event, in_query=token_in_query)
            else:
                token = bearer_token(event.get("headers", {}).get("authorization"))
            rules, keys = authorities.of(claimed_gateway(token))
            answer = verified(verify(token, rules, keys, clock()))
        except AuthFailed as error:
            observe.logger.info("token refused", extra={"reason": error.message})
            observe.count("TokensRefused")
            answer = refused(error)
        observe.publish()
        if is_socket:
            return {
                "principalId": "caller",
                "policyDocument": _may_connect(event["methodArn"]),
                "context": answer,
            }
        return {"isAuthorized": True, "context": answer}

    return handler


def _may_connect(arn: str) -> dict[str, Any]:
    """Give the policy that lets the function of ``$connect`` decide."""
    statement = {"Action": "execute-api:Invoke", "Effect": "Allow", "Resource": arn}
    return {"Version": "2012-10-17", "Statement": [statement]}
