"""The two processes of a first sync: ``serve FOLDER`` and ``sync FOLDER PORT``.

The server builds a checkpoint of a million rows into a folder, pushes a little more, and answers
pulls with the app that the function serves. The client begins with nothing. Each prints one line of
JSON when it is done.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import sys
import time
from array import array
from bisect import bisect_right
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from benchmarks.entries import sized
from benchmarks.memory import peak_mb
from lakesync.buffer.admission import ItemAccess
from lakesync.buffer.item_format import row_place
from lakesync.buffer.memory_buffer import MemoryBuffer
from lakesync.buffer.memory_items import MemoryItemStore
from lakesync.checkpoint.store import Checkpoints
from lakesync.core.clock import stamp
from lakesync.core.delta import Op, make_delta
from lakesync.core.merge import RowState
from lakesync.core.messages import Push
from lakesync.errors import NotFound
from lakesync.gateway.access import Access
from lakesync.maintenance.checkpoint_upkeep import Builder
from lakesync.ports import ROW_PARTS, FlushState, Head, RowSlice, StoredRow
from lakesync.wire.records import encode_row_state

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

GATEWAY: Final = "g1"
TABLE: Final = "todos"
ROWS: Final = sized(1_000_000, 2_000)
COLUMNS: Final = 5
AFTER: Final = sized(2_000, 200)
"""Deltas that are pushed after the checkpoint, for the pull behind it."""
_COMMIT_DELTAS: Final = 80
_SLICE_ROWS: Final = 2_000
_WALL_MS: Final = 1_700_000_000_000
_COMMIT: Final = stamp(_WALL_MS)
_MB: Final = 1024


def _row_id(number: int) -> str:
    return f"todo-{number:07}"


def states(numbers: Iterable[int]) -> Iterator[tuple[str, bytes]]:
    """Yield row states: rows of five columns, each fifth of which was changed by another client."""
    for place in numbers:
        hlc, client = stamp(_WALL_MS - 10_000_000, place % 60_000 + 1), f"client-{place // 100 % 7}"
        columns = {
            "title": b'"Buy milk and bread, number %d"' % place,
            "done": b"false",
            "priority": b"%d" % (place % 5),
            "price": b"%d.5" % (place // 4),
            "due": b'"2024-05-17"',
        }
        registers = {name: (hlc, client, value) for name, value in columns.items()}
        if place % 5 == 0:
            later = hlc + stamp(1_000)
            registers |= {"done": (later, "other", b"true"), "priority": (later, "other", b"9")}
        yield _row_id(place), encode_row_state(RowState(hlc, 0, registers))


class MadeRows(MemoryBuffer):
    """A gateway whose rows are made as they are read, so that they take no memory."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        stored = self._of(GATEWAY)
        stored.heads["main"] = Head(_COMMIT, epoch="made", trimmed=_COMMIT, last_logged=_COMMIT)
        stored.flush = FlushState(_COMMIT)
        stored.flushed[TABLE] = _COMMIT
        self._parts: list[array[int]] = [array("I") for _ in range(ROW_PARTS)]
        for number in range(rows):
            self._parts[int(row_place(_row_id(number))[0], 16)].append(number)

    def scan_part(
        self, gateway: str, table: str, part: int, after: str, count_max: int
    ) -> RowSlice:
        """Make the rows of a part behind an id."""
        del gateway, table
        numbers = self._parts[part]
        first = bisect_right(numbers, int(after.removeprefix("todo-"))) if after else 0
        chosen = numbers[first : first + min(count_max, _SLICE_ROWS)]
        rows = tuple((row_id, StoredRow(state, _COMMIT)) for row_id, state in states(chosen))
        return RowSlice(rows, rows[-1][0] if first + len(chosen) < len(numbers) else "")


class FolderObjects:
    """`lakesync.ports.ObjectStore` in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def put_object(self, key: str, body: bytes, content_type: str) -> None:
        """Store an object."""
        del content_type
        path = self._folder / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(body)

    def get_object(self, key: str) -> bytes:
        """Return an object's bytes."""
        try:
            return (self._folder / key).read_bytes()
        except FileNotFoundError as exc:
            raise NotFound(key) from exc

    def get_range(self, key: str, start: int, size: int) -> bytes:
        """Return some bytes of an object."""
        with (self._folder / key).open("rb") as file:
            file.seek(start)
            return file.read(size)

    def list_objects(self, prefix: str) -> list[str]:
        """Return the keys under a prefix, in order."""
        files = (path for path in self._folder.rglob("*") if path.is_file())
        keys = sorted(path.relative_to(self._folder).as_posix() for path in files)
        return [key for key in keys if key.startswith(prefix)]

    def delete_object(self, key: str) -> None:
        """Remove an object."""
        (self._folder / key).unlink(missing_ok=True)


def _say(**what: object) -> None:
    print(json.dumps(what), file=sys.stderr, flush=True)  # functions log to standard output


# --- the server -----------------------------------------------------------------------------------


