"""The connector type of MySQL and MariaDB, and its settings."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from pydantic import Field, model_validator

from lakesync.connectors.port import FEED, ConnectorType
from lakesync.systems.sql.asked_source import module_of, reader_of
from lakesync.systems.sql.sql_settings import CapturableSettings

if TYPE_CHECKING:
    from typing import Self

    from lakesync.connectors.port import Outside, Storage


class MySqlSettings(CapturableSettings):
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
    def _only_for_changes(self) -> Self:
        if not self.changes and self.server_id:
            raise ValueError("serverId is for changes: set changes to true")
        return self


def _forget(
    _: MySqlSettings, storage: Storage, following: MySqlSettings | None, outside: Outside
) -> str:
    del outside  # nothing was created at the source
    remains: str = module_of("mysql", "capture").forget(storage, following)
    return remains


def _begins_at(settings: MySqlSettings, source: str, cursor: str, at_us: int) -> str:
    from lakesync.systems.sql.by_time import begins_at  # noqa: PLC0415 - asked for

    if source == FEED:
        from lakesync.systems.mysql.binlog import asked_for  # noqa: PLC0415 - as above

        return asked_for(cursor, at_us)
    return cursor if settings.changes else begins_at(settings, source, cursor, at_us)


MYSQL = ConnectorType(
    "mysql", "MySQL or MariaDB", MySqlSettings, partial(reader_of, "mysql"),
    MySqlSettings.named, _forget,
    begins_at=_begins_at,
)  # fmt: skip
