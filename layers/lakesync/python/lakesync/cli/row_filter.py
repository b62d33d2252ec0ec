"""`--where`: a condition in SQL on the current or former values of rows.

Columns have their types in the lake. DuckDB evaluates the condition, for a thousand rows at a time.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from lakesync.adapters.sql.values import Unfit, sql_value
from lakesync.cli.faults import UsageFault
from lakesync.cli.lake import written_names
from lakesync.materialise.typed_arrow import arrow_type

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import pyarrow as pa

    from lakesync.cli.rows_past import RowDiff
    from lakesync.core.values import CanonicalJson

_ROWS: Final = 1_000


def matching(
    diffs: Iterable[RowDiff], where: str, columns: Mapping[str, tuple[str, str]]
) -> Iterator[RowDiff]:
    """Yield the rows that meet a condition, before or after; all if there is no condition.

    Args:
        diffs: the rows.
        where: the condition; empty for none.
        columns: the columns by their names in the lake: type, and name on the wire.

    Raises:
        UsageFault: it is no condition on these columns.
    """
    if not where:
        yield from diffs
        return
    import duckdb

    rows = iter(diffs)
    part: list[RowDiff] = []
    from lakesync.cli.own_database import own_database

    with own_database("TimeZone = 'UTC'") as database:
        # Evaluated without rows too, so that an invalid condition is always refused.
        while part or (part := list(islice(rows, _ROWS))) or where:
            try:
                hits = database.from_arrow(_table(part, columns)).filter(where).project("_place")
                places = {place for (place,) in hits.fetchall()}
            except duckdb.Error as exc:
                sentence = str(exc).strip().splitlines()[0]
                raise UsageFault(f"--where was refused: {sentence}") from exc
            yield from (diff for place, diff in enumerate(part) if place in places)
            if len(part) < _ROWS:
                return
            part = []


def _table(part: Sequence[RowDiff], columns: Mapping[str, tuple[str, str]]) -> pa.Table:
    """Return both sides of rows as a table, each with the row's index."""
    import pyarrow as pa

    sides = [
        (place, diff.row_id, side)
        for place, diff in enumerate(part)
        for side in (diff.before, diff.after)
        if side is not None
    ]
    names = written_names(list(columns), {name: wire for name, (_, wire) in columns.items()})
    arrays: dict[str, Any] = {
        "_place": pa.array([place for place, _, _ in sides], pa.int64()),
        "_id": pa.array([row_id for _, row_id, _ in sides], pa.string()),
    }
    for name, (kind, wire) in zip(names, columns.values(), strict=True):
        values = [_value(kind, side.get(wire)) for _, _, side in sides]
        arrays[name] = pa.array(values, arrow_type(kind))
    return pa.table(arrays)


def _value(kind: str, text: CanonicalJson | None) -> object:
    try:
        return sql_value(kind, text)
    except Unfit:
        return None
