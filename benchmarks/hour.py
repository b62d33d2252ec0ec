"""One hour of a hundred devices on the local stack, counted at the emulator's door.

Ten gateways of ten devices, each connected, each editing one cell of its row every five minutes;
the rows are of 300 bytes. The hour is replayed `SPEED` times as fast, and so are the clients' own
intervals, so that as many edits, broadcasts, keep-alives and checks happen as in an hour. What
follows real time is not in the record: schedules, and what API Gateway's authoriser remembers.
``python -m benchmarks.hour`` writes ``benchmarks/hour.json``, which ``tests/cli/test_cost_hour.py``
holds the model of `lakesync cost` against.
"""

from __future__ import annotations

import http.client
import json
import sys
import tempfile
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from unittest.mock import patch
from urllib.parse import urlsplit
from uuid import uuid4

from benchmarks.live import address_of, token_of
from benchmarks.stack import running_stack
from lakesync.client import Client, HttpTransport, Waits
from lakesync.client import loop as client_loop
from lakesync.client.loop import CONNECTED_EVERY_S, EVERY_S
from lakesync.client.waits import HEARTBEAT_S
from tools.local_stack.emulator.count_patches import PATH

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tools.local_stack.stack import Stack

RECORD: Final = Path(__file__).resolve().parent / "hour.json"
SPEED: Final = 8
GATEWAYS: Final = 10
DEVICES: Final = 10
"""Of each gateway."""
EDITS: Final = 12
"""Of each device in an hour: one every five minutes."""
EDIT_EVERY_S: Final = 300
ROW_TEXT: Final = "x" * 60
COLUMNS: Final = ("name", "place", "note", "owner")
"""Of `ROW_TEXT` each: with the edited one a row of 300 bytes."""
_CONNECT_S_MAX: Final = 60
_REST_S: Final = 5


def main() -> int:
    """Replay the hour, and write what was counted."""
    with running_stack() as stack, ExitStack() as open_files:
        folder = open_files.enter_context(tempfile.TemporaryDirectory(prefix="lakesync-hour-"))
        open_files.enter_context(
            patch.object(client_loop, "CONNECTED_EVERY_S", CONNECTED_EVERY_S / SPEED)
        )
        devices = _devices(stack, Path(folder), open_files)
        before, began_s = counts(stack), time.monotonic()
        _edit(devices)
        time.sleep(_REST_S)
        after, seconds = counts(stack), time.monotonic() - began_s
    record = {
        "speed": SPEED,
        "devices": GATEWAYS * DEVICES,
        "gateways": GATEWAYS,
        "edits": GATEWAYS * DEVICES * EDITS,
        "replayed_s": round(seconds, 1),
        "counts": difference(before, after, stack.stack),
    }
    RECORD.write_text(json.dumps(record, indent=1) + "\n", "utf-8")
    print(json.dumps(record, indent=1))
    return 0


def _devices(stack: Stack, folder: Path, open_files: ExitStack) -> list[Client]:
    sockets, run = address_of(stack), uuid4().hex[:6]
    devices = []
    for number in range(GATEWAYS * DEVICES):
        gateway, name = f"hour{run}{number // DEVICES}", f"d{number}"
        transport = HttpTransport(
            stack.http, gateway, token=partial(token_of, stack, gateway, name), socket_url=sockets
        )
        client = open_files.enter_context(
            Client(folder / f"{name}.db", client_id=name, transport=transport)
        )
        client.insert("rows", name, {**dict.fromkeys(COLUMNS, ROW_TEXT), "turn": 0}).unwrap()
        client.sync().unwrap()
        devices.append(client)
    waits = Waits(heartbeat_s=HEARTBEAT_S / SPEED)
    for client in devices:  # one after the other: the functions start in this machine's time
        open_files.enter_context(client.connect(every_s=EVERY_S, waits=waits))
        _await_connection(client)
    time.sleep(2 * _REST_S)
    return devices


def _await_connection(client: Client) -> None:
    until_s = time.monotonic() + _CONNECT_S_MAX
    while not client.connected:
        if time.monotonic() > until_s:
            raise SystemExit(f"a device is not connected: {client.status.socket_error}")
        time.sleep(0.1)


def _edit(devices: Sequence[Client]) -> None:
    began_s, step_s = time.monotonic(), EDIT_EVERY_S / SPEED / len(devices)
    turn = 0
    for edit in range(EDITS):
        for number, client in enumerate(devices):
            time.sleep(max(0.0, began_s + turn * step_s - time.monotonic()))
            client.update("rows", f"d{number}", {"turn": edit + 1}).unwrap()
            turn += 1


def counts(stack: Stack) -> dict[str, float]:
    """Return the emulator's totals."""
    parts = urlsplit(stack.endpoint)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=60)
    connection.request("GET", PATH)
    totals: dict[str, float] = json.loads(connection.getresponse().read())
    connection.close()
    return totals


def difference(
    before: Mapping[str, float], after: Mapping[str, float], stack: str
) -> dict[str, Any]:
    """Return what came on top, by names without the stack's and CloudFormation's own parts."""
    more: dict[str, float] = {}
    for name, total in after.items():
        if added := total - before.get(name, 0):
            short = short_name(name, stack)
            more[short] = more.get(short, 0) + added
    return dict(sorted(more.items()))


def short_name(name: str, stack: str) -> str:
    """Return a total's name without the stack's, and without what makes a resource's unique."""
    head, _, resource = name.partition(f"{stack}-")
    return head + resource.rpartition("-")[0] if resource else name


if __name__ == "__main__":
    sys.exit(main())
