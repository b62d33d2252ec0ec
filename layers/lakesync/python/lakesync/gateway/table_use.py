"""What is left of a table: whether any commit ever wrote a row of it, and whether its data remains.

Looked up while a configuration is changed (`lakesync.log.declare`): after the heads were read, so a
commit that follows undoes the change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lakesync.log.final_log import read_all
from lakesync.log.read_barrier import ReadBarrier

if TYPE_CHECKING:
    from lakesync.core.clock import Stamp
    from lakesync.ports import Buffer

_LOG_DELTAS_MAX: Final = 10_000
"""Deltas of the log that one read gives."""


def has_commits(buffer: Buffer, gateway: str, table: str) -> bool:
    """Return whether a commit ever held a row of the table.

    Cost: a read unit if the table has rows; else the flushed tables and the unflushed log are read.
    """
    if buffer.scan_rows(gateway, table, "", 1).rows:
        return True
    # In this order: a commit that is flushed meanwhile is in one of them at least.
    watermark = buffer.flush_state(gateway).watermark
    return _is_logged(buffer, gateway, table, watermark) or table in buffer.flushed_tables(gateway)


def what_is_left(buffer: Buffer, gateway: str, table: str) -> str:
    """Return what is left of a table's data in the buffer, in words; empty if that is nothing.

    Cost: as `has_commits`; the log that was flushed is not read.
    """
    if buffer.scan_rows(gateway, table, "", 1).rows:
        return "rows, or deletions of rows that clients may not have read"
    watermark = buffer.flush_state(gateway).watermark
    if _is_logged(buffer, gateway, table, watermark):
        return "changes that wait to be flushed"
    last = buffer.flushed_tables(gateway).get(table, 0)
    if last > ReadBarrier(buffer).raise_heads(gateway).trimmed:
        return "changes in the log, until retention trims it"
    return ""


def _is_logged(buffer: Buffer, gateway: str, table: str, since: Stamp) -> bool:
    """Return whether the log behind a stamp has an entry of the table."""
    log = ReadBarrier(buffer).raise_heads(gateway, since)
    span = (max(since, log.trimmed), log.top)
    return any(table in entry.tables for entry in read_all(buffer, log, span, _LOG_DELTAS_MAX))
