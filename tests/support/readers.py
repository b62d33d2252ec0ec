"""A gateway under sync rules, and readers that do just what its pages say."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from lakesync.buffer.memory_buffer import MemoryBuffer
from lakesync.core.clock import VISIBLE_MS_MAX
from lakesync.core.delta import Op, parse
from lakesync.core.merge import EMPTY, apply, view
from lakesync.core.messages import SNAPSHOT, Pull
from lakesync.core.visibility import state_without
from lakesync.errors import CursorExpired
from lakesync.log.lanes import Limits
from lakesync.maintenance.horizons import Trimmer
from lakesync.ports import FlushState
from lakesync.wire.records import decode_records, decode_row_state
from tests.support.builders import WALL_MS, push
from tests.support.gateways import GivenTime, administrator, puller, pusher

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from lakesync.core.delta import Delta
    from lakesync.core.merge import RowState
    from lakesync.core.messages import PullPage, Resync

GATEWAY = "g1"
TABLES = ("todos", "events", "lists", "other")
MINE = {"column": "owner", "op": "eq", "value": "jwt:sub"}


def bucket(*filters: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Return a bucket whose rows anyone may write, unless it says otherwise."""
    return bucket_without_write(*filters, **{"write": []} | more)


def bucket_without_write(*filters: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"name": "mine", "tables": ["todos"], "filters": list(filters)} | more


@dataclass
class World:
    """A gateway with a schema and rules, in memory, and a clock that is given."""

    buffer: MemoryBuffer = field(default_factory=MemoryBuffer)
    time: GivenTime = field(default_factory=lambda: GivenTime(WALL_MS))
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        self.push_service = pusher(self.buffer, time_=self.time, limits=self.limits)
        self.pull_service = puller(self.buffer, time_=self.time, limits=self.limits)
        columns = [{"name": name, "type": "string"} for name in ("owner", "title", "state")]
        for table in TABLES:
            body = {"table": table, "columns": columns, "append": table == "events"}
            administrator(self.buffer, time_=self.time).register_schema(GATEWAY, body)

    def rules(self, *buckets: dict[str, Any], omit: Sequence[dict[str, Any]] = ()) -> None:
        named = [b | {"name": str(n)} for n, b in enumerate(buckets)]
        body = {"version": 1, "buckets": named, "omit": list(omit)}
        administrator(self.buffer, time_=self.time).save_rules(GATEWAY, body)

    def flush_and_trim(self) -> None:
        """Let a minute pass, and leave nothing of the log."""
        self.time.now_ms += 2 * VISIBLE_MS_MAX
        heads = self.buffer.heads(GATEWAY)
        top = max(head.commit for head in heads.values())
        for table in TABLES:
            self.buffer.save_flushed_table(GATEWAY, table, top)
        state = self.buffer.flush_state(GATEWAY)
        self.buffer.save_flush_state(GATEWAY, state, FlushState(top))
        Trimmer(self.buffer, wall_clock=self.time.wall_clock, keep_ms=0).trim(GATEWAY)

    def push(
        self, *deltas: Delta, sub: str = "c1", atomic: bool = False, trusted: bool = False
    ) -> list[str]:
        """Push; give the codes of what was refused."""
        self.time.now_ms += 10
        whose = deltas[0].client_id if deltas else sub
        wanted = replace(push(*deltas, client=whose), claims={"sub": sub}, atomic=atomic)
        wanted = replace(wanted, trusted=trusted)
        receipt = self.push_service.push(GATEWAY, wanted)
        return [outcome.error.code for outcome in receipt.outcomes if outcome.error]

    def pages(self, pull: Pull) -> Iterator[PullPage]:
        while True:
            page = self.pull_service.pull(GATEWAY, pull)
            yield page
            if not page.has_more:
                return
            since = pull.since if page.snapshot else page.cursor
            pull = replace(pull, since=since, scope=page.scope, snapshot=page.snapshot)


@dataclass
class Reader:
    """A client that does what a page says, in the order in which it says it."""

    sub: str
    removes: bool = True
    limit: int = 100
    cursor: int = 0
    scope: str = ""
    rows: dict[tuple[str, str], RowState] = field(default_factory=dict)
    stale: set[tuple[str, str]] = field(default_factory=set)
    sent: list[Delta] = field(default_factory=list)
    resyncs: list[Resync] = field(default_factory=list)
    claims: dict[str, Any] = field(default_factory=dict)

    def sync(self, world: World) -> None:
        self.resyncs.clear()
        pull = self.asks()
        try:
            self.take(world.pages(pull))
        except CursorExpired:
            self.rows.clear()
            self.take(world.pages(replace(pull, since=0, scope="", snapshot=SNAPSHOT)))

    def asks(self) -> Pull:
        claims = {"sub": self.sub, **self.claims}
        return Pull(
            self.sub, self.cursor, self.limit, claims=claims, removes=self.removes, scope=self.scope
        )

    def take(self, pages: Iterator[PullPage]) -> None:
        for page in pages:
            if page.resync is not None:
                self.resyncs.append(page.resync)
                again = {key for key in self.rows if page.resync.concerns(key[0])}
                self.stale |= again
                for key in again:
                    omitted = frozenset(page.resync.omitted_of(key[0]))
                    self.rows[key] = state_without(self.rows[key], omitted)
            for run in page.records:
                for delta in decode_records(run):
                    self.sent.append(delta)
                    self.apply(delta)
            self.scope = page.scope
            self.cursor = self.cursor if page.snapshot else page.cursor
            if not page.has_more:
                for key in self.stale:
                    del self.rows[key]
                self.stale.clear()

    def apply(self, delta: Delta) -> None:
        key = (delta.table, delta.row_id)
        self.stale.discard(key)
        gone = delta.op is Op.REMOVE or (not self.removes and delta.op is Op.DELETE)
        if gone:
            self.rows.pop(key, None)
        else:
            self.rows[key] = apply(self.rows.get(key, EMPTY), delta)

    def seen(self) -> dict[tuple[str, str], dict[str, Any]]:
        return shown(self.rows)


def shown(rows: dict[tuple[str, str], RowState]) -> dict[tuple[str, str], dict[str, Any]]:
    views = {}
    for key, state in rows.items():
        columns = view(state)
        if columns is not None:
            views[key] = {name: parse(raw) for name, raw in columns.items()}
    return views


def truth(world: World) -> dict[tuple[str, str], dict[str, Any]]:
    stored_rows = world.buffer.rows(GATEWAY, [("todos", f"r{number}") for number in range(9)])
    return shown({key: decode_row_state(stored.state) for key, stored in stored_rows.items()})
