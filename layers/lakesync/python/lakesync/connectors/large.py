"""Decides who reads a table: a function page by page, or, if it is large, a job in stretches.

A poll asks this module once it has read a table's first page and there is more. The job, too, reads
only what this module assigns to it.

Rules of this module
    1. A table is large if at least a given number of rows is unread, counted along the index by
       which it is read. A source that cannot be divided is never large: it is one sequence for any
       reader.
    2. If a requested job brought nothing, it is not requested again in the same poll, or for six
       hours. Meanwhile the function reads the table, for example if the job lacks a permission.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lakesync.connectors.port import Divisible, Stretch
from lakesync.result import Ok

if TYPE_CHECKING:
    from lakesync.connectors.port import Connector
    from lakesync.connectors.state import PollState

JOB_START_MS: Final = 900_000
"""How long a job may take to start after it is requested; then a function goes on."""
JOB_AGAIN_MS: Final = 6 * 3_600_000
"""After so long it is tried again whether a job gets on."""


def may_ask(state: PollState, now_ms: int) -> bool:
    """Return whether a job may be requested."""
    return not state.job_ms or state.job_moved or now_ms - state.job_ms >= JOB_AGAIN_MS


def is_large(connector: Connector, source: str, state: PollState, rows_min: int) -> bool:
    """Return whether the rest of a table is read by a job.

    Args:
        connector: the source. If it fails to answer here, the table is read page by page, which may
            show the reason.
        source: its table, of which a page was read.
        state: the poll's state.
        rows_min: from how many unread rows on a job reads it; 0 for never.
    """
    if not rows_min or not isinstance(connector, Divisible):
        return False
    cursor, poll_ms = state.cursors[source], state.begins(source)
    match connector.ahead(source, cursor, rows_min, poll_ms=poll_ms):
        case Ok(Stretch(_, ends)):
            return bool(ends)
        case _:
            return False
