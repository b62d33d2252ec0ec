"""What a database takes as a destination: flights that change again and again, in large batches.

Beside it in the same run: the same values by a bare ``COPY``, and by an upsert for each row.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from benchmarks.entries import at_least, at_most, sized
from benchmarks.flights import batches
from lakesync.adapters.database import PlacedDelta, Position, TableBatch
from lakesync.adapters.sql.adapter import SqlAdapter
from lakesync.core.schema import Column, TableSchema
from tests.support.destinations import (
    SqlDestination,
    mariadb_dialect,
    postgres_dialect,
)
from tools.local_stack.databases import start_mariadb, start_postgres

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.entries import Entry
    from lakesync.adapters.sql.standard import Dialect
    from lakesync.core.delta import Delta

MEASURES: Final = (
    "layers/lakesync/python/lakesync/adapters/database.py",
    "layers/lakesync/python/lakesync/adapters/sql",
    "layers/lakesync/python/lakesync/core/delta.py",
    "layers/lakesync/python/lakesync/core/merge.py",
    "layers/lakesync/python/lakesync/core/delta.py",
    "layers/lakesync/python/lakesync/wire/records.py",
)
BATCH_DELTAS: Final = sized(20_000, 200)
BATCHES: Final = sized(5, 2)
ROWS: Final = 50_000
_TYPES: Final = {
    "carrier": "string", "tailnum": "string", "dep_delay": "number", "air_time": "number",
    "cancelled": "boolean",
}  # fmt: skip
_SCHEMA: Final = TableSchema("flights", tuple(Column(*column) for column in _TYPES.items()))


def run() -> list[Entry]:
    """Measure PostgreSQL and MariaDB."""
    deltas = [
        delta
        for push in batches(BATCH_DELTAS * BATCHES // 100, range(ROWS))
        for _, delta in push.deltas
    ]
    detail = f"{len(deltas):,} deltas of five columns to {ROWS:,} rows, {BATCH_DELTAS:,} a batch"
    with start_postgres() as database:
        dialect = postgres_dialect(database)
        taken_s = _inserted_s(dialect, deltas)
        copied_s, upserted_s = _copied_s(dialect, deltas), _upserted_s(dialect, deltas)
    with start_mariadb() as database:
        mysql_s = _inserted_s(mariadb_dialect(database), deltas)
    cost = "history, row states and the table to query: three times what a COPY or an upsert writes"
    return [
        at_least(
            "postgres_deltas_per_s", len(deltas) / taken_s, "1/s", 30_000, f"{detail}; {cost}"
        ),
        at_most(
            "postgres_over_copy", taken_s / copied_s, "times", 3,
            f"over a COPY of the deltas' values into an empty table; {cost}",
        ),
        at_least(
            "postgres_over_upserts", upserted_s / taken_s, "times", 10,
            f"an upsert and a commit for each delta's values, fsync off, over the adapter; {cost}",
        ),
        at_least("mysql_deltas_per_s", len(deltas) / mysql_s, "1/s", 15_000, f"MariaDB; {detail}"),
    ]  # fmt: skip


def _inserted_s(dialect: Dialect, deltas: Sequence[Delta]) -> float:
    adapter = SqlAdapter(dialect, "bench")
    adapter.ensure_schema(_SCHEMA).unwrap()
    each = [_batch(number, deltas) for number in range(BATCHES)]
    start = time.perf_counter()
    for batch in each:
        adapter.insert_deltas(batch).unwrap()
    taken_s = time.perf_counter() - start
    adapter.close()
    return taken_s


def _batch(number: int, deltas: Sequence[Delta]) -> TableBatch:
    after = number * BATCH_DELTAS // 100
    part = deltas[number * BATCH_DELTAS : (number + 1) * BATCH_DELTAS]
    placed = [
        PlacedDelta(Position(after + 1 + place // 100, place % 100), delta)
        for place, delta in enumerate(part)
    ]
    return TableBatch("flights", after, placed[-1].position.commit, placed, _SCHEMA)


def _copied_s(dialect: Dialect, deltas: Sequence[Delta]) -> float:
    connection = dialect.connect()
    cursor = connection.cursor()
    columns = "row_id text, carrier text, tailnum text, dep_delay float8, air_time float8, c bool"
    cursor.execute(f"CREATE TABLE copied ({columns})")
    start = time.perf_counter()
    with cursor.copy("COPY copied FROM STDIN") as copy:
        for delta in deltas:
            copy.write_row((delta.row_id, *delta.values.values()))
    connection.commit()
    taken_s = time.perf_counter() - start
    connection.close()
    return taken_s


def _upserted_s(dialect: Dialect, deltas: Sequence[Delta]) -> float:
    part = deltas[: len(deltas) // 10]
    destination = SqlDestination(dialect)
    destination.run(
        "CREATE TABLE upserted (row_id text PRIMARY KEY, carrier text, tailnum text, "
        "dep_delay float8, air_time float8, cancelled bool)"
    )
    connection = dialect.connect()
    cursor = connection.cursor()
    start = time.perf_counter()
    for delta in part:
        cursor.execute(
            "INSERT INTO upserted VALUES (%s, %s, %s, %s, %s, %s) ON CONFLICT (row_id) "
            "DO UPDATE SET carrier = EXCLUDED.carrier, tailnum = EXCLUDED.tailnum, "
            "dep_delay = EXCLUDED.dep_delay, air_time = EXCLUDED.air_time, "
            "cancelled = EXCLUDED.cancelled",
            (delta.row_id, *delta.values.values()),
        )
        connection.commit()
    taken_s = (time.perf_counter() - start) * len(deltas) / len(part)
    connection.close()
    return taken_s
