"""Merges folded deltas into opened rows of the state table, column by column. Text of queries only.

Rules of this module
    1. It makes the same decisions as `core.merge.join`: tests run both with the same deltas.
    2. Registers are compared as ``(hlc, client_id, json)``. The stored text is made from its typed
       value only if stamp and client are equal, which is rare.
    3. Columns that no delta changes are copied: value, stamp, and the text beside it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lakesync.materialise.lake_schema import ALIVE, COMMIT_STAMP, DELETED, ID, SYNCED_AT
from lakesync_spark.common.queries import selected, with_constants
from lakesync_spark.iceberg.json_text import kept_text, typed
from lakesync_spark.iceberg.state import AT, KEPT, closed, opened, register_text

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from lakesync.materialise.lake_schema import LakeColumn
    from lakesync_spark.iceberg.state import Synced

_GIVEN: Final = "_given_"
"""Before a column's name: the register of the deltas; also before their other stamps."""
_GREATER: Final = "_greater"
"""Before the names of a row's stamps: the greater of both sides."""
_LATEST: Final = "_latest"
"""Before the same: what they are then."""
_WINS: Final = "_wins_"
"""Before a column's name: whether that register is the greater one."""
_CHANGES: Final = "_changes"


def merged(
    folded: str,
    rows: str,
    columns: Sequence[LakeColumn],
    given: Collection[str],
    synced: Synced,
    *,
    all_rows: bool,
    delete_wins: bool = False,
) -> str:
    """Return a query of merged state rows, from folded deltas and the existing rows.

    Args:
        folded: as `lakesync_spark.common.fold.fold` gives them.
        rows: a query of state rows, with all rows that the deltas may belong to.
        synced: the sync columns' values for changed rows.
        delete_wins: how the table is read; see `lakesync.core.merge.as_read`.
    """
    names = (ALIVE, DELETED, *synced.columns, *given)
    of_deltas = selected(
        with_constants(folded, synced.columns),
        (ID, *(f"`{name}` AS `{_GIVEN}{name}`" for name in names)),
    )
    kind = "FULL" if all_rows else "LEFT"
    both = f"({of_deltas}) {kind} JOIN ({opened(rows, columns)}) USING ({ID})"
    joined = f"SELECT * FROM {both}"  # noqa: S608 - names of ours
    compared = _compared(joined, columns, given)
    chosen = _valued(compared, columns, given, "" if all_rows else _CHANGES)
    return closed(_stamped(chosen, columns, given), columns, delete_wins=delete_wins)


def _compared(joined: str, columns: Sequence[LakeColumn], given: Collection[str]) -> str:
    alive, deleted = f"{_LATEST}{ALIVE}", f"{_LATEST}{DELETED}"
    latest = (
        f"greatest(coalesce({name}, 0L), coalesce({_GIVEN}{name}, 0L)) AS {_GREATER}{name}"
        for name in (ALIVE, DELETED)
    )
    lives = f"{_GREATER}{ALIVE} > {_GREATER}{DELETED}"
    with_state = selected(
        selected(joined, ("*", *latest)),
        (
            "*",
            f"{_GREATER}{DELETED} AS {deleted}",
            f"if({lives}, {_GREATER}{ALIVE}, 0L) AS {alive}",
            *(
                f"{_wins(column)} AS `{_WINS}{column.name}`"
                for column in columns
                if column.name in given
            ),
        ),
    )
    changes = [
        f"{COMMIT_STAMP} IS NULL",
        f"{deleted} > {DELETED}",
        f"{alive} <> {ALIVE}",
        *(f"`{_WINS}{name}`" for name in given),
    ]
    return selected(with_state, ("*", f"({' OR '.join(changes)}) AS {_CHANGES}"))


def _wins(column: LakeColumn) -> str:
    given, at = f"`{_GIVEN}{column.name}`", f"`{AT}{column.name}`"
    text = register_text(column)
    return (
        f"coalesce({given}.hlc > {_GREATER}{DELETED} AND CASE"
        f" WHEN {at} IS NULL OR {given}.hlc > {at}.hlc THEN true"
        f" WHEN {given}.hlc < {at}.hlc THEN false"
        f" WHEN {given}.client_id <> {at}.client_id THEN {given}.client_id > {at}.client_id"
        f" ELSE {given}.json > {text} END, false)"
    )


def _valued(
    compared: str, columns: Sequence[LakeColumn], given: Collection[str], condition: str
) -> str:
    """Add the winning typed values.

    A separate step, so that later uses of a value do not compute it again.
    """
    names = [column.name for column in columns]
    kept = (f"`{prefix}{name}`" for name in names for prefix in (KEPT, AT))
    values = (
        _chosen(c, given, typed(f"`{_GIVEN}{c.name}`.json", c.type), f"`{c.name}`", _LATEST)
        + f" AS `{c.name}`"
        for c in columns
    )
    return selected(
        compared,
        (
            ID,
            # What changes is in the deltas.
            *(
                f"if({_CHANGES}, {_GIVEN}{name}, {name}) AS {name}"
                for name in (COMMIT_STAMP, SYNCED_AT)
            ),
            *(f"{_LATEST}{name} AS {name}" for name in (ALIVE, DELETED)),
            *kept,
            *(f"`{prefix}{name}`" for name in given for prefix in (_GIVEN, _WINS)),
            *values,
        ),
        condition,
    )


def _stamped(valued: str, columns: Sequence[LakeColumn], given: Collection[str]) -> str:
    names = (f"`{column.name}`" for column in columns)
    parts = (ID, *names, COMMIT_STAMP, SYNCED_AT, ALIVE, DELETED)
    return selected(valued, (*parts, *_of_registers(columns, given)))


def _of_registers(columns: Sequence[LakeColumn], given: Collection[str]) -> Iterator[str]:
    for column in columns:
        write = f"`{_GIVEN}{column.name}`"
        kept = kept_text(column.type, f"`{column.name}`", f"{write}.json")
        stamp = f"named_struct('hlc', {write}.hlc, 'client_id', {write}.client_id)"
        for prefix, wins in ((KEPT, kept), (AT, stamp)):
            stays = f"`{prefix}{column.name}`"
            yield f"{_chosen(column, given, wins, stays)} AS {stays}"


def _chosen(
    column: LakeColumn, given: Collection[str], wins: str, stays: str, latest: str = ""
) -> str:
    """Return one of two expressions, or NULL if the register of the column is gone."""
    is_there = f"`{AT}{column.name}`.hlc > {latest}{DELETED}"
    if column.name in given:
        return f"CASE WHEN `{_WINS}{column.name}` THEN {wins} WHEN {is_there} THEN {stays} END"
    return f"CASE WHEN {is_there} THEN {stays} END"
