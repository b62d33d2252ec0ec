"""The history of many rows, row by row; sorted on disk, so memory does not grow with it.

For each row with a commit in a span, all deltas since its beginning are needed. So the lake's
changes table is read twice: the span for the rows' ids, all of it for their deltas. DuckDB keeps
those of these rows alone, in a file, and sorts them. Law H3: ``docs/spec/history.md``.
"""

from __future__ import annotations

import heapq
import tempfile
from contextlib import contextmanager
from itertools import chain, groupby
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from lakesync.core.merge import EMPTY, apply, as_read, view
from lakesync.core.values import NULL

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from lakesync.adapters.database import PlacedDelta
    from lakesync.cli.changes import LakeChanges
    from lakesync.core.clock import Stamp
    from lakesync.core.merge import RowState
    from lakesync.core.values import CanonicalJson

MEMORY_MIB_MAX: Final = 1_024
"""DuckDB's limit of memory; the rest is in a file."""
_IDS_FILTERED_MAX: Final = 200
"""Row ids for which the lake's file statistics decide which files are read."""
_SORTED_ROWS: Final = 10_000

Past = tuple[str, "Iterator[PlacedDelta]"]
"""A row's id, and its deltas in commit order."""


class RowDiff(NamedTuple):
    """A row before and after. A null column equals an absent one."""

    row_id: str
    before: Mapping[str, CanonicalJson] | None
    """Its columns that were not null; None if the row did not exist."""
    after: Mapping[str, CanonicalJson] | None
    newest: Stamp = 0
    """The greatest stamp of the row's deltas."""
    unseen: tuple[str, ...] = ()
    """Columns that an insert would show: in delete-wins tables, those written after the delete."""

    @property
    def change(self) -> str:
        """The kind of the difference."""
        if self.before is None:
            return "inserted"
        return "deleted" if self.after is None else "changed"

    @property
    def columns(self) -> list[str]:
        """The columns that differ."""
        before, after = self.before or {}, self.after or {}
        names = sorted(before.keys() | after.keys())
        return [name for name in names if before.get(name) != after.get(name)]


@contextmanager
def pasts(
    changes: LakeChanges,
    tail: Sequence[PlacedDelta],
    span: tuple[Stamp, Stamp],
    only: Collection[str] = (),
) -> Iterator[Iterator[Past]]:
    """Yield the deltas of each row with a commit in a span, up to the span's end; by row id.

    Args:
        changes: what the lake has.
        tail: what the log has behind that.
        span: two commits; what was at the first is not in it.
        only: the requested rows; empty for all.
    """
    import pyarrow as pa
    from pyiceberg.expressions import And, GreaterThan, In, LessThanOrEqual

    make: Any = (And, GreaterThan, In, LessThanOrEqual)  # their types know nothing of positions
    both, above, among, up_to = make
    after, until = span
    newer = [one for one in tail if one.position.commit <= until]
    ids = {one.delta.row_id for one in newer if one.position.commit > after}
    ids &= set(only) or ids
    with _workbench() as database:
        database.execute("CREATE TABLE touched (_id VARCHAR)")
        in_span = both(above("_commit", after), up_to("_commit", until))
        if only:
            in_span = both(in_span, among("_id", tuple(only)))
        in_log = pa.RecordBatch.from_pydict({"_id": pa.array(sorted(ids), pa.string())})
        for batch in chain([in_log], changes.scan(in_span, ("_id",))):
            database.register("batch", batch)
            database.execute("INSERT INTO touched SELECT DISTINCT _id FROM batch")
        lake = _sorted(database, changes, up_to("_commit", until))
        # Rows whose commits in the span are all in the lake have none in the log, which is later.
        touched = sorted((one for one in newer if one.delta.row_id in ids), key=_place)
        merged = heapq.merge(lake, touched, key=_place)
        yield groupby(merged, key=attrgetter("delta.row_id"))


def row_diffs(
    rows: Iterable[Past], keeps: Callable[[PlacedDelta], bool], *, delete_wins: bool = False
) -> Iterator[RowDiff]:
    """Yield the rows that differ between some of their deltas and all of them. Pure.

    Args:
        rows: their deltas.
        keeps: selects the deltas of the row "before".
        delete_wins: how their table is read; see `lakesync.core.merge.as_read`.
    """
    for row_id, placed in rows:
        state = before = EMPTY
        newest = 0
        for one in placed:
            newest = max(newest, one.delta.hlc)
            state = apply(state, one.delta)
            if keeps(one):
                before = apply(before, one.delta)
        was, now = (as_read(one, delete_wins=delete_wins) for one in (before, state))
        unseen = () if now is state else tuple(sorted(state.columns))
        diff = RowDiff(row_id, shown(was), shown(now), newest, unseen)
        if diff.before != diff.after:
            yield diff


def shown(state: RowState) -> dict[str, CanonicalJson] | None:
    """Return a row's columns that are not null; None if the row does not exist."""
    columns = view(state)
    if columns is None:
        return None
    return {name: value for name, value in columns.items() if value != NULL}


def _place(one: PlacedDelta) -> tuple[str, object]:
    return one.delta.row_id, one.position


@contextmanager
def _workbench() -> Iterator[Any]:
    """Yield a database in a temporary file."""
    import duckdb

    with tempfile.TemporaryDirectory(prefix="lakesync-") as folder:
        database = duckdb.connect(str(Path(folder, "rows.duckdb")))
        try:
            database.execute(f"SET memory_limit = '{MEMORY_MIB_MAX}MiB'")
            database.execute("SET TimeZone = 'UTC'")
            yield database
        finally:
            database.close()


def _sorted(database: Any, changes: LakeChanges, rows: Any) -> Iterator[PlacedDelta]:
    """Yield the lake's deltas of the affected rows, by row id and commit."""
    from pyiceberg.expressions import And, In

    distinct = "SELECT DISTINCT _id FROM touched LIMIT ?"
    ids = [i for (i,) in database.execute(distinct, [_IDS_FILTERED_MAX]).fetchall()]
    make: Any = (And, In)
    both, among = make
    if len(ids) < _IDS_FILTERED_MAX:
        if not ids:
            return
        rows = both(rows, among("_id", ids))
    reader = changes.reader(rows)
    if reader is None:
        return
    database.register("reader", reader)
    kept = "SELECT * FROM reader SEMI JOIN touched USING (_id)"
    database.execute(f"CREATE TABLE deltas AS {kept}")
    ordered = database.sql("FROM deltas ORDER BY _id, _commit, _ordinal")
    for batch in ordered.to_arrow_reader(_SORTED_ROWS):
        yield from changes.placed(batch)
