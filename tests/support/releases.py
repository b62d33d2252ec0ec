"""One release's functions, warm, over a model of DynamoDB and objects in memory."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lakesync.adapters.lake.parquet import ParquetEncoder
from lakesync.buffer.caller import DynamoCaller
from lakesync.buffer.dynamo import DynamoBuffer
from lakesync.checkpoint.store import Checkpoints
from lakesync.core.clock import STAMP_MAX
from lakesync.core.layout import MAIN_LANE
from lakesync.gateway.pull import PullService
from lakesync.maintenance.checkpoint_upkeep import Builder
from lakesync.maintenance.flush import Flusher
from lakesync.maintenance.horizons import Trimmer
from tests.support.gateways import administrator, pusher

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lakesync.buffer.caller import Send
    from lakesync.core.messages import Pull, PullPage
    from tests.support.gateways import GivenTime
    from tests.support.lake import Messages, Objects

GATEWAY = "g1"
TABLE = "lakesync-buffer"


def pages(pull: Pull, release: Callable[[], Release]) -> Iterator[PullPage]:
    while True:
        page = release().pulls.pull(GATEWAY, replace(pull, deltas_max=7, at_least=STAMP_MAX))
        yield page
        if not page.has_more:
            return
        since = pull.since if page.snapshot else page.cursor
        pull = replace(pull, since=since, scope=page.scope, snapshot=page.snapshot)


class Release:
    """The functions, over stores that they may share with another release's."""

    def __init__(
        self, send: Send, objects: Objects, queue: Messages, time: GivenTime, seed: int
    ) -> None:
        key = ("key", "secret", None)
        self.caller = DynamoCaller("us-east-1", send=send, credentials=lambda: key)
        self.buffer = DynamoBuffer(TABLE, self.caller)
        self.pushes = pusher(self.buffer, seed=seed, time_=time)
        self.admin = administrator(self.buffer, seed=seed, time_=time)
        clock, checkpoints = time.wall_clock, Checkpoints(objects)
        self.pulls = PullService(self.buffer, wall_clock=clock, checkpoints=checkpoints)
        self.flusher = Flusher(self.buffer, objects, queue, ParquetEncoder(), queue)
        self.builder = Builder(
            self.buffer, objects, checkpoints, wall_clock=clock, chunk_bytes=1 << 20
        )
        self.trimmer = Trimmer(self.buffer, wall_clock=clock, keep_ms=0)

    def declare(self, columns: int) -> None:
        """Register a schema of so many columns, and one of events."""
        names = ["n", "title", *(f"c{number}" for number in range(columns))]
        body = {"table": "notes", "columns": [{"name": name, "type": "json"} for name in names]}
        self.admin.register_schema(GATEWAY, body)
        events: dict[str, Any] = {"columns": [{"name": "n", "type": "json"}], "append": True}
        self.admin.register_schema(GATEWAY, {"table": "events"} | events)

    def open_lane(self) -> None:
        """Open another lane, as one does who lost a race."""
        main = self.buffer.heads(GATEWAY)[MAIN_LANE]
        wider = main.lanes.opening(MAIN_LANE, main.lanes.of(MAIN_LANE).open + 1)
        assert self.buffer.change_lanes(GATEWAY, main, wider)
