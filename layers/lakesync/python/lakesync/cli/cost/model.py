"""What a described stack uses in a month of 30 days, event by event. Pure: no I/O."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, NamedTuple

from lakesync.cli.cost import counts
from lakesync.cli.cost.counts import Count
from lakesync.cli.cost.floor import MONTH_DAYS, MONTH_H, charges

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lakesync.cli.cost.description import Description

LOG_MONTHS: Final = 1.0
"""LogRetentionDays of CloudWatch Logs, which stores a seventh of what it took in."""
LOG_STORED_SHARE: Final = 1 / 7
BUFFER_LOG_DAYS: Final = 7
"""LogKeepDays."""
ENTRY_BYTES: Final = 350
"""Of an item of the log, with its keys and DynamoDB's own 100 bytes."""
METRICS_IN_USE: Final = 6
"""Metrics of the stack and its functions while it is used: DeltasAccepted, BytesIn, DeltasPulled,
BytesOut, Connected, and the age of what waits."""
TRACED_S: Final = 3
"""Functions that a request passes, each of which X-Ray samples: one a second, then 5 %."""


class Event(NamedTuple):
    """Something that happens so many times in a month."""

    what: str
    times: float
    each: Count
    is_floor: bool = False


def events(description: Description, silent_s: float, renew_s: float) -> list[Event]:
    """Return everything that is on the bill.

    Args:
        description: the stack.
        silent_s: how long a connection is silent before its client sends a keep-alive, and every
            second time a pull.
        renew_s: how long a connection is kept.
    """
    floor = [
        Event(each.what, each.times, each.uses, is_floor=True) for each in charges(description)
    ]
    used = [*_edits(description), *_waiting(description, silent_s, renew_s)]
    used += [*_flushes(description), *_stored(description)]
    every = floor + [event for event in used if event.times]
    return [*every, *_logs(every), *_tracing(description, every)]


def pushes(description: Description) -> float:
    """Return the pushes of a month."""
    busy = description.hours_per_day * MONTH_DAYS
    edits = description.devices * description.edits_per_hour * busy
    return edits / description.edits_per_push


def _edits(description: Description) -> Iterator[Event]:
    """Yield pushes, what their clients pull behind them, and broadcasts."""
    times, edits = pushes(description), description.edits_per_push
    yield Event("pushes", times, counts.push(edits, description.row_bytes))
    pulled = times * counts.PULLS_OF_A_PUSH
    yield Event(
        "pulls behind pushes", pulled, counts.pull(edits * counts.FRAME_EDIT_BYTES, is_known=True)
    )
    if description.mode == "real-time":
        reached = description.reached
        yield Event("broadcasts", times if reached else 0, counts.broadcast(reached, edits))


def _waiting(description: Description, silent_s: float, renew_s: float) -> Iterator[Event]:
    """Yield what devices do to hear of edits."""
    month_s = MONTH_H * 3_600
    if description.mode == "polling":
        polls = description.devices * month_s / description.poll_every_s
        finding = min(pushes(description) * description.reached, polls)
        each = counts.pull(counts.FRAME_EDIT_BYTES * description.edits_per_push)
        yield Event("polls that find edits", finding, each)
        yield Event("polls that find nothing", polls - finding, counts.pull(0))
        return
    busy_s = description.hours_per_day * MONTH_DAYS * 3_600
    own = description.edits_per_hour / description.edits_per_push / 3_600
    heard = own * description.reached
    again = math.exp(-heard * silent_s)
    """How often one silence follows another: the second asks, and what is heard ends the row."""
    busy, idle = silences(heard, silent_s) * busy_s, (month_s - busy_s) / silent_s
    asked = busy * again / (1 + again) + idle / 2
    yield Event("keep-alives", description.devices * (busy + idle - asked), counts.KEEP_ALIVE)
    yield Event("checks for missed broadcasts", description.devices * asked, counts.ASKED)
    yield Event("minutes of connections", description.devices * month_s / 60, counts.MINUTE)
    yield Event("connections opened", description.devices * month_s / renew_s, counts.OPENED)


