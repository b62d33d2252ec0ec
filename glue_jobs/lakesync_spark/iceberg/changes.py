"""Turns deltas into rows of the changes table, or of an events table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakesync.materialise.lake_schema import CARRIED, ID, SYNCED_AT, TEXTS
from lakesync_spark.common.queries import selected, with_constants
from lakesync_spark.iceberg.json_text import kept_texts, typed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lakesync.materialise.lake_schema import Kind, LakeColumn


def change_rows(deltas: str, kind: Kind, columns: Sequence[LakeColumn], synced_at: str) -> str:
    """Return a query of one row for each delta, in the order of the deltas.

    Args:
        deltas: a query of staged rows, with JSON text by column.
    """
    names = [f"`{column.name}`" for column in columns]
    texts = {column.name: f"`{_text(column.name)}`" for column in columns}
    tail = {
        CARRIED: _carried(texts),
        SYNCED_AT: SYNCED_AT,
        TEXTS: kept_texts(columns, dict(zip(texts, names, strict=True)), texts),
    }
    timed = with_constants(_valued(deltas, kind, columns), {SYNCED_AT: synced_at})
    return selected(timed, (*kind.head, *names, *(f"{tail[n]} AS {n}" for n in kind.tail)))


def _valued(deltas: str, kind: Kind, columns: Sequence[LakeColumn]) -> str:
    """Add typed values beside their texts.

    A separate step, so that later uses of a value do not compute it again.
    """
    return selected(
        deltas,
        (
            *(f"_row_id AS {ID}" if name == ID else name for name in kind.head),
            *(f"{typed(f'`{c.name}`', c.type)} AS `{c.name}`" for c in columns),
            *(f"`{column.name}` AS `{_text(column.name)}`" for column in columns),
        ),
    )


def _text(name: str) -> str:
    """Name the text of a column; no column of a table begins with ``_``."""
    return f"_text_{name}"


def _carried(texts: Mapping[str, str]) -> str:
    names = (f"if({text} IS NULL, '', '{name}')" for name, text in texts.items())
    return f"array_remove(CAST(array({', '.join(names)}) AS ARRAY<STRING>), '')"
