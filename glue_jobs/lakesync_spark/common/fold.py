"""Folds deltas into one row state for each row id, as `core.merge.fold` does.

A register is a struct ``(hlc, client_id, json)``. Spark orders structs field by field and text by
its UTF-8 bytes, which is the order of ``core.merge``, so the winner of a column is its ``max``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lakesync.materialise.lake_schema import ALIVE, DELETED, ID
from lakesync_spark.common.queries import selected

if TYPE_CHECKING:
    from collections.abc import Sequence

_HASH: Final = "_hash"


def fold(deltas: str, names: Sequence[str]) -> str:
    """Return a query of one row for each row id: its stamps, and its registers, in normal form.

    Args:
        deltas: a query of staged rows, in any order: ``_row_id``, ``_op``, ``_client_id``, ``_hlc``
            and JSON text by column.
        names: the columns that may occur, by their lake names.

    Returns:
        `ID`, `ALIVE`, `DELETED`, and under the name of each column its register, or NULL.
    """
    greatest = (f"max(`{name}`) AS `{name}`" for name in (ALIVE, DELETED, *names))
    folded = f"{selected(_keyed(deltas, names), (ID, *greatest))} GROUP BY {_HASH}, {ID}"
    stamps = (f"coalesce({name}, 0L) AS {name}" for name in (ALIVE, DELETED))
    stamped = selected(folded, (ID, *stamps, *(f"`{name}`" for name in names)))
    return selected(
        stamped,
        (
            ID,
            f"if({ALIVE} > {DELETED}, {ALIVE}, 0L) AS {ALIVE}",
            DELETED,
            *(f"if(`{name}`.hlc > {DELETED}, `{name}`, NULL) AS `{name}`" for name in names),
        ),
    )


def _keyed(deltas: str, names: Sequence[str]) -> str:
    """Group the deltas by row, each with its registers.

    Deltas are shuffled before their registers are made, as registers are wider. Sorting by a hash
    first compares eight bytes instead of whole row ids.
    """
    together = selected(deltas, ("/*+ REPARTITION(_row_id) */ *",))
    return selected(
        together,
        (
            f"xxhash64(_row_id) AS {_HASH}",
            f"_row_id AS {ID}",
            f"if(_op = 'INSERT', _hlc, NULL) AS {ALIVE}",
            f"if(_op = 'DELETE', _hlc, NULL) AS {DELETED}",
            *(_register(name) for name in names),
        ),
    )


def _register(name: str) -> str:
    """Return a delta's write of a column; NULL if it carries none."""
    write = f"named_struct('hlc', _hlc, 'client_id', _client_id, 'json', `{name}`)"
    return f"if(`{name}` IS NULL, NULL, {write}) AS `{name}`"
