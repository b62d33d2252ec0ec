"""`lakesync history`: all earlier values of a row, who wrote each, and when."""

from __future__ import annotations

import json
from pathlib import Path  # noqa: TC003 - typer looks at it when the command is made
from typing import TYPE_CHECKING, Annotated, Final

import typer

from lakesync.cli.cells import Cell, cells, instant, moment_text
from lakesync.cli.existence import must_exist_in_stack
from lakesync.cli.session import Session, command
from lakesync.core.names import CHANGES_SUFFIX
from lakesync.core.plural import plural
from lakesync.errors import LakeSyncError, NotFound

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from lakesync.cli.changes import LakeChanges, Tail
    from lakesync.core.clock import Stamp
    from lakesync.core.delta import Delta

_SHOWN_MAX: Final = 200
_COLUMNS: Final = ("committed", "client", "op", "column", "before", "after", "effect", "made")


@command
def history(
    session: Session,
    *,
    table: Annotated[str, typer.Argument(help="The row's table.")],
    row: Annotated[str, typer.Argument(help="The row's id.")],
    column: Annotated[
        list[str] | None, typer.Option(help="Show only this column. Repeatable.")
    ] = None,
    lake_only: Annotated[
        bool, typer.Option("--lake-only", help="Read only the lake, without unflushed commits.")
    ] = False,
    to: Annotated[
        Path | None,
        typer.Option(help="Write the cells to a file: .csv, .json, .parquet or .arrow."),
    ] = None,
) -> None:
    """Show all writes to a row: who wrote which value, when, and which value it replaced.

    "committed" is when the write became visible to others, "made" the time at the client that wrote
    it, which is earlier if it was offline. Of two writes the later-made wins, so a late-arriving
    write may be "lost". Reads the lake, and the log for newer commits. Needs AWS credentials.

    Example:
      lakesync history flights UA1545-2013-01-01
      lakesync history todos t1 --column title --to t1.csv
    """
    from lakesync.cli.changes import LakeChanges
    from lakesync.cli.lake import Lake
    from lakesync.cli.rows_file import check_format

    if to is not None:
        check_format(to)
    gateway = session.connection.gateway
    with session.out.progress("reading the lake …"):
        lake = Lake(session.aws, gateway)
        changes = LakeChanges(lake, table)
        tail = None if lake_only else tail_of(session, changes, row)
        placed = changes.of_row(row) + list(tail.deltas if tail else ())
    if not placed:
        check_table(session, lake.names(), changes, tail)
        note_missing(session, changes, tail)
        raise NotFound(
            f"no row {row} of {changes.table} was ever written; ids are compared as they are"
        )
    wanted = {name.lower() for name in column or ()}
    past = cells(placed, delete_wins=changes.delete_wins(tail))
    shown = [cell for cell in past if not wanted or (cell.column or "").lower() in wanted]
    _answer(session, shown, changes.until, to)
    _note(session, changes, tail, lake_only=lake_only)


def tail_of(session: Session, changes: LakeChanges, row: str | None = None) -> Tail | None:
    """Read a table's deltas that are only in the log; None, and a note, if that fails."""
    from lakesync.cli.changes import read_tail
    from lakesync.cli.commands.gateways import stores

    def wants(delta: Delta) -> bool:
        is_row = row is None or delta.row_id == row
        return is_row and delta.table.lower() == changes.table.lower()

    try:
        buffer, _ = stores(session)
        return read_tail(buffer, session.connection.gateway, changes.until, wants)
    except LakeSyncError as error:
        session.out.note(f"the log could not be read: {error.message}")
        return None


def _answer(session: Session, shown: Sequence[Cell], mark: Stamp, to: Path | None) -> None:
    from lakesync.cli.rows_file import write_rows

    if to is None:
        _show(session, shown, mark)
        return
    write_rows(as_arrow(shown).to_reader(), to)
    done = {"cells": len(shown), "file": str(to)}
    session.out.answer(done, f"{plural(len(shown), 'cell')} written to {to}")


