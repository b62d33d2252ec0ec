"""A gateway in memory whose rows are kept in checkpoints, and clients that begin there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakesync.checkpoint.store import CHUNK_BYTES_MAX, Checkpoints
from lakesync.core.delta import Op
from lakesync.core.merge import EMPTY, fold
from lakesync.core.messages import Pull
from lakesync.gateway.pull import PullService
from lakesync.log.declare import Declare
from lakesync.maintenance.checkpoint_upkeep import Builder
from lakesync.maintenance.horizons import Forgetter, Trimmer
from lakesync.ports import FlushState
from lakesync.wire.records import decode_records, encode_row_state
from tests.support.builders import WALL_MS
from tests.support.commits import logged
from tests.support.gateways import GATEWAY, GatewayWorld, GivenTime, SeededChance, refusals
from tests.support.lake import Objects

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from lakesync.checkpoint.store import Manifest
    from lakesync.core.delta import Delta
    from lakesync.core.merge import RowState
    from lakesync.core.messages import PullPage
    from lakesync.maintenance.checkpoint_upkeep import BuildReport
    from lakesync.ports import RowKey
    from tests.support.lake import Life

MINUTE_MS = 60_000


class Kept(GatewayWorld):
    """A gateway, and its objects."""

    def __init__(self, *, chunk_bytes: int = CHUNK_BYTES_MAX) -> None:
        super().__init__(time=GivenTime(WALL_MS))
        self.objects = Objects()
        self.checkpoints = Checkpoints(self.objects)
        self.chunk_bytes = chunk_bytes
        self.reader = self.reads(self.checkpoints)

    def reads(self, checkpoints: Checkpoints | None) -> PullService:
        clock = self.time.wall_clock
        return PullService(self.buffer, wall_clock=clock, checkpoints=checkpoints)

    def push(self, *deltas: Delta, **more: Any) -> list[str]:
        """Push deltas in their order, each as its own client; returns what was refused."""
        return [code for delta in deltas for code in refusals(self.send(delta, **more))]

    def flushed(self) -> None:
        self.time.now_ms += 10 * MINUTE_MS
        stored = self.buffer._gateways[GATEWAY]
        entries = [entry for log in logged(self.buffer, GATEWAY).values() for entry in log]
        tables = {name for entry in entries for name in entry.tables}
        top = max((head.commit for head in stored.heads.values()), default=0)
        for table in {*tables, *stored.flushed}:
            self.buffer.save_flushed_table(GATEWAY, table, top)
        stored.flush = FlushState(top)
        for lane, head in stored.heads.items():
            self.buffer.note_flushed(GATEWAY, lane, top, head.logged_bytes)

    def trim(self, covered: int | None = None) -> None:
        """Let go of all of the log that may go."""
        clock = self.time.wall_clock
        trimmer = Trimmer(self.buffer, wall_clock=clock, keep_ms=0)
        trimmer.trim(GATEWAY, covered=covered)

    def forgetter(self, keep_ms: int = 0, buffer: Any = None) -> Forgetter:
        chosen, clock = buffer or self.buffer, self.time.wall_clock
        sleep_ms, chance = self.time.sleep_ms, SeededChance()
        declare = Declare(chosen, wall_clock=clock, sleep_ms=sleep_ms, chance=chance)
        return Forgetter(chosen, self.checkpoints, declare, wall_clock=clock, keep_ms=keep_ms)

    def builder(self, life: Life | None = None) -> Builder:
        objects = life.of(self.objects) if life else self.objects
        return Builder(
            self.buffer, objects, Checkpoints(objects), wall_clock=self.time.wall_clock,
            chunk_bytes=self.chunk_bytes,
        )  # fmt: skip

    def build(self, has_time: Callable[[], bool] = lambda: True) -> BuildReport:
        return self.builder().build(GATEWAY, has_time=has_time)

    def latest(self) -> Manifest:
        latest = self.checkpoints.latest(GATEWAY, self.epoch(), 0)
        assert latest is not None
        return latest

    def bodies(self) -> dict[str, bytes]:
        """Return all objects as any gateway with these commits has them: each has its own epoch."""
        epoch = self.epoch().encode()
        assert epoch
        bodies = self.objects.bodies.items()
        return {key: body.replace(epoch, b"(epoch)") for key, body in bodies}

    def rows(self) -> dict[RowKey, bytes]:
        rows = self.buffer._gateways[GATEWAY].rows
        return {key: row.state for key, row in rows.items()}

    def runs_of(self, manifest: Manifest) -> list[bytes]:
        places = [shape.place(number) for shape in manifest.tables.values()
                  for number in range(shape.parts)]  # fmt: skip
        return [self.checkpoints.part(GATEWAY, manifest.id, place) for place in places if place]


class Reader:
    """What a client holds that reads from the beginning."""

    def __init__(
        self,
        gateway: Kept,
        *,
        claims: Mapping[str, Any] | None = None,
        removes: bool = True,
        deltas_max: int = 100,
    ) -> None:
        self._gateway = gateway
        self._pull = Pull("r", 0, deltas_max, claims=claims or {}, removes=removes)
        self.states: dict[RowKey, RowState] = {}
        self.pages: list[PullPage] = []

    def ask(self, pull: Pull) -> PullPage:
        page = self._gateway.reader.pull(GATEWAY, pull)
        self.pages.append(page)
        for run in page.records:
            for delta in decode_records(run):
                key = (delta.table, delta.row_id)
                # Without REMOVE, a row that is hidden by now is sent as deleted, at the commit.
                if delta.op is Op.REMOVE or (not self._pull.removes and delta.op is Op.DELETE):
                    self.states.pop(key, None)
                else:
                    self.states[key] = fold([delta], self.states.get(key, EMPTY))
        return page

    def read(
        self, snapshot: str = "begin", between: Callable[[], None] = lambda: None
    ) -> dict[RowKey, bytes]:
        pull = self._begun(snapshot)
        while True:
            page = self.ask(pull)
            between()
            if not page.has_more:
                return self.bytes()
            pull = self.after(page)

    def after(self, page: PullPage) -> Pull:
        asked = self._pull
        return Pull(
            "r", page.cursor, asked.deltas_max, page.epoch, page.snapshot, claims=asked.claims,
            removes=asked.removes, scope=page.scope,
        )  # fmt: skip

    def bytes(self) -> dict[RowKey, bytes]:
        return {key: encode_row_state(state) for key, state in self.states.items()}

    def _begun(self, snapshot: str) -> Pull:
        asked = self._pull
        return Pull(
            "r", 0, asked.deltas_max, snapshot=snapshot, claims=asked.claims,
            removes=asked.removes,
        )  # fmt: skip
