"""API Gateway's authorizer: verifies the token of a request."""

from lakesync.runtime import wiring, wiring_keys
from lakesync.runtime.authoriser import lambda_authoriser
from lakesync.runtime.settings import AuthoriseSettings

settings = wiring.load(AuthoriseSettings)
handler = lambda_authoriser(
    wiring_keys.authorities(settings), token_in_query=settings.token_in_query
)