def serve(folder: Path) -> None:
    """Build, then answer one request at a time, as a function does, until the client is done."""
    from lakesync.compat.follower_pulls import CheckpointService  # noqa: PLC0415
    from lakesync.gateway.pull import PullService  # noqa: PLC0415 - the client needs none of it
    from lakesync.gateway.push import PushService  # noqa: PLC0415
    from lakesync.runtime.api.pull import checkpoint_routes, pull_routes  # noqa: PLC0415
    from lakesync.runtime.http import create_app, lambda_handler  # noqa: PLC0415
    from lakesync.runtime.wiring import Randomness, sleep_ms, wall_clock  # noqa: PLC0415

    os.environ["POWERTOOLS_METRICS_DISABLED"] = "true"
    buffer, objects = MadeRows(ROWS), FolderObjects(folder)
    checkpoints = Checkpoints(objects)
    start = time.perf_counter()
    Builder(buffer, objects, checkpoints, wall_clock=wall_clock).build(GATEWAY)
    built_s = time.perf_counter() - start
    pushes = PushService(buffer, wall_clock=wall_clock, sleep_ms=sleep_ms, chance=Randomness())
    for first in range(0, AFTER, _COMMIT_DELTAS):
        made = (_late(place) for place in range(first, min(first + _COMMIT_DELTAS, AFTER)))
        pushes.push(GATEWAY, Push("other", tuple(enumerate(made))))
    pulls = PullService(buffer, wall_clock=wall_clock, checkpoints=checkpoints)
    asyncio.set_event_loop(asyncio.new_event_loop())
    handler = lambda_handler(
        create_app(
            pull_routes(pulls),
            checkpoint_routes(CheckpointService(buffer, checkpoints)),
            access=Access(ItemAccess(MemoryItemStore()), wall_clock=wall_clock),
        )
    )
    server = HTTPServer(("127.0.0.1", 0), partial(_Handler, handler))
    _say(port=server.server_port, built_s=built_s)
    used = time.process_time()
    while not _Handler.is_done:
        server.handle_request()
    _say(peak_mb=peak_mb(), requests=_Handler.requests, cpu_s=time.process_time() - used)


def _late(place: int) -> Any:
    row, hlc = _row_id(place), stamp(time.time_ns() // 1_000_000, place)
    return make_delta(Op.UPDATE, TABLE, row, {"done": True}, client_id="other", hlc=hlc)


class _Handler(BaseHTTPRequestHandler):
    """API Gateway's part: a request as an event, an answer out of what the function gives."""

    protocol_version = "HTTP/1.1"
    requests = 0
    is_done = False

    def __init__(self, handler: Any, *request: Any) -> None:
        self._handler = handler
        super().__init__(*request)

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        _Handler.requests += 1
        if url.path == "/done":
            _Handler.is_done = True
            self.close_connection = True
            self._answer(204, {}, b"")
            return
        answered = self._handler(self._event(url.path, url.query), None)
        body = answered.get("body") or ""
        raw = base64.b64decode(body) if answered["isBase64Encoded"] else body.encode()
        self._answer(answered["statusCode"], answered["headers"], raw)

    def _answer(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.send_response(status)
        for name, value in headers.items():
            if name.lower() != "content-length":
                self.send_header(name, value)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _event(self, path: str, query: str) -> dict[str, Any]:
        claims = {"sub": "phone", "gw": GATEWAY, "role": "client", "exp": 1 << 40}
        return {
            "version": "2.0",
            "routeKey": "$default",
            "rawPath": path,
            "rawQueryString": query,
            "headers": {name.lower(): value for name, value in self.headers.items()},
            "requestContext": {
                "http": {"method": "GET", "path": path, "sourceIp": "127.0.0.1"},
                "requestId": "r",
                "stage": "$default",
                "authorizer": {"lambda": {"claims": json.dumps(claims)}},
            },
            "isBase64Encoded": False,
        }

    def log_message(self, *_: object) -> None:
        """Say nothing."""


# --- the client -----------------------------------------------------------------------------------


def sync(folder: Path, port: int) -> None:
    """Sync a new file until nothing is new."""
    from lakesync.client import Client  # noqa: PLC0415 - the server needs none of it
    from lakesync.client.http_transport import HttpTransport  # noqa: PLC0415

    url = f"http://127.0.0.1:{port}"
    with (
        HttpTransport(url, GATEWAY, token="of-nobody") as transport,  # noqa: S106 - it is not read
        Client(folder / "phone.db", client_id="phone", transport=transport) as client,
    ):
        start, used = time.perf_counter(), time.process_time()
        summary = client.pull().unwrap()
        seconds, cpu_s = time.perf_counter() - start, time.process_time() - used
        counted = client.query("SELECT count(*) AS rows FROM todos").unwrap()
        transport._http.get(f"{url}/done")  # noqa: SLF001 - the same connection
    _say(
        seconds=seconds,
        cpu_s=cpu_s,
        rows=counted[0]["rows"],
        pages=summary.pages,
        peak_mb=peak_mb(),
        file_mb=(folder / "phone.db").stat().st_size / _MB / _MB,
    )


if __name__ == "__main__":
    role, where, *more = sys.argv[1:]
    serve(Path(where)) if role == "serve" else sync(Path(where), int(more[0]))
