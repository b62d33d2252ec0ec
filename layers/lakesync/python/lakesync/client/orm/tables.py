"""Tables of SQLAlchemy's metadata as synced tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sqlalchemy import types

from lakesync.client.orm.types import column_type
from lakesync.client.storage.app_table import ROW_ID
from lakesync.errors import ValidationFailed
from lakesync.result import Err, Ok, Result

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import MetaData, Table

    from lakesync.client.client import Client
    from lakesync.errors import LakeSyncError

_KEY: Final = f'mapped_column("{ROW_ID}", String, primary_key=True, default=…)'


def declare_tables(
    client: Client, metadata: MetaData, tables: Sequence[Table] | None = None
) -> Result[None, LakeSyncError]:
    """Declare each table of the metadata, or these, with its columns and indexes. Safe to repeat.

    It replaces the ``metadata.create_all`` of other databases. Each table has one column as its
    primary key: ``_row_id``, a text that the app chooses, the same on no two devices.
    ``VALIDATION_ERROR`` for a table without it, before any is declared. Foreign keys and unique
    constraints are not enforced: rows arrive from others in any order.
    """
    chosen = metadata.sorted_tables if tables is None else tables
    for table in chosen:
        refused = _refused(table)
        if refused:
            return Err(ValidationFailed(f"table {table.name}: {refused}", field="metadata"))
    for table in chosen:
        columns = {c.name: column_type(c.type) for c in table.columns if c.name != ROW_ID}
        indexes = [[column.name for column in index.columns] for index in table.indexes]
        declared = client.declare(table.name, columns, indexes=indexes)
        if isinstance(declared, Err):
            return declared
    return Ok(None)


def _refused(table: Table) -> str:
    """Return why a table cannot be synced; empty if it can."""
    if table.schema:
        return "a client's file has no schemas; leave `schema` out"
    keys = list(table.primary_key.columns)
    if [column.name for column in keys] != [ROW_ID]:
        return f"its primary key must be the one column {ROW_ID}: {_KEY}"
    if not isinstance(keys[0].type, types.String | types.Uuid):
        return f"{ROW_ID} is text, not {keys[0].type}: {_KEY}"
    return ""
