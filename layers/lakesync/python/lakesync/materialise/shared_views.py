"""The views of a share: one branch for each gateway, identified by a constant in ``_gateway``.

``flights`` shows the tables as they are, with tombstones and LakeSync's own columns.
``flights__rows`` and ``flights__live`` show, over all gateways, what the views of each gateway's
table show. A query for one ``_gateway`` reads only that branch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lakesync.core.names import LIVE_SUFFIX, ROWS_SUFFIX
from lakesync.core.plural import plural
from lakesync.materialise.glue_views import TEXT_CHARACTERS_MAX, table_input
from lakesync.materialise.shape import (
    CLIENT,
    COMMIT_STAMP,
    HLC,
    ID,
    IS_DELETED,
    KINDS,
    STATE_TABLE,
    SYNCED_AT,
    UPDATED_AT,
)
from lakesync.materialise.view_dialects import DIALECTS
from lakesync.materialise.views import View, ViewedTable, views_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lakesync.materialise.sharing import Member, Share, SharedColumn
    from lakesync.materialise.view_dialects import Dialect

GATEWAY_COLUMN: Final = "_gateway"
"""The gateway of a row; no table's own column begins with ``_``."""
QUERY_BYTES_MAX: Final = 262_144
"""Size of a share's view: Athena's limit for the text of a query, so that anybody may make it."""
OWN_COLUMNS: Final = {
    UPDATED_AT: "timestamp", COMMIT_STAMP: "integer", SYNCED_AT: "timestamp",
    IS_DELETED: "boolean", HLC: "integer", CLIENT: "string",
}  # fmt: skip
"""LakeSync's own columns that a share shows; those that only a merge reads stay in the tables."""
_SENTENCES: Final = {
    "": "All rows of all gateways, with tombstones and what LakeSync knows of a row",
    ROWS_SUFFIX: "The rows that exist, of all gateways, without LakeSync's own columns",
    LIVE_SUFFIX: "The rows that exist, of all gateways, with changes that wait to be merged",
}


def shared_views(share: Share, engine: str, catalogue: str = "") -> Iterator[View]:
    """Yield the views of a share, in the SQL of an engine of `DIALECTS`; none without tables.

    Args:
        share: the share.
        engine: whose SQL.
        catalogue: the engine's name of the tables' catalogue, if it is needed.
    """
    if not share.members:
        return
    dialect = DIALECTS[engine]
    columns = share.columns()
    head = ((GATEWAY_COLUMN, "string"), (ID, "string"))
    shown = (*head, *((column.name, column.type) for column in columns))
    for suffix, sentence in _SENTENCES.items():
        own = {} if suffix else OWN_COLUMNS
        branches = (
            _branch(gateway, member, columns, dialect, suffix, catalogue)
            for gateway, member in share.members.items()
        )
        yield View(
            share.name + suffix, (*shown, *own.items()), " UNION ALL ".join(branches), sentence
        )


def as_viewed(share: Share, database: str, stack: str) -> ViewedTable:
    """Return a share in the form that the keeper of views accepts."""
    comments = {GATEWAY_COLUMN: "The id of the gateway whose row it is"}
    return ViewedTable(database, share.name, STATE_TABLE, (), stack, comments)


def without_live(share: Share) -> tuple[str, ...]:
    """Return the gateways whose table is too wide for a live view in the catalogue."""
    wide = []
    for gateway, member in sorted(share.members.items()):
        table = member.viewed()
        texts = (table_input(table, view)["ViewOriginalText"] for view in views_of(table, "athena"))
        if any(len(text) > TEXT_CHARACTERS_MAX for text in texts):
            wide.append(gateway)
    return tuple(wide)


def size_fault(share: Share) -> str:
    """Return why a share exceeds what a view can cover; empty if it does not."""
    table = as_viewed(share, "shared", "")
    for view in shared_views(share, "athena"):
        size, text = len(view.select.encode()), len(table_input(table, view)["ViewOriginalText"])
        share_of_it = max(size / QUERY_BYTES_MAX, text / TEXT_CHARACTERS_MAX)
        if share_of_it > 1:
            number = len(share.members)
            return (
                f"a view over {plural(number, 'gateway')} of "
                f"{plural(len(share.columns()), 'column')} takes {size:,} bytes, and may have "
                f"{QUERY_BYTES_MAX:,}: about {int(number / share_of_it)} "
                "gateways fit; name fewer by a pattern"
            )
    return ""


def _branch(
    gateway: str,
    member: Member,
    columns: tuple[SharedColumn, ...],
    dialect: Dialect,
    suffix: str,
    catalogue: str,
) -> str:
    values = [f"{_text(gateway)} AS {dialect.name(GATEWAY_COLUMN)}", dialect.name(ID)]
    values += [_value(column, gateway, dialect, of_view=bool(suffix)) for column in columns]
    if suffix:
        # Events have no waiting changes: they have only this view.
        view = suffix if KINDS[member.kind] is STATE_TABLE else ROWS_SUFFIX
        source = dialect.name(member.database, member.table + view)
    else:
        values += [_own_value(name, member, dialect) for name in OWN_COLUMNS]
        place = [part for part in (catalogue, member.database) if part]
        source = dialect.name(*place, member.table)
    return f"SELECT {', '.join(values)} FROM {source}"  # noqa: S608 - quoted


def _value(column: SharedColumn, gateway: str, dialect: Dialect, *, of_view: bool) -> str:
    """Return a column's value at a gateway, with the share's name and type."""
    name = dialect.name(column.name)
    there = column.types.get(gateway)
    if there is None:
        return f"CAST(NULL AS {dialect.type_name(column.type)}) AS {name}"
    value = own = dialect.name(there.name)
    if there.type == "timestamp" and not of_view:
        value = dialect.instant.format(value=value)
    wanted = dialect.type_name(column.type)
    if there.type == "bytes" != column.type:
        value = dialect.encoded.format(value=value)
    elif dialect.type_name(there.type) != wanted:
        value = f"CAST({value} AS {wanted})"
    return value if value == own == name else f"{value} AS {name}"


def _own_value(name: str, member: Member, dialect: Dialect) -> str:
    quoted, kind = dialect.name(name), OWN_COLUMNS[name]
    if KINDS[member.kind] is not STATE_TABLE and name == IS_DELETED:
        return f"FALSE AS {quoted}"
    if KINDS[member.kind] is not STATE_TABLE and name == UPDATED_AT:
        return f"CAST(NULL AS {dialect.type_name(kind)}) AS {quoted}"
    value = dialect.instant.format(value=quoted) if kind == "timestamp" else quoted
    return quoted if value == quoted else f"{value} AS {quoted}"


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"
