"""The Lambda authorizer: turns a token into its claims, or into the reason for its refusal.

API Gateway answers a refusal by an authorizer with a body of its own. So a bad token is answered
with a context that contains the reason, and every function refuses it with our error body, as it
refuses any context other than that of a good token: see `lakesync.runtime.auth`.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from lakesync.errors import AuthFailed
from lakesync.runtime import observe
from lakesync.runtime.auth import refused, verified
from lakesync.runtime.realtime.handshake import socket_ticket, socket_token
from lakesync.runtime.tokens import bearer_token, claimed_gateway, verify

if TYPE_CHECKING:
    from collections.abc import Callable

    from lakesync.runtime.auth import TokenClaims
    from lakesync.runtime.keys import Authorities

    Redeem = Callable[[str], TokenClaims]


def lambda_authoriser(
    authorities: Authorities,
    clock: Callable[[], float] = time.time,
    *,
    redeem: Redeem | None = None,
    token_in_query: bool = False,
) -> Callable[[dict[str, Any], Any], dict[str, Any]]:
    """Return the handler of an HTTP API's authorizer (payload 2.0, simple responses).

    Also that of a WebSocket API, whose answer is passed on for as long as the connection lasts.
    Keys that cannot be read raise, so that nothing is cached and the error alarm fires; so does a
    ticket that cannot be looked up.

    Args:
        authorities: the rules and keys by which tokens are verified.
        clock: seconds since 1970.
        redeem: gives the claims of a ticket, once; without it tickets are refused.
        token_in_query: a WebSocket's token may be in its address.
    """

    def claims_of(token: str) -> TokenClaims:
        rules, keys = authorities.of(claimed_gateway(token))
        return verify(token, rules, keys, clock())

    def socket_claims(event: dict[str, Any]) -> TokenClaims:
        ticket = socket_ticket(event) if redeem else ""
        if redeem and ticket:
            return redeem(ticket)
        return claims_of(socket_token(event, in_query=token_in_query))

    def handler(event: dict[str, Any], context: object) -> dict[str, Any]:  # noqa: ARG001 - AWS's
        is_socket = "methodArn" in event
        try:
            if is_socket:
                claims = socket_claims(event)
            else:
                claims = claims_of(bearer_token(event.get("headers", {}).get("authorization")))
            answer = verified(claims)
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
    """Return the policy that lets the function of ``$connect`` decide."""
    statement = {"Action": "execute-api:Invoke", "Effect": "Allow", "Resource": arn}
    return {"Version": "2012-10-17", "Statement": [statement]}
