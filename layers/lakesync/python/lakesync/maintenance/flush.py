"""Flush: announce everything that was committed, unchanged, once it is stored on S3.

The steps of one range, in this order; a crash between any two of them is repaired by running again:

    1. the end of the range is recorded        so that the next flush repeats exactly this range
       of each batch of a few of its tables in turn:
    2. the rows are written                    once, under a name made from their commits
    3. the lake's claim is written             from here the batch waits for the lake
       for each destination that wants the table:
    4. its claim is written                    from here the batch waits for this destination
    5. its claim is announced                  so that a process reads it at once
       when all batches of the tables are claimed:
    6. the lake's claims are announced         in one message, so that one process does all of them
    7. the tables' last commits are stored     from here a repeat leaves these tables out
       when all tables are done:
    8. the watermark moves                     last: nothing behind it is ever read again
    9. the heads are updated                   for backpressure only

A range is cut by its content, in commit order over all lanes. It does not depend on which lanes are
open, now or when the range is repeated.

A batch is one table's deltas of some consecutive commits. It is named by its content: gateway,
table, and the range ``(after, last]`` of commit stamps. ``after`` is the end of the table's batch
before it, so the names alone show whether one is missing.

The list of destinations is read after the range is recorded: a destination that is declared later
is filled from where that range ends (law D8). Where one is in the lake's place, the lake has no
claim of its tables (D20). Laws D1-D6: ``docs/spec/delivery.md``.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass, replace
from heapq import merge
from itertools import chain, groupby
from typing import TYPE_CHECKING, Final, NamedTuple

from lakesync.core.clock import stamp_ms
from lakesync.core.config import JSON, PARQUET, WRITES
from lakesync.core.deliveries import CLAIMS, STAGING, announcement, deliveries_of
from lakesync.core.names import staged_column
from lakesync.core.schema import schema_to_json
from lakesync.errors import Contention, GatewayDeleted
from lakesync.log.lanes import close_idle, unflushed_bytes
from lakesync.log.read import ReadBarrier, over_budget, read, waiting_tables
from lakesync.ports import BatchRow, FlushState
from lakesync.wire.batch_json import encode_batch
from lakesync.wire.records import decode_records

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from lakesync.core.clock import Stamp
    from lakesync.core.destinations import Destinations
    from lakesync.core.schema import TableSchema
    from lakesync.log.read import FinalLog
    from lakesync.ports import (
        BatchEncoder,
        Buffer,
        FlushStates,
        GatewaySlice,
        LogEntry,
        ObjectStore,
        Queue,
    )

# --- which gateways are due -----------------------------------------------------------------------


DUE_HEADS_MAX: Final = 1_000
"""Heads of one slice of those that are due: 100 KB of an index, and a hundred calls of a queue."""


def due_slices(buffer: FlushStates, place: str = "") -> Iterator[GatewaySlice]:
    """Yield the gateways that have something to flush, slice by slice, each gateway once.

    The cost depends on what is unflushed: idle gateways are not read.

    Raises:
        LakeSyncError: the buffer cannot be read now.
    """
    given: set[str] = set()
    while True:
        due = buffer.unflushed(place, DUE_HEADS_MAX)
        fresh = [gateway for gateway in due.gateways if gateway not in given]
        given.update(fresh)
        yield due._replace(gateways=tuple(fresh))
        if not due.place:
            return
        place = due.place


def due_gateways(buffer: FlushStates) -> list[str]:
    """Return all gateways that have something to flush; see `due_slices`."""
    return [gateway for due in due_slices(buffer) for gateway in due.gateways]


# --- the flush ------------------------------------------------------------------------------------


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
    batches: int = 0
    deltas: int = 0
    watermark: Stamp = 0
    finished: bool = True
    """False if time ran out with data left; the next flush continues from here."""

    def with_more(self, other: FlushReport) -> FlushReport:
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

    def _work(self, log: FinalLog) -> _Work:
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
        newest = log.top
        with suppress(Contention):
            newest = close_idle(self._buffer, log.gateway)
        if newest:
            self._still_open(log.gateway, newest)


# --- batches --------------------------------------------------------------------------------------


BATCH_CELLS_MAX: Final = 8_000_000
"""Rows of one batch times its columns, unless one commit alone has more: an object has a place for
each, which takes 8 bytes while it is made, however few columns each row has."""


@dataclass(frozen=True, slots=True)
class Batch:
    """One table's deltas in commit order; they cover its commits in ``(after, last]``."""

    gateway: str
    table: str
    after: Stamp
    last: Stamp
    rows: tuple[BatchRow, ...]
    columns: Mapping[str, str]
    """By column that occurs, its name in the object."""
    form: str = PARQUET
    """One of `lakesync.core.config.FORMATS`."""

    @property
    def range_name(self) -> str:
        """The range as it is written in keys: sorted as text, ranges sort as ranges."""
        return f"{self.after:020d}-{self.last:020d}"

    @property
    def object_key(self) -> str:
        return f"{STAGING}{self.gateway}/{self.table}/{self.range_name}.{self.form}"

    @property
    def claim_key(self) -> str:
        """The key of the lake's claim: while it exists, the batch waits to be materialised."""
        return f"{CLAIMS}{self.gateway}/{self.table}/{self.range_name}.json"

    def delivery_key(self, destination: str) -> str:
        return f"{deliveries_of(self.gateway, destination, self.table)}{self.range_name}.json"

    def claim(self, schema: TableSchema | None, size_bytes: int) -> str:
        """Return the claim: everything that must be known to apply the batch."""
        body = {
            "version": WRITES,
            "gateway": self.gateway,
            "table": self.table,
            "after": str(self.after),
            "last": str(self.last),
            "object": self.object_key,
            "deltas": len(self.rows),
            "bytes": size_bytes,
            "append": bool(schema and schema.append),
            "schema": schema_to_json(schema) if schema else None,
            "columns": dict(self.columns),
        }
        return json.dumps(body, sort_keys=True)


