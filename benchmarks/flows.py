"""A polled flow: rows of a PostgreSQL on this machine to a MariaDB on it, the whole path."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from benchmarks.connectors import fill, settings_of
from benchmarks.entries import at_least, sized
from lakesync.buffer.memory_buffer import MemoryBuffer
from lakesync.flows.routes import keeper
from lakesync.gateway.destination_admin import DestinationAdmin
from tests.support.destinations import (
    SqlDestination,
    mariadb_dialect,
)
from tests.support.gateways import GivenTime, pusher
from tests.support.lake import Messages, Objects
from tests.support.polling import PollingByHand
from tools.local_stack.databases import start_mariadb, start_postgres

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.entries import Entry
    from tools.local_stack.databases import Database

MEASURES: Final = (
    "layers/lakesync/python/lakesync/adapters/database.py",
    "layers/lakesync/python/lakesync/adapters/sql",
    "layers/lakesync/python/lakesync/connectors",
    "layers/lakesync/python/lakesync/core/delta.py",
    "layers/lakesync/python/lakesync/core/merge.py",
    "layers/lakesync/python/lakesync/core/delta.py",
    "layers/lakesync/python/lakesync/flows",
)
ROWS: Final = sized(40_000, 400)
ROUNDS: Final = sized(3, 1)
_GATEWAY: Final = "bench"


def run() -> list[Entry]:
    """Measure, and give the one figure."""
    with start_postgres() as source, start_mariadb() as destination:
        fill(source, ROWS)
        rounds = [_moved_s(source, destination, f"flow{number}") for number in range(ROUNDS)]
    seconds, cpu_s = min(rounds)
    detail = (
        f"{ROWS:,} rows of 5 columns by a column of change times, from a PostgreSQL on this "
        "machine into a table of a MariaDB on it, with their history and states; this process "
        f"computes {cpu_s / seconds:.0%} of that time"
    )
    return [at_least("flow_rows_per_s", ROWS / seconds, "rows/s", 10_000, detail)]


def _moved_s(source: Database, destination: Database, name: str) -> tuple[float, float]:
    """Return how long a new flow takes from its first poll to its last row, and its CPU time."""
    with _declared(source, destination, name) as (by_hand, sql):
        start, cpu = time.perf_counter(), time.process_time()
        step = by_hand.polls.poll(_GATEWAY, name, 0, lambda: True)
        spent = time.perf_counter() - start, time.process_time() - cpu
        assert step.status == "done"
        assert sql.run(f"SELECT count(*) FROM {name}") == [(ROWS,)]  # noqa: S608 - our own name
    return spent


@contextmanager
def _declared(
    source: Database, destination: Database, name: str
) -> Iterator[tuple[PollingByHand, SqlDestination]]:
    time_, buffer, objects = GivenTime(int(time.time() * 1000)), MemoryBuffer(), Objects()
    by_hand = PollingByHand(
        pusher(buffer, time_=time_).push, time_.wall_clock, objects=objects, rows=buffer
    )
    admin = by_hand.flow_admin(
        buffer, DestinationAdmin(buffer, objects, Messages(), wall_clock=time_.wall_clock)
    )
    sql = SqlDestination(mariadb_dialect(destination))
    by_hand.databases["warehouse", keeper(_GATEWAY, name)] = sql.adapter(keeper(_GATEWAY, name))
    tables = [{"name": "items", "as": name, "cursorColumn": "changed"}]
    settings = settings_of(source) | {"tables": tables}
    admin.declare(_GATEWAY, {
        "name": name, "source": {"connector": "postgres", "configuration": settings},
        "destination": {"database": "mysql", "secret": "warehouse"},
    })  # fmt: skip
    try:
        yield by_hand, sql
    finally:
        sql.close()
