"""What each event uses of AWS, and where the count is from. Pure: no I/O.

"hour": counted at the emulator's door, while a hundred devices edited for an hour
(`benchmarks.hour`, ``benchmarks/hour.json``); ``tests/cli/test_cost_hour.py`` holds these counts
against it. "figure": one of ``benchmarks/results.json``. "documented": AWS's rule. What no emulator
knows, the milliseconds of functions, is an estimate: a function waits `CALL_MS` for each call that
it makes one after the other, and computes for `HANDLER_MS`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

CALL_MS: Final = 8.0
"""A call of DynamoDB from a function; AWS promises single-digit milliseconds."""
POST_MS: Final = 20.0
"""A message sent to a connection; 16 are under way at once."""
S3_MS: Final = 40.0
"""A small object read or written."""
HANDLER_MS: Final = 6.0
"""What a warm function computes for one request."""
COLD_MS: Final = 1_000.0
"""What a cold function takes to start; billed since August 2025."""
MEMORY_GB: Final[Mapping[str, float]] = {
    "authorise": 0.5, "push": 1.0, "pull": 1.0, "frames": 1.0, "notify": 0.75, "connect": 0.5,
    "disconnect": 0.5, "schedule_flush": 0.5, "flush": 2.0, "materialise": 1769 / 1024,
    "deliver": 2.0, "retain": 1.0,
}  # fmt: skip
"""Of each function, as the template has it."""
MESSAGE_BYTES: Final = 32_768
_KB: Final = 1_024
_READ_BYTES: Final = 4_096
_GB: Final = 1e9


class Count(NamedTuple):
    """What one event uses, by the names of prices."""

    uses: Mapping[str, float]
    source: str

    def __add__(self, other: object) -> Count:
        if not isinstance(other, Count):
            return NotImplemented
        names = self.uses.keys() | other.uses.keys()
        uses = {name: self.uses.get(name, 0) + other.uses.get(name, 0) for name in sorted(names)}
        return Count(uses, f"{self.source}; {other.source}")


SAMPLED: Final = frozenset(
    {"authorise", "push", "pull", "frames", "notify", "connect", "disconnect"}
)
"""Functions that devices call: what each call took is logged of samples alone."""
SAMPLE_BYTES: Final = 0.3
"""Of each of their calls: a line of 300 bytes for one in a thousand (runtime/observe.py)."""
REPORT_BYTES: Final = 440
"""Of each call of the others: Lambda's own lines of its start, 145 bytes, and of its report, 240,
with 26 for each that CloudWatch adds."""


def invoked(function: str, ms: float, log_bytes: float, source: str) -> Count:
    """Return one invocation of a function, whose own lines have so many bytes."""
    lines = log_bytes + (SAMPLE_BYTES if function in SAMPLED else REPORT_BYTES)
    uses = {
        "lambda_requests": 1.0,
        "lambda_gb_s": MEMORY_GB[function] * ms / 1_000,
        "logs_in_gb": lines / _GB,
    }
    return Count(uses, source)


AUTHORISED: Final = invoked("authorise", HANDLER_MS, 0, "hour: one for each request")
"""A request whose token API Gateway has not had checked within the last minute."""
ACCESS_LOG_BYTES: Final = 206
"""A line of 180 bytes, and 26 that CloudWatch adds to each."""
_HTTP: Final = Count(
    {"http_requests": 1, "logs_in_gb": ACCESS_LOG_BYTES / _GB}, "template: a line of the access log"
)


def request(answer_bytes: float, *, is_known: bool = False) -> Count:
    """Return a request of the HTTP API, whoever answers it.

    Args:
        is_known: the same token was checked within the last minute, and is not checked again.
    """
    answered = _HTTP + Count({"egress_gb": answer_bytes / _GB}, "hour: bytes of answers")
    return answered if is_known else answered + AUTHORISED


def row_kb(row_bytes: float) -> int:
    """Return the KB that a stored row is billed as: values, stamps, and who wrote them."""
    return math.ceil((row_bytes + ROW_OVERHEAD_BYTES) / _KB)


ROW_OVERHEAD_BYTES: Final = 200
LOG_BYTES: Final = 70
"""Of one edit in the log, deflated. figure: push_wru_per_delta."""
MOVED: Final = 0.4
"""Write units for moving entries from a head to the log, of pushes that are small enough to lie in
it: two for about every seventh. figure: push_single_wru."""


def push(edits: float, row_bytes: float) -> Count:
    """Return a push: the head, the rows, and the log's entry."""
    entry = MOVED if edits <= 1 else 2 * math.ceil(edits * LOG_BYTES / _KB)
    writes = 2 + 2 * edits * row_kb(row_bytes) + entry
    stored = Count(
        {"dynamodb_writes": writes, "dynamodb_reads": PUSH_READS},
        "figures: push_single_wru, push_wru_per_delta",
    )
    function = invoked("push", HANDLER_MS + 2 * CALL_MS, PUSH_LOG_BYTES, "hour: lines of the log")
    return request(PUSH_ANSWER_BYTES) + function + stored


