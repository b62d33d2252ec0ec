"""Scans of rows for a client that sees not all of them, while the log cannot tell what it loses.

A commit may have happened, and one of its rows look as it did before for a moment. A client that is
shown such a row learns the rest from the log: what changed, or that the row left its sight. But of
entries from before the rules the log may not tell that. So a row that they wrote is shown only once
it looks as it was written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lakesync.core.clock import stamp
from lakesync.core.scope import EVERYTHING
from lakesync.errors import Contention
from lakesync.log.read_barrier import read_all
from lakesync.wire.records import decode_records
from lakesync.wire.row_state import decode_row_state

if TYPE_CHECKING:
    from lakesync.core.clock import Stamp
    from lakesync.core.delta import Delta
    from lakesync.gateway.rule_filter import RuleFilter
    from lakesync.log.read_barrier import FencedLog
    from lakesync.ports import Buffer, RowSlice

BECOMING_MS_MAX: Final = 60_000
"""Longer than any commit takes to become visible, and clocks of functions are apart."""
_LOG_DELTAS_MAX: Final = 10_000


def scan_settled(
    buffer: Buffer, log: FencedLog, rule_filter: RuleFilter, table: str, place: str, count_max: int
) -> RowSlice:
    """Give rows as `lakesync.ports.Buffer.scan_rows` does, none older than the log must tell.

    Cost: for a minute after rules looked at another column for the first time, the log of the
    minute before is read besides.

    Raises:
        Contention: a row is just becoming visible; try again in a moment.
    """
    found = buffer.scan_rows(log.gateway, table, place, count_max)
    untold = log.config.logged.since
    if rule_filter.scope.of(table) == EVERYTHING or log.top > untold + stamp(BECOMING_MS_MAX):
        return found
    written = _written(buffer, log, table, untold)
    if any(row.commit < written.get(row_id, 0) for row_id, row in found.rows):
        raise Contention("a row is just becoming visible; try again in a moment")
    return found


def visible_rows(rule_filter: RuleFilter, table: str, found: RowSlice) -> list[Delta]:
    """Give rows as the buffer holds them, each as the client sees it."""
    return [
        delta
        for row_id, stored in found.rows
        for delta in rule_filter.row(table, row_id, decode_row_state(stored.state))
    ]


def _written(buffer: Buffer, log: FencedLog, table: str, until: Stamp) -> dict[str, Stamp]:
    """Give the rows of a table that were written shortly before a stamp, each with its commit."""
    found: dict[str, Stamp] = {}
    after = max(until - stamp(BECOMING_MS_MAX), log.trimmed)
    for entry in read_all(buffer, log, (after, until), _LOG_DELTAS_MAX):
        for delta in decode_records(entry.records) if table in entry.tables else ():
            if delta.table == table:
                found[delta.row_id] = max(entry.stamp, found.get(delta.row_id, 0))
    return found
