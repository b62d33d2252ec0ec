"""The two types of SQL connectors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakesync.connectors.port import ConnectorType
from lakesync.connectors.sql.configuration import MySqlSettings, PostgresSettings

if TYPE_CHECKING:
    from lakesync.connectors.outside import Outside
    from lakesync.connectors.port import Connector
    from lakesync.connectors.storage import Storage


def _postgres(settings: PostgresSettings, storage: Storage, _: Outside) -> Connector:
    from lakesync.connectors.sql.catalogue import PostgresSource  # noqa: PLC0415 - when polled
    from lakesync.connectors.sql.source import SqlConnector  # noqa: PLC0415

    if settings.changes:
        from lakesync.connectors.sql.capture.source import CaptureConnector  # noqa: PLC0415

        return CaptureConnector(PostgresSource(settings), settings, storage)
    return SqlConnector(PostgresSource(settings), settings, storage)


def _forget(
    settings: PostgresSettings, storage: Storage, following: PostgresSettings | None
) -> str:
    from lakesync.connectors.sql.capture.source import forget  # noqa: PLC0415 - when asked for

    return forget(settings, storage, following)


def _mysql(settings: MySqlSettings, storage: Storage, _: Outside) -> Connector:
    from lakesync.connectors.sql.catalogue import MySqlSource  # noqa: PLC0415 - when polled
    from lakesync.connectors.sql.source import SqlConnector  # noqa: PLC0415

    if settings.changes:
        from lakesync.connectors.sql.binlog.source import BinlogConnector  # noqa: PLC0415

        return BinlogConnector(MySqlSource(settings), settings, storage)
    return SqlConnector(MySqlSource(settings), settings, storage)


def _forget_mysql(_: MySqlSettings, storage: Storage, following: MySqlSettings | None) -> str:
    from lakesync.connectors.sql.binlog.source import forget  # noqa: PLC0415 - when asked for

    return forget(storage, following)


POSTGRES = ConnectorType(
    "postgres", "PostgreSQL", PostgresSettings, _postgres, PostgresSettings.named, _forget
)
MYSQL = ConnectorType(
    "mysql", "MySQL or MariaDB", MySqlSettings, _mysql, MySqlSettings.named, _forget_mysql
)
