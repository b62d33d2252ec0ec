"""`lakesync query`, `history` and `diff`: what a table's rows are, were, and how they changed."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path  # noqa: TC003 - typer looks at it when the command is made
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

import typer

from lakesync.analysis.connection import UsageFault
from lakesync.analysis.past import Cell, as_of, cells, instant, last_commit, moment_text
from lakesync.analysis.past import as_of as read_as_of
from lakesync.cli.session import Session, command, must_exist_in_stack
from lakesync.core.names import CHANGES_SUFFIX
from lakesync.core.wording import plural
from lakesync.errors import LakeSyncError, NotFound

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import pyarrow as pa

    from lakesync.analysis.lake import Lake
    from lakesync.analysis.lake_queries import LakeChanges, RowDiff, Tables, Tail
    from lakesync.analysis.past import AsOf
    from lakesync.core.clock import Stamp
    from lakesync.core.delta import Delta

# --- query ----------------------------------------------------------------------------------------


_SHOWN_MAX: Final = 200
_Changes = Annotated[
    bool, typer.Option("--changes", help="Query each table's history, delta by delta.")
]
_Shared = Annotated[
    bool, typer.Option("--shared", help="Query tables that are shared by several gateways.")
]

_LakeOnly = Annotated[
    bool, typer.Option("--lake-only", help="Read only the lake, without unflushed commits.")
]


@command
def query(
    session: Session,
    sql: Annotated[str, typer.Argument(help="The query, in DuckDB's SQL.")],
    *,
    as_of: Annotated[
        str | None,
        typer.Option(help="Read tables as of a time (ISO-8601), a snapshot id, or a commit stamp."),
    ] = None,
    all_columns: Annotated[
        bool,
        typer.Option("--all-columns", help="Include LakeSync's own columns, and deleted rows."),
    ] = False,
    changes: _Changes = False,
    shared: _Shared = False,
    to: Annotated[
        Path | None,
        typer.Option(help="Write the rows to a file: .csv, .json, .parquet or .arrow."),
    ] = None,
) -> None:
    """Run a SQL query on the gateway's Iceberg tables; each synced table is a view of its name.

    PyIceberg reads from S3 only the columns that the query names and the files that its filters
    select, and DuckDB computes on this machine. Nothing in the lake is changed. Needs AWS
    credentials. The table todos__changes has the history of todos, delta by delta. --shared: see
    lakesync lake share.

    Example:
      lakesync query "select origin, count(*) as flights from flights group by origin"
      lakesync query "select * from todos" --as-of 2026-11-21T10:00:00Z
      lakesync query "select * from flights where day = '2013-01-01'" --to day.parquet
      lakesync query "select _gateway, count(*) from flights group by 1" --shared
    """
    from lakesync.analysis.lake_queries import run
    from lakesync.cli.input_output import check_format, write_rows

    moment = None if as_of is None else read_as_of(as_of)
    if to is not None:
        check_format(to)
    with session.out.progress("reading the lake …"):
        lake = _tables(session, shared=shared, changes=changes)
        answer = run(lake, sql, moment, all_columns=all_columns, changes=changes)
    if to is not None:
        write_rows(answer.to_reader(), to)
        done = {"rows": answer.num_rows, "file": str(to)}
        session.out.answer(done, f"{plural(answer.num_rows, 'row')} written to {to}")
    else:
        _show_rows(session, answer)


def _tables(session: Session, *, shared: bool, changes: bool) -> Tables:
    from lakesync.analysis.lake import Lake
    from lakesync.analysis.shared_lake import shared_lake

    if shared and changes:
        raise UsageFault("gateways share rows, not histories: pass --shared or --changes")
    if shared:
        return shared_lake(session.aws)
    lake = Lake(session.aws, session.connection.gateway)
    must_exist_in_stack(session, lake.names())
    return lake


def _show_rows(session: Session, answer: pa.Table) -> None:
    columns = answer.column_names
    rows = list(zip(*(column.to_pylist() for column in answer.columns), strict=True))
    if session.out.json_lines:
        for row in rows:
            session.out.json(dict(zip(columns, row, strict=True)))
        return
    session.out.table(columns, rows[:_SHOWN_MAX])
    rest = f", {_SHOWN_MAX} shown: see --json, or --to" if len(rows) > _SHOWN_MAX else ""
    session.out.note(f"{plural(len(rows), 'row')}{rest}")


# --- history --------------------------------------------------------------------------------------


_CELL_COLUMNS: Final = ("committed", "client", "op", "column", "before", "after", "effect", "made")


@command
def history(
    session: Session,
    *,
    table: Annotated[str, typer.Argument(help="The row's table.")],
    row: Annotated[str, typer.Argument(help="The row's id.")],
    column: Annotated[
        list[str] | None, typer.Option(help="Show only this column. Repeatable.")
    ] = None,
    lake_only: _LakeOnly = False,
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
    from lakesync.analysis.lake import Lake
    from lakesync.analysis.lake_queries import LakeChanges
    from lakesync.cli.input_output import check_format

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
    from lakesync.analysis.lake_queries import read_tail
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
    from lakesync.cli.input_output import write_rows

    if to is None:
        _show(session, shown, mark)
        return
    write_rows(cells_as_arrow(shown).to_reader(), to)
    done = {"cells": len(shown), "file": str(to)}
    session.out.answer(done, f"{plural(len(shown), 'cell')} written to {to}")


def _show(session: Session, shown: Sequence[Cell], mark: Stamp) -> None:
    if session.out.json_lines:
        for cell in shown:
            session.out.json(_json(cell, mark))
        return
    rows = [_shown(cell) for cell in shown[-_SHOWN_MAX:]]
    session.out.table(_CELL_COLUMNS, rows)
    rest = f", the last {_SHOWN_MAX} shown: see --json, or --to"
    session.out.note(f"{plural(len(shown), 'cell')}{rest if len(shown) > _SHOWN_MAX else ''}")


def _shown(cell: Cell) -> tuple[str | None, ...]:
    delta = cell.delta
    who = (moment_text(cell.commit), delta.client_id, delta.op.name, cell.column)
    return (*who, _text(cell.before), _text(cell.after), cell.effect, moment_text(delta.hlc))


def _json(cell: Cell, mark: Stamp) -> dict[str, object]:
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


def cells_as_arrow(shown: Sequence[Cell]) -> pa.Table:
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
    """Check that a table exists, in the lake or at the gateway."""
    known = tail.tables if tail else frozenset()
    if changes.exists or changes.table.lower() in {name.lower() for name in known}:
        return
    must_exist_in_stack(session, names, known)
    tables = sorted(known | {name.removesuffix(CHANGES_SUFFIX) for name in names})
    raise NotFound(f"there is no table {changes.table}; tables: {', '.join(tables) or 'none yet'}")


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode()


# --- diff -----------------------------------------------------------------------------------------


_DIFF_COLUMNS: Final = ("change", "_id", "column", "before", "after")
_BATCH_CELLS: Final = 10_000

DiffCell = tuple[str, str, str | None, str | None, str | None]


@command
def diff(
    session: Session,
    *,
    table: Annotated[str, typer.Argument(help="The table.")],
    from_: Annotated[
        str, typer.Option("--from", help="A time (ISO-8601), a snapshot id, or a commit stamp.")
    ],
    to: Annotated[
        str | None,
        typer.Option("--to", help="The later point in time, in the same form; by default now."),
    ] = None,
    lake_only: _LakeOnly = False,
    file: Annotated[
        Path | None,
        typer.Option(
            "--file", help="Write to a file, one cell a row: .csv, .json, .parquet or .arrow."
        ),
    ] = None,
) -> None:
    """Show the rows that were inserted, deleted or changed between two points in time.

    Each side is the state after the last commit by then, however long ago: it reads the lake's
    changes table, and the log for unflushed commits. A null column equals an absent one. With
    --json or --file, rows are written as they are compared, in bounded memory. Needs AWS
    credentials.

    Example:
      lakesync diff flights --from 2026-11-20 --to 2026-11-21T10:00:00Z
      lakesync diff todos --from 2026-11-20 --file todos.parquet
    """
    from lakesync.cli.input_output import check_format

    if file is not None:
        check_format(file)
    moments = as_of(from_, "--from"), None if to is None else as_of(to, "--to")
    with session.out.progress("reading the lake …"):
        opened_table = opened(session, table, lake_only=lake_only)
    _compare(session, opened_table, moments, file)


def _compare(
    session: Session, table: Opened, moments: tuple[AsOf, AsOf | None], file: Path | None
) -> None:
    from lakesync.analysis.lake_queries import pasts, row_diffs
    from lakesync.cli.input_output import write_rows

    counts, shown = Counts(), Shown()
    lake, changes, tail = table
    with session.out.progress("comparing rows …"):
        after, until = span_of(lake, moments, changes, tail)
        with pasts(changes, tail.deltas if tail else (), (after, until)) as rows:
            diffs = counts.counted(
                row_diffs(
                    rows,
                    lambda one: one.position.commit <= after,
                    delete_wins=changes.delete_wins(tail),
                )
            )
            if file is not None:
                write_rows(diffs_as_arrow(diffs), file)
            elif session.out.json_lines:
                for row in diffs:
                    session.out.json(as_json(row))
            else:
                shown = Shown.of(diffs)
    if file is not None:
        session.out.answer({**counts.of, "file": str(file)}, f"{counts.sentence}: see {file}")
    elif not session.out.json_lines:
        shown.print(session)
    session.out.note(f"{counts.sentence}, up to {moment_text(until)}")
    note_missing(session, changes, tail)


class Opened(NamedTuple):
    """The lake, its deltas of a table, and the newer ones in the log."""

    lake: Lake
    changes: LakeChanges
    tail: Tail | None


def opened(session: Session, table: str, *, lake_only: bool = False) -> Opened:
    from lakesync.analysis.lake import Lake
    from lakesync.analysis.lake_queries import LakeChanges

    lake = Lake(session.aws, session.connection.gateway)
    changes = LakeChanges(lake, table)
    tail = None if lake_only else tail_of(session, changes)
    check_table(session, lake.names(), changes, tail)
    return Opened(lake, changes, tail)


def span_of(
    lake: Lake, moments: tuple[AsOf, AsOf | None], changes: LakeChanges, tail: Tail | None
) -> tuple[Stamp, Stamp]:
    """Return the span of commits between two points in time, at most up to what can be read."""
    after = commit_of(lake, moments[0])
    until = changes.until if tail is None else max(tail.until, changes.until)
    if moments[1] is None:
        return after, until
    wanted = commit_of(lake, moments[1])
    if wanted < after:
        raise UsageFault("--to is before --from: swap them")
    return after, min(until, wanted)


def commit_of(lake: Lake, wanted: AsOf) -> Stamp:
    """Return the last commit at a point in time, or of any table's snapshot."""
    from lakesync.analysis.lake import history

    return last_commit(wanted, (history(lake.table(name)) for name in lake.names()))


