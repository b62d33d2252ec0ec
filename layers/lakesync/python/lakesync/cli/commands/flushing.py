"""`lakesync flushing`: how often a gateway is flushed, and from how much on."""

from __future__ import annotations

import json
from typing import Annotated, Final

import typer

from lakesync.cli.existence import must_exist
from lakesync.cli.files import read_json
from lakesync.cli.session import Session, command

_NOTHING: Final = {"everyS": 0, "bytes": 0, "tables": {}, "flushFormat": "parquet"}


@command
def show(session: Session) -> None:
    """Print when the gateway is flushed, in the form that `lakesync flushing put` accepts.

    A 0 stands for what the stack has: its schedule, or its threshold.

    Example:
      lakesync flushing show
    """
    declared = session.ask("GET", f"/admin/flushing/{session.connection.gateway}")
    must_exist(session, declared != _NOTHING)
    session.out.text(json.dumps(declared, indent=None if session.out.json_lines else 2))


@command
def put(
    session: Session,
    *,
    file: Annotated[
        str,
        typer.Argument(
            help="A JSON file with everyS, bytes, tables, flushFormat; - for standard input."
        ),
    ],
) -> None:
    """Declare when the gateway is flushed. Safe to repeat.

    Few commits wait up to `everyS` seconds, and not only until the schedule's next run. From
    `bytes` on, nothing waits; a table is flushed before the others from its bytes in `tables` on.
    With "flushFormat": "json" people can read the objects of batches. What the file leaves out is
    as the stack has it.

    Example:
      lakesync flushing put flushing.json
      echo '{"everyS": 1800, "tables": {"todos": 200000}}' | lakesync flushing put -
    """
    body = read_json(file)
    saved = session.ask("POST", f"/admin/flushing/{session.connection.gateway}", body)
    every, size, budgets = saved["everyS"], saved["bytes"], saved["tables"]
    session.out.answer(
        saved,
        f"in force: flushed {f'every {every} s' if every else 'by the schedule'}, "
        f"{f'from {size} bytes on' if size else 'from the threshold of the stack on'}, "
        f"tables with a budget: {len(budgets)}, objects in {saved['flushFormat']}",
    )
