"""Sources tell of changes: ``POST /connectors/{gateway}/{name}/webhook``, signed."""

from lakesync.runtime import wiring, wiring_connectors
from lakesync.runtime.api.outlets import webhook_routes
from lakesync.runtime.http import create_app, lambda_handler
from lakesync.runtime.settings import WebhookSettings

routes = webhook_routes(wiring_connectors.webhooks(wiring.load(WebhookSettings)))
handler = lambda_handler(create_app(routes))
