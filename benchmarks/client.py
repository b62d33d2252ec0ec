"""How fast a client edits and applies: each edit on the disk before it returns, pages of 1,000.

``python -m benchmarks.client`` prints the figures; ``run`` gives them.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from lakesync.client import Client
from lakesync.core.clock import stamp
from lakesync.core.delta import Op, make_delta
from lakesync.core.messages import Pull, PullPage, Push, PushReceipt
from lakesync.errors import Unreachable
from lakesync.wire.records import encode_records

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lakesync.client.storage.database import Durability
    from lakesync.core.delta import Delta

EDITS: Final = 3_000
EDITS_TARGET: Final = 5_000
PAGES: Final = 40
PAGE_DELTAS: Final = 1_000
APPLIED_TARGET: Final = 50_000
_ROUNDS: Final = 3
_COMMIT_DELTAS: Final = 100
_WALL_MS: Final = 1_700_000_000_000
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
        """Give the page behind the cursor."""
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
            "row states takes a quarter, decoding deltas a fifth, values for the app's table a "
            "sixth, SQLite and merging an eighth each",
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
    """Give the edits a second, and the CPU of one in microseconds."""
    with Client(path, client_id="phone", transport=_Pages([]), durability=durability) as client:
        client.insert("todos", "first", _columns(0)).unwrap()
        start, used = time.perf_counter(), time.thread_time()
        for turn in range(EDITS):
            client.insert("todos", f"todo-{turn}", _columns(turn)).unwrap()
        used = time.thread_time() - used
        return EDITS / (time.perf_counter() - start), used / EDITS * 1e6


def _syncs_per_s(path: Path, count: int = 1_500) -> float:
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


def _ready_pages(delta_of: Callable[[int], Delta]) -> Iterator[PullPage]:
    for number in range(PAGES):
        first = number * PAGE_DELTAS
        runs = tuple(
            encode_records(delta_of(place) for place in range(start, start + _COMMIT_DELTAS))
            for start in range(first, first + PAGE_DELTAS, _COMMIT_DELTAS)
        )
        cursor = stamp(_WALL_MS, first + PAGE_DELTAS)
        yield PullPage(runs, PAGE_DELTAS, cursor, has_more=number + 1 < PAGES)


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
