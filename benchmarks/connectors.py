"""Polled connectors: rows a second, memory whatever the source holds, what an idle one costs."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from benchmarks.broadcast import USD_PER_CALL, USD_PER_GB_S, USD_PER_RRU, USD_PER_WRU
from benchmarks.entries import at_least, at_most, sized
from lakesync.adapters.network import ANYWHERE
from lakesync.buffer.memory_buffer import MemoryBuffer
from lakesync.connectors import Storage
from lakesync.connectors.poll import Poll, Route
from lakesync.connectors.state import DeadLetters, Deletions, PollState
from lakesync.core.messages import PushReceipt
from lakesync.declare.flows import read_connector
from lakesync.systems.postgres.postgres_settings import PostgresSettings
from lakesync.systems.postgres.postgres_source import PostgresSource
from lakesync.systems.sql.sql_source import SqlConnector
from tests.support.gateways import GivenTime, pusher
from tests.support.lake import Objects
from tests.support.polling import PollingByHand
from tools.local_stack.databases import start_postgres

if TYPE_CHECKING:
    from benchmarks.entries import Entry
    from lakesync.core.messages import Push
    from tools.local_stack.databases import Database

MEASURES: Final = (
    "layers/lakesync/python/lakesync/connectors",
    "layers/lakesync/python/lakesync/core/delta.py",
    "layers/lakesync/python/lakesync/core/delta.py",
    "layers/lakesync/python/lakesync/gateway/push.py",
    "layers/lakesync/python/lakesync/log",
)
ROWS: Final = sized(40_000, 400)
ROWS_OF_MEMORY: Final = sized(1_000_000, 1_000)
ROUNDS: Final = sized(3, 1)
POLLS_A_MONTH: Final = 43_200
USD_PER_EXPRESS: Final = 1.00 / 1e6
"""A request of an Express state machine in us-east-1, by list price."""
USD_PER_EXPRESS_GB_S: Final = 0.00001667
EXPRESS_GB: Final = 64 / 1024
INGEST_GB: Final = 0.5
"""`IngestFunction`'s memory, of `template.yaml`."""
CALL_S: Final = 0.3
"""What an invocation takes beside what is measured here: the way to DynamoDB and the database, and
a new environment now and then."""
_TABLE: Final = (
    "CREATE TABLE items (id bigint PRIMARY KEY, name text, amount numeric(10,2), flag boolean, "
    "changed timestamptz)"
)
_FILL: Final = (
    "INSERT INTO items SELECT n, 'name ' || n, n * 0.25, true, "
    "timestamptz '2024-01-01' + n * interval '1 millisecond' FROM generate_series(1, {}) n"
)
_INDEX: Final = "CREATE INDEX ON items (changed, id)"


def run() -> list[Entry]:
    """Measure, and give one entry for each figure."""
    with start_postgres() as database:
        fill(database, ROWS)
        cpu_s = min(_polled_s(database, ROWS) for _ in range(ROUNDS))
        idle = _idle(database)
        fill(database, ROWS_OF_MEMORY)
        memory = _of_a_fresh_process(database)
    return [
        at_least(
            "connector_rows_per_s", ROWS / cpu_s, "rows/s", 20_000,
            f"CPU of this process: {ROWS:,} rows of 5 columns, by a column of change times, from a "
            "PostgreSQL on this machine to accepted by a gateway in memory",
        ),
        at_most(
            "connector_mb_max", memory["mb"], "MB", 150,
            f"the peak of a fresh process that polls {memory['rows']:,} rows to their end, its "
            "pushes taken and forgotten",
        ),
        idle,
    ]  # fmt: skip


def settings_of(database: Database) -> dict[str, Any]:
    """Return a connector's settings."""
    return {
        "host": database.host, "port": database.port, "database": database.database,
        "user": database.user, "password": database.password, "tls": "off",
        "tables": [{"name": "items", "cursorColumn": "changed"}],
    }  # fmt: skip


def fill(database: Database, rows: int) -> None:
    """Make the table anew, with so many rows."""
    source = PostgresSource(PostgresSettings.model_validate(settings_of(database)), ANYWHERE)
    connection: Any = source.dialect.connect()
    with connection.cursor() as cursor:
        for statement in ("DROP TABLE IF EXISTS items", _TABLE, _FILL.format(rows), _INDEX):
            cursor.execute(statement)
    connection.commit()
    connection.close()


