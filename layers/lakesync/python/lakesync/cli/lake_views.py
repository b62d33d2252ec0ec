"""The tables of the lake that have views."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakesync.cli.audited import listed
from lakesync.cli.lake import declared_columns
from lakesync.cli.lake_shares import shares_of
from lakesync.errors import NotFound
from lakesync.materialise.columns import LakeColumn
from lakesync.materialise.shape import CHANGES_TABLE, KIND, KINDS, STACK, delete_wins
from lakesync.materialise.shared_views import shared_views
from lakesync.materialise.sharing import shared_database
from lakesync.materialise.views import ViewedTable, views_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from lakesync.cli.aws import Aws
    from lakesync.cli.lake import Lake
    from lakesync.materialise.glue_views import GlueViews
    from lakesync.materialise.views import View


def viewed_tables(lake: Lake, table: str | None) -> Iterator[ViewedTable]:
    """Return the state and events tables of a gateway, or one; other tables are left out."""
    for name in lake.names_of(table):
        each = lake.table(name)
        kind = KINDS.get(each.properties.get(KIND, ""))
        if kind is None or kind == CHANGES_TABLE:
            continue
        database, lake_name = each.name()[-2:]
        columns = [LakeColumn(n, t, written) for n, (t, written) in declared_columns(each).items()]
        comments = {field.name: field.doc or "" for field in each.schema().fields}
        stack = each.properties.get(STACK, "")
        wins = delete_wins(each.properties)
        yield ViewedTable(database, lake_name, kind, tuple(columns), stack, comments, wins)


def views_of_share(aws: Aws, name: str, engine: str, catalogue: str) -> list[tuple[str, View]]:
    """Return the views that a shared table reads, then its own, each with its database.

    Raises:
        NotFound: there is no such share.
    """
    share = shares_of(aws).read(name)
    if share is None:
        raise NotFound(f"there is no shared table {name[:64]!r}: see lakesync lake status")
    place = shared_database(aws.output("DatabasePrefix"))
    over = ((one.database, view) for one in share.members.values()
            for view in views_of(one.viewed(), engine, catalogue))  # fmt: skip
    return [*over, *((place, view) for view in shared_views(share, engine, catalogue))]


def views_shown(glue: GlueViews, tables: Sequence[ViewedTable]) -> dict[str, object]:
    """Return which of the tables' views are outdated, and why, for an audit record."""
    wrong = [f"{name}: {why}" for each in tables for name, why in glue.wrong(each).items()]
    return {"tables": len(tables), "wrong": listed(wrong)}
