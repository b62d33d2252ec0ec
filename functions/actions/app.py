"""Clients have actions done outside: ``POST /sync/{gateway}/action``, and ask which there are."""

from lakesync.runtime import wiring, wiring_connectors
from lakesync.runtime.api.submissions import action_routes
from lakesync.runtime.http import create_app, lambda_handler
from lakesync.runtime.settings import ActionSettings

settings = wiring.load(ActionSettings)
routes = action_routes(wiring_connectors.action_service(settings))
handler = lambda_handler(create_app(routes, access=wiring.access(settings)))
