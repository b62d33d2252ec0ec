"""Clients fetch what is new, checkpoints and tickets: ``/sync/{gateway}/pull`` and its sisters."""

from lakesync.runtime import wiring, wiring_access, wiring_realtime
from lakesync.runtime.api.checkpoint import checkpoint_routes
from lakesync.runtime.api.pull import pull_routes
from lakesync.runtime.api.ticket import ticket_routes
from lakesync.runtime.http import create_app, lambda_handler
from lakesync.runtime.settings_realtime import PullFunctionSettings
from lakesync.runtime.sizing import sized
from lakesync.runtime.source_pulls import SOURCE_S, with_sources

settings = wiring.load(PullFunctionSettings)
pulls, checkpoints = wiring.pull_services(settings)
tickets = ticket_routes(wiring_realtime.socket_tickets(settings))
routes = pull_routes(pulls), checkpoint_routes(checkpoints), tickets
app = create_app(*routes, access=wiring_access.access(settings))
invoke = wiring.invoker(settings, settings.source_function, SOURCE_S)
handler = sized(with_sources(lambda_handler(app), invoke))