PUSH_READS: Final = 1.0
PUSH_LOG_BYTES: Final = 390
"""hour: 362, and 26 of CloudWatch's own."""
PUSH_ANSWER_BYTES: Final = 60


def pull(page_bytes: float, *, is_known: bool = False) -> Count:
    """Return a pull, which finds so many bytes or nothing."""
    read = Count({"dynamodb_reads": PULL_READS}, "hour; figure: current_pull_rru_per_lane")
    line = PULL_LOG_BYTES if page_bytes else 0
    function = invoked("pull", HANDLER_MS + CALL_MS, line, "hour: lines of the log")
    return request(PULL_ANSWER_BYTES + page_bytes, is_known=is_known) + function + read


PULL_READS: Final = 1.0
PULL_LOG_BYTES: Final = 375
"""Of a pull that finds something; an empty one is only in the access log."""
PULL_ANSWER_BYTES: Final = 20
PULLS_OF_A_PUSH: Final = 1.0
"""A client pulls after each push, since no broadcast contains its own edits."""


def broadcast(receivers: float, edits: float) -> Count:
    """Return a commit that is sent to so many connections, in one invocation."""
    if not receivers:
        return Count({}, "nobody is sent it")
    frame = FRAME_BYTES + edits * FRAME_EDIT_BYTES
    items = (receivers + 1) * CONNECTION_BYTES + NOTE_BYTES
    uses = {
        "socket_messages": receivers * math.ceil(frame / MESSAGE_BYTES),
        "egress_gb": receivers * frame / _GB,
        "dynamodb_writes": 2.0,
        "dynamodb_reads": math.ceil(items / _READ_BYTES) + NOTIFY_READS,
    }
    ms = HANDLER_MS + 4 * CALL_MS + math.ceil(receivers / 16) * POST_MS
    said = Count(uses, "hour") + invoked("notify", ms, 0, "hour")
    others = invoked("notify", HANDLER_MS + 2 * CALL_MS, 0, "hour").uses
    more = {name: (NOTIFIES - 1) * use for name, use in others.items()}
    return said + Count(more, "hour: invocations that find nothing new")


FRAME_BYTES: Final = 115
FRAME_EDIT_BYTES: Final = 100
"""hour: a frame of one edit has 216 bytes."""
NOTE_BYTES: Final = 100
CONNECTION_BYTES: Final = 350
"""Of an item of the table of connections."""
NOTIFY_READS: Final = 1.45
"""The heads and the log behind what was sent before. hour: what pushes and pulls leave of 4,245
units."""
NOTIFIES: Final = 1.1
"""Invocations for each commit: other changes of heads come by the stream too. hour."""

KEEP_ALIVE: Final = Count(
    {"socket_messages": 2}, "documented: a message and API Gateway's own answer, without a function"
)
ASKED: Final = Count(
    {"socket_messages": 2, "dynamodb_reads": 2},
    "documented: a pull and its answer; hour: the connection's item and the head are read",
) + invoked("frames", HANDLER_MS + 2 * CALL_MS, 0, "hour")
"""A pull over the socket that finds nothing."""
MINUTE: Final = Count({"socket_minutes": 1}, "documented")
OPENED_LOG_BYTES: Final = 400
OPENED: Final = (
    AUTHORISED
    + invoked("connect", HANDLER_MS + 3 * CALL_MS, OPENED_LOG_BYTES, "hour")
    + invoked("disconnect", HANDLER_MS + CALL_MS, 0, "hour")
    + Count({"dynamodb_writes": 2, "dynamodb_reads": 2}, "hour: stored, and removed again")
    + pull(0)
)
"""A connection that is opened, the one that it replaces, and a pull of what was missed."""


def together(tables: float) -> float:
    """Return how many of a flush's tables are announced to the lake in one message."""
    return tables / math.ceil(tables / TABLES_TOGETHER)


TABLES_TOGETHER: Final = 3
"""TOGETHER_TABLES_MAX of maintenance/flush.py."""


