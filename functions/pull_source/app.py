"""Answers pulls from declared databases, for ``functions/pull``; reached by it alone."""

from lakesync.runtime import wiring, wiring_access, wiring_deliver
from lakesync.runtime.api.pull import pull_routes
from lakesync.runtime.http import create_app, lambda_handler
from lakesync.runtime.settings_sources import SourcePullSettings

settings = wiring.load(SourcePullSettings)
routes = pull_routes(wiring_deliver.source_pulls(settings), of_sources=True)
handler = lambda_handler(create_app(routes, access=wiring_access.access(settings)))
