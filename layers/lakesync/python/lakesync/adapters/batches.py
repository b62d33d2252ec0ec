"""Common to all destinations: cut a batch at commit boundaries, merge it, page history.

While the many small objects of a batch are made, Python's cycle collector may be paused.
"""

from __future__ import annotations

import gc
from contextlib import contextmanager
from itertools import groupby, islice
from typing import TYPE_CHECKING, Any, Final

from lakesync.adapters.database import ORDINAL_END, DeltaPage, PlacedDelta, Position, RowPage
from lakesync.core.delta import parse
from lakesync.core.merge import EMPTY, as_read, fold, view
from lakesync.errors import ConstraintViolated
from lakesync.wire.records import decode_records, encode_records

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from lakesync.adapters.database import TableBatch
    from lakesync.core.clock import Stamp
    from lakesync.core.merge import RowState
    from lakesync.core.schema import TableSchema

TABLE_DEAD_LETTERS_MAX: Final = 1_000
"""Refused rows that one table of a destination may have; with more, the table is at fault."""


def parts(batch: TableBatch, deltas_max: int) -> Iterator[tuple[list[PlacedDelta], Stamp]]:
    """Cut a batch at commit boundaries; each part comes with the mark that it leads to."""
    part: list[PlacedDelta] = []
    for _, commit in groupby(batch.deltas, key=lambda placed: placed.position.commit):
        more = list(commit)
        if part and len(part) + len(more) > deltas_max:
            yield part, part[-1].position.commit
            part = []
        part += more
    yield part, batch.last


def merged(
    deltas: Iterable[PlacedDelta], stored: Callable[[list[str]], Mapping[str, RowState]]
) -> dict[str, RowState]:
    """Return the new states of the rows that deltas change.

    Args:
        deltas: in commit order.
        stored: gives the states of the rows that are stored.
    """
    by_row: dict[str, list[Any]] = {}
    for _, delta in deltas:
        by_row.setdefault(delta.row_id, []).append(delta)
    before = stored(list(by_row))
    folded = {
        row_id: fold(changes, before.get(row_id, EMPTY)) for row_id, changes in by_row.items()
    }
    return {row: state for row, state in folded.items() if state is not before.get(row, EMPTY)}


def values_of(state: RowState, schema: TableSchema | None = None) -> dict[str, Any] | None:
    """Return a row's values as Python objects; None if the table has no such row."""
    values = view(as_read(state, delete_wins=bool(schema and schema.delete_wins)))
    return None if values is None else {name: parse(raw) for name, raw in values.items()}


def commits_of(deltas: Iterable[PlacedDelta]) -> list[tuple[Stamp, bytes]]:
    """Return whole commits in commit order, each with its deltas as the history keeps them."""
    return [
        (commit, encode_records(delta for _, delta in placed))
        for commit, placed in groupby(deltas, key=lambda placed: placed.position.commit)
    ]


def deltas_behind(
    since: Position,
    deltas_max: int,
    commits_after: Callable[[Stamp], Sequence[tuple[Stamp, bytes]]],
) -> Iterator[PlacedDelta]:
    """Yield deltas behind a position, in order: at least ``deltas_max``, or all of them.

    Args:
        since: the position.
        deltas_max: when to stop reading.
        commits_after: returns the next commits behind a stamp with their records; none at the end.
    """
    after, count = since.commit - 1, 0
    while count < deltas_max:
        commits = commits_after(after)
        if not commits:
            return
        for commit, records in commits:
            for place, delta in enumerate(decode_records(bytes(records))):
                if (commit, place) > since:
                    count += 1
                    yield PlacedDelta(Position(commit, place), delta)
        after = commits[-1][0]


def check_refused(
    table: str, reasons: Collection[str], *, mend: str = "the schema or the rows"
) -> None:
    """Check that not too many rows of a table are refused.

    Args:
        table: its name.
        reasons: why each of them is refused.
        mend: what must be repaired then, for the message.

    Raises:
        ConstraintViolated: they are too many.
    """
    if len(reasons) > TABLE_DEAD_LETTERS_MAX:
        raise ConstraintViolated(
            f"more than {TABLE_DEAD_LETTERS_MAX} rows of {table} were refused, the first because "
            f"{next(iter(reasons))}; mend {mend}, then repeat the operation"
        )


def delta_page(deltas: Iterable[PlacedDelta], since: Position, deltas_max: int) -> DeltaPage:
    """Get the first of what lies behind a position; reads one more, to tell whether there are."""
    read = tuple(islice(deltas, deltas_max + 1))
    page, following = read[:deltas_max], read[deltas_max:]
    if page:
        commit, ordinal = page[-1].position
        goes_on = bool(following) and following[0].position.commit == commit
        since = Position(commit, ordinal if goes_on else ORDINAL_END)
    return DeltaPage(page, since, bool(following))


def row_page(states: Mapping[str, RowState], rows_max: int) -> RowPage:
    """Return a page of rows; one row more than wanted shows that there are more."""
    return RowPage(dict(islice(states.items(), rows_max)), len(states) > rows_max)


@contextmanager
def collector_paused() -> Iterator[None]:
    """Pause the cycle collector, which takes a third of the time with a batch's many tuples.

    For work with bounded memory; the collector runs afterwards. May be nested.
    """
    is_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if is_enabled:
            gc.enable()
