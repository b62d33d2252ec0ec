"""README's table of prices: what `lakesync cost` says of some descriptions.

``python -m tests.support.price_table`` renews it; ``tests/cli/test_cost.py`` fails until it is run.
"""

from __future__ import annotations

import json
import re

from typer.testing import CliRunner

from lakesync.cli.app import app
from tests.support.repository import ROOT

README = ROOT / "README.md"
COMMAND = "python -m tests.support.price_table"
ROWS = (
    ("an idle stack, with all alarms", "--devices 0"),
    ("100 devices in real time", "--devices 100 --receivers 9"),
    ("10,000 devices in real time", "--devices 10000 --receivers 9"),
    ("10,000 devices that poll every minute",
     "--devices 10000 --receivers 9 --mode polling --poll-every-s 60"),
    ("10,000 devices that push 10 edits at a time",
     "--devices 10000 --receivers 9 --edits-per-push 10"),
    ("10 tenants with 3 tables in the lake",
     "--devices 100 --tenants 10 --tables 3 --lake small-batches"),
    ("1,000 tenants with 3 tables in the lake",
     "--devices 10000 --tenants 1000 --tables 3 --lake small-batches"),
)  # fmt: skip
TABLE = re.compile(r"\| a month of \|.*?\n\n", re.DOTALL)


def price_table() -> str:
    lines = ["| a month of | `lakesync cost` | $ | of it in any case |", "|---|---|---:|---:|"]
    for words, options in ROWS:
        answer = json.loads(CliRunner().invoke(app, ["cost", *options.split(), "--json"]).stdout)
        usd, floor = answer["usd"], answer["floorUsd"]
        lines.append(f"| {words} | `{options}` | {usd:,.2f} | {floor:,.2f} |")
    return "\n".join(lines) + "\n\n"


def written(text: str) -> str:
    return TABLE.sub(lambda _: price_table(), text, count=1)


if __name__ == "__main__":
    README.write_text(written(README.read_text("utf-8")), "utf-8")
