"""What sizing needs of the functions that devices call: how long a call took, and how much memory.

Lambda's own REPORT lines would cost more than all that these functions log, so the template keeps
them for the others alone (``SystemLogLevel``). In their place a process logs its first call, and of
the further ones one in a thousand, by a hash of the request's id: a cent or two a month for 10,000
devices. How memory is sized by them: ``docs/operations.md``.
"""

from __future__ import annotations

import itertools
import os
import resource
import time
from typing import TYPE_CHECKING, Any, Final
from zlib import crc32

from lakesync.runtime.observe import logger

if TYPE_CHECKING:
    from lakesync.runtime.observe import Handler

SAMPLED_OF: Final = 1_000
"""Calls of which one is logged."""
MESSAGE: Final = "sized"
"""Of the lines."""
_KB_OF_MB: Final = 1_024


def sized(handler: Handler) -> Handler:
    """Return a handler that logs what some of its calls used; it answers as before."""
    calls = itertools.count()

    def measured(event: dict[str, Any], context: Any) -> Any:
        is_first = next(calls) == 0
        if not (is_first or _is_sampled(getattr(context, "aws_request_id", ""))):
            return handler(event, context)
        begun = time.perf_counter()
        try:
            return handler(event, context)
        finally:
            used = {
                "durationMs": round(1_000 * (time.perf_counter() - begun), 1),
                # The most that the process had so far, as Lambda's reports have it.
                "memoryMb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // _KB_OF_MB,
                "memorySizeMb": int(os.environ.get("AWS_LAMBDA_FUNCTION_MEMORY_SIZE", "0")),
                "coldStart": int(is_first),
            }
            logger.info(MESSAGE, extra=used)

    return measured


def _is_sampled(request_id: str) -> bool:
    return crc32(request_id.encode()) % SAMPLED_OF == 0