class Counts:
    """How many rows were inserted, deleted and changed."""

    def __init__(self) -> None:
        self.of = {"inserted": 0, "deleted": 0, "changed": 0}

    def counted(self, diffs: Iterable[RowDiff]) -> Iterator[RowDiff]:
        for row in diffs:
            self.of[row.change] += 1
            yield row

    @property
    def sentence(self) -> str:
        rows = plural(self.of["inserted"], "row")
        return f"{rows} inserted, {self.of['deleted']:,} deleted, {self.of['changed']:,} changed"


class Shown(NamedTuple):
    """The cells that are shown to people."""

    cells: Sequence[DiffCell] = ()
    more: int = 0

    @classmethod
    def of(cls, diffs: Iterable[RowDiff]) -> Shown:
        cells = cells_of(diffs)
        return cls(list(islice(cells, _SHOWN_MAX)), sum(1 for _ in cells))

    def print(self, session: Session) -> None:
        if self.cells:
            session.out.table(_DIFF_COLUMNS, self.cells)
        if self.more:
            session.out.note(f"… and {plural(self.more, 'cell')} more: see --json, or --file")


def cells_of(diffs: Iterable[RowDiff]) -> Iterator[DiffCell]:
    """Yield each column that differs; a row without columns gives one cell without a name."""
    for row in diffs:
        before, after = row.before or {}, row.after or {}
        names: list[str | None] = [*row.columns] or [None]
        for name in names:
            values = (_text(columns.get(name or "")) for columns in (before, after))
            yield (row.change, row.row_id, name, *values)  # type: ignore[misc]  # two of them


def as_json(row: RowDiff) -> dict[str, object]:
    sides = {"before": row.before, "after": row.after}
    return {
        "change": row.change,
        "rowId": row.row_id,
        **{
            side: {name: json.loads(columns[name]) for name in row.columns if name in columns}
            for side, columns in sides.items()
            if columns is not None
        },
    }


def diffs_as_arrow(diffs: Iterable[RowDiff]) -> pa.RecordBatchReader:
    """Stream differences, a cell a row; values are JSON text, and NULL if absent."""
    import pyarrow as pa

    schema = pa.schema([(name, pa.string()) for name in _DIFF_COLUMNS])
    cells = cells_of(diffs)

    def batches() -> Iterator[pa.RecordBatch]:
        while part := list(islice(cells, _BATCH_CELLS)):
            columns = [pa.array(values, pa.string()) for values in zip(*part, strict=True)]
            yield pa.RecordBatch.from_arrays(columns, schema=schema)

    return pa.RecordBatchReader.from_batches(schema, batches())
