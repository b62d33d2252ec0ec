"""`lakesync push`, `pull` and `client`: a client's part in sync, done by hand.

`push` takes deltas from a file, or a single edit; `pull` reads all changes after a cursor.
"""

from __future__ import annotations

import contextlib
import json
import math
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import typer

from lakesync.analysis.connection import FAILED, LATER, UsageFault
from lakesync.cli.input_output import objects_in, read_text
from lakesync.cli.session import Session, command, must_exist
from lakesync.core.wording import plural

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from lakesync.client import Client
    from lakesync.core.delta import Delta
    from lakesync.core.merge import RowState
    from lakesync.core.messages import DeltaOutcome

# --- a single edit --------------------------------------------------------------------------------


DELTAS_READ_MAX: Final = 100_000
"""How much is read to see whether an updated row exists, unless a database has it already."""


def values_of(pairs: Sequence[str]) -> dict[str, object]:
    """Return the columns of ``name=value``: a value is JSON, or else text."""
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
    """Return what there is to say of an updated row: where deletes win, an update makes none."""
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


# --- push -----------------------------------------------------------------------------------------


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
    from lakesync.wire.jsonish import decode_delta

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


# --- pull -----------------------------------------------------------------------------------------


_SHOWN_MAX: Final = 40


@command
def pull(
    session: Session,
    *,
    since: Annotated[
        str, typer.Option(help="The cursor to continue from; 0 reads everything.")
    ] = "0",
    source: Annotated[
        str, typer.Option(help="Read this declared destination instead of the gateway.")
    ] = "",
    snapshot: Annotated[
        str, typer.Option(help="Continue in a source: the position printed by the previous pull.")
    ] = "",
    table: Annotated[str | None, typer.Option(help="Show only this table.")] = None,
    rows: Annotated[
        bool, typer.Option("--rows", help="Merge the deltas, and show the resulting rows.")
    ] = False,
    page: Annotated[int, typer.Option(help="Deltas per page.", min=1, max=10_000)] = (1_000),
) -> None:
    """Pull all changes after a cursor and print the deltas, or with --rows the merged rows.

    With --json it prints one delta per line, and the next cursor on standard error. --source reads
    a destination by the same sync rules. If a table is reported as read again, discard its rows
    from earlier pulls.

    Example:
      lakesync pull --rows --table todos
      lakesync pull --json --since 0 > deltas.ndjson
      lakesync pull --rows --source warehouse
    """
    if not since.isdigit():
        raise UsageFault(
            f"--since {since[:20]!r} is not a cursor: it is a number, 0 for everything"
        )
    if (source and since != "0") or (snapshot and not source):
        raise UsageFault("--since goes on from the gateway's pages, --snapshot from a source's")
    feed = Feed(session, int(since), page, source, snapshot)
    deltas = (delta for delta in feed if table is None or delta.table == table)
    if rows:
        _show_rows(session, feed, deltas)
    elif session.out.json_lines:
        for delta in deltas:
            session.out.json(delta_json(delta))
    else:
        _show_deltas(session, deltas)
    sys.stdout.flush()
    _say_where_it_ended(session, feed)


def _say_where_it_ended(session: Session, feed: Feed) -> None:
    if session.out.json_lines:
        at = {"snapshot": feed.snapshot} if feed.source else {"serverHlc": str(feed.cursor)}
        again = {"readAgain": sorted(feed.read_again)} if feed.read_again else {}
        session.out.note(json.dumps({**at, **again, "count": feed.count}))
        return
    on = f"--since {feed.cursor}"
    if feed.source:
        on = f"--source {feed.source} --snapshot {feed.snapshot}"
    if feed.read_again:
        names = ", ".join(sorted(feed.read_again))
        session.out.note(f"read again from the first row; discard earlier rows of: {names}")
    count = plural(feed.count, "delta")
    session.out.note(f"{count}; to continue from here: lakesync pull {on}")


class Feed:
    """Every delta after a cursor, page by page; ``cursor`` follows, or of a source ``snapshot``."""

    def __init__(
        self, session: Session, since: int, page_deltas: int, source: str = "", snapshot: str = ""
    ) -> None:
        self._session = session
        self._page_deltas = page_deltas
        self.source = source
        self.cursor = since
        self.snapshot = snapshot
        self.count = 0
        self.read_again: set[str] = set()
        """Tables that are read again: earlier rows of them are void."""
        self.on_read_again: Callable[[str], None] = lambda _: None

    def __iter__(self) -> Iterator[Delta]:
        from lakesync.core.clock import STAMP_MAX
        from lakesync.core.messages import Pull
        from lakesync.wire.records import decode_records

        transport, epoch, scope, more = self._session.transport(), "", "", True
        while more:
            at = Pull(
                self._session.client_id, self.cursor, self._page_deltas, epoch, self.snapshot,
                scope=scope,
            )  # fmt: skip
            if self.source:
                at = replace(at, since=0, source=self.source)
            else:
                at = replace(at, at_least=STAMP_MAX)
            page = transport.pull(at)
            if not (page.epoch or page.count or self.source):
                must_exist(self._session)
            for table in page.resync.tables if page.resync else ():
                self.read_again.add(table)
                self.on_read_again(table)
            for run in page.records:
                yield from decode_records(run)
            epoch, scope, more = page.epoch, page.scope, page.has_more
            self.snapshot = page.snapshot
            if self.source or not page.snapshot:
                self.cursor = page.cursor
            self.count += page.count


