"""The connector type of MySQL and MariaDB, and its settings."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from pydantic import Field, model_validator

from lakesync.connectors.port import FEED, ConnectorType
from lakesync.systems.sql.asked_source import AskedSource
from lakesync.systems.sql.sql_settings import SqlSettings

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Self

    from lakesync.connectors.port import Connector, Outside, Storage


class MySqlSettings(SqlSettings):
    """A MySQL 8 or MariaDB 10.6 database, or newer."""

    port: int = Field(3306, ge=1, le=65535)
    changes: bool = Field(
        default=False,
        description=(
            "Read the database's log of changes, as a replica does: every insert, update and "
            "deletion, without asking the tables. Needs binlog_format = ROW and "
            "binlog_row_metadata = FULL."
        ),
    )
    server_id: int | None = Field(
        None, ge=1, le=(1 << 32) - 1,
        description="Its number among those who read the log; else one is made up.",
    )  # fmt: skip

    @model_validator(mode="after")
    def _captured_or_polled(self) -> Self:
        if self.changes and any(table.cursor_column or table.query for table in self.tables):
            raise ValueError(
                "with changes no table has a cursorColumn or a query: all are captured"
            )
        if not self.changes and self.server_id:
            raise ValueError("serverId is for changes: set changes to true")
        return self

    def named(self) -> Mapping[str, str]:
        """Return the tables by the source's name, with the gateway's; the feed first, if any."""
        return ({FEED: ""} if self.changes else {}) | dict(super().named())


def _mysql(settings: MySqlSettings, storage: Storage, outside: Outside) -> Connector:
    if outside.asks is not None:
        return AskedSource("mysql", settings, storage, outside.asks)
    reader = "mysql_capture" if settings.changes else "mysql_source"
    made: Connector = _module(reader).made(settings, storage, outside.databases)
    return made


def _module(name: str) -> Any:
    """Import what reads it when it is read: it imports the driver, and these settings."""
    return import_module(f"lakesync.systems.mysql.{name}")


def _forget(
    _: MySqlSettings, storage: Storage, following: MySqlSettings | None, outside: Outside
) -> str:
    del outside  # nothing was created at the source
    remains: str = _module("mysql_capture").forget(storage, following)
    return remains


def _begins_at(settings: MySqlSettings, source: str, cursor: str, at_us: int) -> str:
    from lakesync.systems.sql.by_time import begun_at, check_by_time  # noqa: PLC0415 - asked for

    if source == FEED:
        from lakesync.systems.mysql.binlog import asked_for  # noqa: PLC0415 - as above

        return asked_for(cursor, at_us)
    if settings.changes:
        return cursor  # captured: it is read whole anyway
    check_by_time(settings, source)
    return begun_at(cursor, at_us, settings.overlap_s)


MYSQL = ConnectorType(
    "mysql", "MySQL or MariaDB", MySqlSettings, _mysql, MySqlSettings.named, _forget,
    begins_at=_begins_at,
)  # fmt: skip
