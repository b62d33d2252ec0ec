"""Loads rows through one temporary table, as fast as the database accepts them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakesync.adapters.sql.dialect import STAGE

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from lakesync.adapters.sql.dialect import Cursor, Dialect


def fill_stage(
    dialect: Dialect,
    cursor: Cursor,
    columns: Mapping[str, str],
    rows: Iterable[Sequence[object]],
) -> None:
    """Create `STAGE` with rows; an iterator of rows is consumed while the database loads others.

    The first column has another value in each row, if the dialect has a `stage_number`.
    """
    cursor.execute(dialect.stage_drop, ())
    first, *others = (f"{dialect.quote(name)} {kind}" for name, kind in columns.items())
    lines = ", ".join([f"{first}{dialect.stage_number}", *others])
    cursor.execute(f"CREATE TEMPORARY TABLE {STAGE} ({lines})", ())
    dialect.load(cursor, STAGE, columns, rows)
