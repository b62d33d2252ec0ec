"""Clients fetch what is new, and checkpoints: ``GET /sync/{gateway}/pull`` and ``…/checkpoint``."""

from lakesync.runtime import wiring
from lakesync.runtime.api.checkpoint import checkpoint_routes
from lakesync.runtime.api.pull import pull_routes
from lakesync.runtime.http import create_app, lambda_handler
from lakesync.runtime.settings import PullSettings

pulls, checkpoints = wiring.pull_services(wiring.load(PullSettings))
handler = lambda_handler(create_app(pull_routes(pulls), checkpoint_routes(checkpoints)))
