"""The connector of a MySQL or MariaDB database whose changes are captured."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pymysql
from pymysql.constants import ER

from lakesync.connectors.port import FEED, SourcePage
from lakesync.connectors.sql.binlog.feed import Feed
from lakesync.connectors.sql.binlog.log import wait
from lakesync.connectors.sql.binlog.tables import Tables
from lakesync.connectors.sql.capture import snapshot
from lakesync.connectors.sql.capture.kept import CAPTURE, kept_in
from lakesync.connectors.sql.capture.stretches import SnapshotConnector
from lakesync.connectors.storage import digest
from lakesync.errors import AdapterRefused, LakeSyncError, ValidationFailed

if TYPE_CHECKING:
    from lakesync.connectors.sql.capture.kept import Baseline
    from lakesync.connectors.sql.catalogue import MySqlSource
    from lakesync.connectors.sql.configuration import MySqlSettings
    from lakesync.connectors.sql.plan import Plan
    from lakesync.connectors.storage import Storage
    from lakesync.result import Result

_MAY_REPLICATE: Final = (
    ("REPLICATION SLAVE", "REPLICATION REPLICA", "ALL PRIVILEGES"),
    ("REPLICATION CLIENT", "BINLOG MONITOR", "ALL PRIVILEGES"),
)
"""The privileges to read the log and to query its end, as MySQL and MariaDB name them."""


class BinlogConnector(SnapshotConnector):
    """`lakesync.connectors.Connector` of MySQL or MariaDB, by its log of changes."""

    def __init__(self, source: MySqlSource, settings: MySqlSettings, storage: Storage) -> None:
        super().__init__(source, settings, storage)
        self._source = source
        server_id = settings.server_id or 1 << 31 | int(
            digest(storage.gateway, storage.name)[:7], 16
        )
        self._feed = Feed(
            source.dialect,
            Tables(settings.database, self._tables),
            self._tables,
            storage,
            server_id,
        )

    def check(self) -> Result[str, LakeSyncError]:
        """Check that changes can be captured; nothing is created."""

        def work(cursor: Any) -> str:
            _check_may_replicate(cursor)
            look, tables = self._feed.looked(cursor), self._feed.tables
            if not (look.is_mariadb or look.end.is_by_gtid):
                _check_sees_transactions(cursor)
            tables.look(cursor)
            if tables.faults:
                raise AdapterRefused(" ".join(tables.faults.values()))
            for name in self._tables:
                tables.plan(cursor, name)
            kept = f"for {look.kept_s // 3600} hours" if look.kept_s else "as long as it fits"
            return (
                f"{look.settings['version']} at {self._settings.host} answers, and changes of "
                f"{', '.join(self._tables)} can be captured; it keeps its log {kept}: after a "
                "longer pause all is read again."
            )

        return self._run(work)

    def read(
        self, table: str, cursor: str, *, rows_max: int, poll_ms: int
    ) -> Result[SourcePage, LakeSyncError]:
        """Return a page of the feed, or of a table that is read whole."""

        def work(connected: Any) -> SourcePage:
            if table == FEED:
                return self._feed.page(connected, cursor, rows_max, poll_ms)
            return self._whole(connected, table, cursor, rows_max)

        return self._run(work)

    def close(self) -> None:
        """End the connections."""
        self._feed.forget()
        super().close()

    def _whole(self, cursor: Any, name: str, after: str, rows_max: int) -> SourcePage:
        marked = self._marked(cursor, name)
        if marked is None:
            return SourcePage((), after, has_more=False)  # the feed reports the reason
        dialect = self._source.dialect
        return snapshot.read(cursor, dialect, *marked, self._storage, after, rows_max, wait)

    def _marked(self, cursor: Any, name: str) -> tuple[Plan, Baseline] | None:
        if name not in self._tables:
            raise ValidationFailed(f"this connector does not poll {name}", field="table")
        tables = self._feed.tables
        mark = kept_in(self._storage).tables.get(name)
        if name not in tables.looks:
            self._feed.looked(cursor)
            tables.look(cursor)
        if mark is None:
            if name in tables.faults:
                raise AdapterRefused(tables.faults[name])
            return None
        return tables.plan(cursor, name), mark


def _check_may_replicate(cursor: Any) -> None:
    """Refuse a user who may not read the log, if that can be determined: a role's rights cannot."""
    cursor.execute("SHOW GRANTS")
    grants = [str(row[0]).upper() for row in cursor.fetchall()]
    if any(" ON " not in grant for grant in grants):
        return  # a role, which may have the privilege
    if not all(any(name in " ".join(grants) for name in names) for names in _MAY_REPLICATE):
        raise AdapterRefused(
            "the user may not read the log of changes: "
            "GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO …"
        )


def _check_sees_transactions(cursor: Any) -> None:
    """Refuse a user who may not list open transactions, which is needed for MySQL without ids."""
    try:
        cursor.execute("SELECT count(*) FROM information_schema.INNODB_TRX")
    except pymysql.OperationalError as exc:
        if exc.args[:1] != (ER.SPECIFIC_ACCESS_DENIED_ERROR,):
            raise
        raise AdapterRefused(
            "the user may not see open transactions, which is needed where transactions have no "
            "ids: GRANT PROCESS ON *.* TO …, or set gtid_mode = ON"
        ) from exc
    cursor.fetchall()


def forget(storage: Storage, following: MySqlSettings | None) -> str:
    """Remove capture's state, unless new settings continue it; nothing exists at the source."""
    if following is None or not following.changes:
        storage.remove(CAPTURE)
    return ""
