"""Flush: announce everything that was committed, unchanged, once it is stored on S3.

The steps of one range, in this order; a crash between any two of them is repaired by running again:

    1. the end of the range is recorded        so that the next flush repeats exactly this range
       of a few of its tables in turn:
    2. the rows are written                    under names made from their commits
    3. the claims are written                  from here the batches may be found and applied
    4. the batches are announced               to each destination separately
    5. the tables' last commits are stored     from here a repeat leaves these tables out
    6. the watermark moves                     last: nothing behind it is ever read again
    7. the heads are updated                   for backpressure only

A range is cut by its content, in commit order over all lanes. It does not depend on which lanes are
open, now or when the range is repeated. Laws D1-D6: ``docs/spec/delivery.md``.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from heapq import merge
from itertools import groupby
from typing import TYPE_CHECKING, Final, NamedTuple

from lakesync.core.clock import stamp_ms
from lakesync.errors import Contention, GatewayDeleted
from lakesync.log.final_log import read
from lakesync.log.head_checks import unflushed_bytes
from lakesync.log.lanes import close_idle
from lakesync.log.read_barrier import ReadBarrier
from lakesync.log.waiting import over_budget, waiting_tables
from lakesync.maintenance.announce import Announcer
from lakesync.maintenance.batches import batches, rows_of
from lakesync.maintenance.due import due_gateways
from lakesync.ports import FlushState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lakesync.core.clock import Stamp
    from lakesync.log.final_log import FinalLog
    from lakesync.ports import (
        BatchEncoder,
        Buffer,
        LogEntry,
        ObjectStore,
        Queue,
    )

RANGE_BYTES_MAX: Final = 16 * 1024 * 1024
"""Deltas of one range, inflated, over all lanes; the last commit may exceed it. A flush holds them
in memory."""
RANGE_TABLES_MAX: Final = 200
"""Tables of one range; those of its last commit may exceed it. Each is two objects and an item, so
a range takes seconds."""
TOGETHER_TABLES_MAX: Final = 3
"""Tables whose batches are announced to the lake in one message. A process takes several messages,
and has time for some fifteen tables."""
CLOSE_AFTER_S: Final = 75
"""How long after a flush the lanes that it left open are examined again: a little more than a
minute. Those without activity since then are idle, whatever clocks say."""
_SLICE_DELTAS_MAX: Final = 10_000


@dataclass(frozen=True, slots=True)
class FlushReport:
    """The result of a flush."""

    batches: int = 0
    deltas: int = 0
    watermark: Stamp = 0
    finished: bool = True
    """False if time ran out with data left; the next flush continues from here."""

    def with_more(self, other: FlushReport) -> FlushReport:
        """Return the result of this flush and of a later one."""
        return FlushReport(
            self.batches + other.batches,
            self.deltas + other.deltas,
            max(self.watermark, other.watermark),
            self.finished and other.finished,
        )


class _Work(NamedTuple):
    """A recorded range, and its entries in commit order; no range if nothing is left."""

    log: FinalLog
    state: FlushState
    entries: list[tuple[str, LogEntry]]
    """Each with its lane."""


class Flusher:
    """Flushes gateways. Any number may run at once, also on the same gateway.

    Args:
        buffer: the buffer.
        objects: the store of batches.
        queue: the queue of the lake's batches.
        encoder: makes the objects.
        deliveries: the queue of other destinations' batches.
        still_open: called with a gateway that still has several lanes open, and with a stamp; has
            `close_lanes` called with them after `CLOSE_AFTER_S`.
    """

    def __init__(
        self,
        buffer: Buffer,
        objects: ObjectStore,
        queue: Queue,
        encoder: BatchEncoder,
        deliveries: Queue,
        *,
        still_open: Callable[[str, Stamp], None] = lambda *_: None,
    ) -> None:
        self._buffer = buffer
        self._still_open = still_open
        self._announcer = Announcer(objects, encoder, queue, deliveries)
        self._barrier = ReadBarrier(buffer)

    def flush(
        self, gateway: str, has_time: Callable[[], bool] = lambda: True, table: str = ""
    ) -> FlushReport:
        """Announce everything committed so far, range by range. Idempotent, and safe to kill.

        Nothing of a deleted gateway is announced.

        Args:
            gateway: whose log.
            has_time: called before each range; False ends the flush there.
            table: announce only this table, of the last range; empty for all. Ranges follow each
                other, so of an earlier one that is not finished, everything is announced.

        Raises:
            LakeSyncError: a store or the queue refused; what was done stays done.
        """
        with suppress(GatewayDeleted):
            log = self._barrier.raise_heads(gateway)
            return self._flush_table(log, table, has_time) if table else self._flush(log, has_time)
        return FlushReport()

    def flush_if_due(
        self, gateway: str, now_ms: int, has_time: Callable[[], bool] = lambda: True
    ) -> FlushReport:
        """Flush a gateway as `flush` does, unless its declaration lets its log wait until later.

        While it waits, tables that have used up their budgets are flushed. Cost of not flushing: a
        few read units; with budgets, reading what waits.

        Raises:
            LakeSyncError: a store or the queue refused; what was done stays done.
        """
        flushing = self._buffer.config(gateway).flushing
        if not flushing.every_s or not flushing.waits(*self._unflushed(gateway, now_ms)):
            return self.flush(gateway, has_time)
        report = FlushReport()
        if not flushing.tables:
            return report
        with suppress(GatewayDeleted):
            waiting, _ = waiting_tables(self._buffer, self._barrier.raise_heads(gateway))
            for table in over_budget(waiting, flushing.tables):
                report = report.with_more(self.flush(gateway, has_time, table))
        return report

    def _unflushed(self, gateway: str, now_ms: int) -> tuple[int, int]:
        """Return the age of the oldest commit that waits, and how many bytes wait."""
        heads = self._buffer.heads(gateway).values()
        oldest = min((head.oldest_unflushed for head in heads if head.oldest_unflushed), default=0)
        return now_ms - stamp_ms(oldest), sum(map(unflushed_bytes, heads))

    def _flush(self, log: FinalLog, has_time: Callable[[], bool]) -> FlushReport:
        report = FlushReport()
        while True:
            work = self._work(log)
            log, state = work.log, work.state
            if not state.until:
                if not report.batches:
                    self._note_all(log)
                self._close_idle(log)
                return replace(report, watermark=state.watermark)
            if not has_time():
                return replace(report, watermark=state.watermark, finished=False)
            report = self._carry_out(work, report)

    def _flush_table(self, log: FinalLog, table: str, has_time: Callable[[], bool]) -> FlushReport:
        """Announce what waits of one table; the range stays open for the flush of the others."""
        report = FlushReport(watermark=self._buffer.flush_state(log.gateway).watermark)
        while self._is_waiting(log, table):
            if not has_time():
                return replace(report, finished=False)
            work = self._work(log)
            log = work.log
            if not self._is_waiting(log, table, work.state.until):
                return self._announce(work, report, only=table)
            report = self._carry_out(work, report)
        return report

    def _is_waiting(self, log: FinalLog, table: str, after: Stamp = 0) -> bool:
        """Return whether the log has commits of a table that are in no announced batch."""
        # In this order: what another flush announces meanwhile is read once more at the worst.
        flushed = self._buffer.flushed_tables(log.gateway).get(table, 0)
        watermark = self._buffer.flush_state(log.gateway).watermark
        entries = self._by_commit(log, (max(after, watermark, flushed), log.top))
        return any(table in entry.tables for _, entry in entries)

    def close_lanes(self, gateway: str, since: Stamp) -> None:
        """Close the lanes that a flush left open, if they were idle since. Idempotent.

        Raises:
            LakeSyncError: the buffer refused, or others changed the lanes in the meantime.
        """
        close_idle(self._buffer, gateway, since)

    def due(self) -> list[str]:
        """Return the gateways that have something to flush; see `lakesync.maintenance.due`."""
        return due_gateways(self._buffer)

    def _work(self, log: FinalLog) -> _Work:
        """Return the recorded range, or record the next one."""
        while True:
            state = self._buffer.flush_state(log.gateway)
            if state.until > log.top:
                # Recorded by another flush, which may have read later commits.
                log = self._barrier.raise_heads(log.gateway)
            if state.until:
                # Another flush did not finish it, or is still running: repeat exactly the same
                # range.
                span = (state.watermark, state.until)
                return _Work(log, state, list(self._by_commit(log, span)))
            entries, until = self._next(log, (state.watermark, log.top))
            if not entries:
                return _Work(log, state, [])
            recorded = replace(state, until=until)
            if self._buffer.save_flush_state(log.gateway, state, recorded):
                return _Work(log, recorded, entries)

    def _next(
        self, log: FinalLog, span: tuple[Stamp, Stamp]
    ) -> tuple[list[tuple[str, LogEntry]], Stamp]:
        """Return the entries of the first range of a span, and where that range ends."""
        entries: list[tuple[str, LogEntry]] = []
        tables: set[str] = set()
        size = 0
        commits = groupby(self._by_commit(log, span), key=lambda pair: pair[1].stamp)
        for commit_stamp, commit in commits:
            for lane, entry in commit:
                entries.append((lane, entry))
                tables |= entry.tables
                size += len(entry.records)
            if size >= RANGE_BYTES_MAX or len(tables) >= RANGE_TABLES_MAX:
                return entries, commit_stamp
        return entries, span[1]

    def _by_commit(
        self, log: FinalLog, span: tuple[Stamp, Stamp]
    ) -> Iterator[tuple[str, LogEntry]]:
        """Return all entries of a span in commit order, those of one commit in order of lanes.

        Holds no more than one slice of each lane in memory.
        """
        lanes = [self._of_lane(log, lane, span) for lane in log.heads]
        return merge(*lanes, key=lambda pair: pair[1].stamp)

    def _of_lane(
        self, log: FinalLog, lane: str, span: tuple[Stamp, Stamp]
    ) -> Iterator[tuple[str, LogEntry]]:
        after, until = span
        while after < until:
            part = read(self._buffer, log, lane, (after, until), _SLICE_DELTAS_MAX)
            yield from ((lane, entry) for entry in part.entries)
            after = part.until

    def _carry_out(self, work: _Work, report: FlushReport) -> FlushReport:
        """Carry out a recorded range, steps 2 to 7."""
        log, state, _ = work
        report = self._announce(work, report)
        done = FlushState(watermark=state.until)
        if self._buffer.save_flush_state(log.gateway, state, done):
            self._note(work)
        return replace(report, watermark=state.until)

    def _announce(self, work: _Work, report: FlushReport, only: str = "") -> FlushReport:
        """Announce the tables of a recorded range, or one of them; steps 2 to 5."""
        log, state, entries = work
        flushed = self._buffer.flushed_tables(log.gateway)
        destinations = self._buffer.destinations(log.gateway)
        # Another flush may have announced some tables of the range already.
        waiting = [
            (table, rows)
            for table, rows in rows_of(entry for _, entry in entries).items()
            if only in {"", table} and flushed.get(table, 0) <= state.watermark
        ]
        for at in range(0, len(waiting), TOGETHER_TABLES_MAX):
            some = waiting[at : at + TOGETHER_TABLES_MAX]
            made = [
                batch
                for table, rows in some
                for batch in batches(
                    log.gateway, table, rows, flushed.get(table, 0), log.config.flushing.format
                )
            ]
            self._announcer.announce(made, log.config.schemas, destinations)
            deltas = sum(len(batch.rows) for batch in made)
            report = report.with_more(FlushReport(len(made), deltas))
            for table, rows in some:
                self._buffer.save_flushed_table(log.gateway, table, rows[-1].commit)
        return report

    def _note(self, work: _Work) -> None:
        for lane, last in dict(work.entries).items():
            until, flushed_bytes = work.state.until, last.logged_bytes
            self._buffer.note_flushed(work.log.gateway, lane, until, flushed_bytes)

    def _note_all(self, log: FinalLog) -> None:
        """Note in heads that all is flushed, in case an earlier flush was killed before it did."""
        for lane, head in log.heads.items():
            if head.logged_bytes > head.flushed_bytes and head.last_logged <= log.top:
                self._buffer.note_flushed(log.gateway, lane, log.top, head.logged_bytes)

    def _close_idle(self, log: FinalLog) -> None:
        """Close lanes that were idle for a while, and have the others closed later."""
        newest = log.top
        with suppress(Contention):
            newest = close_idle(self._buffer, log.gateway)
        if newest:
            self._still_open(log.gateway, newest)
