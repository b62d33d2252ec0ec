"""How long things take: every assumption of the model about time, in one place.

Distributions are log-normal, by their median and their 99th percentile.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from random import Random

_SIGMAS_TO_P99: Final = 2.326


class Spread(NamedTuple):
    """A log-normal distribution of durations, in milliseconds."""

    p50_ms: float
    p99_ms: float

    def draw_ms(self, random: Random) -> float:
        """Draw a duration."""
        sigma = math.log(self.p99_ms / self.p50_ms) / _SIGMAS_TO_P99
        return math.exp(random.gauss(math.log(self.p50_ms), sigma))


# --- DynamoDB, as a function in the same region sees it. AWS promises "single-digit milliseconds"
# for a request of a single item, and nothing of transactions: 20 ms is what two phases take in
# practice. The 99th percentiles are assumptions.

SINGLE: Final = Spread(4, 10)
"""GetItem, PutItem, UpdateItem, DeleteItem."""
BATCH: Final = Spread(5, 14)
"""BatchGetItem and BatchWriteItem: as slow as the slowest of their items."""
QUERY: Final = Spread(5, 14)
TRANSACT_READ: Final = Spread(9, 25)
TRANSACT_WRITE: Final = Spread(20, 60)
ITEM_MS: Final = 0.2
"""For each further item of a transaction; a hundred take about twice as long as one."""
READ_MB_MS: Final = 10.0
"""For each MB that a read gives."""

# --- what stands around it

S3_PUT: Final = Spread(35, 150)
SQS_SEND: Final = Spread(8, 30)
SQS_POLL: Final = Spread(50, 1_000)
"""From a message's coming to Lambda's having it: queues are polled over and over."""
COLD_START: Final = Spread(900, 1_800)
"""Of a function: 340 ms of imports as `benchmarks.imports` measures them, at the half of a core
that 1,024 MB are, and starting the sandbox."""
GLUE_START: Final = Spread(30_000, 90_000)
"""From a Glue run's being asked for to its beginning; it is not billed."""
SPARK_SESSION_S: Final = 15.0
MERGE_WAITS_S: Final = 3.0
"""What one merge waits for S3 and the catalogue: some thirty calls, one after the other."""
API: Final = Spread(6, 20)
"""API Gateway and the way to the function and back."""

# --- processor time of the real code on one of Lambda's cores, in virtual time. They are constants,
# so that a figure is the same on every machine; `benchmarks.gateway` measures the code itself.

INVOKE_CPU_MS: Final = 2.0
"""An HTTP request through FastAPI: event to call, result to answer."""
CALL_CPU_MS: Final = 0.4
"""A request to DynamoDB: built, signed, sent, and its answer read; and what led to it."""
ENTRY_CPU_MS: Final = 0.012
"""For each log entry that a pull passes, read or remembered: 7 us on a whole core."""
KB_CPU_MS: Final = 0.06
"""For each KB that is written or read: encoded or decoded, merged or filtered."""
