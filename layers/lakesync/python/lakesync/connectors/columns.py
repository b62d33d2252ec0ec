"""The columns that a connector's tables have in the gateway, by what it knows of its source."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lakesync.connectors.deltas import identifier

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from lakesync.connectors.port import SourceTable


def schemas_of(
    discovered: Iterable[SourceTable], tables: Mapping[str, str]
) -> list[dict[str, Any]]:
    """Return the schemas of tables as ``POST /admin/schema`` takes them.

    Any column may be null: a source that has none today may have some tomorrow.

    Args:
        discovered: what the connector discovered.
        tables: the source's names of the tables, each with the gateway's.
    """
    return [
        {
            "table": tables[table.name],
            "columns": [
                {"name": identifier(column.name), "type": column.type} for column in table.columns
            ],
        }
        for table in discovered
        if table.name in tables and table.columns
    ]
