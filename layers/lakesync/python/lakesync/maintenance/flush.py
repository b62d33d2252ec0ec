"""Flush: announce everything that was committed, exactly as it was, once it is safe on S3.

The steps of one range, in this order; a crash between any two of them is healed by running again:

    1. the end of the range is recorded        so that whoever comes next repeats this very range
    2. each table's rows are written           under a name made from the range
    3. each table's claim is written           from here the materialiser may find the batch
    4. the batches are announced on the queue
    5. the watermark moves                     last: nothing behind it is ever read again
    6. the heads learn of it                   for backpressure only

Laws D1-D4: ``docs/spec/delivery.md``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, NamedTuple

from lakesync.errors import FlushFailed, LakeSyncError
from lakesync.log.read_barrier import Fence, read
from lakesync.maintenance.batches import batches
from lakesync.ports import FlushState, LogSlice
from lakesync.result import Err, Ok, Result

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lakesync.core.clock import Stamp
    from lakesync.core.config import GatewayConfig
    from lakesync.log.read_barrier import FencedLog
    from lakesync.maintenance.batches import Batch
    from lakesync.ports import BatchEncoder, Buffer, LogEntry, ObjectStore, Queue

RANGE_BYTES_MAX: Final = 16 * 1024 * 1024
"""Deltas of one range, inflated, over all shards: bounds the memory of a flush."""
_SLICE_DELTAS_MAX: Final = 10_000
_PARQUET: Final = "application/vnd.apache.parquet"


@dataclass(frozen=True, slots=True)
class FlushReport:
    """What a flush announced."""

    batches: int = 0
    deltas: int = 0
    watermark: Stamp = 0
    finished: bool = True
    """False if time ran out with data left; the next flush goes on from here."""


class _Work(NamedTuple):
    """A recorded range, and what the log holds of it; no range if nothing is left."""

    log: FencedLog
    state: FlushState
    slices: dict[str, LogSlice]


class Flusher:
    """Flushes gateways. Any number may run at once, on the same gateway too."""

    def __init__(
        self, buffer: Buffer, objects: ObjectStore, queue: Queue, encoder: BatchEncoder
    ) -> None:
        self._buffer = buffer
        self._objects = objects
        self._queue = queue
        self._encoder = encoder
        self._fence = Fence(buffer)

    def flush(
        self, gateway: str, has_time: Callable[[], bool] = lambda: True
    ) -> Result[FlushReport, LakeSyncError]:
        """Announce everything committed so far, range by range. Safe to repeat, and to kill.

        Args:
            gateway: whose log.
            has_time: asked before each range; False ends the flush there.
        """
        report = FlushReport()
        try:
            log = self._fence.raise_heads(gateway)
            while True:
                work = self._work(log)
                log, state = work.log, work.state
                if not state.until:
                    if not report.batches:
                        self._note_all(log)
                    return Ok(replace(report, watermark=state.watermark))
                if not has_time():
                    return Ok(replace(report, watermark=state.watermark, finished=False))
                report = self._carry_out(work, report)
        except LakeSyncError as error:
            return Err(error)

    def due(self) -> list[str]:
        """Give the gateways that have something to flush; see `due_gateways`."""
        return due_gateways(self._buffer)

    def _work(self, log: FencedLog) -> _Work:
        """Give the recorded range, or record the next one."""
        while True:
            state = self._buffer.flush_state(log.gateway)
            if state.until > log.top:
                # Recorded by another flush, which may know of shards that were added since.
                log = self._fence.raise_heads(log.gateway)
            if state.until:
                # Someone did not finish it, or is at it: the very same again.
                span = (state.watermark, state.until)
                return _Work(log, state, self._read(log, span, RANGE_BYTES_MAX * 2))
            slices = self._read(log, (state.watermark, log.top), RANGE_BYTES_MAX)
            if not any(part.entries for part in slices.values()):
                return _Work(log, state, {})
            until = min(part.until for part in slices.values())
            recorded = replace(state, until=until)
            if self._buffer.save_flush_state(log.gateway, state, recorded):
                return _Work(log, recorded, _up_to(until, slices))

    def _read(
        self, log: FencedLog, span: tuple[Stamp, Stamp], bytes_max: int
    ) -> dict[str, LogSlice]:
        """Read all shards from a stamp on, until they hold so many bytes or the span ends."""
        share = bytes_max // max(len(log.heads), 1)
        return {shard: self._slice(log, shard, span, share) for shard in log.heads}

    def _slice(
        self, log: FencedLog, shard: str, span: tuple[Stamp, Stamp], bytes_max: int
    ) -> LogSlice:
        after, until = span
        found: list[LogEntry] = []
        size = 0
        while after < until and size < bytes_max:
            part = read(self._buffer, log, shard, (after, until), _SLICE_DELTAS_MAX)
            found += part.entries
            size += sum(len(entry.records) for entry in part.entries)
            after = part.until
        return LogSlice(tuple(found), after)

    def _carry_out(self, work: _Work, report: FlushReport) -> FlushReport:
        """Carry out a recorded range, steps 2 to 6."""
        log, state, slices = work
        if any(part.until < state.until for part in slices.values()):
            raise FlushFailed("a recorded range is larger than a flush may hold in memory")
        entries = [entry for part in slices.values() for entry in part.entries]
        planned = batches(log.gateway, entries, state.last)
        claims = [self._store(batch, log.config) for batch in planned]
        for claim in claims:
            self._queue.send(claim)
        last = {**state.last, **{batch.table: batch.last for batch in planned}}
        done = FlushState(watermark=state.until, until=0, last=last)
        if self._buffer.save_flush_state(log.gateway, state, done):
            self._note(work)
        deltas = sum(len(batch.rows) for batch in planned)
        return FlushReport(report.batches + len(planned), report.deltas + deltas, state.until)

    def _store(self, batch: Batch, config: GatewayConfig) -> str:
        """Write a batch's rows, then its claim; give the claim."""
        body = self._encoder.encode(batch.rows, batch.columns)
        self._objects.put_object(batch.object_key, body, _PARQUET)
        claim = batch.claim(config.schemas.get(batch.table), len(body))
        self._objects.put_object(batch.claim_key, claim.encode(), "application/json")
        return claim

    def _note(self, work: _Work) -> None:
        for shard, part in work.slices.items():
            if part.entries:
                flushed_bytes = part.entries[-1].logged_bytes
                self._buffer.note_flushed(work.log.gateway, shard, work.state.until, flushed_bytes)

    def _note_all(self, log: FencedLog) -> None:
        """Tell heads that all is flushed, should an earlier flush have died before it did."""
        for shard, head in log.heads.items():
            if head.logged_bytes > head.flushed_bytes and head.last_logged <= log.top:
                self._buffer.note_flushed(log.gateway, shard, log.top, head.logged_bytes)


def _up_to(until: Stamp, slices: Mapping[str, LogSlice]) -> dict[str, LogSlice]:
    return {
        shard: LogSlice(tuple(entry for entry in part.entries if entry.stamp <= until), until)
        for shard, part in slices.items()
    }


def due_gateways(buffer: Buffer) -> list[str]:
    """Give the gateways that have something to flush; two read units each.

    Raises:
        LakeSyncError: the buffer cannot be read now.
    """
    found = []
    for gateway in buffer.gateways():
        shards = buffer.config(gateway).layout.shards()
        heads = buffer.heads(gateway, shards).values()
        if any(head.logged_bytes > head.flushed_bytes for head in heads):
            found.append(gateway)
    return found
