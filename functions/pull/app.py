"""Clients fetch what is new, and checkpoints: ``GET /sync/{gateway}/pull`` and ``…/checkpoint``."""

from lakesync.runtime import wiring, wiring_access
from lakesync.runtime.api.checkpoint import checkpoint_routes
from lakesync.runtime.api.pull import pull_routes
from lakesync.runtime.http import create_app, lambda_handler
from lakesync.runtime.settings import PullSettings

settings = wiring.load(PullSettings)
pulls, checkpoints = wiring.pull_services(settings)
routes = pull_routes(pulls), checkpoint_routes(checkpoints)
handler = lambda_handler(create_app(*routes, access=wiring_access.access(settings)))
