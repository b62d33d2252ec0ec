"""A gateway's services around any buffer, deterministic: chance is seeded, time is given."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from lakesync.buffer.memory_buffer import MemoryBuffer
from lakesync.core.clock import STAMP_MAX, VISIBLE_MS_MAX
from lakesync.core.messages import Pull
from lakesync.declare.schemas import read_flushing, read_schema
from lakesync.declare.sync_rules import rules_reader
from lakesync.gateway.admin import AdminService
from lakesync.gateway.pull import PullService
from lakesync.gateway.push import PushService
from lakesync.log.lanes import DEFAULT_LIMITS
from lakesync.maintenance.horizons import Trimmer
from lakesync.ports import FlushState
from lakesync.wire.records import decode_records, decode_row_state
from tests.support.builders import CLIENT, TABLE, WALL_MS, push

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from lakesync.core.clock import Stamp
    from lakesync.core.config import Flushing
    from lakesync.core.delta import Delta
    from lakesync.core.merge import RowState
    from lakesync.core.messages import PullPage, PushReceipt
    from lakesync.core.rules import SyncRules
    from lakesync.core.schema import TableSchema
    from lakesync.core.visibility import Claims
    from lakesync.gateway.admin_changes import TableTrial
    from lakesync.log.lanes import Limits
    from lakesync.ports import Buffer

GATEWAY = "g1"
MINE = {"column": "owner", "op": "eq", "value": "jwt:sub"}
"""The filter of a sync rule: a row belongs to the user whom its owner names."""


class SeededChance:
    """`lakesync.log.commit.Chance` with the same jitter each time."""

    def __init__(self, seed: int = 0) -> None:
        self._random = random.Random(seed)

    def jitter(self) -> float:
        return self._random.random()

    def token(self) -> str:
        """Return a name that is never given again."""
        return uuid4().hex  # stores outlive a test, so a name must differ in each


def real_wall_clock() -> int:
    return time.time_ns() // 1_000_000


def really_sleep_ms(milliseconds: float) -> None:
    time.sleep(milliseconds / 1000)


class GivenTime:
    """Wall time that only sleeping moves."""

    def __init__(self, now_ms: int) -> None:
        self.now_ms = float(now_ms)

    def wall_clock(self) -> int:
        return int(self.now_ms)

    def sleep_ms(self, milliseconds: float) -> None:
        self.now_ms += milliseconds


def pusher(
    buffer: Buffer,
    *,
    seed: int = 0,
    time_: GivenTime | None = None,
    limits: Limits = DEFAULT_LIMITS,
    on_threshold: Callable[[str], None] = lambda _: None,
) -> PushService:
    """Make a push service as one warm process has it; with real time unless time is given."""
    return PushService(
        buffer,
        wall_clock=time_.wall_clock if time_ else real_wall_clock,
        sleep_ms=time_.sleep_ms if time_ else really_sleep_ms,
        chance=SeededChance(seed),
        limits=limits,
        on_threshold=on_threshold,
    )


def puller(
    buffer: Buffer, *, time_: GivenTime | None = None, limits: Limits = DEFAULT_LIMITS
) -> PullService:
    wall_clock = time_.wall_clock if time_ else real_wall_clock
    return PullService(buffer, wall_clock=wall_clock, limits=limits)


class Administrator(AdminService):
    """An administration service that reads what administrators send, as the routes do."""

    def register_schema(self, gateway: str, wanted: object) -> TableSchema:
        return super().register_schema(gateway, read_schema(wanted))

    def save_rules(self, gateway: str, reads: object) -> SyncRules:
        return super().save_rules(gateway, rules_reader(reads))

    def try_rules(self, gateway: str, reads: object, claims: Claims | None) -> list[TableTrial]:
        return super().try_rules(gateway, rules_reader(reads), claims)

    def save_flushing(self, gateway: str, wanted: object) -> Flushing:
        return super().save_flushing(gateway, read_flushing(wanted))


def administrator(
    buffer: Buffer, *, seed: int = 0, time_: GivenTime | None = None
) -> Administrator:
    return Administrator(
        buffer,
        wall_clock=time_.wall_clock if time_ else real_wall_clock,
        sleep_ms=time_.sleep_ms if time_ else really_sleep_ms,
        chance=SeededChance(seed),
    )


def pages(
    buffer: Buffer, gateway: str, *, since: int = 0, deltas_max: int = 100
) -> Iterator[PullPage]:
    service = puller(buffer)
    while True:
        pull = Pull("reader", since=since, deltas_max=deltas_max, at_least=STAMP_MAX)
        page = service.pull(gateway, pull)
        yield page
        since = page.cursor
        if not page.has_more:
            return


def deltas_of(page: PullPage) -> list[Delta]:
    return [delta for run in page.records for delta in decode_records(run)]


def pulled(buffer: Buffer, gateway: str, *, since: int = 0, deltas_max: int = 100) -> list[Delta]:
    """Return every delta after a cursor, in the order in which they come."""
    read = pages(buffer, gateway, since=since, deltas_max=deltas_max)
    return [delta for page in read for delta in deltas_of(page)]


@dataclass
class GatewayWorld:
    """A gateway in memory, on time that only its test moves: what other worlds are made of.

    ``pushes``, ``pulls`` and ``admin`` are the services of one warm process; `pusher` and `puller`
    make those of others.
    """

    buffer: MemoryBuffer = field(default_factory=MemoryBuffer)
    time: GivenTime = field(default_factory=lambda: GivenTime(WALL_MS + 60_000))
    limits: Limits = DEFAULT_LIMITS

    def __post_init__(self) -> None:
        self.pushes, self.pulls = self.pusher(), self.puller()
        self.admin = administrator(self.buffer, time_=self.time)

    def pusher(self, seed: int = 0, **options: Any) -> PushService:
        options = {"time_": self.time, "limits": self.limits, **options}
        return pusher(self.buffer, seed=seed, **options)

    def puller(self, limits: Limits | None = None) -> PullService:
        return puller(self.buffer, time_=self.time, limits=limits or self.limits)

    def declare_tables(self, *tables: str, columns: Iterable[str] = (), **more: object) -> None:
        """Give tables a schema; their columns are strings."""
        typed = [{"name": name, "type": "string"} for name in columns]
        for table in tables:
            self.admin.register_schema(GATEWAY, {"table": table, "columns": typed, **more})

    def rules(self, *buckets: dict[str, Any], omit: Sequence[dict[str, Any]] = ()) -> None:
        """Save sync rules; buckets without a name are numbered."""
        named = [{"name": str(number)} | bucket for number, bucket in enumerate(buckets)]
        self.admin.save_rules(GATEWAY, {"version": 1, "buckets": named, "omit": list(omit)})

    def send(self, *deltas: Delta, sub: str | None = None, **more: Any) -> PushReceipt:
        """Push, as the client of the first delta; ``sub`` is its user."""
        client = deltas[0].client_id if deltas else CLIENT
        claims = {} if sub is None else {"sub": sub}
        asked = replace(push(*deltas, client=client), claims=claims, **more)
        return self.pushes.push(GATEWAY, asked)

    def push(self, *deltas: Delta, **more: Any) -> list[str]:
        """Push 10 ms later; returns the codes of what was refused."""
        self.time.now_ms += 10
        return refusals(self.send(*deltas, **more))

    def page(self, since: Stamp = 0, client: str = "r", **more: Any) -> PullPage:
        return self.pulls.pull(GATEWAY, Pull(client, since, **more))

    def pulled(self, *, since: Stamp = 0, deltas_max: int = 100) -> list[Delta]:
        """Return every delta after a cursor, in the order in which they come."""
        return pulled(self.buffer, GATEWAY, since=since, deltas_max=deltas_max)

    def epoch(self) -> str:
        return self.buffer.epoch(GATEWAY)

    def state(self, row_id: str, table: str = TABLE) -> RowState:
        return decode_row_state(self.buffer.rows(GATEWAY, [(table, row_id)])[table, row_id].state)

    def mark_flushed(self, *tables: str) -> Stamp:
        """Make it look as if all of the log were flushed; returns its end."""
        end = max(head.commit for head in self.buffer.heads(GATEWAY).values())
        for table in tables:
            self.buffer.save_flushed_table(GATEWAY, table, end)
        state = self.buffer.flush_state(GATEWAY)
        assert self.buffer.save_flush_state(GATEWAY, state, FlushState(end))
        return end

    def flush_and_trim(self, *tables: str) -> None:
        """Let a minute pass, and leave nothing of the log."""
        self.time.now_ms += 2 * VISIBLE_MS_MAX
        self.mark_flushed(*tables)
        Trimmer(self.buffer, wall_clock=self.time.wall_clock, keep_ms=0).trim(GATEWAY)


def refusals(receipt: PushReceipt) -> list[str]:
    return [outcome.error.code for outcome in receipt.outcomes if outcome.error]
