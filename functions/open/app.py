"""Answers what needs no token: health, the OpenAPI document, addresses that are not served."""

import os

from lakesync.runtime.api.open import open_routes
from lakesync.runtime.http import create_app, lambda_handler
from lakesync.runtime.settings import OpenSettings, load

settings = load(OpenSettings, os.environ)
handler = lambda_handler(create_app(open_routes(settings.socket_url)))
