"""Files that a command is given."""

from __future__ import annotations

import json
import sys

from lakesync.cli.faults import UsageFault


def read_json(file: str) -> object:
    """Give what a JSON file holds; ``-`` is standard input.

    Raises:
        UsageFault: it is not JSON.
        OSError: it cannot be read.
    """
    if file == "-":
        text = sys.stdin.read()
    else:
        with open(file, encoding="utf-8") as source:  # noqa: PTH123 - as the shell names it
            text = source.read()
    try:
        return json.loads(text)
    except ValueError as exc:
        raise UsageFault(f"{file} is not JSON: {exc}") from exc
