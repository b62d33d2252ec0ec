"""Administrators register schemas, flush, look at numbers, delete; clients see the numbers too."""

from functools import cache

from lakesync.runtime import (
    wiring,
    wiring_access,
    wiring_actions,
    wiring_connectors,
    wiring_deliver,
    wiring_realtime,
)
from lakesync.runtime.api.admin import admin_routes
from lakesync.runtime.http import create_app, lambda_handler
from lakesync.runtime.settings_realtime import AdminFunctionSettings

settings = wiring.load(AdminFunctionSettings)
connectors = cache(lambda: wiring_connectors.connector_admin(settings))
actions = cache(lambda: wiring_actions.action_admin(settings))
clients = cache(lambda: wiring_realtime.clients_admin(settings))
destinations = wiring_deliver.destination_admin(settings)
audit = wiring_access.audit(settings)
delete_now = wiring_connectors.and_connectors(connectors, wiring.delete_now(settings))
routes = admin_routes(
    wiring.admin_service(settings),
    wiring_access.access_admin(settings),
    destinations,
    wiring.flush_now(settings),
    wiring_actions.and_actions(actions, delete_now),
    connectors,
    actions,
    audit,
    clients,
    cache(lambda: wiring_connectors.flow_admin(settings, destinations, connectors())),
)
handler = lambda_handler(create_app(routes, access=wiring_access.access(settings), audit=audit))
