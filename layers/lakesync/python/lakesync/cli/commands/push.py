"""`lakesync push`: push deltas from a file, or a single edit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path  # noqa: TC003 - typer reads it
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import typer

from lakesync.cli.faults import FAILED, UsageFault
from lakesync.cli.files import objects_in, read_text
from lakesync.cli.session import Session, command
from lakesync.cli.single_edit import push_edit, values_of
from lakesync.core.plural import plural

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lakesync.core.delta import Delta
    from lakesync.core.messages import DeltaOutcome

BATCH_DELTAS: Final = 1_000
_REFUSED_SHOWN_MAX: Final = 10


@command
def push(
    session: Session,
    *,
    file: Annotated[
        str | None, typer.Argument(help="Deltas as JSON or NDJSON; - for standard input.")
    ] = None,
    table: Annotated[str | None, typer.Option(help="Make a single edit: its table.")] = None,
    row: Annotated[str | None, typer.Option(help="The edit's row id.")] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", help="Set a column: name=value, as JSON or else text. Repeatable."),
    ] = None,
    insert: Annotated[
        bool, typer.Option("--insert", help="Make the row exist; --set then sets its columns.")
    ] = False,
    delete: Annotated[bool, typer.Option("--delete", help="Delete the row.")] = False,
    database: Annotated[
        Path | None,
        typer.Option(help="The client's SQLite file, which keeps the edit while offline."),
    ] = None,
    atomic: Annotated[
        bool, typer.Option("--atomic", help="Commit everything atomically, or nothing.")
    ] = False,
) -> None:
    """Push deltas from a file, or a single edit, and print their outcome. Safe to repeat.

    In a file, op, table and rowId are required; columns may be an object; clientId, hlc and deltaId
    are filled in if absent. --set alone is an UPDATE: in a table where deletes win it makes no row,
    and if there is none, that is said. Exits with 1 if any delta was refused, or changed no row.

    Example:
      lakesync push --table todos --row t1 --insert --set title="Buy milk" --set done=false
      lakesync push - --client phone-1 < deltas.ndjson
    """
    if (file is None) == (table is None):
        raise UsageFault("give a file (or - for standard input), or --table and --row; not both")
    if file is not None:
        _push_file(session, file, atomic=atomic)
        return
    if not table or not row or bool(set_ or insert) == delete:
        raise UsageFault(
            "an edit needs --table, --row, and either --set name=value, --insert or --delete"
        )
    op = "DELETE" if delete else "INSERT" if insert else "UPDATE"
    push_edit(session, op, (table, row), values_of(set_ or ()), database)


# --- deltas of a file -----------------------------------------------------------------------------


class Pushed(NamedTuple):
    """The outcome of pushed deltas."""

    accepted: int
    duplicates: int
    refused: list[DeltaOutcome]
    server_hlc: int


def _push_file(session: Session, file: str, *, atomic: bool) -> None:
    items = _items(read_text(file), "standard input" if file == "-" else file)
    _speak_for_their_client(session, items)
    with session.out.progress(f"pushing {plural(len(items), 'delta')} …"):
        done = pushed(session, items, atomic=atomic)
    _report(session, done)


def pushed(session: Session, items: Sequence[Any], *, atomic: bool = False) -> Pushed:
    """Push deltas as `push` reads them from a file; returns their outcome."""
    from lakesync.core.messages import OutcomeKind, Push

    deltas = _deltas(session, items)
    transport = session.transport()
    accepted, duplicates, server_hlc = 0, 0, 0
    refused: list[DeltaOutcome] = []
    size = max(len(deltas), 1) if atomic else BATCH_DELTAS
    for start in range(0, len(deltas), size):
        part = tuple(enumerate(deltas[start : start + size]))
        receipt = transport.push(Push(session.client_id, part, atomic=atomic))
        accepted += receipt.accepted
        server_hlc = receipt.server_hlc
        for outcome in receipt.outcomes:
            if outcome.kind is OutcomeKind.DUPLICATE:
                duplicates += 1
            else:
                refused.append(replace(outcome, index=start + outcome.index))
    return Pushed(accepted, duplicates, refused, server_hlc)


def _items(text: str, name: str) -> list[Any]:
    """Read deltas as one JSON list, one push, one delta, or any of these a line."""
    return [item for value in objects_in(text, name) for item in _flat(value)]


def _flat(value: Any) -> list[Any]:
    if isinstance(value, list):
        return value
    if isinstance(value, dict) and isinstance(value.get("deltas"), list):
        deltas: list[Any] = value["deltas"]
        return deltas
    return [value]


def _speak_for_their_client(session: Session, items: Sequence[Any]) -> None:
    """Sign for the client whose deltas these are, where nothing else says who speaks."""
    named = {item["clientId"] for item in items if isinstance(item, dict) and "clientId" in item}
    if len(named) == 1:
        session.speak_for(str(named.pop()))


def _deltas(session: Session, items: Sequence[Any]) -> list[Delta]:
    import time

    from lakesync.core.clock import HybridLogicalClock
    from lakesync.errors import InvalidInput
    from lakesync.wire.json_delta import decode_delta

    clock = HybridLogicalClock()
    deltas = []
    for index, item in enumerate(items):
        if not isinstance(item, dict):
            raise UsageFault(f"delta {index} is not a JSON object")
        filled = {"clientId": session.client_id, **item}
        columns = filled.get("columns")
        if isinstance(columns, dict):
            filled["columns"] = [{"column": name, "value": columns[name]} for name in columns]
        if "hlc" not in filled:
            filled["hlc"] = str(clock.now(int(time.time() * 1000)))
        try:
            deltas.append(decode_delta(filled))
        except InvalidInput as error:
            error.field = f"deltas[{index}].{error.field}" if error.field else f"deltas[{index}]"
            raise
    return deltas


def _report(session: Session, done: Pushed) -> None:
    faults = [
        {
            "index": outcome.index,
            "deltaId": outcome.delta_id,
            "code": outcome.error.code if outcome.error else "",
            "error": outcome.error.message if outcome.error else "",
            "field": outcome.error.field if outcome.error else None,
        }
        for outcome in done.refused
    ]
    answer = {
        "accepted": done.accepted,
        "duplicates": done.duplicates,
        "refused": faults,
        "serverHlc": str(done.server_hlc),
    }
    already = f", of which {done.duplicates:,} were duplicates" if done.duplicates else ""
    for fault in [] if session.out.json_lines else faults[:_REFUSED_SHOWN_MAX]:
        session.out.note(f"refused: delta {fault['index']}: {fault['code']}: {fault['error']}")
    if len(faults) > _REFUSED_SHOWN_MAX and not session.out.json_lines:
        session.out.note(f"… and {len(faults) - _REFUSED_SHOWN_MAX:,} more: see --json")
    session.out.answer(answer, f"{plural(done.accepted, 'delta')} accepted{already}")
    if done.refused:
        raise typer.Exit(FAILED)
