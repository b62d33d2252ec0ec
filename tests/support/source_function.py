"""The function that reads sources, in this process: asked by events, as the deployed one."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lakesync.adapters.memory import MemoryDatabase
from lakesync.delivery.source_pull import SourcePulls
from lakesync.runtime.api.pull import pull_routes, with_sources
from lakesync.runtime.http import create_app, lambda_handler
from tests.support.gateways import real_wall_clock

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.applications import Starlette

    from lakesync.ports import Buffer


@dataclass
class Sources:
    """One database, which is that of every destination that is declared."""

    database: MemoryDatabase = field(default_factory=MemoryDatabase)

    def beside(
        self, app: Starlette, buffer: Buffer
    ) -> Callable[[dict[str, Any], Any], dict[str, Any]]:
        """Return the handler of an app that has pulls from a source answered by a function."""
        pulls = SourcePulls(buffer, lambda *_: self.database, wall_clock=real_wall_clock)
        routes = pull_routes(pulls, of_sources=True)
        sources = lambda_handler(create_app(routes, access=app.state.access))

        def invoke(event: str) -> tuple[bool, bytes]:
            return True, json.dumps(sources(json.loads(event), None)).encode()

        return with_sources(lambda_handler(app), invoke)
