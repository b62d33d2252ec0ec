"""Administrators register schemas, flush, look at numbers, delete; clients see the numbers too."""

from functools import cache

from lakesync.runtime import deliver, websockets, wiring, wiring_connectors
from lakesync.runtime.api.admin import admin_routes
from lakesync.runtime.http import create_app, lambda_handler
from lakesync.runtime.websockets import AdminFunctionSettings

settings = wiring.load(AdminFunctionSettings)
connectors = cache(lambda: wiring_connectors.connector_admin(settings))
actions = cache(lambda: wiring_connectors.action_admin(settings))
clients = cache(lambda: websockets.clients_admin(settings))
destinations = deliver.destination_admin(settings)
audit = wiring.audit(settings)
routes = admin_routes(
    wiring.admin_service(settings),
    wiring.access_admin(settings),
    destinations,
    wiring.flush_now(settings),
    wiring_connectors.also_removing(wiring.delete_now(settings), actions, connectors),
    connectors,
    actions,
    audit,
    clients,
    cache(lambda: wiring_connectors.flow_admin(settings, destinations, connectors())),
)
handler = lambda_handler(create_app(routes, access=wiring.access(settings), audit=audit))
