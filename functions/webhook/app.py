"""Sources tell of changes: ``POST /connectors/{gateway}/{name}/webhook``, signed."""

from lakesync.runtime import wiring, wiring_webhooks
from lakesync.runtime.api.webhooks import webhook_routes
from lakesync.runtime.http import create_app, lambda_handler
from lakesync.runtime.settings_connectors import WebhookSettings

routes = webhook_routes(wiring_webhooks.webhooks(wiring.load(WebhookSettings)))
handler = lambda_handler(create_app(routes))
