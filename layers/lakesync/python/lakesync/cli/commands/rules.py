"""`lakesync rules put` and `lakesync rules show`: who sees and writes which rows."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from lakesync.cli.files import read_json
from lakesync.cli.session import Session, command


@command
def put(
    session: Session,
    *,
    file: Annotated[str, typer.Argument(help="A JSON file with buckets; - for standard input.")],
) -> None:
    """Put sync rules in force, for every push and pull from now on.

    Tables and columns that they name must be registered. All faults are named at once.

    Example:
      lakesync rules put rules.json
      echo '{"buckets": []}' | lakesync rules put -
    """
    body = read_json(file)
    saved = session.ask("POST", f"/admin/sync-rules/{session.connection.gateway}", body)
    buckets = body.get("buckets", ()) if isinstance(body, dict) else ()
    session.out.answer(saved, f"in force, buckets: {len(buckets)}")


@command
def show(session: Session) -> None:
    """Show the sync rules in force, as they can be put again.

    Example:
      lakesync rules show > rules.json
    """
    held = session.ask("GET", f"/admin/sync-rules/{session.connection.gateway}")
    session.out.answer(held, json.dumps(held, indent=2))
