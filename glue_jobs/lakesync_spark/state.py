"""Makes a row of the state table of its registers, and merges two such rows.

The registers in `STAMPS` are the row, exactly as ``core.merge`` has it: stamp, client and canonical
JSON of each column. The typed columns are a view of them. So the merge is one ``greatest`` for each
column, ties included, and a column can be given another type at any time without loss.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql import functions as sf

from lakesync_spark.fold import STATE_HASH, state_hash
from lakesync_spark.json_text import kept_texts, typed
from lakesync_spark.shape import (
    ALIVE,
    COMMIT_STAMP,
    DELETED,
    ID,
    IS_DELETED,
    STAMPS,
    SYNCED_AT,
    TEXTS,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import DataFrame

    from lakesync.core.clock import Stamp
    from lakesync_spark.columns import LakeColumn


class Synced(NamedTuple):
    """The commit to the lake that changes a row."""

    commit: Stamp
    """The mark that the table gets with it."""
    at: str
    """When it was begun, as an SQL literal."""


class Bounds(NamedTuple):
    """The least and the greatest row id of a batch."""

    least: str
    greatest: str


def state_rows(folded: DataFrame, columns: Sequence[LakeColumn], synced: Synced) -> DataFrame:
    """Give rows of the state table out of folded ones; a state that stays keeps its `Synced`.

    Args:
        folded: as `lakesync_spark.fold.fold` gives it.
        columns: the table's columns.
        synced: what the rows that change carry.
    """
    names = [column.name for column in columns]
    texts = {name: f"{STAMPS}.`{name}`.json" for name in names}
    lives = [f"{ALIVE} > 0", *(f"{STAMPS}.`{name}` IS NOT NULL" for name in names)]
    stays = sf.col(STATE_HASH) == state_hash(names)
    return _valued(folded, columns).select(
        ID,
        *names,
        *([STAMPS] if names else []),
        ALIVE,
        DELETED,
        sf.expr(f"NOT ({' OR '.join(lives)})").alias(IS_DELETED),
        sf.when(stays, sf.col(COMMIT_STAMP)).otherwise(sf.lit(synced.commit)).alias(COMMIT_STAMP),
        sf.when(stays, sf.col(SYNCED_AT)).otherwise(sf.expr(synced.at)).alias(SYNCED_AT),
        sf.expr(kept_texts(columns, {name: f"`{name}`" for name in names}, texts)).alias(TEXTS),
    )


def _valued(folded: DataFrame, columns: Sequence[LakeColumn]) -> DataFrame:
    """Put the registers into `STAMPS`, and typed values in their place.

    A step of its own: what reads a value afterwards does not compute it again.
    """
    return folded.select(
        ID,
        ALIVE,
        DELETED,
        COMMIT_STAMP,
        SYNCED_AT,
        STATE_HASH,
        *(sf.expr(typed(f"`{c.name}`.json", c.type)).alias(c.name) for c in columns),
        *([sf.struct(*(column.name for column in columns)).alias(STAMPS)] if columns else []),
    )


def merge_statement(
    table: str, source: str, columns: Sequence[LakeColumn], bounds: Bounds, synced: Synced
) -> str:
    """Give the ``MERGE`` of folded rows into the state table; rows that would not change stay.

    Args:
        table: the state table.
        source: a view of folded rows.
        columns: the table's columns.
        bounds: literal bounds of the row ids: they prune the table's files, and narrow what a
            concurrent commit can conflict with.
        synced: what the rows that change carry.
    """
    alive, deleted = (f"greatest(t.{name}, s.{name})" for name in (ALIVE, DELETED))
    merged = {column.name: _joined(column.name, deleted) for column in columns}
    theirs = {column.name: f"s.`{column.name}`" for column in columns}
    stamps = (f"if({alive} > {deleted}, {alive}, 0L)", deleted)
    updated = _row(columns, merged, stamps, synced)
    inserted = _row(columns, theirs, (f"s.{ALIVE}", f"s.{DELETED}"), synced)
    least, greatest = map(_literal, bounds)
    return f"""
        MERGE INTO {table} AS t USING {source} AS s
        ON t.{ID} = s.{ID} AND t.{ID} >= {least} AND t.{ID} <= {greatest}
        WHEN MATCHED AND ({_changes_something(columns)}) THEN
          UPDATE SET {", ".join(f"t.`{name}` = {value}" for name, value in updated.items())}
        WHEN NOT MATCHED THEN
          INSERT (`{ID}`, {", ".join(f"`{name}`" for name in inserted)})
          VALUES (s.`{ID}`, {", ".join(inserted.values())})
    """  # noqa: S608 - names are safe by core.names, row ids are hexadecimal


def _row(
    columns: Sequence[LakeColumn],
    registers: Mapping[str, str],
    stamps: tuple[str, str],
    synced: Synced,
) -> dict[str, str]:
    """Give the SQL of each column of the state table but `ID`, out of the SQL of its registers."""
    alive, deleted = stamps
    texts = {name: f"{register}.json" for name, register in registers.items()}
    values = {column.name: typed(texts[column.name], column.type) for column in columns}
    fields = ", ".join(f"'{name}', {register}" for name, register in registers.items())
    lives = [f"{alive} > 0", *(f"{register} IS NOT NULL" for register in registers.values())]
    return {
        **values,
        **({STAMPS: f"named_struct({fields})"} if registers else {}),
        ALIVE: alive,
        DELETED: deleted,
        IS_DELETED: f"NOT ({' OR '.join(lives)})",
        COMMIT_STAMP: f"{synced.commit}L",
        SYNCED_AT: synced.at,
        TEXTS: kept_texts(columns, values, texts),
    }


def _joined(name: str, deleted: str) -> str:
    winner = f"greatest(t.{STAMPS}.`{name}`, s.`{name}`)"
    return f"if({winner}.hlc > {deleted}, {winner}, NULL)"


def _changes_something(columns: Sequence[LakeColumn]) -> str:
    newer = [f"s.{DELETED} > t.{DELETED}", f"(s.{ALIVE} > t.{ALIVE} AND s.{ALIVE} > t.{DELETED})"]
    for column in columns:
        ours, theirs = f"t.{STAMPS}.`{column.name}`", f"s.`{column.name}`"
        newer.append(f"({theirs}.hlc > t.{DELETED} AND ({ours} IS NULL OR {theirs} > {ours}))")
    return " OR ".join(newer)


def _literal(text: str) -> str:
    """Give text as an SQL literal that needs no escaping."""
    return f"CAST(X'{text.encode().hex()}' AS STRING)"
