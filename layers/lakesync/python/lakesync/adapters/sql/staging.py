"""How rows come in: through one temporary table, as fast as the database takes them."""

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
    """Make `STAGE` anew, with rows in it: lazy ones are made while the database takes others."""
    cursor.execute(dialect.stage_drop, ())
    lines = ", ".join(f"{dialect.quote(name)} {kind}" for name, kind in columns.items())
    cursor.execute(f"CREATE TEMPORARY TABLE {STAGE} ({lines})", ())
    dialect.load(cursor, STAGE, columns, rows)
