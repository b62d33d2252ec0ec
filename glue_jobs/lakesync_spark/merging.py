"""Merges folded deltas into opened rows of the state table, column by column. DataFrames only.

Rules of this module
    1. It decides what `core.merge.join` decides, and nothing else does: tests drive both with the
       same deltas.
    2. Registers are compared as ``(hlc, client_id, json)``. The stored text is made of its typed
       value only where stamp and client are equal, which is rare.
    3. What no delta touches is copied: its value, its stamp, and the text beside it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as sf

from lakesync_spark.constants import with_constants
from lakesync_spark.fold import ALIVE, DELETED
from lakesync_spark.json_text import kept_text, typed
from lakesync_spark.shape import COMMIT_STAMP, ID, SYNCED_AT
from lakesync_spark.state import AT, KEPT, closed, opened, register_text

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from pyspark.sql import Column, DataFrame

    from lakesync_spark.columns import LakeColumn
    from lakesync_spark.state import Synced

_GIVEN: Final = "_given_"
"""Before a column's name: the register of the deltas; also before their other stamps."""
_WINS: Final = "_wins_"
"""Before a column's name: whether that register is the greater one."""
_CHANGES: Final = "_changes"


def merged(
    folded: DataFrame,
    rows: DataFrame,
    columns: Sequence[LakeColumn],
    given: Collection[str],
    synced: Synced,
    *,
    all_rows: bool,
) -> DataFrame:
    """Give rows of the state table out of folded deltas and the rows that are there.

    Args:
        folded: as `lakesync_spark.fold.fold` gives them.
        rows: rows of the state table; all that the deltas may be of.
        columns: the table's columns.
        given: the names of those that deltas may carry.
        synced: what the rows that change carry.
        all_rows: whether to give those too that do not change, as they are.
    """
    stamped = with_constants(folded, synced.columns)
    joined = stamped.select(
        ID,
        *(sf.col(name).alias(_GIVEN + name) for name in (ALIVE, DELETED, *synced.columns, *given)),
    ).join(opened(rows, columns), ID, "full" if all_rows else "left")
    compared = _compared(joined, columns, given)
    chosen = _valued(compared if all_rows else compared.where(_CHANGES), columns, given)
    return closed(_stamped(chosen, columns, given), columns)


def _compared(
    joined: DataFrame, columns: Sequence[LakeColumn], given: Collection[str]
) -> DataFrame:
    """Say of each column which register wins, and of each row whether it changes."""
    latest = joined.withColumns(
        {
            f"_latest{name}": sf.greatest(
                sf.coalesce(name, sf.lit(0)), sf.coalesce(_GIVEN + name, sf.lit(0))
            )
            for name in (ALIVE, DELETED)
        }
    )
    alive = f"if(_latest{ALIVE} > _latest{DELETED}, _latest{ALIVE}, 0L)"
    with_state = latest.withColumns(
        {
            f"_latest{ALIVE}": sf.expr(alive),
            **{_WINS + c.name: sf.expr(_wins(c)) for c in columns if c.name in given},
        }
    )
    changes = [
        f"{COMMIT_STAMP} IS NULL",
        f"_latest{DELETED} > {DELETED}",
        f"_latest{ALIVE} <> {ALIVE}",
        *(f"`{_WINS}{name}`" for name in given),
    ]
    return with_state.withColumn(_CHANGES, sf.expr(" OR ".join(changes)))


def _wins(column: LakeColumn) -> str:
    given, at = f"`{_GIVEN}{column.name}`", f"`{AT}{column.name}`"
    text = register_text(column)
    return (
        f"coalesce({given}.hlc > _latest{DELETED} AND CASE"
        f" WHEN {at} IS NULL OR {given}.hlc > {at}.hlc THEN true"
        f" WHEN {given}.hlc < {at}.hlc THEN false"
        f" WHEN {given}.client_id <> {at}.client_id THEN {given}.client_id > {at}.client_id"
        f" ELSE {given}.json > {text} END, false)"
    )


def _valued(
    compared: DataFrame, columns: Sequence[LakeColumn], given: Collection[str]
) -> DataFrame:
    """Put in the typed values that win.

    A step of its own: what reads a value afterwards does not compute it again.
    """
    names = [column.name for column in columns]
    return compared.select(
        ID,
        # What changes is in the deltas.
        *(
            sf.expr(f"if({_CHANGES}, {_GIVEN}{name}, {name})").alias(name)
            for name in (COMMIT_STAMP, SYNCED_AT)
        ),
        *(sf.col(f"_latest{name}").alias(name) for name in (ALIVE, DELETED)),
        *(prefix + name for name in names for prefix in (KEPT, AT)),
        *(prefix + name for name in given for prefix in (_GIVEN, _WINS)),
        *(
            _chosen(c, given, typed(f"`{_GIVEN}{c.name}`.json", c.type), f"`{c.name}`", "_latest")
            for c in columns
        ),
    )


def _stamped(valued: DataFrame, columns: Sequence[LakeColumn], given: Collection[str]) -> DataFrame:
    """Put in the stamps that win, and the texts that their values cannot give back."""
    return valued.select(
        ID,
        *(column.name for column in columns),
        COMMIT_STAMP,
        SYNCED_AT,
        ALIVE,
        DELETED,
        *_of_registers(columns, given),
    )


def _of_registers(columns: Sequence[LakeColumn], given: Collection[str]) -> Iterator[Column]:
    for column in columns:
        write = f"`{_GIVEN}{column.name}`"
        kept = kept_text(column.type, f"`{column.name}`", f"{write}.json")
        stamp = f"named_struct('hlc', {write}.hlc, 'client_id', {write}.client_id)"
        for prefix, wins in ((KEPT, kept), (AT, stamp)):
            stays = f"`{prefix}{column.name}`"
            yield _chosen(column, given, wins, stays).alias(f"{prefix}{column.name}")


def _chosen(
    column: LakeColumn, given: Collection[str], wins: str, stays: str, latest: str = ""
) -> Column:
    """Give one of two expressions, or NULL if the register of the column is gone."""
    is_there = f"`{AT}{column.name}`.hlc > {latest}{DELETED}"
    value = f"CASE WHEN {is_there} THEN {stays} END"
    if column.name in given:
        value = f"CASE WHEN `{_WINS}{column.name}` THEN {wins} WHEN {is_there} THEN {stays} END"
    return sf.expr(value).alias(column.name)
