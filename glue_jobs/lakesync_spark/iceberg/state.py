"""The state table: converts its rows to registers, and registers to its rows.

A row is as in ``core.merge``: for each column the stamp, the client and the canonical JSON of the
winning write. The table stores it in primitive columns only. A typed value represents its text
(`lakesync_spark.iceberg.typed_text`); a text that it cannot represent, and a JSON null, is in
`TEXTS`.
`HLC` and `CLIENT` are the row's greatest stamp. `STAMPS` is NULL where that is every column's; else
it tells what differs, as JSON:

    {"_alive": 7, "_deleted": 3, "_rest": {"ago_ms": 5}, "n": {},
     "a": {"ago_ms": 2, "ago_counter": 1, "client_id": "b"}}

``_rest`` is the least stamp, of all columns that are not named: after an update of one column of
twenty, one is named. Of a stamp only what differs from the row's is said, of its time how long
before the row's it was: rows that were written together say the same, and that compresses; as
numbers of 18 digits stamps took two fifths of a table's bytes. ``_alive`` is there if the row was
not inserted with its least stamp, ``_deleted`` if a row that exists was deleted once, or if its
delete is not the greatest stamp of one that does not: where deletes win, updates may be newer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from lakesync.core.clock import COUNTER_BITS, COUNTER_MAX
from lakesync.materialise.lake_schema import (
    ALIVE,
    CLIENT,
    COMMIT_STAMP,
    DELETED,
    HLC,
    ID,
    IS_DELETED,
    REST,
    STAMPS,
    SYNCED_AT,
    TEXTS,
    UPDATED_AT,
)
from lakesync_spark.common.queries import selected
from lakesync_spark.iceberg.typed_text import text_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lakesync.core.clock import Stamp
    from lakesync.materialise.lake_schema import LakeColumn

_SAID: Final = "STRUCT<ago_ms: BIGINT, ago_counter: BIGINT, client_id: STRING>"
# No column of a table begins with `_`, so what is made of one on the way may.
KEPT: Final = "_kept_"
"""Before a column's name: the text that its value cannot give back."""
AT: Final = "_at_"
"""Before a column's name: the stamp and client of its register; NULL if it was never written."""


class Synced(NamedTuple):
    """The commit to the lake that changes a row."""

    commit: Stamp
    """The mark that the table gets with it."""
    at: str
    """When it was begun, as an SQL literal."""

    @property
    def columns(self) -> dict[str, str]:
        """The columns that say so, as SQL literals."""
        return {COMMIT_STAMP: f"{self.commit}L", SYNCED_AT: self.at}


def opened(rows: str, columns: Sequence[LakeColumn]) -> str:
    """Return rows of the state table with their stamps said: what `closed` takes.

    Args:
        rows: the table, or a query of all its columns.

    Returns:
        A query of the table's columns, `ALIVE`, `DELETED`, and for each column `AT` and `KEPT`.
    """
    names = [column.name for column in columns]
    stamps = ", ".join([f"{ALIVE}: BIGINT, {DELETED}: BIGINT, {REST}: {_SAID}", *_fields(names)])
    texts = ", ".join(f"`{name}`: STRING" for name in names)
    # A separate step, so that each is parsed once.
    kept = [f"{_parsed(TEXTS, texts)} AS _kept"] if names else []
    parsed = selected(rows, ("*", f"{_parsed(STAMPS, stamps)} AS _said", *kept))
    rest = selected(
        parsed,
        (
            "*",
            f"{_stamp_of(f'_said.{REST}')} AS {REST}",
            *(f"_kept.`{name}` AS `{KEPT}{name}`" for name in names),
        ),
    )
    return selected(
        rest,
        (
            "*",
            f"if({IS_DELETED}, 0L, coalesce(_said.{ALIVE}, {REST}.hlc)) AS {ALIVE}",
            f"coalesce(_said.{DELETED}, if({IS_DELETED}, {HLC}, 0L)) AS {DELETED}",
            *(f"{_at(name)} AS `{AT}{name}`" for name in names),
        ),
    )


def registers(rows: str, columns: Sequence[LakeColumn]) -> str:
    """Return rows of the state table as the core has them.

    Args:
        rows: the table, or a query of all its columns.

    Returns:
        A query of `ID`, `ALIVE`, `DELETED`, and a register ``(hlc, client_id, json)`` under the
        name of each column, or NULL.
    """
    written = (
        f"if(`{AT}{c.name}` IS NULL, NULL, named_struct('hlc', `{AT}{c.name}`.hlc, 'client_id',"
        f" `{AT}{c.name}`.client_id, 'json', {register_text(c)})) AS `{c.name}`"
        for c in columns
    )
    return selected(opened(rows, columns), (ID, ALIVE, DELETED, *written))


def register_text(column: LakeColumn) -> str:
    """Return the SQL of the canonical text of a column of an opened row."""
    return f"coalesce(`{KEPT}{column.name}`, {text_of(f'`{column.name}`', column.type)})"


