"""How fast a client edits and applies: each edit on the disk before it returns, pages of 1,000.

``python -m benchmarks.client`` prints the figures; ``run`` gives them.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks.entries import at_least, at_most, sized
from lakesync.client import Client
from lakesync.core.clock import stamp
from lakesync.core.delta import Op, make_delta
from lakesync.core.messages import Pull, PullPage, Push, PushReceipt
from lakesync.errors import Unreachable
from lakesync.wire.records import encode_records

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from lakesync.client.storage.sqlite_file import Durability
    from lakesync.core.delta import Delta

MEASURES: Final = (
    "layers/lakesync/python/lakesync/client",
    "layers/lakesync/python/lakesync/core",
    "layers/lakesync/python/lakesync/wire",
)
EDITS: Final = sized(3_000, 50)
EDITS_TARGET: Final = 5_000
PAGES: Final = sized(40, 1)
PAGE_DELTAS: Final = 1_000
APPLIED_TARGET: Final = 60_000
SHARE_TARGET: Final = 0.8
FILE_TARGET: Final = 2
FILE_ROWS: Final = sized(100_000, 1_000)
_ROUNDS: Final = sized(3, 1)
_SHARE_ROUNDS: Final = sized(7, 1)
SYNCS: Final = sized(1_500, 20)
_SLICE_EDITS: Final = 50
"""Edits that the one makes before it is the other's turn."""
_COMMIT_DELTAS: Final = 100
_WALL_MS: Final = 1_700_000_000_000
_PLAIN_ENTRY: Final = b"\1" * 200
_PLAIN_INSERT: Final = "INSERT INTO todos VALUES (?, ?, ?, ?, ?, ?)"
_SYNC_BYTES: Final = 16 * 1024
"""What SQLite writes for one small edit: three or four pages of 4 KB."""


class _Pages:
    """A gateway that has pages ready, and takes no pushes."""

    def __init__(self, pages: list[PullPage]) -> None:
        self._pages = pages

    def push(self, push: Push) -> PushReceipt:
        """Refuse."""
        raise Unreachable(f"{len(push.deltas)} deltas have nowhere to go")

    def pull(self, pull: Pull) -> PullPage:
        """Return the page behind the cursor."""
        return next(page for page in self._pages if page.cursor > pull.since)


def run() -> list[dict[str, Any]]:
    """Measure, and give one entry for each figure."""
    with tempfile.TemporaryDirectory(prefix=".bench-", dir=Path.cwd()) as name:
        folder = Path(name)
        edits: list[float] = []
        syncs: list[float] = []
        cpu_us: list[float] = []
        for turn in range(_ROUNDS):  # in turns, as a disk that others use changes its pace
            rate, cpu = _edits(folder / f"edits-{turn}.db")
            edits.append(rate)
            cpu_us.append(cpu)
            syncs.append(_syncs_per_s(folder / f"syncs-{turn}"))
        shares = [_share_of_plain(folder, turn) for turn in range(_SHARE_ROUNDS)]
        over = _file_over_sqlite(folder)
        relaxed, _ = _edits(folder / "relaxed.db", "NORMAL")
        inserts = [_applied_per_s(folder / f"new-{turn}.db", _insert) for turn in range(_ROUNDS)]
        updates = [_applied_per_s(folder / f"old-{turn}.db", _update) for turn in range(_ROUNDS)]
    return [
        _entry(
            "client_edits_per_s",
            statistics.median(edits),
            EDITS_TARGET,
            f"rows of 5 columns, each on the disk before the next; {statistics.median(cpu_us):.0f} "
            f"us of CPU an edit; this disk by itself syncs {statistics.median(syncs):,.0f} writes "
            f"of {_SYNC_BYTES // 1024} KB a second; with durability NORMAL {relaxed:,.0f} edits/s",
        ),
        _entry(
            "client_applied_per_s",
            statistics.median(inserts),
            APPLIED_TARGET,
            f"new rows of 5 columns in pages of {PAGE_DELTAS:,}; two columns of 2,000 rows changed "
            f"again and again: {statistics.median(updates):,.0f} deltas/s. By a profile, packing "
            "row states, decoding deltas, values for the app's table, and SQLite take about a "
            "fifth each",
        ),
        at_least(
            "client_edits_share_of_sqlite",
            statistics.median(shares),
            "",
            SHARE_TARGET,
            "durable edits a second over those of bare SQLite, which writes the app's row and one "
            f"entry of 200 bytes in a transaction each, on this disk, {_SLICE_EDITS} in turns; "
            f"of {_SHARE_ROUNDS} rounds {min(shares):.2f} to {max(shares):.2f}",
        ),
        at_most(
            "file_over_sqlite",
            over,
            "",
            FILE_TARGET,
            f"{FILE_ROWS:,} rows of 5 columns that were pulled: the file over that of a plain "
            "table with a text key. Beside the app's row it keeps the merged state, values and all",
        ),
    ]


def _entry(name: str, value: float, target: float, detail: str) -> dict[str, Any]:
    return {
        "name": name,
        "value": round(value),
        "unit": "1/s",
        "target": target,
        "holds": value >= target,
        "detail": detail,
    }


