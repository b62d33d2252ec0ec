"""Gateways for clients to talk to: a naive one that serves as an oracle, and the real services.

The naive one shares no code with the real: it keeps every delta, decides nothing by row states and
merges by `tests.support.oracle`.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lakesync.buffer.memory_buffer import MemoryBuffer
from lakesync.core.clock import check_drift, stamp
from lakesync.core.gateway_identity import check_identity
from lakesync.core.messages import DeltaOutcome, OutcomeKind, PullPage, PushReceipt
from lakesync.errors import (
    AtomicPushRefused,
    AtomicPushTooLarge,
    CursorExpired,
    LakeSyncError,
    OutOfOrder,
    SchemaMismatch,
)
from lakesync.gateway.pull import PullService
from lakesync.gateway.push import PushService
from lakesync.log.lanes import Limits
from lakesync.wire.records import encode_records
from tests.support.gateways import Administrator

if TYPE_CHECKING:
    from collections.abc import Callable

    from lakesync.core.delta import Delta
    from lakesync.core.messages import Pull, Push
    from lakesync.ports import WallClock

GATEWAY = "g1"
COMMIT_DELTAS_MAX = 90


@dataclass
class NaiveGateway:
    """Keeps every commit in a list."""

    wall_clock: WallClock
    commits: list[tuple[int, list[Delta]]] = field(default_factory=list)
    pushes: list[Push] = field(default_factory=list)
    epoch: str = "here"
    scope: str = ""
    trimmed: int = 0
    strict: set[str] = field(default_factory=set)
    events: set[str] = field(default_factory=set)
    judge: Callable[[Delta], LakeSyncError | None] = lambda _: None

    def only_text_in(self, table: str) -> None:
        """Refuse every delta of a table whose ``title`` is not text."""
        self.strict.add(table)

    def append_only(self, table: str) -> None:
        """Make a table's rows events."""
        self.events.add(table)

    def push(self, _gateway: str, push: Push) -> PushReceipt:
        """Judge each delta, then keep those that are new."""
        check_identity(push.epoch, self.epoch)
        self.pushes.append(push)
        if push.atomic and len(push.deltas) > COMMIT_DELTAS_MAX:
            raise AtomicPushTooLarge("too many")
        outcomes, taken = [], []
        for index, delta in push.deltas:
            error = self._error(delta)
            if error is not None:
                outcomes.append(DeltaOutcome(index, delta.delta_id, OutcomeKind.REFUSED, error))
            elif self._holds(delta):
                outcomes.append(DeltaOutcome(index, delta.delta_id, OutcomeKind.DUPLICATE))
            else:
                taken.append((index, delta))
        refused = [outcome for outcome in outcomes if outcome.kind is OutcomeKind.REFUSED]
        if push.atomic and refused:
            guilty = {outcome.index for outcome in refused}
            refused += [
                DeltaOutcome(index, delta.delta_id, OutcomeKind.REFUSED, AtomicPushRefused("other"))
                for index, delta in push.deltas
                if index not in guilty
            ]
            return PushReceipt(self._last(), 0, tuple(refused), self.wall_clock(), self.epoch)
        if taken:
            now = max(self._last() + 1, stamp(self.wall_clock()))
            self.commits.append((now, [delta for _, delta in taken]))
        accepted = len(push.deltas) - len(refused)
        return PushReceipt(self._last(), accepted, tuple(outcomes), self.wall_clock(), self.epoch)

    def pull(self, _gateway: str, pull: Pull) -> PullPage:
        """Return whole commits until the page is full."""
        check_identity(pull.epoch, self.epoch)
        foreign = pull.since > self._last() or pull.epoch not in {"", self.epoch}
        if pull.since < self.trimmed or (pull.since and foreign):
            raise CursorExpired("expired")
        page: list[tuple[int, list[Delta]]] = []
        for commit in self.commits:
            if commit[0] <= pull.since:
                continue
            if sum(len(deltas) for _, deltas in page) >= pull.deltas_max:
                return self._page(page, page[-1][0], has_more=True)
            page.append(commit)
        return self._page(page, self._last(), has_more=False)

    def _page(
        self, commits: list[tuple[int, list[Delta]]], cursor: int, *, has_more: bool
    ) -> PullPage:
        runs = tuple(encode_records(deltas) for _, deltas in commits)
        count = sum(len(deltas) for _, deltas in commits)
        return PullPage(runs, count, cursor, has_more, self.epoch, scope=self.scope)

    def _error(self, delta: Delta) -> LakeSyncError | None:
        try:
            check_drift(delta.hlc, self.wall_clock())
        except LakeSyncError as error:
            return error
        if delta.table in self.strict and any(
            name == "title" and not value.startswith(b'"') for name, value in delta.columns
        ):
            return SchemaMismatch("title is text", field="title")
        if delta.table in self.events and delta.hlc <= self._mark(delta.client_id):
            before = [own for own in self._own_events(delta.client_id)[-1:] if own == delta]
            return None if before else OutOfOrder("late")
        return self.judge(delta)

    def _own_events(self, client_id: str) -> list[Delta]:
        deltas = itertools.chain.from_iterable(deltas for _, deltas in self.commits)
        return [d for d in deltas if d.table in self.events and d.client_id == client_id]

    def _mark(self, client_id: str) -> int:
        return max((delta.hlc for delta in self._own_events(client_id)), default=0)

    def _holds(self, delta: Delta) -> bool:
        return any(delta in deltas for _, deltas in self.commits)

    def _last(self) -> int:
        return self.commits[-1][0] if self.commits else 0


class _Chance:
    def __init__(self) -> None:
        self._tokens = itertools.count()

    def jitter(self) -> float:
        return 0.5

    def token(self) -> str:
        return f"commit-{next(self._tokens)}"


class RealGateway:
    """The library's own services on the buffer in memory."""

    def __init__(self, wall_clock: WallClock) -> None:
        self.buffer = buffer = MemoryBuffer()
        chance = _Chance()
        self._pulls = PullService(buffer, wall_clock=wall_clock)
        self._pushes = PushService(
            buffer,
            wall_clock=wall_clock,
            sleep_ms=lambda _: None,
            chance=chance,
            # Nothing is flushed here, however long a test's clock says it waits.
            limits=Limits(backpressure_age_ms_max=10**12),
        )
        self._admin = Administrator(
            buffer, wall_clock=wall_clock, sleep_ms=lambda _: None, chance=chance
        )
        self.pushes: list[Push] = []

    def only_text_in(self, table: str) -> None:
        """Refuse every delta of a table whose ``title`` is not text."""
        self._register(table, append=False)

    def append_only(self, table: str) -> None:
        """Make a table's rows events."""
        self._register(table, append=True)

    def _register(self, table: str, *, append: bool) -> None:
        columns = [{"name": "title", "type": "string"}, {"name": "done", "type": "boolean"}]
        body = {"table": table, "columns": columns, "append": append}
        self._admin.register_schema(GATEWAY, body)

    def push(self, gateway: str, push: Push) -> PushReceipt:
        """Push to the service."""
        self.pushes.append(push)
        return self._pushes.push(gateway, push)

    def pull(self, gateway: str, pull: Pull) -> PullPage:
        """Pull from the service."""
        return self._pulls.pull(gateway, pull)
