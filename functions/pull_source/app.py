"""Answers pulls from declared databases, for ``functions/pull``; reached by it alone."""

from lakesync.runtime import deliver, wiring
from lakesync.runtime.api.pull import pull_routes
from lakesync.runtime.http import create_app, lambda_handler
from lakesync.runtime.settings import SourcePullSettings

settings = wiring.load(SourcePullSettings)
routes = pull_routes(deliver.source_pulls(settings), of_sources=True)
handler = lambda_handler(create_app(routes, access=wiring.access(settings)))
