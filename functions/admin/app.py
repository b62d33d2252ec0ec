"""Administrators register schemas, flush, look at numbers, delete; clients see the numbers too."""

from lakesync.runtime import wiring, wiring_access
from lakesync.runtime.api.admin import admin_routes
from lakesync.runtime.http import create_app, lambda_handler
from lakesync.runtime.settings import AdminSettings

settings = wiring.load(AdminSettings)
routes = admin_routes(
    wiring.admin_service(settings),
    wiring_access.access_admin(settings),
    wiring.flush_now(settings),
    wiring.delete_now(settings),
)
handler = lambda_handler(create_app(routes, access=wiring_access.access(settings)))
