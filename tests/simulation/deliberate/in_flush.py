"""Faults in the order of a flush's steps, and in the lake's marks and lease."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lakesync.buffer.memory_buffer import MemoryBuffer
from lakesync.core.deliveries import announcement
from lakesync.errors import FlushFailed
from lakesync.maintenance import flush
from lakesync.maintenance import flush as run_module
from lakesync.maintenance.flush import Flusher, FlushReport, batches, rows_of
from lakesync.ports import FlushState
from tests.simulation.deliberate.registry import Replaced, deliberate
from tests.simulation.lake import Lake, Materialiser
from tests.simulation.themes import FLUSHES, LAYOUT, TABLE_FLUSHES
from tests.support.commits import logged

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lakesync.core.config import GatewayConfig
    from lakesync.core.delta import Delta
    from lakesync.maintenance.flush import Announcer, Batch


def _written(announcer: Announcer, batch: Batch, config: GatewayConfig) -> None:
    """Write a batch's rows and the lake's claim, and announce nothing."""
    body = announcer._encoder.encode(batch.rows, batch.columns)
    announcer._objects.put_object(batch.object_key, body, "application/vnd.apache.parquet")
    claim = batch.claim(config.schemas.get(batch.table), len(body))
    announcer._objects.put_object(batch.claim_key, claim.encode(), "application/json")


def carried_out(order: str) -> Any:
    """Return `Flusher._carry_out` with its steps in another order.

    Args:
        order: ``s`` stores and claims, ``a`` announces, ``t`` remembers the tables' last commits,
            ``w`` moves the watermark.
    """

    def carry_out(self: Flusher, work: Any, report: FlushReport) -> FlushReport:
        log, state, entries = work
        flushed = self._buffer.flushed_tables(log.gateway)
        planned = [
            batch
            for table, rows in rows_of(entry for _, entry in entries).items()
            if flushed.get(table, 0) <= state.watermark
            for batch in batches(log.gateway, table, rows, flushed.get(table, 0))
        ]
        for step in order:
            if step == "s":
                for batch in planned:
                    _written(self._announcer, batch, log.config)
            elif step == "a":
                for batch in planned:
                    message = announcement(batch.claim_key, batch.object_key)
                    self._announcer._lake.send(message)
            elif step == "t":
                for batch in planned:
                    self._buffer.save_flushed_table(log.gateway, batch.table, batch.last)
            else:
                done = FlushState(watermark=state.until)
                self._buffer.save_flush_state(log.gateway, state, done)
        return FlushReport(report.batches + len(planned), report.deltas, state.until)

    return carry_out


@deliberate("the watermark moves before the batches are announced")
def watermark_before_announcement() -> list[Replaced]:
    return [(Flusher, "_carry_out", carried_out("swat"))]


@deliberate("the watermark moves before the batches are written")
def watermark_before_object() -> list[Replaced]:
    return [(Flusher, "_carry_out", carried_out("wsat"))]


@deliberate("the batches are announced before they are written")
def announcement_before_object() -> list[Replaced]:
    return [(Flusher, "_carry_out", carried_out("astw"))]


@deliberate("a table is remembered as flushed before its batches are announced", FLUSHES)
def table_before_announcement() -> list[Replaced]:
    return [(Flusher, "_carry_out", carried_out("stwa"))]


@deliberate("a table is remembered as flushed only behind the watermark", FLUSHES)
def table_after_watermark() -> list[Replaced]:
    return [(Flusher, "_carry_out", carried_out("sawt"))]


@deliberate("a repeat of a range announces again what was remembered as flushed", FLUSHES)
def repeat_leaves_nothing_out() -> list[Replaced]:
    real = Flusher._carry_out

    def carry_out(self: Flusher, work: Any, report: FlushReport) -> FlushReport:
        return real(self, work._replace(state=replace(work.state, watermark=1 << 62)), report)

    return [(Flusher, "_carry_out", carry_out)]


@deliberate("of tables that are announced together only the first is named", FLUSHES)
def only_the_first_is_named() -> list[Replaced]:
    def named(claim: str, object_key: str = "", **_: Any) -> str:
        return announcement(claim, object_key)

    return [(flush, "announcement", named)]


@deliberate("a flush of one table ends the range, also for the others", TABLE_FLUSHES)
def one_table_ends_the_range() -> list[Replaced]:
    real = Flusher._announce

    def announce(self: Flusher, work: Any, report: FlushReport, only: str = "") -> FlushReport:
        announced = real(self, work, report, only)
        if only:
            done = FlushState(watermark=work.state.until)
            self._buffer.save_flush_state(work.log.gateway, work.state, done)
        return announced

    return [(Flusher, "_announce", announce)]


@deliberate("a recorded range is given up if a shard's share of the memory cannot hold it", LAYOUT)
def range_must_fit_its_shares() -> list[Replaced]:
    real = Flusher._by_commit

    def by_commit(self: Flusher, log: Any, span: tuple[int, int]) -> Any:
        entries = list(real(self, log, span))
        share = 2 * run_module.RANGE_BYTES_MAX // len(log.heads)
        sizes: Counter[str] = Counter()
        for lane, entry in entries:
            sizes[lane] += len(entry.records)
        recorded = self._buffer.flush_state(log.gateway).until
        if recorded and max(sizes.values(), default=0) > share:
            raise FlushFailed("a recorded range is larger than a flush may hold in memory")
        return iter(entries)

    return [(Flusher, "_by_commit", by_commit)]


@deliberate("the end of a range is not recorded: whoever repeats it makes another one", FLUSHES)
def ranges_are_not_recorded() -> list[Replaced]:
    def save(self: MemoryBuffer, gateway: str, seen: FlushState, state: FlushState) -> bool:
        stored = self._of(gateway)
        if stored.flush.watermark != seen.watermark:
            return False
        if not state.until:
            stored.flush = state
        return True

    return [(MemoryBuffer, "save_flush_state", save)]


@deliberate("a batch begins at the watermark, not where its table's last one ended")
def chain_by_watermark() -> list[Replaced]:
    def tables(self: MemoryBuffer, gateway: str, after: str = "") -> dict[str, int]:
        del after
        state_of_gateway = self._of(gateway)
        return dict.fromkeys(state_of_gateway.flushed, state_of_gateway.flush.watermark)

    return [(MemoryBuffer, "flushed_tables", tables)]


@deliberate("a flush begins one commit behind where the last one ended")
def ranges_leave_a_commit_out() -> list[Replaced]:
    real = MemoryBuffer.flush_state

    def state(self: MemoryBuffer, gateway: str) -> FlushState:
        planned = real(self, gateway)
        later = [e.stamp for log in logged(self, gateway).values() for e in log
                 if e.stamp > planned.watermark]  # fmt: skip
        if planned.until or len(later) < 2:
            return planned
        return replace(planned, watermark=planned.watermark + (min(later) - planned.watermark) * (
            planned.watermark > 0))  # fmt: skip

    return [(MemoryBuffer, "flush_state", state)]


@deliberate("the heads never learn that their data was flushed")
def heads_learn_of_no_flush() -> list[Replaced]:
    return [(MemoryBuffer, "note_flushed", lambda *_: None)]


# --- the lake -------------------------------------------------------------------------------------


@deliberate("a run that lost its lease still commits")
def lease_without_epoch() -> list[Replaced]:
    def commit(
        self: Lake, name: str, seen: int, epoch: int,
        batch: Sequence[tuple[int, int, Delta]], mark: int,
    ) -> None:  # fmt: skip
        del seen, epoch
        self.write(name, batch)
        self.table(name).snapshot += 1
        self.table(name).mark = mark

    return [(Lake, "commit", commit)]


@deliberate("the mark is written after the data")
def mark_after_data() -> list[Replaced]:
    def add(
        self: Materialiser, target: str, seen: int, epoch: int,
        batch: list[tuple[int, int, Delta]], mark: int,
    ) -> None:  # fmt: skip
        del seen, epoch
        table = self._world.lake.table(target)
        self._gate.call("data", lambda: self._world.lake.write(target, batch), writes=True)
        self._gate.call("mark", lambda: setattr(table, "mark", mark), writes=True)

    return [(Materialiser, "add", add)]


@deliberate("a claim is removed before its batch is in the table")
def claim_removed_first() -> list[Replaced]:
    real = Materialiser._take_up

    def take_up(self: Materialiser, claim: dict[str, Any], epoch: int) -> None:
        self._objects.delete_object(claim["key"])
        real(self, claim, epoch)

    return [(Materialiser, "_take_up", take_up)]
