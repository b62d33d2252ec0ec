"""Maintains the comments of a lake table's columns, for readers of the catalogue.

A comment that ends with a column's type and name on the wire is LakeSync's, and follows the schema;
any other belongs to a user, and stays. LakeSync's own columns get a comment if they have none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakesync.materialise.lake_schema import is_own_comment, own_comments

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lakesync_spark.iceberg.lake_table import LakeTable


def edited_comments(table: LakeTable) -> dict[str, str]:
    """Return the comments that somebody else wrote, by column."""
    return {
        name: comment
        for name, comment in all_comments(table).items()
        if name[:1] != "_" and not is_own_comment(name, comment)
    }


def keep_comments(table: LakeTable, wanted: Mapping[str, str]) -> None:
    """Give columns their comments, in one commit of metadata. Safe to repeat, and to kill.

    Args:
        table: the table; its properties already describe its columns.
    """
    now = all_comments(table)
    own = {name: text for name, text in own_comments(table.kind).items() if not now.get(name)}
    new = {n: t for n, t in {**wanted, **own}.items() if n in now and now[n] != t}
    if not new:
        return
    update = table.java.updateSchema()
    for name, text in new.items():
        update = update.updateColumnDoc(name, text)
    update.commit()
    table.refresh()


def all_comments(table: LakeTable) -> dict[str, str]:
    return {field.name: field.comment for field in table.fields()}