def _show_deltas(session: Session, deltas: Iterable[Delta]) -> None:
    shown: list[Delta] = []
    left_out = 0
    for delta in deltas:
        if len(shown) < _SHOWN_MAX:
            shown.append(delta)
        else:
            left_out += 1
    session.out.table(
        ("op", "table", "row", "columns", "client", "hlc"),
        [(d.op.name, d.table, d.row_id, _columns_text(d), d.client_id, str(d.hlc)) for d in shown],
    )
    if left_out:
        session.out.note(f"… and {left_out:,} more: see --json")


def delta_json(delta: Delta) -> dict[str, object]:
    """Return a delta in the wire's JSON format, which `lakesync push` reads."""
    return {
        "op": delta.op.name,
        "table": delta.table,
        "rowId": delta.row_id,
        "clientId": delta.client_id,
        "columns": [{"column": name, "value": json.loads(value)} for name, value in delta.columns],
        "hlc": str(delta.hlc),
        "deltaId": delta.delta_id,
    }


def _columns_text(delta: Delta) -> str:
    return " ".join(f"{name}={value.decode()}" for name, value in delta.columns)


def _show_rows(session: Session, feed: Feed, deltas: Iterable[Delta]) -> None:
    from lakesync.core.merge import EMPTY, apply, as_read, view

    states: dict[tuple[str, str], RowState] = {}
    delete_wins = {one.table for one in session.transport().schemas().tables if one.delete_wins}

    def forget(table: str) -> None:
        for key in [key for key in states if key[0] == table]:
            del states[key]

    feed.on_read_again = forget
    for delta in deltas:
        key = delta.table, delta.row_id
        states[key] = apply(states.get(key, EMPTY), delta)
    by_table: dict[str, list[dict[str, object]]] = {}
    for (table, row_id), state in sorted(states.items()):
        values_of = view(as_read(state, delete_wins=table in delete_wins))
        if values_of is not None:
            values = {name: json.loads(value) for name, value in sorted(values_of.items())}
            by_table.setdefault(table, []).append({"_row_id": row_id, **values})
    for table, rows in by_table.items():
        if session.out.json_lines:
            for row in rows:
                session.out.json({"table": table, **row})
        else:
            _show_table(session, table, rows)


def _show_table(session: Session, table: str, rows: Sequence[dict[str, object]]) -> None:
    names = list(dict.fromkeys(name for row in rows for name in row))
    session.out.table(
        names,
        [[row.get(name) for name in names] for row in rows[:_SHOWN_MAX]],
        title=f"{table}: {plural(len(rows), 'row')}",
    )
    if len(rows) > _SHOWN_MAX:
        session.out.note(f"… and {len(rows) - _SHOWN_MAX:,} more: see --json")


# --- client ---------------------------------------------------------------------------------------


@command
def move(
    session: Session,
    *,
    file: Annotated[Path, typer.Argument(help="The client's file; close the app first.")],
    keep: Annotated[
        str, typer.Option(help="edits: push what waits to the new gateway; nothing: give it up.")
    ] = "edits",
    yes: Annotated[bool, typer.Option("--yes", help="Do it; without this, only show it.")] = False,
) -> None:
    """Give a client's file to another gateway: the next one that it is opened with.

    A file belongs to the gateway that answered it first, and is refused by any other with
    ANOTHER_GATEWAY. Once it is moved, it reads everything of the new gateway, and rows that this
    one lacks go. Actions that have not ended become dead letters; conflicts go. Without --yes the
    command shows how many edits are concerned, and changes nothing.

    Example:
      lakesync client move app.db --keep edits --yes
    """
    from lakesync.client.resync import checked_keep, edits_to_move, rebind
    from lakesync.client.storage.file import open_file

    kept = checked_keep(keep)
    client_file = open_file(file, _client_id(file))
    with contextlib.closing(client_file.database), client_file.database.transaction():
        number = rebind(client_file, kept) if yes else edits_to_move(client_file)
    edits = plural(number, "edit")
    done = {"edits": "kept", "nothing": "given up"}[kept]
    sentence = (
        f"{edits} {done}; the file takes the next gateway that it is opened with"
        if yes
        else f"{edits} would be {done}; nothing was changed: pass --yes"
    )
    session.out.answer({"file": str(file), "edits": number, "keep": kept, "moved": yes}, sentence)


def _client_id(file: Path) -> str:
    import sqlite3

    try:
        uri = f"{file.absolute().as_uri()}?mode=ro"
        with contextlib.closing(sqlite3.connect(uri, uri=True)) as connection:
            (owner,) = connection.execute("SELECT client_id FROM _lakesync_sync").fetchone()
    except (sqlite3.Error, TypeError) as exc:
        raise UsageFault(
            f"{file} is no client's file, or it is encrypted or damaged ({exc}); an app moves an "
            "encrypted one with client.rebind()"
        ) from exc
    return str(owner)