def _show(session: Session, shown: Sequence[Cell], mark: Stamp) -> None:
    if session.out.json_lines:
        for cell in shown:
            session.out.json(_json(cell, mark))
        return
    rows = [_shown(cell) for cell in shown[-_SHOWN_MAX:]]
    session.out.table(_COLUMNS, rows)
    rest = f", the last {_SHOWN_MAX} shown: see --json, or --to"
    session.out.note(f"{plural(len(shown), 'cell')}{rest if len(shown) > _SHOWN_MAX else ''}")


def _shown(cell: Cell) -> tuple[str | None, ...]:
    delta = cell.delta
    who = (moment_text(cell.commit), delta.client_id, delta.op.name, cell.column)
    return (*who, _text(cell.before), _text(cell.after), cell.effect, moment_text(delta.hlc))


def _json(cell: Cell, mark: Stamp) -> dict[str, object]:
    """Return a cell as JSON; an absent value has no key."""
    values = {"before": cell.before, "after": cell.after}
    return {
        "commit": str(cell.commit),
        "committedAt": instant(cell.commit).isoformat(),
        "hlc": str(cell.delta.hlc),
        "madeAt": instant(cell.delta.hlc).isoformat(),
        "clientId": cell.delta.client_id,
        "op": cell.delta.op.name,
        "column": cell.column,
        **{name: json.loads(value) for name, value in values.items() if value is not None},
        "effect": cell.effect,
        "source": "lake" if cell.commit <= mark else "log",
    }


def as_arrow(shown: Sequence[Cell]) -> pa.Table:
    """Return cells as a table; values are JSON text, and NULL if absent."""
    import pyarrow as pa

    time = pa.timestamp("ms", "UTC")
    text = pa.string()
    columns = {
        "commit": (pa.int64(), [cell.commit for cell in shown]),
        "committed_at": (time, [instant(cell.commit) for cell in shown]),
        "hlc": (pa.int64(), [cell.delta.hlc for cell in shown]),
        "made_at": (time, [instant(cell.delta.hlc) for cell in shown]),
        "client_id": (text, [cell.delta.client_id for cell in shown]),
        "op": (text, [cell.delta.op.name for cell in shown]),
        "column": (text, [cell.column for cell in shown]),
        "before": (text, [_text(cell.before) for cell in shown]),
        "after": (text, [_text(cell.after) for cell in shown]),
        "effect": (text, [cell.effect for cell in shown]),
    }
    return pa.table({name: pa.array(values, kind) for name, (kind, values) in columns.items()})


def _note(session: Session, changes: LakeChanges, tail: Tail | None, *, lake_only: bool) -> None:
    """Print a note about commits that the answer lacks."""
    if tail is None:
        until = moment_text(changes.until) if changes.until else "the beginning"
        why = "" if lake_only else ": see above"
        session.out.note(f"not included: commits since {until}{why}")
    note_missing(session, changes, tail)


def note_missing(session: Session, changes: LakeChanges, tail: Tail | None) -> None:
    """Print a note if commits are missing: trimmed from the log, and not in the lake yet."""
    if tail is None or tail.trimmed <= changes.until:
        return
    until = moment_text(changes.until) if changes.until else "the beginning"
    session.out.note(
        f"not included: commits from {until} to {moment_text(tail.trimmed)}, which are no longer "
        "in the log and not in the lake yet: see `lakesync lake status`"
    )


def check_table(
    session: Session, names: Sequence[str], changes: LakeChanges, tail: Tail | None
) -> None:
    """Check that a table exists, in the lake or at the gateway.

    Raises:
        NotFound: it does not, and the message lists the tables that exist; or there is no such
            gateway.
    """
    known = tail.tables if tail else frozenset()
    if changes.exists or changes.table.lower() in {name.lower() for name in known}:
        return
    must_exist_in_stack(session, names, known)
    tables = sorted(known | {name.removesuffix(CHANGES_SUFFIX) for name in names})
    raise NotFound(f"there is no table {changes.table}; tables: {', '.join(tables) or 'none yet'}")


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode()