def closed(rows: str, columns: Sequence[LakeColumn], *, delete_wins: bool = False) -> str:
    """Return rows of the state table out of values and stamps: the inverse of `opened`.

    Args:
        rows: a query of `ID`, the typed values, `COMMIT_STAMP`, `SYNCED_AT`, `ALIVE`, `DELETED`,
            and for each column `AT` and `KEPT`.
        delete_wins: how the table is read; see `lakesync.core.merge.as_read`.
    """
    names = [column.name for column in columns]
    written = [f"`{AT}{name}`" for name in names]
    own = f"named_struct('hlc', greatest({ALIVE}, {DELETED}), 'client_id', CAST(NULL AS STRING))"
    seen = [] if delete_wins else [f"{at} IS NOT NULL" for at in written]
    lives = " OR ".join([f"{ALIVE} > 0", *seen])
    greatest = f"greatest({', '.join([own, *written])})" if names else own
    least = f"least({', '.join(['_greatest', *written])})" if names else "_greatest"
    # What stands for the whole row, then what is made of it.
    summed = selected(rows, ("*", f"{greatest} AS _greatest", f"NOT ({lives}) AS {IS_DELETED}"))
    return selected(
        selected(summed, ("*", f"{least} AS _least")),
        (
            ID,
            *(f"`{name}`" for name in names),
            f"timestamp_millis(shiftright(_greatest.hlc, {COUNTER_BITS})) AS {UPDATED_AT}",
            COMMIT_STAMP,
            SYNCED_AT,
            IS_DELETED,
            f"_greatest.hlc AS {HLC}",
            f"_greatest.client_id AS {CLIENT}",
            f"{_stamps(names)} AS {STAMPS}",
            f"{kept_json(names)} AS {TEXTS}",
        ),
    )


def json_of(fields: Mapping[str, str], is_empty: str) -> str:
    """Return the SQL of a JSON object of the fields that are not NULL; NULL if it `is_empty`."""
    pairs = ", ".join(f"'{name}', {value}" for name, value in fields.items())
    # Few rows have any: for all others no object is made.
    written = f"to_json(named_struct({pairs}), map('ignoreNullFields', 'true'))"
    return f"if({is_empty}, CAST(NULL AS STRING), {written})"


def kept_json(names: Sequence[str]) -> str:
    """Return the SQL of `TEXTS`, out of the columns `KEPT`."""
    kept = {name: f"`{KEPT}{name}`" for name in names}
    if not kept:
        return "CAST(NULL AS STRING)"
    return json_of(kept, " AND ".join(f"{text} IS NULL" for text in kept.values()))


def _stamps(names: Sequence[str]) -> str:
    alive = f"if({IS_DELETED} OR {ALIVE} = _least.hlc, NULL, {ALIVE})"
    deleted = f"nullif({DELETED}, if({IS_DELETED}, _greatest.hlc, 0L))"
    fields = {
        ALIVE: alive,
        DELETED: deleted,
        REST: _said("_least", "_greatest"),
        **{name: _said(f"`{AT}{name}`", "_least") for name in names},
    }
    return json_of(fields, f"_least <=> _greatest AND {alive} IS NULL AND {deleted} IS NULL")


def _said(stamp: str, by_default: str) -> str:
    """Get what is said of a stamp: only what differs from the row's; NULL if it is the default."""
    ago = f"(_greatest.hlc - {stamp}.hlc)"
    fields = (
        f"'ago_ms', nullif(shiftright({ago}, {COUNTER_BITS}), 0L),"
        f" 'ago_counter', nullif({ago} & {COUNTER_MAX}L, 0L),"
        f" 'client_id', if({stamp}.client_id <=> _greatest.client_id, NULL, {stamp}.client_id)"
    )
    return f"if({stamp} IS NULL OR {stamp} <=> {by_default}, NULL, named_struct({fields}))"


def _parsed(column: str, fields: str) -> str:
    return f"from_json({column}, 'STRUCT<{fields}>', map('mode', 'FAILFAST'))"


def _fields(names: Sequence[str]) -> list[str]:
    return [f"`{name}`: {_SAID}" for name in names]


def _stamp_of(said: str) -> str:
    """Return a stamp of which only what differs from the row's was said."""
    ago_ms, ago_counter = (f"coalesce({said}.{part}, 0L)" for part in ("ago_ms", "ago_counter"))
    return (
        f"named_struct('hlc', {HLC} - shiftleft({ago_ms}, {COUNTER_BITS}) - {ago_counter},"
        f" 'client_id', coalesce({said}.client_id, {CLIENT}))"
    )


def _at(name: str) -> str:
    said = f"_said.`{name}`"
    stamp = f"if({said} IS NULL, {REST}, {_stamp_of(said)})"
    return f"if(`{name}` IS NULL AND `{KEPT}{name}` IS NULL, NULL, {stamp})"