def _saved(state: PollState, *, ends: bool = False) -> None:  # noqa: ARG001 - as it is called
    """Make bytes of the state, and forget them."""
    state.to_json()


def _poll(database: Database, push: Any, wall_clock: Any) -> int:
    """Poll all rows; returns how many were accepted."""
    settings = PostgresSettings.model_validate(settings_of(database))
    storage, state = Storage(Objects(), "g", "c"), PollState()
    connector = SqlConnector(PostgresSource(settings, ANYWHERE), settings, storage)
    poll = Poll(
        "c", Route(connector, settings.named(), push), letters=DeadLetters(storage),
        deletions=Deletions(storage), save=_saved, wall_clock=wall_clock,
    )  # fmt: skip
    polled = poll.run(state, lambda: True)
    connector.close()
    assert polled.status == "done", state.fault
    return state.rows


def _polled_s(database: Database, rows: int) -> float:
    time_ = GivenTime(int(time.time() * 1000))
    gateway = pusher(MemoryBuffer(), time_=time_)
    start = time.process_time()
    count = _poll(database, lambda push: gateway.push("g", push), time_.wall_clock)
    spent_s = time.process_time() - start
    assert count == rows
    return spent_s


# --- memory ------------------------------------------------------------------------------------


def _of_a_fresh_process(database: Database) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.connectors", str(database.port)]
    answer = subprocess.run(command, capture_output=True, check=True, text=True)
    said: dict[str, Any] = json.loads(answer.stdout)
    assert said["rows"] == ROWS_OF_MEMORY
    return said


def _measure_memory(port: int) -> None:
    from benchmarks.memory import peak_mb  # noqa: PLC0415 - of this process alone
    from tools.local_stack.databases import Database  # noqa: PLC0415

    def taken(push: Push) -> PushReceipt:
        return PushReceipt(0, len(push.deltas))

    rows = _poll(Database(port, "postgres"), taken, lambda: int(time.time() * 1000))
    print(json.dumps({"rows": rows, "mb": peak_mb()}))


# --- an idle one -------------------------------------------------------------------------------


@dataclass
class _Counted:
    """A store whose calls are counted."""

    store: Any
    writes: int = 0
    reads: int = 0

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.store, name)

        def call(*arguments: Any, **named: Any) -> Any:
            if name.startswith("connector"):
                self.reads += 1
            else:
                self.writes += 1
            return method(*arguments, **named)

        return call


def _idle(database: Database) -> Entry:
    """Return what a month of polls costs that find nothing, each minute."""
    time_ = GivenTime(int(time.time() * 1000))
    gateway = pusher(MemoryBuffer(), time_=time_)
    by_hand = PollingByHand(gateway.push, time_.wall_clock)
    body = {"type": "postgres", "name": "shop", "everyMinutes": 1}
    by_hand.admin.register("g", read_connector(body | {"configuration": settings_of(database)}))
    while by_hand.polls.poll("g", "shop", 0, lambda: True).status != "done":
        pass
    time_.sleep_ms(600_000)  # past the overlap: nothing is read again
    by_hand.polls.poll("g", "shop", 0, lambda: True)
    counted = _Counted(by_hand.store)
    by_hand.store = counted
    by_hand.__post_init__()
    start = time.perf_counter()
    for _ in range(10):
        time_.sleep_ms(60_000)
        step = by_hand.polls.poll("g", "shop", 0, lambda: True)
        assert step.status == "done"
    spent_s = (time.perf_counter() - start) / 10 + CALL_S
    writes, reads = counted.writes / 10, counted.reads / 10
    state_s = spent_s + 0.1
    usd = POLLS_A_MONTH * (
        writes * USD_PER_WRU + reads * USD_PER_RRU + USD_PER_CALL + spent_s * INGEST_GB
        * USD_PER_GB_S + USD_PER_EXPRESS + state_s * EXPRESS_GB * USD_PER_EXPRESS_GB_S
    )  # fmt: skip
    return at_most(
        "poll_idle_usd_per_month", usd, "USD", 0.50,
        f"{POLLS_A_MONTH:,} polls that find nothing, by list price of us-east-1: {writes:.1f} "
        f"writes and {reads:.1f} reads of the connector's item, an invocation of {spent_s:.2f} s "
        f"with {INGEST_GB} GB, an Express execution; EventBridge Scheduler gives 14 million "
        "starts a month. Its secret is $0.40 beside, polled or not",
    )  # fmt: skip


if __name__ == "__main__":
    _measure_memory(int(sys.argv[1]))
