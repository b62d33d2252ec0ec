"""Clients fetch what is new: ``GET /sync/{gateway}/pull``."""

from lakesync.runtime import wiring
from lakesync.runtime.api.pull import pull_routes
from lakesync.runtime.http import create_app, lambda_handler
from lakesync.runtime.settings import PullSettings

settings = wiring.load(PullSettings)
handler = lambda_handler(create_app(pull_routes(wiring.pull_service(settings))))