def flush(tables: float, edits: float, databases: float, *, lake: bool) -> Count:
    """Return a flush of a gateway whose tables all have edits.

    Args:
        databases: to each of which each table is announced by itself.
        lake: whether they are announced to the lake.
    """
    destinations = databases + lake
    messages = tables * databases + (tables / together(tables) if lake else 0)
    uses = {
        "s3_writes": tables * (1 + destinations),
        "sqs_requests": FLUSH_QUEUE + messages * 3,
        "dynamodb_writes": FLUSH_WRITES + 2 * tables,
        "dynamodb_reads": FLUSH_READS + edits * LOG_BYTES / _READ_BYTES,
        "s3_gb": edits * BATCH_EDIT_BYTES / _GB * STAGED_MONTHS,
    }
    ms = HANDLER_MS * (1 + tables) + 8 * CALL_MS + 2 * tables * S3_MS
    source = "maintenance/flush.py: an object and a claim of each table, a message for three"
    said = Count(uses, source)
    return said + invoked("flush", ms, 700, "estimate")


FLUSH_QUEUE: Final = 3.0
"""A message that is sent, received and deleted."""
FLUSH_WRITES: Final = 8.0
"""The range, the watermark and the heads, and the index of what waits."""
FLUSH_READS: Final = 4.0
BATCH_EDIT_BYTES: Final = 120
STAGED_MONTHS: Final = 3.0
"""The first of LakeKeepDays."""


def delivery() -> Count:
    ms = HANDLER_MS + 2 * S3_MS + DATABASE_MS
    return invoked("deliver", ms, 700, "estimate") + Count(
        {"s3_reads": 3, "s3_writes": 2, "secret_reads": 0.1}, "delivery/deliverer.py"
    )


DATABASE_MS: Final = 150.0

MERGE_WRITES: Final = 17.0
"""PUT and LIST of S3 for a batch in two Iceberg tables. Counted at the emulator's door for the
batches of `benchmarks.small_batches`."""
MERGE_READS: Final = 50.0
"""GET and HEAD, counted there too."""
MERGE_CATALOGUE: Final = 8.0
MERGE_DPU_S: Final = 1.2
"""Of a Glue run, for one batch of a table. figure: scale_gateways_lake_lag_min, measured when runs
merged them: 1,000 gateways of 3 tables were 4 runs of 451 s of two workers, every 15 minutes."""
JOIN_DPU_S: Final = 1.2
"""Of a table whose small files a daily run joins: as much as merging a batch. An estimate."""
RUN_DPU_S: Final = 120.0
"""Of a run of Glue at least: a minute of two workers. documented."""
SMALL_BATCH_MS: Final = 1_300.0
"""figure: lake_small_batch_s, 2.3 s, without a cold start of a second."""


WARM_WRITES: Final = 14.0
"""PUT and LIST of a batch that is one of many, as the emulator's record of twelve tables of 1,000
rows and 20 deltas each has them: nine of the files of two Iceberg tables, four of the lease, and a
listing."""
WARM_BATCH_MS: Final = 1_100.0
"""Of such a batch: 0.2 s of a processor, measured there, some 45 calls one after another, and its
part of a cold start. estimate."""
SHARED_WRITES: Final = 3.0
"""Of its writes, those that are made once for all tables of one message: to take the lease and to
release it, and the listing. materialise/small_batches.py"""
SHARED_MS: Final = 80.0
"""What these take, and reading the lease: four of the calls. estimate."""


def merge(*, by_function: bool, many: bool = False, announced: float = 1) -> Count:
    """Return a batch that is merged into a table of the lake.

    Args:
        by_function: a function does it, and no Glue run.
        many: more wait than one invocation takes, so functions are warm.
        announced: tables in the message that announced it.
    """
    warm = by_function and many
    left = (1 - 1 / announced) if by_function else 0
    """How much of what is shared another table of the message has."""
    touched = Count(
        {
            "s3_writes": (WARM_WRITES if warm else MERGE_WRITES) - left * SHARED_WRITES,
            "s3_reads": MERGE_READS - left,
            "catalogue_requests": MERGE_CATALOGUE,
        },
        "counted at the emulator's door",
    )
    if by_function:
        ms = (WARM_BATCH_MS if warm else SMALL_BATCH_MS) - left * SHARED_MS
        source = "estimate" if warm else "figure: lake_small_batch_s"
        return touched + invoked("materialise", ms, 800 if not warm else 100, source)
    run = Count({"dpu_hours": MERGE_DPU_S / 3_600}, "figure: scale_gateways_lake_lag_min")
    return touched + run
