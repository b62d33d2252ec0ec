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
from lakesync.runtime.tokens import bearer_token, claimed_gateway, verify

if TYPE_CHECKING:
    from collections.abc import Callable

    from lakesync.runtime.keys import Authorities


def lambda_authoriser(
    authorities: Authorities, clock: Callable[[], float] = time.time
) -> Callable[[dict[str, Any], Any], dict[str, Any]]:
    """Give the handler of an HTTP API's authorizer (payload 2.0, simple responses).

    Keys that cannot be read raise, so that nothing is cached and the error alarm rings.
    """

    def handler(event: dict[str, Any], context: object) -> dict[str, Any]:  # noqa: ARG001 - AWS's
        try:
            token = bearer_token(event.get("headers", {}).get("authorization"))
            rules, keys = authorities.of(claimed_gateway(token))
            answer = verified(verify(token, rules, keys, clock()))
        except AuthFailed as error:
            observe.logger.info("token refused", extra={"reason": error.message})
            observe.count("TokensRefused")
            answer = refused(error)
        observe.publish()
        return {"isAuthorized": True, "context": answer}

    return handler
