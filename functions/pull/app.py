"""Clients fetch what is new, and checkpoints: ``GET /sync/{gateway}/pull`` and ``…/checkpoint``."""

from lakesync.runtime import wiring, wiring_access
from lakesync.runtime.api.checkpoint import checkpoint_routes
from lakesync.runtime.api.pull import pull_routes
from lakesync.runtime.http import create_app, lambda_handler
from lakesync.runtime.settings_sources import PullAndSourceSettings
from lakesync.runtime.source_pulls import SOURCE_S, with_sources

settings = wiring.load(PullAndSourceSettings)
pulls, checkpoints = wiring.pull_services(settings)
routes = pull_routes(pulls), checkpoint_routes(checkpoints)
app = create_app(*routes, access=wiring_access.access(settings))
invoke = wiring.invoker(settings, settings.source_function, SOURCE_S)
handler = with_sources(lambda_handler(app), invoke)
