"""Clients hand deltas over: ``POST /sync/{gateway}/push``."""

from lakesync.runtime import wiring
from lakesync.runtime.api.submissions import push_routes
from lakesync.runtime.http import create_app, lambda_handler
from lakesync.runtime.observe import sized
from lakesync.runtime.settings import PushSettings

settings = wiring.load(PushSettings)
routes = push_routes(
    wiring.push_service(settings),
    wiring.quotas(settings),
    body_bytes_max=wiring.limits(settings).push_body_bytes_max,
)
handler = sized(lambda_handler(create_app(routes, access=wiring.access(settings))))
