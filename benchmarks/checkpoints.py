"""How fast checkpoints are built, and what a first sync of a million rows takes.

The first sync has two processes (`benchmarks.first_sync`): a server with a checkpoint in a folder,
and a client. What crosses between them is HTTP on a socket.

``python -m benchmarks --only checkpoints`` prints the figures; ``run`` gives them.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks.entries import at_least, at_most, cpu_us, sized
from benchmarks.first_sync import COLUMNS, GATEWAY, ROWS, MadeRows
from lakesync.checkpoint.store import Checkpoints
from lakesync.errors import NotFound
from lakesync.maintenance.checkpoint_upkeep import Builder

if TYPE_CHECKING:
    from benchmarks.entries import Entry
    from lakesync.ports import RowSlice

MEASURES: Final = (
    "layers/lakesync/python/lakesync/checkpoint",
    "layers/lakesync/python/lakesync/client",
    "layers/lakesync/python/lakesync/core",
    "layers/lakesync/python/lakesync/gateway/pull.py",
    "layers/lakesync/python/lakesync/maintenance/checkpoint_upkeep.py",
    "layers/lakesync/python/lakesync/runtime/api",
    "layers/lakesync/python/lakesync/wire",
)
BUILD_TARGET: Final = 50_000
BUILD_ROWS: Final = sized(100_000, 1_000)
SYNC_TARGET: Final = 50_000
CLIENT_MB_TARGET: Final = 200
SERVER_MB_TARGET: Final = 512
_TIMEOUT_S: Final = 600
_NOW_MS: Final = 1_800_000_000_000


class _Objects:
    """Takes objects, and keeps how large they were, and what a build reads again."""

    def __init__(self) -> None:
        self.size = 0

    def put_object(self, key: str, body: bytes, content_type: str) -> None:
        """Forget an object."""
        del key, content_type
        self.size += len(body)

    def get_object(self, key: str) -> bytes:
        """Return nothing."""
        raise NotFound(key)

    def list_objects(self, prefix: str) -> list[str]:
        """Return nothing."""
        del prefix
        return []

    def delete_object(self, key: str) -> None:
        """Do nothing."""


class _ReadyRows(MadeRows):
    """Rows that lie ready, so that only what is done with them is measured."""

    def __init__(self) -> None:
        super().__init__(BUILD_ROWS)
        self._slices: dict[tuple[int, str], RowSlice] = {}

    def scan_part(
        self, gateway: str, table: str, part: int, after: str, count_max: int
    ) -> RowSlice:
        """Return rows that lie ready, the second time."""
        if (part, after) not in self._slices:
            made = super().scan_part(gateway, table, part, after, count_max)
            self._slices[part, after] = made
        return self._slices[part, after]


def run() -> list[Entry]:
    """Measure, and give one entry for each figure."""
    with tempfile.TemporaryDirectory(prefix=".bench-", dir=Path.cwd()) as name:
        synced = _synced(Path(name))
    return [_built(), *synced]


def _built() -> Entry:
    rows, objects = _ReadyRows(), _Objects()

    def build(_: int) -> int:
        objects.size = 0
        store: Any = objects
        builder = Builder(rows, store, Checkpoints(store), wall_clock=lambda: _NOW_MS)
        return builder.build(GATEWAY).rows

    rate = 1e6 / cpu_us(build)
    return at_least(
        "checkpoint_build_rows_per_s",
        round(rate),
        "1/s",
        BUILD_TARGET,
        f"row states of {COLUMNS} columns to chunks of 16 MB, each fifth row written twice; CPU of "
        f"one core, best of 5 times {BUILD_ROWS:,}; {objects.size / BUILD_ROWS:.0f} bytes a row",
    )


def _synced(folder: Path) -> list[Entry]:
    command = [sys.executable, "-m", "benchmarks.first_sync"]
    with subprocess.Popen(
        [*command, "serve", str(folder)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as server:
        try:
            assert server.stderr is not None
            begun = json.loads(server.stderr.readline())
            finished = subprocess.run(
                [*command, "sync", str(folder), str(begun["port"])],
                stderr=subprocess.PIPE, text=True, check=True, timeout=_TIMEOUT_S,
            )  # fmt: skip
            client = json.loads(finished.stderr)
            served = json.loads(server.stderr.readline())
        finally:
            server.kill()
    assert client["rows"] == ROWS, client
    what = f"{ROWS:,} rows of {COLUMNS} columns from a checkpoint over HTTP, and the log behind it"
    return [
        at_least(
            "first_sync_rows_per_s",
            round(ROWS / client["seconds"]),
            "1/s",
            SYNC_TARGET,
            f"{what}: {client['seconds']:.1f} s, {client['pages']} pages, {client['cpu_s']:.1f} s "
            f"of the client's CPU; the checkpoint took {begun['built_s']:.0f} s to build, its rows "
            "being made meanwhile",
        ),
        at_most(
            "first_sync_client_mb",
            client["peak_mb"],
            "MB",
            CLIENT_MB_TARGET,
            f"peak resident of the client's process; its file holds {client['file_mb']:.0f} MB",
        ),
        at_most(
            "first_sync_server_mb",
            served["peak_mb"],
            "MB",
            SERVER_MB_TARGET,
            f"peak resident of the server's process, which built the checkpoint too and answered "
            f"{served['requests']} requests",
        ),
    ]


if __name__ == "__main__":
    for entry in run():
        print(entry)
