"""What a client knows of its tables' schemas: as the gateway gives them, for the app to read.

Sync needs none of it: rows and edits of columns that no schema names are kept and synced alike. So
nothing waits for it, and where it cannot be had, the next pull asks again.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from lakesync.core.schema import schemas_from_json, schemas_to_json
from lakesync.errors import LakeSyncError
from lakesync.ports import TellsSchemas

if TYPE_CHECKING:
    from lakesync.client.storage.database import Database
    from lakesync.core.messages import PullPage
    from lakesync.core.schema import TableSchema
    from lakesync.ports import Transport


class KnownSchemas:
    """The schemas of one client's file."""

    def __init__(self, database: Database, transport: Transport) -> None:
        self._database = database
        self._transport = transport
        self._followed: str | None = None

    def follow(self, page: PullPage) -> None:
        """Ask for the schemas if a page shows that others than the stored ones apply.

        Not within a transaction: the network is waited for.
        """
        wanted = _of(page)
        if wanted == self._followed:
            return
        teller = self._transport if isinstance(self._transport, TellsSchemas) else None
        if self._stored("schemas_of") == wanted or (wanted and teller is None):
            self._followed = wanted
            return
        text = ""
        if wanted and teller is not None:
            try:
                text = json.dumps(schemas_to_json(teller.schemas()))
            except LakeSyncError:
                return  # the page is applied, which is what was asked for
        with self._database.transaction() as connection:
            connection.execute(
                "UPDATE _lakesync_sync SET schemas = ?, schemas_of = ?", (text, wanted)
            )
        self._followed = wanted

    def table(self, name: str) -> TableSchema | None:
        """Give a table's schema; None if the gateway has given none."""
        text = self._stored("schemas")
        tables = schemas_from_json(json.loads(text)).tables if text else ()
        return next((schema for schema in tables if schema.table == name), None)

    def _stored(self, column: str) -> str:
        _, rows = self._database.read(f"SELECT {column} FROM _lakesync_sync", ())  # noqa: S608 - ours
        return str(rows[0][0])


def _of(page: PullPage) -> str:
    """Give what decides which schemas a client is given; empty where there are none."""
    # Rules and claims decide too: of which tables it may know.
    return f"{page.schema_version}|{page.epoch}|{page.scope}" if page.schema_version else ""
