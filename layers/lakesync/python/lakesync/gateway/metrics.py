"""The metrics of a gateway's buffer: for administrators, and what of them a client may know."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lakesync.core.clock import stamp_ms
from lakesync.core.layout import MAIN_LANE, lane_shard
from lakesync.core.visibility import Viewer
from lakesync.log.head_checks import unflushed_bytes
from lakesync.log.read_barrier import ReadBarrier
from lakesync.log.waiting import Waiting, waiting_tables
from lakesync.ports import NO_HEAD

if TYPE_CHECKING:
    from lakesync.core.token_claims import Claims
    from lakesync.ports import Buffer


ROWS_COUNTED_MAX: Final = 10_000
"""Rows that are counted of one table; about a megabyte of small ones."""
TABLES_COUNTED_MAX: Final = 50
"""Tables whose rows are counted for one answer; of the others it says what waits."""
WAITING_DELTAS_MAX: Final = 200_000
"""Deltas that are read of what waits; some seconds."""


def table_metrics(buffer: Buffer, gateway: str) -> dict[str, dict[str, object]]:
    """Return by table the bytes and deltas that wait to be flushed, and the rows that are known.

    For administrators only: no number here heeds rules. Deleted rows whose deletion is still
    remembered are rows that are known. Cost: what waits is read, and rows up to the bounds; a
    number that reached one is marked as the least that there are.
    """
    log = ReadBarrier(buffer).raise_heads(gateway)
    waiting, is_all = waiting_tables(buffer, log, WAITING_DELTAS_MAX)
    names = sorted({*log.config.schemas, *log.config.tables, *waiting})
    shown: dict[str, dict[str, object]] = {}
    for number, table in enumerate(names):
        one = waiting.get(table, Waiting())
        rows: dict[str, object] = {}
        if not log.config.appends(table) and number < TABLES_COUNTED_MAX:
            count, is_counted = _rows(buffer, gateway, table)
            rows = {"rows": count} if is_counted else {"rows": count, "moreRows": True}
        more = {} if is_all else {"moreUnflushed": True}
        shown[table] = {"unflushedBytes": one.bytes, "unflushedDeltas": one.deltas, **more, **rows}
    return shown


def _rows(buffer: Buffer, gateway: str, table: str) -> tuple[int, bool]:
    """Return how many rows of a table there are, and whether that is all of them."""
    count, place = 0, ""
    while count < ROWS_COUNTED_MAX:
        part = buffer.scan_rows(gateway, table, place, ROWS_COUNTED_MAX - count)
        count, place = count + len(part.rows), part.place
        if not place:
            return count, True
    return count, False


def metrics(buffer: Buffer, gateway: str, claims: Claims | None, now_ms: int) -> dict[str, object]:
    """Return how much is unflushed, since when, and how far the log is, in total and by shard.

    A client (``claims``) from which rules keep anything is only told what its pulls tell it: the
    tables that the rules can show it, and how far the log is. Every other number also counts what
    is hidden from it. From the bytes of the log, less those of its own pushes, it could read the
    size of each hidden commit, and rounding would not help: its pushes would find where a number
    steps.
    """
    config = buffer.config(gateway)
    viewer = Viewer(config.rules, claims or {})
    every = buffer.heads(gateway)
    head = str(max((head.commit for head in every.values()), default=0))
    if claims is not None and not viewer.sees_everything:
        tables = sorted(table for table in config.schemas if viewer.may_see(table))
        return {"gateway": gateway, "tables": tables, "headHlc": head}
    state = buffer.flush_state(gateway)
    oldest = [head.oldest_unflushed for head in every.values() if head.oldest_unflushed]
    age_ms = now_ms - stamp_ms(min(oldest)) if oldest else 0
    return {
        "gateway": gateway,
        "configVersion": config.version,
        "tables": sorted(config.schemas),
        "headHlc": head,
        "flushedHlc": str(state.watermark),
        "unflushedBytes": sum(unflushed_bytes(head) for head in every.values()),
        "unflushedAgeMs": max(age_ms, 0),
        "lanes": len((every.get(MAIN_LANE) or NO_HEAD).lanes.open()),
        "shards": {
            shard: {
                "headHlc": str(max(head.commit for head in of_shard)),
                "unflushedBytes": sum(map(unflushed_bytes, of_shard)),
            }
            for shard in sorted(config.layout.shards())
            if (of_shard := [h for lane, h in every.items() if lane_shard(lane) == shard])
        },
    }