def _edits(path: Path, durability: Durability = "FULL") -> tuple[float, float]:
    """Return the edits a second, and the CPU of one in microseconds."""
    with Client(path, client_id="phone", transport=_Pages([]), durability=durability) as client:
        client.insert("todos", "first", _columns(0)).unwrap()
        start, used = time.perf_counter(), time.thread_time()
        for turn in range(EDITS):
            client.insert("todos", f"todo-{turn}", _columns(turn)).unwrap()
        used = time.thread_time() - used
        return EDITS / (time.perf_counter() - start), used / EDITS * 1e6


def _share_of_plain(folder: Path, turn: int) -> float:
    """Return how long bare SQLite takes for the same two writes over how long the client takes.

    In turns, so that whatever else uses the disk or the processor slows both.
    """
    plain = contextlib.closing(sqlite3.connect(folder / f"plain-{turn}.db", isolation_level=None))
    ours = Client(folder / f"share-{turn}.db", client_id="phone", transport=_Pages([]))
    ours_s = plain_s = 0.0
    with plain as connection, ours as client:
        _plain_table(connection)
        connection.execute("CREATE TABLE outbox (hlc INTEGER PRIMARY KEY, run BLOB)")
        client.insert("todos", "first", _columns(0)).unwrap()
        for first in range(0, EDITS, _SLICE_EDITS):
            places = range(first, first + _SLICE_EDITS)
            plain_s += _seconds(lambda place: _plain_edit(connection, place), places)
            ours_s += _seconds(lambda place: _edit(client, place), places)
    return plain_s / ours_s


def _seconds(edit: Callable[[int], object], places: Iterable[int]) -> float:
    start = time.perf_counter()
    for place in places:
        edit(place)
    return time.perf_counter() - start


def _edit(client: Client, place: int) -> None:
    client.insert("todos", f"todo-{place}", _columns(place)).unwrap()


def _plain_edit(connection: sqlite3.Connection, place: int) -> None:
    execute = connection.execute
    execute("BEGIN IMMEDIATE")
    execute(_PLAIN_INSERT, (f"todo-{place}", *_columns(place).values()))
    execute("INSERT INTO outbox VALUES (?, ?)", (place, _PLAIN_ENTRY))
    execute("COMMIT")


def _plain_table(connection: sqlite3.Connection) -> None:
    connection.execute("PRAGMA journal_mode = WAL").close()
    connection.execute("PRAGMA synchronous = FULL").close()
    connection.execute(
        "CREATE TABLE todos (id TEXT PRIMARY KEY, title, done, priority, price, due)"
    )


def _file_over_sqlite(folder: Path) -> float:
    """Return the size of a synced file over that of a plain one with the same rows."""
    synced, plain = folder / "synced.db", folder / "same-rows.db"
    pages = list(_ready_pages(_insert, FILE_ROWS // PAGE_DELTAS))
    with Client(synced, client_id="phone", transport=_Pages(pages)) as client:
        client.pull().unwrap()
    with contextlib.closing(sqlite3.connect(plain, isolation_level=None)) as connection:
        _plain_table(connection)
        connection.execute("BEGIN")
        rows = ((f"todo-{place}", *_columns(place).values()) for place in range(FILE_ROWS))
        connection.executemany(_PLAIN_INSERT, rows)
        connection.execute("COMMIT")
    return synced.stat().st_size / plain.stat().st_size


def _syncs_per_s(path: Path, count: int = SYNCS) -> float:
    """Write and sync as SQLite's log does, with nothing around it."""
    block = b"\1" * _SYNC_BYTES
    file = os.open(path, os.O_CREAT | os.O_WRONLY)
    try:
        start = time.perf_counter()
        for _ in range(count):
            os.write(file, block)
            os.fdatasync(file)
        return count / (time.perf_counter() - start)
    finally:
        os.close(file)


def _applied_per_s(path: Path, delta_of: Callable[[int], Delta]) -> float:
    pages = list(_ready_pages(delta_of))
    with Client(path, client_id="phone", transport=_Pages(pages)) as client:
        start = time.perf_counter()
        client.pull().unwrap()
        return PAGES * PAGE_DELTAS / (time.perf_counter() - start)


def _ready_pages(delta_of: Callable[[int], Delta], count: int = PAGES) -> Iterator[PullPage]:
    for number in range(count):
        first = number * PAGE_DELTAS
        runs = tuple(
            encode_records(delta_of(place) for place in range(start, start + _COMMIT_DELTAS))
            for start in range(first, first + PAGE_DELTAS, _COMMIT_DELTAS)
        )
        cursor = stamp(_WALL_MS, first + PAGE_DELTAS)
        yield PullPage(runs, PAGE_DELTAS, cursor, has_more=number + 1 < count)


def _insert(place: int) -> Delta:
    hlc = stamp(_WALL_MS, place + 1)
    return make_delta(
        Op.INSERT, "todos", f"todo-{place}", _columns(place), client_id=_client(place), hlc=hlc
    )


def _update(place: int) -> Delta:
    hlc = stamp(_WALL_MS, place + 1)
    columns = {"title": f"Changed {place}", "done": place % 2 == 0}
    return make_delta(
        Op.UPDATE, "todos", f"todo-{place % 2_000}", columns, client_id=_client(place), hlc=hlc
    )


def _client(place: int) -> str:
    return f"client-{place // _COMMIT_DELTAS % 7}"


def _columns(place: int) -> dict[str, object]:
    return {
        "title": f"Buy milk and bread, number {place}",
        "done": False,
        "priority": place % 5,
        "price": place / 4,
        "due": "2024-05-17",
    }


if __name__ == "__main__":
    for entry in run():
        print(entry)
