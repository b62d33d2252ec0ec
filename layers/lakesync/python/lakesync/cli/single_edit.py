"""One edit of one row from the command line, pushed by the client library."""

from __future__ import annotations

import json
import math
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final

import typer

from lakesync.cli.faults import FAILED, LATER, UsageFault
from lakesync.core.plural import plural

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lakesync.cli.session import Session
    from lakesync.client import Client

DELTAS_READ_MAX: Final = 100_000
"""How much is read to see whether an updated row exists, unless a database has it already."""


def values_of(pairs: Sequence[str]) -> dict[str, object]:
    """Return the columns of ``name=value``: a value is JSON, or else text.

    Raises:
        UsageFault: one has no name, or is a number that JSON does not know.
    """
    values: dict[str, object] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or not name:
            raise UsageFault(f"--set {pair[:40]!r} is not a column: write name=value")
        try:
            values[name] = json.loads(text)
        except ValueError:
            values[name] = text
        if not _is_json(values[name]):
            raise UsageFault(
                f"--set {pair[:40]!r}: NaN and infinity are no JSON: write {name}=null, or "
                f"{name}='\"NaN\"' for the text"
            )
    return values


def _is_json(value: object) -> bool:
    """Return whether a value that Python has read can be written: it also reads NaN and 1e999."""
    if isinstance(value, dict):
        return all(map(_is_json, value.values()))
    if isinstance(value, list):
        return all(map(_is_json, value))
    return not isinstance(value, float) or math.isfinite(value)


def push_edit(
    session: Session,
    op: str,
    key: tuple[str, str],
    values: dict[str, object],
    database: Path | None,
) -> None:
    """Push one edit, and print what came of it."""
    from lakesync.client import Client

    with ExitStack() as stack:
        path = database or Path(stack.enter_context(tempfile.TemporaryDirectory())) / "edit.db"
        transport = session.transport()
        client = stack.enter_context(
            Client(path, client_id=session.client_id, transport=transport, first_tables=[key[0]])
        )
        match op:
            case "DELETE":
                client.delete(*key).unwrap()
            case "INSERT":
                client.insert(*key, values).unwrap()
            case _:
                client.update(*key, values).unwrap()
        with session.out.progress("pushing …"):
            summary = client.push().unwrap()
            doubt = _doubt(session, client, key) if op == "UPDATE" and summary.accepted else ""
        refused, stopped = client.quarantined().unwrap(), client.status.stopped_edits
    for entry in refused:
        session.out.note(f"refused: {entry.code}: {entry.reason}")
    for edit in stopped:
        kept = f"it waits in {database}" if database else "it was not sent"
        session.out.note(f"stopped on its way: {edit.table} {edit.row_id}: {edit.reason}; {kept}")
    if doubt:
        session.out.note(doubt)
    answer: dict[str, object] = {
        "accepted": summary.accepted,
        "refused": [entry.code for entry in refused],
        "stopped": len(stopped),
    }
    session.out.answer(answer, f"{plural(summary.accepted, 'delta')} accepted")
    if refused or doubt:
        raise typer.Exit(FAILED)
    if stopped:
        raise typer.Exit(LATER)


def _doubt(session: Session, client: Client, key: tuple[str, str]) -> str:
    """Return what there is to say of the row that was updated: it may not exist.

    An update makes a row exist, except where deletes win.
    """
    from lakesync.core.names import folded

    table, row = key
    schemas = session.transport().schemas().tables
    if not any(each.delete_wins and folded(each.table) == folded(table) for each in schemas):
        return ""
    client.sync(stopped=lambda: client.status.received > DELTAS_READ_MAX).unwrap()
    if not client.status.has_synced:
        return (
            f"whether {table} has a row {row} was not read; if not, there is none now either: "
            "deletes win there, so make it with --insert"
        )
    if client.get(table, row).unwrap() is not None:
        return ""
    return (
        f"there is no row {row} in {table}, or it is hidden from {client.client_id}: deletes win "
        "there, so an update makes none; make it with --insert"
    )
