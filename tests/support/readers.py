"""A gateway under sync rules, and readers that do just what its pages say."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from lakesync.core.delta import Op, parse
from lakesync.core.merge import EMPTY, apply, view
from lakesync.core.messages import SNAPSHOT, Pull
from lakesync.core.visibility import state_without
from lakesync.errors import CursorExpired
from lakesync.wire.records import decode_records, decode_row_state
from tests.support.gateways import GATEWAY, GatewayWorld

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lakesync.core.delta import Delta
    from lakesync.core.merge import RowState
    from lakesync.core.messages import PullPage, Resync

TABLES = ("todos", "events", "lists", "other")


def bucket(*filters: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Return a bucket whose rows anyone may write, unless it says otherwise."""
    return bucket_without_write(*filters, **{"write": []} | more)


def bucket_without_write(*filters: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"tables": ["todos"], "filters": list(filters)} | more


class World(GatewayWorld):
    """A gateway whose tables have schemas, one of events among them."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for table in TABLES:
            self.declare_tables(
                table, columns=("owner", "title", "state"), append=table == "events"
            )

    def flush_and_trim(self, *tables: str) -> None:
        super().flush_and_trim(*(tables or TABLES))

    def pages(self, pull: Pull) -> Iterator[PullPage]:
        while True:
            page = self.pulls.pull(GATEWAY, pull)
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
