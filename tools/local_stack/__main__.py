"""The command: `python -m tools.local_stack up | down | status | warm | java-home`."""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict
from pathlib import Path

from tools.local_stack import paths
from tools.local_stack.binaries import MARIADB, POSTGRES, ensure_binaries
from tools.local_stack.class_archive import ensure_archive
from tools.local_stack.errors import LocalStackError
from tools.local_stack.java import java_home
from tools.local_stack.stack import PORT, STACK, down, status, up
from tools.uv import explain

_INTERRUPTED = 130


def main(arguments: list[str]) -> int:
    """Run one command; 0 when it did what its name says (`status`: when a stack runs)."""
    parser = argparse.ArgumentParser(prog="python -m tools.local_stack", description=__doc__)
    parser.add_argument("command", choices=("up", "down", "status", "warm", "java-home"))
    parser.add_argument("--folder", type=Path, default=paths.LOCAL, help="this stack's own folder")
    parser.add_argument("--port", type=int, default=PORT, help="the emulator's port")
    parser.add_argument("--stack", default=STACK, help="the CloudFormation stack's name")
    options = parser.parse_args(arguments)
    try:
        return _run(options.command, options.folder.resolve(), options.port, options.stack)
    except LocalStackError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        sentence = explain(str(error), f"finish `{options.command}`", fetches=False)
        print(f"error: {sentence}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(
            "\ninterrupted: `make up` goes on from here, `make down` stops what runs.",
            file=sys.stderr,
        )
        return _INTERRUPTED


def _run(command: str, folder: Path, port: int, name: str) -> int:
    started = time.monotonic()
    if command == "java-home":
        print(java_home())
        return 0
    if command == "warm":
        ensure_archive()
        ensure_binaries(POSTGRES)
        ensure_binaries(MARIADB)
        return 0
    if command == "up":
        stack = up(folder, port=port, stack=name)
        print(f"stack {stack.stack}: up after {time.monotonic() - started:.1f} s")
        print(f"  gateway  {stack.http}\n  sockets  {stack.sockets}\n  AWS      {stack.endpoint}")
        print(f"  details  {folder / 'stack.json'}")
        return 0
    if command == "down":
        print("stack: stopped" if down(folder) else "stack: nothing was running")
        return 0
    record = status(folder)
    print(json.dumps(asdict(record), indent=2) if record else "stack: not running (start: make up)")
    return 0 if record else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
