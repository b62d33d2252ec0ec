"""Run the example: two windows on a gateway in memory, or one on a gateway of yours.

::

    python -m examples.todos
    python -m examples.todos --url https://… --gateway acme --person ada    # LAKESYNC_TOKEN=…
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

from examples.todos.app import TodosApp
from lakesync.client import AsyncClient, HttpTransport
from lakesync.errors import LakeSyncError
from lakesync.testing.memory_gateway import MemoryGateway


def main() -> int:
    """Run until the person quits; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m examples.todos", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--url", help="a deployed gateway's address; without it one in memory")
    parser.add_argument(
        "--socket-url", default="", help="its WebSocket address: changes arrive at once"
    )
    parser.add_argument("--gateway", help="the gateway's id")
    parser.add_argument("--person", default="me", help="whose window it is, and its client id")
    parser.add_argument("--file", type=Path, help="the client's file; PERSON.db by default")
    given = parser.parse_args()
    try:
        return _two_windows() if given.url is None else _one_window(given)
    except LakeSyncError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def _two_windows() -> int:
    with tempfile.TemporaryDirectory() as folder, MemoryGateway(folder) as gateway:
        TodosApp({name: gateway.async_client(name) for name in ("ada", "bob")}).run()
    return 0


def _one_window(given: argparse.Namespace) -> int:
    token = os.environ.get("LAKESYNC_TOKEN")
    if not given.gateway or not token:
        print("error: name the --gateway, and put a token in LAKESYNC_TOKEN", file=sys.stderr)
        return 2
    transport = HttpTransport(
        given.url, gateway=given.gateway, token=token, socket_url=given.socket_url
    )
    file = given.file or Path(f"{given.person}.db")
    TodosApp({given.person: AsyncClient(file, client_id=given.person, transport=transport)}).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
