"""Answers what needs no token: health, the OpenAPI document, addresses that are not served."""

from lakesync.runtime.api.open import open_routes
from lakesync.runtime.http import create_app, lambda_handler

handler = lambda_handler(create_app(open_routes()))
