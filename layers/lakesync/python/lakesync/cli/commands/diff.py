"""`lakesync diff`: the rows of a table that changed between two points in time."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path  # noqa: TC003 - typer looks at it when the command is made
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

import typer

from lakesync.cli.asof import as_of, last_commit
from lakesync.cli.cells import moment_text
from lakesync.cli.faults import UsageFault
from lakesync.cli.session import Session, command
from lakesync.core.plural import plural

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import pyarrow as pa

    from lakesync.cli.asof import AsOf
    from lakesync.cli.changes import LakeChanges, Tail
    from lakesync.cli.lake import Lake
    from lakesync.cli.rows_past import RowDiff
    from lakesync.core.clock import Stamp

_SHOWN_MAX: Final = 200
_COLUMNS: Final = ("change", "_id", "column", "before", "after")
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
    lake_only: Annotated[
        bool, typer.Option("--lake-only", help="Read only the lake, without unflushed commits.")
    ] = False,
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
    from lakesync.cli.rows_file import check_format

    if file is not None:
        check_format(file)
    moments = as_of(from_, "--from"), None if to is None else as_of(to, "--to")
    with session.out.progress("reading the lake …"):
        opened_table = opened(session, table, lake_only=lake_only)
    _compare(session, opened_table, moments, file)


def _compare(
    session: Session, table: Opened, moments: tuple[AsOf, AsOf | None], file: Path | None
) -> None:
    """Print or write the differences between two points in time."""
    from lakesync.cli.commands.history import note_missing
    from lakesync.cli.rows_file import write_rows
    from lakesync.cli.rows_past import pasts, row_diffs

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
                write_rows(as_arrow(diffs), file)
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
    """Open the places where all deltas of a table are.

    Raises:
        NotFound: there is no such table, or no such gateway.
    """
    from lakesync.cli.changes import LakeChanges
    from lakesync.cli.commands.history import check_table, tail_of
    from lakesync.cli.lake import Lake

    lake = Lake(session.aws, session.connection.gateway)
    changes = LakeChanges(lake, table)
    tail = None if lake_only else tail_of(session, changes)
    check_table(session, lake.names(), changes, tail)
    return Opened(lake, changes, tail)


def span_of(
    lake: Lake, moments: tuple[AsOf, AsOf | None], changes: LakeChanges, tail: Tail | None
) -> tuple[Stamp, Stamp]:
    """Return the span of commits between two points in time, at most up to what can be read.

    Raises:
        UsageFault: the second is before the first.
    """
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
    from lakesync.cli.lake import history

    return last_commit(wanted, (history(lake.table(name)) for name in lake.names()))


class Counts:
    """How many rows were inserted, deleted and changed."""

    def __init__(self) -> None:
        self.of = {"inserted": 0, "deleted": 0, "changed": 0}

    def counted(self, diffs: Iterable[RowDiff]) -> Iterator[RowDiff]:
        """Count rows as they pass."""
        for row in diffs:
            self.of[row.change] += 1
            yield row

    @property
    def sentence(self) -> str:
        """The counts as a sentence."""
        rows = plural(self.of["inserted"], "row")
        return f"{rows} inserted, {self.of['deleted']:,} deleted, {self.of['changed']:,} changed"


class Shown(NamedTuple):
    """The cells that are shown to people."""

    cells: Sequence[DiffCell] = ()
    more: int = 0

    @classmethod
    def of(cls, diffs: Iterable[RowDiff]) -> Shown:
        """Return the first cells, and the number of the others."""
        cells = cells_of(diffs)
        return cls(list(islice(cells, _SHOWN_MAX)), sum(1 for _ in cells))

    def print(self, session: Session) -> None:
        """Print them as a table, if there are any."""
        if self.cells:
            session.out.table(_COLUMNS, self.cells)
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
    """Return a row's difference as JSON: the columns that differ, on each side."""
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


def as_arrow(diffs: Iterable[RowDiff]) -> pa.RecordBatchReader:
    """Stream differences, a cell a row; values are JSON text, and NULL if absent."""
    import pyarrow as pa

    schema = pa.schema([(name, pa.string()) for name in _COLUMNS])
    cells = cells_of(diffs)

    def batches() -> Iterator[pa.RecordBatch]:
        while part := list(islice(cells, _BATCH_CELLS)):
            columns = [pa.array(values, pa.string()) for values in zip(*part, strict=True)]
            yield pa.RecordBatch.from_arrays(columns, schema=schema)

    return pa.RecordBatchReader.from_batches(schema, batches())


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode()
