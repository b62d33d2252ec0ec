"""The two types of SQL connectors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakesync.connectors.port import FEED, ConnectorType
from lakesync.connectors.sql.sql_settings import MySqlSettings, PostgresSettings
from lakesync.errors import ValidationFailed

if TYPE_CHECKING:
    from pydantic import BaseModel

    from lakesync.connectors.port import Asks, Connector, Outside, Storage


def _elsewhere(kind: str, settings: BaseModel, storage: Storage, asks: Asks) -> Connector:
    from lakesync.connectors.remote_source import AskedSource  # noqa: PLC0415 - when asked for

    return AskedSource(kind, settings, storage, asks)


def _forget_elsewhere(
    kind: str, settings: BaseModel, storage: Storage, following: BaseModel | None, asks: Asks
) -> str:
    from lakesync.connectors.remote_source import forget_elsewhere  # noqa: PLC0415 - as above

    return forget_elsewhere(kind, settings, storage, following, asks)


def _postgres(settings: PostgresSettings, storage: Storage, outside: Outside) -> Connector:
    if outside.asks is not None:
        return _elsewhere("postgres", settings, storage, outside.asks)
    from lakesync.connectors.sql.source_catalogue import (  # noqa: PLC0415 - when polled
        PostgresSource,
    )
    from lakesync.connectors.sql.sql_source import SqlConnector  # noqa: PLC0415

    if settings.changes:
        from lakesync.connectors.sql.postgres_capture import CaptureConnector  # noqa: PLC0415

        return CaptureConnector(PostgresSource(settings, outside.databases), settings, storage)
    return SqlConnector(PostgresSource(settings, outside.databases), settings, storage)


def _forget(
    settings: PostgresSettings,
    storage: Storage,
    following: PostgresSettings | None,
    outside: Outside,
) -> str:
    if outside.asks is not None:
        return _forget_elsewhere("postgres", settings, storage, following, outside.asks)
    from lakesync.connectors.sql.postgres_capture import forget  # noqa: PLC0415 - when asked for

    return forget(settings, storage, following, outside.databases)


def _mysql(settings: MySqlSettings, storage: Storage, outside: Outside) -> Connector:
    if outside.asks is not None:
        return _elsewhere("mysql", settings, storage, outside.asks)
    from lakesync.connectors.sql.source_catalogue import MySqlSource  # noqa: PLC0415 - when polled
    from lakesync.connectors.sql.sql_source import SqlConnector  # noqa: PLC0415

    if settings.changes:
        from lakesync.connectors.sql.mysql_capture import BinlogConnector  # noqa: PLC0415

        return BinlogConnector(MySqlSource(settings, outside.databases), settings, storage)
    return SqlConnector(MySqlSource(settings, outside.databases), settings, storage)


def _forget_mysql(
    _: MySqlSettings, storage: Storage, following: MySqlSettings | None, outside: Outside
) -> str:
    from lakesync.connectors.sql.mysql_capture import forget  # noqa: PLC0415 - when asked for

    del outside  # nothing was created at the source
    return forget(storage, following)


def _begins_at(
    settings: PostgresSettings | MySqlSettings, source: str, cursor: str, at_us: int
) -> str:
    from lakesync.connectors.sql.by_time import begun_at  # noqa: PLC0415 - when asked for

    if source == FEED and isinstance(settings, MySqlSettings):
        from lakesync.connectors.sql.binlog import asked_for  # noqa: PLC0415 - as above

        return asked_for(cursor, at_us)
    if source == FEED:
        raise ValidationFailed(
            "a slot of PostgreSQL cannot go back to a time, as its log is dropped once it was "
            "read: leave the time out to read the tables again, which changes nothing that is "
            "there already, or have a table read by a cursorColumn, without changes",
            field="from",
        )
    by_time = {table.name for table in settings.tables if table.cursor_column}
    if source not in by_time and not settings.changes:
        raise ValidationFailed(
            f"{source} is read by difference, and its rows have no times of change: name a "
            "cursorColumn of it, or leave it out to read everything again",
            field="from",
        )
    return begun_at(cursor, at_us, settings.overlap_s)


POSTGRES = ConnectorType(
    "postgres", "PostgreSQL", PostgresSettings, _postgres, PostgresSettings.named, _forget,
    begins_at=_begins_at,
)  # fmt: skip
MYSQL = ConnectorType(
    "mysql", "MySQL or MariaDB", MySqlSettings, _mysql, MySqlSettings.named, _forget_mysql,
    begins_at=_begins_at,
)  # fmt: skip
