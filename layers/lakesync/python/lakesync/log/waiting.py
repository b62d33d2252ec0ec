"""How much of each table waits to be flushed, read from the log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from lakesync.log.final_log import read_all
from lakesync.wire.raw_records import raw_records

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from lakesync.log.final_log import FinalLog
    from lakesync.ports import Buffer, LogEntry

_SLICE_DELTAS_MAX: Final = 10_000


class Waiting(NamedTuple):
    """The deltas of one table that are in no announced batch."""

    bytes: int = 0
    """As the log has them, without what an entry adds to them."""
    deltas: int = 0


def waiting_tables(
    buffer: Buffer, log: FinalLog, deltas_max: int | None = None
) -> tuple[dict[str, Waiting], bool]:
    """Return what waits by table, and whether it is all: not if more than ``deltas_max`` wait.

    Cost: the unflushed log is read; an entry with several tables is decoded.
    """
    # In this order: what is flushed meanwhile is counted once more, never left out.
    flushed = buffer.flushed_tables(log.gateway)
    after = max(buffer.flush_state(log.gateway).watermark, log.trimmed)
    waiting: dict[str, Waiting] = {}
    seen = 0
    for entry in read_all(buffer, log, (after, log.top), _SLICE_DELTAS_MAX):
        if deltas_max is not None and seen >= deltas_max:
            return waiting, False
        seen += entry.count
        for table, size, deltas in _parts(entry):
            if entry.stamp > flushed.get(table, 0):
                before = waiting.get(table, Waiting())
                waiting[table] = Waiting(before.bytes + size, before.deltas + deltas)
    return waiting, True


def over_budget(waiting: Mapping[str, Waiting], budgets: Mapping[str, int]) -> list[str]:
    """Return the tables that have used up their budgets, in order of name."""
    return sorted(
        table for table, budget in budgets.items()
        if waiting.get(table, Waiting()).bytes >= budget
    )  # fmt: skip


def _parts(entry: LogEntry) -> Iterator[tuple[str, int, int]]:
    """Yield the tables of an entry, each with bytes and deltas; a table may come several times."""
    if len(entry.tables) == 1:
        [table] = entry.tables
        yield table, len(entry.records), entry.count
        return
    for record in raw_records(entry.records):
        yield record.table, record.ByteSize(), 1
