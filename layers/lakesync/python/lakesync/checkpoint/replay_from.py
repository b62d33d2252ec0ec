"""The commit stamp from which the log is replayed behind rows that were read during pushes.

Why this gives the right rows
    1. The log continues from a stamp below which everything was visible before the first row was
       read: flushed, and older than any commit may take to become visible. So each row contains at
       least what was committed up to there.
    2. A row may also contain later commits. The log repeats them, and then they change nothing.
    3. A table with anything that is no longer in the log was flushed, so the buffer lists it.

Append tables keep no rows: their only source is the log, and what is trimmed is in the lake.
Law B11: ``docs/spec/commit.md``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakesync.core.clock import VISIBLE_MS_MAX, stamp

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lakesync.core.clock import Stamp
    from lakesync.log.final_log import FinalLog
    from lakesync.ports import FlushState


def replay_from(log: FinalLog, state: FlushState, now_ms: int) -> Stamp:
    """Return the stamp from which the log continues behind rows that are read from now on.

    Args:
        log: the gateway's log.
        state: how far it was flushed, read after the log.
        now_ms: the time.
    """
    is_flushed = all(head.last_logged <= state.watermark for head in log.heads.values())
    flushed = log.top if is_flushed else state.watermark
    visible = stamp(max(now_ms - VISIBLE_MS_MAX, 0))
    return max(log.trimmed, min(flushed, visible))


def tables_with_rows(log: FinalLog, flushed: Iterable[str]) -> list[str]:
    """Return the tables that may have rows which the following log does not contain, by name.

    Args:
        log: the gateway's log.
        flushed: the tables that were ever flushed, read after the log.
    """
    return sorted(name for name in flushed if not log.config.appends(name))


def has_events(log: FinalLog, flushed: Iterable[str]) -> bool:
    """Return whether there are tables whose only source is the log."""
    return any(log.config.appends(name) for name in flushed)
