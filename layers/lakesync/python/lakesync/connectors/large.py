"""What is large of a table: who reads it, a function page by page or a job in stretches.

A poll asks here once it has read a table's first page and there is more; nobody else decides. The
job reads nothing that is not asked for here either.

Rules of this module
    1. A table is large from so many rows ahead on, counted along the index by which it is read. A
       source that cannot be divided there has nothing large: it is one sequence for anybody.
    2. A job that was asked for and brought nothing is not asked for again in the same poll, or for
       six hours: what it cannot do, for want of a permission perhaps, goes on as without it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lakesync.connectors.port import Divisible, Stretch
from lakesync.result import Ok

if TYPE_CHECKING:
    from lakesync.connectors.port import Connector
    from lakesync.connectors.state import PollState

JOB_START_MS: Final = 900_000
"""How long a job may take from being asked for to its beginning; then a function goes on."""
JOB_AGAIN_MS: Final = 6 * 3_600_000
"""After so long it is tried again whether a job gets on."""


def may_ask(state: PollState, now_ms: int) -> bool:
    """Tell whether a job may be asked for."""
    return not state.job_ms or state.job_moved or now_ms - state.job_ms >= JOB_AGAIN_MS


def is_large(connector: Connector, source: str, state: PollState, rows_min: int) -> bool:
    """Tell whether what is ahead in a table is a job's.

    Args:
        connector: what is read. If it fails to answer, it is read page by page, and may say why.
        source: its table, of which a page was read.
        state: how far it is.
        rows_min: from how many rows on it is; 0 for never.
    """
    if not rows_min or not isinstance(connector, Divisible):
        return False
    cursor, poll_ms = state.cursors[source], state.begins(source)
    match connector.ahead(source, cursor, rows_min, poll_ms=poll_ms):
        case Ok(Stretch(_, ends)):
            return bool(ends)
        case _:
            return False