def rows_of(entries: Iterable[LogEntry]) -> dict[str, list[BatchRow]]:
    """Return the rows of entries in commit order, by table, tables in order of name."""
    rows: dict[str, list[BatchRow]] = {}
    for stamp, commit in groupby(entries, key=lambda entry: entry.stamp):
        # Ordinals are consecutive over the commit's shards, so that they are unique in a table that
        # moved.
        deltas = chain.from_iterable(decode_records(entry.records) for entry in commit)
        for ordinal, delta in enumerate(deltas):
            row = BatchRow(
                stamp,
                ordinal,
                delta.op.name,
                delta.row_id,
                delta.client_id,
                delta.hlc,
                delta.delta_id,
                delta.columns,
            )
            rows.setdefault(delta.table, []).append(row)
    return dict(sorted(rows.items()))


def batches(
    gateway: str, table: str, rows: Iterable[BatchRow], after: Stamp, form: str = PARQUET
) -> Iterator[Batch]:
    """Cut a table's rows, in commit order, into batches that follow each other.

    Each has whole commits, as many as `BATCH_CELLS_MAX` allows: the same rows are always cut at the
    same places.

    Args:
        after: where its batch before them ended; 0 if there was none.
    """
    taken: list[BatchRow] = []
    columns: set[str] = set()
    for _, commit in groupby(rows, key=lambda row: row.commit):
        more = list(commit)
        names = {name for row in more for name, _ in row.columns}
        if taken and (len(taken) + len(more)) * len(columns | names) > BATCH_CELLS_MAX:
            yield _batch(gateway, table, after, taken, columns, form)
            after, taken, columns = taken[-1].commit, [], set()
        taken += more
        columns |= names
    if taken:
        yield _batch(gateway, table, after, taken, columns, form)


def _batch(
    gateway: str, table: str, after: Stamp, rows: Sequence[BatchRow], columns: Iterable[str],
    form: str,
) -> Batch:  # fmt: skip
    names = {name: staged_column(name) for name in sorted(columns)}
    return Batch(gateway, table, after, rows[-1].commit, tuple(rows), names, form)


# --- announcements --------------------------------------------------------------------------------


_JSON: Final = "application/json"
_PARQUET: Final = "application/vnd.apache.parquet"


class Announcer:
    """Writes and announces batches. Idempotent, and safe to kill.

    Args:
        deliveries: the queue of the claims of declared destinations.
    """

    def __init__(
        self, objects: ObjectStore, encoder: BatchEncoder, lake: Queue, deliveries: Queue
    ) -> None:
        self._objects = objects
        self._encoder = encoder
        self._lake = lake
        self._deliveries = deliveries

    def announce(
        self,
        batches: Iterable[Batch],
        schemas: Mapping[str, TableSchema],
        destinations: Destinations,
    ) -> None:
        """Write batches of a gateway, and claim them for the lake and their destinations."""
        in_lake = []
        for batch in batches:
            claim = self._written(batch, schemas.get(batch.table))
            if destinations.in_lake(batch.table):
                self._objects.put_object(batch.claim_key, claim, _JSON)
                in_lake.append(batch)
            for destination in destinations.wanting(batch.table):
                key = batch.delivery_key(destination.name)
                self._objects.put_object(key, claim, _JSON)
                self._deliveries.send(announcement(key, batch.object_key))
        if in_lake:
            first, *others = in_lake
            more = [batch.claim_key for batch in others]
            self._lake.send(announcement(first.claim_key, first.object_key, more=more))

    def _written(self, batch: Batch, schema: TableSchema | None) -> bytes:
        """Write a batch's rows; returns its claim."""
        if batch.form == JSON:
            body = encode_batch(batch.gateway, batch.table, batch.after, batch.last, batch.rows)
            self._objects.put_object(batch.object_key, body, _JSON)
        else:
            body = self._encoder.encode(batch.rows, batch.columns)
            self._objects.put_object(batch.object_key, body, _PARQUET)
        return batch.claim(schema, len(body)).encode()
