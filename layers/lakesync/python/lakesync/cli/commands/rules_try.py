"""`lakesync rules try`: show the effect of sync rules on a client before they are saved."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlencode

import typer

from lakesync.cli.existence import must_exist
from lakesync.cli.faults import UsageFault
from lakesync.cli.files import read_json
from lakesync.cli.session import Session, command
from lakesync.core.plural import plural

if TYPE_CHECKING:
    from collections.abc import Mapping


@command
def try_(
    session: Session,
    *,
    file: Annotated[str, typer.Argument(help="A JSON file with buckets; - for standard input.")],
    as_: Annotated[
        str, typer.Option("--as", help="The token claims of the client, as a JSON object.")
    ],
) -> None:
    """Show what a client would see under the sync rules of a file; nothing is saved.

    For each table it shows how many rows the client would see, how many it sees now, and how many
    would enter or leave its device, with examples.

    Example:
      lakesync rules try rules.json --as '{"sub": "phone-1", "carriers": ["UA"]}'
    """
    query = urlencode({"dryRun": "true", "as": json.dumps(_claims(as_))})
    path = f"/admin/sync-rules/{session.connection.gateway}?{query}"
    must_exist(session)
    with session.out.progress("reading rows …"):
        tried = session.ask("POST", path, read_json(file))
    if session.out.json_lines:
        session.out.json(tried)
    else:
        _show(session, tried)


def _claims(text: str) -> dict[str, Any]:
    try:
        claims = json.loads(text)
    except ValueError:
        claims = None
    if not isinstance(claims, dict):
        raise UsageFault(f'--as {text[:40]!r} is not a JSON object: write \'{{"sub": "c1"}}\'')
    return claims


def _show(session: Session, tried: Mapping[str, Any]) -> None:
    out = session.out
    counted = [item for item in tried["tables"] if "seen" in item]
    rows = [
        (item["table"], item["seen"]["count"], item["inForce"], item["enter"]["count"],
         item["leave"]["count"], ", ".join(item["omitted"]) or None,
         None if item["complete"] else "not all rows were read")
        for item in counted
    ]  # fmt: skip
    out.table(("table", "would see", "sees now", "enter", "leave", "left out", "note"), rows)
    for item in counted:
        for what in ("enter", "leave"):
            _show_rows(session, item["table"], what, item[what])
    events = [item["table"] for item in tried["tables"] if item["append"]]
    if events:
        out.note(f"events are not counted: {', '.join(events)}")
    if not tried["complete"]:
        out.note("there are too many rows to read all of them in one request")


def _show_rows(session: Session, table: str, what: str, shown: Mapping[str, Any]) -> None:
    if not shown["rows"]:
        return
    names = sorted({name for row in shown["rows"] for name in row["columns"]})
    rows = [(row["rowId"], *(row["columns"].get(name) for name in names)) for row in shown["rows"]]
    left = shown["count"] - len(rows)
    more = f", of {shown['count']:,}" if left else ""
    session.out.text("")
    title = f"{table}: {plural(len(rows), 'row')} that would {what}{more}"
    session.out.table(("row", *names), rows, title=title)
