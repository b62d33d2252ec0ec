"""Change capture: from the log of a real PostgreSQL to deltas."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from benchmarks.entries import at_least, sized
from lakesync.connectors import FEED
from lakesync.connectors.pages import deltas_of
from lakesync.connectors.poll import PAGE_ROWS_MAX
from tests.support.capturing import CaptureWorld
from tools.local_stack.databases import start_postgres

if TYPE_CHECKING:
    from benchmarks.entries import Entry

MEASURES: Final = (
    "layers/lakesync/python/lakesync/connectors",
    "layers/lakesync/python/lakesync/core/delta.py",
    "layers/lakesync/python/lakesync/core/delta.py",
)
_TRANSACTIONS: Final = sized(200, 3)
_ROWS: Final = 100
_ROUNDS: Final = sized(3, 1)
_TABLE: Final = "id int PRIMARY KEY, name text, amount numeric(10,2), at timestamptz, flag boolean"


def run() -> list[Entry]:
    """Measure how many changes one core makes deltas of."""
    with start_postgres() as database:
        world = CaptureWorld(database, {"items": _TABLE})
        world.poll()
        for number in range(_TRANSACTIONS):
            first, last = number * _ROWS + 1, (number + 1) * _ROWS
            world.run(
                f"INSERT INTO {world.tables['items']} "  # noqa: S608 - our own numbers
                "SELECT n, 'name ' || n, n * 0.25, now(), true "
                f"FROM generate_series({first}, {last}) n"
            )
        cpu_s = min(_read_s(world) for _ in range(_ROUNDS))
        world.close()
    rows = _TRANSACTIONS * _ROWS
    detail = (
        f"CPU of this process: {rows:,} inserts of 5 columns in transactions of {_ROWS}, fetched "
        "from the slot of a PostgreSQL on this machine, decoded, as deltas with their ids"
    )
    return [at_least("cdc_rows_per_s", rows / cpu_s, "rows/s", 20_000, detail)]


def _read_s(world: CaptureWorld) -> float:
    """Return the CPU time of reading all that was committed, without moving the slot."""
    connector: Any = world.connector()
    tables, after = world.settings.named(), world.state.cursors[FEED]
    poll_ms, count, has_more = world.time.wall_clock() + 60_000, 0, True
    start = time.process_time()
    while has_more:
        page = connector.read(FEED, after, rows_max=PAGE_ROWS_MAX, poll_ms=poll_ms).unwrap()
        deltas, _ = deltas_of(page, FEED, tables, "connector:c", poll_ms)
        count, after, has_more = count + len(deltas), page.cursor, page.has_more
    spent_s = time.process_time() - start
    connector.close()
    assert count == _TRANSACTIONS * _ROWS
    return spent_s
