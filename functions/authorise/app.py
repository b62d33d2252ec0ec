"""API Gateway's authorizer: verifies the token of a request, or a WebSocket's ticket."""

from lakesync.runtime import wiring, wiring_keys, wiring_realtime
from lakesync.runtime.authoriser import lambda_authoriser
from lakesync.runtime.settings_realtime import AuthoriseFunctionSettings
from lakesync.runtime.sizing import sized

settings = wiring.load(AuthoriseFunctionSettings)
handler = sized(
    lambda_authoriser(
        wiring_keys.authorities(settings),
        redeem=wiring_realtime.redeemer(settings),
        token_in_query=settings.token_in_query,
    )
)
