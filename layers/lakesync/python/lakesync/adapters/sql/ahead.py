"""Where a table's rows are divided: counted along the ledger's key, none of them read."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lakesync.adapters.sql.dialect import Cursor
    from lakesync.adapters.sql.ledger import Ledger


def id_ahead(gateway: str, table: str, row_id: str, rows: int, cursor: Cursor, _: Ledger) -> str:
    """Give the id of the row so many rows behind another; empty if there are fewer.

    Cost: the database goes along as many entries of an index.
    """
    cursor.execute(
        "SELECT row_id FROM lakesync_rows WHERE gateway = %s AND table_name = %s "
        "AND row_id > %s ORDER BY row_id LIMIT 1 OFFSET %s",
        (gateway, table, row_id.encode(), rows - 1),
    )
    row = cursor.fetchone()
    return bytes(row[0]).decode() if row else ""
