"""API Gateway's authorizer: verifies the token of a request."""

from lakesync.runtime import wiring, wiring_keys
from lakesync.runtime.authoriser import lambda_authoriser
from lakesync.runtime.settings import AuthoriseSettings
from lakesync.runtime.tokens import TokenRules

settings = wiring.load(AuthoriseSettings)
rules = TokenRules(settings.algorithms, settings.issuer, settings.audience)
handler = lambda_authoriser(rules, wiring_keys.keys(settings))
