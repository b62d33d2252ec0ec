"""Clients upload and download attachments: ``POST /sync/{gateway}/attachments``."""

from lakesync.runtime import wiring
from lakesync.runtime.api.submissions import attachment_routes
from lakesync.runtime.http import create_app, lambda_handler
from lakesync.runtime.settings import AttachmentSettings

settings = wiring.load(AttachmentSettings)
service = wiring.attachment_service(settings)
routes = attachment_routes(service, wiring.quotas(settings))
handler = lambda_handler(create_app(routes, access=wiring.access(settings)))
