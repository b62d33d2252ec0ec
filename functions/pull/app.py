"""Clients fetch what is new, checkpoints and tickets: ``/sync/{gateway}/pull`` and its sisters."""

from functools import cache

from lakesync.runtime import websockets, wiring
from lakesync.runtime.api.pull import (
    SOURCE_S,
    checkpoint_routes,
    pull_routes,
    ticket_routes,
    with_sources,
)
from lakesync.runtime.http import create_app, lambda_handler
from lakesync.runtime.observe import sized
from lakesync.runtime.websockets import PullFunctionSettings

settings = wiring.load(PullFunctionSettings)
pulls, checkpoints = wiring.pull_services(settings)
tickets = ticket_routes(cache(lambda: websockets.socket_tickets(settings)))
routes = pull_routes(pulls), checkpoint_routes(checkpoints), tickets
app = create_app(*routes, access=wiring.access(settings))
invoke = wiring.invoker(settings, settings.source_function, SOURCE_S)
handler = sized(with_sources(lambda_handler(app), invoke))
