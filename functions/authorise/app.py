"""API Gateway's authorizer: verifies the token of a request, or a WebSocket's ticket."""

from lakesync.runtime import authoriser, websockets, wiring
from lakesync.runtime.authoriser import lambda_authoriser
from lakesync.runtime.observe import sized
from lakesync.runtime.websockets import AuthoriseFunctionSettings

settings = wiring.load(AuthoriseFunctionSettings)
handler = sized(
    lambda_authoriser(
        authoriser.authorities(settings),
        redeem=websockets.redeemer(settings),
        token_in_query=settings.token_in_query,
    )
)