def silences(rate: float, after_s: float) -> float:
    """Return how often in a second a time of silence passes, if what ends it comes at random.

    Args:
        rate: how often in a second something ends the silence.
        after_s: the silence; it begins anew when it has passed.
    """
    if not rate:
        return 1 / after_s
    left = math.exp(-rate * after_s)
    return rate * left / (1 - left)


def _flushes(description: Description) -> Iterator[Event]:
    """Yield flushes in busy hours, deliveries and merges."""
    has_lake = description.lake != "none"
    if not (description.destinations or has_lake) or not pushes(description):
        return
    busy_h = description.hours_per_day * MONTH_DAYS
    each_h = pushes(description) / description.gateways / busy_h
    every_h = min(60 / description.lake_every_minutes, each_h)
    flushes = description.gateways * busy_h * every_h
    edits = pushes(description) * description.edits_per_push / flushes
    tables = min(description.tables, max(edits, 1))
    yield Event(
        "flushes", flushes, counts.flush(tables, edits, description.destinations, lake=has_lake)
    )
    yield Event("deliveries", flushes * tables * description.destinations, counts.delivery())
    if has_lake:
        yield from _merges(description, flushes, tables, edits, busy_h * every_h)


def _merges(
    description: Description, flushes: float, tables: float, edits: float, intervals: float
) -> Iterator[Event]:
    """Yield merges into the lake, and the daily joining of its small files.

    Args:
        description: of the stack.
        flushes: of all gateways.
        tables: of each flush.
        edits: of each flush; a table of which more than are small is left to a Glue run.
        intervals: in which there are flushes.
    """
    batches = flushes * tables
    by_function = description.lake == "small-batches" and edits / tables <= SMALL_BATCH_DELTAS
    many, announced = batches / intervals > FUNCTION_MERGES, counts.together(tables)
    merge = counts.merge(by_function=by_function, many=many, announced=announced)
    yield Event("merges into the lake", batches, merge)
    joined_s = max(counts.RUN_DPU_S, description.gateways * description.tables * counts.JOIN_DPU_S)
    joined = Count({"dpu_hours": joined_s / 3_600}, "estimate")
    yield Event("maintenance of the lake", MONTH_DAYS, joined)


FUNCTION_MERGES: Final = 10
"""Small batches that a function merges within its half minute."""
SMALL_BATCH_DELTAS: Final = 10_000
"""The first of JobBounds."""


def _stored(description: Description) -> Iterator[Event]:
    """Yield what is kept: rows, the log of a week, its backup; metrics of what is used."""
    entries = pushes(description) / MONTH_DAYS * BUFFER_LOG_DAYS
    row = description.row_bytes + counts.ROW_OVERHEAD_BYTES + 100
    size = description.stored_rows * row + entries * ENTRY_BYTES
    yield Event(
        "GB of rows and log", size / 1e9, Count({"dynamodb_gb": 1, "pitr_gb": 1}, "documented")
    )
    if description.devices:
        yield Event("metrics", METRICS_IN_USE, Count({"metrics": 1}, "runtime/observe.py"))


def _logs(every: list[Event]) -> Iterator[Event]:
    """Yield the storage of what the others log."""
    taken = sum(event.times * event.each.uses.get("logs_in_gb", 0) for event in every)
    stored = taken * LOG_MONTHS * LOG_STORED_SHARE
    yield Event("logs kept", stored, Count({"logs_gb": 1}, "LogRetentionDays"), is_floor=False)


def _tracing(description: Description, every: list[Event]) -> Iterator[Event]:
    """Yield the traces that X-Ray samples."""
    if description.tracing == "off":
        return
    requests = sum(event.times * event.each.uses.get("lambda_requests", 0) for event in every)
    sampled = min(requests, TRACED_S * MONTH_H * 3_600)
    traces = sampled + 0.05 * (requests - sampled)
    yield Event("traces", traces, Count({"traces": 1}, "documented: the default rule"))
