"""Clients upload and download attachments: ``POST /sync/{gateway}/attachments``."""

from lakesync.runtime import wiring, wiring_access, wiring_attachments
from lakesync.runtime.api.attachments import attachment_routes
from lakesync.runtime.http import create_app, lambda_handler
from lakesync.runtime.settings_attachments import AttachmentSettings

settings = wiring.load(AttachmentSettings)
service = wiring_attachments.attachment_service(settings)
routes = attachment_routes(service, wiring_access.quotas(settings))
handler = lambda_handler(create_app(routes, access=wiring_access.access(settings)))
